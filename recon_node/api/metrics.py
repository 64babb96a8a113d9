"""GET /metrics: what the node holds and does, for Prometheus.

The registry is the node's own, so that several nodes can live in one process. Most numbers are
not kept here but read from the store and the network side at the moment of the scrape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from recon_node import __version__
from recon_node.api.services import ChainSide, Peers, Services
from recon_node.chain import BUCKETS

if TYPE_CHECKING:
    from recon_node.p2p import Counters

_METHODS = frozenset({"GET", "HEAD", "POST", "OPTIONS"})


class Metrics:
    """The metrics of a node, and of the HTTP requests that its API answers.

    Args:
        services: what they are read from when Prometheus asks for them.
    """

    def __init__(self, services: Services) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(NodeCollector(services))
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "recon_http_requests",
            "HTTP requests answered, by method, path and status; status 0: the client hung up.",
            ["method", "path", "status"],
            registry=self._registry,
        )
        self.under_way = Gauge(
            "recon_http_requests_under_way",
            "HTTP requests that are not fully answered yet.",
            registry=self._registry,
        )
        self._seconds = Histogram(
            "recon_http_request_seconds",
            "Time from the request's headers to the end of the answer, long polls included.",
            ["path"],
            registry=self._registry,
            buckets=(0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60),
        )

    def render(self) -> bytes:
        """Write the metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def record(self, method: str, path: str, status: int | None, seconds: float) -> None:
        """Count one request; `path` is its template or "other", and `status` is None when it ended
        without an answer."""
        method = method if method in _METHODS else "other"
        self._requests.labels(method, path, str(status or 0)).inc()
        self._seconds.labels(path).observe(seconds)


class NodeCollector(Collector):
    """Reads the store's and the network side's numbers when Prometheus asks for them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of the node, as they are now."""
        yield from self._store()
        if self._services.anchors is not None:
            yield from _chain_metrics(self._services.anchors)
        if self._services.peers is not None:
            yield from self._network(self._services.peers)

    def _store(self) -> Iterator[Metric]:
        store = self._services.store
        stats = store.stats
        info = GaugeMetricFamily("recon_node", "Always 1.", labels=["version", "network", "epoch"])
        info.add_metric([__version__, store.network.name, store.epoch], 1)
        yield info
        yield _gauges(
            "recon_events",
            "Events held: known is all of them, delivered those in the feed, waiting those whose "
            "history is not complete here, pending those whose anchor has not been looked up.",
            "state",
            {
                "known": stats.events,
                "delivered": stats.delivered,
                "waiting": stats.waiting,
                "pending": stats.pending,
            },
        )
        yield GaugeMetricFamily(
            "recon_pending_proofs",
            "Distinct proofs of time events whose anchor is to be looked up.",
            stats.pending_proofs,
        )
        yield GaugeMetricFamily(
            "recon_damaged_events",
            "Events found damaged in the log and not mended yet.",
            store.damage.count,
        )
        yield CounterMetricFamily(
            "recon_mended_events",
            "Damaged events that were replaced by a sound copy since the start.",
            store.damage.mended_total,
        )
        yield GaugeMetricFamily("recon_feed_head", "The feed's last position.", store.head)
        sample = self._services.samples.latest
        if sample is not None:
            yield GaugeMetricFamily(
                "recon_event_loop_hold_seconds",
                "The longest time for which the event loop was held in the last ten seconds.",
                sample.lag,
            )
        yield _counters(
            "recon_verdicts",
            "Events submitted since the start, by verdict.",
            "status",
            {
                "new": stats.admitted_total,
                "known": stats.known_total,
                "refused": stats.refused_total,
                "late_refused": stats.late_refused_total,
            },
        )
        yield CounterMetricFamily(
            "recon_policy_refused",
            "Events submitted since the start that the write policy refused.",
            stats.policy_refused_total,
        )
        yield CounterMetricFamily(
            "recon_policy_failures",
            "Streams for which a write policy in Python raised, hung or gave no verdict.",
            store.policy.failures_total,
        )
        yield _counters(
            "recon_commits",
            "Transactions of the event log, by outcome.",
            "outcome",
            {"ok": stats.batches_total, "failed": stats.failed_batches_total},
        )

    def _network(self, peers: Peers) -> Iterator[Metric]:
        known = peers.peers()
        connected = sum(peer.connected for peer in known)
        yield _gauges(
            "recon_peers",
            "Known peers, and those of them that are connected.",
            "state",
            {"known": len(known), "connected": connected},
        )
        yield from _discovery(peers)
        yield from _sync_counters(peers.counters)
        seconds = sorted(report.seconds for report in peers.sync_reports)
        if seconds:
            yield _gauges(
                "recon_sync_seconds",
                "How long the latest syncs took.",
                "of",
                {"median": seconds[len(seconds) // 2], "longest": seconds[-1]},
            )


def _discovery(peers: Peers) -> Iterator[Metric]:
    every = peers.rendezvous()
    yield _gauges(
        "recon_rendezvous",
        "Rendezvous of this node in the DHT, and those of them at which peers have a record of it.",
        "state",
        {"all": len(every), "announced": sum(each.told > 0 for each in every)},
    )
    yield _gauges(
        "recon_rendezvous_found",
        "Other nodes found in the last hour, at the network's rendezvous and at the interests'.",
        "at",
        {
            "network": sum(each.found for each in every if each.sort_value is None),
            "interests": sum(each.found for each in every if each.sort_value is not None),
        },
    )
    yield GaugeMetricFamily(
        "recon_provider_records",
        "Provider records that this node keeps in the DHT for others.",
        peers.provider_records,
    )


def _chain_metrics(anchors: ChainSide) -> Iterator[Metric]:
    lookups = CounterMetricFamily(
        "recon_anchor_lookups",
        "Lookups of anchors: the block's time was found; the transaction contradicts the proof; "
        "there is no such transaction; it is not final yet; there was no usable answer.",
        labels=["chain", "outcome"],
    )
    failures = CounterMetricFamily(
        "recon_rpc_failures", "Requests that an RPC endpoint did not answer.", labels=["chain"]
    )
    seconds = HistogramMetricFamily(
        "recon_rpc_seconds", "Time of the requests that were answered.", labels=["chain"]
    )
    for report in anchors.reports:
        for outcome, count in report.lookups.items():
            lookups.add_metric([report.chain_id, outcome], count)
        failures.add_metric([report.chain_id], report.failures)
        bounds = [*map(str, BUCKETS), "+Inf"]
        buckets = list(zip(bounds, accumulate(report.answers), strict=True))
        seconds.add_metric([report.chain_id], buckets, report.answer_seconds)
    yield from (lookups, failures, seconds)


def _sync_counters(counters: Counters) -> Iterator[Metric]:
    yield _counters(
        "recon_sessions",
        "Recon sessions: initiated by this node, answered, failed, or refused as too many.",
        "kind",
        {
            "initiated": counters.sessions_initiated,
            "answered": counters.sessions_answered,
            "failed": counters.sessions_failed,
            "refused": counters.sessions_refused,
        },
    )
    yield CounterMetricFamily(
        "recon_rounds", "Recon messages received, in all sessions.", counters.rounds
    )
    size = CounterMetricFamily(
        "recon_sync_bytes",
        "Bytes of frames, by protocol (recon: messages; events: CARs) and direction.",
        labels=["protocol", "direction"],
    )
    size.add_metric(["recon", "sent"], counters.recon_bytes_sent)
    size.add_metric(["recon", "received"], counters.recon_bytes_received)
    size.add_metric(["events", "sent"], counters.event_bytes_sent)
    size.add_metric(["events", "received"], counters.event_bytes_received)
    yield size
    yield _counters(
        "recon_peer_events",
        "Events that peers listed: received and valid, refused, or missing when asked for.",
        "outcome",
        {
            "received": counters.events_received,
            "refused": counters.events_refused,
            "missing": counters.events_missing,
        },
    )
    yield _counters(
        "recon_keys_left_out",
        "Keys that one side of a session listed and the other left out, counted in each session: "
        "by this node, or by its peers.",
        "by",
        {"node": counters.keys_left_out, "peers": counters.keys_left_out_by_peers},
    )
    yield _counters(
        "recon_interest_statements",
        "Statements of interests exchanged with peers.",
        "direction",
        {"sent": counters.gossip.sent, "received": counters.gossip.received},
    )
    yield GaugeMetricFamily(
        "recon_peers_stating_interests",
        "Connected peers that have stated their interests.",
        counters.gossip.peers,
    )
    yield CounterMetricFamily(
        "recon_keys_unwanted",
        "Keys that peers listed and whose events the write policy kept from being fetched, counted "
        "in each session.",
        counters.keys_unwanted,
    )
    yield CounterMetricFamily(
        "recon_dials_failed", "Peers that could not be dialled.", counters.dials_failed
    )
    yield _gauges(
        "recon_peer_memory_bytes",
        "Memory that peers make the node use, by what it holds for them (max_peer_memory).",
        "kind",
        counters.memory.by_kind,
    )
    yield CounterMetricFamily(
        "recon_peers_cut_off",
        "Peers cut off for using the most memory when the budget was exceeded.",
        counters.memory.cut_off,
    )


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
