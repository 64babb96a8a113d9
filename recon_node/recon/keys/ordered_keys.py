"""What can be read from a key store: keys in order, and the hash and size of any range.

Iterating while the store changes: a walk (``keys``, or iterating over the store) goes page by page.
A page is copied when its first key is asked for: the keys of one leaf that lie beyond the last key
of the page before. The store may change between any two keys. Of the keys in the walk's range,

- one that stays in the store during the whole walk is yielded exactly once,
- one that is added is yielded if and only if it lies beyond the last key of the current page (and
  is still in the store when its own page is copied),
- one that is discarded is yielded if and only if it lies in the current page or an earlier one,

and the keys always come in strictly ascending order. A walk holds no lock and copies nothing but
its page; abandoning one costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from recon_node.recon.keys import tree as key_tree
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, Sha256a
from recon_node.recon.keys.tree import Inner, Leaf, TreeNode, even_ranks


@dataclass(frozen=True, slots=True)
class Summary:
    """The hash and the number of the keys in a range."""

    hash: Sha256a
    count: int


class OrderedKeys:
    """A sorted set of keys to read from.

    Not thread-safe: one thread (the event loop's) owns it.
    """

    __slots__ = ("root", "total")

    def __init__(self) -> None:
        self.root: TreeNode = Leaf([], b"")
        """The tree, for this package only."""
        self.total = 0
        """The lanes of all keys. Every change of the store makes a new integer object."""

    def __len__(self) -> int:
        return self.total >> COUNT_SHIFT

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes):
            return False
        leaf = key_tree.leaf_of(self.root, key)
        index = bisect_left(leaf, key)
        return index < len(leaf) and leaf[index] == key

    def __iter__(self) -> Iterator[bytes]:
        page = list(key_tree.leaf_of(self.root, b""))
        while page:
            yield from page
            page = self._page(page[-1])

    def leaves(self) -> Iterator[tuple[list[bytes], bytes]]:
        """Yield all keys in order, in pages, each with the sha2-256 digests of its keys end to end.

        The store must not change meanwhile.
        """
        for leaf in key_tree.leaves_below(self.root):
            yield leaf, leaf.digests

    def summarize(self, key_range: KeyRange | None = None) -> Summary:
        """Return the Sha256a and the number of the keys in a range, or of all keys."""
        lanes = self.total if key_range is None else self.lanes(key_range)
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def lanes(self, key_range: KeyRange) -> int:
        """Return the lanes of the keys in a range: their hash, unfolded, and their number."""
        if key_range.is_empty:
            return 0
        if self._all_in(key_range):
            return self.total
        return key_tree.lanes_between(self.root, *key_range)

    def count(self, key_range: KeyRange) -> int:
        """Return the number of keys in a range."""
        start, end = self._ranks(key_range)
        return end - start

    def middle(self, key_range: KeyRange) -> bytes | None:
        """Return the key that halves a range (the upper one of two), or None if it is empty."""
        return next(iter(self.split(key_range, 2)), None)

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return the keys that divide a range into parts of equal size.

        Args:
            key_range: open at both ends.
            parts: how many parts, at least 2.

        Returns:
            ``parts - 1`` keys of the range, ascending, or all its keys if it has fewer. They
            belong to none of the parts.
        """
        pivots: list[bytes] = []
        key_tree.select(self.root, even_ranks(*self._ranks(key_range), parts), pivots)
        return pivots

    def first(self, key_range: KeyRange) -> bytes | None:
        """Return the first key of a range, or None if it is empty."""
        return next(self.keys(key_range, 1), None)

    def last(self, key_range: KeyRange) -> bytes | None:
        """Return the last key of a range, or None if it is empty."""
        start, end = self._ranks(key_range)
        last: list[bytes] = []
        key_tree.select(self.root, [end - 1] if start < end else [], last)
        return last[0] if last else None

    def nth(self, key_range: KeyRange, index: int) -> bytes:
        """Return the key of a range that has ``index`` keys of the range before it.

        Raises:
            IndexError: the range has no such key.
        """
        start, end = self._ranks(key_range)
        if not 0 <= index < end - start:
            raise IndexError(f"no key {index} among the {max(0, end - start)} of the range")
        found: list[bytes] = []
        key_tree.select(self.root, [start + index], found)
        return found[0]

    def keys(self, key_range: KeyRange, limit: int | None = None) -> Iterator[bytes]:
        """Iterate over the keys of a range in order, at most ``limit`` of them, lazily.

        The store may change meanwhile; the module docstring says what the walk then yields.
        """
        after, left = key_range.lower, limit
        while left is None or left > 0:
            page = self._page(after, key_range.upper)
            if left is not None:
                del page[left:]
                left -= len(page)
            if not page:
                return
            yield from page
            after = page[-1]

    def _all_in(self, key_range: KeyRange) -> bool:
        """Return whether a range has all keys, as that of a node without interests has."""
        lower, upper = key_range
        first = last = self.root
        while isinstance(first, Inner):
            first = first[0]
        if not first or first[0] <= lower:
            return False
        while isinstance(last, Inner):
            last = last[-1]
        return last[-1] < upper

    def _page(self, after: bytes, upper: bytes | None = None) -> list[bytes]:
        """Return the keys strictly between two bounds from the first leaf that has any."""
        node, leaf_end = self.root, None
        while isinstance(node, Inner):
            index = node.child_of(after)
            if index + 1 < len(node):
                leaf_end = node.bounds[index + 1]
            node = node[index]
        start = bisect_right(node, after)
        if start == len(node) and leaf_end is not None:
            node, start = key_tree.leaf_of(self.root, leaf_end), 0
        return node[start:] if upper is None else node[start : bisect_left(node, upper, start)]

    def _ranks(self, key_range: KeyRange) -> tuple[int, int]:
        """Return the rank of the first key of a range, and that behind its last key."""
        start = key_tree.count_left_of(self.root, key_range.lower, bisect_right)
        return start, max(start, key_tree.count_left_of(self.root, key_range.upper, bisect_left))
