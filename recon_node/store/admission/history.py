"""What is known of the events around one batch: loaded in bulk, and kept current as it is admitted.

A batch of 1,000 events needs a handful of queries, not thousands. There is one `Record` object for
each EventId, so that what one event of the batch changes is what the next one sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store.admission.records import Record, State, Stream
from recon_node.store.db.proofs import ProofVerdict


class Source(Protocol):
    """The log, as admission reads it: every question is asked for many events at once."""

    def records_by_event_id(self, event_ids: Sequence[EventId]) -> list[Record]:
        """The records held under these EventIds."""

    def records_by_cid(self, cids: Sequence[CID]) -> list[Record]:
        """The records of these events."""

    def waiters(self, cids: Sequence[CID]) -> list[Record]:
        """The undelivered records that build on one of these events, in order of arrival."""

    def streams(self, init_cids: Sequence[CID]) -> list[Stream]:
        """The streams of these init events."""

    def refused_event_ids(self, event_ids: Sequence[EventId]) -> dict[EventId, str]:
        """Those of the EventIds that are remembered as refused, and why."""

    def refused_events(self, cids: Sequence[CID]) -> dict[CID, str]:
        """Those of the events that are remembered as wrong under any EventId, and why."""

    def verdict(self, proof: CID) -> ProofVerdict | None:
        """What came of a proof's lookup, None when nothing has."""

    def car(self, row: int) -> bytes:
        """The CAR of a record. Raises `DamagedEventError` if it is not what was written."""

    def size(self, row: int) -> int:
        """The bytes of the CAR of a record."""


class History:
    """The records, streams and refusals that matter to one batch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._by_event_id: dict[EventId, Record] = {}
        self._by_cid: dict[CID, dict[Record, None]] = {}  # dicts as sets that keep their order
        self._waiters: dict[CID, dict[Record, None]] = {}
        self._streams: dict[CID, Stream] = {}
        self._verdicts: dict[CID, ProofVerdict | None] = {}
        self._loaded: set[CID] = set()
        self._loaded_waiters: set[CID] = set()
        self.refused: dict[CID, str] = {}
        """Events that are wrong under any EventId, and why."""
        self.touched: dict[EventId, Record] = {}
        """Every record ever held here, those refused meanwhile included."""

    def load_event_ids(self, event_ids: Iterable[EventId]) -> None:
        """Bring in the records held under these EventIds."""
        self._adopt(self._source.records_by_event_id(list(event_ids)))

    def load(self, cids: Iterable[CID]) -> None:
        """Bring in what the log has of these events: records, streams, refusals."""
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self._loaded]
        if not missing:
            return
        self._loaded.update(missing)
        self._adopt(self._source.records_by_cid(missing))
        self._streams |= {stream.init: stream for stream in self._source.streams(missing)}
        self.refused |= self._source.refused_events(missing)

    def load_waiters(self, cids: Iterable[CID]) -> None:
        """Bring in the records that build on these events, and what else those build on."""
        missing = [cid for cid in dict.fromkeys(cids) if cid not in self._loaded_waiters]
        if not missing:
            return
        self._loaded_waiters.update(missing)
        self.load_records(self._source.waiters(missing))

    def load_records(self, records: Iterable[Record]) -> None:
        """Bring in records of the log, and what they build on."""
        found = list(records)
        self._adopt(found)
        self.load(cid for record in found for cid in (record.cid, *record.builds_on))

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

    def add_stream(self, stream: Stream) -> None:
        """Hold what a new init event asks of its stream."""
        self._streams[stream.init] = stream

    def held(self, event_id: EventId) -> Record | None:
        """The record held under that EventId."""
        return self._by_event_id.get(event_id)

    def claims(self, cid: CID) -> Sequence[Record]:
        """Every record of that event."""
        return tuple(self._by_cid.get(cid, ()))

    def checked(self, cid: CID) -> Record | None:
        """The record of that event whose EventId is known to be right."""
        for record in self.claims(cid):
            if record.state >= State.PENDING:
                return record
        return None

    def stream(self, init: CID) -> Stream | None:
        """What that init event asks of its stream."""
        return self._streams.get(init)

    def verdict(self, proof: CID) -> ProofVerdict | None:
        """What came of a proof's lookup, None when nothing has."""
        if proof not in self._verdicts:
            self._verdicts[proof] = self._source.verdict(proof)
        return self._verdicts[proof]

    def waiters(self, cids: Iterable[CID]) -> list[Record]:
        """The undelivered records that build on one of these events, each once."""
        found = {record: None for cid in cids for record in self._waiters.get(cid, ())}
        return [record for record in found if record.state is not State.DELIVERED]

    def car(self, record: Record) -> bytes:
        """The CAR of a record. Raises `DamagedEventError` if it is not what was written."""
        return self._source.car(record.row) if record.event is None else record.event.car

    def size(self, record: Record) -> int:
        """The bytes of the CAR of a record."""
        return self._source.size(record.row) if record.event is None else len(record.event.car)

    def _adopt(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.event_id not in self.touched:
                self.add(record)
