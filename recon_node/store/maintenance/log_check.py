"""Check a log: everything that can be learned from the file alone.

- SQLite's own check: pages, and that tables and indexes agree.
- Each event: its CAR can be restored, every block matches its CID, and its EventId names it. Its
  state follows from its history: a delivered event comes after everything it builds on, a fully
  checked one has the right height and EventId, one that is not delivered lists in `waits` what it
  builds on, and one that waits to be covered is badly signed, or a time event on such events.
- Positions are dense from 1. No table has rows of missing events, or ones that a node cannot read.
- The hash of all keys is the same by the table and by the saved keys, if there are any.

Signatures are not verified again: the CIDs prove that the bytes are those that were verified.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from recon_node.ceramic import Event, EventId, EventKind, Network, parse_event
from recon_node.ipld import CID
from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.store.admission.records import Record, State, StreamRecord, builds_on
from recon_node.store.damage import FORGOTTEN
from recon_node.store.db import log_schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.rows import FAULT, forgotten_streams, select_records_of, select_streams
from recon_node.store.db.saved_keys import KEYS, load_keys
from recon_node.store.db.sql import CARS_AT_ONCE, read_in_pieces, select_in
from recon_node.store.errors import DamagedLogError, DamagedRowError
from recon_node.store.kept_interests import read_interest
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
    fault_count: int = 0
    faults: list[Fault] = field(default_factory=list)
    """The first 1000."""

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
            _check_small_tables(connection, report)
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


_NO_EVENT = "a row refers to the event in row {}, which is missing"
_REFERENCES: Final = (
    ("cars", "SELECT id FROM cars WHERE id NOT IN (SELECT id FROM events)", _NO_EVENT),
    (
        "waits",
        "SELECT DISTINCT event FROM waits WHERE event NOT IN (SELECT id FROM events)",
        _NO_EVENT,
    ),
    (
        "events",
        "SELECT id FROM events WHERE position NOTNULL AND NOT EXISTS (SELECT 1 FROM events AS init "
        "WHERE init.id = events.stream AND init.cid = events.init_cid)",
        "row {} does not have the row of its init event",
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


_READ: Final[dict[str, Callable[..., object]]] = {
    "meta": lambda *text: text,
    "refused": lambda _id, event_id, *_: EventId(event_id),
    "interests": read_interest,
    "proofs": lambda proof, _, root, tx_hash, *_more: (CID(proof), CID(root), CID(tx_hash)),
    "releases": lambda cid, _: CID(cid),
    "own_streams": CID,
    "forgotten": CID,
}
"""How a node reads a row of the tables on which its start depends, or all that waits."""


def unreadable(table: str, row: Sequence[object]) -> str | None:
    """Return why a node would fail over a row of a small table; None if it would not."""
    try:
        if table in _READ:
            _READ[table](*row)
    except (ValueError, TypeError) as error:
        return str(error)
    return None


def _check_small_tables(connection: sqlite3.Connection, report: Report) -> None:
    for table in _READ:
        for row in connection.execute(f"SELECT * FROM {table}"):
            if reason := unreadable(table, row):
                report.add(table, reason)


def _check_saved_keys(connection: sqlite3.Connection, data_dir: Path, report: Report) -> None:
    keys = load_keys(data_dir, connection, KEYS, report.events)
    if keys is not None and keys.summarize().hash.hex() != report.sha256a:
        report.add("keys.saved", f"the saved keys have the hash {keys.summarize().hash.hex()}")


class EventRow(NamedTuple):
    """An event as the log has it."""

    id: int
    event_id: bytes
    cid: bytes
    init_cid: bytes
    kind: str
    state: int
    position: int | None
    proof: bytes | None
    prev: bytes | None
    fault: str | None
    car: bytes | None


def read_event_rows(connection: sqlite3.Connection) -> Iterator[list[EventRow]]:
    """Yield all events in the order of their rows, some at a time."""
    sql = (
        "SELECT events.id, event_id, cid, init_cid, kind, state, position, proof, prev, "
        f"{FAULT}, car FROM events "
        "LEFT JOIN cars ON cars.id = events.id LEFT JOIN anchors ON anchors.event = events.id "
        "WHERE events.id > ? ORDER BY events.id LIMIT ?"
    )
    for piece in read_in_pieces(connection, sql, CARS_AT_ONCE):
        yield [EventRow(*row) for row in piece]


def _name(row: EventRow) -> str:
    # A flipped byte can turn the EventId into NULL, text or a number, whatever the schema says.
    event_id = row.event_id.hex() if isinstance(row.event_id, bytes) else repr(row.event_id)
    return f"row {row.id}, {event_id}"


class _WrongError(Exception):
    """What is wrong with an event."""


_DAMAGE: Final = (_WrongError, ValueError, TypeError, LookupError)
"""What reading a row with flipped bytes raises; CarError and the like are ValueErrors."""


class EventChecker:
    """Checks events against their CARs and against what they build on."""

    def __init__(self, connection: sqlite3.Connection, report: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._blocks = BlockReader(connection, remember=True)
        self._report = report
        self._network = Network.from_id(int(log_schema.read_meta(connection, "network_id") or ""))
        self._forgotten = forgotten_streams(connection)

    def check(self, piece: Sequence[EventRow]) -> int:
        """Check some events; return the bytes of their CARs."""
        events: list[tuple[EventRow, Event]] = []
        for row in piece:
            if row.car == FORGOTTEN and row.init_cid in self._forgotten:
                continue  # nothing is left to compare with
            try:
                events.append((row, self._read(row)))
            except _DAMAGE as error:
                self._report("events", f"{_name(row)}: {error}")
        waits = self._waits([row for row, _ in events])
        bases = self._bases([event for _, event in events])
        inits = {event.init for _, event in events}
        streams = {stream.init: stream for stream in select_streams(self._connection, list(inits))}
        for row, event in events:
            try:
                self._check_waits(row, event, waits[row.id])
                self._check_state(row, event, bases, streams.get(event.init))
            except _DAMAGE as error:
                self._report("events", f"{_name(row)}: {error}")
        return sum(len(event.car) for _, event in events)

    def _read(self, row: EventRow) -> Event:
        """Return the event of a row, which must agree with the row."""
        if not row.car:
            raise _WrongError("its CAR is missing")
        if row.init_cid in self._forgotten:
            raise _WrongError("its stream is forgotten, but its bytes are here")
        [car] = self._blocks.restore([row.car])
        event = parse_event(car)
        if not event.cid == row.cid == EventId(row.event_id).event_cid:
            raise _WrongError(f"its CAR holds the event {event.cid}")
        if (event.init, event.kind.value) != (CID(row.init_cid), row.kind):
            raise _WrongError(f"it is the {event.kind.value} event of the stream of {event.init}")
        proof = event.payload["proof"] if event.kind is EventKind.TIME else None
        if proof != row.proof:
            raise _WrongError(f"its proof is {proof}, not the one in `anchors`")
        if row.prev is not None and row.prev != event.prevs[0]:
            raise _WrongError(f"its prev is {event.prevs[0]}, not the one in `anchors`")
        return event

    def _check_waits(self, row: EventRow, event: Event, waits: dict[bytes, int]) -> None:
        expected = set() if row.state == State.DELIVERED else set(builds_on(event))
        if waits.keys() != expected:
            raise _WrongError(
                f"it waits for {len(expected)} events by its CAR, but for {len(waits)} by `waits`"
            )
        if waits and not any(waits.values()):
            raise _WrongError("it watches none of the events that it waits for by `waits`")

    def _check_state(
        self, row: EventRow, event: Event, bases: dict[CID, Record], stream: StreamRecord | None
    ) -> None:
        if (row.state == State.DELIVERED) is not (row.position is not None):
            raise _WrongError(f"its state is {row.state}, its position {row.position}")
        if event.kind is EventKind.INIT and stream != StreamRecord.of(event):
            raise _WrongError("`streams` does not agree with it")
        if (row.state == State.ORPHAN) is not (stream is None):
            verdict = "is missing" if stream is None else "is here"
            raise _WrongError(f"its state is {row.state}, but its init event {verdict}")
        if row.fault is not None and event.kind is not EventKind.DATA:
            raise _WrongError("it is not a data event, but among the badly signed ones in `faults`")
        if row.state >= State.UNCOVERED and stream is not None:
            self._check_history(row, event, bases, stream)

    def _check_history(
        self, row: EventRow, event: Event, bases: dict[CID, Record], stream: StreamRecord
    ) -> None:
        """Look at a fully checked event."""
        height = 0
        is_uncovered = row.fault is not None
        for cid in builds_on(event):
            base = bases.get(cid)
            if base is None or base.state < min(row.state, State.PENDING):
                raise _WrongError(
                    f"its state is {row.state}, but its prev {cid} is missing or unchecked"
                )
            height = max(height, base.event_id.height + 1)
            is_uncovered |= base.state == State.UNCOVERED and event.kind is EventKind.TIME
            if row.position is not None and not (base.position or row.position) < row.position:
                raise _WrongError(
                    f"its position is {row.position}, but its prev {cid} has {base.position}"
                )
        is_unsigned = event.envelope is None  # a write policy may hold it up
        if row.state == State.UNCOVERED and not is_uncovered and not is_unsigned:
            raise _WrongError(f"its state is {row.state}, but nothing in `faults` holds it up")
        if stream.event_id(self._network, height, event.cid) != row.event_id:
            raise _WrongError("its EventId does not follow from its history")

    def _waits(self, rows: Sequence[EventRow]) -> defaultdict[int, dict[bytes, int]]:
        waits: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        sql = "SELECT event, cid, watched FROM waits WHERE event IN (?)"
        for row, cid, watched in select_in(self._connection, sql, [row.id for row in rows]):
            waits[row][cid] = watched
        return waits

    def _bases(self, events: Sequence[Event]) -> dict[CID, Record]:
        """What the events build on, if it is here and fully checked."""
        cids = {cid for event in events for cid in builds_on(event)}
        records = self._records(list(cids))
        return {record.cid: record for record in records if record.state >= State.UNCOVERED}

    def _records(self, cids: list[CID]) -> list[Record]:
        """The records that can be read; the others are reported at their own rows."""
        try:
            return select_records_of(self._connection, cids)
        except DamagedRowError:
            if len(cids) == 1:
                return []
            half = len(cids) // 2
            return self._records(cids[:half]) + self._records(cids[half:])
