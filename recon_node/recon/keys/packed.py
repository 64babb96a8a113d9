"""Keys that stay where they were saved, in a mapped file, until somebody reads them.

To make ten million objects of bytes takes seconds, and 100 bytes each. Most leaves of a large store
are not looked into for a long time: what sessions compare are the sums of whole nodes. So a store
is loaded without making its keys. A `PackedLeaf` knows where its keys and their digests are. The
first time that a key is read it becomes an ordinary `Leaf`, which is what costs a loaded leaf
nothing.

    the length of each key, u16 | the keys, ascending | their sha2-256 digests

Integers are little-endian.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from mmap import mmap
from typing import Final, SupportsIndex, overload

import numpy as np

from recon_node.recon.keys.ordered_keys import Leaf, TreeNode, leaves_below, separator, stack
from recon_node.recon.keys.sha256a import DIGEST_SIZE, spread_runs

_LENGTH_SIZE: Final = 2


def pack(root: TreeNode) -> Iterator[bytes]:
    """Yield the keys of a tree as they are packed, in parts. The tree must not change meanwhile."""
    for leaf in leaves_below(root):
        if isinstance(leaf, PackedLeaf):
            yield leaf.pages.lengths(leaf.number)
        else:
            yield struct.pack(f"<{len(leaf)}H", *map(len, leaf))
    for leaf in leaves_below(root):
        yield leaf.pages.packed(leaf.number) if isinstance(leaf, PackedLeaf) else b"".join(leaf)
    for leaf in leaves_below(root):
        yield leaf.digests


class Pages:
    """Packed keys, which are trusted, in pages: the keys of one leaf each.

    Args:
        data: which has the keys.
        start: where they begin there.
        count: how many there are, at least one.
        size: keys of a page; the last one may have fewer.

    Raises:
        ValueError: the data is too short.
    """

    __slots__ = ("_count", "_data", "_digests", "_ends", "_lengths", "_size", "end")

    def __init__(self, data: bytes | mmap, start: int, count: int, size: int) -> None:
        self._data, self._count, self._size = data, count, size
        self._lengths = start
        """Where the lengths begin."""
        lengths = np.frombuffer(data, "<u2", count, start)
        sizes = np.add.reduceat(lengths, np.arange(0, count, size), dtype=np.int64)
        first = start + count * _LENGTH_SIZE
        self._ends: list[int] = [first, *(first + np.cumsum(sizes)).tolist()]
        """Where the keys of a page end; before the first, where they begin."""
        self._digests = self._ends[-1]
        """Where the digests begin."""
        self.end = self._digests + count * DIGEST_SIZE
        """Where the digests end, and with them the packed keys."""
        if self.end > len(data):
            raise ValueError("the data has no room for these keys and their digests")

    def tree(self, inner_fill: int) -> TreeNode:
        """Return a tree of all pages.

        Raises:
            ValueError: the keys do not ascend from page to page.
        """
        leaves: list[TreeNode] = [PackedLeaf(self, number) for number in range(len(self._ends) - 1)]
        lanes_of = spread_runs(memoryview(self._data)[self._digests : self.end], self._size)
        return stack(leaves, self._bounds(), lanes_of, inner_fill)

    def length(self, number: int) -> int:
        """Return the number of keys of a page."""
        return min(self._size, self._count - number * self._size)

    def lengths(self, number: int) -> bytes:
        """Return the lengths of the keys of a page, u16 each."""
        return self._slice(self._lengths, number, _LENGTH_SIZE)

    def packed(self, number: int) -> bytes:
        """Return the keys of a page, end to end."""
        return self._data[self._ends[number] : self._ends[number + 1]]

    def digests(self, number: int) -> bytes:
        """Return the digests of the keys of a page, end to end."""
        return self._slice(self._digests, number, DIGEST_SIZE)

    def keys(self, number: int) -> list[bytes]:
        """Return the keys of a page."""
        lengths, count = self.lengths(number), self.length(number)
        if lengths == lengths[:_LENGTH_SIZE] * count:  # as nearly all are: five times as fast
            same = _same_lengths(int.from_bytes(lengths[:_LENGTH_SIZE], "little"), count)
            return [*same.unpack_from(self._data, self._ends[number])]
        packed = self.packed(number)
        ends = accumulate(struct.unpack(f"<{count}H", lengths), initial=0)
        return [packed[start:end] for start, end in pairwise(ends)]

    def _slice(self, begin: int, number: int, size: int) -> bytes:
        """Return what a page has of a column with `size` bytes for each key."""
        start = number * self._size
        return self._data[begin + start * size : begin + (start + self.length(number)) * size]

    def _bounds(self) -> list[bytes]:
        """Return a bound between each two pages, and none before the first."""
        data, bounds = self._data, [b""]
        lengths = np.frombuffer(data, "<u2", self._count, self._lengths)
        before, after = lengths[self._size - 1 :: self._size], lengths[self._size :: self._size]
        ends = self._ends[1:-1]
        for at, left, right in zip(ends, before.tolist(), after.tolist(), strict=False):
            last, first = data[at - left : at], data[at : at + right]
            if last >= first:
                raise ValueError("the keys do not ascend")
            bounds.append(separator(last, first))
        return bounds


class PackedLeaf(Leaf):
    """A leaf whose keys are still packed. Reading one of them makes it a `Leaf`.

    It can be asked for its length, for keys by index or in turn, and so by `bisect`, and for the
    digests. Whoever changes a leaf has searched it before.
    """

    __slots__ = ()

    def __init__(self, pages: Pages, number: int) -> None:
        self.pages = pages
        self.number = number

    def __len__(self) -> int:
        return self.pages.length(self.number)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> bytes: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[bytes]: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> bytes | list[bytes]:
        return self._unpacked()[index]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._unpacked())

    def __getattr__(self, name: str) -> bytes:
        """Return the digests, which only an ordinary leaf has as an attribute."""
        if name != "digests":
            raise AttributeError(name)
        return self.pages.digests(self.number)

    def _unpacked(self) -> Leaf:
        keys, digests = self.pages.keys(self.number), self.digests
        del self.pages
        self.__class__ = Leaf  # type: ignore[assignment]  # no other leaf pays for a check
        Leaf.__init__(self, keys, digests)
        return self


@lru_cache(maxsize=64)
def _same_lengths(length: int, number: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * number)
