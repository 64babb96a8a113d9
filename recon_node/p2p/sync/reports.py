"""What sync did: one report a session, the latest of them, and counters for the metrics page."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from recon_node.p2p.transport.budget import UNLIMITED, MemoryBudget

log = structlog.get_logger(__name__)

MAX_REPORTS: Final = 100
MAX_TRANSFERS: Final = 50

Role = Literal["initiator", "responder"]

AGREED: Final = "agreed"
NO_COMMON_INTEREST: Final = "no common interest"
"""The outcome when nothing of what the initiator asked for interests the other side."""
ANOTHER_NETWORK: Final = "another network"
"""How the outcome begins when the peer asks for events of another Ceramic network."""
CANCELLED: Final = "cancelled: this node is stopping"
GAVE_WAY: Final = "cut short: too many at once from its address, and another one needs the place"


@dataclass(frozen=True, slots=True)
class SyncReport:
    """One recon session with one peer. Bytes are those of frames, without libp2p's overhead."""

    peer: str
    role: Role
    protocol: str
    """The version of recon that was spoken: its libp2p protocol id."""
    rounds: int
    """Turns that the peer took."""
    bytes_sent: int
    """Of recon messages."""
    bytes_received: int
    event_bytes_sent: int
    """Of events that the peer fetched since the session with it before this one ended."""
    event_bytes_received: int
    keys_received: int
    """Keys that the peer told and we did not hold."""
    events_received: int
    """Events fetched for them that were valid and new."""
    events_sent: int
    """Those events. Where two sessions with a peer overlap, each event counts in one of them."""
    seconds: float
    keys_left_out: int
    """Keys that the peer listed and that could not be had, or were refused."""
    keys_left_out_by_peer: int
    """Keys of ours that the peer left out likewise, as far as it is known."""
    outcome: str
    """What ``agreed_but_for`` says, ``NO_COMMON_INTEREST``, or what went wrong, for people."""
    finished_at: float
    """Seconds since 1970."""

    @property
    def went_well(self) -> bool:
        """Whether the session came to its end."""
        return self.outcome == NO_COMMON_INTEREST or self.outcome.startswith(AGREED)

    @property
    def moved_events(self) -> bool:
        """Whether either side got an event from the other."""
        return bool(self.events_received or self.events_sent)


def agreed_but_for(left_out: int, left_out_by_peer: int) -> str:
    """Return the outcome of a session after which only keys differ that one side left out."""
    parts = []
    if left_out:
        parts.append(f"{_keys(left_out)} left out here")
    if left_out_by_peer:
        parts.append(f"{_keys(left_out_by_peer)} left out by the peer")
    return f"{AGREED} but for {' and '.join(parts)}" if parts else AGREED


def _keys(number: int) -> str:
    return "1 key" if number == 1 else f"{number:,} keys"


@dataclass(slots=True)
class Counters:
    """Totals since the node was started."""

    sessions_initiated: int = 0
    sessions_answered: int = 0
    sessions_failed: int = 0
    sessions_refused: int = 0
    """Inbound ones, for too many at once."""
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
    """Events that a peer listed, and then did not have."""
    keys_left_out: int = 0
    """Keys that peers listed and that were left out, counted in each session."""
    keys_left_out_by_peers: int = 0
    dials_failed: int = 0
    memory: MemoryBudget = UNLIMITED
    """What peers make this node hold at the moment, and how many were cut off for it."""

    def count(self, report: SyncReport) -> None:
        """Add a session that has ended. Keys and events are counted as they come in."""
        self.sessions_initiated += report.role == "initiator"
        self.sessions_answered += report.role == "responder"
        self.sessions_failed += not report.went_well
        self.keys_left_out += report.keys_left_out
        self.keys_left_out_by_peers += report.keys_left_out_by_peer
        self.rounds += report.rounds
        self.recon_bytes_sent += report.bytes_sent
        self.recon_bytes_received += report.bytes_received


class SyncHistory:
    """The latest sessions, and what all of them came to.

    Args:
        memory: what peers make this node hold.
    """

    def __init__(self, memory: MemoryBudget = UNLIMITED) -> None:
        self.counters = Counters(memory=memory)
        self.reports: deque[SyncReport] = deque(maxlen=MAX_REPORTS)
        """The latest sessions, the newest last."""
        self.transfers: deque[SyncReport] = deque(maxlen=MAX_TRANSFERS)
        """The latest of those that moved events; most sessions find nothing to do."""

    def add(self, report: SyncReport) -> None:
        """Keep, count and log a session that has ended."""
        self.reports.append(report)
        if report.moved_events:
            self.transfers.append(report)
        self.counters.count(report)
        _log_report(report)


def _log_report(report: SyncReport) -> None:
    """Log a session in one line; one that found nothing to do, as most do, only for debugging."""
    agreed = report.went_well
    learned = report.keys_received > report.keys_left_out
    idle = agreed and not learned and not report.event_bytes_sent
    (log.debug if idle or report.outcome == CANCELLED else log.info)(
        "Sync finished" if agreed else "Sync failed",
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
