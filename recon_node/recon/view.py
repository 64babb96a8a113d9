"""The store as a session sees it: with the keys that were given up counted as held."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from recon_node.recon.finger import Finger
from recon_node.recon.key_range import KeyRange
from recon_node.recon.key_store import KeyStore, Summary
from recon_node.recon.messages_1_1 import fingerprint
from recon_node.recon.sha256a import Sha256a, lanes_of


class View:
    """The store as this session sees it: with the keys that were given up counted as held."""

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
        """Count a key as held although it is not in the store."""
        if key not in self.store and not self._was_given_up(key):
            insort(self.given_up, key)

    def given_up_between(self, lower: bytes, upper: bytes) -> int:
        """Return the lanes of the given-up keys strictly between two bounds."""
        return sum(map(lanes_of, self._missing(KeyRange(lower, upper))))

    def missing_from(self, lower: bytes, upper: bytes) -> list[bytes]:
        """Return the given-up keys from a bound, itself included, to before another one."""
        start = bisect_left(self.given_up, lower)
        end = bisect_left(self.given_up, upper, start)
        return [key for key in self.given_up[start:end] if key not in self.store]

    def missing_lanes(self, lower: bytes, upper: bytes) -> int:
        """Return the lanes of these keys."""
        return sum(map(lanes_of, self.missing_from(lower, upper)))

    def hash(self, gap: KeyRange) -> Sha256a:
        """Return the hash of a gap as this session sees it (1.0.0)."""
        return self.store.summarize(gap).hash + Sha256a.of(*self._missing(gap))

    def fingerprint(self, gap: KeyRange) -> bytes:
        """Return the fingerprint of a gap as this session sees it (1.1.0)."""
        summary = self.store.summarize(gap)
        missing = self._missing(gap)
        if missing:
            summary = Summary(summary.hash + Sha256a.of(*missing), summary.count + len(missing))
        return fingerprint(summary)

    def _missing(self, gap: KeyRange) -> list[bytes]:
        """Return the given-up keys in a gap, less those that have come in since."""
        if not self.given_up:
            return []
        start = bisect_right(self.given_up, gap.lower)
        end = bisect_left(self.given_up, gap.upper, start)
        return [key for key in self.given_up[start:end] if key not in self.store]

    def _was_given_up(self, key: bytes) -> bool:
        at = bisect_left(self.given_up, key)
        return at < len(self.given_up) and self.given_up[at] == key
