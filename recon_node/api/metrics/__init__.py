"""GET /metrics: what the node holds and does, for Prometheus.

- `catalogue`: every metric, with its meaning
- `collector`: their values, read from the node's parts at the moment of the scrape

The registry is the node's own, so that several nodes can live in one process. Only HTTP requests
are counted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from recon_node.api.metrics.catalogue import REQUESTS, REQUESTS_IN_PROGRESS
from recon_node.api.metrics.collector import NodeCollector
from recon_node.api.services import Services
from recon_node.base.timing import Durations

_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})
_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)


class Metrics(Collector):
    """The metrics of a node, and of the HTTP requests that its API answers.

    They are read from `services` when Prometheus asks for them.
    """

    def __init__(self, services: Services) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(services))
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._durations: defaultdict[tuple[str, ...], Durations] = defaultdict(
            partial(Durations, _BOUNDS)
        )
        self.in_progress = 0
        """Requests that are not fully answered yet."""

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the HTTP requests."""
        yield REQUESTS.histogram(self._durations)
        yield REQUESTS_IN_PROGRESS.of(self.in_progress)

    def render(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def record(self, method: str, path: str, status: int | None, seconds: float) -> None:
        """Count one request; `path` is its template or "other", and `status` is None when it ended
        without an answer."""
        method = method if method in _METHODS else "other"
        self._durations[method, path, str(status or 0)].observe(seconds)
