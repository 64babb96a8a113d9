"""The log in SQL: what admission asks of it, and how a batch's changes are written.

Questions are asked for many events in one statement. Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from recon_node.ceramic import EventId, EventKind
from recon_node.ipld import CID, CarError
from recon_node.store.admission.records import Record, State, Stream
from recon_node.store.damage.detection import DamagedEventError, car_fault, name_damage
from recon_node.store.db.blocks import BlockReader, BlockWriter
from recon_node.store.db.packing import full_size, is_packed
from recon_node.store.db.proofs import ProofTable, ProofVerdict
from recon_node.store.db.sql import select_in
from recon_node.store.errors import DamagedRowError

_MAX_REASON = 500
_RECORD = (
    "SELECT id, event_id, cid, init_cid, kind, signer, state, position, "
    "(SELECT proof FROM anchors WHERE event = events.id AND kind = 'time') FROM events"
)


class Ledger:
    """Reads and writes of the writer's connection; a `history.Source`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._proofs = ProofTable(connection)

    # What admission asks.

    def records_by_event_id(self, event_ids: Sequence[EventId]) -> list[Record]:
        """The records held under these EventIds."""
        return self._records(f"{_RECORD} WHERE event_id IN (?)", event_ids)

    def records_by_cid(self, cids: Sequence[CID]) -> list[Record]:
        """The records of these events."""
        return self._records(f"{_RECORD} WHERE cid IN (?)", cids)

    def waiters(self, cids: Sequence[CID]) -> list[Record]:
        """The undelivered records that build on one of these events, in order of arrival."""
        rows = self._rows("SELECT DISTINCT event FROM waits WHERE cid IN (?)", cids)
        waiting = sorted({row for (row,) in rows})
        return self._records(f"{_RECORD} WHERE id IN (?) ORDER BY id", waiting)

    def records_by_proof(self, proofs: Sequence[CID]) -> list[Record]:
        """The undelivered time events with one of these proofs, in order of arrival."""
        rows = self._rows("SELECT event FROM anchors WHERE proof IN (?)", proofs)
        anchored = sorted(row for (row,) in rows)
        return self._records(f"{_RECORD} WHERE position IS NULL AND id IN (?)", anchored)

    def verdict(self, proof: CID) -> ProofVerdict | None:
        """What came of a proof's lookup, None when nothing has."""
        return self._proofs.verdict(proof)

    def streams(self, init_cids: Sequence[CID]) -> list[Stream]:
        """The streams of these init events."""
        sql = "SELECT init_cid, controller, sep_key, sep_value FROM streams WHERE init_cid IN (?)"
        return [Stream(CID(row[0]), *row[1:]) for row in self._rows(sql, init_cids)]

    def refused_event_ids(self, event_ids: Sequence[EventId]) -> dict[EventId, str]:
        """Those of the EventIds that are remembered as refused, and why."""
        sql = "SELECT event_id, reason FROM refused WHERE event_id IN (?)"
        return {EventId(raw): reason for raw, reason in self._rows(sql, event_ids)}

    def refused_events(self, cids: Sequence[CID]) -> dict[CID, str]:
        """Those of the events that are remembered as wrong under any EventId, and why."""
        sql = "SELECT cid, reason FROM refused WHERE inherent AND cid IN (?)"
        return {CID(raw): reason for raw, reason in self._rows(sql, cids)}

    def car(self, row: int) -> bytes:
        """The CAR of a record.

        Raises:
            DamagedEventError: it is not what was written.
        """
        sql = (
            "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE id = ?"
        )
        event_id, cid, position, stored = self._connection.execute(sql, (row,)).fetchone()
        [car] = BlockReader(self._connection).restore_each([stored])
        fault = str(car) if isinstance(car, CarError) else car_fault(car, cid)
        if isinstance(car, CarError) or fault is not None:
            raise DamagedEventError(name_damage(fault or str(car), event_id, cid, position))
        return car

    def size(self, row: int) -> int:
        """The bytes of the CAR of a record."""
        sql = "SELECT substr(car, 1, 9), length(car) FROM cars WHERE id = ?"
        found = self._connection.execute(sql, (row,)).fetchone()
        return 0 if found is None else _size(*found)  # none: the row is damaged

    def waiting(self) -> tuple[int, int]:
        """How many records are below PENDING, and the bytes of their CARs."""
        sizes = [
            _size(head, length)
            for head, length in self._connection.execute(
                "SELECT substr(car, 1, 9), length(car) FROM events JOIN cars USING (id) "
                "WHERE position IS NULL AND state < ?",
                (State.PENDING,),
            )
        ]
        return len(sizes), sum(sizes)

    # How a batch is written.

    def insert(self, records: Sequence[Record]) -> None:
        """Write records that are new."""
        self._connection.executemany(
            "INSERT INTO events (id, event_id, cid, init_cid, kind, signer, state, position) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (r.row, r.event_id, r.cid, r.init, r.kind.value, r.signer, r.state, r.position)
                for r in records
            ),
        )
        events = [(r.row, r.event) for r in records if r.event is not None]
        cars = BlockWriter(self._connection).store([event for _, event in events])
        self._connection.executemany(
            "INSERT INTO cars (id, car) VALUES (?, ?)",
            ((row, car) for (row, _), car in zip(events, cars, strict=True)),
        )
        self._connection.executemany(
            "INSERT INTO waits (event, cid) VALUES (?, ?)",
            (
                (r.row, cid)
                for r in records
                if r.state is not State.DELIVERED
                for cid in r.builds_on
            ),
        )
        self._connection.executemany(
            "INSERT INTO streams (init_cid, controller, sep_key, sep_value) VALUES (?, ?, ?, ?)",
            (
                (s.init, s.controller, s.sep_key, s.sep_value)
                for s in (
                    Stream.of(r.event)
                    for r in records
                    if r.kind is EventKind.INIT and r.event is not None
                )
            ),
        )

    def update(self, records: Sequence[Record]) -> None:
        """Write the new states of records that were there."""
        self._connection.executemany(
            "UPDATE events SET state = ?, position = ? WHERE id = ?",
            ((r.state, r.position, r.row) for r in records),
        )
        self._forget_waits(r for r in records if r.state is State.DELIVERED)

    def delete(self, records: Sequence[Record]) -> None:
        """Take out records that were there."""
        for table in ("events", "cars"):
            self._connection.executemany(
                f"DELETE FROM {table} WHERE id = ?", ((r.row,) for r in records)
            )
        self._forget_waits(records)

    def remember_refused(self, records: Sequence[Record], limit: int) -> None:
        """Remember EventIds as refused, and forget the oldest beyond `limit`."""
        self._connection.executemany(
            "INSERT OR IGNORE INTO refused (event_id, cid, inherent, reason) VALUES (?, ?, ?, ?)",
            (
                (r.event_id, r.cid, r.refusal.inherent, r.refusal.reason[:_MAX_REASON])
                for r in records
                if r.refusal is not None
            ),
        )
        self._connection.execute(
            "DELETE FROM refused WHERE id <= (SELECT max(id) FROM refused) - ?", (limit,)
        )

    def _forget_waits(self, records: Iterable[Record]) -> None:
        self._connection.executemany(
            "DELETE FROM waits WHERE event = ?", ((r.row,) for r in records)
        )

    def _records(self, sql: str, values: Sequence[object]) -> list[Record]:
        rows = list(self._rows(sql, values))
        undelivered = [row[0] for row in rows if row[6] != State.DELIVERED]
        builds_on: defaultdict[int, list[CID]] = defaultdict(list)
        waits = "SELECT event, cid FROM waits WHERE event IN (?)"
        for row, cid in self._rows(waits, undelivered):
            builds_on[row].append(CID(cid))
        return [_record(row, tuple(builds_on.get(row[0], ()))) for row in rows]

    def _rows(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """The rows of a statement whose `(?)` takes any number of values."""
        return select_in(self._connection, sql, values)


def _size(head: bytes, length: int) -> int:
    """The bytes of a CAR, of whose stored form these are the first bytes and the length."""
    return full_size(head) if is_packed(head) else length


def _record(row: tuple[Any, ...], builds_on: tuple[CID, ...]) -> Record:
    row_id, event_id, cid, init, kind, signer, state, position, proof = row
    try:
        return Record(
            row=row_id,
            event_id=EventId(event_id),
            cid=CID(cid),
            init=CID(init),
            kind=EventKind(kind),
            signer=signer,
            state=State(state),
            builds_on=builds_on,
            position=position,
            proof=None if proof is None else CID(proof),
            logged_state=State(state),
        )
    except (ValueError, TypeError) as error:
        raise DamagedRowError(f"row {row_id} of the table events: {error}") from error
