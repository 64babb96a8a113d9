"""Composing the library's host from hardened parts; and two of these: the dialler, and identify.

The library's identify reads messages of up to 1 MiB, and any number of them from one peer at the
same time. If a message is too long, it reads everything that follows. It remembers a thousand
unreadable addresses of any length forever.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetConn, INetStream, IPeerStore
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.exceptions import BaseLibp2pError, ParseError
from libp2p.host import basic_host
from libp2p.identity.identify import identify
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node import __version__
from recon_node.exception_groups import leaves
from recon_node.p2p.errors import PeerError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import check_dialable, parse_address, reachable, resolve
from recon_node.p2p.transport.budget import MemoryBudget
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

KEY_HINT: Final = " (it may not have this node's swarm key)"
NOISE_HINT: Final = " (it may have a swarm key, which this node has not)"
"""For a node on an open network: whatever is encrypted with a key looks like noise."""

_ADDRESS_TTL: Final = 24 * 3600
"""Seconds for which the library keeps an address that worked."""


class Dialler:
    """Dials for a host.

    Args:
        swarm: makes the connections.
        timeout: seconds in which a peer must have answered.
        is_private: whether this node is in a private network; a peer that is not cannot say so.
    """

    def __init__(self, swarm: GuardedSwarm, timeout: float, is_private: bool) -> None:
        self._swarm = swarm
        self._timeout = timeout
        self._hint = KEY_HINT if is_private else ""

    async def dial(self, address: Multiaddr, peer_id: ID) -> None:
        """Connect to a peer, and note at which address it was reached.

        Raises:
            PeerError: it cannot be reached, or does not answer in time.
        """
        try:
            with trio.fail_after(self._timeout):
                reached = await self._dial_first(await resolve(address), peer_id)
        except trio.TooSlowError:
            limit = f"{self._timeout:g} s"
            raise PeerError(f"{address} did not answer within {limit}{self._hint}") from None
        except PeerError:
            raise
        except Exception as error:
            hint = self._hint or (NOISE_HINT if isinstance(_root_of(error), ParseError) else "")
            raise PeerError(f"cannot connect to {address}: {innermost(error)}{hint}") from error
        self._swarm.unblock_peer(peer_id)  # a dial of the DHT may have failed a moment ago
        self._swarm.peerstore.add_addrs(peer_id, [reached], _ADDRESS_TTL)

    async def _dial_first(self, addresses: Sequence[Multiaddr], peer_id: ID) -> Multiaddr:
        """Dial addresses in turn. Return the one that worked, or raise the error of the last
        one."""
        *others, last = addresses
        for address in others:
            try:
                await self._swarm.dial_addr(address, peer_id)
            except Exception as error:  # of every layer, as in dial
                log.debug("Cannot dial an address", address=str(address), error=repr(error))
            else:
                return address
        await self._swarm.dial_addr(last, peer_id)
        return last


def innermost(error: BaseException) -> str:
    """Return in words what began a chain of errors of the library."""
    error = _root_of(error)
    if isinstance(error, PeerIDMismatchesPubkey):
        return f"another peer answers at this address, {str(error).rpartition('=')[2]}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _root_of(error: BaseException) -> BaseException:
    """Return what began a chain of errors."""
    error = next(leaves(error))
    return error if error.__cause__ is None else _root_of(error.__cause__)


MAX_IDENTIFY: Final = 8 * 1024
"""Maximum bytes of an identify message, as in go-libp2p."""
MAX_AGENT: Final = 256
"""Maximum characters of the name of a peer's software."""
AGENT: Final = "agent_version"
"""The name of the field with what a peer runs, and its key in the peerstore."""
PROTOCOL_VERSION: Final = "protocol_version"
"""The same for the version of its identify protocol."""
_PUSH_LIMIT: Final = 10.0
"""Seconds in which a peer must send its push."""
_REFUSED: Final = (BaseLibp2pError, DecodeError, trio.TooSlowError)
"""The errors of a push that a peer or the connection can cause."""


def bound_identify() -> None:
    """Limit the size of identify messages. Applies to the whole process; idempotent."""
    basic_host.read_length_prefixed_protobuf = _read_bounded  # type: ignore[attr-defined]
    basic_host.update_peerstore_from_identify = _note  # type: ignore[attr-defined, assignment]


async def _read_bounded(
    stream: INetStream, use_varint_format: bool = True, max_length: int = MAX_IDENTIFY
) -> bytes:
    try:
        return await read_varint_prefixed_bytes_limited(stream, min(max_length, MAX_IDENTIFY))
    except Exception:
        await stream.reset()  # otherwise the caller reads what follows without a limit
        raise


async def _note(peerstore: IPeerStore, peer_id: ID, message: Identify) -> None:
    """Note what a peer says about itself; its software, too, which stock leaves out."""
    await update_peerstore_from_identify(peerstore, peer_id, message)
    for key in (AGENT, PROTOCOL_VERSION):
        if message.HasField(key):
            peerstore.put(peer_id, key, getattr(message, key)[:MAX_AGENT])


class IdentifyPushes:
    """Serves identify/push: one message of bounded size at a time from each peer."""

    protocol = ID_PUSH

    def __init__(self, host: IHost) -> None:
        self._host = host
        self._under_way: set[ID] = set()

    async def serve(self, stream: INetStream) -> None:
        """Read a message and note what it says about the peer; a push has no answer."""
        peer = stream.muxed_conn.peer_id
        if peer in self._under_way:
            await stream.reset()
            return
        self._under_way.add(peer)
        try:
            with trio.fail_after(_PUSH_LIMIT):
                raw = await read_varint_prefixed_bytes_limited(stream, MAX_IDENTIFY)
            message = Identify()
            message.ParseFromString(raw)
            await _note(self._host.get_peerstore(), peer, message)
            await stream.close()
        except _REFUSED as error:
            log.debug("Identify push refused", peer=str(peer), error=repr(error))
            await stream.reset()
        finally:
            self._under_way.discard(peer)


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
