"""Every metric of a node: name, type, labels and meaning.

Names and units follow Prometheus' conventions: base units, `_total` for counters, `_info` for
facts. The values of a label never overlap, so that their sum is the total. `docs/metrics.md` and
the tests of the Grafana board read this list.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from recon_node.base.timing import Durations

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Family:
    """A metric, with all its labels."""

    kind: Kind
    name: str
    """As Prometheus shows it; a histogram's adds `_bucket`, `_sum` and `_count`."""
    help: str
    labels: tuple[str, ...] = ()

    def of(self, value: float) -> Metric:
        """Return the metric with its one value. It has no labels."""
        return self.by({(): value})

    def by(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """Return the metric with a value for each set of label values."""
        kind = CounterMetricFamily if self.kind == "counter" else GaugeMetricFamily
        family = kind(self.name, self.help, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family

    def by_one(self, values: Mapping[str, float]) -> Metric:
        """Return the metric with a value for each value of its one label."""
        return self.by({(label,): value for label, value in values.items()})

    def histogram(self, values: Mapping[tuple[str, ...], Durations]) -> Metric:
        """Return the histogram with durations for each set of label values."""
        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, durations in values.items():
            family.add_metric(labels, durations.cumulative(), durations.sum)
        return family


counter = partial(Family, "counter")
gauge = partial(Family, "gauge")
histogram = partial(Family, "histogram")

BUILD: Final = gauge(
    "recon_build_info",
    "Always 1. The versions that run; native: of the native core, empty without one.",
    ("version", "python_version", "native"),
)
NODE: Final = gauge(
    "recon_node_info",
    "Always 1. The Ceramic network, the epoch of the feed, and the peer id.",
    ("network", "epoch", "peer_id"),
)

EVENTS: Final = gauge(
    "recon_events",
    "Events held: delivered in the feed, waiting for their history, or pending until their anchor "
    "has been looked up.",
    ("state",),
)
FEED_HEAD: Final = gauge("recon_feed_head", "The feed's last position.")
PENDING_PROOFS: Final = gauge(
    "recon_pending_proofs", "Distinct proofs of time events whose anchor is to be looked up."
)
DAMAGED: Final = gauge(
    "recon_damaged_events", "Events found damaged in the log and not repaired yet."
)
UNPROCESSED: Final = gauge(
    "recon_unprocessed_streams", "Streams that are set aside: nothing is computed of them."
)
REPAIRED: Final = counter(
    "recon_mended_events_total", "Damaged events that were replaced by a sound copy."
)
VERDICTS: Final = counter(
    "recon_verdicts_total",
    "Events submitted, by verdict: new, known, refused, refused_by_policy; and refused_late, which "
    "were new but turned out wrong when their history came.",
    ("status",),
)
BATCHES: Final = histogram(
    "recon_admission_batch_duration_seconds",
    "Time to judge and write a batch of events, in one transaction; failed: the disk did not "
    "take it.",
    ("outcome",),
)
DISK_FREE: Final = gauge("recon_disk_free_bytes", "Free space on the disk of the data directory.")
DISK_KEEP_FREE: Final = gauge(
    "recon_disk_keep_free_bytes",
    "Space that is kept free of what comes from peers (keep_free): with less, nothing is taken.",
)

LOOP: Final = gauge(
    "recon_event_loop_hold_seconds",
    "The longest time for which the event loop was held, in the last ten to thirty seconds.",
)

PEERS: Final = gauge("recon_peers", "Known peers.", ("state",))
PEERS_STATING: Final = gauge(
    "recon_peers_stating_interests", "Connected peers that have stated their interests."
)
PEERS_BY_LATENCY: Final = gauge(
    "recon_peers_by_latency", "Connected peers, by their round-trip time.", ("latency",)
)
PEERS_BY_LAG: Final = gauge(
    "recon_peers_by_lag",
    "Connected peers, by how far each and this node were apart lately: the share of the common "
    "keys that one of them lacked, which fades.",
    ("behind",),
)
PEERS_BY_OVERLAP: Final = gauge(
    "recon_peers_by_overlap",
    "Connected peers, by how many of this node's events they are interested in.",
    ("covers",),
)
PEERS_FAILING: Final = gauge(
    "recon_peers_failing",
    "Connected peers whose last sync failed, so that they are drawn less often.",
)
LARGEST_SCORE: Final = gauge(
    "recon_peer_largest_score_ratio",
    "How likely the peer that is worth most is drawn for the next sync, from 0 to 1.",
)
RENDEZVOUS: Final = gauge(
    "recon_rendezvous",
    "Rendezvous of this node in the DHT; announced: peers there have a record of it.",
    ("state",),
)
RENDEZVOUS_FOUND: Final = gauge(
    "recon_rendezvous_found",
    "Other nodes found in the last hour, at the network's rendezvous and at the interests'.",
    ("at",),
)
PROVIDER_RECORDS: Final = gauge(
    "recon_provider_records", "Provider records that this node keeps in the DHT for others."
)
SESSIONS: Final = histogram(
    "recon_session_duration_seconds",
    "How long Recon sessions took, by this node's role and what came of them.",
    ("role", "outcome"),
)
SESSIONS_REFUSED: Final = counter(
    "recon_sessions_refused_total",
    "Sessions of peers that were refused because there were too many at once.",
)
ROUNDS: Final = counter(
    "recon_rounds_total", "Recon messages received, in all sessions that have ended."
)
SYNC_BYTES: Final = counter(
    "recon_sync_bytes_total",
    "Bytes of frames, by protocol (recon: messages; events: CARs) and direction.",
    ("protocol", "direction"),
)
PEER_EVENTS: Final = counter(
    "recon_peer_events_total",
    "Events that peers listed: received and valid, refused, or missing when asked for.",
    ("outcome",),
)
KEYS_LEFT_OUT: Final = counter(
    "recon_keys_left_out_total",
    "Keys that one side of a session listed and the other left out, counted in each session: "
    "by this node, or by its peers.",
    ("by",),
)
KEYS_UNWANTED: Final = counter(
    "recon_keys_unwanted_total",
    "Keys that peers listed and whose events the write policy kept from being fetched, counted "
    "in each session.",
)
STATEMENTS: Final = counter(
    "recon_interest_statements_total",
    "Statements of interests exchanged with peers.",
    ("direction",),
)
DIALS_FAILED: Final = counter("recon_dials_failed_total", "Peers that could not be dialled.")
PEER_MEMORY: Final = gauge(
    "recon_peer_memory_bytes",
    "Memory that peers make the node use, by what it holds for them.",
    ("kind",),
)
PEER_MEMORY_LIMIT: Final = gauge(
    "recon_peer_memory_limit_bytes", "The most that they may make it use (max_peer_memory)."
)
PEERS_CUT_OFF: Final = counter(
    "recon_peers_cut_off_total",
    "Peers cut off for using the most memory when the limit was exceeded.",
)

LOOKUPS: Final = counter(
    "recon_anchor_lookups_total",
    "Lookups of anchors: the block's time was found (anchored), the transaction contradicts the "
    "proof (invalid), there is no such transaction (unknown), it is not final yet (unconfirmed), "
    "there was no usable answer (failed).",
    ("chain", "outcome"),
)
RPC: Final = histogram(
    "recon_rpc_duration_seconds", "Time of the requests that an RPC endpoint answered.", ("chain",)
)
RPC_FAILURES: Final = counter(
    "recon_rpc_failures_total", "Requests that an RPC endpoint did not answer.", ("chain",)
)

ANCHORING: Final = gauge(
    "recon_anchoring_requests",
    "Events that this node is to anchor: waiting for a tree, or in one that is under way.",
    ("state",),
)
ANCHORED: Final = gauge(
    "recon_anchoring_trees", "Merkle trees that this node anchored, since its first start."
)
ANCHOR_SPENT: Final = gauge(
    "recon_anchoring_spent_coins", "What these trees cost, in whole coins of the chain."
)
ANCHOR_BALANCE: Final = gauge(
    "recon_anchoring_balance_coins",
    "What the account that pays had when the chain was last asked, in whole coins.",
)
ANCHOR_ALARM: Final = gauge(
    "recon_anchoring_alarm",
    "1: somebody should do something about anchoring (`recon-node anchor status`). 0: all is well.",
)

SNAPSHOTS: Final = histogram(
    "recon_snapshot_duration_seconds",
    "How long snapshots took: to create one, or to sync from one.",
    ("operation", "outcome"),
)
SNAPSHOT_TIME: Final = gauge(
    "recon_snapshot_last_success_timestamp_seconds",
    "When a snapshot was last created without a fault, in Unix seconds; 0: not since the start.",
)

REQUESTS: Final = histogram(
    "recon_http_request_duration_seconds",
    "Time from an HTTP request's headers to the end of the answer, long polls included. Path is "
    'the template, or "other". Status 0: the client hung up.',
    ("method", "path", "status"),
)
REQUESTS_IN_PROGRESS: Final = gauge(
    "recon_http_requests_in_progress", "HTTP requests that are not fully answered yet."
)

FAMILIES: Final = [family for family in globals().values() if isinstance(family, Family)]
"""All of them, in this order."""
