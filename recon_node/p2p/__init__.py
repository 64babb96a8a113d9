"""Floor 5, the network side: libp2p host, recon and event streams, discovery, sync with peers.

``open_p2p`` joins a store to its network and keeps it equal to its peers' stores. Start reading
with ``service`` (what is put together), ``sync`` (when, with whom), ``sessions`` and
``recon_stream`` (how), ``hardening`` (what py-libp2p needs to run for long). The wire is described
in docs/wire.md.
"""

from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.service import P2P, PeerInfo, open_p2p
from recon_node.p2p.settings import ConnectionLimits, P2PSettings
from recon_node.p2p.sync.reports import (
    AGREED,
    ANOTHER_NETWORK,
    NO_COMMON_INTEREST,
    Counters,
    SyncReport,
)

__all__ = [
    "AGREED",
    "ANOTHER_NETWORK",
    "NO_COMMON_INTEREST",
    "P2P",
    "ConnectionLimits",
    "Counters",
    "P2PError",
    "P2PSettings",
    "PeerError",
    "PeerInfo",
    "SyncReport",
    "open_p2p",
]
