"""Tip selection: which uncovered event of a diverged stream is its tip (CIP-145, "Specification").

Theory of operation. Only *data* decides: the init event and the data events, if valid. Invalid
events stay in the graph, because others may name them as prev, but never count as data.

- `branch(u)` is `u` and everything it covers. `time(d)` is the earliest proven time of a valid time
  event that covers `d`, anywhere in the stream; without one, `d` comes after everything anchored.
- A data event is *dominant* if no other data event covers it. The stream has diverged if two are.
- *Candidates* (rules 1 and 2) are the uncovered events whose branch holds a dominant data event.
  Invalid events that only invalid events cover do not count as covering: the events below them are
  uncovered. So a stream with a valid init event always has a candidate, and adding an invalid event
  never moves the tip.
- While branches of candidates differ in their data, take the data that not all of them hold, and
  of this the causally first: one event after each fork point. The earliest of these wins (rules 3
  and 4), the lowest id among equal times (rule 5); the candidates without the winner drop out.
  Repeat.
- The remaining candidates hold the same data and are time events: the earliest wins, then the
  lowest id.

A data event signed under a capability that has expired is invalid, unless a proof shows that it is
older: its time is `time(d)`, or now if there is none.

Events are added one by one, each after its prevs (`StreamTip.add`). Nearly all of them extend a
branch that has held data since it forked: then the tip is the new event, or stays. Otherwise the
next question decides it again, over the *segments* of the stream (see `segments.py` and `race.py`),
of which there are about as many as forks. The result depends on the set of events alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic

from recon_node.streams.graph import Id, StreamEvent, StreamShapeError, causal_order, show_id
from recon_node.streams.race import Decision, Rule, decide
from recon_node.streams.segments import NEVER, Candidates, EventNode, SegmentGraph

__all__ = ["Decision", "Rule", "StreamTip", "Tip", "select_tip"]


@dataclass(frozen=True, slots=True)
class Tip(Generic[Id]):
    """The tip of a stream. Tuples of ids ascend; `reasons` are in the order decided.

    `event` is the tip itself, `height` its height, `data_tip` the last data events of its branch
    (several only if an invalid event merged them), `anchored_at` the last data events of its branch
    with a proven time, `candidates` all events that could have become the tip, `pruned` the events
    that the tip does not cover; `diverged` says whether more than one data event is dominant.
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
    """Select the tip of a stream by CIP-145; the order of `events` does not matter.

    Args:
        events: all events of one stream. Repeated events count once.
        now: Unix seconds, which decide whether the capability of an event without a proven time has
            expired; with None, none has.

    Raises:
        StreamShapeError: the events are not one whole stream (no init event, a missing prev, a
            cycle), or none of them is valid data, so there is no tip.
    """
    given = list(events)
    if (tip := _tip_of_chain(given)) is not None:
        return tip
    stream: StreamTip[Id] = StreamTip()
    try:
        for event in causal_order(given):
            stream.add(event)
        return stream.tip(now)
    finally:
        stream.take_apart()


def _tip_of_chain(events: Sequence[StreamEvent[Id]]) -> Tip[Id] | None:
    """The tip if the events are valid for ever and each builds on the one before it; else None.

    Nearly all streams are such a chain. There is nothing to decide: its last event is the tip.
    """
    data: list[Id] = []
    anchored: tuple[Id, ...] = ()
    below: tuple[Id, ...] = ()
    for event in events:
        if event.prev != below or not event.valid or event.expires is not None:
            return None
        if (event.kind == "init") is bool(below):
            return None
        if event.kind != "time":
            data.append(event.id)
        elif event.time is not None:
            anchored = (data[-1],)
        below = (event.id,)
    if not below or len({event.id for event in events}) < len(events):
        return None
    return Tip(
        event=below[0],
        height=len(events) - 1,
        data_tip=(data[-1],),
        anchored_at=anchored,
        candidates=below,
        pruned=(),
        diverged=False,
        reasons=(),
    )


class StreamTip(Generic[Id]):
    """A stream whose events come one by one, and its tip.

    `add` takes a few microseconds for events that extend a branch, O(log n) amortised for others,
    and one step more for each event that gets an earlier time; `event` is O(1) after the first kind
    and O(segments · log segments) after others, in streams without merges; `tip` is O(n), since it
    lists everything pruned.
    """

    __slots__ = ("_graph", "_moved", "_nodes", "_now", "_tip", "_to_expire")

    def __init__(self) -> None:
        self._nodes: dict[Id, EventNode[Id]] = {}
        self._graph: SegmentGraph[Id] = SegmentGraph()
        self._tip: EventNode[Id] | None = None
        self._moved = False  # the validity of some event has changed
        self._to_expire: list[tuple[int, int, EventNode[Id]]] = []
        self._now: int | None = None

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, event: Id) -> bool:
        return event in self._nodes

    def add(self, event: StreamEvent[Id]) -> bool:
        """Add an event whose prevs are here; return False if it is here already.

        Raises:
            StreamShapeError: a prev is missing, a second init event, an init event with a prev or
                another event without one. Nothing changes then.
        """
        if event.id in self._nodes:
            return False
        node = EventNode(event, self._prevs_of(event))
        self._nodes[event.id] = node
        if event.expires is not None and node.valid:
            heappush(self._to_expire, (event.expires, len(self._nodes), node))
            self._judge(node)
        if node.valid:
            self._insert(node)
        return True

    def event(self, now: int | None = None) -> Id:
        """Return the tip event; `now` as in `tip`.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        return self._select(now).id

    def tip(self, now: int | None = None) -> Tip[Id]:
        """Return the tip and how it was decided.

        Args:
            now: Unix seconds, never earlier than before. None stands for the time before; at first,
                nothing has expired.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        tip = self._select(now)
        forked = len(self._graph.segments) > 1
        found = Candidates(self._graph.segments)
        return Tip(
            event=tip.id,
            height=tip.height,
            data_tip=_ids(_last(tip, lambda node: node.is_data)),
            anchored_at=_ids(self._anchored(tip)),
            candidates=_ids(found.nodes),
            pruned=tuple(sorted(self._pruned(tip))),
            diverged=found.dominant > 1,
            reasons=tuple(decide(self._graph).decisions()) if forked else (),
        )

    def merge(self, now: int | None = None) -> tuple[Id, ...]:
        """Return the prevs of a data event that would merge the stream: the tip, then ascending.

        Empty if the stream has not diverged.

        Raises:
            StreamShapeError: there is no valid data, so no tip.
        """
        tip = self._select(now)
        found = Candidates(self._graph.segments)
        if found.dominant <= 1:
            return ()
        return (tip.id, *sorted(node.id for node in found.nodes if node is not tip))

    def take_apart(self) -> None:
        """End its use. Events and segments name each other, and would wait for the collector."""
        self._graph.take_apart()

    def _anchored(self, tip: EventNode[Id]) -> Iterable[EventNode[Id]]:
        """The last data of the tip's branch that has a proven time."""
        if self._graph.root.nodes[0].time == NEVER:  # a proof of any event is one of the init
            return ()
        return _last(tip, lambda node: node.is_data and node.time < NEVER)

    def _pruned(self, tip: EventNode[Id]) -> Iterable[Id]:
        """Everything that the tip does not cover."""
        if len(self._nodes) == tip.height + 1:  # a single chain: an event of each height
            return ()
        branch = set(covered_by([tip]))
        return (node.id for node in self._nodes.values() if node not in branch)

    def _prevs_of(self, event: StreamEvent[Id]) -> list[EventNode[Id]]:
        if bool(event.prev) == (event.kind == "init"):
            expected = "no prev" if event.kind == "init" else "at least one prev"
            raise StreamShapeError(f"{event.kind} event {show_id(event.id)} must have {expected}")
        if not event.prev and self._nodes:
            raise StreamShapeError(
                f"a stream has one init event; {show_id(event.id)} is a second one"
            )
        try:
            if len(event.prev) == 1:  # nearly always
                return [self._nodes[event.prev[0]]]
            return [self._nodes[prev] for prev in dict.fromkeys(event.prev)]
        except KeyError as error:
            raise StreamShapeError(
                f"event {show_id(event.id)} names prev {show_id(error.args[0])}, which is missing"
            ) from None

    def _insert(self, node: EventNode[Id]) -> None:
        """Count a valid node; keep the tip if it obviously stays or moves up."""
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

    def _anchor(self, node: EventNode[Id], time: float) -> None:
        """Pass a proven time down to everything that the node covers."""
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

    def _judge(self, node: EventNode[Id]) -> bool:
        """Check whether an event's capability held at its time; return whether that is a change."""
        expires = node.event.expires
        assert expires is not None
        time = node.time if node.time < NEVER else self._now
        valid = node.event.valid and (time is None or time <= expires)
        if valid == node.valid:
            return False
        node.valid = valid
        node.is_data = valid and node.event.kind != "time"
        return True

    def _select(self, now: int | None) -> EventNode[Id]:
        if now is not None and (self._now is None or now > self._now):
            self._now = now
        while self._to_expire and self._now is not None and self._to_expire[0][0] < self._now:
            self._moved |= self._judge(heappop(self._to_expire)[2])
        if self._moved:
            self._rebuild()
        if self._tip is None:
            self._tip = self._decide()
        return self._tip

    def _decide(self) -> EventNode[Id]:
        segments = self._graph.segments
        if not any(segment.first_data is not None for segment in segments):
            raise StreamShapeError(
                "no data event of the stream is valid, nor its init: it has no tip"
            )
        return decide(self._graph).top if len(segments) > 1 else segments[0].top

    def _rebuild(self) -> None:
        """Build the graph again, after the validity of some event has changed."""
        self._graph = SegmentGraph()
        for node in self._nodes.values():
            node.counted = False
        for node in self._nodes.values():
            if node.valid:
                self._graph.insert(node)
        self._tip = None
        self._moved = False


def _last(tip: EventNode[Id], counts: Callable[[EventNode[Id]], bool]) -> set[EventNode[Id]]:
    """Of the nodes in the tip's branch that count, those that none of the others covers."""
    met = first_met([tip], counts)
    if len(met) > 1:  # one walk below all of them: there may be thousands
        met.difference_update(list(covered_by({prev for node in met for prev in node.prevs})))
    return met


def first_met(
    starts: Iterable[EventNode[Id]], counts: Callable[[EventNode[Id]], bool]
) -> set[EventNode[Id]]:
    """Return the nodes that count and are met first on the ways down from these."""
    return {node for node in covered_by(starts, lambda node: not counts(node)) if counts(node)}


def covered_by(
    starts: Iterable[EventNode[Id]], passes: Callable[[EventNode[Id]], bool] = lambda node: True
) -> Iterator[EventNode[Id]]:
    """Yield nodes and what they cover, each once; nothing below nodes that `passes` stops at."""
    left = list(starts)
    seen = set(left)
    while left:
        node = left.pop()
        yield node
        if passes(node):
            for prev in node.prevs:
                if prev not in seen:
                    seen.add(prev)
                    left.append(prev)


def _ids(nodes: Iterable[EventNode[Id]]) -> tuple[Id, ...]:
    return tuple(sorted(node.id for node in nodes))
