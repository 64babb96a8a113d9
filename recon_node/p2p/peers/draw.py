"""The random order of peers (CIP-124, "Random Peer Sync Order").

The next peer is drawn with a probability proportional to its weight:

    attraction = overlap / latency               keys in the common ranges, and the round-trip time
    weight     = max(attraction, FLOOR * the largest attraction) * (1 + behind) / (1 + failures)

Peer ids cost nothing, so the peers at one address share a draw: address blocks are drawn first,
each with the weight of its heaviest peer, and then a peer in each. A second peer of a block comes
after a first one of every other.

So a peer that is near and has much in common is drawn most often, and one that is far away or has
little in common is still drawn at least `FLOOR` times as often. One that was behind is drawn up
to twice as often, since there is probably something to do; `failures` counts how often a peer
failed or misled us. The last two fade (`book.Fading`), so that no peer is judged forever.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Final

FLOOR: Final = 0.05
"""The least attraction of a peer, as a share of the largest one."""
MIN_LATENCY: Final = 0.001
"""Seconds; shorter round trips say more about the load of both sides than about the network."""
UNKNOWN_LATENCY: Final = 0.1
"""The seconds that are assumed before the first ping."""


@dataclass(frozen=True, slots=True)
class PeerCandidate:
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


def weights(candidates: Sequence[PeerCandidate]) -> list[float]:
    """Return the weights of peers. Unless there are none, at least one is positive."""
    largest = max((candidate.attraction for candidate in candidates), default=0.0) or 1.0
    return [
        max(candidate.attraction / largest, FLOOR)
        * (1 + candidate.behind)
        / (1 + candidate.failures)
        for candidate in candidates
    ]


def draw_by_block(
    weights: Sequence[float], blocks: Sequence[str], count: int, rng: random.Random
) -> list[int]:
    """Draw peers: address blocks in proportion to the largest weight in them, then peers in them.

    Weights are positive.

    Returns:
        The indices of the peers, in the order in which they were drawn.
    """
    peers: dict[str, list[int]] = {}
    for index in draw(weights, len(weights), rng):
        peers.setdefault(blocks[index], []).append(index)
    names = list(peers)
    largest = [max(weights[index] for index in peers[name]) for name in names]
    order = [peers[names[index]] for index in draw(largest, len(names), rng)]
    turns = (index for turn in zip_longest(*order) for index in turn if index is not None)
    return list(islice(turns, count))


def draw(weights: Sequence[float], count: int, rng: random.Random) -> list[int]:
    """Draw some of several things without replacement, each time in proportion to their weights.

    Efraimidis and Spirakis, "Weighted random sampling with a reservoir", by the logarithms of their
    keys: u^(1/weight) itself is 0 for small weights and 1 for large ones. Weights are positive.

    Returns:
        The indices of what was drawn, in that order.
    """
    times = [rng.expovariate(weight) for weight in weights]
    return heapq.nsmallest(count, range(len(times)), key=times.__getitem__)
