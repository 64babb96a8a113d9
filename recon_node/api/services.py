"""What the API stands on: the store, the peers, the network and the limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import trio

from recon_node.api.middleware.access import Access

if TYPE_CHECKING:
    from recon_node.chain import ChainReport
    from recon_node.dag import Dags
    from recon_node.p2p import Counters, PeerInfo, SyncReport
    from recon_node.store import Store


class Peers(Protocol):
    """What the API asks of the network side; `recon_node.p2p.P2P` offers it."""

    @property
    def peer_id(self) -> str:
        """This node's libp2p peer id, as text."""

    @property
    def addresses(self) -> Sequence[str]:
        """Multiaddrs at which this node listens, each with ``/p2p/<peer id>``."""

    @property
    def sync_reports(self) -> Sequence[SyncReport]:
        """The latest syncs, oldest first."""

    @property
    def transfers(self) -> Sequence[SyncReport]:
        """The latest syncs that moved events, oldest first."""

    @property
    def counters(self) -> Counters:
        """Totals since the start."""

    def peers(self) -> Sequence[PeerInfo]:
        """Every peer that this node knows, connected or not."""

    async def connect(self, multiaddr: str) -> None:
        """Dial a peer. Raises `recon_node.p2p.PeerError`."""


class Anchors(Protocol):
    """What the API asks of the chain side; `recon_node.chain.Anchors` offers it."""

    @property
    def reports(self) -> Sequence[ChainReport]:
        """What was asked so far, for each chain that has a provider."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request. Sizes are bytes, times are seconds."""

    body: int = 4 * 1024 * 1024
    """Largest request body; a longer one is answered 413."""
    requests: int = 128
    """Requests under way at once; one more is answered 503."""
    stall: float = 60.0
    """A request that makes no progress for so long is given up."""
    wait: float = 30.0
    """Longest `wait` of a long poll."""
    connect: float = 15.0
    """Time to dial a peer for POST /ceramic/peers."""
    feed_events: int = 10_000
    """Most events in one answer of the feed."""
    feed_bytes: int = 4 * 1024 * 1024
    """An answer of the feed ends after the event that takes its CARs past this."""
    stream_events: int = 10_000
    """Most events of a stream whose state is asked for."""
    stream_bytes: int = 64 * 1024 * 1024
    """Most bytes of their CARs."""
    stream_seconds: float = 10.0
    """Time to compute the state of a stream."""
    arrow_rows: int = 2_000
    """Most rows in one Arrow record batch."""
    arrow_bytes: int = 2 * 1024 * 1024
    """A record batch ends with the event that takes its CARs past this."""


@dataclass(frozen=True, slots=True, eq=False)
class Services:
    """Everything a request handler may touch."""

    store: Store
    peers: Peers | None = None
    """None: a node without a network side."""
    anchors: Anchors | None = None
    """None: a node that asks no chain."""
    dags: Dags | None = None
    """None: a node that keeps no index of DAGs."""
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    closing: trio.Event = field(default_factory=trio.Event)
    """Set when the node shuts down: long polls answer at once."""
