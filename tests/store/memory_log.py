"""A log in memory: what the rules and the ladder have to know, from plain lists, without SQLite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from store_helpers import NETWORK

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.store import StoreSettings, Verdict
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import (
    Known,
    Marks,
    ProofVerdict,
    Record,
    State,
    Steps,
    StreamRecord,
    Want,
    share_limits,
)
from recon_node.store.admission.rules import Rules, Terms
from recon_node.store.kept_interests import key_ranges
from recon_node.store.values import Submission
from recon_node.verification import Refusal

T = TypeVar("T")
TERMS = Terms(NETWORK, 1 << 20, now=1_700_000_000, ranges=key_ranges(NETWORK, ()))


class MemoryLog:
    """Takes batches as the event log does, and keeps what it holds in dictionaries."""

    def __init__(self, *, guarded: bool = False, settings: StoreSettings | None = None) -> None:
        self.records: dict[EventId, Record] = {}
        self.cars: dict[CID, bytes] = {}
        self.streams: dict[CID, StreamRecord] = {}
        self.refused: dict[EventId, Refusal] = {}
        self.verdicts: dict[CID, ProofVerdict] = {}
        self.marks = Marks(head=0, row=0, waiting=0)
        self.limits = share_limits(settings or StoreSettings(), guarded=guarded)
        self.guarded = guarded
        self.wants: list[Want] = []
        """What was asked for, in order."""

    @property
    def keys(self) -> list[EventId]:
        """Of which peers hear."""
        hidden = (State.ORPHAN,) if self.guarded else ()
        held = self.records.values()
        return sorted(r.event_id for r in held if not (r.is_withheld or r.state in hidden))

    @property
    def feed(self) -> list[CID]:
        """The delivered events, in order."""
        delivered = [r for r in self.records.values() if r.position is not None]
        return [r.cid for r in sorted(delivered, key=lambda each: each.position or 0)]

    @property
    def pending_proofs(self) -> list[CID]:
        """Of events that are fully checked, and were not looked up."""
        held = self.records.values()
        waiting = (r for r in held if r.state is State.PENDING or r.is_unproven)
        return [r.proof for r in waiting if r.proof is not None and r.proof not in self.verdicts]

    def admit(self, batch: Iterable[Submission]) -> list[Verdict]:
        """Judge a batch, and keep what follows from it."""
        known, ladder = self._begin()
        rules = Rules(known, self.marks, ladder, TERMS)
        verdicts = self._carry_out(rules.judge(list(batch)), known)
        self._keep(known, ladder)
        return verdicts

    def settle(self, proof: CID, verdict: ProofVerdict) -> None:
        """Note what a lookup led to, and move what has waited for it."""
        self.verdicts.setdefault(proof, verdict)
        known, ladder = self._begin()
        waiting = [r for r in self._held() if r.proof == proof and r.position is None]
        self._adopt(known, waiting)
        self._load_events(known, [cid for r in waiting for cid in (r.cid, *r.builds_on)])
        self._carry_out(ladder.resume([known.touched[r.event_id] for r in waiting]), known)
        self._keep(known, ladder)

    def _begin(self) -> tuple[Known, Ladder]:
        known = Known()
        return known, Ladder(known, self.marks, NETWORK, self.limits, guarded=self.guarded)

    def _carry_out(self, steps: Steps[T], known: Known) -> T:
        while True:
            try:
                want = next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.wants.append(want)
            self._answer(known, want)

    def _answer(self, known: Known, want: Want) -> None:
        self._adopt(known, [r for r in self._held() if r.event_id in want.event_ids])
        refused = {key: self.refused[key] for key in want.event_ids if key in self.refused}
        known.refused_event_ids |= {key: refusal.reason for key, refusal in refused.items()}
        self._load_events(known, want.events)
        waiters = [r for r in self._held() if not r.position and {*r.builds_on} & {*want.waiters}]
        known.waited_for.update(want.waiters)
        self._adopt(known, waiters)
        self._load_events(known, [cid for r in waiters for cid in (r.cid, *r.builds_on)])
        known.verdicts |= {proof: self.verdicts.get(proof) for proof in want.proofs}
        known.cars |= {record: self.cars[record.cid] for record in want.cars}
        if want.evictable:
            known.evictable = []

    def _load_events(self, known: Known, cids: Sequence[CID] | Iterable[CID]) -> None:
        wanted = set(cids) - known.events
        known.events |= wanted
        self._adopt(known, [r for r in self._held() if r.cid in wanted])
        known.streams |= {cid: self.streams[cid] for cid in wanted if cid in self.streams}
        for event_id, refusal in self.refused.items():
            if refusal.inherent and event_id.event_cid in wanted:
                known.refused[event_id.event_cid] = refusal.reason

    def _adopt(self, known: Known, records: Sequence[Record]) -> None:
        known.adopt(records)
        known.verdicts |= {r.proof: self.verdicts.get(r.proof) for r in records if r.proof}

    def _held(self) -> list[Record]:
        """Return copies of all records, as if they were loaded, in order of arrival."""
        return [replace(r) for r in sorted(self.records.values(), key=lambda each: each.row)]

    def _keep(self, known: Known, ladder: Ladder) -> None:
        for record in known.touched.values():
            if record.refusal is not None:
                self.records.pop(record.event_id, None)
                continue
            if record.event is not None:
                self.cars[record.cid] = record.event.car
                if record.event.header is not None:
                    self.streams[record.cid] = StreamRecord.of(record.event)
            delivered = record.state is State.DELIVERED
            self.records[record.event_id] = replace(
                record,
                event=None,
                builds_on=() if delivered else record.builds_on,
                logged_state=record.state,
                was_withheld=record.is_withheld,
            )
        for record in ladder.refused:
            assert record.refusal is not None
            self.refused[record.event_id] = record.refusal
