"""What the log knows of the events around one batch: loaded in bulk, kept current as it is judged.

A batch of 1,000 events needs a handful of queries, not thousands. There is one `Record` object for
each EventId, so that what one event of the batch changes is what the next one sees.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store.damage.detection import DamagedEventError, check_stored
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.doubts import is_doubted
from recon_node.store.db.packing import full_size
from recon_node.store.db.proofs import ProofVerdict, proof_verdict, select_evictable
from recon_node.store.db.records import Record, State, StreamRecord, select_records, select_streams
from recon_node.store.db.releases import BEGINNING, select_waiters
from recon_node.store.db.sql import select_in

MAX_WAITERS: Final = 256
"""Waiting events that one transaction loads from the log, some 0.3 ms each."""


class History:
    """The records, streams and refusals that matter to one batch, within its transaction.

    Args:
        connection: the writer's.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._by_event_id: dict[EventId, Record] = {}
        self._by_cid: dict[CID, dict[Record, None]] = {}  # dicts as sets that keep their order
        self._waiters: dict[CID, dict[Record, None]] = {}
        self._verdicts: dict[CID, ProofVerdict | None] = {}
        self._loaded: set[CID] = set()
        self._loaded_waiters: set[CID] = set()
        self.streams: dict[CID, StreamRecord] = {}
        """What the init events that are here require, by their CIDs."""
        self.refused_event_ids: dict[EventId, str] = {}
        """EventIds that were refused before, and why."""
        self.refused: dict[CID, str] = {}
        """Events that are wrong under any EventId, and why."""
        self.touched: dict[EventId, Record] = {}
        """Every record ever held here, those refused meanwhile included."""
        self.left: dict[CID, int] = {}
        """Events and proofs with waiters that were not loaded, and after which row these are."""
        self._room = MAX_WAITERS

    def load_event_ids(self, event_ids: Sequence[EventId]) -> None:
        """Load the records held under these EventIds, and which of these were refused before."""
        self._adopt(select_records(self._connection, "event_id IN (?)", event_ids))
        sql = "SELECT event_id, reason FROM refused WHERE event_id IN (?)"
        for raw, reason in select_in(self._connection, sql, event_ids):
            self.refused_event_ids[EventId(raw)] = reason

    def load(self, cids: Iterable[CID]) -> None:
        """Load what the log has of these events: records, streams, refusals."""
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self._loaded]
        if not missing:
            return
        self._loaded.update(missing)
        self._adopt(select_records(self._connection, "cid IN (?)", missing))
        self.streams |= {each.init: each for each in select_streams(self._connection, missing)}
        sql = "SELECT cid, reason FROM refused WHERE inherent AND cid IN (?)"
        for raw, reason in select_in(self._connection, sql, missing):
            self.refused[CID(raw)] = reason

    def load_waiters(self, cids: Iterable[CID]) -> None:
        """Load the undelivered records that build on these events, and what else those build on.

        At most `MAX_WAITERS` in all; what there are more of is in `left`.
        """
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self._loaded_waiters]
        if not missing:
            return
        self._loaded_waiters.update(missing)
        sql = "SELECT DISTINCT event FROM waits WHERE cid IN (?)"
        found = islice(select_in(self._connection, sql, missing), self._room + 1)
        rows = sorted({row for (row,) in found})
        if len(rows) <= self._room:  # nearly always
            self._room -= len(rows)
            self._load_records("id IN (?) ORDER BY id", rows)
        else:
            self._load_some(missing)

    def load_evictable(self) -> list[Record]:
        """Load time events that may make room for others, see `select_evictable`."""
        rows = select_evictable(self._connection, MAX_WAITERS)
        return self._load_records("id IN (?)", rows)

    def load_uncovered(self, after: int) -> list[Record]:
        """Load the next UNCOVERED records beyond a row that are not badly signed themselves."""
        rows = self._connection.execute(
            "SELECT id FROM events WHERE position IS NULL AND state = ? AND kind != 'data' "
            "AND id > ? ORDER BY id LIMIT ?",
            (State.UNCOVERED, after, MAX_WAITERS),
        )
        return self._load_records("id IN (?) ORDER BY id", [row for (row,) in rows])

    def load_anchored(self, proofs: Sequence[CID]) -> list[Record]:
        """Load the undelivered time events with one of these proofs, bounded as `load_waiters`."""
        return self._load_some(proofs)

    @property
    def has_room(self) -> bool:
        """Whether more waiters may be loaded."""
        return self._room > 0

    def load_released(self, cid: CID, after: int) -> list[Record]:
        """Load what waits for an event or a proof, beyond a row, bounded as `load_waiters`."""
        self._loaded_waiters.add(cid)
        return self._load_some([cid], after)

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

    def add(self, record: Record) -> None:
        """Hold a record that is new here."""
        self.touched[record.event_id] = record
        self._by_event_id[record.event_id] = record
        self._by_cid.setdefault(record.cid, {})[record] = None
        for cid in record.builds_on:
            self._waiters.setdefault(cid, {})[record] = None

    def remove(self, record: Record) -> None:
        """Forget a record that was refused; no-op when it is not held."""
        if self._by_event_id.pop(record.event_id, None) is None:
            return
        del self._by_cid[record.cid][record]
        for cid in record.builds_on:
            del self._waiters[cid][record]

    def held(self, event_id: EventId) -> Record | None:
        """Return the record held under that EventId."""
        return self._by_event_id.get(event_id)

    def claims(self, cid: CID) -> Sequence[Record]:
        """Return every record of that event."""
        return tuple(self._by_cid.get(cid, ()))

    def checked(self, cid: CID) -> Record | None:
        """Return the record of that event whose EventId is known to be right."""
        for record in self.claims(cid):
            if record.state >= State.UNCOVERED:
                return record
        return None

    def verdict(self, proof: CID) -> ProofVerdict | None:
        """Return what a proof's lookup led to, None until it was looked up."""
        if proof not in self._verdicts:
            self._verdicts[proof] = proof_verdict(self._connection, proof)
        return self._verdicts[proof]

    def is_doubted(self, proof: CID) -> bool:
        """Return whether the chain did not have a proof's transaction when it was looked up."""
        return is_doubted(self._connection, proof)

    def waiters(self, cids: Iterable[CID]) -> list[Record]:
        """Return the undelivered records that build on one of these events, each once."""
        found = {record: None for cid in cids for record in self._waiters.get(cid, ())}
        return [record for record in found if record.state is not State.DELIVERED]

    def car(self, record: Record) -> bytes:
        """Return the CAR of a record.

        Raises:
            DamagedEventError: it is not what was written.
        """
        if record.event is not None:
            return record.event.car
        sql = (
            "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) WHERE id = ?"
        )
        *names, stored = self._connection.execute(sql, (record.row,)).fetchone()
        [restored] = BlockReader(self._connection).restore_each([stored])
        car = check_stored(restored, *names)
        if not isinstance(car, bytes):
            raise DamagedEventError(car)
        return car

    def size(self, record: Record) -> int:
        """Return the bytes of the CAR of a record."""
        if record.event is not None:
            return len(record.event.car)
        sql = "SELECT substr(car, 1, 9), length(car) FROM cars WHERE id = ?"
        found = self._connection.execute(sql, (record.row,)).fetchone()
        return 0 if found is None else full_size(*found)  # None: the row is damaged

    def _load_records(self, where: str, values: Sequence[object]) -> list[Record]:
        records = select_records(self._connection, where, values)
        self._adopt(records)
        self.load(cid for record in records for cid in (record.cid, *record.builds_on))
        return [self.touched[record.event_id] for record in records]

    def _adopt(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.event_id not in self.touched:
                self.add(record)
