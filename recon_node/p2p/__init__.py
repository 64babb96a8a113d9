"""Layer 5, the network side: libp2p host, recon and event streams, discovery, sync with peers.

`open_p2p` joins a store to its network and keeps it equal to its peers' stores. The wire formats
are in docs/wire.md. In reading order:

    network_side  how it starts, what it consists of, and what the layers above may ask
    context       what its parts share, and what they count
    sync/         sessions with peers: when, with whom, and how
    peers/        which peers there are, and which to connect to
    transport/    the host, and the remedies for py-libp2p's defects
    settings      its limits and addresses
    errors        what goes wrong, and who is to blame
"""

from recon_node.p2p.context import Counters
from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.network_side import P2P, PeerInfo, open_p2p
from recon_node.p2p.peers.discovery import RendezvousReport
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.sessions import AGREED, ANOTHER_NETWORK, NO_COMMON_INTEREST, SyncReport

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
