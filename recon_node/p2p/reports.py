"""What syncs did: a report for each session, the latest ones, and counters for the metrics page."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Final, Literal, get_args

import structlog
import trio

from recon_node.base.timing import Durations, span
from recon_node.p2p.transport.guarded_connection import MemoryBudget, unlimited

logger = structlog.get_logger(__name__)

MAX_REPORTS: Final = 100
"""Maximum reports kept."""
MAX_TRANSFERS: Final = 500
"""Maximum reports kept of sessions that moved events."""
SUMMARY_INTERVAL: Final = 60.0
"""Seconds between two lines of the log about what the sessions have done."""
FAILURES_SHOWN: Final = 5
"""Failures in that time that have a line of their own at level info."""

Role = Literal["initiator", "responder"]
Result = Literal["agreed", "no_common_interest", "failed"]

AGREED: Final = "agreed"
NO_COMMON_INTEREST: Final = "no common interest"
"""The outcome if nothing that the initiator asked for interests the other side."""
ANOTHER_NETWORK: Final = "another network"
"""How the outcome begins if the peer asks for events of another Ceramic network."""
CANCELLED: Final = "cancelled: this node is stopping"
GAVE_WAY: Final = "cut short: too many at once from its address, and another address needs the slot"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """One recon session with one peer. Bytes are those of frames, without libp2p's overhead."""

    peer: str
    """The peer id."""
    role: Role
    """Who started the session: the initiator."""
    protocol: str
    """The libp2p protocol id of the version of recon."""
    rounds: int
    """Turns that the peer took."""
    bytes_sent: int
    """Of recon messages."""
    bytes_received: int
    """Of recon messages."""
    event_bytes_sent: int
    """Of events that the peer has fetched since our previous session with it ended."""
    event_bytes_received: int
    """Of events fetched from the peer."""
    keys_received: int
    """Keys that the peer listed and that we did not hold."""
    events_received: int
    """Events fetched for them that were valid and new."""
    events_sent: int
    """Those events. If two sessions with a peer overlap, each event counts in one of them."""
    seconds: float
    """How long it took."""
    keys_left_out: int
    """Keys that the peer listed and that we could not get, or refused."""
    keys_left_out_by_peer: int
    """Keys of ours that the peer left out likewise, as far as we know."""
    outcome: str
    """agreed, agreed but for keys left out, no common interest, or what went wrong."""
    finished_at: float
    """Seconds since 1970."""

    @property
    def result(self) -> Result:
        """The kind of outcome."""
        if self.outcome == NO_COMMON_INTEREST:
            return "no_common_interest"
        return "agreed" if self.outcome.startswith(AGREED) else "failed"

    @property
    def went_well(self) -> bool:
        """Whether the session ended as it should."""
        return self.result != "failed"

    @property
    def moved_events(self) -> bool:
        """Whether either side got an event from the other."""
        return bool(self.events_received or self.events_sent)


def agreed_but_for(left_out: int, left_out_by_peer: int) -> str:
    """Return the outcome of a session in which the sides agreed on all keys but those left out."""
    parts = []
    if left_out:
        parts.append(f"{_keys(left_out)} left out here")
    if left_out_by_peer:
        parts.append(f"{_keys(left_out_by_peer)} left out by the peer")
    return f"{AGREED} but for {' and '.join(parts)}" if parts else AGREED


def _keys(number: int) -> str:
    return "1 key" if number == 1 else f"{number:,} keys"


@dataclass(slots=True)
class GossipCounters:
    """Totals since the node was started, and the present number of peers."""

    sent: int = 0
    """Statements sent."""
    received: int = 0
    """Statements received."""
    peers: int = 0
    """Peers that have stated their interests and can tell us of changes."""


@dataclass(slots=True)
class Counters:
    """Totals since the node was started."""

    sessions_initiated: int = 0
    sessions_answered: int = 0
    sessions_failed: int = 0
    sessions_refused: int = 0
    """Inbound ones, because there were too many at once."""
    rounds: int = 0
    recon_bytes_sent: int = 0
    recon_bytes_received: int = 0
    event_bytes_sent: int = 0
    event_bytes_received: int = 0
    keys_received: int = 0
    events_received: int = 0
    events_refused: int = 0
    """Events of peers that were not valid."""
    events_missing: int = 0
    """Events that a peer listed but did not have."""
    keys_left_out: int = 0
    """Keys that peers listed and that were left out, counted in each session."""
    keys_unwanted: int = 0
    """Keys that peers listed and whose events were not fetched, because of the write policy."""
    keys_left_out_by_peers: int = 0
    dials_failed: int = 0
    durations: dict[tuple[str, ...], Durations] = field(
        default_factory=lambda: {
            labels: Durations() for labels in product(get_args(Role), get_args(Result))
        }
    )
    """Of the sessions that have ended, by role and result."""
    gossip: GossipCounters = field(default_factory=GossipCounters)
    """Statements of interests."""
    memory: MemoryBudget = field(default_factory=unlimited)
    """The memory that peers make this node hold now, and how many were cut off for it."""

    def count(self, report: SyncReport) -> None:
        """Add a session that has ended. Keys and events are counted as they arrive."""
        self.sessions_initiated += report.role == "initiator"
        self.sessions_answered += report.role == "responder"
        self.sessions_failed += not report.went_well
        self.durations[report.role, report.result].observe(report.seconds)
        self.keys_left_out += report.keys_left_out
        self.keys_left_out_by_peers += report.keys_left_out_by_peer
        self.rounds += report.rounds
        self.recon_bytes_sent += report.bytes_sent
        self.recon_bytes_received += report.bytes_received


class SyncHistory:
    """The latest sessions; `counters` counts all of them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.reports: deque[SyncReport] = deque(maxlen=MAX_REPORTS)
        """The latest sessions, the newest last."""
        self.transfers: deque[SyncReport] = deque(maxlen=MAX_TRANSFERS)
        """The latest ones that moved events; most sessions find nothing to do."""
        self._since = _Summary()

    def add(self, report: SyncReport, *, keep_idle: bool = True) -> None:
        """Keep, count and log a session that has ended.

        Args:
            report: how it went.
            keep_idle: whether to keep it among the latest even if it went well and moved nothing.
        """
        is_idle = report.went_well and not (report.moved_events or report.keys_left_out)
        if keep_idle or not is_idle:
            self.reports.append(report)
        if report.moved_events:
            self.transfers.append(report)
        self._counters.count(report)
        self._since.add(report)
        _log_report(report, shown=self._since.failed <= FAILURES_SHOWN)
        span(
            "sync",
            report.seconds,
            lambda: {f"recon.{name}": value for name, value in asdict(report).items()},
            kind="CLIENT" if report.role == "initiator" else "SERVER",
            error=None if report.went_well or report.outcome == CANCELLED else report.outcome,
        )

    async def log_summaries(self) -> None:
        """Log what the sessions of each minute have done, until cancelled; the rest at the end."""
        try:
            while True:
                await trio.sleep(SUMMARY_INTERVAL)
                self._log_summary()
        finally:
            self._log_summary()

    def _log_summary(self) -> None:
        """Log what the sessions since the last time have done, if they have done anything."""
        since, self._since = self._since, _Summary()
        if since.failed or since.events_received or since.events_sent:
            logger.info(
                "Synced with peers",
                peers=len(since.peers),
                syncs=since.syncs,
                failed=since.failed,
                events_received=since.events_received,
                events_sent=since.events_sent,
                bytes_received=since.bytes_received,
                bytes_sent=since.bytes_sent,
            )


@dataclass(slots=True)
class _Summary:
    """What the sessions of some time have done. Bytes are those of recon and of events."""

    peers: set[str] = field(default_factory=set)
    syncs: int = 0
    failed: int = 0
    events_received: int = 0
    events_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0

    def add(self, report: SyncReport) -> None:
        """Add a session."""
        if report.outcome == CANCELLED:
            return
        self.peers.add(report.peer)
        self.syncs += 1
        self.failed += not report.went_well
        self.events_received += report.events_received
        self.events_sent += report.events_sent
        self.bytes_received += report.bytes_received + report.event_bytes_received
        self.bytes_sent += report.bytes_sent + report.event_bytes_sent


def _log_report(report: SyncReport, *, shown: bool) -> None:
    """Log a session in one line: at level debug, as each event causes some, but for failures."""
    is_failure = not report.went_well and report.outcome != CANCELLED
    (logger.info if is_failure and shown else logger.debug)(
        "Sync finished" if report.went_well else "Sync failed",
        peer=report.peer,
        role=report.role,
        protocol=report.protocol,
        rounds=report.rounds,
        sent=report.bytes_sent,
        received=report.bytes_received,
        event_bytes_sent=report.event_bytes_sent,
        event_bytes_received=report.event_bytes_received,
        keys=report.keys_received,
        events=report.events_received,
        events_sent=report.events_sent,
        seconds=round(report.seconds, 3),
        outcome=report.outcome,
    )


_RECON: Final = re.compile(r"/ceramic/(recon/(\d{1,9}\.\d{1,9}\.\d{1,9}))(?:/|$)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What the node knows of a peer."""

    id: str
    """The peer id."""
    addresses: tuple[str, ...]
    """The multiaddrs where it was reached, or is said to be."""
    connected: bool
    latency: float | None
    """The round-trip time in seconds."""
    last_sync: float | None
    """When a sync last ended in agreement, in seconds since 1970."""
    failures: int
    """Failures in a row; breaking a protocol counts as several."""
    speaks: tuple[str, ...]
    """The versions of recon that it says it speaks, the highest first, such as recon/1.2.0;
    recon/0.1.0 is that of ceramic-one nodes. None before it has been connected."""
    shares: tuple[str, ...] | None = None
    """Interests of this node of which the peer shares at least a part, 20 at most, written like
    model=kjzl6hvfrbw6c...; empty if this node has none. None if the peer's are not known, as those
    of ceramic-one nodes."""
    covers: float | None = None
    """The share of this node's events that the peer is interested in, from 0 to 1; None if that is
    not known."""
    score: float | None = None
    """How likely it is drawn for the next sync: its share of the weights of all connected peers,
    from 0 to 1. None if it is not connected."""
    behind: float = 0.0
    """How far it and this node were apart lately: the share of the common keys that one of them
    lacked, from 0 to 1, which fades."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a connected peer says about itself."""

    id: str
    """The peer id."""
    addresses: tuple[str, ...]
    """The multiaddrs where it was reached, or is said to be."""
    agent_version: str
    """Its software."""
    protocol_version: str
    """That of libp2p's identify protocol."""
    protocols: frozenset[str]
    """What it speaks."""


@dataclass(frozen=True, slots=True)
class RendezvousReport:
    """What came of announcing this node at a rendezvous, and of looking there."""

    sort_value: str | None
    """Of the interests that it is for; None: it is that of the network."""
    key: str
    """The key in the DHT, a multihash in hexadecimal."""
    announced_at: float | None
    """When a peer last took an announcement, in seconds since 1970."""
    told: int
    """Peers that took one in the last hour, and so have a record of this node."""
    found: int
    """Other nodes that were found there in the last hour."""


def recon_versions(protocols: Iterable[str]) -> tuple[str, ...]:
    """Return the versions of recon among some protocol ids, the highest first."""
    by_version = {match[1]: match[2] for protocol in protocols if (match := _RECON.match(protocol))}
    return tuple(
        sorted(by_version, key=lambda name: [*map(int, by_version[name].split("."))], reverse=True)
    )
