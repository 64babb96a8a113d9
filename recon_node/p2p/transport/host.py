"""The libp2p host of the node: TCP, Noise and Yamux only, hardened, with limits on every wait.

`open_host` yields a `Host` that listens. At the end it frees its ports and closes its
connections side by side within `CLOSE_LIMIT` seconds, even if it is cancelled. Peers are named
by their peer id in base58.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import Any, Final, cast

import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.abc import IHost, INetConn, INetStream, IPeerStore
from libp2p.crypto.keys import KeyPair
from libp2p.crypto.x25519 import create_new_key_pair
from libp2p.custom_types import TProtocol
from libp2p.exceptions import BaseLibp2pError
from libp2p.host import basic_host
from libp2p.host.basic_host import BasicHost
from libp2p.host.ping import ID as PING
from libp2p.host.ping import _handle_ping
from libp2p.identity.identify import identify
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.identity.identify_push.identify_push import ID_PUSH
from libp2p.identity.update import update_peerstore_from_identify
from libp2p.network.config import ConnectionConfig, RetryConfig
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStoreError
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.tools.anyio_service import TrioManager
from libp2p.transport.tcp.tcp import TCP
from libp2p.transport.upgrader import TransportUpgrader
from libp2p.utils.varint import read_varint_prefixed_bytes_limited
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node import __version__
from recon_node.base.errors import unwrapped
from recon_node.fairness.slots import AllowList, address_block_of
from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import (
    check_dialable,
    check_port,
    host_of,
    is_loopback,
    is_loopback_ip,
    likely,
    parse_address,
    peer_id_in,
    reachable,
    shorten_names,
)
from recon_node.p2p.transport.dialler import Dialler, innermost
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.guarded_connection import (
    GuardedMuxing,
    GuardedYamux,
    MemoryBudget,
    live_connections,
    shielded,
    show_ipv6_addresses,
)
from recon_node.p2p.transport.hardening import (
    MAX_PEER_ADDRESSES,
    GuardedPeerStore,
    GuardedSwarm,
    bound_negotiation,
)
from recon_node.p2p.transport.identity import bound_peer_ids, bound_rsa_keys
from recon_node.p2p.transport.private_network import PrivateTCP

logger = structlog.get_logger(__name__)

CLOSE_LIMIT: Final = 3.0
"""Seconds in which a host is closed."""
_CLOSE_ONE_LIMIT: Final = 1.0
"""Seconds in which a connection is closed gracefully; after that it is cut."""

_NEGOTIATION_TIMEOUT: Final = 10.0
"""Seconds in which the protocol of a stream must be agreed on."""

StreamHandler = Callable[[PeerStream], Awaitable[None]]


@asynccontextmanager
async def open_host(
    settings: P2PSettings,
    identity: KeyPair,
    on_cut: Callable[[str], None] = lambda peer_id: None,
    swarm_key: bytes | None = None,
    refused: Set[str] = frozenset(),
) -> AsyncIterator[Host]:
    """Start a host that listens on the addresses of the settings.

    Args:
        settings: addresses, limits and timeouts.
        identity: the key pair that the peer id is made from.
        on_cut: called with each peer that is cut off because of its memory; it must neither wait
            nor raise.
        swarm_key: of the private network to be in, if there is one.
        refused: peers that are never to be connected; it may change.

    Raises:
        P2PError: it cannot listen on one of the addresses.
    """
    budget = MemoryBudget(settings.max_peer_memory, on_cut=on_cut, refused=refused)
    host = Host(settings, identity, budget, swarm_key)
    swarm = host._swarm
    manager = TrioManager(swarm)
    swarm._manager = manager
    service = trio.CancelScope(shield=True)  # we end it, once the connections were closed in order

    async def run_swarm() -> None:
        with service:
            await manager.run()

    with unwrapped():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_swarm)
            await manager.wait_started()
            try:
                await _listen(swarm, settings.listen)
                yield host
            finally:
                await _close(host.libp2p, swarm)
                service.cancel()


class Host:
    """A running host. Get one from `open_host`."""

    def __init__(
        self,
        settings: P2PSettings,
        identity: KeyPair,
        budget: MemoryBudget,
        swarm_key: bytes | None = None,
    ) -> None:
        self.libp2p = build_host(settings, identity, budget, self._identified, swarm_key)
        """The library's own host, which the DHT needs."""
        self.budget = budget
        """What this node holds in memory for its peers."""
        self.peer_id = str(self.libp2p.get_id())
        self._swarm = cast(GuardedSwarm, self.libp2p.get_network())
        self._settings = settings
        self._dialler = Dialler(self._swarm, settings, swarm_key is not None)
        gate: Any = self._swarm.connection_gate  # it is asked before the library dials
        gate.is_allowed = self._may_dial
        self._dials: dict[str, trio.Event] = {}
        self._on_identified: list[Callable[[str, list[str]], None]] = []

    @property
    def addresses(self) -> list[str]:
        """The multiaddrs at which peers can reach this node, each with its peer id."""
        return [str(address) for address in self.libp2p.get_addrs()]

    def connected_peers(self) -> list[str]:
        """Return the peers that we have a live connection with."""
        return [str(peer) for peer in self._swarm.connections if self._live(peer)]

    def is_connected(self, peer_id: str) -> bool:
        """Return whether there is a live connection with a peer."""
        return bool(self._live(_id(peer_id)))

    def is_on_this_machine(self, peer_id: str) -> bool:
        """Return whether a connected peer runs on this machine, judging by its IP address."""
        ours = {host_of(address) for address in self.addresses}
        remotes = [muxer.get_remote_address() for muxer in self._muxers(peer_id)]
        return any(remote[0] in ours or is_loopback_ip(remote[0]) for remote in remotes if remote)

    def address_block(self, peer_id: str) -> str:
        """Return the address block (`recon_node.fairness.slots`) from which a peer is connected,
        as its connection shows it, whatever it says; empty if there is none."""
        remotes = [muxer.get_remote_address() for muxer in self._muxers(peer_id)]
        return next((address_block_of(remote[0]) for remote in remotes if remote), "")

    def elsewhere(self, named: Sequence[str]) -> Sequence[str]:
        """Return those of the addresses that others have named that are not on this machine, whose
        services are none of their business; all if this node is for this machine only."""
        others = [address for address in named if not is_loopback(address)]
        if len(others) < len(named) and all(map(is_loopback, self.addresses)):
            return named
        return others

    async def _may_dial(self, address: Multiaddr) -> bool:
        """Return whether the library may dial an address, of which anybody may have told it."""
        try:
            meant = list(map(str, await self._dialler.resolve(address)))
        except PeerError:
            return False
        return self.elsewhere(meant) == meant

    def has_dialled(self, peer_id: str) -> bool:
        """Return whether this node has dialled a connection with a peer."""
        return any(muxer.is_initiator for muxer in self._muxers(peer_id))

    def has_streams(self, peer_id: str) -> bool:
        """Return whether any stream is open with a peer."""
        return any(connection.get_streams() for connection in self._live(_id(peer_id)))

    def note_supply(self, peer_id: str) -> None:
        """Note that a peer has supplied events, so that its connection is kept before others."""
        for muxed in self._muxers(peer_id):
            if (remote := muxed.get_remote_address()) is not None:
                self._swarm.inbound.earn(remote[0])

    def latency(self, peer_id: str) -> float | None:
        """Return the round-trip time to a connected peer in seconds; None before the first ping."""
        return min(filter(None, (muxer.rtt() for muxer in self._muxers(peer_id))), default=None)

    def on_identified(self, callback: Callable[[str, list[str]], None]) -> None:
        """Call back with each peer, and the addresses it gives, once it has identified itself."""
        self._on_identified.append(callback)

    def _identified(self, peer_id: ID) -> None:
        try:
            addresses = [str(address) for address in self._swarm.peerstore.addrs(peer_id)]
        except PeerStoreError:  # it gave none, or is gone again
            addresses = []
        for callback in self._on_identified:
            callback(str(peer_id), addresses)

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve the inbound streams of a protocol.

        The stream is closed when the handler returns, and reset when it raises.
        """

        async def serve(net_stream: INetStream) -> None:
            stream = PeerStream(net_stream, self.budget)
            try:
                await handler(stream)
            except BaseException:
                await stream.reset()
                raise
            await stream.aclose()

        self.libp2p.set_stream_handler(TProtocol(protocol), serve)

    async def connect(self, address: str, *, redial: bool = False) -> str:
        """Connect to a peer; return its peer id.

        Args:
            address: a multiaddr that ends with /p2p/<peer id>.
            redial: dial the address even if there is a connection with the peer. One of the two
                connections is closed again.

        Raises:
            PeerError: the address cannot be used, or the peer does not answer in time.
        """
        target = parse_address(address)
        peer_id = peer_id_in(address)
        check_dialable(target)
        if peer_id == self.peer_id:
            raise PeerError(f"{address} is this node's own address")
        try:
            self.budget.check(peer_id)
        except P2PError as error:
            raise PeerError(str(error)) from None
        while (dial := self._dials.get(peer_id)) is not None:
            await dial.wait()
        if self.is_connected(peer_id) and not redial:
            return peer_id
        self._dials[peer_id] = trio.Event()
        try:
            await self._dialler.dial(target, _id(peer_id))
        finally:
            self._dials.pop(peer_id).set()
        return peer_id

    def known_protocols(self, peer_id: str) -> frozenset[str]:
        """Return the protocols of a peer; none before it has identified itself."""
        try:
            return frozenset(self._swarm.peerstore.get_protocols(_id(peer_id)))
        except PeerStoreError:
            return frozenset()

    def known_agent(self, peer_id: str) -> tuple[str, str]:
        """Return the software of a peer and the version of its identify protocol, or empty text."""
        texts = []
        for key in (AGENT, PROTOCOL_VERSION):
            try:
                texts.append(str(self._swarm.peerstore.get(_id(peer_id), key)))
            except PeerStoreError:
                texts.append("")
        return texts[0], texts[1]

    @property
    def own_protocols(self) -> frozenset[str]:
        """The protocols whose streams this node serves."""
        return frozenset(
            str(protocol) for protocol in self.libp2p.get_mux().get_protocols() if protocol
        )

    async def protocols_of(self, peer_id: str) -> frozenset[str]:
        """Return the protocols of a connected peer, once it has identified itself.

        Raises:
            PeerError: it does not do so in time.
        """
        protocols: frozenset[str] = frozenset()
        with trio.move_on_after(self._settings.dial_timeout):
            await self.libp2p.wait_until_identified(_id(peer_id))
            protocols = self.known_protocols(peer_id)
        if not protocols:
            raise PeerError(f"peer {peer_id} did not answer an identify request with its protocols")
        return protocols

    async def open_stream(self, peer_id: str, *protocols: str, dial: bool = False) -> PeerStream:
        """Open a stream to a connected peer.

        Args:
            peer_id: the peer.
            protocols: the protocols to offer, best first; the peer takes the first that it speaks.
            dial: connect first if necessary, at the addresses that the library knows of the peer.

        Raises:
            PeerError: there is no connection, or the peer speaks none of the protocols.
        """
        names = " or ".join(protocols)
        if not dial and not self.is_connected(peer_id):
            raise PeerError(f"this node is not connected to peer {peer_id}")
        try:
            with trio.fail_after(self._settings.dial_timeout):
                stream = await self.libp2p.new_stream(
                    _id(peer_id), [TProtocol(protocol) for protocol in protocols]
                )
        except trio.TooSlowError:
            raise PeerError(
                f"peer {peer_id} did not open a {names} stream within "
                f"{self._settings.dial_timeout:g} s"
            ) from None
        except Exception as error:  # errors of every layer pass through the library
            raise PeerError(
                f"cannot open a {names} stream to peer {peer_id}: {innermost(error)}"
            ) from error
        return PeerStream(stream, self.budget)

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections with a peer."""
        for connection in self._live(_id(peer_id)):
            await _close_connection(connection)

    def _muxers(self, peer_id: str) -> list[GuardedYamux]:
        return [
            cast(GuardedYamux, connection.muxed_conn) for connection in self._live(_id(peer_id))
        ]

    def _live(self, peer_id: ID) -> list[INetConn]:
        return live_connections(self._swarm, peer_id)


@lru_cache(maxsize=4096)
def _id(peer_id: str) -> ID:
    """Read a peer id, which takes 0.1 ms in base58, and is done several times for each session."""
    return ID.from_string(peer_id)


async def _listen(swarm: GuardedSwarm, addresses: Sequence[str]) -> None:
    parsed = [parse_address(address) for address in addresses]
    for address in parsed:
        check_port(address)
    await swarm.listen(*parsed)
    for address in parsed:
        if str(address) not in swarm.listeners:
            raise P2PError(f"cannot listen on {address}: the address is not one of this machine's")


async def _close(libp2p_host: GuardedHost, swarm: GuardedSwarm) -> None:
    """Free the ports, close all connections side by side, then the host; even when cancelled."""
    with shielded(CLOSE_LIMIT):
        async with trio.open_nursery() as nursery:
            for listener in list(swarm.listeners.values()):
                nursery.start_soon(listener.close)
            for connection in swarm.get_connections():
                nursery.start_soon(_close_connection, connection)
        await libp2p_host.close()


async def _close_connection(connection: INetConn) -> None:
    """Close a connection gracefully, or cut it if that takes too long."""
    with trio.move_on_after(_CLOSE_ONE_LIMIT) as scope:
        await connection.close()
    if scope.cancelled_caught:
        await cast(GuardedYamux, connection.muxed_conn).secured_conn.close()


def build_host(
    settings: P2PSettings,
    identity: KeyPair,
    budget: MemoryBudget,
    on_identified: Callable[[ID], None],
    swarm_key: bytes | None,
) -> GuardedHost:
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
    bound_peer_ids()
    bound_rsa_keys()
    shorten_names()
    show_ipv6_addresses()
    if "LIBP2P_DEBUG" not in os.environ:  # libp2p's log calls every peer that leaves an error
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    identify.AGENT_VERSION = f"recon-node/{__version__}"
    noise = NoiseTransport(identity, noise_privkey=create_new_key_pair().private_key)
    upgrader = TransportUpgrader({NOISE: noise}, {})
    upgrader.muxer_multistream = GuardedMuxing(settings.connection, budget)
    peer_id = ID.from_pubkey(identity.public_key)
    peerstore = GuardedPeerStore(lambda id_: id_ == peer_id or id_ in swarm.connections)
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
    announced = [parse_address(address) for address in settings.announce]
    host = GuardedHost(
        swarm,
        addrs_factory=lambda candidates: announced or candidates,
        disable_identify_address_discovery=True,
        on_identified=on_identified,
    )
    host.set_stream_handler(IdentifyPushes.protocol, IdentifyPushes(host).serve)
    host.set_stream_handler(PING, _answer_pings)
    return host


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
_TWINS_WITHIN: Final = 10.0
"""Seconds between the beginnings of two connections that can come from dialling each other at the
same time: as long as a dial may take."""
_RESET_LIMIT: Final = 1.0
"""Seconds in which a stream is reset."""


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
    """Note what a peer says about itself; its software, too, which stock leaves out, and few of
    its addresses, each of which stock adds by itself."""
    message.listen_addrs[:] = likely(message.listen_addrs, MAX_PEER_ADDRESSES)
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
            logger.debug("Identify push refused", peer=str(peer), error=repr(error))
            await stream.reset()
        finally:
            self._under_way.discard(peer)


async def _answer_pings(stream: INetStream) -> None:
    """Answer pings until the peer ends the stream, or sends none for a while.

    In stock, all peers share a lock, which one that takes no data can hold.
    """
    try:
        with suppress(trio.TooSlowError):
            while await _handle_ping(stream, stream.muxed_conn.peer_id):
                pass
        await stream.close()
    except BaseLibp2pError:
        await stream.reset()


class GuardedHost(BasicHost):
    """A host that survives every inbound stream, and reports when a peer has identified itself."""

    def __init__(self, *args: Any, on_identified: Callable[[ID], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_identified = on_identified
        self._identify_ended = trio.lowlevel.ParkingLot()

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Negotiate and serve an inbound stream; an error resets that stream only."""
        conn = cast(GuardedYamux, net_stream.muxed_conn)
        if conn.inbound_streams >= conn.limits.max_inbound_streams:
            await _reset(net_stream)
            return
        conn.inbound_streams += 1
        try:
            await super()._swarm_stream_handler(net_stream)
        except BaseException as error:
            await _reset(net_stream)
            if not isinstance(error, Exception):  # cancelled, or Ctrl-C
                raise
            protocol = net_stream.get_protocol()
            log = logger.info if protocol else logger.debug  # before one is agreed, much is garbage
            log(
                "Inbound stream failed",
                peer=str(conn.peer_id),
                protocol=protocol,
                error=repr(error),
            )
        finally:
            conn.inbound_streams -= 1

    def get_transport_addrs(self) -> list[Multiaddr]:
        """Return the addresses that others can dial. Stock also announces 0.0.0.0."""
        return reachable(super().get_transport_addrs())

    async def wait_until_identified(self, peer_id: ID) -> None:
        """Wait until a connected peer has identified itself, or did not answer, once asked."""
        if not self._has_cached_protocols(peer_id):
            self._schedule_identify(peer_id, reason="asked for")
        while not self._has_cached_protocols(peer_id) and peer_id in self._identify_inflight:
            await self._identify_ended.park()

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
        remaining = live_connections(self._network, peer_id)
        restarted_after = _began(conn) + _TWINS_WITHIN
        if all(_began(connection) > restarted_after for connection in remaining):
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
            logger.exception("A bug in this node hid a new peer", peer=str(peer_id))


async def _reset(stream: INetStream) -> None:
    with shielded(_RESET_LIMIT):
        await stream.reset()


def _began(connection: INetConn) -> float:
    """Return when a connection was made, as a Unix time in seconds."""
    return cast(SwarmConn, connection)._created_at
