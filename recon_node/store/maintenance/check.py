"""Is the log what it should be? Everything that can be told from the file alone is looked at.

- SQLite's own check: pages, and that tables and indexes agree.
- Each event: its CAR comes together again, every block matches its CID, and it is the event that
  its EventId names. Its state is the one that follows from what it builds on: a delivered event has
  its position after all of those, a wholly checked one has the height that follows from them, and
  its EventId is the one of its stream; a waiting one says in `waits` what it waits for.
- Positions are dense from 1. No table has rows of events that are not there.
- The hash of all keys is the same by the table, by its index, and by the saved keys if there are.

Not looked at again are signatures: an event is the bytes that its CID says, and those were checked.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.store.db.saved_keys import SavedKeys
from recon_node.store.errors import DamagedLogError
from recon_node.store.maintenance.check_events import EventChecker, read_pieces
from recon_node.store.maintenance.common import Progress, no_progress, opened_log

_MOST_FAULTS = 1000
"""Faults that are told one by one; further ones are counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as it should be."""

    where: str
    """The table, or the file."""
    message: str


@dataclass(slots=True)
class Report:
    """What a check has found."""

    events: int = 0
    delivered: int = 0
    bytes: int = 0
    """Of all CARs."""
    sha256a: str = ""
    """The hash of all keys, as peers compare it."""
    faults: list[Fault] = field(default_factory=list)
    """The first thousand."""
    fault_count: int = 0

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return self.fault_count == 0

    def add(self, where: str, message: str) -> None:
        """Note a fault."""
        self.fault_count += 1
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(Fault(where, message))


def check_log(data_dir: Path, progress: Progress = no_progress) -> Report:
    """Check the log of a directory. A log of an earlier version is brought to this one first.

    Raises:
        StoreError: there is no log, or it cannot be read for another reason than damage.
    """
    report = Report()
    try:
        with opened_log(data_dir) as connection:
            _check_file(connection, report, progress)
            _check_events(connection, report, progress)
            _check_leftovers(connection, report)
            _check_saved_keys(connection, data_dir, report)
    except DamagedLogError as error:
        report.add("file", str(error))
    except (ValueError, TypeError, LookupError) as error:  # what no sound file leads to
        report.add("file", f"it holds what no log holds ({error!r}): the check ends here")
    return report


def _check_file(connection: sqlite3.Connection, report: Report, progress: Progress) -> None:
    progress("reading the file", 0, None)
    for (message,) in connection.execute("PRAGMA integrity_check(1000)"):
        if message != "ok":
            report.add("file", message)


def _check_events(connection: sqlite3.Connection, report: Report, progress: Progress) -> None:
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
    checker = EventChecker(connection, report.add)
    by_table = 0
    for piece in read_pieces(connection):
        report.bytes += checker.check(piece)
        report.events += len(piece)
        report.delivered += sum(row.position is not None for row in piece)
        by_table += sum(spread(sha256(row.event_id).digest()) for row in piece)
        progress("checking events", piece[-1].id, last)
    report.sha256a = Sha256a.from_lanes(by_table).hex()
    by_index = sum(
        spread(sha256(event_id).digest())
        for (event_id,) in connection.execute("SELECT event_id FROM events ORDER BY event_id")
    )
    if by_index != by_table:
        report.add(
            "events",
            f"the hash of all keys is {report.sha256a} by the table, and "
            f"{Sha256a.from_lanes(by_index).hex()} by its index",
        )


_LEFTOVERS = {
    "cars": "SELECT id FROM cars WHERE id NOT IN (SELECT id FROM events)",
    "waits": "SELECT DISTINCT event FROM waits WHERE event NOT IN (SELECT id FROM events)",
    "anchors": "SELECT event FROM anchors WHERE event NOT IN (SELECT id FROM events)",
}


def _check_leftovers(connection: sqlite3.Connection, report: Report) -> None:
    for table, sql in _LEFTOVERS.items():
        for (row,) in connection.execute(sql):
            report.add(table, f"a row is of the event in row {row}, which is not there")
    for cid, at in _streams_without_init(connection):
        report.add("streams", f"the stream of {cid.hex()} has no init event here (found {at})")
    missing = "SELECT DISTINCT proof FROM anchors WHERE proof NOT IN (SELECT proof FROM proofs)"
    for (proof,) in connection.execute(missing):
        report.add("proofs", f"the proof {proof.hex()} of a time event is not there")


def _streams_without_init(connection: sqlite3.Connection) -> Iterator[tuple[bytes, int]]:
    yield from connection.execute(
        "SELECT init_cid, (SELECT count(*) FROM events WHERE cid = init_cid) AS found "
        "FROM streams WHERE found = 0"
    )


def _check_saved_keys(connection: sqlite3.Connection, data_dir: Path, report: Report) -> None:
    keys = SavedKeys(data_dir, connection).load(report.events)
    if keys is not None and keys.summarize().hash.hex() != report.sha256a:
        report.add("keys.saved", f"the saved keys have the hash {keys.summarize().hash.hex()}")
