"""What the parts of the network side share."""

from __future__ import annotations

from dataclasses import dataclass

from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.reports import Counters
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.host import Host
from recon_node.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """What the parts of the network side share."""

    host: Host
    """Has the connections with peers, by peer id, and opens streams."""
    store: Store
    """Has the events, and the node's interests."""
    book: PeerBook
    """Knows the peers, and records how they behave."""
    settings: P2PSettings
    """The limits."""
    counters: Counters
    """Count what the node does, for metrics."""
