"""How many partners should a node push to? A model of pushes alone: no sessions, no wire.

    python -m benchmarks.simulate.partners

Each node dials some random others, and pushes an event in three waves, each time to three peers
that are not known to have it. That takes seconds for a thousand nodes, where a simulation of
production code takes minutes, and so it can compare settings. What it leaves out costs time (slots,
bandwidth, bad nodes), so its times are lower bounds.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from statistics import mean
from typing import Final

from rich.console import Console
from rich.table import Table

from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.push import ALL_OF_FEW, NEXT_WAVE, WAVES

NODES: Final = 1000
EVENTS: Final = 8
DIALLED: Final = (16, 8, 6, 5, 4, 3)
TRIP: Final = (0.1, 0.25)
"""Seconds until a push is noticed by its peer: at least, at most."""
FETCH: Final = (0.3, 0.6)
"""Seconds from then on until the peer has the event."""


@dataclass(slots=True)
class Spread:
    """How an event spread."""

    missed: int
    pushes: float
    """For each node that got it."""
    seconds: float
    """Until the last node had it."""


@dataclass(slots=True)
class Model:
    """Nodes, whom each is connected with, and one event on its way.

    Args:
        nodes: how many.
        dialled: how many peers each node dials; others dial it.
        rng: where chance comes from.
    """

    nodes: int
    dialled: int
    rng: random.Random
    peers: list[set[int]] = field(init=False)
    _due: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    _number: int = 0

    def __post_init__(self) -> None:
        self.peers = [set() for _ in range(self.nodes)]
        for here in range(self.nodes):
            others = [other for other in range(self.nodes) if other != here]
            for there in self.rng.sample(others, self.dialled):
                self.peers[here].add(there)
                self.peers[there].add(here)

    def spread(self, settings: P2PSettings) -> Spread:
        """Write an event at a random node, and follow it."""
        have: dict[int, float] = {}
        known: list[set[int]] = [set() for _ in range(self.nodes)]
        pushes = 0
        self._at(0.0, "event", self.rng.randrange(self.nodes))
        while self._due:
            now, _, what, here, there = heapq.heappop(self._due)
            if what == "push":
                for partner in self._choose(self.peers[here] - known[here], settings.sync_peers):
                    pushes += 1
                    known[here].add(partner)
                    self._at(now + self.rng.uniform(*TRIP), "sync", partner, here)
            elif what == "sync":
                known[here].add(there)
                if here not in have:
                    self._at(now + self.rng.uniform(*FETCH), "event", here)
            elif here not in have:
                have[here] = now
                for number in range(WAVES):
                    waits = 1 + NEXT_WAVE * (2**number - 1)
                    self._at(now + settings.push_delay * waits, "push", here)
        return Spread(self.nodes - len(have), pushes / (len(have) - 1), max(have.values()))

    def _choose(self, lacking: set[int], copies: int) -> list[int]:
        few = len(lacking) <= ALL_OF_FEW * copies
        return sorted(lacking) if few else self.rng.sample(sorted(lacking), copies)

    def _at(self, when: float, what: str, here: int, there: int = -1) -> None:
        self._number += 1
        heapq.heappush(self._due, (when, self._number, what, here, there))


def main() -> None:
    """Print a row for each number of peers that are dialled."""
    table = Table("dialled", "connected", "missed", "pushes for each receiver", "last, s")
    for dialled in DIALLED:
        rng = random.Random(dialled)
        model = Model(NODES, dialled, rng)
        spreads = [model.spread(P2PSettings()) for _ in range(EVENTS)]
        table.add_row(
            f"{dialled}",
            f"{mean(map(len, model.peers)):.1f}",
            f"{sum(item.missed for item in spreads)}",
            f"{mean(item.pushes for item in spreads):.1f}",
            f"{max(item.seconds for item in spreads):.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
