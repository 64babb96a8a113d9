"""A stream that goes on from a summary: its tip, its states and the next summary.

A stream of 50,000 events takes seconds to read, and nearly always its next event needs none of
them but the last. `LongStream` answers the questions about a stream from its later events and a
`StreamSummary` of the earlier ones, and gives the next summary. Whenever the summary is not enough,
it raises `ForgottenError`; then the stream must be read whole. So the answers never depend on
whether there was a summary.

A summary holds the shape of the stream (`summary.py`) and its content after those events on which
later ones may build. If the stream has rejected events, it also holds the shape in which they are
invalid, which determines the tip of the accepted events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from recon_node.ceramic import Event
from recon_node.ipld import CID
from recon_node.streams.graph import (
    ForgottenError,
    StreamEvent,
    StreamShapeError,
    causal_order,
)
from recon_node.streams.model_versions import MAX_VERSIONS, Definitions, named_versions
from recon_node.streams.state import Earlier, EventState, StreamStates
from recon_node.streams.stream_summary import (
    PackedState,
    StreamSummary,
    pack_state,
    unpack_state,
)
from recon_node.streams.summary import SummarizedTip, TipSummary
from recon_node.streams.tip import Tip

RECENT: Final = 256
"""The latest events of a stream on which later ones may build after it was summarized."""
MAX_STATES: Final = 1024 * 1024
"""Bytes of packed states in a summary."""


class LongStream:
    """A stream, all of it or its later events.

    Methods raise `ForgottenError` if the summary is not enough.

    Args:
        events: in feed order.
        shapes: of these events.
        earlier: a summary of the events before; None if these are all.
        faults: those of these events whose signature is wrong, as in `StreamStates`.
    """

    def __init__(
        self,
        events: Sequence[Event],
        shapes: Sequence[StreamEvent[CID]],
        earlier: StreamSummary | None = None,
        faults: Mapping[CID, str] | None = None,
    ) -> None:
        self._events = events
        self._shapes = shapes
        self._earlier = earlier
        self._faults = faults
        self._accepted: SummarizedTip[CID] | None = None

    @cached_property
    def tip(self) -> Tip[CID]:
        """The tip by CIP-145.

        Raises:
            StreamShapeError: the events are not one whole stream, or have no valid data.
        """
        return self._tips.tip()

    def kind_of(self, cid: CID) -> str:
        """Return the kind of an event that is, or may have become, the tip."""
        for shape in reversed(self._shapes):
            if shape.id == cid:
                return shape.kind
        summaries = [] if self._earlier is None else [self._earlier.tips, self._earlier.accepted]
        for summary in summaries:
            for kept in () if summary is None else summary.kept:
                if kept.event.id == cid:
                    return kept.event.kind
        raise ForgottenError("the tip is an event that is left out")

    def states(self, definitions: Definitions | None) -> StreamStates:
        """Return the states after these events, by the definitions of the stream's model."""
        keep = {event.cid for event in self._events[-RECENT:]}
        keep.update(self.tip.candidates)
        return StreamStates(
            self._events, definitions, keep=keep, earlier=self._known(), faults=self._faults
        )

    def state_tip(self, states: StreamStates) -> Tip[CID]:
        """Return the tip of the accepted events. `states` are the stream's own.

        Raises:
            StreamShapeError: no event was accepted.
        """
        before = None if self._earlier is None else self._earlier.accepted
        if before is None and not states.rejected:
            return self.tip
        if self._earlier is not None:
            before = before or self._earlier.tips
        shapes = (
            replace(shape, valid=False) if shape.id in states.rejected else shape
            for shape in self._shapes
        )
        if self._accepted is None:
            self._accepted = self._fed(SummarizedTip(before, lists_pruned=False), shapes)
        return self._accepted.tip()

    def summarize(self, states: StreamStates | None, position: int) -> StreamSummary:
        """Return a summary of the stream up to a position, at which the last event is or earlier.

        Args:
            states: its own; None: without its content.
            position: in the feed.

        Raises:
            StreamShapeError: the stream has no tip.
        """
        versions = self._checked_versions()
        tips = self._tips.summarize(RECENT)
        candidates = [*self.tip.candidates]
        if states is not None:
            with suppress(StreamShapeError):  # no event was accepted
                candidates += self.state_tip(states).candidates
        accepted = None if self._accepted is None else self._accepted.summarize(RECENT)
        pending = sum(shape.kind == "time" and shape.time is None for shape in self._shapes)
        return StreamSummary(
            self._events[0].init,
            position,
            self._header_fields,
            pending + (0 if self._earlier is None else self._earlier.pending),
            versions,
            tips,
            accepted,
            None if states is None else self._packed(states, candidates, tips),
        )

    @cached_property
    def versions(self) -> frozenset[CID]:
        """The versions of its model that a document names, the lowest ones if there are many."""
        named = set(named_versions(self._events))
        if self._earlier is not None:
            named |= self._earlier.versions
        return frozenset(sorted(named)[:MAX_VERSIONS])

    def _checked_versions(self) -> frozenset[CID]:
        """The versions, if these are all: which ones count changes with a lower one."""
        if len(self.versions) >= MAX_VERSIONS:
            raise ForgottenError("a document names many versions of its model")
        return self.versions

    @cached_property
    def _header_fields(self) -> Mapping[str, Any]:
        if self._earlier is not None:
            return self._earlier.header
        fields: Mapping[str, Any] = self._events[0].payload["header"]
        return fields

    @cached_property
    def _tips(self) -> SummarizedTip[CID]:
        before = None if self._earlier is None else self._earlier.tips
        return self._fed(SummarizedTip(before), self._shapes)

    def _fed(
        self, tip: SummarizedTip[CID], shapes: Iterable[StreamEvent[CID]]
    ) -> SummarizedTip[CID]:
        for shape in causal_order(shapes) if self._earlier is None else shapes:
            tip.add(shape)
        return tip

    def _known(self) -> Earlier | None:
        if self._earlier is None:
            return None
        self._checked_versions()
        if self._earlier.states is None:
            raise ForgottenError("the content of the stream was not summarized")
        heights = {kept.event.id: kept.height for kept in self._earlier.tips.kept if kept.is_open}
        return Earlier(self._earlier.init_header, heights, self._state_before)

    def _state_before(self, cid: CID) -> EventState:
        assert self._earlier is not None
        packed = (self._earlier.states or {}).get(cid)
        if packed is None:
            raise ForgottenError("the content after an event was left out")
        return unpack_state(cid, packed)

    def _packed(
        self, states: StreamStates, candidates: Sequence[CID], tips: TipSummary[CID]
    ) -> dict[CID, PackedState]:
        """The states that fit: first after the candidates, then after the latest events."""
        latest = [kept.event.id for kept in reversed(tips.kept) if kept.is_open]
        earlier = {} if self._earlier is None else self._earlier.states or {}
        found: dict[CID, PackedState] = {}
        datas: set[bytes] = set()
        left = MAX_STATES
        for cid in dict.fromkeys([*candidates, *latest]):
            state = states.kept.get(cid)
            packed = earlier.get(cid) if state is None else pack_state(state, left)
            if packed is None:
                continue
            size = 0 if packed.data in datas else len(packed.data)
            if size <= left:
                left -= size
                datas.add(packed.data)
                found[cid] = packed
        return found
