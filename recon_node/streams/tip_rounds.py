"""The rounds of tip selection where branches merge: which contenders drop out.

Theory of operation. For each event of the core there is a set of bits, the contenders that hold it.
A rival is data that some contenders hold and others do not. A round takes the first rival by rank,
and the contenders that do not hold it drop out. Only the rivals that a round may change are looked
at again, so that all of it takes O(core * contenders / 64 * log contenders). More memory than
`MAX_HOLDERS` is refused. Which data wins, and why, is for `recon_node.streams.tip` to say.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, Final, Generic, TypeVar

from recon_node.streams.json_values import BudgetError

R = TypeVar("R", bound=Any)
"""The rank of data."""

MAX_HOLDERS: Final = 512 * 1024 * 1024
"""Bytes to say which contenders hold what."""
_NOT_ZERO: Final = re.compile(rb"[^\x00]")


class Core:
    """What lies below merges, with the contenders on it.

    Its nodes have numbers: the events their own, then the contenders, then one for each tree that
    leads to its contenders.

    Args:
        prevs: of each event of the stream, in causal order.
        is_data: of each event, whether it decides.
        is_core: of each event, whether something merges above it.
        trees: on which events each stands, and of each of its contenders the first data, if any.
        salt: orders the contenders, which are numbered through the trees, so that nobody can
            foresee it (see `Rivals`).

    Raises:
        BudgetError: it takes too much memory to say which contenders hold what.
    """

    def __init__(
        self,
        prevs: Sequence[Sequence[int]],
        is_data: Sequence[bool],
        is_core: bytearray,
        trees: Sequence[tuple[Sequence[int], Sequence[int | None]]],
        salt: Callable[[int], int],
    ) -> None:
        firsts = [first for _, tree in trees for first in tree]
        self.contenders = sorted(range(len(firsts)), key=salt)
        """Their numbers, by their bits."""
        bit_of = {at: bit for bit, at in enumerate(self.contenders)}
        self._prevs = prevs
        self._size = size = len(prevs)
        self._downwards = range(size - 1, -1, -1)
        self._holders = [0] * size
        self._nexts: list[list[int]] = [[] for _ in range(size)]
        self._waiting = [len(prev) for prev in prevs] + [1] * len(firsts)
        self.data = [i if decides else None for i, decides in enumerate(is_data)]
        self.data += [firsts[at] for at in self.contenders]
        self.data += [None] * len(trees)
        self._nexts += [[] for _ in firsts]
        self._check_size(is_core, (bases for bases, _ in trees))
        first = 0
        for gate, (bases, tree) in enumerate(trees, len(self._nexts)):
            bits = [bit_of[at] for at in range(first, first + len(tree))]
            holders = _bits(bits)
            for base in bases:
                self._holders[base] |= holders
                self._nexts[base].append(gate)
            self._nexts.append([size + bit for bit in bits])
            self._waiting.append(len(bases))
            first += len(tree)
        for i in self._downwards:
            if is_core[i]:
                above = self._holders[i]
                for prev in prevs[i]:
                    held = self._holders[prev]
                    self._holders[prev] = held | above if held else above  # chains share one
                    self._nexts[prev].append(i)

    def _check_size(self, is_core: bytearray, bases: Iterable[Sequence[int]]) -> None:
        """Check how much memory it takes to say which contenders hold what.

        There is a set for each base of a tree, and another wherever branches meet.
        """
        ways = bytearray(self._size)
        sets = 0
        for tree in bases:
            sets += len(tree)
            for base in tree:
                sets += ways[base]
                ways[base] = True
        for i in compress(self._downwards, reversed(is_core)):
            for prev in self._prevs[i]:
                sets += ways[prev]
                ways[prev] = True
        if sets * len(self.contenders) // 8 > MAX_HOLDERS:
            raise BudgetError(
                f"to select the tip of the stream takes more than {MAX_HOLDERS:,} bytes: too many "
                "branches are merged with too many others"
            )

    def data_of(self, node: int) -> int:
        """Return the data of a node that has some."""
        data = self.data[node]
        assert data is not None
        return data

    def holders(self, node: int) -> int:
        """Return which contenders hold a node, one bit for each."""
        return self._holders[node] if node < self._size else 1 << (node - self._size)

    def passed(self, node: int) -> list[int]:
        """Pass a node; return those all of whose prevs are passed now."""
        nexts = self._nexts[node]
        for following in nexts:
            self._waiting[following] -= 1
        return [following for following in nexts if not self._waiting[following]]


class Rivals(Generic[R]):
    """The contenders that are left, and the rivals of the round.

    A rival stays one as long as a contender that holds it is left, and one that does not. It is
    looked at again when one of these two drops out, which are *watched*. Of all that could be,
    those with the highest numbers are: in an order that nobody can foresee, so that one is watched
    for long, whatever the order in which they drop out: a rival is looked at O(log contenders)
    times.

    Attributes:
        ranked: the rivals with their ranks, the first one first.
    """

    def __init__(self, graph: Core, rank: Callable[[int], R]) -> None:
        self._graph = graph
        self._rank = rank
        self._left = (1 << len(graph.contenders)) - 1
        self._is_left = bytearray(b"\x01") * len(graph.contenders)
        self._watched: dict[int, list[int]] = {}  # by contender: the rivals that depend on it
        self._watching: dict[int, tuple[int, int]] = {}  # by rival: who holds it, and who does not
        self.ranked: list[tuple[R, int]] = []

    def left(self) -> list[int]:
        """Return the numbers of the contenders that are left."""
        return list(compress(self._graph.contenders, self._is_left))

    def look_at(self, nodes: list[int]) -> None:
        """Pass nodes, drop them, or note that they are rivals; the same for all that follows."""
        for node in nodes:  # grows while it is walked
            left = self._left
            if self._graph.data[node] is None:
                nodes += self._graph.passed(node)
                continue
            holders = self._graph.holders(node)
            holding = holders & left
            if holding and holding != left:
                self._watch(node, holding, left ^ holding)
            else:
                self._forget(node)
                if holding:
                    nodes += self._graph.passed(node)

    def drop_all_without(self, node: int) -> list[int]:
        """Drop the contenders that do not hold a rival; return the rivals to be looked at."""
        left = self._left & self._graph.holders(node)
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
            insort(self.ranked, (self._rank(self._graph.data_of(node)), node))
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
            entry = self._rank(self._graph.data_of(node)), node
            del self.ranked[bisect_left(self.ranked, entry)]


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
