"""How long to wait after failures in a row.

Pure: callers count the failures, have the clock, and draw the random number. That is why no retry
library is used (tenacity, stamina): those own the loop, the clock and the randomness. Here a wait
is often a date that is kept, in the peer book, on an endpoint or in SQLite, and simulations and
tests choose time and chance.
"""

from dataclasses import dataclass
from typing import Final

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
