"""When bytes arrive: latency, bandwidth, loss and partitions, in trio's time.

One task delivers everything, in the order in which it is due; times are rounded up to `TICK`, so
that the clock has fewer stops.

- *Latency*: a round-trip time between the regions of two places, plus the access line of each.
- *Bandwidth*: a place sends one thing after another. Receiving is not limited.
- *Loss*: TCP repeats a lost segment after a timeout, and holds back what came after it on the same
  connection. So a loss is a delay.
- *Partition*: what is sent across waits until the partition ends, as TCP's repeats do.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import trio

TICK: Final = 0.001
"""Seconds."""
SEGMENT: Final = 1400
"""Bytes of a TCP segment."""
REPEAT_AFTER: Final = 0.2
"""Seconds until a lost segment is sent again, without the round trip: TCP's shortest timeout."""
ROUND_TRIPS: Final = (
    (0.030, 0.065, 0.090, 0.170, 0.210, 0.125, 0.200),
    (0.065, 0.030, 0.145, 0.110, 0.220, 0.180, 0.145),
    (0.090, 0.145, 0.025, 0.230, 0.125, 0.200, 0.270),
    (0.170, 0.110, 0.230, 0.040, 0.100, 0.280, 0.110),
    (0.210, 0.220, 0.125, 0.100, 0.030, 0.310, 0.150),
    (0.125, 0.180, 0.200, 0.280, 0.310, 0.030, 0.310),
    (0.200, 0.145, 0.270, 0.110, 0.150, 0.310, 0.025),
)
"""Seconds between regions, in round numbers as data centres see them: the east and west of North
America, Europe, East Asia, South Asia, South America, Oceania."""
ACCESS: Final = (0.001, 0.010)
"""Seconds that an access line adds each way: at least, at most."""

Action = Callable[[], object]


@dataclass(eq=False, slots=True)
class Place:
    """Where a node is, and its line."""

    number: int
    region: int
    access: float
    bandwidth: float
    """Bytes a second that it can send."""
    free_at: float = 0.0
    """When its line will have sent what it was given."""
    sent: int = 0
    """Bytes."""

    @classmethod
    def at_random(cls, number: int, bandwidth: float, rng: random.Random) -> Place:
        """Return a place in one of the regions."""
        return cls(number, rng.randrange(len(ROUND_TRIPS)), rng.uniform(*ACCESS), bandwidth)


def round_trip(a: Place, b: Place) -> float:
    """Return the round-trip time between two places in seconds."""
    return ROUND_TRIPS[a.region][b.region] + 2 * (a.access + b.access)


@dataclass(eq=False, slots=True)
class Lane:
    """One direction of a connection. What is sent on it arrives in order."""

    source: Place
    target: Place
    latency: float = field(init=False)
    last_due: float = 0.0

    def __post_init__(self) -> None:
        self.latency = round_trip(self.source, self.target) / 2


class Wire:
    """Carries everything between all places.

    Args:
        loss: the probability that a segment is lost.
        rng: draws which ones are.
    """

    def __init__(self, loss: float, rng: random.Random) -> None:
        self._loss = loss
        self._random = rng
        self._due: list[tuple[int, int, Action]] = []
        self._number = 0
        self._sleep = trio.CancelScope()
        self._cut_off: frozenset[int] = frozenset()
        self._held: list[tuple[Lane, int, Action]] = []

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            now = _ticks(trio.current_time())
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            next_due = self._due[0][0] * TICK if self._due else math.inf
            with trio.CancelScope(deadline=next_due) as self._sleep:
                await trio.sleep_forever()

    def after(self, delay: float, action: Action) -> None:
        """Do something after some seconds."""
        self._at(trio.current_time() + delay, action)

    def carry(self, lane: Lane, size: int, action: Action) -> float:
        """Send bytes; `action` is what happens when they arrive.

        Returns:
            When the line of the source has sent them.
        """
        source, now = lane.source, trio.current_time()
        source.sent += size
        source.free_at = max(now, source.free_at) + size / source.bandwidth
        if self.is_cut(lane.source, lane.target):
            self._held.append((lane, size, action))
        else:
            self._deliver(lane, source.free_at, size, action)
        return source.free_at

    def is_cut(self, a: Place, b: Place) -> bool:
        """Return whether a partition separates two places."""
        return (a.number in self._cut_off) != (b.number in self._cut_off)

    def cut_off(self, places: Collection[Place]) -> None:
        """Separate some places from all others from now on; none: end the partition."""
        self._cut_off = frozenset(place.number for place in places)
        held, self._held = self._held, []
        for lane, size, action in held:
            if self.is_cut(lane.source, lane.target):
                self._held.append((lane, size, action))
            else:
                self._deliver(lane, trio.current_time(), size, action)

    def _deliver(self, lane: Lane, sent_at: float, size: int, action: Action) -> None:
        due = sent_at + lane.latency
        if self._loss:
            for _ in range(-(-size // SEGMENT)):
                while self._random.random() < self._loss:
                    due += REPEAT_AFTER + 2 * lane.latency
        lane.last_due = max(lane.last_due, due)
        self._at(lane.last_due, action)

    def _at(self, when: float, action: Action) -> None:
        self._number += 1
        heapq.heappush(self._due, (_ticks(when), self._number, action))
        if when < self._sleep.deadline:
            self._sleep.deadline = _ticks(when) * TICK


def _ticks(seconds: float) -> int:
    return math.ceil(seconds / TICK - 1e-6)
