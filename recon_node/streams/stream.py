"""One stream: its statements, and everything that is computed of them, each at most once.

Theory of operation. `Stream` is built from events and from what is known of them: proven times,
wrong signatures, definitions of the model. Its tip (CIP-145), its content after each event, the tip
of the accepted events and a merge proposal are computed when they are first asked for, and kept.
All content comes from one pass over the events (`StreamStates`), which applies each patch once.

A stream of 50,000 events takes seconds to compute, and nearly always its next event builds on its
tip. Then the `StreamSummary` of the earlier events is enough: a `Stream` of the later events goes
on from it. It raises `ForgottenError` for all else: then the stream is read whole. So the answers
never depend on whether there was a summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from recon_node.ceramic import Event, InitHeader, StreamId, StreamType
from recon_node.ceramic.event import MAX_PREVS
from recon_node.ipld import CID
from recon_node.streams.graph import (
    EventShape,
    ForgottenError,
    Statements,
    StreamShapeError,
    shape_of,
    statements_of,
)
from recon_node.streams.merging import (
    Expired,
    MergeProposal,
    expired_branches,
    open_tips,
    propose_merge,
)
from recon_node.streams.model_rules import MAX_VERSIONS, Definitions, named_versions
from recon_node.streams.state import (
    EventState,
    StateSummary,
    StreamState,
    StreamStates,
    accepted_tip,
)
from recon_node.streams.tip import Tip, earliest_times, select_tip

_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class _TipSummary:
    """A tip, and what it takes to tell the next one from the event that builds on it.

    Attributes:
        tip: the tip.
        kind: of its event.
        safe_until: Unix seconds. A proof of a later time may show that a capability had expired
            by which an event of the branch is signed.
    """

    tip: Tip[CID]
    kind: str
    safe_until: float

    def followed_by(self, shape: EventShape[CID]) -> _TipSummary:
        """Return the tip after one more event, which is like the tip but covers it.

        Raises:
            ForgottenError: that is not sure. The event is invalid or builds on something else, or
                there are other branches and it gives a time to this one, or ends a tie of anchors.
        """
        tip, is_data = self.tip, shape.kind != "time"
        proves = not is_data and shape.time is not None
        if shape.prevs != (tip.event,) or not shape.valid:
            raise ForgottenError(f"the event {shape.id} does not simply follow the tip")
        if tip.pruned and (proves or self.kind == "time"):
            raise ForgottenError(f"the event {shape.id} may decide between branches")
        if shape.time is not None and shape.time > self.safe_until:
            raise ForgottenError(f"the event {shape.id} may prove that a capability had expired")
        following = Tip(
            event=shape.id,
            height=tip.height + 1,
            data_tip=(shape.id,) if is_data else tip.data_tip,
            anchored_at=tip.data_tip if proves else tip.anchored_at,
            candidates=tuple(sorted({shape.id, *tip.candidates} - {tip.event})),
            pruned=tip.pruned,
            diverged=tip.diverged and not (is_data and not tip.pruned),
            reasons=tip.reasons,
        )
        safe_until = _NEVER if proves else self.safe_until
        if shape.expires is not None:
            safe_until = min(safe_until, shape.expires)
        return _TipSummary(following, shape.kind, safe_until)


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What an event that builds on the tip of a stream needs of all others.

    Attributes:
        count: of the events.
        pending: how many time events have no known time.
        versions: of its model that the stream names.
        signed: its tip (`Stream.tip`): of the events with valid signatures.
        accepted: the tip of those whose content was accepted, too (`Stream.accepted_tip`). Both are
            the same event, or there is no summary; rejected events on other branches are among the
            candidates of the first only.
        states: its content at the tip.
    """

    count: int
    pending: int
    versions: frozenset[CID]
    signed: _TipSummary
    accepted: _TipSummary
    states: StateSummary

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        tip = self.signed.tip
        ids = len(tip.pruned) + len(tip.candidates) + 2 * len(tip.reasons)
        return 200 * (ids + 10) + self.states.state(tip.event).data.weight


class Stream:
    """A stream: all of its events, or the later ones.

    Args:
        statements: of the events; the init event is the first, unless there is a `summary`.
        times: the block times (Unix seconds) that time events prove, where they are known.
        faults: the events whose signature is wrong, and why it is; nearly always none.
        definitions: of the stream's model; None if it is unknown.
        on_event: called before the content after an event is computed; may raise an exception.
        summary: of the events before.

    Raises:
        ForgottenError: (also the methods) `summary` is not enough.
        StreamShapeError: (the methods) the events are not one whole stream, or none was accepted.
    """

    def __init__(
        self,
        statements: Statements,
        times: Mapping[CID, int] | None = None,
        faults: Mapping[CID, str] | None = None,
        definitions: Definitions | None = None,
        *,
        on_event: Callable[[], None] | None = None,
        summary: StreamSummary | None = None,
    ) -> None:
        self.statements = statements
        self.times = times or {}
        self.faults = faults or {}
        self.definitions = definitions
        self._on_event = on_event
        self._summary = summary
        self._states: StreamStates | None = None

    @classmethod
    def of(
        cls,
        events: Iterable[Event],
        times: Mapping[CID, int] | None = None,
        faults: Mapping[CID, str] | None = None,
        definitions: Definitions | None = None,
    ) -> Stream:
        """Return the stream that has these events, in causal order, copies included."""
        faults = faults or {}
        statements = statements_of(events, faults)
        known = dict(times or {})
        for other, shown in statements.copies.items():
            if other in known:
                known.setdefault(shown, known[other])
        return cls(statements, known, faults, definitions)

    @property
    def events(self) -> tuple[Event, ...]:
        """One event for each statement."""
        return self.statements.events

    @cached_property
    def header(self) -> InitHeader:
        """That of the init event."""
        if self._summary is not None:
            return self._summary.states.header
        header = self.events[0].header
        if header is None:
            raise StreamShapeError(f"the event {self.events[0].cid} is not the init of a stream")
        return header

    @property
    def id(self) -> StreamId:
        """The StreamID."""
        return StreamId(self.header.stream_type, self.events[0].init)

    @cached_property
    def count(self) -> int:
        """How many events it has."""
        return len(self.events) + (0 if self._summary is None else self._summary.count)

    @cached_property
    def pending(self) -> int:
        """How many of its time events have no known time."""
        pending = sum(shape.kind == "time" and shape.time is None for shape in self.shapes)
        return pending + (0 if self._summary is None else self._summary.pending)

    @cached_property
    def versions(self) -> frozenset[CID]:
        """The versions of its model that it names; of too many, the lowest."""
        is_model = self.header.stream_type is StreamType.MODEL
        named = frozenset[CID]() if is_model else frozenset(named_versions(self.events))
        if self._summary is None or named <= self._summary.versions:
            return named if self._summary is None else self._summary.versions
        raise ForgottenError("an event names another version of the model")

    @cached_property
    def shapes(self) -> tuple[EventShape[CID], ...]:
        """The events without their contents."""
        times, faults, ranks = self.times, self.faults, self.statements.ranks
        return tuple(
            [
                shape_of(event, times.get(event.cid), event.cid not in faults, ranks[event.cid])
                for event in self.events
            ]
        )

    @cached_property
    def tip(self) -> Tip[CID]:
        """The tip by CIP-145."""
        if self._summary is None:
            return select_tip(self.shapes)
        return self._after(self._summary.signed, self.shapes).tip

    def _after(self, tip: _TipSummary, shapes: Iterable[EventShape[CID]]) -> _TipSummary:
        for shape in shapes:
            tip = tip.followed_by(shape)
        return tip

    def kind_of(self, cid: CID) -> str:
        """Return the kind of an event, which may be the tip before these events."""
        if self._summary is not None and cid == self._summary.signed.tip.event:
            return self._summary.signed.kind
        return next(shape.kind for shape in reversed(self.shapes) if shape.id == cid)

    @property
    def states(self) -> StreamStates:
        """Its content after each event, which is computed once."""
        if self._states is None:
            self._states = StreamStates(
                self.events,
                self.definitions,
                keep=self._asked_for(),
                summary=None if self._summary is None else self._summary.states,
                faults=self.faults,
                on_event=self._on_event,
            )
        return self._states

    def _asked_for(self) -> tuple[CID, ...]:
        """The events whose states are asked for, as a rule."""
        try:
            tip = self.tip
        except StreamShapeError:
            return ()
        return (tip.event, *tip.candidates[:MAX_PREVS]) if tip.diverged else (tip.event,)

    def at(self, cid: CID) -> EventState:
        """Return the state after an event; any copy of it names it.

        Raises:
            StreamShapeError: there is no such event.
        """
        return self.states.at(self.statements.shown(cid))

    @property
    def rejected(self) -> Mapping[CID, tuple[str, ...]]:
        """The rejected events, in causal order, and why."""
        return self.states.rejected

    @cached_property
    def accepted_tip(self) -> Tip[CID]:
        """The tip of the accepted events, which the next event should name as its prev."""
        if self._summary is None:
            return accepted_tip(self.shapes, self.rejected) if self.rejected else self.tip
        accepted = [shape for shape in self.shapes if shape.id not in self.rejected]
        tip = self._after(self._summary.accepted, accepted).tip
        above = {shape.id for shape in self.shapes} - {shape.id for shape in accepted}
        return replace(tip, pruned=tuple(sorted({*tip.pruned, *above})))

    @cached_property
    def open_tips(self) -> tuple[CID, ...]:
        """The events that a merge has to cover, the tip first; none: there is nothing to merge."""
        return open_tips(self.shapes, self.tip, self.accepted_tip, self.expired)

    @cached_property
    def expired(self) -> Mapping[CID, Expired]:
        """The last events of branches that an expired capability keeps from becoming the tip."""
        if all(shape.expires is None for shape in self.shapes):
            return {}
        return expired_branches(self.shapes, self.tip, earliest_times(reversed(self.shapes)))

    def state(self) -> StreamState:
        """Return its state at the tip of the accepted events."""
        state = self.at(self.accepted_tip.event)
        return StreamState(
            id=self.id,
            event_cid=state.event_cid,
            controller=self.header.controller,
            dimensions=self.header.dimensions,
            data=state.data,
            validation_errors=self.rejected,
        )

    def propose_merge(self, including: CID | None = None) -> MergeProposal | None:
        """Propose an event that merges the stream; None if there is nothing to merge.

        `including` is a tip that is among the prevs, even if there are more than 256.
        """
        return propose_merge(self.events, self.open_tips, self.states, including, self.expired)

    def summary(self) -> StreamSummary | None:
        """Return what an event on its tip needs; None if that is too much."""
        try:
            tip, accepted = self.tip, self.accepted_tip
        except (StreamShapeError, ForgottenError):
            return None
        if accepted.event != tip.event or len(self.versions) >= MAX_VERSIONS:
            return None
        if self._summary is None:
            known = self.kind_of(tip.event), self._safe_until()
            of_signed, of_accepted = _TipSummary(tip, *known), _TipSummary(accepted, *known)
        else:
            of_signed = self._after(self._summary.signed, self.shapes)
            of_accepted = self._after(self._summary.accepted, self.shapes)
        return StreamSummary(
            count=self.count,
            pending=self.pending,
            versions=self.versions,
            signed=of_signed,
            accepted=of_accepted,
            states=self.states.summary(tip.event),
        )

    def _safe_until(self) -> float:
        """The time up to which a proof on top changes nothing about what is valid."""
        if all(shape.expires is None for shape in self.shapes):
            return _NEVER
        safe_until = _NEVER
        times = earliest_times(reversed(self.shapes))
        for shape in self.shapes:
            if shape.expires is not None and shape.valid:
                time = times.get(shape.id)
                if time is None:
                    safe_until = min(safe_until, shape.expires)
                elif time > shape.expires:
                    return -_NEVER  # an earlier proof would make it valid
        return safe_until

    def with_definitions(self, definitions: Definitions | None) -> Stream:
        """Return the stream, with definitions of its model; nothing of it is computed yet."""
        return Stream(
            self.statements,
            self.times,
            self.faults,
            definitions,
            on_event=self._on_event,
            summary=self._summary,
        )

    def with_event(self, event: Event, definitions: Definitions | None = None) -> Stream:
        """Return the stream with one more event; the content before it is not computed again.

        The event's prevs are here. `definitions` are needed if it names another version of the
        model.
        """
        statements = statements_of((*self.events, event), self.faults)
        if len(statements.events) == len(self.events):  # a copy of an event that is here
            return self
        copies = {**self.statements.copies, **statements.copies}
        stream = Stream(
            replace(statements, copies=copies),
            self.times,
            self.faults,
            definitions or self.definitions,
            on_event=self._on_event,
        )
        new = statements.events[-1]
        stream._states = self.states.with_event(new, stream.definitions)
        return stream
