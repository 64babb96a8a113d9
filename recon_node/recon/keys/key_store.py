"""The key store: a sorted set of keys that knows the hash and the size of every range.

Theory of operation
-------------------
A B+ tree (key_tree.py). Each node knows, for each of its children, the *lanes* of the keys below:
the sum of all digests with their number on top, in one integer (sha256a.py). So

- an insert adds one integer to each node on the way down from the root,
- the lanes of a range are the difference of those left of its two bounds: hash and count come out
  together, and what the ways to the two bounds have in common cancels out unread, and
- the key at a rank is found by the counts on top of the same integers.

All operations but iteration cost O(log n) node visits, each with a bounded amount of work.

Snapshots: a walk (``keys``, or iterating over the store) goes page by page. A page is taken at once
when its first key is asked for: keys of one leaf, all beyond the last key of the page before. The
store may change at any time between two keys. Then, of the keys in the walk's range,

- one that is there when the walk starts and stays is yielded exactly once,
- one that is added is yielded if and only if it lies beyond the last key of the page at hand (and
  is still there when its own page is taken),
- one that is discarded is yielded if and only if it lies in the page at hand or before,

and what is yielded ascends strictly, whatever happens. A walk holds no lock, and no copy but its
page; one that is given up costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from operator import lt

from recon_node.recon.keys import tree as key_tree
from recon_node.recon.keys.finger import Finger
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, Sha256a, spread
from recon_node.recon.keys.tree import Inner, Leaf, Node

LEAF_SIZE = 64
"""Keys in a leaf at most."""

FAN_OUT = 64
"""Children of an inner node at most."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a range holds: the hash of its keys, and how many they are."""

    hash: Sha256a
    count: int


class KeyStore:
    """A sorted set of byte-string keys with the Sha256a and the size of any range in O(log n).

    Not thread-safe: one thread (the event loop's) owns it. About 145 bytes a key, the key (62 bytes
    of an EventId) included.

    Args:
        keys: what the store holds at first; see ``load``.
        leaf_size: keys in a leaf at most; at least 2.
        fan_out: children of an inner node at most; at least 2.
    """

    __slots__ = ("_fan_out", "_leaf_size", "root", "total")

    def __init__(
        self, keys: Iterable[bytes] = (), *, leaf_size: int = LEAF_SIZE, fan_out: int = FAN_OUT
    ) -> None:
        if min(leaf_size, fan_out) < 2:
            raise ValueError(
                f"a node holds at least 2 entries: leaf_size {leaf_size}, fan_out {fan_out}"
            )
        self._leaf_size = leaf_size
        self._fan_out = fan_out
        self.root: Node = Leaf([], b"")
        """The tree, to be read by this floor alone."""
        self.total = 0
        """The lanes of all keys; every change of the store makes a new integer object."""
        self.load(keys)

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

    def load(self, keys: Iterable[bytes]) -> None:
        """Add many keys, in any order, repeated or not. Fast when the store is empty."""
        ordered = sorted(keys)
        if self.total:
            for key in ordered:
                self.add(key)
            return
        self._build(ordered)

    def load_digested(self, keys: list[bytes], digests: bytes) -> None:
        """Fill an empty store with keys and their sha2-256 digests, as ``leaves`` gave them.

        That saves the hashing. The digests are taken on trust.

        Raises:
            ValueError: the keys do not ascend, not one digest a key, or the store is not empty.
        """
        if self.total:
            raise ValueError("keys with digests can be loaded into an empty store only")
        if len(digests) != len(keys) * DIGEST_SIZE:
            raise ValueError(f"{len(keys)} keys, but {len(digests)} bytes of digests")
        if not all(map(lt, keys, islice(keys, 1, None))):
            raise ValueError("the keys do not ascend")
        self._build(keys, digests)

    def leaves(self) -> Iterator[tuple[list[bytes], bytes]]:
        """Yield all keys in order, in pages, each with its keys' sha2-256 digests end to end.

        The store must not change meanwhile.
        """
        for leaf in key_tree.leaves(self.root):
            yield leaf, leaf.digests

    def _build(self, ordered: list[bytes], digests: bytes | None = None) -> None:
        if ordered:
            # Room is left, so that the inserts that follow do not split every node at once.
            leaf_fill, inner_fill = (max(2, n * 2 // 3) for n in (self._leaf_size, self._fan_out))
            self.root = key_tree.build(ordered, leaf_fill, inner_fill, digests)
            self.total = self.root.lanes()

    def add(self, key: bytes) -> bool:
        """Add a key; return False when it was there."""
        digest = sha256(key).digest()
        lanes = spread(digest)
        # The lanes are added on the way down, and taken back in the rare case that nothing is new.
        leaf = key_tree.leaf_to_grow(self.root, key, lanes)
        at = bisect_left(leaf, key)
        if at < len(leaf) and leaf[at] == key:
            key_tree.leaf_to_grow(self.root, key, -lanes)
            return False
        leaf.insert_key(at, bytes(key), digest)
        self.total += lanes
        if len(leaf) > self._leaf_size:
            self._split(key)
        return True

    def discard(self, key: bytes) -> bool:
        """Take a key out; return False when it was not there. Rare, so leaves are not merged."""
        if key not in self:
            return False
        leaf, path = self._path_to(key)
        lanes = spread(leaf.delete_key(bisect_left(leaf, key)))
        self.total -= lanes
        for inner, index in path:
            inner.adjust(index, -lanes)
        node: Node = leaf
        while path and not node:
            node, index = path.pop()
            node.drop(index)
        if not node:
            self.root = Leaf([], b"")
        return True

    def summarize(self, key_range: KeyRange | None = None) -> Summary:
        """Return the Sha256a and the number of the keys in a range, or of all keys."""
        if key_range is None:
            lanes = self.total
        elif key_range.lower < key_range.upper:
            lanes = key_tree.lanes_between(self.root, *key_range)
        else:
            lanes = 0
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def count(self, key_range: KeyRange) -> int:
        """Return the number of keys in a range."""
        return max(0, self._rank(key_range.upper) - self._rank_after(key_range.lower))

    def middle(self, key_range: KeyRange) -> bytes | None:
        """Return the key that halves a range (the upper one of two), or None where it is empty."""
        pivots = self.split(key_range, 2)
        return pivots[0] if pivots else None

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return the ascending pivots, ``parts - 1`` of them, that cut a range into equal parts.

        A part lies between two pivots, which are in no part. A range of fewer keys gives all of
        them.
        """
        return self._select(self._places(key_range, parts)[0])

    def cut(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return ascending short strings that cut a range into ``parts`` parts of about equal size.

        They are no keys, so every key of the range is in one of the parts. Near each place that
        would make the parts equal, the shortest separator wins, as in a prefix B-tree (Bayer and
        Unterauer, 1977): it falls between two streams rather than into one.
        """
        return Finger(self).cut(key_range, parts)

    def first(self, key_range: KeyRange) -> bytes | None:
        """Return the first key of a range, or None where it is empty."""
        return next(self.keys(key_range, 1), None)

    def last(self, key_range: KeyRange) -> bytes | None:
        """Return the last key of a range, or None where it is empty."""
        end = self._rank(key_range.upper)
        if end <= self._rank_after(key_range.lower):
            return None
        return self._select([end - 1])[0]

    def keys(self, key_range: KeyRange, limit: int | None = None) -> Iterator[bytes]:
        """Iterate over the keys of a range in order, at most ``limit`` of them, lazily.

        The store may change meanwhile; what the walk then yields is said in the module's text.
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
        """Return the keys strictly between the bounds that stand in the first leaf that has any."""
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

    def _rank(self, bound: bytes) -> int:
        """Return the number of keys below a bound."""
        return key_tree.count_left_of(self.root, bound, bisect_left)

    def _rank_after(self, bound: bytes) -> int:
        """Return the number of keys up to a bound, the bound itself included."""
        return key_tree.count_left_of(self.root, bound, bisect_right)

    def _places(self, key_range: KeyRange, parts: int) -> tuple[list[int], int, int]:
        """Return the ranks that part a range, the rank of its first key, and its number of keys."""
        first = self._rank_after(key_range.lower)
        size = max(0, self._rank(key_range.upper) - first)
        places = sorted({first + i * size // parts for i in range(1, parts)}) if size else []
        return places, first, size

    def _select(self, ranks: list[int]) -> list[bytes]:
        """Return the keys at the given ascending ranks."""
        chosen: list[bytes] = []
        key_tree.select(self.root, ranks, chosen)
        return chosen

    def _path_to(self, key: bytes) -> tuple[Leaf, list[tuple[Inner, int]]]:
        """Return the leaf that a key belongs to, and the way there: nodes and child indices."""
        node, path = self.root, []
        while isinstance(node, Inner):
            index = node.child_of(key)
            path.append((node, index))
            node = node[index]
        return node, path

    def _split(self, key: bytes) -> None:
        """Split the overfull leaf of a key, and every ancestor that becomes overfull by it."""
        leaf, path = self._path_to(key)
        node: Node = leaf
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
