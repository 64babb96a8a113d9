"""Which branch of a diverged stream wins: rules 2 to 5 of CIP-145, over segments.

Theory of operation. CIP-145, with the gaps filled as described in `tip.py`: while the branches of
the candidates differ in their data, take the data that not all of them hold, and of this the
causally first: the *rivals*. The earliest rival wins, and the candidates without it drop out. The
remaining candidates hold the same data: the earliest of them wins.

A stream that only forks and never merges is a tree, and each fork can be decided by itself, from
the leaves down: the rest of the tree treats all branches of a fork alike. So every subtree is first
reduced to its winner (a `Contender`): O(segments) at first, however many tips there are, and later
only for what lies below a change. The same holds for the subtrees of a graph with merges. The
*core*, the segments below a merge, is decided in rounds, with a bit set for every segment of the
candidates that hold it: O(core · contenders / 64).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

from recon_node.streams.graph import Id
from recon_node.streams.segments import EventNode, Segment, SegmentGraph


class Rule(Enum):
    """What decided a fork."""

    EARLIEST_TIME = "earliest time"  # rule 4
    LOWEST_CID = "lowest CID"  # rule 5
    ONLY_DATA = "only data"  # the other branches hold a subset of the winner's data
    EARLIEST_ANCHOR = "earliest anchor"  # same data on every branch: the earliest time event


@dataclass(frozen=True, slots=True)
class Decision(Generic[Id]):
    """One fork: `winner` won over `rivals` (ids, ascending) by `rule`."""

    rule: Rule
    winner: Id
    rivals: tuple[Id, ...]


@dataclass(slots=True, eq=False)
class Contender(Generic[Id]):
    """The winner of a subtree: the segment with its top, and the data by which it is judged next.

    `first_data` is the lowest data of its branch above the current fork, if any. `won` has the
    forks above that it won, as a linked list, the highest last.
    """

    segment: Segment[Id]
    first_data: EventNode[Id] | None
    won: _Won[Id] | None = None

    @property
    def top(self) -> EventNode[Id]:
        """The uncovered event."""
        return self.segment.top

    def decisions(self) -> list[Decision[Id]]:
        """Return the forks that it won, the lowest first."""
        decisions: list[Decision[Id]] = []
        won = self.won
        while won is not None:
            decisions.append(won.decision())
            won = won.then
        return decisions


@dataclass(slots=True, eq=False)
class _Won(Generic[Id]):
    """A fork that was won, over these rivals, and the next fork above it."""

    winner: EventNode[Id]
    rivals: list[EventNode[Id]]
    anchors_only: bool
    then: _Won[Id] | None

    def decision(self) -> Decision[Id]:
        """The fork with the rule that decided it."""
        if self.anchors_only:
            rule = Rule.EARLIEST_ANCHOR
        else:
            rule = Rule.EARLIEST_TIME if self.rivals else Rule.ONLY_DATA
        if any(rival.time == self.winner.time for rival in self.rivals):
            rule = Rule.LOWEST_CID
        return Decision(rule, self.winner.id, tuple(sorted(rival.id for rival in self.rivals)))


def decide(graph: SegmentGraph[Id]) -> Contender[Id]:
    """Return the winner of a whole stream, which must have some data."""
    _reduce(graph)
    if graph.root.field is not None:
        return _decide_fork(graph.root.field)
    return _Core(graph).decide()


def _reduce(graph: SegmentGraph[Id]) -> None:
    """Find the contenders of each subtree, unless they are known.

    A segment with no merge above it gets a `field`: one contender if it has data, else those of its
    branches, which have not met yet.
    """
    unknown = [graph.root] if graph.root.field is None else []
    seen = set(unknown)  # there are far more paths through merges than segments
    for segment in unknown:  # grows while it is walked
        new = [each for each in segment.nexts if each.field is None and each not in seen]
        unknown += new
        seen.update(new)
    for segment in sorted(unknown, key=lambda each: each.height, reverse=True):
        if all(map(_stands_alone, segment.nexts)):
            segment.field = _run(segment)


def _stands_alone(segment: Segment[Id]) -> bool:
    """Whether the segment is the root of a subtree."""
    return segment.field is not None and len(segment.bases) == 1


def _run(segment: Segment[Id]) -> list[Contender[Id]]:
    if not segment.nexts:
        return [Contender(segment, segment.first_data)]
    field: list[Contender[Id]] = [contender for each in segment.nexts for contender in each.field]
    if segment.first_data is None:
        return field
    winner = _decide_fork(field)
    return [Contender(winner.segment, segment.first_data, winner.won)]


def _decide_fork(field: Sequence[Contender[Id]]) -> Contender[Id]:
    """The winner among the branches of a fork."""
    if len(field) == 1:
        return field[0]
    rivals = [contender for contender in field if contender.first_data is not None]
    if len(rivals) == 1:
        return rivals[0]  # it covers all data of the others: they are not candidates (rule 2)
    if rivals:
        winner = min(rivals, key=lambda contender: _first_data(contender).rank)
        data = _first_data(winner)
        others = [_first_data(contender) for contender in rivals if contender is not winner]
        won = _Won(data, others, False, winner.won)
    else:
        winner = min(field, key=lambda contender: contender.top.rank)
        others = [contender.top for contender in field if contender is not winner]
        won = _Won(winner.top, others, True, winner.won)
    return Contender(winner.segment, winner.first_data, won)


def _first_data(contender: Contender[Id]) -> EventNode[Id]:
    assert contender.first_data is not None
    return contender.first_data


class _Core(Generic[Id]):
    """The segments below merges, and the contenders on top of them, decided in rounds.

    All are numbered in causal order: `prevs` and `nexts` link them, `data[i]` is the lowest data of
    `i`, `holders[i]` the candidates whose branch holds `i`. `parted` has the contenders whose last
    fork is where they are attached to the core.
    """

    def __init__(self, graph: SegmentGraph[Id]) -> None:
        self.prevs: list[list[int]] = []
        self.data: list[EventNode[Id] | None] = []
        self.contenders: dict[int, Contender[Id]] = {}
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
                self._run([base], [contender for each in alone for contender in each.field])
        self.nexts: list[list[int]] = [[] for _ in self.prevs]
        for i, prevs in enumerate(self.prevs):
            for prev in prevs:
                self.nexts[prev].append(i)
        self.candidates = self._candidates()
        self.holders = self._holders()

    def decide(self) -> Contender[Id]:
        """Drop candidates round by round until one is left."""
        rounds: list[tuple[EventNode[Id], list[EventNode[Id]], bool]] = []
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
        last = min(same, key=lambda i: self.contenders[i].top.rank)
        if len(same) > 1:
            losers = [self.contenders[i].top for i in same if i != last]
            rounds.append((self.contenders[last].top, losers + self._siblings(same), True))
            met.update(same)
        return self._with_rounds(self.contenders[last], rounds, last in met & self.parted)

    def _siblings(self, numbers: Iterable[int]) -> list[EventNode[Id]]:
        """The contenders beaten at the same fork before these met: they are rivals, too."""
        beaten = [self.contenders[i].won for i in numbers if i in self.parted]
        return [rival for won in beaten if won is not None for rival in won.rivals]

    def _with_rounds(
        self,
        contender: Contender[Id],
        rounds: list[tuple[EventNode[Id], list[EventNode[Id]], bool]],
        told: bool,
    ) -> Contender[Id]:
        """The winner with the forks it won; `told`: `rounds` has the first fork above it."""
        won = contender.won.then if told and contender.won is not None else contender.won
        for winner, rivals, anchors_only in reversed(rounds):
            won = _Won(winner, rivals, anchors_only, won)
        return Contender(contender.segment, contender.first_data, won)

    def _add(self, prevs: list[int], data: EventNode[Id] | None) -> None:
        self.prevs.append(prevs)
        self.data.append(data)

    def _run(self, prevs: list[int], field: Sequence[Contender[Id]]) -> None:
        contender = _decide_fork(field)
        if contender not in field:
            self.parted.add(len(self.prevs))
        self.contenders[len(self.prevs)] = contender
        self._add(prevs, contender.first_data)

    def _data(self, number: int) -> EventNode[Id]:
        data = self.data[number]
        assert data is not None
        return data

    def _candidates(self) -> list[int]:
        """Rule 2: the contenders whose branch holds data that no other data covers."""
        below_data = bytearray(len(self.prevs))
        for i in range(len(self.prevs) - 1, -1, -1):
            if below_data[i] or self.data[i] is not None:
                for prev in self.prevs[i]:
                    below_data[prev] = True
        leads = bytearray(len(self.prevs))
        for i, prevs in enumerate(self.prevs):
            is_dominant = self.data[i] is not None and not below_data[i]
            leads[i] = is_dominant or any(leads[prev] for prev in prevs)
        return [i for i in self.contenders if leads[i]]

    def _holders(self) -> list[int]:
        holders = [0] * len(self.prevs)
        for bit, candidate in enumerate(self.candidates):
            holders[candidate] = 1 << bit
        for i in range(len(self.prevs) - 1, -1, -1):
            for prev in self.prevs[i]:
                holders[prev] |= holders[i]
        return holders


class _Rounds:
    """Climbs from the init event to the forks of the remaining branches; visits a segment once.

    What all branches hold, or none does, stays so when candidates drop out: only the segments in
    between, the rivals of the last round, are visited again. `below[i]` are the candidates that
    hold all of the closest data under segment `i`.
    """

    def __init__(
        self,
        prevs: list[list[int]],
        nexts: list[list[int]],
        data: Sequence[EventNode[Any] | None],
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
        """The causally first data that some but not all of the candidates in `left` hold."""
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
