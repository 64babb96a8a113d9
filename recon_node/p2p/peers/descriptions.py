"""What the node tells the floors above of its peers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
    found = {match[1]: match[2] for each in protocols if (match := _RECON.match(each))}
    return tuple(sorted(found, key=lambda name: [*map(int, found[name].split("."))], reverse=True))
