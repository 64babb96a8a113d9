"""The key store: a sorted set of keys that knows the hash and the size of every range.

Theory of operation
-------------------
A B+ tree (ordered_keys.py). Each node stores, for each of its children, the *lanes* of the keys
below: the sum of all their digests with the number of keys on top, in one integer (sha256a.py). So

- an insert adds one integer to each node on the path from the root,
- the lanes of a range are the difference of the lanes left of its two bounds: hash and count come
  out together, and what the paths to the two bounds share cancels out unread, and
- the counts in the same integers lead to the key of a given rank.

All operations except iteration visit O(log n) nodes, with a bounded amount of work in each.
What can be read, and what a walk yields while the store changes, is in ordered_keys.py; the sums of
a few ranges that sessions need beside, in kept_sums.py.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from hashlib import sha256
from mmap import mmap
from typing import ClassVar, Final

from recon_node.base.steps import Steps
from recon_node.recon.keys.kept_sums import HASH_COST, KeptSums
from recon_node.recon.keys.ordered_keys import (
    Inner,
    KeyRange,
    Leaf,
    OrderedKeys,
    TreeNode,
    build,
    hashed_leaves,
    leaf_to_grow,
)
from recon_node.recon.keys.packed import Pages, pack
from recon_node.recon.keys.sha256a import lanes_of, spread, spread_run

LEAF_SIZE: Final = 64
"""Maximum keys in a leaf."""
FAN_OUT: Final = 64
"""Maximum children of an inner node."""
_MIN_ENTRIES: Final = 2
"""Fewest entries that a full node may have: it must be possible to split it."""
_LOADED_FILL: Final = 2 / 3
"""How full nodes are after a bulk load, so that the next inserts do not split every one of them."""

_SALTED_PER_STEP: Final = 1000
"""Keys that are hashed with a salt between two yields."""
_SPARSE: Final = 16
"""Keys of a store for each new one among them, above which few of the new ones share a leaf."""


class KeyView(OrderedKeys):
    """A key store to read from, which is all that anybody but its owner needs."""

    __slots__ = ("session_cost", "sums")

    def __init__(self) -> None:
        super().__init__()
        self.sums = KeptSums(self)
        self.session_cost = 0
        """What single sessions have cost so far, in looks at a key: hashing keys with a salt, or
        those that were left out, and looking for ids."""

    def packed(self) -> Iterator[bytes]:
        """Yield all keys as `KeyStore.load_packed` takes them, in parts.

        The store must not change meanwhile.
        """
        return pack(self.root)

    def salted_lanes(self, key_range: KeyRange, salt: bytes, *, with_lower: bool) -> Steps[int]:
        """Return the lanes of the keys in a range, each preceded by a salt, in steps.

        The lower bound is in it only if asked for.
        """
        lower = key_range.lower
        lanes = lanes_of(salt + lower) if with_lower and lower in self else 0
        for number, key in enumerate(self.keys(key_range)):
            if number % _SALTED_PER_STEP == _SALTED_PER_STEP - 1:
                yield
            lanes += lanes_of(salt + key)
            self.session_cost += HASH_COST
        return lanes


class KeyStore(KeyView):
    """A sorted set of byte-string keys with the Sha256a and the size of any range in O(log n).

    It takes about 145 bytes a key, including the 62 bytes of the key itself, an EventId; 11 as long
    as the key is packed. It starts with some keys, see `load`.
    """

    __slots__ = ()

    _leaf_size: ClassVar = LEAF_SIZE
    _fan_out: ClassVar = FAN_OUT

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        super().__init__()
        self.load(keys)

    def load(self, keys: Iterable[bytes]) -> None:
        """Add many keys, in any order, duplicates allowed.

        If they lie so close together that several belong to the same leaf, these are added at once,
        in half the time of `add`.
        """
        ordered = sorted(keys)
        if not self.lanes_of_all and ordered:
            self._plant(build(hashed_leaves(ordered, self._leaf_fill), self._inner_fill))
            return
        if len(ordered) <= 1 or len(ordered) * _SPARSE < self.count(
            KeyRange(ordered[0], ordered[-1])
        ):
            for key in ordered:
                self.add(key)
            return
        at = 0
        while at < len(ordered):
            at = self._add_run(ordered, at)

    def load_packed(self, data: bytes | mmap, start: int, count: int) -> int:
        """Fill an empty store with keys that were packed (packed.py): that many, from `start` on.

        They are trusted to be what `KeyView.packed` has yielded, and stay in `data` until they are
        read. So the time that this takes is that of one key in 42.

        Returns:
            Where the packed keys end.

        Raises:
            ValueError: the data cannot be that many packed keys, or the store is not empty.
        """
        if self.lanes_of_all:
            raise ValueError("packed keys can only be loaded into an empty store")
        if not count:
            return start
        pages = Pages(data, start, count, self._leaf_fill)
        self._plant(pages.tree(self._inner_fill))
        return pages.end

    @property
    def _leaf_fill(self) -> int:
        return max(_MIN_ENTRIES, int(self._leaf_size * _LOADED_FILL))

    @property
    def _inner_fill(self) -> int:
        return max(_MIN_ENTRIES, int(self._fan_out * _LOADED_FILL))

    def _plant(self, root: TreeNode) -> None:
        self.root = root
        self.lanes_of_all = root.lanes()
        self.sums.clear()

    def add(self, key: bytes) -> bool:
        """Add a key; return False if the store already holds it."""
        digest = sha256(key).digest()
        lanes = spread(digest)
        # Add the lanes on the way down, and subtract them again in the rare case of a known key.
        leaf = leaf_to_grow(self.root, key, lanes)
        at = bisect_left(leaf, key)
        if at < len(leaf) and leaf[at] == key:
            leaf_to_grow(self.root, key, -lanes)
            return False
        leaf.insert_key(at, bytes(key), digest)
        self.lanes_of_all += lanes
        if self.sums.kept:
            self.sums.note(key, digest, 1)
        if len(leaf) > self._leaf_size:
            self._split(key)
        return True

    def _add_run(self, ordered: list[bytes], at: int) -> int:
        """Add the keys from an index on that belong to one leaf; return the index after them."""
        first, until = ordered[at], at + self._leaf_size  # so that the leaf is split once at most
        leaf, path, end = self._path_to(first)
        if end is not None:
            until = bisect_left(ordered, end, at, min(until, len(ordered)))
        new, digests = leaf.insert_keys(ordered[at:until])
        if new:
            lanes = spread_run(b"".join(digests))
            self.lanes_of_all += lanes
            if self.sums.kept:
                self.sums.note_all(new, digests)
            for inner, index in path:
                inner.adjust(index, lanes)
            if len(leaf) > self._leaf_size:
                self._split(first)
        return until

    def discard(self, key: bytes) -> bool:
        """Remove a key; return False if the store does not hold it. Leaves are never merged."""
        if key not in self:
            return False
        leaf, path, _ = self._path_to(key)
        digest = leaf.delete_key(bisect_left(leaf, key))
        lanes = spread(digest)
        self.lanes_of_all -= lanes
        for inner, index in path:
            inner.adjust(index, -lanes)
        node: TreeNode = leaf
        while path and not node:
            node, index = path.pop()
            node.drop(index)
        if not node:
            self.root = Leaf([], b"")
        if self.sums.kept:
            self.sums.note(key, digest, -1)
        return True

    def _path_to(self, key: bytes) -> tuple[Leaf, list[tuple[Inner, int]], bytes | None]:
        """Return the leaf that a key belongs to, the path there (nodes and child indices), and the
        bound right of the leaf, or None for the last one."""
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
        leaf, path, _ = self._path_to(key)
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
