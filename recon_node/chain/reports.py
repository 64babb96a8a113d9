"""What the chain side counts: plain numbers, read when Prometheus asks."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

OUTCOMES: Final = ("anchored", "invalid", "unknown", "unconfirmed", "failed")
"""What a lookup can lead to: a block time; a transaction that says something else; no such
transaction; none that is final; no usable answer."""

BUCKETS: Final = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the classes of request times, in seconds."""


@dataclass(slots=True, eq=False)
class ChainReport:
    """Of one chain, since the start."""

    chain_id: str
    lookups: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    """How many ended with which outcome."""
    answers: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    """How many requests were answered in the time of each class, the last without a bound."""
    answer_seconds: float = 0.0
    """What all of them took together."""
    failures: int = 0
    """Requests that an endpoint did not answer, or not as one that works."""

    def took(self, seconds: float) -> None:
        """Count an answered request."""
        self.answers[bisect_left(BUCKETS, seconds)] += 1
        self.answer_seconds += seconds
