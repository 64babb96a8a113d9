"""GET /metrics: what the node holds and does, for Prometheus.

- `catalogue`: every metric, with its meaning
- `collector`: their values, read from the node's parts at the moment of the scrape

The registry is the node's own, so that several nodes can live in one process. Only HTTP requests
are counted here, and the event loop is watched.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import trio
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from recon_node.api.metrics.catalogue import REQUESTS, REQUESTS_IN_PROGRESS
from recon_node.base.timing import Durations

_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
LOOP_WINDOW: Final = 10.0
"""Seconds for which the longest hold of the event loop is kept at least."""


class Metrics(Collector):
    """The metrics of a node, and of the HTTP requests that its API answers.

    Those of the node are collected from `node` when Prometheus asks for them.
    """

    def __init__(self, node: Collector) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(node)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self.durations: defaultdict[tuple[str, ...], Durations] = defaultdict(
            partial(Durations, _BOUNDS)
        )
        """Of requests, by method, path (its template, or "other") and status (0: no answer)."""
        self.in_progress = 0
        """Requests that are not fully answered yet."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the HTTP requests."""
        yield REQUESTS.histogram(self.durations)
        yield REQUESTS_IN_PROGRESS.of(self.in_progress)

    def render(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class LoopWatch(trio.abc.Instrument):
    """Measures for how long the event loop is held: between two looks at its sockets and timers,
    nothing else of the node can happen.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._since = self._begun = now()
        self._longest = self._longest_before = 0.0

    def after_io_wait(self, timeout: float) -> None:
        """Note that the loop has looked at its sockets, and runs tasks from now on."""
        self._since = now = self._now()
        if now - self._begun >= LOOP_WINDOW:
            self._turn(now)

    def before_io_wait(self, timeout: float) -> None:
        """Note that the tasks have run, and the loop looks again."""
        now = self._now()
        if now - self._begun >= LOOP_WINDOW:
            self._turn(now)
        held = now - self._since
        if held > self._longest:
            self._longest = held

    @property
    def longest_hold(self) -> float:
        """The longest hold that ended in the last ten to thirty seconds, in seconds."""
        return max(self._longest, self._longest_before)

    async def run(self) -> None:
        """Measure until cancelled."""
        trio.lowlevel.add_instrument(self)
        try:
            await trio.sleep_forever()
        finally:
            trio.lowlevel.remove_instrument(self)

    def _turn(self, now: float) -> None:
        passed = now - self._begun
        self._longest_before = self._longest if passed < 2 * LOOP_WINDOW else 0.0
        self._longest, self._begun = 0.0, now
