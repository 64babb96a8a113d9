"""What the peer book knows of one peer."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import trio

from recon_node.p2p.peers.draw import Candidate, Fading
from recon_node.recon import KeyRange

FAILURE_HALF_LIFE: Final = 4 * 3600.0
"""Seconds in which failures in a row lose half their weight: longer than the waits between tries,
so that a peer that is gone for good still becomes hopeless."""
MISLED_HALF_LIFE: Final = 3600.0
"""Seconds in which it loses half its weight that a peer misled us; successes do not clear it."""
BEHIND_HALF_LIFE: Final = 600.0
"""Seconds in which it loses half its weight that a peer was behind."""


_NO_FAILURES: Final = Fading(FAILURE_HALF_LIFE)
_NEVER_MISLED: Final = Fading(MISLED_HALF_LIFE)
_NOT_BEHIND: Final = Fading(BEHIND_HALF_LIFE)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a peer has stated to be interested in."""

    ranges: list[KeyRange]
    """Ascending and apart."""
    until: float = math.inf
    """On trio's clock; infinite while the peer is connected and can tell us of changes."""


@dataclass(slots=True)
class Peer:
    """What the book knows of a peer."""

    id: str
    addresses: list[str] = field(default_factory=list)
    """The one that worked last comes first."""
    moved: float = -math.inf
    """When it last brought events that were new here, or fetched some, on trio's clock."""
    network: str = ""
    """That of the address from which it is connected, or was last; empty if it never was."""
    failed: Fading = _NO_FAILURES
    """Failures in a row; breaking a protocol counts as several."""
    misled: Fading = _NEVER_MISLED
    """How often it broke a protocol, or listed events without delivering them."""
    behind: Fading = _NOT_BEHIND
    """Which share of the common keys it or we lacked, from 0 to 1."""
    not_before: float = 0.0
    """When it may be synced with again, on trio's clock."""
    latency: float | None = None
    """The round-trip time in seconds."""
    last_sync: float | None = None
    """When a sync that this node began ended in agreement, in seconds since 1970."""
    last_visit: float | None = None
    """When one that the peer began did."""
    events_served: int = 0
    """Events that it fetched and that are not yet in the report of a session."""
    event_bytes_served: int = 0
    """Their size in bytes."""
    asked_for_all_at: float = -math.inf
    """When we last asked it for everything that interests us, on trio's clock."""
    interests: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that it asked or answered for, and until when they count, on trio's clock."""
    stated: Stated | None = None
    """What it has told of its interests, which counts more than what was observed."""
    declined: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that we asked for and that it did not want, and until when they count."""
    overlap: float = 1.0
    """The share of our keys that it wants too, from 0 to 1, as last computed."""

    @property
    def failures(self) -> int:
        """Failures in a row, as far as they have not faded."""
        return round(self.failed.now(trio.current_time()))

    def candidate(self, now: float) -> Candidate:
        """Return what counts when a peer is drawn."""
        failures = max(self.failed.now(now), self.misled.now(now))
        return Candidate(self.overlap, self.latency, self.behind.now(now), failures)
