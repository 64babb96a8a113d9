"""What a node holds and does, read from its parts at the moment of the scrape."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from recon_node import __version__
from recon_node.api.metrics import catalogue as m

if TYPE_CHECKING:
    from recon_node.anchoring.anchoring_service import Anchoring
    from recon_node.api.endpoint import Services
    from recon_node.chain import ChainReport
    from recon_node.p2p import P2P, PeerInfo


class NodeCollector(Collector):
    """Reads all parts of a node that it has."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        """Yield the node's metrics, as they are now."""
        services = self._services
        native = services.store.native_core or ""
        yield m.BUILD.by({(__version__, platform.python_version(), native): 1})
        yield from self._store()
        if services.data_dir is not None:
            with suppress(OSError):  # a disk that is gone: the absence shows it
                yield m.DISK_FREE.of(shutil.disk_usage(services.data_dir).free)
            yield m.DISK_KEEP_FREE.of(services.store.disk.keep)
        yield m.LOOP.of(services.loop.longest_hold)
        if services.anchors is not None:
            yield from _chain(services.anchors)
        if services.anchoring is not None:
            yield from _anchoring(services.anchoring)
        if services.snapshots is not None:
            yield m.SNAPSHOTS.histogram(services.snapshots.durations)
            yield m.SNAPSHOT_TIME.of(services.snapshots.created_at)
        if services.peers is not None:
            yield from _peers(services.peers)
            yield from _sessions(services.peers)
            yield from _memory(services.peers)

    def _store(self) -> Iterator[Metric]:
        store, peers = self._services.store, self._services.peers
        totals = store.totals
        peer_id = "" if peers is None else peers.peer_id
        yield m.NODE.by({(store.network.name, store.epoch, peer_id): 1})
        yield m.EVENTS.by_one(
            {"delivered": store.head, "waiting": store.waiting, "pending": store.pending}
        )
        yield m.FEED_HEAD.of(store.head)
        yield m.PENDING_PROOFS.of(store.proofs_pending)
        yield m.DAMAGED.of(store.damage.count)
        yield m.UNPROCESSED.of(len(self._services.evaluation.aside))
        yield m.REPAIRED.of(store.damage.repaired_total)
        yield m.VERDICTS.by_one(
            {
                "new": totals["new"],
                "known": totals["known"],
                "refused": totals["refused"] - totals["policy refused"],
                "refused_by_policy": totals["policy refused"],
                "refused_late": totals["late refused"],
            }
        )
        yield m.BATCHES.histogram(
            {(outcome,): took for outcome, took in store.batch_durations.items()}
        )


def _chain(reports: Sequence[ChainReport]) -> Iterator[Metric]:
    yield m.LOOKUPS.by(
        {
            (report.chain_id, outcome): count
            for report in reports
            for outcome, count in report.lookups.items()
        }
    )
    yield m.RPC.histogram({(report.chain_id,): report.answers for report in reports})
    yield m.RPC_FAILURES.by_one({report.chain_id: report.failures for report in reports})


def _anchoring(anchoring: Anchoring) -> Iterator[Metric]:
    if (known := anchoring.known) is not None:
        counts = {state.name.lower(): count for state, count in known.counts.items()}
        yield m.ANCHORING.by_one({state: counts[state] for state in ("waiting", "in_tree")})
        yield m.ANCHORED.of(known.trees)
        yield m.ANCHOR_SPENT.of(known.spent / 10**18)
    if (account := anchoring.account) is not None and account.balance is not None:
        yield m.ANCHOR_BALANCE.of(account.balance / 10**18)
    yield m.ANCHOR_ALARM.of(bool(anchoring.alarm))


def _peers(peers: P2P) -> Iterator[Metric]:
    known = peers.peers()
    connected = [peer for peer in known if peer.connected]
    apart = len(known) - len(connected)
    yield m.PEERS.by_one({"connected": len(connected), "disconnected": apart})
    yield from _worth(connected)
    yield m.PEERS_STATING.of(peers.counters.peers_stating)
    every = peers.rendezvous()
    announced = sum(report.told > 0 for report in every)
    yield m.RENDEZVOUS.by_one({"announced": announced, "not_announced": len(every) - announced})
    yield m.RENDEZVOUS_FOUND.by_one(
        {
            "network": sum(report.found for report in every if report.sort_value is None),
            "interests": sum(report.found for report in every if report.sort_value is not None),
        }
    )
    yield m.PROVIDER_RECORDS.of(peers.provider_records)
    yield m.DIALS_FAILED.of(peers.counters.dials_failed)


_LATENCIES: Final = {0.02: "under_20ms", 0.1: "under_100ms", 0.5: "under_500ms", inf: "slower"}
_LAGS: Final = {1e-4: "in_sync", 0.01: "under_1_percent", 0.1: "under_10_percent", inf: "further"}
_OVERLAPS: Final = {1e-9: "nothing", 0.5: "under_half", 1.0: "over_half", inf: "everything"}
_UNKNOWN: Final = "unknown"


def _worth(connected: Sequence[PeerInfo]) -> Iterator[Metric]:
    """Yield what connected peers are worth, as numbers of peers: their ids would be labels without
    a bound."""
    latencies = [peer.latency for peer in connected]
    yield m.PEERS_BY_LATENCY.by_one(_counted(latencies, _LATENCIES) | _unknown(latencies))
    yield m.PEERS_BY_LAG.by_one(_counted([peer.behind for peer in connected], _LAGS))
    overlaps = [peer.covers for peer in connected]
    yield m.PEERS_BY_OVERLAP.by_one(_counted(overlaps, _OVERLAPS) | _unknown(overlaps))
    yield m.PEERS_FAILING.of(sum(peer.failures > 0 for peer in connected))
    yield m.LARGEST_SCORE.of(max((peer.score or 0.0 for peer in connected), default=0.0))


def _counted(values: Sequence[float | None], bins: Mapping[float, str]) -> dict[str, float]:
    """Count known values by the first of some bins, ascending, whose upper bound is above them."""
    counts = dict.fromkeys(bins.values(), 0.0)
    for value in values:
        if value is not None:
            counts[next(name for bound, name in bins.items() if value < bound)] += 1
    return counts


def _unknown(values: Sequence[float | None]) -> dict[str, float]:
    return {_UNKNOWN: float(values.count(None))}


def _sessions(peers: P2P) -> Iterator[Metric]:
    counters = peers.counters
    yield m.SESSIONS.histogram(counters.durations)
    yield m.SESSIONS_REFUSED.of(counters.sessions_refused)
    yield m.ROUNDS.of(counters.rounds)
    yield m.SYNC_BYTES.by(
        {
            ("recon", "sent"): counters.recon_bytes_sent,
            ("recon", "received"): counters.recon_bytes_received,
            ("events", "sent"): counters.event_bytes_sent,
            ("events", "received"): counters.event_bytes_received,
        }
    )
    yield m.PEER_EVENTS.by_one(
        {
            "received": counters.events_received,
            "refused": counters.events_refused,
            "missing": counters.events_missing,
        }
    )
    yield m.KEYS_LEFT_OUT.by_one(
        {"node": counters.keys_left_out, "peers": counters.keys_left_out_by_peers}
    )
    yield m.KEYS_UNWANTED.of(counters.keys_unwanted)
    yield m.STATEMENTS.by_one(
        {"sent": counters.statements_sent, "received": counters.statements_received}
    )


def _memory(peers: P2P) -> Iterator[Metric]:
    memory = peers.counters.memory
    yield m.PEER_MEMORY.by_one(memory.by_kind)
    yield m.PEER_MEMORY_LIMIT.of(memory.limit)
    yield m.PEERS_CUT_OFF.of(memory.cut_off)
