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

Every fork decided on the way is reported as a `Decision`, so that a result can be explained.

Cost: each event carries the set of candidates that cover it, as a bit set handed down from its
successors: O(events · candidates / 64) for a stream, near-linear since candidates are few.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic

from recon_node.lattice.dag import Id, StreamDag, StreamEvent, StreamShapeError

_NEVER = float("inf")


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


def select_tip(events: Iterable[StreamEvent[Id]]) -> Tip[Id]:
    """The tip of a stream by CIP-145; the order of `events` does not matter.

    Args:
        events: all events of one stream. An event given twice counts once.

    Raises:
        StreamShapeError: the events are not one whole stream (no init, a missing prev, a cycle),
            or nothing in it is valid data, so that it has no tip.
    """
    return _Selection(StreamDag(events)).run()


class _Selection(Generic[Id]):
    """One run of the rules. Events are numbers in `dag`, sets of candidates are bit sets.

    `holders[i]` are the candidates whose branch holds event `i`.
    """

    def __init__(self, dag: StreamDag[Id]) -> None:
        self.dag = dag
        self.is_data = [event.kind != "time" and event.valid for event in dag.events]
        self.time = _times(dag)
        self.dominant = self._last_data(range(len(dag)))
        self.candidates = self._candidates()
        self.holders = self._holders()
        self.reasons: list[Decision[Id]] = []

    def run(self) -> Tip[Id]:
        tip = self._decide()
        mine = 1 << self.candidates.index(tip)
        branch = [i for i, held in enumerate(self.holders) if held & mine]
        return Tip(
            event=self.dag.events[tip].id,
            height=self.dag.height[tip],
            data_tip=self._ids(self._last_data(branch)),
            anchored_at=self._ids(self._last_data(i for i in branch if self.time[i] < _NEVER)),
            candidates=self._ids(self.candidates),
            pruned=self._ids(i for i, held in enumerate(self.holders) if not held & mine),
            diverged=len(self.dominant) > 1,
            reasons=tuple(self.reasons),
        )

    def _last_data(self, numbers: Iterable[int]) -> list[int]:
        """Of the given events, the data that no other given data event covers."""
        data = sorted(i for i in numbers if self.is_data[i])
        counted = set(data)
        covered = bytearray(len(self.dag))
        last: list[int] = []
        for i in range(data[-1] if data else -1, -1, -1):
            if i in counted and not covered[i]:
                last.append(i)
            if covered[i] or i in counted:
                for prev in self.dag.prevs[i]:
                    covered[prev] = True
        return last

    def _candidates(self) -> list[int]:
        """Rules 1 and 2: the uncovered events whose branch holds a dominant data event."""
        if not self.dominant:
            raise StreamShapeError(
                "no data event of the stream is valid, nor its init: it has no tip"
            )
        is_dominant = set(self.dominant)
        counts = bytearray(len(self.dag))  # valid, or under something valid
        leads = bytearray(len(self.dag))  # holds dominant data
        candidates: list[int] = []
        for i, prevs in enumerate(self.dag.prevs):
            leads[i] = i in is_dominant or any(leads[prev] for prev in prevs)
        for i in range(len(self.dag) - 1, -1, -1):
            covered = any(counts[successor] for successor in self.dag.nexts[i])
            counts[i] = covered or self.dag.events[i].valid
            if counts[i] and not covered and leads[i]:
                candidates.append(i)
        return candidates

    def _holders(self) -> list[int]:
        holders = [0] * len(self.dag)
        for bit, candidate in enumerate(self.candidates):
            holders[candidate] = 1 << bit
        for i in range(len(self.dag) - 1, -1, -1):
            for prev in self.dag.prevs[i]:
                holders[prev] |= holders[i]
        return holders

    def _decide(self) -> int:
        """Rules 3 to 5: drop candidates fork by fork until one is left."""
        fork = _Fork(self.dag, self.is_data, self.holders)
        left = (1 << len(self.candidates)) - 1
        while rivals := fork.rivals(left):
            left &= self.holders[self._win(rivals, Rule.EARLIEST_TIME)]
        if left & (left - 1):
            same_data = [c for bit, c in enumerate(self.candidates) if left >> bit & 1]
            return self._win(same_data, Rule.EARLIEST_ANCHOR)
        return self.candidates[left.bit_length() - 1]

    def _win(self, rivals: list[int], rule: Rule) -> int:
        """The earliest rival, the lowest id among the earliest; notes why."""
        winner = min(rivals, key=lambda i: (self.time[i], self.dag.events[i].id))
        others = [i for i in rivals if i != winner]
        if not others:
            rule = Rule.ONLY_DATA
        elif any(self.time[i] == self.time[winner] for i in others):
            rule = Rule.LOWEST_CID
        self.reasons.append(Decision(rule, self.dag.events[winner].id, self._ids(others)))
        return winner

    def _ids(self, numbers: Iterable[int]) -> tuple[Id, ...]:
        return tuple(sorted(self.dag.events[i].id for i in numbers))


class _Fork:
    """Climbs from the init to where the branches left part; looks at no event twice.

    What all branches hold stays so when candidates drop out, and what none holds too: only the
    events in between, the rivals of the last round, must be looked at again. `below[i]` are the
    candidates that hold all of the closest data under event `i`.
    """

    def __init__(self, dag: StreamDag[Any], is_data: list[bool], holders: list[int]) -> None:
        self.nexts = dag.nexts
        self.is_data = is_data
        self.holders = holders
        self.below = [-1] * len(dag)
        for i, prevs in enumerate(dag.prevs):
            for prev in prevs:
                self.below[i] &= holders[prev] if is_data[prev] else self.below[prev]
        self.seen = bytearray(len(dag))
        self.contested = [0]  # the init comes first in a causal order

    def rivals(self, left: int) -> list[int]:
        """The causally first of the data that some but not all of the candidates in `left` hold."""
        shared = [i for i in self.contested if self._is_shared(i, left)]
        contested = [i for i in self.contested if self._is_contested(i, left)]
        for i in shared:  # grows while it is walked
            for successor in self.nexts[i]:
                if self.seen[successor] or self.below[successor] & left != left:
                    continue
                self.seen[successor] = True
                if self._is_shared(successor, left):
                    shared.append(successor)
                elif self._is_contested(successor, left):
                    contested.append(successor)
        self.contested = contested
        return contested

    def _is_shared(self, i: int, left: int) -> bool:
        return not self.is_data[i] or self.holders[i] & left == left

    def _is_contested(self, i: int, left: int) -> bool:
        return self.is_data[i] and self.holders[i] & left not in (0, left)


def _times(dag: StreamDag[Id]) -> list[float]:
    """For each event the earliest proven time of a valid time event at or above it."""
    times = [
        event.time if event.kind == "time" and event.valid and event.time is not None else _NEVER
        for event in dag.events
    ]
    for i in range(len(dag) - 1, -1, -1):
        for prev in dag.prevs[i]:
            times[prev] = min(times[prev], times[i])
    return times
