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

All this takes a few passes over the events in causal order, up or down. A *tree*, an event above
which nothing merges, is decided from its leaves down, since the rest of the stream treats all
branches of a fork alike (`_Race.fold`). The events below a merge are the *core*; the winners of the
trees on it are its *contenders*. They are decided in rounds, with a set of bits for each event of
the core: the contenders that hold it. A rival is data that some of them hold and others do not. A
round takes the first rival by rank, and the contenders that do not hold it drop out. Only the
rivals that a round may change are looked at again, so that all of it takes O(core * contenders / 64
* log contenders). More memory than `MAX_HOLDERS` is refused.
"""

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress
from typing import Any, Final, Generic

from recon_node.streams.graph import EventShape, Id, NoTipError, causal_order
from recon_node.streams.json_values import BudgetError

MAX_RIVALS: Final = 64
"""Rivals that are named of one decision, those that come first."""
MAX_HOLDERS: Final = 512 * 1024 * 1024
"""Bytes to say which contenders hold what."""
_NOT_ZERO: Final = re.compile(rb"[^\x00]")
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

    `rivals` are ids, ascending. In a stream with merges they are the first `MAX_RIVALS`: others can
    be the rivals of many decisions.
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
        tip, decisions = candidates[0], list[Decision[Id]]()
        if len(candidates) > 1:
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

    def decision(self, winner: int, rivals: Sequence[int], rule: Rule) -> Decision[Id]:
        """Return why data won: by a rule, or by its CID if a rival has the same time."""
        if any(self.time[rival] == self.time[winner] for rival in rivals):
            rule = Rule.LOWEST_CID
        return Decision(rule, self.events[winner].id, self.ids(rivals))

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


@dataclass(slots=True, eq=False)
class _Contender(Generic[Id]):
    """The winner of a tree.

    Attributes:
        top: the candidate.
        first: the lowest data of its branch above the fork that is decided next; None without any.
        won: the forks that it has won, the highest first.
    """

    top: int
    first: int | None = None
    won: list[Decision[Id]] = field(default_factory=list)


class _Race(Generic[Id]):
    """Several candidates, of which one wins."""

    def __init__(self, graph: _Graph[Id], candidates: Sequence[int]) -> None:
        self._graph = graph
        self._size = len(graph.events)
        self._counts = graph.branch(candidates)
        self._is_core = bytearray(self._size)
        self._trees: list[tuple[list[int], list[_Contender[Id]]]] = []
        """On which events of the core a tree stands, and its contenders: several, if they part
        without any data below them."""

    def decide(self) -> tuple[int, list[Decision[Id]]]:
        """Return the winner, and why it is: the lowest fork first."""
        self._fold()
        decisions: list[Decision[Id]] = []
        left = self._trees[0][1]
        if self._is_core[0]:
            decisions, left = _Rounds(self._graph, self._is_core, self._trees).decide()
        winner = self._fork(left)
        return winner.top, [*decisions, *reversed(winner.won)]

    def _fold(self) -> None:
        """Decide each tree; the whole stream is one, unless something merges."""
        counts, is_core, is_data = self._counts, self._is_core, self._graph.is_data
        trees: dict[int, list[_Contender[Id]]] = {}  # on the events below
        for i in compress(self._graph.downwards, reversed(counts)):
            tree = trees.pop(i, None)
            prevs = self._graph.prevs[i]
            if not is_core[i]:
                tree = tree or [_Contender(i)]
                if is_data[i]:
                    if len(tree) > 1:
                        tree = [self._fork(tree)]
                    tree[0].first = i
                if len(prevs) == 1:
                    (prev,) = prevs
                    trees[prev] = _joined(trees[prev], tree) if prev in trees else tree
                    continue
                self._trees.append((prevs, tree))
            elif tree:
                self._trees.append(([i], tree))
            for prev in prevs:
                is_core[prev] = True

    def _fork(self, rivals: Sequence[_Contender[Id]]) -> _Contender[Id]:
        """The winner among the branches of a fork.

        All of them have data above it or none has: else these would not be candidates.
        """
        if len(rivals) == 1:
            return rivals[0]
        heads = [rival.top if rival.first is None else rival.first for rival in rivals]
        best = min(range(len(heads)), key=lambda at: self._graph.rank(heads[at]))
        winner = rivals[best]
        head = heads.pop(best)
        rule = Rule.EARLIEST_ANCHOR if winner.first is None else Rule.EARLIEST_TIME
        winner.won.append(self._graph.decision(head, heads, rule))
        return winner


def _joined(one: list[_Contender[Id]], other: list[_Contender[Id]]) -> list[_Contender[Id]]:
    """Both lists as one. The longer one is extended, so that chains of trees take linear time."""
    if len(one) < len(other):
        one, other = other, one
    one += other
    return one


class _Rounds(Generic[Id]):
    """The contenders, decided in rounds over the core: what lies below merges.

    The core is a graph of nodes: the events have their own numbers, then come the contenders, then
    a gate for each tree, which leads to its contenders. Contenders are numbered by a hash of their
    ids, so that nobody can foresee the order.

    A rival stays one as long as a contender that holds it is left, and one that does not. It is
    looked at again when one of these two drops out, which are *watched*. Of all that could be,
    those with the highest numbers are: whatever the order in which contenders drop out, one is
    watched for long, and a rival is looked at O(log contenders) times.

    Raises:
        BudgetError: it takes too much memory to say which contenders hold what.
    """

    def __init__(
        self,
        graph: _Graph[Id],
        is_core: bytearray,
        trees: Sequence[tuple[Sequence[int], Sequence[_Contender[Id]]]],
    ) -> None:
        contenders = [contender for _, tree in trees for contender in tree]
        order = sorted(
            range(len(contenders)), key=lambda at: hash(graph.events[contenders[at].top].id)
        )
        bit_of = {at: bit for bit, at in enumerate(order)}
        self._graph = graph
        self._size = size = len(graph.events)
        self._contenders = [contenders[at] for at in order]
        self._check_size(is_core, (bases for bases, _ in trees))
        self._data = [i if decides else None for i, decides in enumerate(graph.is_data)]
        self._data += [contender.first for contender in self._contenders] + [None] * len(trees)
        self._waiting = [len(prevs) for prevs in graph.prevs] + [1] * len(contenders)
        self._waiting += [len(bases) for bases, _ in trees]
        self._nexts: list[list[int]] = [[] for _ in self._waiting]
        self._holders = [0] * size
        first = 0
        for gate, (bases, tree) in enumerate(trees, size + len(contenders)):
            bits = [bit_of[at] for at in range(first, first + len(tree))]
            first += len(tree)
            self._nexts[gate] = [size + bit for bit in bits]
            holders = _bits(bits)
            for base in bases:
                self._holders[base] |= holders
                self._nexts[base].append(gate)
        for i in compress(graph.downwards, reversed(is_core)):
            above = self._holders[i]
            for prev in graph.prevs[i]:
                held = self._holders[prev]
                self._holders[prev] = held | above if held else above  # chains share one
                self._nexts[prev].append(i)
        self._left = (1 << len(contenders)) - 1
        self._is_left = bytearray(b"\x01") * len(contenders)
        self._watched: dict[int, list[int]] = {}  # by contender: the rivals that depend on it
        self._watching: dict[int, tuple[int, int]] = {}  # by rival: who holds it, and who does not
        self._rivals: list[tuple[Any, int]] = []  # with their ranks, the first one first

    def _check_size(self, is_core: bytearray, trees: Iterable[Sequence[int]]) -> None:
        """Check how much memory it takes to say which contenders hold what.

        There is a set for each base of a tree, and another wherever branches meet.
        """
        ways = bytearray(self._size)
        sets = 0
        for bases in trees:
            sets += len(bases)
            for base in bases:
                sets += ways[base]
                ways[base] = True
        for i in compress(self._graph.downwards, reversed(is_core)):
            for prev in self._graph.prevs[i]:
                sets += ways[prev]
                ways[prev] = True
        if sets * len(self._contenders) // 8 > MAX_HOLDERS:
            raise BudgetError(
                f"to select the tip of the stream takes more than {MAX_HOLDERS:,} bytes: too many "
                "branches are merged with too many others"
            )

    def decide(self) -> tuple[list[Decision[Id]], list[_Contender[Id]]]:
        """Climb from the init event to the rivals of each round; return the contenders left.

        An event is passed if all contenders that are left hold its data, and all of its prevs were
        passed. Rivals are the data that cannot be passed. What no contender holds any more is
        dropped with all above it.
        """
        decisions: list[Decision[Id]] = []
        self._look_at([0])
        while self._rivals:
            winner, *losers = [node for _, node in self._rivals[: 1 + MAX_RIVALS]]
            rule = Rule.EARLIEST_TIME if losers else Rule.ONLY_DATA
            heads = list(map(self._data_of, losers))
            decisions.append(self._graph.decision(self._data_of(winner), heads, rule))
            self._look_at(self._drop_all_without(winner))
        return decisions, list(compress(self._contenders, self._is_left))

    def _data_of(self, node: int) -> int:
        data = self._data[node]
        assert data is not None, "a rival has data"
        return data

    def _holders_of(self, node: int) -> int:
        """Which contenders hold a node, one bit for each."""
        return self._holders[node] if node < self._size else 1 << (node - self._size)

    def _look_at(self, nodes: list[int]) -> None:
        """Pass nodes, drop them, or note that they are rivals; the same for all that follows."""
        for node in nodes:  # grows while it is walked
            holding = left = self._left
            if self._data[node] is not None:
                holding = self._holders_of(node) & left
                if holding and holding != left:
                    self._watch(node, holding, left ^ holding)
                    continue
                self._forget(node)
            if holding:
                for following in self._nexts[node]:
                    self._waiting[following] -= 1
                    if not self._waiting[following]:
                        nodes.append(following)

    def _drop_all_without(self, node: int) -> list[int]:
        """Drop the contenders that do not hold a rival; return the rivals to be looked at."""
        left = self._left & self._holders_of(node)
        dropped = self._left ^ left
        self._left = left
        again: dict[int, None] = {}
        for contender in _numbers(dropped):
            self._is_left[contender] = False
            again |= dict.fromkeys(self._watched.pop(contender, ()))
        return [rival for rival in again if rival in self._watching]

    def _watch(self, node: int, holding: int, others: int) -> None:
        known = self._watching.get(node)
        if known is None:
            insort(self._rivals, self._ranked(node))
        now = []
        for index, contenders in enumerate((holding, others)):
            watched = None if known is None else known[index]
            if watched is None or not self._is_left[watched]:
                watched = contenders.bit_length() - 1
                self._watched.setdefault(watched, []).append(node)
            now.append(watched)
        self._watching[node] = now[0], now[1]

    def _forget(self, node: int) -> None:
        if self._watching.pop(node, None) is not None:
            del self._rivals[bisect_left(self._rivals, self._ranked(node))]

    def _ranked(self, node: int) -> tuple[Any, int]:
        return self._graph.rank(self._data_of(node)), node


def _bits(numbers: Iterable[int]) -> int:
    """The integer that has these bits."""
    numbers = list(numbers)
    raw = bytearray(max(numbers) // 8 + 1)
    for number in numbers:
        raw[number // 8] |= 1 << number % 8
    return int.from_bytes(raw, "little")


def _numbers(bits: int) -> Iterator[int]:
    """The bits that an integer has, the lowest first."""
    raw = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
    for match in _NOT_ZERO.finditer(raw):
        byte = raw[match.start()]
        yield from (8 * match.start() + bit for bit in range(8) if byte >> bit & 1)
