"""The check of the events, a piece at a time: a log of any size takes the same memory."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from recon_node.ceramic import (
    Event,
    EventId,
    EventKind,
    Network,
    parse_event,
)
from recon_node.ipld import CID
from recon_node.store.admission.records import Record, State, Stream
from recon_node.store.db import schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.ledger import Ledger
from recon_node.store.db.sql import select_in
from recon_node.store.errors import DamagedRowError

_PIECE = 500


class Row(NamedTuple):
    """An event as it stands in the log."""

    id: int
    event_id: bytes
    cid: bytes
    init_cid: bytes
    kind: str
    state: int
    position: int | None
    proof: bytes | None
    car: bytes | None


def read_pieces(connection: sqlite3.Connection) -> Iterator[list[Row]]:
    """All events, in order of their rows."""
    sql = (
        "SELECT events.id, event_id, cid, init_cid, kind, state, position, proof, car FROM events "
        "LEFT JOIN cars ON cars.id = events.id LEFT JOIN anchors ON anchors.event = events.id "
        "WHERE events.id > ? ORDER BY events.id LIMIT ?"
    )
    last = -(2**63)
    while rows := connection.execute(sql, (last, _PIECE)).fetchall():
        yield [Row(*row) for row in rows]
        last = rows[-1][0]


class _WrongError(Exception):
    """What is wrong with an event."""


_DAMAGE = (_WrongError, ValueError, TypeError, LookupError)
"""What reading a row leads to that a flipped byte is in; CarError and the like are ValueErrors."""


class EventChecker:
    """Checks events against their CARs and against what they build on.

    Args:
        connection: to the log.
        tell: called with the table and what is wrong.
    """

    def __init__(self, connection: sqlite3.Connection, tell: Callable[[str, str], None]) -> None:
        self._connection = connection
        self._blocks = BlockReader(connection, remember=True)
        self._ledger = Ledger(connection)
        self._tell = tell
        self._network = Network.from_id(int(schema.read_meta(connection, "network_id") or ""))

    def check(self, piece: Sequence[Row]) -> int:
        """Check some events; return the bytes of their CARs."""
        events: list[tuple[Row, Event]] = []
        for row in piece:
            try:
                events.append((row, self._read(row)))
            except _DAMAGE as error:
                self._tell("events", f"row {row.id}, {_name(row)}: {error}")
        waits = self._waits([row for row, _ in events])
        bases = self._bases([event for _, event in events])
        inits = {event.init for _, event in events}
        streams = {stream.init: stream for stream in self._ledger.streams(list(inits))}
        for row, event in events:
            try:
                self._check_waits(row, event, waits[row.id])
                self._check_state(row, event, bases, streams.get(event.init))
            except _DAMAGE as error:
                self._tell("events", f"row {row.id}, {_name(row)}: {error}")
        return sum(len(event.car) for _, event in events)

    def _read(self, row: Row) -> Event:
        """The event of a row, which must be the one that the row says."""
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
            raise _WrongError(f"its proof is {proof}, and not the one noted in `anchors`")
        return event

    def _check_waits(self, row: Row, event: Event, waits: set[bytes]) -> None:
        expected = set() if row.state == State.DELIVERED else set(_builds_on(event))
        if waits != expected:
            raise _WrongError(
                f"it waits for {len(expected)} events by its CAR, for {len(waits)} by `waits`"
            )

    def _check_state(
        self, row: Row, event: Event, bases: dict[CID, Record], stream: Stream | None
    ) -> None:
        if (row.state == State.DELIVERED) is not (row.position is not None):
            raise _WrongError(f"its state is {row.state}, its position {row.position}")
        if event.kind is EventKind.INIT and stream != Stream.of(event):
            raise _WrongError("`streams` does not say what it says of its stream")
        if (row.state == State.ORPHAN) is not (stream is None):
            raise _WrongError(f"its state is {row.state}: its init event says otherwise")
        if row.state < State.PENDING or stream is None:
            return
        height = 0
        for cid in _builds_on(event):
            base = bases.get(cid)
            if base is None:
                raise _WrongError(f"its state is {row.state}, but {cid} is not here or unchecked")
            height = max(height, base.event_id.height + 1)
            if row.position is not None and not (base.position or row.position) < row.position:
                raise _WrongError(f"its position is {row.position}, that of {cid} {base.position}")
        if stream.event_id(self._network, height, event.cid) != row.event_id:
            raise _WrongError("its EventId is not the one that follows from its history")

    def _waits(self, rows: Sequence[Row]) -> defaultdict[int, set[bytes]]:
        waits: defaultdict[int, set[bytes]] = defaultdict(set)
        sql = "SELECT event, cid FROM waits WHERE event IN (?)"
        for row, cid in select_in(self._connection, sql, [row.id for row in rows]):
            waits[row].add(cid)
        return waits

    def _bases(self, events: Sequence[Event]) -> dict[CID, Record]:
        """What the events build on, as far as it is here and wholly checked."""
        cids = {cid for event in events for cid in _builds_on(event)}
        records = self._records(list(cids))
        return {record.cid: record for record in records if record.state >= State.PENDING}

    def _records(self, cids: list[CID]) -> list[Record]:
        """The records of these events that can be read; the others are told of at their rows."""
        try:
            return self._ledger.records_by_cid(cids)
        except DamagedRowError:
            if len(cids) == 1:
                return []
            half = len(cids) // 2
            return self._records(cids[:half]) + self._records(cids[half:])


def _builds_on(event: Event) -> tuple[CID, ...]:
    if event.kind is EventKind.INIT:
        return ()
    return tuple(dict.fromkeys((event.init, *event.prevs)))


def _name(row: Row) -> str:
    """An EventId, as peers and logs write it."""
    return row.event_id.hex()
