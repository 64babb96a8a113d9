"""How long something took, counted in buckets: a histogram without a metrics library.

Pure: callers have the clock. `recon_node.api.metrics` writes them down for Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets, in seconds, unless others are given."""


class Durations:
    """Counts durations in seconds.

    Args:
        bounds: the upper bounds of the buckets, ascending. The last bucket has none.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        """The sum of all durations, in seconds."""

    def observe(self, seconds: float) -> None:
        """Count one duration. One that equals a bound belongs to the bucket below it."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    @property
    def count(self) -> int:
        """The number of durations."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each upper bound, and how many durations were not longer; the last is `+Inf`."""
        bounds = [*map(str, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(map(float, self._counts)), strict=True))
