"""The libp2p host of the node: TCP, Noise and Yamux only, hardened, with limits on every wait.

``open_host`` yields a ``Host`` that listens; on leaving, it frees its ports and closes its
connections side by side, within ``CLOSE_LIMIT`` seconds, cancelled or not. Peers go by their peer
id in base58.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

import structlog
import trio
from libp2p.abc import INetConn, INetStream
from libp2p.crypto.keys import KeyPair
from libp2p.custom_types import TProtocol
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.tools.anyio_service import TrioManager
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.p2p.errors import P2PError, PeerError
from recon_node.p2p.nursery import open_service_nursery
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import (
    check_dialable,
    check_port,
    host_of,
    is_loopback_ip,
    parse_address,
    peer_id_in,
    resolve,
)
from recon_node.p2p.transport.budget import OverBudgetError
from recon_node.p2p.transport.build import IdentifyingHost, build_host
from recon_node.p2p.transport.guarded_yamux import GuardedYamux
from recon_node.p2p.transport.hardening import (
    GuardedHost,
    GuardedSwarm,
)
from recon_node.p2p.transport.streams import PeerStream, shielded

log = structlog.get_logger(__name__)

CLOSE_LIMIT: Final = 3.0
_CLOSE_ONE_LIMIT: Final = 1.0
_ADDRESS_TTL: Final = 24 * 3600

StreamHandler = Callable[[PeerStream], Awaitable[None]]


@asynccontextmanager
async def open_host(settings: P2PSettings, identity: KeyPair) -> AsyncIterator[Host]:
    """Start a host that listens on the addresses of the settings.

    Raises P2PError when it cannot listen on one of them.
    """
    libp2p_host = build_host(settings, identity)
    swarm = cast(GuardedSwarm, libp2p_host.get_network())
    manager = TrioManager(swarm)
    swarm._manager = manager
    service = trio.CancelScope(
        shield=True
    )  # ended by us, after the connections were closed in order

    async def run_swarm() -> None:
        with service:
            await manager.run()

    async with open_service_nursery() as nursery:
        nursery.start_soon(run_swarm)
        await manager.wait_started()
        try:
            await _listen(swarm, settings.listen)
            yield Host(libp2p_host, swarm, settings)
        finally:
            await _close(libp2p_host, swarm)
            service.cancel()


class Host:
    """A running host. Get one from ``open_host``."""

    def __init__(
        self, libp2p_host: IdentifyingHost, swarm: GuardedSwarm, settings: P2PSettings
    ) -> None:
        self.libp2p = libp2p_host
        """The library's host, for the DHT."""
        self.budget = swarm.budget
        """What this node holds in memory for its peers."""
        self._swarm = swarm
        self._settings = settings
        self._dials: dict[str, trio.Event] = {}
        self.peer_id = str(libp2p_host.get_id())

    @property
    def addresses(self) -> list[str]:
        """The multiaddrs that others reach us by, each with our peer id."""
        return [str(each) for each in self.libp2p.get_addrs()]

    def connected_peers(self) -> list[str]:
        """Return the peers that we have a live connection with."""
        return [str(each) for each in self._swarm.connections if self._live(each)]

    def is_connected(self, peer_id: str) -> bool:
        """Tell whether there is a live connection with a peer."""
        return bool(self._live(_id(peer_id)))

    def is_on_this_machine(self, peer_id: str) -> bool:
        """Tell whether a connected peer runs on this machine, by where its connection leads."""
        ours = {host_of(each) for each in self.addresses}
        remotes = [
            cast(GuardedYamux, each.muxed_conn).get_remote_address()
            for each in self._live(_id(peer_id))
        ]
        return any(remote[0] in ours or is_loopback_ip(remote[0]) for remote in remotes if remote)

    def has_dialled(self, peer_id: str) -> bool:
        """Tell whether it was this node that made a connection with a peer."""
        connections = self._live(_id(peer_id))
        return any(cast(GuardedYamux, each.muxed_conn).is_initiator for each in connections)

    def latency(self, peer_id: str) -> float | None:
        """Return how long a ping to a connected peer takes, in seconds; None before the first."""
        connections = self._live(_id(peer_id))
        times = [cast(GuardedYamux, each.muxed_conn).rtt() for each in connections]
        return min(filter(None, times), default=None)

    def on_identified(self, callback: Callable[[str, list[str]], None]) -> None:
        """Call back with each peer, and the addresses it gives, once it has told about itself."""

        def identified(peer_id: ID) -> None:
            callback(str(peer_id), self.known_addresses(str(peer_id)))

        self.libp2p.on_identified = identified

    def known_addresses(self, peer_id: str) -> list[str]:
        """Return the addresses that libp2p holds for a peer at the moment."""
        try:
            return [str(each) for each in self.libp2p.get_peerstore().addrs(_id(peer_id))]
        except Exception:  # the library raises its own error for a peer that it does not know
            return []

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve inbound streams of a protocol.

        A handler that returns ends its stream in good order; one that raises resets it.
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

    async def connect(self, address: str) -> str:
        """Connect to the peer of a multiaddr with /p2p/, unless it is; return its peer id.

        Raises PeerError when the address cannot be used or the peer does not answer in time.
        """
        return await self._connect(address, anew=False)

    async def dial(self, address: str) -> str:
        """Do the same at this very address, whether there is a connection or not.

        Of two connections, one is closed again.
        """
        return await self._connect(address, anew=True)

    async def _connect(self, address: str, *, anew: bool) -> str:
        target = parse_address(address)
        peer_id = peer_id_in(address)
        check_dialable(target)
        if peer_id == self.peer_id:
            raise PeerError(f"{address} is this node's own address")
        try:
            self.budget.check(peer_id)
        except OverBudgetError as error:
            raise PeerError(str(error)) from None
        while (dial := self._dials.get(peer_id)) is not None:
            await dial.wait()
        if self.is_connected(peer_id) and not anew:
            return peer_id
        self._dials[peer_id] = trio.Event()
        try:
            await self._dial(target, _id(peer_id))
        finally:
            self._dials.pop(peer_id).set()
        return peer_id

    def known_protocols(self, peer_id: str) -> frozenset[str]:
        """Return the protocols that a peer has said that it speaks; none before it has."""
        return self.libp2p.known_protocols(_id(peer_id))

    async def protocols_of(self, peer_id: str) -> frozenset[str]:
        """Return the protocols that a connected peer says that it speaks.

        Raises PeerError when it does not say.
        """
        protocols: frozenset[str] = frozenset()
        with trio.move_on_after(self._settings.dial_timeout):
            protocols = await self.libp2p.protocols_of(_id(peer_id))
        if not protocols:
            raise PeerError(f"peer {peer_id} does not say which protocols it speaks (identify)")
        return protocols

    async def open_stream(self, peer_id: str, *protocols: str) -> PeerStream:
        """Open a stream to a connected peer, for the first of some protocols that it speaks.

        Raises PeerError when there is no connection, or the peer speaks none of them.
        """
        names = " or ".join(protocols)
        if not self.is_connected(peer_id):
            raise PeerError(f"there is no connection with peer {peer_id}")
        try:
            with trio.fail_after(self._settings.dial_timeout):
                stream = await self.libp2p.new_stream(
                    _id(peer_id), [TProtocol(each) for each in protocols]
                )
        except trio.TooSlowError:
            raise PeerError(
                f"peer {peer_id} did not open a {names} stream within "
                f"{self._settings.dial_timeout:g} s"
            ) from None
        except Exception as error:  # the library lets errors of every layer through
            raise PeerError(
                f"cannot open a {names} stream to peer {peer_id}: {_innermost(error)}"
            ) from error
        return PeerStream(stream, self.budget)

    async def disconnect(self, peer_id: str) -> None:
        """Close all connections with a peer."""
        for each in self._live(_id(peer_id)):
            await _close_connection(each)

    async def _dial(self, address: Multiaddr, peer_id: ID) -> None:
        try:
            with trio.fail_after(self._settings.dial_timeout):
                reached = await self._dial_first(await resolve(address), peer_id)
        except trio.TooSlowError:
            raise PeerError(
                f"{address} did not answer within {self._settings.dial_timeout:g} s"
            ) from None
        except PeerError:
            raise
        except Exception as error:
            raise PeerError(f"cannot connect to {address}: {_innermost(error)}") from error
        self._swarm.unblock_peer(peer_id)  # the DHT's dials may have failed a moment ago
        self._swarm.peerstore.add_addrs(peer_id, [reached], _ADDRESS_TTL)

    async def _dial_first(self, addresses: Sequence[Multiaddr], peer_id: ID) -> Multiaddr:
        """Dial addresses in turn; return the one that worked, or raise what the last one did."""
        *others, last = addresses
        for address in others:
            try:
                await self._swarm.dial_addr(address, peer_id)
            except Exception as error:  # of every layer, as in _dial
                log.debug("Cannot dial an address", address=str(address), error=repr(error))
            else:
                return address
        await self._swarm.dial_addr(last, peer_id)
        return last

    def _live(self, peer_id: ID) -> list[INetConn]:
        return [each for each in self._swarm.get_connections(peer_id) if not each.is_closed]


def _id(peer_id: str) -> ID:
    return ID.from_string(peer_id)


async def _listen(swarm: GuardedSwarm, addresses: Sequence[str]) -> None:
    parsed = [parse_address(each) for each in addresses]
    for each in parsed:
        check_port(each)
    await swarm.listen(*parsed)
    for each in parsed:
        if str(each) not in swarm.listeners:
            raise P2PError(f"cannot listen on {each}: the address is not one of this machine's")


async def _close(libp2p_host: GuardedHost, swarm: GuardedSwarm) -> None:
    """Free the ports, close all connections side by side, then the host; also when cancelled."""
    with shielded(CLOSE_LIMIT):
        async with trio.open_nursery() as nursery:
            for listener in list(swarm.listeners.values()):
                nursery.start_soon(listener.close)
            for each in swarm.get_connections():
                nursery.start_soon(_close_connection, each)
        await libp2p_host.close()


async def _close_connection(connection: INetConn) -> None:
    """Close a connection in good order; when that takes too long, hang up."""
    with trio.move_on_after(_CLOSE_ONE_LIMIT) as scope:
        await connection.close()
    if scope.cancelled_caught:
        await cast(GuardedYamux, connection.muxed_conn).secured_conn.close()


def _innermost(error: BaseException) -> str:
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        elif isinstance(error, PeerIDMismatchesPubkey):
            return f"another peer answers there, {str(error).rpartition('=')[2]}"
        elif isinstance(error, OSError) and error.errno is not None:
            return os.strerror(error.errno)
        else:
            return str(error) or type(error).__name__
