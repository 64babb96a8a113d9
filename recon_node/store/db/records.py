"""An EventId that is held and how far it has come: as a value, and as rows of the log.

Statements are run for many events at once. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

from recon_node.ceramic import Event, EventId, EventKind, Network, StreamId
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import CID
from recon_node.store.db.blocks import cut_out_shared
from recon_node.store.db.faults import FAULT, insert_faults
from recon_node.store.db.sql import select_in
from recon_node.store.errors import DamagedRowError
from recon_node.verification import Facts, Refusal

MAX_REASON: Final = 500
"""Characters of a reason that are kept."""

_SELECT: Final = (
    "SELECT id, event_id, cid, init_cid, kind, signer, state, position, "
    "(SELECT proof FROM anchors WHERE event = events.id AND kind = 'time'), "
    f"{FAULT} FROM events WHERE "
)


class State(IntEnum):
    """How far an event has come. Each state needs the one before; none is taken back."""

    ORPHAN = -1
    """Its stream's init event is not here, so nobody can tell who may have signed it."""
    WAITING = 0
    """Its signature is checked. A prev is missing or waits itself: height unchecked."""
    UNCOVERED = 1
    """Fully checked. It or something it builds on is badly signed, and nothing valid covers it.

    Where a write policy decides in whose name streams are, also an unsigned init event that nothing
    valid covers, and a time event without a lookup (see `recon_node.store.admission.ladder`).
    """
    PENDING = 2
    """Fully checked. Not delivered: a time event whose anchor was not looked up, or after one."""
    DELIVERED = 3
    """It has a feed position, and so has everything it builds on."""


@dataclass(slots=True, eq=False)
class Record:
    """One EventId and its event, as far as admission needs them.

    Until its history is here, an event may be held under several EventIds, each the claim of some
    peer; the history decides which one is right.
    """

    row: int
    """Its `id` in the log."""
    event_id: EventId
    cid: CID
    init: CID
    kind: EventKind
    signer: str | None
    """The DID that signed in its own name. None: unsigned, or signed under a capability."""
    state: State
    builds_on: tuple[CID, ...] = ()
    """The init event and the prevs; empty for an init event, and once delivered."""
    position: int | None = None
    refusal: Refusal | None = None
    fault: str | None = None
    """What is wrong with the signature of a data event, see `recon_node.store.db.faults`."""
    proof: CID | None = None
    """The CID of a time event's proof."""
    event: Facts | None = field(default=None, repr=False)
    """Set while the event is new."""
    logged_state: State | None = None
    """Its state in the log; None until it is written."""
    is_unproven: bool = False
    """Whether it is UNCOVERED only because its anchor was not looked up."""
    was_withheld: bool = False
    """Whether it was withheld when it was loaded from the log."""
    height: int = field(init=False)
    """As in the EventId; read often."""

    def __post_init__(self) -> None:
        self.height = self.event_id.height

    @property
    def is_withheld(self) -> bool:
        """Whether peers do not hear of it (CIP-124: a node validates an event before it relays
        it): it is badly signed and nothing valid covers it, or it is UNCOVERED."""
        if self.state is State.UNCOVERED:
            return True
        return self.fault is not None and self.state < State.PENDING


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What the init event of a stream requires of all events of the stream."""

    init: CID
    controller: str
    sep_key: str
    sep_value: str

    @property
    def model(self) -> StreamId | None:
        """The stream's model, None when its sort value is another field's."""
        return _model(self.sep_value) if self.sep_key == DEFAULT_SORT_KEY else None

    @classmethod
    def of(cls, init: Event | Facts) -> StreamRecord:
        """Read it from the header of the init event."""
        header = init.header
        assert header is not None, "an init event has a header"
        return cls(init.cid, header.controller, header.sep_key, header.sep_value)

    def event_id(self, network: Network, height: int, cid: CID) -> EventId:
        """Return the EventId of the stream's event `cid`.

        Raises:
            EventIdError: an EventId cannot have that height or CID.
        """
        return EventId.build(network, self.sep_value, self.controller, self.init, height, cid)


_model = lru_cache(maxsize=1024)(StreamId.parse)
"""Few models have very many streams."""


def select_records(
    connection: sqlite3.Connection, where: str, values: Sequence[object]
) -> list[Record]:
    """Return the records that match a WHERE clause whose `(?)` takes all the values.

    Raises:
        DamagedRowError: a row has values that this program never writes.
    """
    rows = list(select_in(connection, _SELECT + where, values))
    undelivered = [row[0] for row in rows if row[6] != State.DELIVERED]
    builds_on: defaultdict[int, list[CID]] = defaultdict(list)
    sql = "SELECT event, cid FROM waits WHERE event IN (?)"
    for row, cid in select_in(connection, sql, undelivered):
        builds_on[row].append(CID(cid))
    return [_record(row, tuple(builds_on.get(row[0], ()))) for row in rows]


def select_withheld(connection: sqlite3.Connection, *, orphans: bool) -> list[EventId]:
    """Return the EventIds that peers do not hear of, see `Record.is_withheld`.

    Args:
        connection: to the log.
        orphans: whether they are withheld as well.
    """
    rows = connection.execute(
        "SELECT event_id FROM events WHERE position IS NULL AND state IN (?1, ?2) "
        "UNION SELECT event_id FROM faults CROSS JOIN events USING (id) "
        "WHERE position IS NULL AND state < ?3",
        (State.UNCOVERED, State.ORPHAN if orphans else State.UNCOVERED, State.PENDING),
    )
    return [EventId(event_id) for (event_id,) in rows]


def select_streams(
    connection: sqlite3.Connection, init_cids: Sequence[CID]
) -> Iterator[StreamRecord]:
    """Return the streams of these init events."""
    sql = "SELECT init_cid, controller, sep_key, sep_value FROM streams WHERE init_cid IN (?)"
    for init, *fields in select_in(connection, sql, init_cids):
        yield StreamRecord(CID(init), *fields)


def insert_records(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Write records that are new, with their CARs and streams."""
    connection.executemany(
        "INSERT INTO events (id, event_id, cid, init_cid, kind, signer, state, position) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (r.row, r.event_id, r.cid, r.init, r.kind.value, r.signer, r.state, r.position)
            for r in records
        ),
    )
    events = [(r.row, r.event) for r in records if r.event is not None]
    cars = cut_out_shared(connection, [event for _, event in events])
    connection.executemany(
        "INSERT INTO cars (id, car) VALUES (?, ?)",
        ((row, car) for (row, _), car in zip(events, cars, strict=True)),
    )
    connection.executemany(
        "INSERT INTO waits (event, cid) VALUES (?, ?)",
        ((r.row, cid) for r in records if r.state < State.DELIVERED for cid in r.builds_on),
    )
    insert_faults(connection, _faults(records))
    streams = [StreamRecord.of(event) for _, event in events if event.kind is EventKind.INIT]
    connection.executemany(
        "INSERT INTO streams (init_cid, controller, sep_key, sep_value) VALUES (?, ?, ?, ?)",
        ((s.init, s.controller, s.sep_key, s.sep_value) for s in streams),
    )


def update_records(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Write the new states of records that are in the log."""
    connection.executemany(
        "UPDATE events SET state = ?, position = ? WHERE id = ?",
        ((r.state, r.position, r.row) for r in records),
    )
    insert_faults(connection, _faults(records))
    _delete_waits(connection, (r for r in records if r.state is State.DELIVERED))


def delete_records(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Remove records from the log."""
    for table in ("events", "cars", "faults"):
        connection.executemany(f"DELETE FROM {table} WHERE id = ?", ((r.row,) for r in records))
    _delete_waits(connection, records)


def remember_refused(connection: sqlite3.Connection, records: Sequence[Record], limit: int) -> None:
    """Remember the EventIds of refused records, and forget the oldest beyond `limit` of them."""
    connection.executemany(
        "INSERT OR IGNORE INTO refused (event_id, cid, inherent, reason) VALUES (?, ?, ?, ?)",
        (
            (r.event_id, r.cid, r.refusal.inherent, r.refusal.reason[:MAX_REASON])
            for r in records
            if r.refusal is not None
        ),
    )
    connection.execute(
        "DELETE FROM refused WHERE id <= (SELECT max(id) FROM refused) - ?", (limit,)
    )


def _faults(records: Sequence[Record]) -> Iterator[tuple[int, str]]:
    return ((r.row, r.fault[:MAX_REASON]) for r in records if r.fault is not None)


def _delete_waits(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    connection.executemany("DELETE FROM waits WHERE event = ?", ((r.row,) for r in records))


def _record(row: tuple[Any, ...], builds_on: tuple[CID, ...]) -> Record:
    row_id, event_id, cid, init, kind, signer, state, position, proof, fault = row
    try:
        record = Record(
            row=row_id,
            event_id=EventId(event_id),
            cid=CID(cid),
            init=CID(init),
            kind=EventKind(kind),
            signer=signer,
            state=State(state),
            builds_on=builds_on,
            position=position,
            fault=fault,
            proof=None if proof is None else CID(proof),
            logged_state=State(state),
        )
        record.was_withheld = record.is_withheld
        return record
    except (ValueError, TypeError) as error:
        raise DamagedRowError(f"row {row_id} of the table events: {error}") from error
