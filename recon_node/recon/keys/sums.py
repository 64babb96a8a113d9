"""The sums of a store: sketches (sketch.py) and LtHashes of the keys of a few ranges.

Theory of operation
-------------------
A sum is made by going through the keys, a group at a time, while the store may change. Keys that
come or go are noted in a journal. Before a sum is used, and whenever the journal is full, they are
added to it or taken out, if it has come past them by then: what lies ahead will be met on the way.
So a sum is always that of the keys that its range holds. Each sum has a part of its own in the
journal: the user of one does not wait for the others.

Those that are complete can be packed, and loaded with the same keys, which saves making them:

    kind, u8: 0 a sketch, 1 an LtHash | lengths of the bounds, u32 each | the bounds | the sum
    sketch: the sums of the symbols, u64 each | their checks, u32 | their counts, u8 | the table
    LtHash: number of keys, u64 | its lanes, u16 each

Integers are little-endian. A loaded sum must have as many keys as its range, and a sketch the sum
of their ids, both of which the tree knows.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Final, TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from recon_node.ipld import encode_varint
from recon_node.recon.keys.ids import groups
from recon_node.recon.keys.ordered_keys import KeyRange, OrderedKeys
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, id_sum
from recon_node.recon.keys.sketch import COUNTS, Sketch, ids_of

LANES: Final = 1024
LANES_SIZE: Final = 2 * LANES
"""Bytes of the lanes, which are little-endian."""
_EXPANDED: Final = 64
"""Keys that are expanded at a time: their lanes fit into a processor's cache."""

Lanes = NDArray[np.uint16]


class LtHash:
    """A hash of a set of keys that cannot be steered; the set changes. It takes 2 KiB.

    The hash of a set is the sum of the hashes of its keys, each of 1,024 lanes of 16 bits, modulo
    2^16: Bellare and Micciancio, "A New Paradigm for Collision-free Hashing" (EUROCRYPT 1997); with
    these numbers Lewi, Kim, Maykov and Weis, "Securing Update Propagation with Homomorphic Hashing"
    (IACR ePrint 2019/227), who expand each element by BLAKE2X and reckon with at least 200 bits of
    security. Whoever finds two sets with one hash solves a short integer solution problem in that
    lattice. In the eight lanes of Sha256a it takes minutes (Wagner, "A Generalized Birthday
    Problem", CRYPTO 2002).

    The lanes of a key are 2,048 bytes of output of BLAKE3 over its sha2-256 digest, which the tree
    has: 0.7 microseconds a key, a batch at a time.
    """

    SIZE: Final = 8 + LANES_SIZE
    """Bytes when it is packed."""

    __slots__ = ("_digest", "count", "lanes")

    def __init__(self) -> None:
        self.lanes: Lanes = np.zeros(LANES, np.uint16)
        self.count = 0
        self._digest: bytes | None = None

    @classmethod
    def of(cls, *keys: bytes) -> LtHash:
        """Return the hash of the set of these keys (each given once)."""
        made = cls()
        made.add(b"".join([sha256(key).digest() for key in keys]))
        return made

    def add(self, digests: bytes, signs: NDArray[np.int64] | None = None) -> None:
        """Add keys, given their sha2-256 digests end to end; a sign of -1 takes one out."""
        starts = range(0, len(digests), DIGEST_SIZE)
        added = [digests[at : at + DIGEST_SIZE] for at in starts]
        if signs is not None:
            signed = list(zip(added, signs.tolist(), strict=True))
            added = [digest for digest, sign in signed if sign > 0]
            taken = [digest for digest, sign in signed if sign < 0]
            for lanes in _sums(taken):
                self.lanes -= lanes
            self.count -= len(taken)
        for lanes in _sums(added):
            self.lanes += lanes
        self.count += len(added)
        self._digest = None

    def merge(self, other: LtHash) -> None:
        """Add the keys of another set, none of which this one has."""
        self._digest = None
        self.lanes += other.lanes
        self.count += other.count

    def copy(self) -> LtHash:
        """Return a copy, which stays as it is when this one changes."""
        made = LtHash()
        made.merge(self)
        return made

    def packed(self) -> bytes:
        """Return it as `unpacked` takes it."""
        return self.count.to_bytes(8, "little") + self.lanes.astype("<u2", copy=False).tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> LtHash:
        """Return the hash that was packed.

        Raises:
            ValueError: the data does not have `SIZE` bytes.
        """
        if len(data) != cls.SIZE:
            raise ValueError(f"a packed LtHash has {cls.SIZE} bytes, not {len(data)}")
        made = cls()
        made.count = int.from_bytes(data[:8], "little")
        made.lanes += np.frombuffer(data, "<u2", offset=8)
        return made

    def digest(self) -> bytes:
        """Return the 32 bytes that are compared: sha256(lanes || varint(count))."""
        if self._digest is None:
            hashed = sha256(self.lanes.astype("<u2", copy=False).data)
            hashed.update(encode_varint(self.count))
            self._digest = hashed.digest()
        return self._digest


def _sums(digests: list[bytes]) -> Iterator[Lanes]:
    """Yield sums of the lanes of some keys, a batch at a time."""
    for start in range(0, len(digests), _EXPANDED):
        batch = digests[start : start + _EXPANDED]
        expanded = [blake3(digest).digest(length=LANES_SIZE) for digest in batch]
        if len(expanded) == 1:  # as when a key is new: its lanes need no copy
            yield np.frombuffer(expanded[0], "<u2")
        else:
            lanes = np.frombuffer(b"".join(expanded), "<u2").reshape(-1, LANES)
            yield np.add.reduce(lanes, axis=0, dtype=np.uint16)


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


class _Kept:
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


class Sketches:
    """The sketches and LtHashes of one key store, which notes every change here."""

    __slots__ = ("_changed", "_digests", "_kept", "_signs", "summed")

    def __init__(self) -> None:
        self.summed = 0
        """What making sums has taken so far, in looks at a key."""
        self._kept: dict[tuple[type, KeyRange], _Kept] = {}
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

    def sketch(
        self, keys: OrderedKeys, key_range: KeyRange
    ) -> Generator[None, None, Sketch | None]:
        """Return the sketch of a range, made in steps of some milliseconds if there is none.

        It is right until the store changes. None if all slots are taken by sketches in the making.
        """
        return self._get(Sketch, MAX_SKETCHES, keys, key_range)

    def lthash(self, keys: OrderedKeys, key_range: KeyRange) -> Generator[None, None, LtHash]:
        """Return the LtHash of a range, likewise, which is not to be changed."""
        hashed: LtHash | None = None
        if (LtHash, key_range) in self._kept or keys.count(key_range) > _QUICKLY_HASHED:
            hashed = yield from self._get(LtHash, MAX_HASHES, keys, key_range)
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
        at, loaded = 0, dict[tuple[type, KeyRange], _Kept]()
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
            kept = loaded[kind, key_range] = _Kept(key_range, unpacked, len(self._signs))
            kept.done = True
        self._kept.update(loaded)

    def clear(self) -> None:
        """Forget all sums: the store was filled without noting each key."""
        self._kept.clear()
        self._forget_changes()

    def _get(
        self, kind: type[S], most: int, keys: OrderedKeys, key_range: KeyRange
    ) -> Generator[None, None, S | None]:
        name = kind, key_range
        while True:
            kept = self._kept.pop(name, None)  # it may have been forgotten meanwhile
            if kept is None:
                if not self._make_room(kind, most):
                    return None
                kept = _Kept(key_range, kind(), len(self._signs))
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

    def _note_use(self, used: _Kept) -> None:
        """Count a use; what was used long ago counts less and less."""
        used.uses += 1
        if used.uses >= _MANY_USES:
            for kept in self._kept.values():
                kept.uses //= 2

    def _settle(self, kept: _Kept) -> None:
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
