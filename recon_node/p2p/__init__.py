"""Floor 5, the network side: libp2p host, recon and event streams, discovery, sync with peers.

`open_p2p` joins a store to its network and keeps it equal to its peers' stores. Read
`network_side` first (the composition), then `sync/sync_scheduler` (when and with whom),
`sync/sessions` (how), and `transport/hardening` (the remedies for py-libp2p's defects). The
wire formats are in docs/wire.md.
"""

from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.network_side import P2P, open_p2p
from recon_node.p2p.reports import (
    AGREED,
    ANOTHER_NETWORK,
    NO_COMMON_INTEREST,
    Counters,
    PeerInfo,
    RendezvousReport,
    SyncReport,
)
from recon_node.p2p.settings import P2PSettings

__all__ = [
    "AGREED",
    "ANOTHER_NETWORK",
    "NO_COMMON_INTEREST",
    "P2P",
    "Counters",
    "P2PError",
    "P2PSettings",
    "PeerError",
    "PeerInfo",
    "RendezvousReport",
    "SyncReport",
    "open_p2p",
]
