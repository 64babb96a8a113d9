"""Prometheus metrics of `spark-sink serve`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import duckdb
from prometheus_client import Counter, Gauge, Histogram

from spark_sink.exposition import new_registry
from spark_sink.serve.workers import QueryLimits

# Seconds.
_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class FlightMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, limits: QueryLimits) -> None:
        self.registry = new_registry(
            "spark_sink_flight_build_info", duckdb_version=duckdb.__version__
        )
        self.calls = Histogram(
            "spark_sink_flight_call_duration_seconds",
            "Time of a client's call, by method and gRPC status. A feed counts as one DoGet that "
            "lasts until it ends. Calls beyond the number that gRPC takes at once do not count.",
            ["method", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._running = Gauge(
            "spark_sink_flight_running",
            "Queries that run or are planned, and feeds that are open.",
            ["kind"],
            registry=self.registry,
        )
        limit = Gauge(
            "spark_sink_flight_limit",
            "Most queries, and most feeds, at the same time.",
            ["kind"],
            registry=self.registry,
        )
        limit.labels("query").set(limits.queries)
        limit.labels("feed").set(limits.feeds)
        self.bytes_sent = Counter(
            "spark_sink_flight_sent_bytes",
            "Bytes of answers, before compression and TLS.",
            registry=self.registry,
        )

    def watch(self, queries: Callable[[], int], feeds: Callable[[], int]) -> None:
        """Set the functions that return how many queries run, and how many feeds are open."""
        self._running.labels("query").set_function(queries)
        self._running.labels("feed").set_function(feeds)
