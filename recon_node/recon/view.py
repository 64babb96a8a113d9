"""What a session knows beside its store: keys that one side holds and the other may never have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from recon_node.recon.keys.finger import Finger
from recon_node.recon.keys.key_store import KeyStore, Summary
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import Sha256a, lanes_of


class View:
    """A store, and the keys that the peer listed but that could not be had.

    These are never counted in what we state of our own keys. They only tell whether a gap in which
    the sides differ has anything left to learn.
    """

    def __init__(self, store: KeyStore) -> None:
        self.store = store
        self.given_up: list[bytes] = []
        self._finger = Finger(store)

    def new_among(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that are not in the store, and were not given up either.

        Cheap where the keys ascend.
        """
        new = self._finger.missing(keys)
        return [key for key in new if not self._was_given_up(key)] if self.given_up else new

    def give_up(self, key: bytes) -> None:
        """Note a key that the peer holds and that we cannot get."""
        if key not in self.store and not self._was_given_up(key):
            insort(self.given_up, key)

    def left_out(self, gap: KeyRange) -> list[bytes]:
        """Return the keys in a gap that were given up, less those that have come in since."""
        if not self.given_up:
            return []
        start = bisect_right(self.given_up, gap.lower)
        end = bisect_left(self.given_up, gap.upper, start)
        return [key for key in self.given_up[start:end] if key not in self.store]

    def left_out_from(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the same for a gap that includes its lower bound."""
        start = bisect_left(self.given_up, lower)
        end = bisect_left(self.given_up, upper, start)
        return [key for key in self.given_up[start:end] if key not in self.store]

    def hash(self, gap: KeyRange) -> Sha256a:
        """Return the Sha256a of our keys in a gap (1.0.0)."""
        return self.store.summarize(gap).hash

    def union(self, gap: KeyRange) -> tuple[Summary, int]:
        """Return the summary of our keys in a gap with those left out, and the number of these."""
        keys = self.left_out(gap)
        ours = self.store.summarize(gap)
        lanes = sum(map(lanes_of, keys))
        return Summary(ours.hash + Sha256a.from_lanes(lanes), ours.count + len(keys)), len(keys)

    def _was_given_up(self, key: bytes) -> bool:
        at = bisect_left(self.given_up, key)
        return at < len(self.given_up) and self.given_up[at] == key


class OpenKeys:
    """Keys that we told the peer and that it has not shown to hold (1.0.0)."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []
        self._times: dict[bytes, int] = {}

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def between(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return those strictly between two bounds, in order."""
        if not self._keys:  # the usual case
            return []
        start = bisect_right(self._keys, lower)
        return self._keys[start : bisect_left(self._keys, upper, start)]

    def any_twice(self, keys: Iterable[bytes]) -> bool:
        """Tell whether one of some keys was told more than once."""
        return any(self._times.get(key, 0) > 1 for key in keys)

    def replace(self, still_open: Iterable[bytes], told: Iterable[bytes]) -> None:
        """Keep those that are still open, and add those that have just been told."""
        times = {key: self._times.get(key, 1) for key in still_open}
        for key in told:
            times[key] = times.get(key, 0) + 1
        self._keys, self._times = sorted(times), times
