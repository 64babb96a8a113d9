"""GET /metrics: what the node holds and does, for Prometheus.

The registry is the node's own, so that several nodes can live in one process. Most numbers are
not kept here but read from the store and the network side at the moment of the scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from recon_node import __version__
from recon_node.api.services import Services

_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})


class HttpMetrics:
    """Counts and times HTTP requests.

    Args:
        registry: where the metrics are registered.
        paths: the path template of each endpoint; whatever else is asked for counts as "other".
    """

    def __init__(
        self, registry: CollectorRegistry, paths: Mapping[Callable[..., Any], str]
    ) -> None:
        self._paths = paths
        self._requests = Counter(
            "recon_http_requests",
            "HTTP requests answered, by method, path and status; status 0: the client hung up.",
            ["method", "path", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "recon_http_request_seconds",
            "Time from the request's headers to the end of the answer, long polls included.",
            ["path"],
            registry=registry,
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60),
        )

    def record(self, scope: Scope, status: int | None, seconds: float) -> None:
        """Count one request; `status` is None when it ended without an answer."""
        path = self._paths.get(scope.get("endpoint"), "other")  # type: ignore[arg-type]
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, path, str(status or 0)).inc()
        self._seconds.labels(path).observe(seconds)


class NodeCollector(Collector):
    """Reads the store's and the network side's numbers when Prometheus asks for them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """All metrics of the node, as they are now."""
        yield from self._store()
        if self._services.peers is not None:
            yield from self._network()

    def _store(self) -> Iterator[Metric]:
        store = self._services.store
        stats = store.stats
        info = GaugeMetricFamily("recon_node", "Always 1.", labels=["version", "network", "epoch"])
        info.add_metric([__version__, store.network.name, store.epoch], 1)
        yield info
        events = GaugeMetricFamily(
            "recon_events",
            "Events held: known is all of them, delivered those in the feed, waiting those whose "
            "history is not complete here, pending those whose anchor was not looked up.",
            labels=["state"],
        )
        events.add_metric(["known"], stats.events)
        events.add_metric(["delivered"], stats.delivered)
        events.add_metric(["waiting"], stats.waiting)
        events.add_metric(["pending"], stats.pending)
        yield events
        yield GaugeMetricFamily("recon_feed_head", "The feed's last position.", store.head)
        verdicts = CounterMetricFamily(
            "recon_verdicts", "Events handed in since the start, by verdict.", labels=["status"]
        )
        verdicts.add_metric(["new"], stats.admitted_total)
        verdicts.add_metric(["known"], stats.known_total)
        verdicts.add_metric(["refused"], stats.refused_total)
        verdicts.add_metric(["late_refused"], stats.late_refused_total)
        yield verdicts
        batches = CounterMetricFamily(
            "recon_commits", "Transactions of the event log, by outcome.", labels=["outcome"]
        )
        batches.add_metric(["ok"], stats.batches_total)
        batches.add_metric(["failed"], stats.failed_batches_total)
        yield batches


async def get_metrics(request: Request) -> Response:
    """The metrics in Prometheus' text format."""
    registry: CollectorRegistry = request.app.state.registry
    return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def make_registry(services: Services) -> CollectorRegistry:
    """A registry with the node's and the process's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(services))
    ProcessCollector(registry=registry)
    return registry
