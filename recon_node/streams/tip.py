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
  of this the causally first: the *rivals*, one event after each fork point. The earliest of these
  wins (rules 3 and 4), the lowest id among equal times (rule 5); the candidates without the winner
  drop out. Repeat.
- The remaining candidates hold the same data and are time events: the earliest wins, then the
  lowest id.

A data event signed under a capability that has expired is invalid, unless a proof shows that it is
older: its time is `time(d)`, or now if there is none.

All this takes a few passes over the events in causal order, up or down. Several candidates are
decided in rounds (`_Race`), with a set of bits for each event: the candidates that hold it. Of the
rivals, only those that a round may change are looked at again, so that all of it takes O(events *
candidates / 64 * log candidates). More memory than `MAX_HOLDERS` is refused.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from itertools import compress
from typing import Any, Final, Generic

from recon_node.streams.graph import EventShape, Id, NoTipError, causal_order
from recon_node.streams.json_values import BudgetError

MAX_RIVALS: Final = 64
"""Rivals that any decision names, the first ones by rank, however many were named before."""
MAX_HOLDERS: Final = 512 * 1024 * 1024
"""Bytes to say which candidates hold what."""
_NEVER: Final = float("inf")
"""The time of events that are not anchored: after all that are."""


class Rule(Enum):
    """What decided a fork."""

    EARLIEST_TIME = "earliest time"  # rule 4
    LOWEST_CID = "lowest CID"  # rule 5
    ONLY_DATA = "only data"  # the other branches hold a subset of the winner's data
    EARLIEST_ANCHOR = "earliest anchor"  # same data on every branch: the earliest time event


@dataclass(frozen=True, slots=True)
class Decision(Generic[Id]):
    """One fork: `winner` won over `rivals` by `rule`.

    `rivals` are ids, ascending. With merges, an event can be a rival in many decisions: once as
    many were named as the stream has events, each decision names the first `MAX_RIVALS`.
    """

    rule: Rule
    winner: Id
    rivals: tuple[Id, ...]


@dataclass(frozen=True, slots=True)
class Tip(Generic[Id]):
    """The tip of a stream. Tuples of ids ascend; `reasons` are in the order decided.

    `event` is the tip itself, `height` its height, `data_tip` the last data events of its branch
    (several only if an invalid event merged them), `anchored_at` the last data events of its branch
    with a proven time, that of a time event on top of them, `candidates` all events that could have
    become the tip, `pruned` the events that the tip does not cover; `diverged` says whether more
    than one data event is dominant.
    """

    event: Id
    height: int
    data_tip: tuple[Id, ...]
    anchored_at: tuple[Id, ...]
    candidates: tuple[Id, ...]
    pruned: tuple[Id, ...]
    diverged: bool
    reasons: tuple[Decision[Id], ...]


def select_tip(events: Iterable[EventShape[Id]], now: int | None = None) -> Tip[Id]:
    """Select the tip of a stream by CIP-145; the order of `events` does not matter.

    Args:
        events: all events of one stream. Repeated events count once.
        now: Unix seconds, which decide whether the capability of an event without a proven time has
            expired; with None, none has.

    Raises:
        StreamShapeError: the events are not one whole stream (no init event, a missing prev, a
            cycle).
        NoTipError: none of them is valid data.
    """
    listed = list(events)
    if (tip := _tip_of_chain(listed, now)) is not None:
        return tip
    return _Graph(listed, now).tip()


def earliest_times(events: Iterable[EventShape[Id]]) -> dict[Id, int]:
    """Return the earliest proven time of the events that have one: their own, or of what covers
    them.
    """
    times: dict[Id, int] = {}
    for event in events:
        known = [times[event.id]] if event.id in times else []
        if event.kind == "time" and event.valid and event.time is not None:
            known.append(event.time)
        if known:
            times[event.id] = time = min(known)
            for prev in event.prevs:
                times[prev] = min(times.get(prev, time), time)
    return times


def _tip_of_chain(events: Sequence[EventShape[Id]], now: int | None) -> Tip[Id] | None:
    """The tip if all events are valid and each builds on the one before it; else None.

    Nearly all streams are such a chain. There is nothing to decide: its last event is the tip.
    """
    data: list[Id] = []
    anchored: tuple[Id, ...] = ()
    below: tuple[Id, ...] = ()
    expires = False
    for event in events:
        if event.prevs != below or not event.valid or (event.kind == "init") is bool(below):
            return None
        if event.kind != "time":
            data.append(event.id)
        elif event.time is not None:
            anchored = (data[-1],)
        if event.expires is not None:
            expires = True
        below = (event.id,)
    if expires and not _all_held(events, now):
        return None
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


def _all_held(chain: Sequence[EventShape[Id]], now: int | None) -> bool:
    """Whether no capability had expired when the events of a chain were signed, as far as known."""
    earliest = None
    for event in reversed(chain):
        if event.time is not None and (earliest is None or event.time < earliest):
            earliest = event.time
        if event.expires is not None:
            time = now if earliest is None else earliest
            if time is not None and time > event.expires:
                return False
    return True


def _numbered(events: Sequence[EventShape[Id]]) -> tuple[list[list[int]], list[int]] | None:
    """The distinct prevs of each event, as numbers, and its height.

    None if these events are not one whole stream, or not in causal order, or one is repeated.
    """
    number: dict[Id, int] = {}
    prevs: list[list[int]] = []
    heights: list[int] = []
    for event in events:
        if (event.kind == "init") is bool(prevs):
            return None
        try:
            if len(event.prevs) == 1:  # nearly always
                below = [number[event.prevs[0]]]
                height = heights[below[0]]
            else:
                below = [number[prev] for prev in dict.fromkeys(event.prevs)]
                height = max([heights[prev] for prev in below], default=-1)
        except KeyError:
            return None
        if not below and prevs:
            return None
        number[event.id] = len(prevs)
        prevs.append(below)
        heights.append(1 + height)
    return (prevs, heights) if len(number) == len(prevs) > 0 else None


class _Graph(Generic[Id]):
    """The events of a stream, by their numbers in causal order.

    Attributes:
        heights: as `recon_node.streams.graph.heights` has them.
        prevs: the distinct prevs.
        time: the earliest proven one: its own, or of what covers it.
        is_data: whether it decides.
        in_graph: whether it is valid, or something valid builds on it.
    """

    def __init__(self, events: Sequence[EventShape[Id]], now: int | None) -> None:
        numbered = _numbered(events)
        if numbered is None:
            events = causal_order(events)
            numbered = _numbered(events)
            assert numbered is not None
        self.events = events
        self.prevs, self.heights = numbered
        self.downwards = range(len(events) - 1, -1, -1)
        self.time = self._times()
        self.in_graph = [
            event.valid and (event.expires is None or self._held(i, event.expires, now))
            for i, event in enumerate(events)
        ]
        self.is_data = [
            valid and event.kind != "time"
            for valid, event in zip(self.in_graph, events, strict=True)
        ]
        for i in self.downwards:
            if self.in_graph[i]:
                for prev in self.prevs[i]:
                    self.in_graph[prev] = True

    def _times(self) -> list[float]:
        time = [
            _NEVER if event.kind != "time" or event.time is None or not event.valid else event.time
            for event in self.events
        ]
        if min(time) < _NEVER:
            for i in self.downwards:
                for prev in self.prevs[i]:
                    if time[i] < time[prev]:
                        time[prev] = time[i]
        return time

    def _held(self, i: int, expires: int, now: int | None) -> bool:
        """Whether the capability by which an event was signed held then."""
        time = self.time[i] if self.time[i] < _NEVER else now
        return time is None or time <= expires

    def tip(self) -> Tip[Id]:
        if True not in self.is_data:
            raise NoTipError("no data event of the stream is valid, nor its init: it has no tip")
        candidates, dominant = self._candidates()
        tip, decisions = _Race(self, candidates).decide()
        branch = self.branch([tip])
        return Tip(
            event=self.events[tip].id,
            height=self.heights[tip],
            data_tip=self._last(branch, lambda i: self.is_data[i]),
            anchored_at=self._last(branch, lambda i: self.is_data[i] and self.time[i] < _NEVER),
            candidates=self.ids(candidates),
            pruned=self.ids(i for i, is_covered in enumerate(branch) if not is_covered),
            diverged=dominant > 1,
            reasons=tuple(decisions),
        )

    def rank(self, i: int) -> tuple[float, Id | bytes]:
        """The order of data: by time, then by CID (rules 4 and 5)."""
        rank = self.events[i].rank
        return self.time[i], self.events[i].id if rank is None else rank

    def ids(self, numbers: Iterable[int]) -> tuple[Id, ...]:
        """Return the ids of events, ascending."""
        return tuple(sorted([self.events[i].id for i in numbers]))

    def decision(self, rivals: Sequence[int], rule: Rule) -> Decision[Id]:
        """Return why the first rival won: by a rule, or by its CID if another has the same time."""
        winner, *others = rivals
        if any(self.time[other] == self.time[winner] for other in others):
            rule = Rule.LOWEST_CID
        return Decision(rule, self.events[winner].id, self.ids(others))

    def branch(self, tops: Iterable[int]) -> bytearray:
        """Mark these events and all that they cover."""
        marks = bytearray(len(self.events))
        for top in tops:
            marks[top] = True
        for i in self.downwards:
            if marks[i]:
                for prev in self.prevs[i]:
                    marks[prev] = True
        return marks

    def _candidates(self) -> tuple[list[int], int]:
        """The candidates by rules 1 and 2, and how many data events are dominant."""
        size = len(self.events)
        covered, below_data, leads = bytearray(size), bytearray(size), bytearray(size)
        in_graph, is_data = self.in_graph, self.is_data
        for i in compress(self.downwards, reversed(in_graph)):
            is_below = below_data[i] or is_data[i]
            for prev in self.prevs[i]:
                covered[prev] = True
                if is_below:
                    below_data[prev] = True
        dominant = 0
        candidates = []
        for i, prevs in enumerate(self.prevs):
            if is_data[i] and not below_data[i]:
                leads[i] = True
                dominant += 1
            elif len(prevs) == 1:
                leads[i] = leads[prevs[0]]
            else:
                leads[i] = any(leads[prev] for prev in prevs)
            if leads[i] and in_graph[i] and not covered[i]:
                candidates.append(i)
        return candidates, dominant

    def _last(self, branch: bytearray, counts: Callable[[int], bool]) -> tuple[Id, ...]:
        """Of the events in a branch that count, those that none of the others covers."""
        below = bytearray(len(branch))
        last = []
        for i in self.downwards:
            if branch[i]:
                if not below[i] and counts(i):
                    last.append(i)
                    below[i] = True
                if below[i]:
                    for prev in self.prevs[i]:
                        below[prev] = True
        return self.ids(last)


class _Race(Generic[Id]):
    """Several candidates, of which one wins, in rounds.

    An event is passed once all of its prevs are, and all candidates that are left hold its data.
    The rivals are the data that cannot be passed. One becomes common to all that are left only when
    the last of the candidates without it drops out. So each rival is *watched* by one of these, and
    looked at again when that one drops out. Candidates are numbered in an order that nobody can
    foresee, and the last one watches: whatever the order in which they drop out, that is long
    after most others, and a rival is looked at O(log candidates) times.

    Raises:
        BudgetError: it takes too much memory to say which candidates hold what.
    """

    def __init__(self, graph: _Graph[Id], candidates: Iterable[int]) -> None:
        self._graph = graph
        self._candidates = sorted(candidates, key=lambda i: hash(graph.events[i].id))
        self._left = (1 << len(self._candidates)) - 1
        """The candidates that are left, as bits: the first candidate is the lowest."""
        self._holders = [0] * len(graph.events)
        """The candidates that hold each event, as bits."""
        self._nexts: list[list[int]] = [[] for _ in graph.events]
        self._hold()
        self._waiting = list(map(len, graph.prevs))
        """How many prevs of each event were not passed yet."""
        self._watched: list[list[int]] = [[] for _ in self._candidates]
        """The rivals that each candidate watches."""
        self._rivals: list[tuple[Any, int]] = []
        """With their ranks, the first one first; also some that no candidate holds any more."""
        self._names_left = len(graph.events)
        """How many more rivals may be named, beyond `MAX_RIVALS` of each decision."""

    def _hold(self) -> None:
        """Note which candidates hold each event. Events of a chain share one integer."""
        holders = self._holders
        for number, candidate in enumerate(self._candidates):
            holders[candidate] = 1 << number
        memory = len(self._candidates) ** 2 // 16
        for i in compress(self._graph.downwards, reversed(self._graph.branch(self._candidates))):
            if len(self._nexts[i]) > 1:
                memory += holders[i].bit_length() // 8
            if memory > MAX_HOLDERS:
                raise BudgetError(
                    f"to select the tip of the stream takes more than {MAX_HOLDERS:,} bytes: "
                    "it has too many branches"
                )
            for prev in self._graph.prevs[i]:
                self._nexts[prev].append(i)
                held = holders[prev]
                holders[prev] = held | holders[i] if held else holders[i]

    def decide(self) -> tuple[int, list[Decision[Id]]]:
        """Return the winner, and why it is: one decision for each round."""
        decisions: list[Decision[Id]] = []
        again = [0]
        while self._left & (self._left - 1):  # several
            self._climb(again)
            rivals = self._first_rivals()
            if not rivals:  # all that are left hold the same data
                left = (self._candidates[number] for number in _numbers(self._left))
                rivals = nsmallest(self._most_named(), left, key=self._graph.rank)
                decisions.append(self._graph.decision(rivals, Rule.EARLIEST_ANCHOR))
                return rivals[0], decisions
            rule = Rule.EARLIEST_TIME if len(rivals) > 1 else Rule.ONLY_DATA
            decisions.append(self._graph.decision(rivals, rule))
            again = self._drop_all_without(rivals[0])
        return self._candidates[self._left.bit_length() - 1], decisions

    def _climb(self, events: list[int]) -> None:
        """Pass events or have them watched; the same for all that follow on those passed."""
        for i in events:  # grows while it is walked
            if not self._left & self._holders[i]:
                continue
            if self._graph.is_data[i] and not self._is_common(i):
                continue
            for following in self._nexts[i]:
                self._waiting[following] -= 1
                if not self._waiting[following]:
                    events.append(following)

    def _is_common(self, i: int) -> bool:
        """Whether all that are left hold an event's data; else have it watched as a rival."""
        rival = self._graph.rank(i), i
        at = bisect_left(self._rivals, rival)
        is_known = self._rivals[at : at + 1] == [rival]
        others = self._left & ~self._holders[i]
        if others:
            self._watched[others.bit_length() - 1].append(i)
            if not is_known:
                self._rivals.insert(at, rival)
        elif is_known:
            del self._rivals[at]
        return not others

    def _first_rivals(self) -> list[int]:
        """Return the first rivals by rank, and forget those before them that nobody holds."""
        first: list[int] = []
        while len(first) < min(self._most_named(), len(self._rivals)):
            _, i = self._rivals[len(first)]
            if self._holders[i] & self._left:
                first.append(i)
            else:
                del self._rivals[len(first)]
        self._names_left -= len(first)
        return first

    def _most_named(self) -> int:
        return 1 + max(MAX_RIVALS, self._names_left)

    def _drop_all_without(self, rival: int) -> list[int]:
        """Drop the candidates that do not hold a rival; return what they have watched."""
        dropped = self._left & ~self._holders[rival]
        self._left ^= dropped
        return [i for number in _numbers(dropped) for i in self._watched[number]]


def _numbers(bits: int) -> Iterator[int]:
    """The bits that an integer has, the highest first."""
    while bits:
        number = bits.bit_length() - 1
        bits ^= 1 << number
        yield number
