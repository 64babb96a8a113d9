"""How long to wait after failures in a row, and how much somebody may use in the long run.

Pure: callers count the failures, have the clock, and draw the random number. That is why no retry
library is used (tenacity, stamina): those own the loop, the clock and the randomness. Here a wait
is often a date that is kept, in the peer book, on an endpoint or in SQLite, and simulations and
tests choose time and chance. `now` is in seconds on any clock that does not go back.
"""

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from recon_node.base.latest import Latest

SPREAD: Final = 0.25
"""By which part a wait may be shorter or longer, so that those who failed together do not come back
together."""
_MAX_DOUBLINGS: Final = 60
"""More would overflow a float before `longest` cuts them."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double from failure to failure."""

    first: float
    """Seconds to wait after the first failure."""
    longest: float
    """Seconds to wait at most, before the jitter."""

    def wait(self, failures: int, draw: float | None = None) -> float:
        """Return how many seconds to wait before the next try.

        `failures` are in a row, at least 1. `draw` is a random number from 0 to 1 for the
        jitter.
        """
        doublings = min(failures - 1, _MAX_DOUBLINGS)
        seconds = min(self.first * 2.0**doublings, self.longest)
        return seconds if draw is None else jittered(seconds, draw)


def jittered(seconds: float, draw: float) -> float:
    """Return a time that is shorter or longer by up to `SPREAD`.

    `draw` is a random number from 0 to 1.
    """
    return seconds * (1 + SPREAD * (2 * draw - 1))


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
