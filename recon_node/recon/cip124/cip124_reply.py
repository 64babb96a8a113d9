"""Writing an answer on `/ceramic/recon/1.0.0`, from its lower bound up.

A bound may be a key, which is in neither of the gaps beside it. So a reply looks up the two
*positions* around each bound (lookups.py), once: the difference between the position left of one
bound and that right of another is the hash and the number of the keys between. It keeps the
positions of bounds until the store may have changed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

from recon_node.recon.cip124.cip124_codec import AHASH_SIZE, Cip124Message
from recon_node.recon.keys.key_store import KeyView
from recon_node.recon.keys.lookups import KeyCursor
from recon_node.recon.keys.sha256a import COUNT_SHIFT, fold
from recon_node.recon.session import SessionSettings

_BOUND_SLACK: Final = 64
"""Bytes by which a bound may be longer than the first one of its message: heights and CIDs differ
in length, and the first bound may be a short fencepost."""


class OpenKeys:
    """Keys that we sent the peer and that it has not shown to hold."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._times: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def between(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return those strictly between two bounds, in order."""
        if not self._keys:  # the usual case
            return []
        start = bisect_right(self._keys, lower)
        return self._keys[start : bisect_left(self._keys, upper, start)]

    def reset_times(self, lower: bytes, upper: bytes) -> None:
        """Do not count how often those strictly between two bounds were sent until now."""
        for key in self.between(lower, upper):
            self._times[key] = 0

    def any_twice(self, keys: Iterable[bytes]) -> bool:
        """Return whether one of some keys was sent more than once."""
        return any(self._times.get(key, 0) > 1 for key in keys)

    def replace(self, still_open: Iterable[bytes], sent: Iterable[bytes]) -> None:
        """Keep those that are still open, and add those that have just been sent."""
        times = {key: self._times.get(key, 1) for key in still_open}
        for key in sent:
            times[key] = times.get(key, 0) + 1
        self._keys, self._times = sorted(times), times


class Cip124Reply:
    """A message being written from its lower bound up. Matches are held back, to be merged."""

    def __init__(self, keys: KeyView, lower: bytes, settings: SessionSettings) -> None:
        self._cursor = KeyCursor(keys)
        self._positions: dict[bytes, tuple[int, int]] = {}
        """Bounds that were looked up, each with the positions left and right of it."""
        self._bounds = [lower]
        self._hashes: list[bytes] = []
        self.sent: list[bytes] = []
        """Keys of ours among the bounds that the peer's message does not have."""
        self.still_open: list[bytes] = []
        """Keys sent before that the peer's message does not show to be held."""
        self._matched_to: bytes | None = None
        self._makes_progress = False
        # In reserve: one more split, and the hash of the rest.
        in_reserve = (settings.fan_out + 3) * (len(lower) + _BOUND_SLACK + AHASH_SIZE)
        self._budget = settings.message_bytes - in_reserve

    @property
    def last_bound(self) -> bytes:
        """The last bound written."""
        return self._bounds[-1]

    @property
    def reach(self) -> bytes:
        """How far the message goes, including the match that is held back."""
        return self._matched_to or self._bounds[-1]

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit: the rest is then covered by one hash.

        Never before something was sent, so that every message makes progress.
        """
        return self._budget <= 0 and self._makes_progress

    def room(self) -> int:
        """Return how many more keys can be listed, at least one."""
        return max(1, self._budget // (len(self._bounds[0]) + _BOUND_SLACK + AHASH_SIZE))

    def forget_positions(self) -> None:
        """Look up all bounds again: the store may have changed."""
        self._positions.clear()

    def holds(self, bound: bytes) -> bool:
        """Return whether the store holds a bound."""
        left, right = self._around(bound)
        return left != right

    def keys_to(self, upper: bytes, limit: int) -> list[bytes]:
        """Return the first of the store's keys strictly between `reach` and a bound."""
        start, end = self._around(self.reach)[1], self._around(upper)[0]
        first = start >> COUNT_SHIFT
        return self._cursor.keys_at(first, min(first + limit, end >> COUNT_SHIFT))

    def split(self, upper: bytes, parts: int) -> None:
        """Write keys that divide what lies up to a bound, with the hashes between them."""
        start, end = self._around(self.reach)[1], self._around(upper)[0]
        for pivot, positions in self._cursor.pivots(start, end, parts):
            self._positions[pivot] = positions
            self.write_key(pivot)
        self.write_hash(upper)

    def match(self, upper: bytes) -> None:
        """Cover everything up to a bound as matching."""
        self._matched_to = upper

    def close_match(self) -> None:
        """Write the match that is held back, so that its upper bound is sent."""
        if self._matched_to is not None:
            upper, self._matched_to = self._matched_to, None
            self._append(self._hash_between(self._bounds[-1], upper), upper)

    def write_hash(self, upper: bytes, ahash: bytes | None = None) -> None:
        """Write a hash (by default that of our keys) up to a bound that the peer should see."""
        self._makes_progress = True
        self.close_match()
        if ahash is None:
            ahash = self._hash_between(self._bounds[-1], upper)
        self._append(ahash, upper)

    def settle(self, upper: bytes, ahash: bytes) -> None:
        """Write the hash of our keys in a gap in which nothing is left to say."""
        self.close_match()
        self._append(ahash, upper)

    def write_key(self, key: bytes, ahash: bytes | None = None) -> None:
        """Write a key of ours, and the hash up to it."""
        self.sent.append(key)
        self.write_hash(key, ahash)

    def message(self) -> Cip124Message:
        """Finish the message."""
        self.close_match()
        return Cip124Message(tuple(self._bounds), tuple(self._hashes))

    def _append(self, ahash: bytes, upper: bytes) -> None:
        self._hashes.append(ahash)
        self._bounds.append(upper)
        self._budget -= len(upper) + AHASH_SIZE

    def _around(self, bound: bytes) -> tuple[int, int]:
        positions = self._positions.get(bound)
        if positions is None:
            positions = self._positions[bound] = self._cursor.around(bound)
        return positions

    def lanes_between(self, lower: bytes, upper: bytes) -> int:
        """Return the lanes of the store's keys strictly between two bounds."""
        start = (self._positions.get(lower) or self._around(lower))[1]
        return (self._positions.get(upper) or self._around(upper))[0] - start

    def _hash_between(self, lower: bytes, upper: bytes) -> bytes:
        return fold(self.lanes_between(lower, upper))
