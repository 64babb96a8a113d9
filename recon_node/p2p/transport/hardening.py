"""Remedies for what stops, starves or fools a long-running daemon on py-libp2p 0.8.1.

Theory of operation
-------------------
Nothing of the library is changed in place, with one exception (``bound_negotiation``). Its classes
are subclassed, here and for the muxer in ``guarded_yamux``, and ``host`` builds the
host from those. Each remedy is one method; each has in ``tests/p2p/test_p2p_hardening.py`` the
reproduction that fails without it.

=====================  ============================================================================
class                  what its methods remedy
=====================  ============================================================================
``GuardedHost``        a stream handler's exception, or a negotiation that is not UTF-8, ended the
                       host; a peer could have any number of streams open
``GuardedSwarm``       inbound slots were never given back, and one address could have them all; a
                       cancelled dial lost a count of the resource manager for good; two nodes that
                       dialled each other kept two connections; whoever was heard of got dialled
``GuardedYamux``       a cancelled write left half a frame on the wire; a frozen peer stayed; a
                       receiver buffered without end; the 257th stream waited for ever
``GuardedPeerStore``   any peer could fill the peerstore, with peers and with addresses of one peer,
                       each of which was compared with all others
``IdentifyPushes``     identify messages of 1 MiB, any number at once; a thousand addresses of any
                       length, kept for ever
``GuardedStream``      a writer was reset after 5 s without a window update; concurrent writers of
                       one stream mixed their bytes; a stream's window grew to 16 MiB
=====================  ============================================================================

The version of libp2p is pinned exactly, since all of this overrides methods that begin with ``_``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, cast

import structlog
import trio
from libp2p.abc import INetConn, INetStream
from libp2p.exceptions import ParseError
from libp2p.host.basic_host import BasicHost
from libp2p.io.abc import Reader, ReadWriteCloser
from libp2p.io.utils import read_exactly
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.swarm import Swarm
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerdata import PeerData
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.rcmgr import Direction
from libp2p.utils.varint import decode_uvarint_from_stream
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.budget import UNLIMITED, OverBudgetError
from recon_node.p2p.transport.guarded_yamux import GuardedYamux
from recon_node.p2p.transport.places import Places
from recon_node.p2p.transport.streams import shielded

log = structlog.get_logger(__name__)

MAX_NEGOTIATION: Final = 1024
"""A line of protocol negotiation at most: one protocol id. (go-libp2p takes 64 KiB.)"""
HANDSHAKE_WEIGHT: Final = 256 * 1024
"""Bytes of memory that an inbound connection may take before the peer has shown who it is: three
Noise messages of up to 64 KiB."""
MAX_ADDRESS: Final = 256
"""Bytes of a multiaddr in the peerstore."""
MAX_PEERS: Final = 2000
"""Peers in the peerstore."""
MAX_PEER_ADDRESSES: Final = 32
MAX_PEER_PROTOCOLS: Final = 100
MAX_PROTOCOL_NAME: Final = 200
_CLEANUP_LIMIT: Final = 5.0
_DRAIN_LIMIT: Final = 10.0


def bound_negotiation() -> None:
    """Refuse long lines in protocol negotiation unread. Applies to the whole process; idempotent.

    The stock reader asks the socket for as many bytes as the peer claims to send, before the peer
    has shown who it is: a few bytes make it allocate gigabytes.
    """
    multiselect_communicator.read_delim = _read_bounded_line  # type: ignore[attr-defined]


async def _read_bounded_line(reader: Reader) -> bytes:
    length = await decode_uvarint_from_stream(reader)
    if not 0 < length <= MAX_NEGOTIATION:
        raise ParseError(
            f"a negotiation line of {length} bytes; at most {MAX_NEGOTIATION} are read"
        )
    line = await read_exactly(reader, length)
    if not line.endswith(b"\n"):
        raise ParseError("a negotiation line that does not end with a newline")
    return line[:-1]


class NoAutoConnector(AutoConnector):
    """Dials nobody: which peers to connect to is the node's decision, not the library's.

    Stock dials all that the peerstore has heard of, until half of ``high_watermark`` is connected.
    """

    async def maybe_connect(self) -> None:
        """Do nothing."""


class GuardedPeerStore(PeerStore):
    """A peerstore of bounded size: what the library hears of from anybody gets in here.

    ``keeps`` tells which peers must stay. Of the others, the oldest make room.
    """

    keeps: Callable[[ID], bool] = staticmethod(lambda peer_id: False)

    def __init__(self) -> None:
        super().__init__()
        self.peer_data_map = _PeerData(self)

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Note addresses of a peer that can be dialled, as far as there is room."""
        known = self.peer_data_map.get(peer_id)
        room = MAX_PEER_ADDRESSES - (len(known.get_addrs()) if known else 0)
        short = [each for each in addrs if len(each.to_bytes()) <= MAX_ADDRESS]
        super().add_addrs(peer_id, list(filter(is_dialable, short))[: max(0, room)], ttl)

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Note the addresses that a peer has signed. Of too many records the oldest make room."""
        taken = super().consume_peer_record(envelope, ttl)
        while len(self.peer_record_map) > MAX_PEERS:
            del self.peer_record_map[next(iter(self.peer_record_map))]
        return taken

    def add_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Note what a peer speaks, as far as it is plausible."""
        few = list(protocols)[:MAX_PEER_PROTOCOLS]
        super().add_protocols(peer_id, [each for each in few if len(each) <= MAX_PROTOCOL_NAME])


class _PeerData(dict[ID, PeerData]):
    """What a peerstore knows of each peer; a new one makes the oldest go where it is full."""

    def __init__(self, owner: GuardedPeerStore) -> None:
        super().__init__()
        self._owner = owner

    def setdefault(self, key: ID, default: PeerData) -> PeerData:
        if key not in self:
            self[key] = default
        return self[key]

    def __setitem__(self, key: ID, value: PeerData) -> None:
        if key not in self and len(self) >= MAX_PEERS:
            oldest = next((each for each in self if not self._owner.keeps(each)), None)
            if oldest is not None:
                del self[oldest]
        super().__setitem__(key, value)


class GuardedSwarm(Swarm):
    """The set of connections, with one for each peer, and slots that come back.

    Give it no resource manager: what that counts is lost on a cancelled dial. Connections are
    limited by ``ConnectionConfig.max_connections``, streams by ``ConnectionLimits``.
    """

    budget = UNLIMITED
    """Where the memory of connections that are being made is charged."""

    def _init_connection_management(self) -> None:
        super()._init_connection_management()
        self.auto_connector = NoAutoConnector(self)
        self._inbound = Places(inbound_places(self.connection_config.max_connections))

    async def _handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr
    ) -> None:
        """Serve an inbound connection while there is a place for its address.

        Stock gives its slots to whoever comes first, and each until the swarm ends.
        """
        raw = RawConnection(read_write_closer, False)
        host, _ = raw.get_remote_address() or ("", 0)
        with (
            trio.CancelScope() as scope,
            self._inbound.taken_by(host, scope.cancel) as has_place,
        ):
            try:
                if has_place:
                    await self._serve_inbound(raw, maddr)
            except Exception as error:
                log.debug("Inbound connection failed", remote=host, error=repr(error))
            finally:
                with shielded(1):
                    await raw.close()
        if scope.cancelled_caught:
            log.debug("Hung up: another address needs the place", remote=host)

    async def _serve_inbound(self, raw: RawConnection, maddr: Multiaddr) -> None:
        with trio.move_on_after(_CLEANUP_LIMIT):  # whoever gave way for it may still be leaving
            limit = self.connection_config.max_connections
            while len(self.get_connections()) >= limit:  # noqa: ASYNC110 (there is no event for it)
                await trio.sleep(0.05)
        muxed = await self._upgrade_within_budget(raw, maddr)
        await muxed.event_closed.wait()

    async def _upgrade_within_budget(self, raw: RawConnection, maddr: Multiaddr) -> GuardedYamux:
        """Secure and mux an inbound connection. Until it is, it counts as a peer of its own."""
        host, port = raw.get_remote_address() or ("", id(raw))
        with trio.CancelScope() as scope:
            account = self.budget.account(f"{host}:{port}, unidentified", host, scope.cancel)
            try:
                account.hold("handshakes", HANDSHAKE_WEIGHT)
                return cast(GuardedYamux, await self.upgrade_inbound_raw_conn(raw, maddr))
            finally:
                account.close()
        raise OverBudgetError("the connection was cut off before the peer had shown who it is")

    async def _open_stream_on_connection(
        self, connection: INetConn, connections: list[INetConn], peer_id: ID
    ) -> INetStream:
        """Open and register a stream without being cancelled between the two."""
        with trio.CancelScope(shield=True):
            return await super()._open_stream_on_connection(connection, connections, peer_id)

    def _select_connection(self, connections: list[INetConn], peer_id: ID) -> INetConn:
        return self._lasting_connection(connections, peer_id)

    def _lasting_connection(self, connections: list[INetConn], peer_id: ID) -> INetConn:
        """Of several connections with a peer, the one that the smaller peer id has dialled."""
        ours = self.get_peer_id().to_bytes() < peer_id.to_bytes()
        wanted = Direction.OUTBOUND if ours else Direction.INBOUND
        return next((each for each in connections if _direction(each) == wanted), connections[0])

    async def notify_connected(self, conn: INetConn) -> None:
        """Tell of a new connection, and retire those that it, or that make it, superfluous."""
        await super().notify_connected(conn)
        peer_id = conn.muxed_conn.peer_id
        live = [each for each in self.get_connections(peer_id) if not each.is_closed]
        if len(live) < 2:
            return
        lasting = self._lasting_connection(live, peer_id)
        for spare in live:
            # Who dialled a spare closes it: else each side could close what the other keeps.
            if spare is not lasting and _direction(spare) == Direction.OUTBOUND:
                self.manager.run_task(self._retire, spare)

    async def _retire(self, spare: INetConn) -> None:
        """Close a spare connection once its streams have ended, or have had time to."""
        with trio.move_on_after(_DRAIN_LIMIT):
            while spare.get_streams():  # noqa: ASYNC110 (the library has no event for it)
                await trio.sleep(0.1)
        with trio.move_on_after(_CLEANUP_LIMIT):
            await self._close_connection_async(spare)


class GuardedHost(BasicHost):
    """A host that no inbound stream can end."""

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        """Negotiate and serve an inbound stream; what goes wrong there resets that stream only."""
        conn = cast(GuardedYamux, net_stream.muxed_conn)
        if conn.inbound_streams >= conn.limits.max_inbound_streams:
            await _reset(net_stream)
            return
        conn.inbound_streams += 1
        try:
            await super()._swarm_stream_handler(net_stream)
        except Exception as error:
            protocol = net_stream.get_protocol()
            (log.info if protocol else log.debug)(  # before that it is garbage, of which is plenty
                "Inbound stream failed",
                peer=str(conn.peer_id),
                protocol=protocol,
                error=repr(error),
            )
            await _reset(net_stream)
        except BaseException:  # cancelled: by our shutdown or the end of the connection
            await _reset(net_stream)
            raise
        finally:
            conn.inbound_streams -= 1


def inbound_places(max_connections: int) -> int:
    """Return how many connections may be inbound: strangers leave a quarter to our own dials."""
    return max(1, max_connections - max(1, max_connections // 4))


def _direction(connection: INetConn) -> Direction:
    return cast(SwarmConn, connection).direction


async def _reset(stream: INetStream) -> None:
    with shielded(1):
        await stream.reset()
