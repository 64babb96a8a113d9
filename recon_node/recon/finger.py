"""A finger into a key store: for ranges that follow on each other.

The ranges of a message ascend, and most are shorter than a leaf of the tree. A finger remembers the
leaf that it was in, and the lanes (sha256a.py) of all keys left of a place in there. While the next
place is in the same leaf, it adds only the digests between the two; else it looks where another
finger is, and only then starts from the root. When the store has changed it notices, so a finger is
never wrong, only slow.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from recon_node.recon.key_range import KeyRange, common_prefix, separator
from recon_node.recon.key_tree import Bisect, Inner, Leaf
from recon_node.recon.sha256a import COUNT_SHIFT, LANES_MASK

if TYPE_CHECKING:
    from recon_node.recon.key_store import KeyStore

# How far from its place a cut may fall. Most streams have fewer events.
_CUT_REACH = 6


class Finger:
    """A place in a store from which the next one is near. The store may change meanwhile."""

    __slots__ = (
        "_above",
        "_at",
        "_below",
        "_end",
        "_lanes",
        "_leaf",
        "_near",
        "_start",
        "_store",
        "_total",
    )

    def __init__(self, store: KeyStore, near: Finger | None = None) -> None:
        self._store = store
        self._near = near
        """Another finger, which is often in the leaf that comes next."""
        self._total: int | None = None
        """The store's total when the leaf was found. Every change of the store makes a new one."""
        self._leaf = Leaf([], b"")
        self._start = b""
        self._end: bytes | None = None
        """The bounds of the leaf: None at the end of the store."""
        self._below = self._above = 0
        """The lanes of all keys left of the leaf, and of those left of its end."""
        self._at = 0
        self._lanes = 0
        """The lanes of all keys left of the leaf's key at ``_at``."""

    def left_of(self, bound: bytes) -> int:
        """Return the lanes of all keys below a bound."""
        return self._lanes_at(self._seek(bound, bisect_left))

    def up_to(self, bound: bytes) -> int:
        """Return the lanes of all keys up to a bound, the bound itself included."""
        return self._lanes_at(self._seek(bound, bisect_right))

    def holds(self, key: bytes) -> bool:
        """Tell whether the store holds a key."""
        index = self._seek(key, bisect_left)
        return index < len(self._leaf) and self._leaf[index] == key

    def keys_at(self, start: int, end: int) -> list[bytes]:
        """Return the keys of the ranks from ``start`` to before ``end``, in order."""
        keys: list[bytes] = []
        while start < end:
            index = self._seek_rank(start)
            run = self._leaf[index : index + end - start]
            keys += run
            start += len(run)
        return keys

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return the pivots of a range: see :meth:`KeyStore.split`."""
        ranks = self._ranks(key_range, parts)[0]
        return [key for rank in ranks for key in self.keys_at(rank, rank + 1)]

    def cut(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return short strings that cut a range: see :meth:`KeyStore.cut`."""
        ranks, first, size = self._ranks(key_range, parts)
        reach = min(_CUT_REACH, size // (4 * parts))  # the places' surroundings do not meet
        return [
            _shortest_separator(self.keys_at(max(first, rank - 1 - reach), rank + 1 + reach))
            for rank in ranks
            if rank > first
        ]

    def _ranks(self, key_range: KeyRange, parts: int) -> tuple[list[int], int, int]:
        """Return the ranks that part a range, that of its first key, and its number of keys."""
        first = self.up_to(key_range.lower) >> COUNT_SHIFT
        size = (self.left_of(key_range.upper) >> COUNT_SHIFT) - first
        if size <= 0:
            return [], first, 0
        return sorted({first + i * size // parts for i in range(1, parts)}), first, size

    def _lanes_at(self, index: int) -> int:
        """Move within the leaf; return the lanes of all keys left of there."""
        at, leaf = self._at, self._leaf
        if index > at:
            if len(leaf) - index < index - at:
                self._lanes = self._above - leaf.lanes_between(index, len(leaf))
            else:
                self._lanes += leaf.lanes_between(at, index)
        elif index < at:
            if index < at - index:
                self._lanes = self._below + leaf.lanes_between(0, index)
            else:
                self._lanes -= leaf.lanes_between(index, at)
        self._at = index
        return self._lanes

    def _seek(self, bound: bytes, bisect: Bisect) -> int:
        """Move to the leaf of a bound; return the bound's index there."""
        if not self._covers(bound):
            near = self._near
            if near is not None and near._covers(bound):
                self._settle(near._leaf, near._below, near._above, near._start, near._end)
                self._at, self._lanes = near._at, near._lanes
            else:
                self._enter(bound)
        return bisect(self._leaf, bound)

    def _covers(self, bound: bytes) -> bool:
        """Tell whether a bound belongs to the leaf."""
        return (
            self._total is self._store.total
            and bound >= self._start
            and (self._end is None or bound < self._end)
        )

    def _enter(self, bound: bytes) -> None:
        """Move to the start of a bound's leaf, from the root."""
        node, below, above = self._store.root, 0, self._store.total
        start, end = b"", None
        while isinstance(node, Inner):
            index = bisect_right(node.bounds, bound, 1) - 1
            sums = node.sums or node.sum_up()
            below, above = below + sums[index], below + sums[index + 1]
            if index:
                start = node.bounds[index]
            if index + 1 < len(node):
                end = node.bounds[index + 1]
            node = node[index]
        self._settle(node, below, above, start, end)

    def _seek_rank(self, rank: int) -> int:
        """Move to the leaf of the key of a rank, which there must be; return its index there."""
        if self._total is self._store.total:
            index = rank - (self._below >> COUNT_SHIFT)
            if 0 <= index < len(self._leaf):
                return index
        node, below, above = self._store.root, 0, self._store.total
        start, end = b"", None
        while isinstance(node, Inner):
            sums = node.sums or node.sum_up()
            sought = rank - (below >> COUNT_SHIFT) << COUNT_SHIFT | LANES_MASK
            index = bisect_right(sums, sought) - 1
            below, above = below + sums[index], below + sums[index + 1]
            if index:
                start = node.bounds[index]
            if index + 1 < len(node):
                end = node.bounds[index + 1]
            node = node[index]
        self._settle(node, below, above, start, end)
        return rank - (below >> COUNT_SHIFT)

    def _settle(self, leaf: Leaf, below: int, above: int, start: bytes, end: bytes | None) -> None:
        self._total = self._store.total
        self._leaf, self._start, self._end = leaf, start, end
        self._below, self._above = below, above
        self._lanes = below
        self._at = 0


def _shortest_separator(keys: list[bytes]) -> bytes:
    """Return the first of the shortest separators between neighbours of some ascending keys."""
    shared = common_prefix(keys[0], keys[-1])  # as much as those two neighbours share
    if len(keys[0]) > shared:
        split = keys[0][: shared + 1]
        right = next(index for index, key in enumerate(keys) if key[: shared + 1] > split)
    else:
        right = 1  # the first key is a prefix of all others
    return separator(keys[right - 1], keys[right])
