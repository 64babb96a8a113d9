"""What the peer book knows of one peer, and the random order of peers (CIP-124, "Random Peer Sync
Order").

The next peer is drawn with a probability proportional to its weight:

    attraction = overlap / latency               keys in the common ranges, and the round-trip time
    weight     = max(attraction, FLOOR * the largest attraction) * (1 + behind) / (1 + failures)

Peer ids cost nothing, so the peers at one address share a draw: networks are drawn first, each with
the weight of its heaviest peer, and then a peer in each. A second peer of a network comes after a
first one of every other.

So a peer that is near and has much in common is drawn most often, and one that is far away or has
little in common is still drawn at least ``FLOOR`` times as often. One that was behind is drawn up
to twice as often, since there is probably something to do; ``failures`` counts how often a peer
failed or misled us. The last two fade (``Fading``), so that no peer is judged forever.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Final

import trio

from recon_node.recon import KeyRange

FLOOR: Final = 0.05
"""The least attraction of a peer, as a share of the largest one."""
MIN_LATENCY: Final = 0.001
"""Seconds; shorter round trips say more about the load of both sides than about the network."""
UNKNOWN_LATENCY: Final = 0.1
"""The seconds that are assumed before the first ping."""


@dataclass(frozen=True, slots=True)
class Fading:
    """A number that halves with time.

    Args:
        half_life: seconds.
        value: what it was at the time ``at``.
        at: seconds on any clock.
    """

    half_life: float
    value: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        """Return what is left of it."""
        return self.value * math.exp2(-max(0.0, now - self.at) / self.half_life)

    def plus(self, more: float, now: float) -> Fading:
        """Return what is left of it, increased."""
        return Fading(self.half_life, self.now(now) + more, now)

    def set(self, value: float, now: float) -> Fading:
        """Return it with another value."""
        return Fading(self.half_life, value, now)


@dataclass(frozen=True, slots=True)
class Candidate:
    """What counts of a peer when one is drawn."""

    overlap: float
    """How many keys are in the common ranges, in any unit that is the same for all candidates."""
    latency: float | None
    """The round-trip time in seconds; None before the first ping."""
    behind: float = 0.0
    """Which share of the common keys one side lacked of late, from 0 to 1."""
    failures: float = 0.0
    """How often it failed or misled us of late."""

    @property
    def attraction(self) -> float:
        """Overlap divided by latency."""
        latency = UNKNOWN_LATENCY if self.latency is None else self.latency
        return self.overlap / max(MIN_LATENCY, latency)


def weights(candidates: Sequence[Candidate]) -> list[float]:
    """Return the weights of peers. Unless there are none, at least one is positive."""
    largest = max((each.attraction for each in candidates), default=0.0) or 1.0
    return [
        max(each.attraction / largest, FLOOR) * (1 + each.behind) / (1 + each.failures)
        for each in candidates
    ]


def draw_by_network(
    weights: Sequence[float], networks: Sequence[str], count: int, rng: random.Random
) -> list[int]:
    """Draw some of several peers: networks in proportion to the largest weight in them, then peers.

    Args:
        weights: of the peers, all positive.
        networks: that each peer belongs to.
        count: how many to draw, at most.
        rng: the source of randomness.

    Returns:
        The indices of the peers, in the order in which they were drawn.
    """
    peers: dict[str, list[int]] = {}
    for index in draw(weights, len(weights), rng):
        peers.setdefault(networks[index], []).append(index)
    names = list(peers)
    largest = [max(weights[index] for index in peers[name]) for name in names]
    order = [peers[names[place]] for place in draw(largest, len(names), rng)]
    turns = (index for turn in zip_longest(*order) for index in turn if index is not None)
    return list(islice(turns, count))


def draw(weights: Sequence[float], count: int, rng: random.Random) -> list[int]:
    """Draw some of several things without replacement, each time in proportion to their weights.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir", by the logarithms of their
    keys: u^(1/weight) itself is 0 for small weights and 1 for large ones.

    Args:
        weights: all positive.
        count: how many to draw, at most.
        rng: the source of randomness.

    Returns:
        The indices of what was drawn, in that order.
    """
    times = [rng.expovariate(weight) for weight in weights]
    return heapq.nsmallest(count, range(len(times)), key=times.__getitem__)


FAILURE_HALF_LIFE: Final = 4 * 3600.0
"""Seconds in which failures in a row lose half their weight: longer than the waits between tries,
so that a peer that is gone for good still becomes hopeless."""
MISLED_HALF_LIFE: Final = 3600.0
"""Seconds in which it loses half its weight that a peer misled us; successes do not clear it."""
BEHIND_HALF_LIFE: Final = 600.0
"""Seconds in which it loses half its weight that a peer was behind."""


_NO_FAILURES: Final = Fading(FAILURE_HALF_LIFE)
_NEVER_MISLED: Final = Fading(MISLED_HALF_LIFE)
_NOT_BEHIND: Final = Fading(BEHIND_HALF_LIFE)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a peer has stated to be interested in."""

    ranges: list[KeyRange]
    """Ascending and apart."""
    until: float = math.inf
    """On trio's clock; infinite while the peer is connected and can tell us of changes."""


@dataclass(slots=True)
class Peer:
    """What the book knows of a peer."""

    id: str
    addresses: list[str] = field(default_factory=list)
    """The one that worked last comes first."""
    moved: float = -math.inf
    """When it last brought events that were new here, or fetched some, on trio's clock."""
    network: str = ""
    """That of the address from which it is connected, or was last; empty if it never was."""
    failed: Fading = _NO_FAILURES
    """Failures in a row; breaking a protocol counts as several."""
    misled: Fading = _NEVER_MISLED
    """How often it broke a protocol, or listed events without delivering them."""
    behind: Fading = _NOT_BEHIND
    """Which share of the common keys it or we lacked, from 0 to 1."""
    not_before: float = 0.0
    """When it may be synced with again, on trio's clock."""
    latency: float | None = None
    """The round-trip time in seconds."""
    last_sync: float | None = None
    """When a sync that this node began ended in agreement, in seconds since 1970."""
    last_visit: float | None = None
    """When one that the peer began did."""
    events_served: int = 0
    """Events that it fetched and that are not yet in the report of a session."""
    event_bytes_served: int = 0
    """Their size in bytes."""
    asked_for_all_at: float = -math.inf
    """When we last asked it for everything that interests us, on trio's clock."""
    interests: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that it asked or answered for, and until when they count, on trio's clock."""
    stated: Stated | None = None
    """What it has told of its interests, which counts more than what was observed."""
    declined: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that we asked for and that it did not want, and until when they count."""
    overlap: float = 1.0
    """The share of our keys that it wants too, from 0 to 1, as last computed."""

    @property
    def failures(self) -> int:
        """Failures in a row, as far as they have not faded."""
        return round(self.failed.now(trio.current_time()))

    def candidate(self, now: float) -> Candidate:
        """Return what counts when a peer is drawn."""
        failures = max(self.failed.now(now), self.misled.now(now))
        return Candidate(self.overlap, self.latency, self.behind.now(now), failures)
