"""Tip selection: which uncovered event of a diverged stream is its tip (CIP-145, "Specification").

Theory of operation. Only *data* decides: valid data events and the init, below called just data.
Invalid events stay in the graph, because others may name them as prev, but they are never counted
as data.

- `branch(u)` is `u` and all that it covers. `time(d)` is the earliest proven time of a valid time
  event that covers `d`, wherever in the stream it is; without one, `d` comes after everything
  anchored.
- A data event is *dominant* when no other data event covers it. The stream has diverged when two
  are.
- *Candidates* (rules 1 and 2) are the uncovered events whose branch holds a dominant data event.
  Invalid events that only invalid events cover do not count as covering: what they sit on is
  uncovered. So a stream with a valid init always has a candidate, and adding an event that is not
  valid never moves the tip.
- While branches of candidates differ in their data, take the data that not all of them hold, and
  of this the causally first: one event after each fork point. The earliest of these wins (rules 3
  and 4), the lowest id among equal times (rule 5); the candidates without the winner drop out.
  Repeat.
- Candidates that are left and hold the same data are time events: the earliest wins, then the
  lowest id.

A data event signed by virtue of a capability that has expired is invalid, unless it is proven to
be from before: its time is `time(d)`, and else now.

Events come one by one, each after its prevs (`StreamTip.add`). Nearly all of them just extend a
branch that holds data since it forked: then the tip is the new event, or stays. Otherwise it is
decided anew when it is asked for next, over the *segments* of the stream (see `segments.py` and
`race.py`), which are about as many as its forks. The result depends on the set of events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic

from recon_node.streams.graph import Id, StreamEvent, StreamShapeError, causal_order, show
from recon_node.streams.race import Decision, Rule, decide
from recon_node.streams.segments import NEVER, Node, SegmentGraph, Shape

__all__ = ["Decision", "Rule", "StreamTip", "Tip", "select_tip"]


@dataclass(frozen=True, slots=True)
class Tip(Generic[Id]):
    """The tip of a stream. Tuples of ids ascend; `reasons` are in the order decided.

    `event` is the tip itself, `height` its height, `data_tip` the last data events of its branch
    (several only when an invalid event merged them), `anchored_at` the last data events of its
    branch with a proven time, `candidates` all events that were in the race, `pruned` the events
    that the tip does not cover; `diverged` tells whether more than one data event is dominant.
    """

    event: Id
    height: int
    data_tip: tuple[Id, ...]
    anchored_at: tuple[Id, ...]
    candidates: tuple[Id, ...]
    pruned: tuple[Id, ...]
    diverged: bool
    reasons: tuple[Decision[Id], ...]


def select_tip(events: Iterable[StreamEvent[Id]], now: int | None = None) -> Tip[Id]:
    """The tip of a stream by CIP-145; the order of `events` does not matter.

    Args:
        events: all events of one stream. An event given twice counts once.
        now: Unix seconds, by which capabilities of events without a proven time have expired or
            not; None leaves them all valid.

    Raises:
        StreamShapeError: the events are not one whole stream (no init, a missing prev, a cycle),
            or nothing in it is valid data, so that it has no tip.
    """
    stream: StreamTip[Id] = StreamTip()
    for event in causal_order(events):
        stream.add(event)
    return stream.tip(now)


class StreamTip(Generic[Id]):
    """A stream whose events come one by one, and its tip.

    `add` costs a few microseconds for events that extend a branch, O(log n) amortised for others,
    and one step more for each event that a time event gives an earlier time; `event` is O(1) after
    the first kind and O(segments · log segments) after others, in streams without merges; `tip` is
    O(n), for it names all that is pruned.
    """

    __slots__ = ("_graph", "_moved", "_nodes", "_now", "_tip", "_to_expire")

    def __init__(self) -> None:
        self._nodes: dict[Id, Node[Id]] = {}
        self._graph: SegmentGraph[Id] = SegmentGraph()
        self._tip: Node[Id] | None = None
        self._moved = False  # something was valid and is not, or the other way round
        self._to_expire: list[tuple[int, int, Node[Id]]] = []
        self._now: int | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, event: Id) -> bool:
        return event in self._nodes

    def add(self, event: StreamEvent[Id]) -> bool:
        """Add an event whose prevs are here; False when it is here itself.

        Raises:
            StreamShapeError: a prev is not here, a second init, an init with a prev or another
                event without one. Nothing is changed then.
        """
        if event.id in self._nodes:
            return False
        node = Node(event, self._prevs_of(event))
        self._nodes[event.id] = node
        if event.expires is not None and node.valid:
            heappush(self._to_expire, (event.expires, len(self._nodes), node))
            self._judge(node)
        if node.valid:
            self._insert(node)
        return True

    def event(self, now: int | None = None) -> Id:
        """The tip event; `now` as in `tip`.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        return self._select(now).id

    def tip(self, now: int | None = None) -> Tip[Id]:
        """The tip and all about it.

        Args:
            now: Unix seconds; earlier ones than before count as those. None is as before, at first
                a time at which nothing has expired.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        tip = self._select(now)
        forked = len(self._graph.segments) > 1
        shape = Shape(self._graph.segments)
        return Tip(
            event=tip.id,
            height=tip.height,
            data_tip=_ids(_last(tip, lambda node: node.is_data)),
            anchored_at=_ids(self._anchored(tip)),
            candidates=_ids(shape.candidates),
            pruned=_ids(self._pruned(tip)),
            diverged=shape.dominant > 1,
            reasons=tuple(decide(self._graph).decisions()) if forked else (),
        )

    def merge(self, now: int | None = None) -> tuple[Id, ...]:
        """The prevs of a data event that would converge the stream: tip first, others ascending.

        Empty when the stream has not diverged.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        tip = self._select(now)
        shape = Shape(self._graph.segments)
        if shape.dominant < 2:
            return ()
        return (tip.id, *sorted(node.id for node in shape.candidates if node is not tip))

    def _anchored(self, tip: Node[Id]) -> Iterable[Node[Id]]:
        """The last data of the tip's branch that has a proven time."""
        if self._graph.root.nodes[0].time == NEVER:  # a proof of any event is one of the init
            return ()
        return _last(tip, lambda node: node.is_data and node.time < NEVER)

    def _pruned(self, tip: Node[Id]) -> Iterable[Node[Id]]:
        """All that the tip does not cover."""
        if len(self._nodes) == tip.height + 1:  # a single chain: an event of each height
            return ()
        branch = set(_down(tip, lambda node: True))
        return (node for node in self._nodes.values() if node not in branch)

    def _prevs_of(self, event: StreamEvent[Id]) -> list[Node[Id]]:
        if bool(event.prev) == (event.kind == "init"):
            expected = "no prev" if event.kind == "init" else "at least one prev"
            raise StreamShapeError(f"{event.kind} event {show(event.id)} must have {expected}")
        if not event.prev and self._nodes:
            raise StreamShapeError(f"a stream has one init event; {show(event.id)} is a second one")
        try:
            if len(event.prev) == 1:  # as nearly always
                return [self._nodes[event.prev[0]]]
            return [self._nodes[prev] for prev in dict.fromkeys(event.prev)]
        except KeyError as error:
            raise StreamShapeError(
                f"event {show(event.id)} names prev {show(error.args[0])}, which is not there"
            ) from None

    def _insert(self, node: Node[Id]) -> None:
        """Count a valid node; keep the tip where it is plain that it stays or moves up."""
        prev = node.prevs[0] if len(node.prevs) == 1 else None
        if prev is None or not prev.counted or not prev.segment.ends_with(prev):
            self._graph.insert(node)
            self._tip = None
        else:
            if prev.segment.first_data is None:
                self._tip = None
            elif self._tip is prev:
                self._tip = node
            self._graph.extend(prev.segment, node)
        if node.event.kind == "time" and node.event.time is not None:
            self._anchor(node, node.event.time)

    def _anchor(self, node: Node[Id], time: float) -> None:
        """Hand a proven time down to all that the node covers."""
        left = [node]
        while left:
            each = left.pop()
            if each.time <= time:
                continue
            each.time = time
            left.extend(each.prevs)
            if each.event.expires is not None and self._judge(each):
                self._moved = True
            if each.counted and each.segment.first_data is each:  # it may be another's rival
                self._graph.touch([each.segment])
                self._tip = None

    def _judge(self, node: Node[Id]) -> bool:
        """See whether the capability of an event was good at its time; tell whether that is new."""
        expires = node.event.expires
        assert expires is not None
        time = node.time if node.time < NEVER else self._now
        valid = node.event.valid and (time is None or time <= expires)
        if valid == node.valid:
            return False
        node.valid = valid
        node.is_data = valid and node.event.kind != "time"
        return True

    def _select(self, now: int | None) -> Node[Id]:
        if now is not None and (self._now is None or now > self._now):
            self._now = now
        while self._to_expire and self._now is not None and self._to_expire[0][0] < self._now:
            self._moved |= self._judge(heappop(self._to_expire)[2])
        if self._moved:
            self._rebuild()
        if self._tip is None:
            self._tip = self._decide()
        return self._tip

    def _decide(self) -> Node[Id]:
        segments = self._graph.segments
        if not any(segment.first_data is not None for segment in segments):
            raise StreamShapeError(
                "no data event of the stream is valid, nor its init: it has no tip"
            )
        return decide(self._graph).top if len(segments) > 1 else segments[0].top

    def _rebuild(self) -> None:
        """Make the graph anew, since events are valid now that were not, or the other way round."""
        self._graph = SegmentGraph()
        for node in self._nodes.values():
            node.counted = False
        for node in self._nodes.values():
            if node.valid:
                self._graph.insert(node)
        self._tip = None
        self._moved = False


def _last(tip: Node[Id], counts: Callable[[Node[Id]], bool]) -> set[Node[Id]]:
    """Of the nodes in the tip's branch that count, those that no other of them covers."""
    first_met = {node for node in _down(tip, lambda node: not counts(node)) if counts(node)}
    if len(first_met) > 1:
        for node in list(first_met):
            first_met.difference_update(*(_down(prev, lambda each: True) for prev in node.prevs))
    return first_met


def _down(start: Node[Id], passes: Callable[[Node[Id]], bool]) -> Iterator[Node[Id]]:
    """The node and what it covers, each once; nothing below a node that is not passed."""
    left = [start]
    seen = {start}
    while left:
        node = left.pop()
        yield node
        if passes(node):
            for prev in node.prevs:
                if prev not in seen:
                    seen.add(prev)
                    left.append(prev)


def _ids(nodes: Iterable[Node[Id]]) -> tuple[Id, ...]:
    return tuple(sorted(node.id for node in nodes))
