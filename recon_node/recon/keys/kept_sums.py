"""Sums of the keys of a few ranges, kept up to date: the sketches and LtHashes that sessions need.

Theory of operation
-------------------
A sum is made by going through the keys, a group at a time, while the store may change.
Keys that come or go are noted in a journal. Before a sum is used, and whenever the journal is full,
they are added to it or taken out, if it has come past them by then: what lies ahead will be met on
the way. So a sum is always that of the keys that its range holds. Each sum has a part of its own in
the journal: the user of one does not wait for the others.

Those that are complete can be packed, and loaded with the same keys, which saves making them:

    kind, u8: 0 a sketch, 1 an LtHash | lengths of the bounds, u32 each | the bounds | the sum
    sketch: the sums of the symbols, u64 each | their checks, u32 | their counts, u8 | the table
    LtHash: number of keys, u64 | its lanes, u16 each

Integers are little-endian. A loaded sum must have as many keys as its range, and a sketch the sum
of their ids, both of which the tree knows.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeVar

import numpy as np

from recon_node.base.steps import Steps
from recon_node.recon.keys.key_hashes import LtHash, ids_of
from recon_node.recon.keys.lookups import groups
from recon_node.recon.keys.ordered_keys import KeyRange, OrderedKeys
from recon_node.recon.keys.sha256a import COUNT_SHIFT, id_sum
from recon_node.recon.keys.sketch import COUNTS, Sketch

MAX_SKETCHES: Final = 4
"""Maximum sketches that a store keeps: those of most worth. Each takes half a MB."""
MAX_HASHES: Final = 64
"""Maximum LtHashes that a store keeps. Each takes 2 KiB."""
_MANY_USES: Final = 64
"""Uses of a sum after which all are counted half."""
_GROUPS: Final = 4
"""Groups of keys that are added to a sketch at once: a key takes half as long as in single ones."""
_QUICKLY_HASHED: Final = 256
"""Keys up to which a range is hashed whenever that is asked for: in 0.2 ms."""
_BATCH: Final = 2048
"""Changes that are collected before they are added to the sums."""

HASH_COST: Final = 80
"""The cost of hashing a key, as of adding it to a sum. Its unit, a look at the id of a key, takes
10 ns; in it, peers pay for what they have this node compute."""

_KINDS: Final = (Sketch, LtHash)
"""The kinds of sums, by their numbers when they are packed."""
_HEAD: Final = struct.Struct("<BII")

S = TypeVar("S", Sketch, LtHash)


class _KeptSum:
    """A sum of the keys of a range, up to a bound while it is being made."""

    __slots__ = ("done", "key_range", "makers", "noted", "reached", "size", "sum", "uses", "worth")

    def __init__(self, key_range: KeyRange, empty: Sketch | LtHash, noted: int) -> None:
        self.key_range = key_range
        self.sum = empty
        self.noted = noted
        """Changes of the journal that have been made in it."""
        self.reached = key_range.lower
        """The last key that was added on the way through the range."""
        self.done = False
        self.size = 0
        """Keys that it has. To count those of the range takes a tenth of a session."""
        self.makers = 0
        """How many sessions are making it now."""
        self.uses = 0
        """How often it was asked for, of late."""
        self.worth = 0
        """See `KeptSums._value`."""

    def passed(self, changed: list[bytes]) -> Sequence[int]:
        """Return the indices of the keys whose changes have to be made."""
        lower, upper = self.key_range
        if self.done and lower < min(changed) and max(changed) < upper:  # the usual case
            return range(len(changed))
        keys = enumerate(changed)
        return [n for n, key in keys if lower < key < upper and (self.done or key <= self.reached)]

    def extend(self, keys: OrderedKeys) -> int:
        """Add the next keys of the range; return the cost, in looks at a key."""
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
        added = sum(len(group.ids) for group in following)
        self.size += added
        return HASH_COST * added


class KeptSums:
    """The sketches and LtHashes of one key store, which notes every change here."""

    __slots__ = ("_changed", "_digests", "_keys", "_level", "_signs", "cost", "kept")

    def __init__(self, keys: OrderedKeys) -> None:
        self._keys = keys
        self.cost = 0
        """What making sums has cost so far, in looks at a key."""
        self.kept: dict[tuple[type, KeyRange], _KeptSum] = {}
        """By kind and range, those used last at the end. While there are none, no change matters.
        """
        self._level = Counter[type]()
        """The worth of the sum of each kind that was forgotten last."""
        # Lists of bytes, because the garbage collector would visit tuples.
        self._changed: list[bytes] = []
        self._digests: list[bytes] = []
        self._signs: list[int] = []

    def note(self, key: bytes, digest: bytes, sign: int) -> None:
        """Note that a key was added (sign 1) or discarded (-1), if there are sums."""
        self._changed.append(key)
        self._digests.append(digest)
        self._signs.append(sign)
        if len(self._signs) >= _BATCH:
            self._settle_all()

    def note_all(self, keys: list[bytes], digests: list[bytes]) -> None:
        """Note that some keys were added, if there are sums."""
        self._changed += keys
        self._digests += digests
        self._signs += [1] * len(keys)
        if len(self._signs) >= _BATCH:
            self._settle_all()

    def sketch(self, key_range: KeyRange) -> Steps[Sketch | None]:
        """Return the sketch of a range, made in steps of some milliseconds if there is none.

        It is right until the store changes. None if all slots are taken by sketches in the making.
        """
        return self._get(Sketch, MAX_SKETCHES, key_range)

    def lthash(self, key_range: KeyRange) -> Steps[LtHash]:
        """Return the LtHash of a range, made in steps if there is none. It is not to be changed."""
        hashed: LtHash | None = None
        if (LtHash, key_range) in self.kept or self._keys.count(key_range) > _QUICKLY_HASHED:
            hashed = yield from self._get(LtHash, MAX_HASHES, key_range)
        if hashed is None:  # there are few keys, or all slots are taken
            hashed = LtHash()
            for group in groups(self._keys, key_range):
                hashed.add(group.digests())
                self.cost += HASH_COST * len(group.ids)
                if hashed.count > _QUICKLY_HASHED:
                    yield
        return hashed

    def packed(self) -> bytes:
        """Return the sums of ranges that are complete, as `load` takes them."""
        self._settle_all()
        parts: list[bytes] = []
        for (kind, (lower, upper)), kept in self.kept.items():
            if kept.done:
                head = _HEAD.pack(_KINDS.index(kind), len(lower), len(upper))
                parts += (head, lower, upper, kept.sum.packed())
        return b"".join(parts)

    def load(self, data: bytes) -> None:
        """Take over sums of the same keys that were packed.

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
            if not _fits(unpacked, self._keys.lanes(key_range)):
                raise ValueError("they are not the sums of these keys")
            kept = loaded[kind, key_range] = _KeptSum(key_range, unpacked, len(self._signs))
            kept.done, kept.size = True, self._keys.count(key_range)
            self._value(kept, kept.size)
        self.kept.update(loaded)

    def clear(self) -> None:
        """Forget all sums: the store was filled without noting each key."""
        self.kept.clear()
        self._forget_changes()

    def _get(self, kind: type[S], most: int, key_range: KeyRange) -> Steps[S | None]:
        """Return a sum of a range, in steps; None if `most` are in the making."""
        name = kind, key_range
        while True:
            kept = self.kept.pop(name, None)  # it may have been forgotten meanwhile
            if kept is None:
                if not self._make_room(kind, most, key_range):
                    return None
                kept = _KeptSum(key_range, kind(), len(self._signs))
                self._value(kept, self._keys.count(key_range))
            self.kept[name] = kept  # as the latest
            self._settle(kept)
            if kept.done:
                assert isinstance(kept.sum, kind)
                self._note_use(kept)
                return kept.sum
            self.cost += kept.extend(self._keys)
            kept.makers += 1
            try:
                yield
            finally:  # perhaps because the session has ended
                kept.makers -= 1

    def _make_room(self, kind: type, most: int, key_range: KeyRange) -> bool:
        """Forget the sum of least worth for a new one, unless somebody is making it and the new one
        has no more keys; return whether there is room."""
        of_kind = [name for name in self.kept if name[0] is kind]
        if len(of_kind) < most:
            return True
        least = min(of_kind, key=lambda name: self.kept[name].worth, default=None)
        if least is None:
            return False
        count = self._keys.count
        if self.kept[least].makers and count(least[1]) >= count(key_range):
            return False
        self._level[kind] = self.kept.pop(least).worth
        return True

    def _value(self, kept: _KeptSum, keys: int) -> None:
        """Note what a sum is worth: what it would take to make it again, times its uses of late. So
        a stranger's short ranges do not push out what every session needs, however often they are
        used. What was forgotten last is added, so that long ranges that nobody uses go, too."""
        kept.worth = self._level[type(kept.sum)] + (1 + kept.uses) * keys

    def _note_use(self, used: _KeptSum) -> None:
        """Count a use; what was used long ago counts less and less."""
        used.uses += 1
        self._value(used, used.size)
        if used.uses >= _MANY_USES:
            for kept in self.kept.values():
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
        kept.size += sum(taken)
        signs = np.array(taken, np.int64) if -1 in taken else None
        if isinstance(kept.sum, Sketch):
            kept.sum.add(ids_of(digests), signs)
        else:
            kept.sum.add(digests, signs)

    def _settle_all(self) -> None:
        for kept in self.kept.values():
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
