"""The sketches of a key store: one for each range that sessions are about, kept up to date.

A sketch is made by going through the keys of its range, a group at a time, while the store may
change. Keys that come or go are noted in a journal. Before a sketch is used, and whenever the
journal is full, they are added to it or taken out, if it has come past them by then: what lies
ahead will be met on the way. So a sketch is always that of the keys that its range holds.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import numpy as np

from recon_node.recon.keys.ids import groups
from recon_node.recon.keys.ordered_keys import OrderedKeys
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sketch import Sketch, ids_of

MAX_SKETCHES: Final = 4
"""Sketches that a store keeps, the latest ones that were used; each takes half a MB."""
_BATCH: Final = 2048
"""Changes that are collected before they are added to the sketches."""


class _Kept:
    """A sketch of the keys of a range, up to a bound while it is being made."""

    __slots__ = ("done", "key_range", "reached", "sketch")

    def __init__(self, key_range: KeyRange) -> None:
        self.key_range = key_range
        self.sketch = Sketch()
        self.reached = key_range.lower
        """The last key that was added on the way through the range."""
        self.done = False

    def has_passed(self, keys: list[bytes]) -> list[bool]:
        """Return for each of some keys whether its change has to be made in the sketch."""
        lower, upper = self.key_range
        if self.done and lower < min(keys) and max(keys) < upper:  # the usual case
            return [True] * len(keys)
        return [lower < key < upper and (self.done or key <= self.reached) for key in keys]


class Sketches:
    """The sketches of one key store, which notes every change here."""

    __slots__ = ("_changed", "_digests", "_kept", "_signs")

    def __init__(self) -> None:
        self._kept: dict[KeyRange, _Kept] = {}
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
                self._settle()

    def note_all(self, keys: list[bytes], digests: list[bytes]) -> None:
        """Note that some keys were added."""
        if self._kept:
            self._changed += keys
            self._digests += digests
            self._signs += [1] * len(keys)
            if len(self._signs) >= _BATCH:
                self._settle()

    def get(self, keys: OrderedKeys, key_range: KeyRange) -> Generator[None, None, Sketch | None]:
        """Return the sketch of a range, made in steps of some milliseconds if there is none.

        It is right until the store changes. None if all places are taken by sketches in the making.
        """
        while True:
            kept = self._kept.pop(key_range, None)  # it may have been forgotten meanwhile
            if kept is None:
                if not self._make_room():
                    return None
                kept = _Kept(key_range)
            self._kept[key_range] = kept  # as the latest
            self._settle()
            if kept.done:
                return kept.sketch
            _extend(kept, keys)
            yield

    def clear(self) -> None:
        """Forget all sketches: the store was filled without noting each key."""
        self._kept.clear()
        self._forget_changes()

    def _make_room(self) -> bool:
        if len(self._kept) < MAX_SKETCHES:
            return True
        for key_range, kept in self._kept.items():
            if kept.done:
                del self._kept[key_range]
                return True
        return False

    def _settle(self) -> None:
        """Make the changes that were noted."""
        if not self._signs:
            return
        ids, signs = ids_of(b"".join(self._digests)), np.array(self._signs, np.int64)
        for kept in self._kept.values():
            passed = np.array(kept.has_passed(self._changed), np.bool_)
            kept.sketch.add(ids[passed], signs[passed])
        self._forget_changes()

    def _forget_changes(self) -> None:
        for column in (self._changed, self._digests, self._signs):
            column.clear()


def _extend(kept: _Kept, keys: OrderedKeys) -> None:
    """Add the next group of the range."""
    rest = KeyRange(kept.reached, kept.key_range.upper)
    group = None if rest.is_empty else next(groups(keys, rest), None)
    if group is None:
        kept.done = True
        return
    kept.sketch.add(group.ids)
    kept.reached = group.last_key()
