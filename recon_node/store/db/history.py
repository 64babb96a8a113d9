"""Loads what the log knows of the events around one batch into a `Known`.

A batch of 1,000 events needs a handful of queries, not thousands.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, TypeVar

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store.admission.known import Known, Steps, Want
from recon_node.store.admission.records import Record, State
from recon_node.store.damage import Damage, check_stored
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.proofs import doubted_among, proof_verdicts, select_evictable
from recon_node.store.db.records import (
    BEGINNING,
    select_records,
    select_streams,
    select_waiters,
)
from recon_node.store.db.sql import select_in

T = TypeVar("T")

MAX_WAITERS: Final = 256
"""Waiting events that one transaction loads from the log, some 0.3 ms each."""


class History:
    """Answers what a batch has to know, within its transaction.

    Args:
        connection: the writer's.

    Attributes:
        known: what was loaded, and what the batch changed of it.
        left: events and proofs with waiters that were not loaded, and after which row these are.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._room = MAX_WAITERS
        self.known = Known()
        self.left: dict[CID, int] = {}

    def carry_out(self, steps: Steps[T]) -> T:
        """Take the steps to their end, with all that they want to know; return what they do."""
        try:
            while True:
                self._load(next(steps))
        except StopIteration as end:
            result: T = end.value
            return result

    def load_uncovered(self, after: int) -> list[Record]:
        """Load the next UNCOVERED records beyond a row that are not badly signed themselves."""
        rows = self._connection.execute(
            "SELECT id FROM events WHERE position IS NULL AND state = ? AND kind != 'data' "
            "AND id > ? ORDER BY id LIMIT ?",
            (State.UNCOVERED, after, MAX_WAITERS),
        )
        return self._load_records("id IN (?) ORDER BY id", [row for (row,) in rows])

    def load_anchored(self, proofs: Sequence[CID]) -> list[Record]:
        """Load the undelivered time events with one of these proofs, at most `MAX_WAITERS`."""
        return self._load_some(proofs)

    @property
    def has_room(self) -> bool:
        """Whether more waiters may be loaded."""
        return self._room > 0

    def load_released(self, cid: CID, after: int) -> list[Record]:
        """Load what waits for an event or a proof, beyond a row, at most `MAX_WAITERS`."""
        self.known.waited_for.add(cid)
        return self._load_some([cid], after)

    def _load(self, want: Want) -> None:
        if want.event_ids:
            self._load_event_ids(list(want.event_ids))
        if want.events:
            self._load_events(want.events)
        if want.waiters:
            self._load_waiters(want.waiters)
        if want.proofs:
            self._load_proofs(want.proofs)
        for record in want.cars:
            self.known.cars[record] = self._car(record)
        if want.evictable:
            rows = select_evictable(self._connection, MAX_WAITERS)
            self.known.evictable = self._load_records("id IN (?)", rows)

    def _load_event_ids(self, event_ids: Sequence[EventId]) -> None:
        self._adopt(select_records(self._connection, "event_id IN (?)", event_ids))
        sql = "SELECT event_id, reason FROM refused WHERE event_id IN (?)"
        for raw, reason in select_in(self._connection, sql, event_ids):
            self.known.refused_event_ids[EventId(raw)] = reason

    def _load_events(self, cids: Iterable[CID]) -> None:
        known = self.known
        missing = [cid for cid in dict.fromkeys(cids) if cid not in known.events]
        if not missing:
            return
        known.events.update(missing)
        self._adopt(select_records(self._connection, "cid IN (?)", missing))
        known.streams |= {each.init: each for each in select_streams(self._connection, missing)}
        sql = "SELECT cid, reason FROM refused WHERE inherent AND cid IN (?)"
        for raw, reason in select_in(self._connection, sql, missing):
            known.refused[CID(raw)] = reason

    def _load_waiters(self, cids: Iterable[CID]) -> None:
        """Load at most `MAX_WAITERS` in all; what there are more of is in `left`."""
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self.known.waited_for]
        if not missing:
            return
        self.known.waited_for.update(missing)
        sql = "SELECT DISTINCT event FROM waits WHERE cid IN (?)"
        # Two parts of a long list may find the same row: such a list must not pass for a whole one.
        found = [
            row for (row,) in islice(select_in(self._connection, sql, missing), self._room + 1)
        ]
        rows = sorted(set(found))
        if len(found) <= self._room:  # nearly always
            self._room -= len(rows)
            self._load_records("id IN (?) ORDER BY id", rows)
        else:
            self._load_some(missing)

    def _load_some(self, cids: Iterable[CID], after: int = BEGINNING) -> list[Record]:
        """Load waiters of one event after the other until there is no room."""
        loaded: dict[int, None] = {}
        for cid in cids:
            rows = select_waiters(self._connection, cid, after, self._room + 1)
            taken = rows[: self._room]
            if len(taken) < len(rows):
                self.left[cid] = taken[-1] if taken else after
            self._room -= len(taken)
            loaded.update(dict.fromkeys(taken))
        return self._load_records("id IN (?) ORDER BY id", sorted(loaded))

    def _load_records(self, where: str, values: Sequence[object]) -> list[Record]:
        records = select_records(self._connection, where, values)
        self._adopt(records)
        self._load_events(cid for record in records for cid in (record.cid, *record.builds_on))
        return [self.known.touched[record.event_id] for record in records]

    def _load_proofs(self, proofs: Iterable[CID]) -> None:
        missing = [proof for proof in dict.fromkeys(proofs) if proof not in self.known.verdicts]
        if missing:
            self.known.verdicts |= proof_verdicts(self._connection, missing)
            self.known.doubted |= doubted_among(self._connection, missing)

    def _adopt(self, records: Sequence[Record]) -> None:
        self.known.adopt(records)
        self._load_proofs(record.proof for record in records if record.proof is not None)

    def _car(self, record: Record) -> bytes | Damage:
        sql = (
            "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE id = ?"
        )
        *names, stored = self._connection.execute(sql, (record.row,)).fetchone()
        [restored] = BlockReader(self._connection).restore_each([stored])
        return check_stored(restored, *names)
