"""The library's host, put together from hardened parts, as ``host`` runs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final

import structlog
import trio
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.identity.identify import identify
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.peer.id import ID
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node import __version__
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import check_dialable, parse_address, reachable
from recon_node.p2p.transport.budget import MemoryBudget
from recon_node.p2p.transport.guarded_identify import IdentifyPushes, bound_identify
from recon_node.p2p.transport.guarded_yamux import GuardedMuxing
from recon_node.p2p.transport.hardening import (
    GuardedHost,
    GuardedPeerStore,
    GuardedSwarm,
    bound_negotiation,
)

log = structlog.get_logger(__name__)

_NEGOTIATION_TIMEOUT: Final = 10.0


def build_host(settings: P2PSettings, identity: KeyPair) -> IdentifyingHost:
    """Put the hardened parts together: no plaintext, no other muxer, no resource manager."""
    bound_negotiation()
    bound_identify()
    _quieten_library()
    identify.AGENT_VERSION = f"recon-node/{__version__}"
    noise = NoiseTransport(identity, noise_privkey=create_new_key_pair().private_key)
    upgrader = TransportUpgrader({NOISE: noise}, {})
    budget = MemoryBudget(settings.max_peer_memory)
    upgrader.muxer_multistream = GuardedMuxing(settings.connection, budget)
    peer_id = ID.from_pubkey(identity.public_key)
    peerstore = GuardedPeerStore()
    peerstore.add_key_pair(peer_id, identity)
    swarm = GuardedSwarm(
        peer_id,
        peerstore,
        upgrader,
        [TCP()],
        RetryConfig(max_retries=0),
        ConnectionConfig(
            max_connections=settings.max_connections,
            high_watermark=settings.max_connections,
            low_watermark=0,  # no dials of the library's own choice
            min_connections=0,
            inbound_stream_protocol_negotiation_timeout=_NEGOTIATION_TIMEOUT,
            outbound_stream_protocol_negotiation_timeout=_NEGOTIATION_TIMEOUT,
        ),
    )
    swarm.budget = budget
    peerstore.keeps = lambda each: each == peer_id or each in swarm.connections
    announced = [parse_address(each) for each in settings.announce]
    for each in announced:
        check_dialable(each)
    host = IdentifyingHost(
        swarm,
        addrs_factory=lambda candidates: announced or candidates,
        disable_identify_address_discovery=True,
    )
    host.set_stream_handler(IdentifyPushes.protocol, IdentifyPushes(host).serve)
    return host


class IdentifyingHost(GuardedHost):
    """A host that says when it has learned a new peer's protocols and addresses."""

    on_identified: Callable[[ID], None] | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._identify_ended = trio.Event()

    def get_transport_addrs(self) -> list[Multiaddr]:
        """Return the addresses that others can dial: stock falls back to 0.0.0.0 in identify."""
        return reachable(super().get_transport_addrs())

    async def protocols_of(self, peer_id: ID) -> frozenset[str]:
        """Return what a connected peer says that it speaks; nothing when it does not say."""
        if not self._has_cached_protocols(peer_id):
            self._schedule_identify(peer_id, reason="asked for")
        while not self._has_cached_protocols(peer_id) and peer_id in self._identify_inflight:
            await self._identify_ended.wait()
        return self.known_protocols(peer_id)

    def known_protocols(self, peer_id: ID) -> frozenset[str]:
        """Return what a peer has said that it speaks; nothing before it has."""
        try:
            return frozenset(self.get_peerstore().get_protocols(peer_id))
        except Exception:  # the library raises its own error for a peer that it does not know
            return frozenset()

    def _has_cached_protocols(self, peer_id: ID) -> bool:
        """Tell whether a peer has told about itself on this connection.

        Stock takes what it said on an earlier one, and never asks again: it may have another
        address, or run another version, since.
        """
        return peer_id in self._identified_peers

    async def _identify_peer(self, peer_id: ID, *, reason: str) -> None:
        try:
            await super()._identify_peer(peer_id, reason=reason)
        finally:
            self._identify_ended.set()
            self._identify_ended = trio.Event()
        if self.on_identified is None or peer_id not in self._identified_peers:
            return
        try:
            self.on_identified(peer_id)
        except Exception:  # the library runs this in a task whose exceptions end the process
            log.exception("A bug of this node hid a new peer", peer=str(peer_id))


def _quieten_library() -> None:
    """Silence libp2p's log, unless it is asked for: to it, any peer that leaves is an error."""
    if "LIBP2P_DEBUG" not in os.environ:
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
