"""The store as a session sees it: with the keys that were given up counted as held."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from recon_node.recon.finger import Finger
from recon_node.recon.key_range import KeyRange
from recon_node.recon.key_store import KeyStore, Summary
from recon_node.recon.messages_1_1 import fingerprint
from recon_node.recon.sha256a import COUNT_SHIFT, ZERO, Sha256a


class View:
    """The store as this session sees it: with the keys that were given up counted as held.

    Cheap where the ranges that it is asked about ascend: it keeps fingers at their two ends.
    """

    def __init__(self, store: KeyStore, parent: View | None = None) -> None:
        self.store = store
        self.given_up: list[bytes] = [] if parent is None else parent.given_up
        self._upper: Finger = Finger(store, near=None if parent is None else parent._upper)
        self._lower = Finger(store, near=self._upper)

    def fork(self) -> View:
        """Return the same view with fingers of its own, for ranges somewhere else."""
        return View(self.store, self)

    def holds(self, key: bytes) -> bool:
        """Tell whether a key is in the store, or was given up."""
        if self._lower.holds(key):
            return True
        at = bisect_left(self.given_up, key)
        return at < len(self.given_up) and self.given_up[at] == key

    def give_up(self, key: bytes) -> None:
        """Count a key as held although it is not in the store."""
        if not self.holds(key):
            insort(self.given_up, key)

    def given_up_hash(self, gap: KeyRange) -> Sha256a:
        """Return the hash of the given-up keys in a gap."""
        missing = self._missing(gap)
        return Sha256a.of(*missing) if missing else ZERO

    def _missing(self, gap: KeyRange) -> list[bytes]:
        """Return the given-up keys in a gap, less those that have come in since."""
        if not self.given_up:
            return []
        start = bisect_right(self.given_up, gap.lower)
        end = bisect_left(self.given_up, gap.upper, start)
        return [key for key in self.given_up[start:end] if key not in self.store]

    def summarize(self, gap: KeyRange) -> Summary:
        """Return the hash of a gap as this session sees it, and the number of the store's keys."""
        summary = self._stored(gap)
        missing = self.given_up_hash(gap)
        return Summary(summary.hash + missing, summary.count) if missing else summary

    def fingerprint(self, gap: KeyRange) -> bytes:
        """Return the fingerprint of a gap as this session sees it (1.1.0)."""
        summary = self._stored(gap)
        missing = self._missing(gap)
        if missing:
            summary = Summary(summary.hash + Sha256a.of(*missing), summary.count + len(missing))
        return fingerprint(summary)

    def count(self, gap: KeyRange) -> int:
        """Return the number of the store's keys in a gap."""
        return self._lanes(gap) >> COUNT_SHIFT

    def split(self, gap: KeyRange, parts: int) -> list[bytes]:
        """Return the pivots of a gap: see :meth:`Finger.split`."""
        return self._upper.split(gap, parts)

    def cut(self, gap: KeyRange, parts: int) -> list[bytes]:
        """Return short strings that cut a gap: see :meth:`Finger.cut`."""
        return self._upper.cut(gap, parts)

    def held(self, gap: KeyRange) -> list[bytes]:
        """Return the keys of a gap that this session counts as held, in order."""
        return sorted([*self.store.keys(gap), *self._missing(gap)])

    def _stored(self, gap: KeyRange) -> Summary:
        lanes = self._lanes(gap)
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def _lanes(self, gap: KeyRange) -> int:
        if gap.is_empty:
            return 0
        return self._upper.left_of(gap.upper) - self._lower.up_to(gap.lower)
