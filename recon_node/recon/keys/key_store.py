"""The key store: a sorted set of keys that knows the hash and the size of every range.

Theory of operation
-------------------
A B+ tree (tree.py). Each node stores, for each of its children, the *lanes* of the keys below: the
sum of all their digests with the number of keys on top, in one integer (sha256a.py). So

- an insert adds one integer to each node on the path from the root,
- the lanes of a range are the difference of the lanes left of its two bounds: hash and count come
  out together, and what the paths to the two bounds share cancels out unread, and
- the counts in the same integers lead to the key of a given rank.

All operations except iteration visit O(log n) nodes, with a bounded amount of work in each.

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
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from operator import lt
from typing import Final

from recon_node.recon.keys import tree as key_tree
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, Sha256a, spread, spread_run
from recon_node.recon.keys.sketch import Sketch
from recon_node.recon.keys.sketches import Sketches
from recon_node.recon.keys.tree import Inner, Leaf, TreeNode, even_ranks

LEAF_SIZE: Final = 64
"""Maximum keys in a leaf."""
FAN_OUT: Final = 64
"""Maximum children of an inner node."""
_MIN_ENTRIES: Final = 2
"""Fewest entries that a full node may have: it must be possible to split it."""
_LOADED_FILL: Final = 2 / 3
"""How full nodes are after a bulk load, so that the next inserts do not split every one of them."""

_SPARSE: Final = 16
"""Keys of a store for each new one among them, above which few of the new ones share a leaf."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The hash and the number of the keys in a range."""

    hash: Sha256a
    count: int


class KeyView:
    """A sorted set of keys to read from, which is all that anybody but its owner needs.

    Not thread-safe: one thread (the event loop's) owns it.
    """

    __slots__ = ("_sketches", "root", "total")

    def __init__(self) -> None:
        self.root: TreeNode = Leaf([], b"")
        """The tree, for ``Finger`` only."""
        self.total = 0
        """The lanes of all keys. Every change of the store makes a new integer object."""
        self._sketches = Sketches()

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
        return key_tree.lanes_between(self.root, *key_range)

    def sketch(self, key_range: KeyRange) -> Generator[None, None, Sketch | None]:
        """Return the sketch of the keys in a range, in steps; see ``Sketches.get``."""
        return self._sketches.get(self, key_range)

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


class KeyStore(KeyView):
    """A sorted set of byte-string keys with the Sha256a and the size of any range in O(log n).

    It takes about 145 bytes a key, including the 62 bytes of the key itself, an EventId.

    Args:
        keys: the keys to start with; see ``load``.
        leaf_size: most keys in a leaf; at least 2.
        fan_out: most children of an inner node; at least 2.

    Raises:
        ValueError: ``leaf_size`` or ``fan_out`` is less than 2.
    """

    __slots__ = ("_fan_out", "_leaf_size")

    def __init__(
        self, keys: Iterable[bytes] = (), *, leaf_size: int = LEAF_SIZE, fan_out: int = FAN_OUT
    ) -> None:
        if min(leaf_size, fan_out) < _MIN_ENTRIES:
            raise ValueError(
                f"leaf_size and fan_out must be at least {_MIN_ENTRIES}, "
                f"not {leaf_size} and {fan_out}"
            )
        self._leaf_size = leaf_size
        self._fan_out = fan_out
        super().__init__()
        self.load(keys)

    def load(self, keys: Iterable[bytes]) -> None:
        """Add many keys, in any order, duplicates allowed.

        If they lie so close together that several belong to the same leaf, these are added at once,
        in half the time of ``add``.
        """
        ordered = sorted(keys)
        if not self.total:
            self._build(ordered)
            return
        between = self.count(KeyRange(ordered[0], ordered[-1])) if ordered else 0
        if len(ordered) * _SPARSE < between:
            for key in ordered:
                self.add(key)
            return
        at = 0
        while at < len(ordered):
            at = self._add_run(ordered, at)

    def load_digested(self, keys: list[bytes], digests: bytes) -> None:
        """Fill an empty store with keys and their sha2-256 digests, as ``leaves`` yields them.

        This saves the hashing; the digests are trusted.

        Raises:
            ValueError: the keys do not ascend, there is not one digest for each key, or the store
                is not empty.
        """
        if self.total:
            raise ValueError("keys with digests can only be loaded into an empty store")
        if len(digests) != len(keys) * DIGEST_SIZE:
            raise ValueError(f"{len(keys)} keys, but {len(digests)} bytes of digests")
        if not all(map(lt, keys, islice(keys, 1, None))):
            raise ValueError("the keys do not ascend")
        self._build(keys, digests)

    def _build(self, ordered: list[bytes], digests: bytes | None = None) -> None:
        if ordered:
            leaf_fill, inner_fill = (
                max(_MIN_ENTRIES, int(size * _LOADED_FILL))
                for size in (self._leaf_size, self._fan_out)
            )
            self.root = key_tree.build(ordered, leaf_fill, inner_fill, digests)
            self.total = self.root.lanes()
            self._sketches.clear()

    def add(self, key: bytes) -> bool:
        """Add a key; return False if the store already holds it."""
        digest = sha256(key).digest()
        lanes = spread(digest)
        # Add the lanes on the way down, and subtract them again in the rare case of a known key.
        leaf = key_tree.leaf_to_grow(self.root, key, lanes)
        at = bisect_left(leaf, key)
        if at < len(leaf) and leaf[at] == key:
            key_tree.leaf_to_grow(self.root, key, -lanes)
            return False
        leaf.insert_key(at, bytes(key), digest)
        self.total += lanes
        self._sketches.note(key, digest, 1)
        if len(leaf) > self._leaf_size:
            self._split(key)
        return True

    def _add_run(self, ordered: list[bytes], at: int) -> int:
        """Add the keys from an index on that belong to one leaf; return the index after them."""
        first, until = ordered[at], at + self._leaf_size  # so that the leaf is split once at most
        leaf, path, end = self._way_to(first)
        if end is not None:
            until = bisect_left(ordered, end, at, min(until, len(ordered)))
        new, digests = leaf.insert_keys(ordered[at:until])
        if new:
            lanes = spread_run(b"".join(digests))
            self.total += lanes
            self._sketches.note_all(new, digests)
            for inner, index in path:
                inner.adjust(index, lanes)
            if len(leaf) > self._leaf_size:
                self._split(first)
        return until

    def discard(self, key: bytes) -> bool:
        """Remove a key; return False if the store does not hold it. Leaves are never merged."""
        if key not in self:
            return False
        leaf, path = self._path_to(key)
        digest = leaf.delete_key(bisect_left(leaf, key))
        lanes = spread(digest)
        self.total -= lanes
        for inner, index in path:
            inner.adjust(index, -lanes)
        node: TreeNode = leaf
        while path and not node:
            node, index = path.pop()
            node.drop(index)
        if not node:
            self.root = Leaf([], b"")
        self._sketches.note(key, digest, -1)
        return True

    def _path_to(self, key: bytes) -> tuple[Leaf, list[tuple[Inner, int]]]:
        """Return the leaf that a key belongs to, and the path there: nodes and child indices."""
        leaf, path, _ = self._way_to(key)
        return leaf, path

    def _way_to(self, key: bytes) -> tuple[Leaf, list[tuple[Inner, int]], bytes | None]:
        """Return the same, and the bound right of the leaf, or None for the last one."""
        node, path, end = self.root, [], None
        while isinstance(node, Inner):
            bounds = node.bounds
            index = bisect_right(bounds, key, 1)
            if index < len(bounds):
                end = bounds[index]
            path.append((node, index - 1))
            node = node[index - 1]
        return node, path, end

    def _split(self, key: bytes) -> None:
        """Split the overfull leaf of a key, and every ancestor that this makes overfull."""
        leaf, path = self._path_to(key)
        node: TreeNode = leaf
        while True:
            bound, right = node.split()
            if not path:
                break
            parent, index = path.pop()
            parent.adopt(index, bound, right)
            if len(parent) <= self._fan_out:
                return
            node = parent
        self.root = Inner([node, right], [b"", bound], [node.lanes(), right.lanes()])
