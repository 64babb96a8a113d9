"""Token buckets: how much somebody may use, at once and in the long run.

Pure: `now` is in seconds on any clock that does not go back.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from recon_node.latest import Latest

K = TypeVar("K")


class TokenBucket:
    """Holds up to `burst` tokens, and gets `rate` of them a second. It may be overdrawn."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._at = now

    def left(self, now: float) -> float:
        """Return how many tokens there are; less than none if it is overdrawn."""
        return min(self._burst, self._left + (now - self._at) * self._rate)

    def spend(self, tokens: float, now: float) -> None:
        """Take tokens, whether they are there or not; put them back if `tokens` is negative."""
        self._left = self.left(now) - tokens
        self._at = now

    def seconds_until(self, tokens: float, now: float) -> float:
        """Return how long it takes until so many tokens are there; 0 if they are."""
        return max(0.0, tokens - self.left(now)) / self._rate


class TokenBuckets(Generic[K]):
    """A bucket for each key: for the latest `limit` of them that were asked for."""

    def __init__(self, burst: float, rate: float, limit: int) -> None:
        self._burst = burst
        self._rate = rate
        self._buckets = Latest[K, TokenBucket](limit)

    def of(self, key: K, now: float) -> TokenBucket:
        """Return the bucket of a key; a full one if it is new."""
        bucket = self._buckets.use(key)
        if bucket is None:
            self._buckets[key] = bucket = TokenBucket(self._burst, self._rate, now)
        return bucket
