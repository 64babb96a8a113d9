"""Check the events of a log, some at a time: a log of any size takes the same memory."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from recon_node.ceramic import Event, EventId, EventKind, Network, parse_event
from recon_node.ipld import CID
from recon_node.store.admission.records import Record, State, StreamRecord
from recon_node.store.db import schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.records import (
    FAULT,
    select_records,
    select_streams,
)
from recon_node.store.db.sql import read_in_pieces, select_in
from recon_node.store.errors import DamagedRowError

_PIECE_ROWS: Final = 500


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
    for piece in read_in_pieces(connection, sql, _PIECE_ROWS):
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
    """Checks events against their CARs and against what they build on.

    Args:
        connection: to the log.
        report: called with the table and what is wrong.
    """

    def __init__(self, connection: sqlite3.Connection, report: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._blocks = BlockReader(connection, remember=True)
        self._report = report
        self._network = Network.from_id(int(schema.read_meta(connection, "network_id") or ""))

    def check(self, piece: Sequence[EventRow]) -> int:
        """Check some events; return the bytes of their CARs."""
        events: list[tuple[EventRow, Event]] = []
        for row in piece:
            try:
                events.append((row, self._read(row)))
            except _DAMAGE as error:
                self._report("events", f"{_name(row)}: {error}")
        waits = self._waits([row for row, _ in events])
        bases = self._bases([event for _, event in events])
        inits = {event.init for _, event in events}
        streams = {each.init: each for each in select_streams(self._connection, list(inits))}
        for row, event in events:
            try:
                self._check_waits(row, event, waits[row.id])
                self._check_state(row, event, bases, streams.get(event.init))
            except _DAMAGE as error:
                self._report("events", f"{_name(row)}: {error}")
        return sum(len(event.car) for _, event in events)

    def _read(self, row: EventRow) -> Event:
        """Return the event of a row, which must agree with the row."""
        if row.car is None:
            raise _WrongError("its CAR is missing")
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

    def _check_waits(self, row: EventRow, event: Event, waits: set[bytes]) -> None:
        expected = set() if row.state == State.DELIVERED else set(_builds_on(event))
        if waits != expected:
            raise _WrongError(
                f"it waits for {len(expected)} events by its CAR, but for {len(waits)} by `waits`"
            )

    def _check_state(
        self, row: EventRow, event: Event, bases: dict[CID, Record], stream: StreamRecord | None
    ) -> None:
        if (row.state == State.DELIVERED) is not (row.position is not None):
            raise _WrongError(f"its state is {row.state}, its position {row.position}")
        if event.kind is EventKind.INIT and stream != StreamRecord.of(event):
            raise _WrongError("`streams` does not agree with it")
        if (row.state == State.ORPHAN) is not (stream is None):
            found = "is missing" if stream is None else "is here"
            raise _WrongError(f"its state is {row.state}, but its init event {found}")
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
        for cid in _builds_on(event):
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

    def _waits(self, rows: Sequence[EventRow]) -> defaultdict[int, set[bytes]]:
        waits: defaultdict[int, set[bytes]] = defaultdict(set)
        sql = "SELECT event, cid FROM waits WHERE event IN (?)"
        for row, cid in select_in(self._connection, sql, [row.id for row in rows]):
            waits[row].add(cid)
        return waits

    def _bases(self, events: Sequence[Event]) -> dict[CID, Record]:
        """What the events build on, if it is here and fully checked."""
        cids = {cid for event in events for cid in _builds_on(event)}
        records = self._records(list(cids))
        return {record.cid: record for record in records if record.state >= State.UNCOVERED}

    def _records(self, cids: list[CID]) -> list[Record]:
        """The records that can be read; the others are reported at their own rows."""
        try:
            return select_records(self._connection, "cid IN (?)", cids)
        except DamagedRowError:
            if len(cids) == 1:
                return []
            half = len(cids) // 2
            return self._records(cids[:half]) + self._records(cids[half:])


def _builds_on(event: Event) -> tuple[CID, ...]:
    if event.kind is EventKind.INIT:
        return ()
    return tuple(dict.fromkeys((event.init, *event.prevs)))
