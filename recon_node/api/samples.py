"""What the node's numbers were in the last hour, for the charts of its page.

A ring of samples, one every ten seconds, is all that is kept: an hour takes 360 of them, whatever
the node does. Totals (syncs, bytes) stay totals; who draws them takes differences.

`LoopWatch` measures for how long the event loop was *held*: between two looks at its sockets and
timers, nothing else of the node can happen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from recon_node.api.services import Services

INTERVAL: Final = 10.0
"""Seconds between two samples."""
KEPT: Final = 360
"""Samples."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The numbers of one moment."""

    time: float
    """Unix seconds."""
    events: int
    """Events held."""
    delivered: int
    """The feed's head."""
    waiting: int
    pending: int
    peers: int
    """Connected ones."""
    syncs: int
    """Since the start."""
    failed_syncs: int
    bytes_sent: int
    """In syncs since the start, keys and events."""
    bytes_received: int
    lag: float
    """For how many seconds the event loop was held at most since the sample before."""


COLUMNS: Final = tuple(field.name for field in fields(Sample))


class SampleRing:
    """The latest samples, the oldest first.

    Args:
        kept: how many.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._samples: deque[Sample] = deque(maxlen=kept)

    def add(self, sample: Sample) -> None:
        """Add the next sample; the oldest goes if the ring is full."""
        self._samples.append(sample)

    @property
    def latest(self) -> Sample | None:
        """The latest one, if there is any."""
        return self._samples[-1] if self._samples else None

    def columns(self) -> dict[str, Sequence[float]]:
        """Return the values of each field, as charts take them."""
        return {name: [getattr(sample, name) for sample in self._samples] for name in COLUMNS}


class LoopWatch(trio.abc.Instrument):
    """Measures the longest time for which the event loop was held.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = now()
        self._longest = 0.0

    def after_io_wait(self, timeout: float) -> None:
        """Note that the loop has looked at its sockets, and runs tasks from now on."""
        self._since = self._now()

    def before_io_wait(self, timeout: float) -> None:
        """Note that the tasks have run, and the loop looks again."""
        held = self._now() - self._since
        if held > self._longest:
            self._longest = held

    def take(self) -> float:
        """Return the longest time since the last call, in seconds."""
        longest, self._longest = self._longest, 0.0
        return longest


def take_sample(services: Services, now: float, lag: float) -> Sample:
    """Read the node's numbers."""
    stats, peers = services.store.stats, services.peers
    counters = None if peers is None else peers.counters
    return Sample(
        time=now,
        events=stats.events,
        delivered=stats.delivered,
        waiting=stats.waiting,
        pending=stats.pending,
        peers=0 if peers is None else sum(peer.connected for peer in peers.peers()),
        syncs=0 if counters is None else counters.sessions_initiated + counters.sessions_answered,
        failed_syncs=0 if counters is None else counters.sessions_failed,
        bytes_sent=0 if counters is None else counters.recon_bytes_sent + counters.event_bytes_sent,
        bytes_received=0
        if counters is None
        else counters.recon_bytes_received + counters.event_bytes_received,
        lag=lag,
    )


async def run_samples(services: Services, clock: Callable[[], float] = time.time) -> None:
    """Take a sample now and every ten seconds, until cancelled."""
    watch = LoopWatch()
    trio.lowlevel.add_instrument(watch)
    try:
        due = trio.current_time()
        while True:
            services.samples.add(take_sample(services, clock(), watch.take()))
            due = max(due + INTERVAL, trio.current_time())
            await trio.sleep_until(due)
    finally:
        trio.lowlevel.remove_instrument(watch)
