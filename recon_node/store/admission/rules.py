"""The rules of admission, for one batch of events: no SQL, no I/O, no clock.

Each event of a batch is looked at in order, as if it came alone, and sees what those before it
changed. First alone (size, interests, CAR, its own signature: see `admission.verifiers`),
then under its EventId: a local event gets one, for which its history must be here; a peer's event
must have the right one, as far as can be said yet. Then it climbs the ladder
(`recon_node.store.admission.ladder`) towards the feed.

An EventId is remembered as refused only for what the event with its CID proves, never for what the
CAR was that came with it: otherwise any peer could keep an event from us by sending garbage in its
name.

A capability that has run out, or does not hold yet, keeps out local events only. Whether an event
belongs to the set that nodes agree on must not depend on a clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from recon_node.ceramic import (
    EventId,
    EventIdError,
    EventKind,
    InvalidEventError,
    Network,
    Validity,
    network_name,
)
from recon_node.ipld import CID
from recon_node.recon import KeyRange
from recon_node.store.admission.history import History
from recon_node.store.admission.ladder import Ladder, Marks, WaitingRoom
from recon_node.store.admission.records import Record, Refusal, State, Stream
from recon_node.store.admission.verifiers import Broken, Checked
from recon_node.store.damage.detection import Damage
from recon_node.store.interests import covers
from recon_node.store.values import Cause, Verdict
from recon_node.verification import Facts, Unreadable, check


@dataclass(frozen=True, slots=True)
class Submission:
    """An event handed in: by a local client (no EventId), or by a peer under an EventId."""

    car: bytes
    event_id: EventId | None = None
    checked: Checked | None = None
    """What is known of the CAR; None: it was not looked at yet."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the node accepts at all."""

    network: Network
    ranges: Sequence[KeyRange]
    """Of its interests, ascending and apart."""
    max_event_bytes: int
    waiting: WaitingRoom
    now: float
    """Unix seconds: capabilities of local events must hold."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a submission led to: a record, new or held before, or a refusal without one."""

    record: Record | None
    new: bool = False
    reason: str | None = None
    cause: Cause | None = None


class Admission:
    """One batch on its way into the log.

    Args:
        history: what is known around the batch.
        marks: where the log stands; moved on as the batch is admitted.
        bounds: what the node accepts at all.
        remembered: why EventIds of the batch were refused before.
    """

    def __init__(
        self,
        history: History,
        marks: Marks,
        bounds: Bounds,
        remembered: Mapping[EventId, str],
    ) -> None:
        self._history = history
        self._marks = marks
        self._bounds = bounds
        self._remembered = remembered
        self._ladder = Ladder(history, marks, bounds.network, bounds.waiting)

    @property
    def refused(self) -> Sequence[Record]:
        """What was proven wrong: events of the batch, and ones that had waited for them."""
        return self._ladder.refused

    @property
    def damaged(self) -> Sequence[Damage]:
        """What could not be read in the log."""
        return self._ladder.damaged

    def resume(self, mended: Sequence[CID]) -> None:
        """Let events climb that needed one of these, or are one, and could not read it."""
        if not mended:
            return
        self._history.load(mended)
        self._history.load_waiters(mended)
        held = [record for cid in mended for record in self._history.claims(cid)]
        self._history.load(cid for record in held for cid in record.builds_on)
        self._ladder.resume([*held, *self._history.waiters(mended)])

    def admit(self, submissions: Sequence[Submission]) -> list[Verdict]:
        """Admit the batch, in order."""
        screened = [self._screen(submission) for submission in submissions]
        events = [each for each in screened if isinstance(each, Facts)]
        self._history.load(cid for event in events for cid in (event.cid, event.init, *event.prevs))
        # Those of an event that is here are loaded when it moves: anyone can offer it once more.
        self._history.load_waiters(
            event.cid for event in events if not self._history.claims(event.cid)
        )
        outcomes = [
            self._place(submission.event_id, each) if isinstance(each, Facts) else each
            for submission, each in zip(submissions, screened, strict=True)
        ]
        self._try_again(submissions, screened, outcomes)
        return [
            _verdict(submission, outcome)
            for submission, outcome in zip(submissions, outcomes, strict=True)
        ]

    def _try_again(
        self,
        submissions: Sequence[Submission],
        screened: Sequence[Facts | _Outcome],
        outcomes: list[_Outcome],
    ) -> None:
        """Look again, history first, at those that would have had to wait and found no room.

        Thus an event whose history is here or in the batch is never refused for want of room.
        """
        late = [
            (record.height, at)
            for at, outcome in enumerate(outcomes)
            if (record := outcome.record) is not None
            and record.refusal is not None
            and record.refusal.passing
        ]
        for _, at in sorted(late):
            event = screened[at]
            assert isinstance(event, Facts)
            outcomes[at] = self._place(submissions[at].event_id, event)

    def _screen(self, submission: Submission) -> Facts | _Outcome:
        """Look at a submission alone."""
        event_id = submission.event_id
        if event_id is not None:
            known = self._screen_event_id(event_id)
            if known is not None:
                return known
        if len(submission.car) > self._bounds.max_event_bytes:
            return _refused(
                f"the CAR has {len(submission.car)} bytes; this node accepts at most "
                f"{self._bounds.max_event_bytes}",
                "car",
            )
        found = submission.checked or check(submission.car)
        if isinstance(found, Unreadable):
            return _refused(found.reason, "car")
        if isinstance(found, Broken):
            return _refused(found.reason, "node")
        if event_id is not None and found.cid != event_id.event_cid:
            return _refused(
                f"the EventId is that of the event {event_id.event_cid}, but the CAR holds "
                f"{found.cid}",
                "car",
            )
        return found

    def _screen_event_id(self, event_id: EventId) -> _Outcome | None:
        """Look at a peer's EventId alone; what it settles needs no look at the CAR."""
        held = self._history.held(event_id)
        if held is not None:
            return _Outcome(held)
        if event_id.network_id != self._bounds.network.id:
            return _refused(
                f"the EventId is of the network {network_name(event_id.network_id)}; this node is "
                f"on {self._bounds.network.name}",
                "bounds",
            )
        if not covers(self._bounds.ranges, event_id):
            return _refused("the EventId lies outside this node's interests", "bounds")
        reason = self._remembered.get(event_id)
        return None if reason is None else _refused(reason, "event")

    def _place(self, event_id: EventId | None, event: Facts) -> _Outcome:
        """Put an event under its EventId and let it climb."""
        if event_id is None:
            claims = self._history.claims(event.cid)
            if claims:
                return _Outcome(self._history.checked(event.cid) or claims[0])
            if event.fault is not None:
                return _refused(event.fault.reason, "event")
            if not event.validity.covers(int(self._bounds.now)):
                return _refused(_out_of_time(event.validity), "bounds")
            try:
                event_id = self._event_id_of(event)
            except (InvalidEventError, EventIdError) as error:
                return _refused(str(error), "history")
        held = self._history.held(event_id)
        if held is not None:
            return _Outcome(held)
        record = self._new_record(event_id, event)
        self._ladder.enter(record, event.fault or self._conflict(record))
        return _Outcome(record, new=True)

    def _event_id_of(self, event: Facts) -> EventId:
        """The EventId of a local event, whose history must be here."""
        network = self._bounds.network
        if event.kind is EventKind.INIT:
            return Stream.of(event).event_id(network, 0, event.cid)
        stream = self._history.stream(event.init)
        if stream is None:
            raise InvalidEventError(
                f"the init event {event.init} of the event's stream is not here: add it first"
            )
        height = 0
        for prev in event.prevs:
            base = self._history.checked(prev)
            if base is None:
                raise InvalidEventError(self._why_unchecked(prev))
            height = max(height, base.height + 1)
        return stream.event_id(network, height, event.cid)

    def _why_unchecked(self, prev: CID) -> str:
        if self._history.claims(prev):
            return f"the event's prev {prev} came from a peer and waits for its own history"
        return f"the event's prev {prev} is not here: add it first"

    def _new_record(self, event_id: EventId, event: Facts) -> Record:
        is_init = event.kind is EventKind.INIT
        self._marks.row += 1
        return Record(
            row=self._marks.row,
            event_id=event_id,
            cid=event.cid,
            init=event.cid if is_init else event.init,
            kind=event.kind,
            signer=event.signer,
            state=State.ORPHAN,
            builds_on=() if is_init else tuple(dict.fromkeys((event.init, *event.prevs))),
            proof=event.proof_cid,
            event=event,
        )

    def _conflict(self, record: Record) -> Refusal | None:
        """What speaks against a new record in what is known of its event already."""
        known = self._history.checked(record.cid)
        if known is None:
            return None
        return Refusal(f"the event's EventId is {known.event_id}, not {record.event_id}")


def _refused(reason: str, cause: Cause) -> _Outcome:
    return _Outcome(None, reason=reason, cause=cause)


def _out_of_time(validity: Validity) -> str:
    def text(seconds: int | None) -> str:
        return (
            "" if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
        )

    return (
        "the capability that the event is signed under does not hold now: it holds "
        f"from {text(validity.not_before)}"
        + (f" to {text(validity.expires)}" if validity.expires is not None else "")
        + "; sign the event under a new one"
    )


def _verdict(submission: Submission, outcome: _Outcome) -> Verdict:
    """Say what became of a submission, as it stands at the end of the batch."""
    record = outcome.record
    if record is None:
        return Verdict("refused", submission.event_id, None, outcome.reason, outcome.cause)
    if record.refusal is not None:
        cause: Cause = "waiting" if record.refusal.passing else "event"
        return Verdict("refused", record.event_id, None, record.refusal.reason, cause)
    return Verdict("new" if outcome.new else "known", record.event_id, record.position)
