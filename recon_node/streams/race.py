"""Which branch of a diverged stream wins: rules 2 to 5 of CIP-145, over segments.

Theory of operation. As CIP-145 words it, with the gaps filled in as said in `tip.py`: while the
branches of the candidates differ in their data, take the data that not all of them hold, and of
this the causally first: the *rivals*. The earliest rival wins, and the candidates without it drop
out. Candidates that are left hold the same data: the earliest of them wins.

Where a stream only forks and never merges, it is a tree, and each fork can be decided by itself,
from the leaves down: whatever happens elsewhere treats all branches of the fork alike. So every
subtree is reduced to its winner (a `Runner`) before anything else: O(segments) at first, however
many tips there are, and later only for what lies below a change. The same holds for the subtrees of
a graph with merges. What they stand on, the *core* of segments that lie below a merge, is decided
in rounds, with a bit set of the candidates that hold it for every segment: O(core · runners / 64).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

from recon_node.streams.graph import Id
from recon_node.streams.segments import Node, Segment, SegmentGraph


class Rule(Enum):
    """What decided a fork."""

    EARLIEST_TIME = "earliest time"  # rule 4
    LOWEST_CID = "lowest CID"  # rule 5
    ONLY_DATA = "only data"  # no rival: the other branches hold a subset of the winner's data
    EARLIEST_ANCHOR = "earliest anchor"  # same data on every branch: the earliest time event


@dataclass(frozen=True, slots=True)
class Decision(Generic[Id]):
    """One fork: `winner` was kept over `rivals` (ids, ascending) because of `rule`."""

    rule: Rule
    winner: Id
    rivals: tuple[Id, ...]


@dataclass(slots=True, eq=False)
class Runner(Generic[Id]):
    """The winner of a subtree: the segment with its top, and the data that it meets others with.

    `first_data` is the lowest data of its branch above the fork at hand, None without any there.
    `won` are the forks above that it came through, the highest last, as a linked list.
    """

    segment: Segment[Id]
    first_data: Node[Id] | None
    won: _Won[Id] | None = None

    @property
    def top(self) -> Node[Id]:
        """The uncovered event."""
        return self.segment.top

    def decisions(self) -> list[Decision[Id]]:
        """The forks that it came through, the lowest first."""
        decisions: list[Decision[Id]] = []
        won = self.won
        while won is not None:
            decisions.append(won.decision())
            won = won.then
        return decisions


@dataclass(slots=True, eq=False)
class _Won(Generic[Id]):
    """A fork that was won: over which rivals, and before which other forks."""

    winner: Node[Id]
    rivals: list[Node[Id]]
    anchors_only: bool
    then: _Won[Id] | None

    def decision(self) -> Decision[Id]:
        """What decided it."""
        if self.anchors_only:
            rule = Rule.EARLIEST_ANCHOR
        else:
            rule = Rule.EARLIEST_TIME if self.rivals else Rule.ONLY_DATA
        if any(rival.time == self.winner.time for rival in self.rivals):
            rule = Rule.LOWEST_CID
        return Decision(rule, self.winner.id, tuple(sorted(rival.id for rival in self.rivals)))


def decide(graph: SegmentGraph[Id]) -> Runner[Id]:
    """The winner of a whole stream that has some data."""
    _reduce(graph)
    if graph.root.field is not None:
        return _decide_fork(graph.root.field)
    return _Core(graph).decide()


def _reduce(graph: SegmentGraph[Id]) -> None:
    """Find those who run for each subtree, where that is not known from before.

    A segment above which nothing merges gets a `field`: one runner where it has data, and where it
    has none those of its branches, who have yet to meet.
    """
    unknown = [graph.root] if graph.root.field is None else []
    seen = set(unknown)  # there are far more ways through merges than segments
    for segment in unknown:  # grows while it is walked
        new = [each for each in segment.nexts if each.field is None and each not in seen]
        unknown += new
        seen.update(new)
    for segment in sorted(unknown, key=lambda each: each.height, reverse=True):
        if all(map(_stands_alone, segment.nexts)):
            segment.field = _run(segment)


def _stands_alone(segment: Segment[Id]) -> bool:
    """Is the segment the root of a subtree?"""
    return segment.field is not None and len(segment.bases) == 1


def _run(segment: Segment[Id]) -> list[Runner[Id]]:
    if not segment.nexts:
        return [Runner(segment, segment.first_data)]
    field: list[Runner[Id]] = [runner for each in segment.nexts for runner in each.field]
    if segment.first_data is None:
        return field
    winner = _decide_fork(field)
    return [Runner(winner.segment, segment.first_data, winner.won)]


def _decide_fork(field: Sequence[Runner[Id]]) -> Runner[Id]:
    """The winner among branches that part here."""
    if len(field) == 1:
        return field[0]
    rivals = [runner for runner in field if runner.first_data is not None]
    if len(rivals) == 1:
        return rivals[0]  # the others hold no data that it does not cover: no candidates (rule 2)
    if rivals:
        winner = min(rivals, key=lambda runner: _first_data(runner).rank)
        data = _first_data(winner)
        others = [_first_data(runner) for runner in rivals if runner is not winner]
        won = _Won(data, others, False, winner.won)
    else:
        winner = min(field, key=lambda runner: runner.top.rank)
        others = [runner.top for runner in field if runner is not winner]
        won = _Won(winner.top, others, True, winner.won)
    return Runner(winner.segment, winner.first_data, won)


def _first_data(runner: Runner[Id]) -> Node[Id]:
    assert runner.first_data is not None
    return runner.first_data


class _Core(Generic[Id]):
    """The segments below merges, and the runners on top of them, decided in rounds.

    All of them are numbers, in causal order: `prevs` and `nexts` lead from one to the other,
    `data[i]` is the lowest data of `i`, `holders[i]` the candidates whose branch holds `i`. In
    `parted` are the runners that were decided on at the very place where they are put on the core.
    """

    def __init__(self, graph: SegmentGraph[Id]) -> None:
        self.prevs: list[list[int]] = []
        self.data: list[Node[Id] | None] = []
        self.runners: dict[int, Runner[Id]] = {}
        self.parted: set[int] = set()
        number: dict[Segment[Id], int] = {}
        for segment in sorted(graph.segments, key=lambda each: each.height):
            if segment.field is None:
                bases = [number[base] for base in segment.bases]
                number[segment] = len(self.prevs)
                self._add(bases, segment.first_data)
            elif not _stands_alone(segment):  # it merges
                self._run([number[base] for base in segment.bases], segment.field)
        for segment, base in number.items():
            alone = [each for each in segment.nexts if _stands_alone(each)]
            if alone:
                self._run([base], [runner for each in alone for runner in each.field])
        self.nexts: list[list[int]] = [[] for _ in self.prevs]
        for i, prevs in enumerate(self.prevs):
            for prev in prevs:
                self.nexts[prev].append(i)
        self.candidates = self._candidates()
        self.holders = self._holders()

    def decide(self) -> Runner[Id]:
        """Drop candidates round by round until one is left."""
        rounds: list[tuple[Node[Id], list[Node[Id]], bool]] = []
        met: set[int] = set()
        fork = _Rounds(self.prevs, self.nexts, self.data, self.holders)
        left = (1 << len(self.candidates)) - 1
        while rivals := fork.rivals(left):
            winner = min(rivals, key=lambda i: self._data(i).rank)
            losers = [self._data(i) for i in rivals if i != winner]
            rounds.append((self._data(winner), losers + self._siblings(rivals), False))
            met.update(rivals)
            left &= self.holders[winner]
        same = [c for bit, c in enumerate(self.candidates) if left >> bit & 1]
        last = min(same, key=lambda i: self.runners[i].top.rank)
        if len(same) > 1:
            losers = [self.runners[i].top for i in same if i != last]
            rounds.append((self.runners[last].top, losers + self._siblings(same), True))
            met.update(same)
        return self._with_rounds(self.runners[last], rounds, last in met & self.parted)

    def _siblings(self, numbers: Iterable[int]) -> list[Node[Id]]:
        """Whom these runners have beaten before they met: they are rivals just as well."""
        beaten = [self.runners[i].won for i in numbers if i in self.parted]
        return [rival for won in beaten if won is not None for rival in won.rivals]

    def _with_rounds(
        self,
        runner: Runner[Id],
        rounds: list[tuple[Node[Id], list[Node[Id]], bool]],
        told: bool,
    ) -> Runner[Id]:
        """The winner with how it won; `told`: the rounds have the first fork above it already."""
        won = runner.won.then if told and runner.won is not None else runner.won
        for winner, rivals, anchors_only in reversed(rounds):
            won = _Won(winner, rivals, anchors_only, won)
        return Runner(runner.segment, runner.first_data, won)

    def _add(self, prevs: list[int], data: Node[Id] | None) -> None:
        self.prevs.append(prevs)
        self.data.append(data)

    def _run(self, prevs: list[int], field: Sequence[Runner[Id]]) -> None:
        runner = _decide_fork(field)
        if runner not in field:
            self.parted.add(len(self.prevs))
        self.runners[len(self.prevs)] = runner
        self._add(prevs, runner.first_data)

    def _data(self, number: int) -> Node[Id]:
        data = self.data[number]
        assert data is not None
        return data

    def _candidates(self) -> list[int]:
        """Rule 2: the runners whose branch holds data that no other data covers."""
        below_data = bytearray(len(self.prevs))
        for i in range(len(self.prevs) - 1, -1, -1):
            if below_data[i] or self.data[i] is not None:
                for prev in self.prevs[i]:
                    below_data[prev] = True
        leads = bytearray(len(self.prevs))
        for i, prevs in enumerate(self.prevs):
            is_dominant = self.data[i] is not None and not below_data[i]
            leads[i] = is_dominant or any(leads[prev] for prev in prevs)
        return [i for i in self.runners if leads[i]]

    def _holders(self) -> list[int]:
        holders = [0] * len(self.prevs)
        for bit, candidate in enumerate(self.candidates):
            holders[candidate] = 1 << bit
        for i in range(len(self.prevs) - 1, -1, -1):
            for prev in self.prevs[i]:
                holders[prev] |= holders[i]
        return holders


class _Rounds:
    """Climbs from the init to where the branches left part; looks at no segment twice.

    What all branches hold stays so when candidates drop out, and what none holds too: only the
    segments in between, the rivals of the last round, must be looked at again. `below[i]` are the
    candidates that hold all of the closest data under segment `i`.
    """

    def __init__(
        self,
        prevs: list[list[int]],
        nexts: list[list[int]],
        data: Sequence[Node[Any] | None],
        holders: list[int],
    ) -> None:
        self.nexts = nexts
        self.data = data
        self.holders = holders
        self.below = [-1] * len(prevs)
        for i, bases in enumerate(prevs):
            for base in bases:
                self.below[i] &= self.below[base] if data[base] is None else holders[base]
        self.seen = bytearray(len(prevs))
        self.contested = [0]  # the init comes first in a causal order

    def rivals(self, left: int) -> list[int]:
        """The causally first of the data that some but not all of the candidates in `left` hold."""
        shared = [i for i in self.contested if self._is_shared(i, left)]
        contested = [i for i in self.contested if self._is_contested(i, left)]
        for i in shared:  # grows while it is walked
            for following in self.nexts[i]:
                if self.seen[following] or self.below[following] & left != left:
                    continue
                self.seen[following] = True
                if self._is_shared(following, left):
                    shared.append(following)
                elif self._is_contested(following, left):
                    contested.append(following)
        self.contested = contested
        return contested

    def _is_shared(self, i: int, left: int) -> bool:
        return self.data[i] is None or self.holders[i] & left == left

    def _is_contested(self, i: int, left: int) -> bool:
        return self.data[i] is not None and self.holders[i] & left not in (0, left)
