"""The rules of admission, for one batch of events. Pure: they yield what they have to know.

Each event of a batch is judged in order, as if it came alone, and sees what those before it
changed. First alone (size, interests, CAR, its own signature: see `recon_node.verification`), then
under its EventId: a local event gets one, for which its history must be here; a peer's event must
have the right one, as far as can be said yet. Then it moves towards the feed, see
`recon_node.store.admission.ladder`.

An EventId is remembered as refused only for what the event with its CID proves, never for what the
CAR was that came with it: otherwise any peer could keep an event from us by sending garbage in its
name.

A capability that has expired, or is not valid yet, keeps out local events only. Whether an event
belongs to the set that nodes agree on must not depend on a clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from recon_node.ceramic import (
    EventId,
    EventIdError,
    InvalidEventError,
    Network,
    Validity,
    network_name,
)
from recon_node.ceramic.auth.capability import CLOCK_SKEW
from recon_node.ceramic.event import DATA, INIT, TIME
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.recon import KeyRange, covers
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import (
    ORPHAN,
    UNCOVERED,
    Inquiry,
    Known,
    Record,
    StreamRecord,
    Want,
    builds_on,
)
from recon_node.store.admission.shares import Marks
from recon_node.store.damage import FORGOTTEN
from recon_node.store.values import Cause, Submission, Verdict
from recon_node.verification import Broken, Facts, Refusal, Unreadable, check_event


class _Recorded(NamedTuple):
    """A submission that has a record, which came with it or was held before."""

    record: Record
    new: bool = False


@dataclass(frozen=True, slots=True)
class PolicyRefusal:
    """Why the write policy refuses a stream."""

    reason: str
    is_final: bool = True
    """Whether the policy said so. It did not if the event could not be checked before."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the write policy says of a batch."""

    keys: Mapping[bytes, PolicyRefusal] = field(default_factory=dict)
    """EventIds, of either kind, that are refused."""
    streams: Mapping[CID, PolicyRefusal | None] = field(default_factory=dict)
    """Judged streams, by their init events. Those whose init event is unknown are not judged."""


UNJUDGED: Final = PolicyRefusal(
    "this node could not check the stream against its write policy: try again later", is_final=False
)


class Terms(NamedTuple):
    """The terms under which the events of a batch are admitted."""

    network: Network
    max_event_bytes: int
    now: float
    """Unix time in seconds."""
    ranges: Sequence[KeyRange]
    """Of the node's interests, ascending and apart: peers' events must lie in them."""
    judgement: Judgement | None = None
    """What the write policy says of the batch, if there is one."""


class Rules:
    """Judge the events of one batch."""

    def __init__(self, known: Known, marks: Marks, ladder: Ladder, terms: Terms) -> None:
        self._terms = terms
        self._known = known
        self._marks = marks
        self._ladder = ladder
        self.own_streams: set[CID] = set()
        """The streams to which clients of this node wrote, by their init events."""

    def move_repaired(self, repaired: Sequence[CID]) -> Inquiry[None]:
        """Move the records of repaired events, and those that waited for them to be readable."""
        known = self._known
        moved = [(cid, cid) for cid in repaired]  # as that of an init event, which they lacked
        yield Want(events=repaired, waiters=moved)
        held = [record for cid in repaired for record in known.records_of(cid)]
        yield Want(moving=held)
        yield from self._ladder.move([*held, *known.waiters(moved)])

    def judge(self, batch: Sequence[Submission]) -> Inquiry[list[Verdict]]:
        """Judge all events, in order, and move those that are accepted."""
        names = [submission.event_id or submission.ring_key for submission in batch]
        cids = [None if name is None else name.event_cid for name in names]
        yield Want(
            event_ids=[name for name in names if isinstance(name, EventId)],
            events=[cid for cid in cids if cid is not None],
        )
        screened = list(map(self._screen, batch, cids))
        events = [outcome for outcome in screened if isinstance(outcome, Facts)]
        yield Want(
            events=[cid for event in events for cid in (event.cid, event.init, *event.prevs)],
            proofs=[event.proof_cid for event in events if event.proof_cid is not None],
        )
        # Not the waiters themselves, which are loaded when what they wait for has moved: otherwise
        # anyone could have them loaded, by offering it under wrong EventIds.
        yield Want(unwaited=[event.cid for event in events])
        outcomes: list[_Recorded | Verdict] = []
        for submission, outcome in zip(batch, screened, strict=True):
            if not isinstance(outcome, Facts):
                outcomes.append(outcome)
            elif (record := self._deliver_at_once(submission, outcome)) is not None:
                outcomes.append(_Recorded(record, new=True))
            else:
                outcomes.append((yield from self._place(submission, outcome)))
        yield from self._place_without_room(batch, screened, outcomes)
        self._note_own_streams(batch, outcomes)
        return [
            outcome if isinstance(outcome, Verdict) else _verdict(outcome) for outcome in outcomes
        ]

    def _place_without_room(
        self,
        batch: Sequence[Submission],
        screened: Sequence[Facts | _Recorded | Verdict],
        outcomes: list[_Recorded | Verdict],
    ) -> Inquiry[None]:
        """Place the events once more that would have had to wait and found no room, history first:
        so no event whose history is here or in the batch is refused for want of room."""
        late = sorted(
            (outcome.record.height, at)
            for at, outcome in enumerate(outcomes)
            if isinstance(outcome, _Recorded)
            and outcome.record.refusal is not None
            and outcome.record.refusal.temporary
        )
        for _, at in late:
            event = screened[at]
            assert isinstance(event, Facts)
            outcomes[at] = yield from self._place(batch[at], event)

    def _note_own_streams(
        self, batch: Sequence[Submission], outcomes: Sequence[_Recorded | Verdict]
    ) -> None:
        """Note the streams to which clients of this node wrote in a batch."""
        for submission, outcome in zip(batch, outcomes, strict=True):
            is_own = submission.event_id is None and submission.ring_key is None
            if is_own and not submission.at_any_time and isinstance(outcome, _Recorded):
                record = outcome.record
                if record.kind is not TIME and record.refusal is None:
                    self.own_streams.add(record.init)

    def _screen(self, submission: Submission, cid: CID | None) -> Facts | _Recorded | Verdict:
        """Look at a submission alone; `cid` is that of the EventId under which it came."""
        event_id = submission.event_id
        if event_id is not None:
            settled = self._screen_event_id(event_id)
            if settled is not None:
                return settled
        named = event_id or submission.ring_key
        if named is not None and self._terms.judgement is not None:
            unwanted = self._terms.judgement.keys.get(named)
            if unwanted is not None:
                return _unwanted(event_id, unwanted)
        if len(submission.car) > self._terms.max_event_bytes:
            reason = (
                f"the CAR has {len(submission.car)} bytes; this node accepts at most "
                f"{self._terms.max_event_bytes}"
            )
            return _refused(event_id, reason, "car")
        finding = submission.finding or check_event(submission.car)
        if isinstance(finding, Unreadable):
            return _refused(event_id, finding.reason, "car")
        if isinstance(finding, Broken):
            return _refused(event_id, finding.reason, "node")
        if cid is not None and finding.cid != cid:
            ids = f"the event {cid}, but the CAR holds {finding.cid}"
            return _refused(event_id, f"the EventId is that of {ids}", "car")
        return finding

    def _screen_event_id(self, event_id: EventId) -> _Recorded | Verdict | None:
        """Look at a peer's EventId alone; what it settles needs no look at the CAR."""
        held = self._known.held(event_id)
        if held is not None:
            return _Recorded(held)
        if not covers(self._terms.ranges, event_id):  # which all are of this node's network
            reason = "the EventId lies outside this node's interests"
            if event_id.network_id != self._terms.network.id:
                reason = (
                    f"the EventId is of the network {network_name(event_id.network_id)}; this "
                    f"node is on {self._terms.network.name}"
                )
            return _refused(event_id, reason, "bounds")
        before = self._known.refused_event_ids.get(event_id)
        return None if before is None else _refused(event_id, before, "event")

    def _deliver_at_once(self, submission: Submission, event: Facts) -> Record | None:
        """Deliver an event if nothing of it has to be looked up, as with most; else None."""
        if event.kind is TIME or event.refusal is not None or submission.ring_key is not None:
            return None
        if self._terms.judgement is not None or self._known.records_of(event.cid):
            return None
        return self._ladder.deliver(event, builds_on(event), submission.event_id, self._new_record)

    def _place(self, submission: Submission, event: Facts) -> Inquiry[_Recorded | Verdict]:
        """Put an event under its EventId and let it move on."""
        known, ring_key = self._known, submission.ring_key
        event_id = submission.event_id
        if event_id is None:
            found = yield from self._find_event_id(submission, event)
            if not isinstance(found, EventId):
                return found
            event_id = found
        held = known.held(event_id)
        if held is not None:
            return _Recorded(held)
        refusal = event.refusal
        if refusal is not None and event.is_badly_signed:  # a valid event may cover it
            refusal = None
        if refusal is None and self._terms.judgement is not None:
            unwanted = yield from self._policy_refusal(event)
            if unwanted is not None:
                return _unwanted(event_id, unwanted)
        record = self._new_record(event, builds_on(event), event_id, event_id.height)
        checked = known.checked(event.cid)
        if refusal is None and checked is not None:
            refusal = Refusal(f"the event's EventId is {checked.event_id}, not {event_id}")
        has_no_event_id = submission.event_id is None  # as those of the model ring are, too
        is_own = has_no_event_id and ring_key is None
        yield from self._ladder.enter(record, refusal, must_be_valid=has_no_event_id, is_own=is_own)
        if ring_key is not None and record.refusal is not None:
            return _refused(event_id, record.refusal.reason, _cause(record.refusal, ring_key))
        return _Recorded(record, new=True)

    def _find_event_id(
        self, submission: Submission, event: Facts
    ) -> Inquiry[EventId | _Recorded | Verdict]:
        """Return the EventId of an event that came without one; or what became of the event, if it
        is held already or cannot have one."""
        ring_key = submission.ring_key
        records = self._known.records_of(event.cid)
        if records:
            return _Recorded(self._known.checked(event.cid) or records[0])
        if event.refusal is not None:
            return _refused(None, event.refusal.reason, _cause(event.refusal, ring_key))
        unwanted = yield from self._policy_refusal(event)
        if unwanted is not None:
            return _unwanted(None, unwanted)
        now = int(self._terms.now)
        is_timeless = ring_key is not None or submission.at_any_time
        if not is_timeless and not event.validity.covers(now, CLOCK_SKEW):
            return _refused(None, _out_of_time(event.validity, now), "bounds")
        try:
            event_id = self._event_id_of(event)
        except (InvalidEventError, EventIdError) as error:
            return _refused(None, str(error), "history")
        if ring_key is not None and not self._has_ring_key(event, ring_key):
            reason = f"the event came under {ring_key}, which is not its EventId"
            return _refused(None, reason, "event")
        return event_id

    def _policy_refusal(self, event: Facts) -> Inquiry[PolicyRefusal | None]:
        """Return why the write policy refuses the stream of an event; None if it does not.

        A stream whose init event is not here is judged when that comes.
        """
        if self._terms.judgement is None:
            return None
        is_known = event.kind is INIT or event.init in self._known.streams
        refusal = self._terms.judgement.streams.get(event.init, UNJUDGED if is_known else None)
        if refusal is not None and refusal.is_final and event.kind is INIT:
            yield from self._ladder.drop_orphans(event.cid, refusal.reason)
        return refusal

    def _event_id_of(self, event: Facts) -> EventId:
        """Return the EventId of a local event, whose history must be here."""
        if event.kind is INIT:
            return StreamRecord.of(event).event_id(self._terms.network, 0, event.cid)
        stream = self._known.streams.get(event.init)
        if stream is None:
            raise InvalidEventError(
                f"the stream's init event {event.init} is missing: add it first"
            )
        height = 0
        for prev in event.prevs:
            base = self._known.checked(prev)
            if base is None:
                raise InvalidEventError(
                    f"the event's prev {prev} came from a peer and waits for its own history"
                    if self._known.records_of(prev)
                    else f"the event's prev {prev} is missing: add it first"
                )
            if base.state is UNCOVERED and event.kind is not DATA:
                raise InvalidEventError(
                    f"the event's prev {prev} is or builds on an event that is badly signed, or "
                    "not signed by the stream's controller, and no valid data event covers that"
                )
            height = max(height, base.height + 1)
        return stream.event_id(self._terms.network, height, event.cid)

    def _has_ring_key(self, event: Facts, ring_key: HeightlessEventId) -> bool:
        """Return whether a key of the model ring is that of an event whose stream is known."""
        is_init = event.kind is INIT
        stream = StreamRecord.of(event) if is_init else self._known.streams[event.init]
        if stream.model is None:
            return False
        return ring_key == HeightlessEventId.build(
            self._terms.network, stream.model, stream.controller, stream.init, event.cid
        )

    def _new_record(
        self, event: Facts, bases: tuple[CID, ...], event_id: EventId, height: int
    ) -> Record:
        is_init = event.kind is INIT
        refusal = event.refusal
        self._marks.row += 1
        forgotten = self._known.forgotten
        return Record(
            row=self._marks.row,
            event_id=event_id,
            height=height,
            cid=event.cid,
            init=event.cid if is_init else event.init,
            kind=event.kind,
            signer=event.signer,
            state=ORPHAN,
            builds_on=bases,
            fault=refusal.reason if refusal is not None and event.is_badly_signed else None,
            proof=event.proof_cid,
            event=event,
            size=len(FORGOTTEN if forgotten and event.init in forgotten else event.car),
        )


def _refused(event_id: EventId | None, reason: str, cause: Cause) -> Verdict:
    return Verdict("refused", event_id, None, reason, cause)


def _unwanted(event_id: EventId | None, refusal: PolicyRefusal) -> Verdict:
    if not refusal.is_final:
        return _refused(event_id, refusal.reason, "unjudged")
    reason = f"the write policy of this node refuses the stream: {refusal.reason}"
    return _refused(event_id, reason, "policy")


def _cause(refusal: Refusal, ring_key: HeightlessEventId | None) -> Cause:
    """Say what a refusal is about, of an event that came without an EventId of ours.

    Of events from the ring, the only refusal that is not inherent is an unsupported signature.
    """
    return "event" if ring_key is None or refusal.inherent else "bounds"


def _out_of_time(validity: Validity, now: int) -> str:
    def text(seconds: int) -> str:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"

    is_early = validity.not_before is not None and now < validity.not_before
    bounds = [
        f"{word} {text(bound)}"
        for word, bound in (("from", validity.not_before), ("until", validity.expires))
        if bound is not None
    ]
    return (
        "the capability that the event is signed under is not valid now: it is valid "
        f"{' '.join(bounds)}, and the clock of this node says {text(now)} ({CLOCK_SKEW // 60} "
        "minutes of difference are allowed); "
        + ("compare the clocks" if is_early else "sign the event under a new one")
    )


def _verdict(placed: _Recorded) -> Verdict:
    """Say what became of a submission, as it stands at the end of the batch."""
    record = placed.record
    if record.refusal is not None:
        cause: Cause = "waiting" if record.refusal.temporary else "event"
        return Verdict("refused", record.event_id, None, record.refusal.reason, cause)
    return Verdict("new" if placed.new else "known", record.event_id, record.position)
