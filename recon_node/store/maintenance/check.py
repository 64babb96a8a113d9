"""Check a log: everything that can be learned from the file alone.

- SQLite's own check: pages, and that tables and indexes agree.
- Each event: its CAR can be restored, every block matches its CID, and its EventId names it. Its
  state follows from its history: a delivered event comes after everything it builds on, a fully
  checked one has the right height and EventId, one that is not delivered lists in `waits` what it
  builds on, and one that waits to be covered is badly signed, or a time event on such events.
- Positions are dense from 1. No table has rows of missing events.
- The hash of all keys is the same by the table, by its index, and by the saved keys, if any.

Signatures are not verified again: the CIDs prove that the bytes are those that were verified.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.store.db.saved_keys import KEYS, load_keys
from recon_node.store.errors import DamagedLogError
from recon_node.store.maintenance.check_events import EventChecker, read_event_rows
from recon_node.store.maintenance.closed_log import Progress, no_progress, opened_log

_MAX_LISTED: Final = 1000
"""Faults that are listed; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong."""

    where: str
    """The table, or the file."""
    message: str


@dataclass(slots=True)
class Report:
    """The result of a check."""

    events: int = 0
    delivered: int = 0
    bytes: int = 0
    """Of all CARs."""
    sha256a: str = ""
    """The hash of all keys, as peers compare it."""
    faults: list[Fault] = field(default_factory=list)
    """The first 1000."""
    fault_count: int = 0

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return self.fault_count == 0

    def add(self, where: str, message: str) -> None:
        """Note a fault."""
        self.fault_count += 1
        if len(self.faults) < _MAX_LISTED:
            self.faults.append(Fault(where, message))


def check_log(data_dir: Path, progress: Progress = no_progress) -> Report:
    """Check the log of a directory. A log of an earlier version is migrated first.

    Raises:
        StoreError: there is no log, or it cannot be read for another reason than damage.
    """
    report = Report()
    try:
        with opened_log(data_dir) as log:
            connection = log.connection
            _check_file(connection, report, progress)
            _check_events(connection, report, progress)
            _check_references(connection, report)
            _check_saved_keys(connection, data_dir, report)
    except DamagedLogError as error:
        report.add("file", str(error))
    except (ValueError, TypeError, LookupError) as error:  # of values that no log has
        report.add("file", f"the check stopped at an impossible value: {error!r}")
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
    for piece in read_event_rows(connection):
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


_NO_EVENT = "a row refers to the event in row {}, which is missing"
_REFERENCES: Final = (
    ("cars", "SELECT id FROM cars WHERE id NOT IN (SELECT id FROM events)", _NO_EVENT),
    (
        "waits",
        "SELECT DISTINCT event FROM waits WHERE event NOT IN (SELECT id FROM events)",
        _NO_EVENT,
    ),
    ("faults", "SELECT id FROM faults WHERE id NOT IN (SELECT id FROM events)", _NO_EVENT),
    ("anchors", "SELECT event FROM anchors WHERE event NOT IN (SELECT id FROM events)", _NO_EVENT),
    (
        "streams",
        "SELECT hex(init_cid) FROM streams WHERE init_cid NOT IN (SELECT cid FROM events)",
        "the init event of the stream {} is missing",
    ),
    (
        "proofs",
        "SELECT DISTINCT hex(proof) FROM anchors WHERE proof NOT IN (SELECT proof FROM proofs)",
        "the proof {} of a time event is missing",
    ),
)
"""Table, what it refers to but does not exist, and what to say about it."""


def _check_references(connection: sqlite3.Connection, report: Report) -> None:
    for table, sql, message in _REFERENCES:
        for (missing,) in connection.execute(sql):
            report.add(table, message.format(str(missing).lower()))


def _check_saved_keys(connection: sqlite3.Connection, data_dir: Path, report: Report) -> None:
    keys = load_keys(data_dir, connection, KEYS, report.events)
    if keys is not None and keys.summarize().hash.hex() != report.sha256a:
        report.add("keys.saved", f"the saved keys have the hash {keys.summarize().hash.hex()}")
