"""Prometheus metrics of `spark-sink run`."""

from functools import partial
from typing import Final

import pyspark
from prometheus_client import Counter, Gauge, Histogram

from spark_sink.exposition import new_registry

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""


class SinkMetrics:
    """The metrics of one run, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = new_registry("spark_sink_build_info", spark_version=pyspark.__version__)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.rows = counter("spark_sink_rows", "Rows written, new and changed.", ["table"])
        about = "The feed position up to which a table is complete."
        self.position = gauge("spark_sink_position", about, ["table"])
        self.head = gauge("spark_sink_feed_head", "The position of the feed's last event.")
        self.lag = gauge(
            "spark_sink_lag_events", "Events of the feed that are not in all tables yet."
        )
        self.batch_duration = Histogram(
            "spark_sink_batch_duration_seconds",
            "Time from a batch's arrival to its last commit.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.takeovers = counter("spark_sink_takeovers", "Changes to another node's log.")
        self.set_aside = counter(
            "spark_sink_streams_set_aside",
            "Streams that were left out of the tables: see unprocessed_streams.",
        )
        self.node_up = gauge("spark_sink_node_up", "Whether the node answers: 1 or 0.")
        self.disk_free = gauge(
            "spark_sink_disk_free_bytes", "Free space on the disk of the tables."
        )

    def reached(self, positions: dict[str, int], head: int | None) -> None:
        """Record the positions of the tables, and the feed's head if it is known."""
        for name, position in positions.items():
            self.position.labels(name).set(position)
            self.rows.labels(name)  # from 0 on, or the first batch would not count as an increase
        self.node_up.set(head is not None)
        if head is not None:
            self.head.set(head)
            self.lag.set(max(0, head - min(positions.values())))
