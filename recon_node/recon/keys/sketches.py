"""What a key store keeps of the ranges that sessions are about: sketches and LtHashes, up to date.

Either is a *sum* over the keys of its range. It is made by going through them, a group at a time,
while the store may change. Keys that come or go are noted in a journal. Before a sum is used, and
whenever the journal is full, they are added to it or taken out, if it has come past them by then:
what lies ahead will be met on the way. So a sum is always that of the keys that its range holds.
Each sum has a place of its own in the journal: whoever uses one does not wait for the others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator
from typing import Final, TypeVar

import numpy as np

from recon_node.recon.keys.ids import groups
from recon_node.recon.keys.lthash import LtHash
from recon_node.recon.keys.ordered_keys import OrderedKeys
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sketch import Sketch, ids_of

MAX_SKETCHES: Final = 4
"""Sketches that a store keeps, those that were used most of late; each takes half a MB."""
MAX_HASHES: Final = 64
"""LtHashes that a store keeps, likewise; each takes 2 KiB."""
_MANY_USES: Final = 64
"""Uses of a sum after which all are counted half."""
_FEW: Final = 256
"""Keys up to which a range is hashed whenever that is asked for: in 0.2 ms."""
_BATCH: Final = 2048
"""Changes that are collected before they are added to the sums."""

LOOKS: Final = 80
"""How many times as long it takes to add a key to a sum as to look at its id, which is 10 ns."""

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

    def passed(self, ordered: list[bytes]) -> tuple[int, int]:
        """Return where the changes start and end that have to be made, among those of some keys."""
        lower, upper = self.key_range
        end = bisect_left(ordered, upper)
        return bisect_right(ordered, lower), (
            end if self.done else min(end, bisect_right(ordered, self.reached))
        )

    def extend(self, keys: OrderedKeys) -> int:
        """Add the next group of the range; return what it took, in looks at a key."""
        rest = KeyRange(self.reached, self.key_range.upper)
        group = None if rest.is_empty else next(groups(keys, rest), None)
        if group is None:
            self.done = True
            return 0
        if isinstance(self.sum, Sketch):
            self.sum.add(group.ids)
        else:
            self.sum.add(group.digests())
        self.reached = group.last_key()
        return LOOKS * len(group.ids)


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

        It is right until the store changes. None if all places are taken by sketches in the making.
        """
        return self._get(Sketch, MAX_SKETCHES, keys, key_range)

    def lthash(self, keys: OrderedKeys, key_range: KeyRange) -> Generator[None, None, LtHash]:
        """Return the LtHash of a range, likewise, which is not to be changed."""
        hashed: LtHash | None = None
        if (LtHash, key_range) in self._kept or keys.count(key_range) > _FEW:
            hashed = yield from self._get(LtHash, MAX_HASHES, keys, key_range)
        if hashed is None:  # there are few keys, or all places are taken
            hashed = LtHash()
            for group in groups(keys, key_range):
                hashed.add(group.digests())
                self.summed += LOOKS * len(group.ids)
                if hashed.count > _FEW:
                    yield
        return hashed

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
        order = sorted(range(kept.noted, len(self._signs)), key=self._changed.__getitem__)
        kept.noted = len(self._signs)
        start, end = kept.passed([self._changed[index] for index in order])
        if start >= end:
            return
        digests = b"".join([self._digests[index] for index in order[start:end]])
        signs = np.array([self._signs[index] for index in order[start:end]], np.int64)
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
