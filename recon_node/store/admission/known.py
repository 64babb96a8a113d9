"""What is known of the events around one batch: loaded in bulk, kept current as it is judged.

There is one `Record` object for each EventId, so that what one event of the batch changes is what
the next one sees. The rules and the ladder are pure: what they have to know they yield as a `Want`,
and whoever runs them adds it here before they go on (`recon_node.store.db.history` from the log).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store.admission.records import ProofVerdict, Record, State, StreamRecord
from recon_node.store.damage import Damage, DamagedEventError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Want:
    """What has to be known next."""

    event_ids: Collection[EventId] = ()
    """Records held under these, and which of these were refused before."""
    events: Collection[CID] = ()
    """Records of these events, what their streams require, and whether they were refused."""
    waiters: Collection[CID] = ()
    """Undelivered records that build on these events, and what else those build on."""
    proofs: Collection[CID] = ()
    """What the lookups of these led to. Those of records are known with the records."""
    cars: Collection[Record] = ()
    """The CARs of these records."""
    evictable: bool = False
    """Records of time events that may make room for others."""


Steps = Generator[Want, None, T]
"""Yields what has to be known next; it must be here when it goes on."""


@dataclass(slots=True)
class Known:
    """The records, streams and refusals that matter to one batch."""

    streams: dict[CID, StreamRecord] = field(default_factory=dict)
    """What the init events that are here require, by their CIDs."""
    refused_event_ids: dict[EventId, str] = field(default_factory=dict)
    """EventIds that were refused before, and why."""
    refused: dict[CID, str] = field(default_factory=dict)
    """Events that are wrong under any EventId, and why."""
    touched: dict[EventId, Record] = field(default_factory=dict)
    """Every record ever held here, those refused meanwhile included."""
    verdicts: dict[CID, ProofVerdict | None] = field(default_factory=dict)
    """What lookups of proofs led to, None until they were looked up."""
    doubted: set[CID] = field(default_factory=set)
    """Proofs whose transactions the chain did not have when they were looked up."""
    cars: dict[Record, bytes | Damage] = field(default_factory=dict)
    """CARs that were asked for."""
    evictable: list[Record] | None = None
    """Time events that may make room for others; None until asked for."""
    events: set[CID] = field(default_factory=set)
    """Events of which all is known."""
    waited_for: set[CID] = field(default_factory=set)
    """Events whose waiters are known."""
    _by_event_id: dict[EventId, Record] = field(default_factory=dict)
    _by_cid: dict[CID, dict[Record, None]] = field(default_factory=dict)  # dicts as ordered sets
    _waiters: dict[CID, dict[Record, None]] = field(default_factory=dict)

    def adopt(self, records: Iterable[Record]) -> None:
        """Hold records of the log, but those that are held or were refused here."""
        for record in records:
            if record.event_id not in self.touched:
                self.add(record)

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
        for record in self._by_cid.get(cid, ()):
            if record.state >= State.UNCOVERED:
                return record
        return None

    def waiters(self, cids: Iterable[CID]) -> list[Record]:
        """Return the undelivered records that build on one of these events, each once."""
        found = {record: None for cid in cids for record in self._waiters.get(cid, ())}
        return [record for record in found if record.state is not State.DELIVERED]

    def car(self, record: Record) -> bytes:
        """Return the CAR of a record.

        Raises:
            DamagedEventError: it is not what was written.
        """
        car = self.cars[record] if record.event is None else record.event.car
        if not isinstance(car, bytes):
            raise DamagedEventError(car)
        return car
