"""Composing the library's host from hardened parts."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Final, cast

import structlog
import trio
from libp2p.abc import INetConn
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.identity.identify import identify
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node import __version__
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import check_dialable, parse_address, reachable
from recon_node.p2p.transport.budget import MemoryBudget
from recon_node.p2p.transport.guarded_identify import (
    AGENT,
    PROTOCOL_VERSION,
    IdentifyPushes,
    bound_identify,
)
from recon_node.p2p.transport.guarded_yamux import GuardedMuxing
from recon_node.p2p.transport.hardening import (
    GuardedHost,
    GuardedPeerStore,
    GuardedSwarm,
    bound_negotiation,
    show_ipv6_addresses,
)
from recon_node.p2p.transport.private_network import PrivateTCP
from recon_node.places import AllowList

log = structlog.get_logger(__name__)

_NEGOTIATION_TIMEOUT: Final = 10.0
"""Seconds in which the protocol of a stream must be agreed on."""
_TWINS_WITHIN: Final = 10.0
"""Seconds between the beginnings of two connections that can come from dialling each other at the
same time: as long as a dial may take."""


def build_host(
    settings: P2PSettings,
    identity: KeyPair,
    budget: MemoryBudget,
    on_identified: Callable[[ID], None],
    swarm_key: bytes | None = None,
) -> IdentifyingHost:
    """Put the hardened parts together: no plaintext, no other muxer, no resource manager.

    Args:
        settings: addresses, limits and timeouts.
        identity: the key pair that the peer id is made from.
        budget: is charged for what the connections hold in memory.
        on_identified: called with each peer that has identified itself; it must not wait.
        swarm_key: of the private network to be in, if there is one.
    """
    bound_negotiation()
    bound_identify()
    show_ipv6_addresses()
    _quieten_library()
    identify.AGENT_VERSION = f"recon-node/{__version__}"
    noise = NoiseTransport(identity, noise_privkey=create_new_key_pair().private_key)
    upgrader = TransportUpgrader({NOISE: noise}, {})
    upgrader.muxer_multistream = GuardedMuxing(settings.connection, budget)
    peer_id = ID.from_pubkey(identity.public_key)
    peerstore = GuardedPeerStore(lambda each: each == peer_id or each in swarm.connections)
    peerstore.add_key_pair(peer_id, identity)
    swarm = GuardedSwarm(
        peer_id,
        peerstore,
        upgrader,
        [TCP() if swarm_key is None else PrivateTCP(swarm_key)],
        RetryConfig(max_retries=0),
        ConnectionConfig(
            max_connections=settings.max_connections,
            high_watermark=settings.max_connections,
            low_watermark=0,  # no dials of the library's own choice
            min_connections=0,
            inbound_stream_protocol_negotiation_timeout=_NEGOTIATION_TIMEOUT,
            outbound_stream_protocol_negotiation_timeout=_NEGOTIATION_TIMEOUT,
        ),
        budget=budget,
        allowed=AllowList(settings.always_admit),
        swarm_key=swarm_key,
    )
    announced = [parse_address(each) for each in settings.announce]
    for each in announced:
        check_dialable(each)
    host = IdentifyingHost(
        swarm,
        addrs_factory=lambda candidates: announced or candidates,
        disable_identify_address_discovery=True,
        on_identified=on_identified,
    )
    host.set_stream_handler(IdentifyPushes.protocol, IdentifyPushes(host).serve)
    return host


class IdentifyingHost(GuardedHost):
    """A host that calls back when a new peer has identified itself."""

    def __init__(self, *args: Any, on_identified: Callable[[ID], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_identified = on_identified
        self._identify_ended = trio.lowlevel.ParkingLot()

    def get_transport_addrs(self) -> list[Multiaddr]:
        """Return the addresses that others can dial. Stock also announces 0.0.0.0."""
        return reachable(super().get_transport_addrs())

    async def protocols_of(self, peer_id: ID) -> frozenset[str]:
        """Return the protocols of a connected peer, if necessary after asking it; or none."""
        if not self._has_cached_protocols(peer_id):
            self._schedule_identify(peer_id, reason="asked for")
        while not self._has_cached_protocols(peer_id) and peer_id in self._identify_inflight:
            await self._identify_ended.park()
        return self.known_protocols(peer_id)

    def known_protocols(self, peer_id: ID) -> frozenset[str]:
        """Return the protocols of a peer; none before it has identified itself."""
        try:
            return frozenset(self.get_peerstore().get_protocols(peer_id))
        except PeerStoreError:
            return frozenset()

    def known_agent(self, peer_id: ID) -> tuple[str, str]:
        """Return the software of a peer and the version of its identify protocol, as far as it has
        told them."""
        store = self.get_peerstore()
        told = []
        for key in (AGENT, PROTOCOL_VERSION):
            try:
                told.append(str(store.get(peer_id, key)))
            except PeerStoreError:
                told.append("")
        return told[0], told[1]

    def _has_cached_protocols(self, peer_id: ID) -> bool:
        """Return whether a peer has identified itself on this connection.

        Stock is content with an earlier connection, and never asks again. Meanwhile the peer may
        have got another address or version.
        """
        return peer_id in self._identified_peers

    def _on_notifee_disconnected(self, conn: INetConn) -> None:
        """Forget what a peer said about itself unless it said so to a connection that remains.

        Stock forgets it when any connection closes, as one of two does that come from dialling each
        other, and asks again only when somebody needs to know. If the peer came back on a new
        connection before the old one closed, it may have restarted: it is asked again.
        """
        peer_id = conn.muxed_conn.peer_id
        remaining = [each for each in self._network.get_connections(peer_id) if not each.is_closed]
        restarted_after = _began(conn) + _TWINS_WITHIN
        if all(_began(each) > restarted_after for each in remaining):
            super()._on_notifee_disconnected(conn)
        if remaining:  # it may have been asked on the connection that has closed
            self._schedule_identify(peer_id, reason="a connection closed")

    async def _identify_peer(self, peer_id: ID, *, reason: str) -> None:
        try:
            await super()._identify_peer(peer_id, reason=reason)
        finally:
            self._identify_ended.unpark_all()
        if peer_id not in self._identified_peers:
            return
        try:
            self._on_identified(peer_id)
        except Exception:  # this is a task of the library whose exceptions end the process
            log.exception("A bug in this node hid a new peer", peer=str(peer_id))


def _began(connection: INetConn) -> float:
    """Return when a connection was made, as a Unix time in seconds."""
    return cast(SwarmConn, connection)._created_at


def _quieten_library() -> None:
    """Silence libp2p's log unless it is asked for: it calls every peer that leaves an error."""
    if "LIBP2P_DEBUG" not in os.environ:
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
