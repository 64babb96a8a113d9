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
What can be read, and what a walk yields while the store changes, is in ordered_keys.py.

Kept sums
---------
Sessions also need sketches and LtHashes (sums.py) of the keys of a few ranges, which are kept. A
sum is made by going through the keys, a group at a time, while the store may change. Keys that come
or go are noted in a journal. Before a sum is used, and whenever the journal is full, they are added
to it or taken out, if it has come past them by then: what lies ahead will be met on the way. So a
sum is always that of the keys that its range holds. Each sum has a part of its own in the journal:
the user of one does not wait for the others.

Those that are complete can be packed, and loaded with the same keys, which saves making them:

    kind, u8: 0 a sketch, 1 an LtHash | lengths of the bounds, u32 each | the bounds | the sum
    sketch: the sums of the symbols, u64 each | their checks, u32 | their counts, u8 | the table
    LtHash: number of keys, u64 | its lanes, u16 each

Integers are little-endian. A loaded sum must have as many keys as its range, and a sketch the sum
of their ids, both of which the tree knows.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from mmap import mmap
from typing import Final, TypeVar

import numpy as np

from recon_node.base.steps import Steps
from recon_node.recon.keys.lookups import groups
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
from recon_node.recon.keys.sha256a import COUNT_SHIFT, id_sum, lanes_of, spread, spread_run
from recon_node.recon.keys.sums import COUNTS, LtHash, Sketch, ids_of

LEAF_SIZE: Final = 64
"""Maximum keys in a leaf."""
FAN_OUT: Final = 64
"""Maximum children of an inner node."""
_MIN_ENTRIES: Final = 2
"""Fewest entries that a full node may have: it must be possible to split it."""
_LOADED_FILL: Final = 2 / 3
"""How full nodes are after a bulk load, so that the next inserts do not split every one of them."""

_SALTED_A_STEP: Final = 1000
"""Keys that are hashed with a salt between two yields."""
_SPARSE: Final = 16
"""Keys of a store for each new one among them, above which few of the new ones share a leaf."""


class KeyView(OrderedKeys):
    """A key store to read from, which is all that anybody but its owner needs."""

    __slots__ = ("_sums", "salted")

    def __init__(self) -> None:
        super().__init__()
        self._sums = _KeptSums()
        self.salted = 0
        """What hashing keys with salts has taken so far, in looks at a key."""

    def packed(self) -> Iterator[bytes]:
        """Yield all keys as `KeyStore.load_packed` takes them, in parts.

        The store must not change meanwhile.
        """
        return pack(self.root)

    def packed_sums(self) -> bytes:
        """Return the sums of ranges that are complete, as `KeyStore.load_sums` takes them."""
        return self._sums.packed()

    def sketch(self, key_range: KeyRange) -> Steps[Sketch | None]:
        """Return the sketch of a range, made in steps of some milliseconds if there is none.

        It is right until the store changes. None if all slots are taken by sketches in the making.
        """
        return self._sums.get(Sketch, MAX_SKETCHES, self, key_range)

    @property
    def summed(self) -> int:
        """What making sketches and LtHashes has taken so far, in looks at a key."""
        return self._sums.summed

    def lthash(self, key_range: KeyRange) -> Steps[LtHash]:
        """Return the LtHash of a range, likewise, which is not to be changed."""
        return self._sums.lthash(self, key_range)

    def salted_lanes(self, key_range: KeyRange, salt: bytes, *, with_lower: bool) -> Steps[int]:
        """Return the lanes of the keys in a range, each preceded by a salt, in steps.

        The lower bound is in it only if asked for.
        """
        lower = key_range.lower
        lanes = lanes_of(salt + lower) if with_lower and lower in self else 0
        for number, key in enumerate(self.keys(key_range)):
            if number % _SALTED_A_STEP == _SALTED_A_STEP - 1:
                yield
            lanes += lanes_of(salt + key)
            self.salted += LOOKS
        return lanes


class KeyStore(KeyView):
    """A sorted set of byte-string keys with the Sha256a and the size of any range in O(log n).

    It takes about 145 bytes a key, including the 62 bytes of the key itself, an EventId; 11 as long
    as the key is packed.

    Args:
        keys: the keys to start with; see `load`.
        leaf_size: most keys in a leaf; at least 2.
        fan_out: most children of an inner node; at least 2.

    Raises:
        ValueError: `leaf_size` or `fan_out` is less than 2.
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

    def load_sums(self, data: bytes) -> None:
        """Take over the sums of the same keys that `KeyView.packed_sums` returned.

        Raises:
            ValueError: the data cannot be packed sums of these keys. None of them is used.
        """
        self._sums.load(data, self)

    @property
    def _leaf_fill(self) -> int:
        return max(_MIN_ENTRIES, int(self._leaf_size * _LOADED_FILL))

    @property
    def _inner_fill(self) -> int:
        return max(_MIN_ENTRIES, int(self._fan_out * _LOADED_FILL))

    def _plant(self, root: TreeNode) -> None:
        self.root = root
        self.lanes_of_all = root.lanes()
        self._sums.clear()

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
        self._sums.note(key, digest, 1)
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
            self.lanes_of_all += lanes
            self._sums.note_all(new, digests)
            for inner, index in path:
                inner.adjust(index, lanes)
            if len(leaf) > self._leaf_size:
                self._split(first)
        return until

    def discard(self, key: bytes) -> bool:
        """Remove a key; return False if the store does not hold it. Leaves are never merged."""
        if key not in self:
            return False
        leaf, path, _ = self._way_to(key)
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
        self._sums.note(key, digest, -1)
        return True

    def _way_to(self, key: bytes) -> tuple[Leaf, list[tuple[Inner, int]], bytes | None]:
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
        leaf, path, _ = self._way_to(key)
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


MAX_SKETCHES: Final = 4
"""Sketches that a store keeps, those that were used most of late; each takes half a MB."""
MAX_HASHES: Final = 64
"""LtHashes that a store keeps, likewise; each takes 2 KiB."""
_MANY_USES: Final = 64
"""Uses of a sum after which all are counted half."""
_GROUPS: Final = 4
"""Groups of keys that are added to a sketch at once: a key takes half as long as in single ones."""
_QUICKLY_HASHED: Final = 256
"""Keys up to which a range is hashed whenever that is asked for: in 0.2 ms."""
_BATCH: Final = 2048
"""Changes that are collected before they are added to the sums."""

LOOKS: Final = 80
"""How many times as long it takes to add a key to a sum as to look at its id, which is 10 ns."""

_KINDS: Final = (Sketch, LtHash)
"""The kinds of sums, by their numbers when they are packed."""
_HEAD: Final = struct.Struct("<BII")

S = TypeVar("S", Sketch, LtHash)


class _KeptSum:
    """A sum of the keys of a range, up to a bound while it is being made."""

    __slots__ = ("done", "key_range", "noted", "reached", "sum", "uses")

    def __init__(self, key_range: KeyRange, empty: Sketch | LtHash, noted: int) -> None:
        self.key_range = key_range
        self.sum = empty
        self.noted = noted
        """Changes of the journal that have been made in it."""
        self.reached = key_range.lower
        """The last key that was added on the way through the range."""
        self.done = False
        self.uses = 0
        """How often it was asked for, of late."""

    def passed(self, changed: list[bytes]) -> Sequence[int]:
        """Return the indices of the keys whose changes have to be made."""
        lower, upper = self.key_range
        if self.done and lower < min(changed) and max(changed) < upper:  # the usual case
            return range(len(changed))
        keys = enumerate(changed)
        return [n for n, key in keys if lower < key < upper and (self.done or key <= self.reached)]

    def extend(self, keys: OrderedKeys) -> int:
        """Add the next keys of the range; return what it took, in looks at a key."""
        rest = KeyRange(self.reached, self.key_range.upper)
        number = _GROUPS if isinstance(self.sum, Sketch) else 1
        following = list(islice(groups(keys, rest), number))
        if not following:
            self.done = True
            return 0
        if isinstance(self.sum, Sketch):
            self.sum.add(np.concatenate([group.ids for group in following]))
        else:
            self.sum.add(following[0].digests())
        self.reached = following[-1].last_key()
        return LOOKS * sum(len(group.ids) for group in following)


class _KeptSums:
    """The sketches and LtHashes of one key store, which notes every change here."""

    __slots__ = ("_changed", "_digests", "_kept", "_signs", "summed")

    def __init__(self) -> None:
        self.summed = 0
        """What making sums has taken so far, in looks at a key."""
        self._kept: dict[tuple[type, KeyRange], _KeptSum] = {}
        # Lists of bytes, because the garbage collector would visit tuples.
        self._changed: list[bytes] = []
        self._digests: list[bytes] = []
        self._signs: list[int] = []

    def note(self, key: bytes, digest: bytes, sign: int) -> None:
        """Note that a key was added (sign 1) or discarded (-1)."""
        if self._kept:
            self._changed.append(key)
            self._digests.append(digest)
            self._signs.append(sign)
            if len(self._signs) >= _BATCH:
                self._settle_all()

    def note_all(self, keys: list[bytes], digests: list[bytes]) -> None:
        """Note that some keys were added."""
        if self._kept:
            self._changed += keys
            self._digests += digests
            self._signs += [1] * len(keys)
            if len(self._signs) >= _BATCH:
                self._settle_all()

    def lthash(self, keys: OrderedKeys, key_range: KeyRange) -> Steps[LtHash]:
        """Return the LtHash of a range of these keys, in steps."""
        hashed: LtHash | None = None
        if (LtHash, key_range) in self._kept or keys.count(key_range) > _QUICKLY_HASHED:
            hashed = yield from self.get(LtHash, MAX_HASHES, keys, key_range)
        if hashed is None:  # there are few keys, or all slots are taken
            hashed = LtHash()
            for group in groups(keys, key_range):
                hashed.add(group.digests())
                self.summed += LOOKS * len(group.ids)
                if hashed.count > _QUICKLY_HASHED:
                    yield
        return hashed

    def packed(self) -> bytes:
        """Return the sums that are complete, as `load` takes them; nothing if there are none."""
        self._settle_all()
        parts: list[bytes] = []
        for (kind, (lower, upper)), kept in self._kept.items():
            if kept.done:
                head = _HEAD.pack(_KINDS.index(kind), len(lower), len(upper))
                parts += (head, lower, upper, kept.sum.packed())
        return b"".join(parts)

    def load(self, data: bytes, keys: OrderedKeys) -> None:
        """Take over sums of these keys that were packed.

        Raises:
            ValueError: the data cannot be packed sums of these keys. None of them is used.
        """
        at, loaded = 0, dict[tuple[type, KeyRange], _KeptSum]()
        while at < len(data):
            try:
                number, *lengths = _HEAD.unpack_from(data, at)
                kind = _KINDS[number]
            except (struct.error, IndexError):
                raise ValueError("these are not packed sums") from None
            at += _HEAD.size
            middle, end = at + lengths[0], at + sum(lengths)
            key_range = KeyRange(data[at:middle], data[middle:end])
            at = end + kind.SIZE
            unpacked = kind.unpacked(data[end:at])
            if not _fits(unpacked, keys.lanes(key_range)):
                raise ValueError("they are not the sums of these keys")
            kept = loaded[kind, key_range] = _KeptSum(key_range, unpacked, len(self._signs))
            kept.done = True
        self._kept.update(loaded)

    def clear(self) -> None:
        """Forget all sums: the store was filled without noting each key."""
        self._kept.clear()
        self._forget_changes()

    def get(
        self, kind: type[S], most: int, keys: OrderedKeys, key_range: KeyRange
    ) -> Steps[S | None]:
        """Return a sum of a range of these keys, in steps; None if `most` are in the making."""
        name = kind, key_range
        while True:
            kept = self._kept.pop(name, None)  # it may have been forgotten meanwhile
            if kept is None:
                if not self._make_room(kind, most):
                    return None
                kept = _KeptSum(key_range, kind(), len(self._signs))
            self._kept[name] = kept  # as the latest
            self._settle(kept)
            if kept.done:
                assert isinstance(kept.sum, kind)
                self._note_use(kept)
                return kept.sum
            self.summed += kept.extend(keys)
            yield

    def _make_room(self, kind: type, most: int) -> bool:
        of_kind = [name for name in self._kept if name[0] is kind]
        if len(of_kind) < most:
            return True
        done = [name for name in of_kind if self._kept[name].done]
        if not done:
            return False
        # Of those that were used as seldom, the one used the longest ago.
        del self._kept[min(done, key=lambda name: self._kept[name].uses)]
        return True

    def _note_use(self, used: _KeptSum) -> None:
        """Count a use; what was used long ago counts less and less."""
        used.uses += 1
        if used.uses >= _MANY_USES:
            for kept in self._kept.values():
                kept.uses //= 2

    def _settle(self, kept: _KeptSum) -> None:
        """Make the changes in a sum that were noted since it was used last."""
        if kept.noted == len(self._signs):
            return
        start, kept.noted = kept.noted, len(self._signs)
        passed = kept.passed(self._changed[start:])
        if not passed:
            return
        digests = b"".join([self._digests[start + index] for index in passed])
        taken = [self._signs[start + index] for index in passed]
        signs = np.array(taken, np.int64) if -1 in taken else None
        if isinstance(kept.sum, Sketch):
            kept.sum.add(ids_of(digests), signs)
        else:
            kept.sum.add(digests, signs)

    def _settle_all(self) -> None:
        for kept in self._kept.values():
            self._settle(kept)
            kept.noted = 0
        self._forget_changes()

    def _forget_changes(self) -> None:
        for column in (self._changed, self._digests, self._signs):
            column.clear()


def _fits(made: Sketch | LtHash, lanes: int) -> bool:
    """Return whether a sum may be that of the keys of a range, given their lanes."""
    count = lanes >> COUNT_SHIFT
    if isinstance(made, LtHash):
        return made.count == count
    ids, _, counts = made.symbols
    return int(counts[0]) == count % COUNTS and int(ids[0]) == id_sum(lanes)
