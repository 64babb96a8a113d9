"""A stream's graph with its chains folded, as tip selection uses it, updated event by event.

Most events of a stream follow one another without a fork. A *segment* is such a chain: each of its
events but the first builds only on the one before it, on which nothing else builds. All events of a
segment are covered by the same uncovered events, so branches can be decided on segments, of which
there are about as many as forks, instead of events.

Adding an event extends a segment or starts one; a fork from the middle of a segment splits it.
Splitting relabels the shorter half, so an event changes its segment O(log n) times at most.

Validity: an invalid event stays outside the graph (not *counted*) until something valid builds on
it. Then it covers what is below it, but is never data.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from operator import attrgetter
from typing import Any, Final, Generic

from recon_node.streams.graph import Id, StreamEvent

NEVER: Final = float("inf")
"""The time of events that are not anchored: after all that are."""


class EventNode(Generic[Id]):
    """An event in the graph. `time` is its earliest proven time: its own, or of what covers it."""

    __slots__ = ("counted", "event", "height", "id", "is_data", "prevs", "segment", "time", "valid")

    def __init__(self, event: StreamEvent[Id], prevs: list[EventNode[Id]]) -> None:
        self.event = event
        self.id = event.id
        self.prevs = prevs
        if len(prevs) == 1:  # nearly always
            self.height: int = 1 + prevs[0].height
        else:
            self.height = 1 + max((prev.height for prev in prevs), default=-1)
        self.time = NEVER
        self.valid = event.valid
        self.is_data = event.valid and event.kind != "time"
        self.counted = False
        self.segment: Segment[Id]

    @property
    def rank(self) -> tuple[float, Id | bytes]:
        """The order of data: by time, then by CID (rules 4 and 5)."""
        rank = self.event.rank
        return self.time, self.id if rank is None else rank


@dataclass(slots=True, eq=False)
class Segment(Generic[Id]):
    """A chain of events; `first_data` is the lowest of them that is data, `bases` lie below.

    `field` is a cache for `race`: what it found out about the segment and everything above it; None
    after a change there.
    """

    nodes: list[EventNode[Id]]
    bases: list[Segment[Id]]
    first_data: EventNode[Id] | None = None
    nexts: list[Segment[Id]] = dataclass_field(default_factory=list)
    field: Any = None

    @property
    def top(self) -> EventNode[Id]:
        """The highest event."""
        return self.nodes[-1]

    @property
    def height(self) -> int:
        """The height of the lowest event."""
        return self.nodes[0].height

    def ends_with(self, node: EventNode[Id]) -> bool:
        """Whether the node is the last one here, and uncovered."""
        return self.nodes[-1] is node and not self.nexts


class SegmentGraph(Generic[Id]):
    """The counted events of a stream as segments."""

    __slots__ = ("root", "segments")

    def __init__(self) -> None:
        self.segments: list[Segment[Id]] = []
        self.root: Segment[Id]

    def insert(self, node: EventNode[Id]) -> None:
        """Count a valid event, and everything that it builds on."""
        uncounted = {node: None}
        left = [node]
        while left:  # there are far more paths through merges than events
            for prev in left.pop().prevs:
                if not prev.counted and prev not in uncounted:
                    uncounted[prev] = None
                    left.append(prev)
        for each in sorted(uncounted, key=lambda node: node.height):
            self._count(each)

    def extend(self, segment: Segment[Id], node: EventNode[Id]) -> None:
        """Put a node on top of a segment, on which nothing else builds."""
        node.counted = True
        node.segment = segment
        segment.nodes.append(node)
        if segment.first_data is None:
            if node.is_data:
                segment.first_data = node
            self.touch([segment])

    def touch(self, segments: list[Segment[Id]]) -> None:
        """Clear the `field` of these segments and of those below."""
        left = list(segments)
        while left:
            segment = left.pop()
            if segment.field is not None:
                segment.field = None
                left.extend(segment.bases)

    def take_apart(self) -> None:
        """Remove the references between segments, and to their events."""
        for segment in self.segments:
            segment.nodes, segment.bases, segment.nexts = [], [], []
            segment.first_data = segment.field = None

    def _count(self, node: EventNode[Id]) -> None:
        for prev in node.prevs:
            if prev.segment.top is not prev:
                self._split_above(prev)
        bases = list(dict.fromkeys(prev.segment for prev in node.prevs))
        if len(bases) == 1 and not bases[0].nexts:
            self.extend(bases[0], node)
            return
        segment = Segment([node], bases, node if node.is_data else None)
        node.counted = True
        node.segment = segment
        self.segments.append(segment)
        self.touch(bases)
        for base in bases:
            base.nexts.append(segment)
        if not bases:
            self.root = segment

    def _split_above(self, node: EventNode[Id]) -> None:
        """Make the node the top of its segment, and the rest a segment of its own."""
        segment = node.segment
        self.touch([segment])
        at = bisect_right(segment.nodes, node.height, key=attrgetter("height"))
        below, above = segment.nodes[:at], segment.nodes[at:]
        if len(below) < len(above):
            new = Segment(below, segment.bases, nexts=[segment])
            segment.nodes, segment.bases = above, [new]
            for base in new.bases:
                base.nexts[base.nexts.index(segment)] = new
            if segment is self.root:
                self.root = new
        else:
            new = Segment(above, [segment], nexts=segment.nexts)
            segment.nodes, segment.nexts = below, [new]
            for following in new.nexts:
                following.bases[following.bases.index(segment)] = new
        for each in new.nodes:
            each.segment = new
        for half in (segment, new):
            half.first_data = next((each for each in half.nodes if each.is_data), None)
        self.segments.append(new)


class Candidates(Generic[Id]):
    """The candidates of a stream by rules 1 and 2.

    `dominant` counts the data events that no other data covers; `nodes` are the uncovered events
    whose branch holds one of these.
    """

    def __init__(self, segments: Iterable[Segment[Id]]) -> None:
        ordered = sorted(segments, key=lambda segment: segment.height)
        below_data: set[Segment[Id]] = set()
        for segment in reversed(ordered):
            if segment.first_data is not None or segment in below_data:
                below_data.update(segment.bases)
        self.dominant = 0
        self.nodes: list[EventNode[Id]] = []
        leads: set[Segment[Id]] = set()
        for segment in ordered:
            is_dominant = segment.first_data is not None and segment not in below_data
            self.dominant += is_dominant
            if is_dominant or not leads.isdisjoint(segment.bases):
                leads.add(segment)
                if not segment.nexts:
                    self.nodes.append(segment.top)
