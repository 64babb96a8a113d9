"""A finger into a key store: for places that follow on each other.

The gaps of a message ascend, and most are shorter than a leaf of the tree. A finger remembers the
leaf that it was in, and one place in there. While the next place is in the same leaf, it adds up
only the digests between the two; else it looks in the leaf where it was before, then in those below
the same inner node, and only then starts from the root. When the store has changed it notices, so a
finger is never wrong, only slow.

A *place* is a gap between two keys, or before the first or behind the last. It is given as the
lanes (sha256a.py) of all keys left of it. So the difference of two places is the hash and the
number of the keys between, and what is on top of a place is its rank. A place is of use only as
long as the store does not change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from recon_node.recon.keys.ranges import KeyRange, common_prefix, separator
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, LANES_MASK, spread, spread_run
from recon_node.recon.keys.tree import Inner, Leaf, Node

# How far from its place a cut may fall. Most streams have fewer events.
_CUT_REACH = 6

_Subtree = tuple[Node, int, int, bytes, bytes | None]
"""A node, the places at its two ends, and its bounds: None for the end of the store."""


class Tree(Protocol):
    """What a finger needs of a key store: its tree, and the lanes of all its keys.

    Every change of the store makes a new integer object of `total`.
    """

    root: Node
    total: int


class Finger:
    """A place in a store from which the next one is near. The store may change meanwhile."""

    __slots__ = (
        "_above",
        "_at",
        "_below",
        "_end",
        "_first",
        "_here",
        "_lanes",
        "_leaf",
        "_left",
        "_parent",
        "_start",
        "_store",
        "_total",
        "_whole",
    )

    def __init__(self, store: Tree) -> None:
        self._store = store
        self._total: int | None = None
        """The store's total when the leaf was found."""
        self._leaf = Leaf([], b"")
        self._start = b""
        self._end: bytes | None = None
        """The bounds of the leaf: None at the end of the store."""
        self._below = self._above = 0
        """The places at the two ends of the leaf."""
        self._first = 0
        """The rank of the leaf's first key."""
        self._at = self._lanes = 0
        """The index in the leaf at which the finger is, and that place."""
        self._whole: _Subtree = (self._leaf, 0, 0, b"", None)
        self._here: _Subtree = self._whole
        self._left: _Subtree = self._whole
        self._parent: _Subtree = self._whole
        """The whole tree; in it the leaf, the one that was left for it, and the node above it."""

    def left_of(self, bound: bytes) -> int:
        """Return the place left of a bound: the lanes of all keys below it."""
        index = self._seek(bound)
        return self._lanes if index == self._at else self._move(index)

    def rank_of(self, bound: bytes) -> int:
        """Return the number of keys below a bound: the rank of its place."""
        return self._seek(bound) + self._first

    def up_to(self, bound: bytes) -> int:
        """Return the place right of a bound: the lanes of all keys up to it, itself included."""
        return self.around(bound)[1]

    def around(self, bound: bytes) -> tuple[int, int]:
        """Return the places left and right of a bound: two where the store holds it, else one."""
        index = self._seek(bound)
        left = self._move(index)
        if index < len(self._leaf) and self._leaf[index] == bound:
            return left, left + self._lanes_at(index)
        return left, left

    def holds(self, key: bytes) -> bool:
        """Tell whether the store holds a key."""
        return not self.missing((key,))

    def missing(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that the store does not hold. Cheap where they ascend."""
        missing: list[bytes] = []
        total, start, end, leaf = self._total, self._start, self._end, self._leaf
        for key in keys:
            if total is not self._store.total or key < start or (end is not None and key >= end):
                self._enter(key)
                total, start, end, leaf = self._total, self._start, self._end, self._leaf
            index = bisect_left(leaf, key)
            if index == len(leaf) or leaf[index] != key:
                missing.append(key)
        return missing

    def keys_at(self, start: int, end: int) -> list[bytes]:
        """Return the keys of the ranks from ``start`` to before ``end``, in order."""
        index = start - self._first
        if index >= 0 and self._total is self._store.total:  # the usual case, without a generator
            keys = self._leaf[index : index + end - start]
            if len(keys) == end - start:
                return keys
        return [key for run in self.runs(start, end) for key in run]

    def runs(self, start: int, end: int) -> Iterator[list[bytes]]:
        """Yield the keys of the ranks from ``start`` to before ``end``, leaf by leaf."""
        while start < end:
            index = self._seek_rank(start)
            run = self._leaf[index : index + end - start]
            yield run
            start += len(run)

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return the pivots of a range: see :meth:`KeyStore.split`."""
        return [key for key, _ in self.pivots(*self._places(key_range), parts)]

    def pivots(self, start: int, end: int, parts: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Yield the pivots of what lies between two places, and the places around each.

        The store must not change meanwhile.
        """
        for rank in ranks_of(start, end, parts):
            index = self._seek_rank(rank)
            left = self._move(index)
            yield self._leaf[index], (left, left + self._lanes_at(index))

    def cut(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return short strings that cut a range: see :meth:`KeyStore.cut`."""
        return [bound for bound, _ in self.cuts(*self._places(key_range), parts)]

    def cuts(self, start: int, end: int, parts: int) -> Iterator[tuple[bytes, int]]:
        """Yield the short strings that cut what lies between two places, and the places of these.

        The store must not change meanwhile.
        """
        first, size = start >> COUNT_SHIFT, end - start >> COUNT_SHIFT
        ranks = [rank for rank in ranks_of(start, end, parts) if rank > first]
        reach = min(_CUT_REACH, size // (4 * parts))  # the places' surroundings do not meet
        if ranks:
            self._return_to(start)
        for rank in ranks:
            index = self._seek_rank(rank - 1) + 1
            leaf = self._leaf
            if not reach and index < len(leaf):  # the usual case
                yield separator(leaf[index - 1], leaf[index]), self._move(index)
            else:
                lowest = max(first, rank - 1 - reach)
                bound, right = _shortest_separator(self.keys_at(lowest, rank + 1 + reach))
                yield bound, self.place_of(lowest + right)

    def place_of(self, rank: int) -> int:
        """Return the place left of the key of a rank, or behind the last key."""
        index = rank - self._first
        if not (0 <= index <= len(self._leaf) and self._total is self._store.total):
            index = self._seek_rank(rank)
        return self._move(index)

    def _places(self, key_range: KeyRange) -> tuple[int, int]:
        """Return the places at the two ends of a range."""
        start = self.up_to(key_range.lower)
        return start, max(start, self.left_of(key_range.upper), key=_rank)

    def _return_to(self, place: int) -> None:
        """Move back to a place."""
        self._at = self._seek_rank(place >> COUNT_SHIFT)
        self._lanes = place

    def _move(self, index: int) -> int:
        """Move within the leaf; return the place there."""
        at, size, digests = self._at, len(self._leaf), self._leaf.digests
        if index > at:
            if size - index < index - at:
                self._lanes = self._above - spread_run(digests[index * DIGEST_SIZE :])
            else:
                self._lanes += spread_run(digests[at * DIGEST_SIZE : index * DIGEST_SIZE])
        elif index < at:
            if index < at - index:
                self._lanes = self._below + spread_run(digests[: index * DIGEST_SIZE])
            else:
                self._lanes -= spread_run(digests[index * DIGEST_SIZE : at * DIGEST_SIZE])
        self._at = index
        return self._lanes

    def _lanes_at(self, index: int) -> int:
        """Return the lanes of one key of the leaf."""
        return spread(self._leaf.digests[index * DIGEST_SIZE : (index + 1) * DIGEST_SIZE])

    def _seek(self, bound: bytes) -> int:
        """Move to the leaf of a bound; return the bound's index there."""
        if (
            self._total is not self._store.total
            or bound < self._start
            or (self._end is not None and bound >= self._end)
        ):
            self._enter(bound)
        return bisect_left(self._leaf, bound)

    def _enter(self, bound: bytes) -> None:
        """Move to the start of a bound's leaf."""
        if self._total is not self._store.total:
            self._restart()
        node, below, above, start, end = self._parent
        if bound < start or (end is not None and bound >= end):
            node, below, above, start, end = self._whole
        while isinstance(node, Inner):
            self._parent = node, below, above, start, end
            bounds, sums = node.bounds, node.sums or node.sum_up()
            index = bisect_right(bounds, bound, 1) - 1
            below, above = below + sums[index], below + sums[index + 1]
            if index:
                start = bounds[index]
            if index + 1 < len(bounds):
                end = bounds[index + 1]
            node = node[index]
        self._settle((node, below, above, start, end))

    def _seek_rank(self, rank: int) -> int:
        """Move to the start of the leaf of the key of a rank; return its index there."""
        if self._total is not self._store.total:
            self._restart()
        elif 0 <= (index := rank - self._first) < len(self._leaf):
            return index
        subtree = self._left
        if not _has(subtree, rank):
            subtree = self._parent if _has(self._parent, rank) else self._whole
        while isinstance(subtree[0], Inner):
            self._parent = subtree
            subtree = _child_of_rank(subtree, rank)
        self._settle(subtree)
        return rank - self._first

    def _restart(self) -> None:
        """Forget all that was known of the store, which has changed."""
        self._total = self._store.total
        self._whole = self._store.root, 0, self._total, b"", None
        self._here = self._left = self._parent = self._whole

    def _settle(self, subtree: _Subtree) -> None:
        self._left, self._here = self._here, subtree
        node, self._below, self._above, self._start, self._end = subtree
        assert isinstance(node, Leaf)
        self._leaf = node
        self._first = self._below >> COUNT_SHIFT
        self._at, self._lanes = 0, self._below


def ranks_of(start: int, end: int, parts: int) -> list[int]:
    """Return the ascending ranks that part what lies between two places, ``parts - 1`` at most."""
    first, size = start >> COUNT_SHIFT, end - start >> COUNT_SHIFT
    if size < parts:
        return list(range(first, first + size))
    return [first + i * size // parts for i in range(1, parts)]


def _rank(place: int) -> int:
    return place >> COUNT_SHIFT


def _has(subtree: _Subtree, rank: int) -> bool:
    """Tell whether the key of a rank is in a subtree."""
    _, below, above, _, _ = subtree
    return below >> COUNT_SHIFT <= rank < above >> COUNT_SHIFT


def _child_of_rank(subtree: _Subtree, rank: int) -> _Subtree:
    """Return the child of an inner node that has the key of a rank."""
    node, below, _, start, end = subtree
    assert isinstance(node, Inner)
    sums, bounds = node.sums or node.sum_up(), node.bounds
    sought = rank - (below >> COUNT_SHIFT) << COUNT_SHIFT | LANES_MASK
    index = min(bisect_right(sums, sought), len(node)) - 1
    return (
        node[index],
        below + sums[index],
        below + sums[index + 1],
        bounds[index] if index else start,
        bounds[index + 1] if index + 1 < len(bounds) else end,
    )


def _shortest_separator(keys: list[bytes]) -> tuple[bytes, int]:
    """Return the first of the shortest separators between neighbours of some ascending keys.

    Beside it stands the index of the key right of it.
    """
    first = keys[0]
    shared = common_prefix(first, keys[-1])  # as much as those two neighbours share
    right = 1
    if len(keys) > 2 and len(first) > shared:  # else the first key is a prefix of all others
        right = bisect_left(keys, first[:shared] + bytes((first[shared] + 1,)), 1)
    left, above = keys[right - 1], keys[right]
    bound = above[: shared + 1]
    return (left + b"\x00" if bound == above else bound), right
