"""Remedies for the defects of py-libp2p 0.8.1 that end, starve or deceive a long-running node.

Theory of operation
-------------------
The library's classes are subclassed: those of connections and streams in `guarded_connection`, the
swarm and the peerstore here, and the host in `host`, which makes one from the subclasses. Only a
few functions are replaced in place (`bound_negotiation`; `show_ipv6_addresses` in
`guarded_connection`, `bound_identify` in `host`, `bound_peer_ids` and `bound_rsa_keys` in
`identity`, `shorten_names` in `addresses`). Each remedy is one method, and the test that fails
without it is in `tests/p2p/test_p2p_hardening.py`. docs/upstream has patches for the library, and
says which remedies can go once they are released.

=====================  ============================================================================
class                  defects of the library
=====================  ============================================================================
`GuardedHost`        an exception of a stream handler, or a negotiation that is not UTF-8, ends
                       the host; a peer may have any number of streams open; what a peer said of
                       itself is kept for its next connection, or forgotten too early
`GuardedSwarm`       inbound slots are never given back, and belong to the first to come; a
                       cancelled dial leaks a count of the resource manager; two nodes that dial
                       each other keep two connections; every peer that was named is dialled
`GuardedYamux`       a cancelled write leaves half a frame on the wire; frozen peers stay
                       connected; receive windows are not enforced; the 257th stream waits forever
`GuardedPeerStore`   any peer can fill the peerstore with peers and addresses, each of which is
                       compared with all others
`IdentifyPushes`     identify messages of 1 MiB, any number at the same time; a thousand
                       addresses of any length are kept forever
`GuardedStream`      a writer fails after 5 s without a window update; concurrent writers of one
                       stream mix their bytes; a stream's window grows to 16 MiB; every read sends
                       a window update; a stream is kept until the peer ends it, too
`ReadAhead`          two to four reads of the socket for each frame
=====================  ============================================================================

The version of libp2p is pinned exactly, since this overrides methods that begin with `_`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import structlog
import trio
from libp2p.abc import IMuxedConn, INetConn, INetStream, IRawConnection
from libp2p.exceptions import ParseError
from libp2p.io.abc import Reader, ReadWriteCloser
from libp2p.io.utils import read_exactly
from libp2p.network.auto_connector import AutoConnector
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.connection.swarm_connection import SwarmConn
from libp2p.network.stream.net_stream import NetStream
from libp2p.network.swarm import Swarm
from libp2p.peer.envelope import Envelope
from libp2p.peer.id import ID
from libp2p.peer.peerdata import PeerData
from libp2p.peer.peerstore import PeerStore
from libp2p.protocol_muxer import multiselect_communicator
from libp2p.rcmgr import Direction
from libp2p.utils.varint import decode_uvarint_from_stream
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.base.latest import Latest
from recon_node.fairness.slots import AllowList, Slot, Slots
from recon_node.p2p.transport.addresses import is_dialable, likely
from recon_node.p2p.transport.guarded_connection import (
    CLEANUP_LIMIT,
    GuardedYamux,
    MemoryBudget,
    OverBudgetError,
    live_connections,
    read_ahead_on,
    shielded,
)
from recon_node.p2p.transport.private_network import PrivateStream

logger = structlog.get_logger(__name__)

MAX_NEGOTIATION: Final = 1024
"""Maximum bytes in a line of protocol negotiation, a protocol id. go-libp2p allows 64 KiB."""
HANDSHAKE_WEIGHT: Final = 256 * 1024
"""Memory of an inbound connection before its peer is authenticated, in bytes: three Noise messages
of up to 64 KiB, and some more."""
MAX_ADDRESS: Final = 256
"""Maximum bytes of a multiaddr in the peerstore."""
MAX_PEERS: Final = 2000
"""Maximum peers in the peerstore."""
MAX_PEER_ADDRESSES: Final = 32
"""Maximum addresses of a peer in the peerstore."""
MAX_ADDRESSES_SIZE: Final = 1024
"""Maximum bytes of all of them: an answer of the DHT has those of the twenty closest peers."""
MAX_RECORD: Final = 448
"""Maximum bytes of a signed record that is passed on, for the same reason; one with two addresses
has about 200. The addresses in longer ones are taken all the same."""
MAX_PEER_PROTOCOLS: Final = 100
"""Maximum protocols of a peer in the peerstore."""
MAX_PROTOCOL_NAME: Final = 200
"""Maximum characters of a protocol id in the peerstore."""
_DIALLED_SHARE: Final = 4
"""One in this many connections is reserved for those that this node dials."""
_DRAIN_LIMIT: Final = 10.0
"""Seconds that the streams of a superfluous connection get to end."""
_POLL: Final = 0.05
"""Seconds between two looks at what the library has no event for."""
_RESET_LIMIT: Final = 1.0
"""Seconds in which a raw connection is closed, or a stream reset."""


def bound_negotiation() -> None:
    """Refuse long lines in protocol negotiation unread. Applies to the whole process; idempotent.

    Stock asks the socket for as many bytes as the peer announces, before the peer is authenticated:
    a few bytes make it allocate gigabytes.
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
    """Dials nobody: the node decides which peers to connect to.

    Stock dials the peers in the peerstore until half of `high_watermark` are connected, and
    remembers all that have ever disconnected.
    """

    async def maybe_connect(self) -> None:
        """Do nothing."""

    def record_disconnect(self, peer_id: ID) -> None:
        """Do nothing."""


class GuardedPeerStore(PeerStore):
    """A peerstore of bounded size: anybody can make the library add peers to it.

    Args:
        keeps: returns whether a peer must stay. The oldest of the others make room for new ones.
    """

    def __init__(self, keeps: Callable[[ID], bool]) -> None:
        super().__init__()
        self.peer_data_map = _PeerData(keeps)
        self.peer_record_map = Latest(MAX_PEERS)

    def add_addrs(self, peer_id: ID, addrs: Sequence[Multiaddr], ttl: int = 0) -> None:
        """Add those addresses of a peer that can be dialled and for which there is room."""
        known = self.peer_data_map.get(peer_id)
        kept = [address.to_bytes() for address in known.get_addrs()] if known else []
        room = MAX_ADDRESSES_SIZE - sum(map(len, kept))
        added = []
        for raw in likely((addr.to_bytes() for addr in addrs), MAX_PEER_ADDRESSES - len(kept)):
            if len(raw) <= min(room, MAX_ADDRESS) and is_dialable(address := Multiaddr(raw)):
                added.append(address)
                room -= len(raw)
        super().add_addrs(peer_id, added, ttl)

    def consume_peer_record(self, envelope: Envelope, ttl: int) -> bool:
        """Take the addresses of a signed record, and keep it to be passed on if it is short."""
        taken = super().consume_peer_record(envelope, ttl)
        if taken and len(envelope.marshal_envelope()) > MAX_RECORD:
            self.peer_record_map.pop(envelope.record().peer_id, None)
        return taken

    def add_protocols(self, peer_id: ID, protocols: Sequence[str]) -> None:
        """Add the protocols of a peer, as far as their number and length are plausible."""
        few = list(protocols)[:MAX_PEER_PROTOCOLS]
        super().add_protocols(peer_id, [name for name in few if len(name) <= MAX_PROTOCOL_NAME])


class _PeerData(dict[ID, PeerData]):
    """The entries of a peerstore. If it is full, the oldest peer makes room for a new one."""

    def __init__(self, keeps: Callable[[ID], bool]) -> None:
        super().__init__()
        self._keeps = keeps

    def setdefault(self, key: ID, default: PeerData) -> PeerData:
        if key not in self:
            self[key] = default
        return self[key]

    def __setitem__(self, key: ID, value: PeerData) -> None:
        if key not in self and len(self) >= MAX_PEERS:
            oldest = next((peer for peer in self if not self._keeps(peer)), None)
            if oldest is not None:
                del self[oldest]
        super().__setitem__(key, value)


class OutboundStream(NetStream):
    """A stream that this node has opened."""

    async def close(self) -> None:
        """Close it, or reset it if the caller is cancelled. Other writers may be before its end."""
        try:
            await super().close()
        except trio.Cancelled:
            with shielded(_RESET_LIMIT):
                await self.reset()
            raise


class GuardedSwarm(Swarm):
    """The connections, one with each peer, in slots that are given back.

    Use it without a resource manager, whose counts leak when a dial is cancelled. Connections are
    limited by `ConnectionConfig.max_connections`, streams by `ConnectionLimits`.

    Args:
        budget: is charged for the memory of connections that are being set up.
        allowed: who always gets a connection.
        swarm_key: of the private network, if this is a node of one.
    """

    def __init__(
        self,
        *args: Any,
        budget: MemoryBudget,
        allowed: AllowList,
        swarm_key: bytes | None = None,
        **options: Any,
    ) -> None:
        self._allowed = allowed
        super().__init__(*args, **options)
        self._budget = budget
        self._swarm_key = swarm_key

    def _init_connection_management(self) -> None:
        super()._init_connection_management()
        self.auto_connector = NoAutoConnector(self)
        self.inbound = Slots(
            inbound_slots(self.connection_config.max_connections), trio.current_time, self._allowed
        )

    async def _handle_inbound_connection(
        self, read_write_closer: ReadWriteCloser, maddr: Multiaddr
    ) -> None:
        """Serve an inbound connection while it has a slot.

        Stock gives the slots to the first to come, and takes them back when the swarm ends.
        """
        if self._swarm_key is not None:
            read_write_closer = PrivateStream(read_write_closer, self._swarm_key)
        raw = RawConnection(read_write_closer, False)
        host, _ = raw.get_remote_address() or ("", 0)
        with (
            trio.CancelScope() as scope,
            self.inbound.taken_by(host, scope.cancel, busy=False) as slot,
        ):
            try:
                if slot is not None:
                    await self._serve_inbound(raw, maddr, slot)
            except Exception as error:
                logger.debug("Inbound connection failed", remote=host, error=repr(error))
            finally:
                with shielded(_RESET_LIMIT):
                    await raw.close()
        if scope.cancelled_caught:
            logger.debug("Cut a connection: another peer needs its slot", remote=host)

    async def _serve_inbound(self, raw: RawConnection, maddr: Multiaddr, slot: Slot) -> None:
        with trio.move_on_after(CLEANUP_LIMIT):  # the one that gave way may still be leaving
            limit = self.connection_config.max_connections
            while len(self.get_connections()) >= limit:  # noqa: ASYNC110 (there is no event for it)
                await trio.sleep(_POLL)
        muxed = await self._upgrade_within_budget(raw, maddr)
        if str(muxed.peer_id) in self._allowed:
            slot.keep()
        await muxed.event_closed.wait()

    async def _upgrade_within_budget(self, raw: RawConnection, maddr: Multiaddr) -> GuardedYamux:
        """Secure and mux an inbound connection, whose memory counts as a separate peer's."""
        host, port = raw.get_remote_address() or ("", id(raw))
        with trio.CancelScope() as scope:
            account = self._budget.account(f"{host}:{port}, unidentified", host, scope.cancel)
            try:
                account.hold("handshakes", HANDSHAKE_WEIGHT)
                return cast(GuardedYamux, await self.upgrade_inbound_raw_conn(raw, maddr))
            finally:
                account.close()
        raise OverBudgetError("the connection was cut off before its peer was authenticated")

    async def upgrade_inbound_raw_conn(
        self, raw_conn: IRawConnection, maddr: Multiaddr
    ) -> IMuxedConn:
        """Secure and mux a connection, reading ahead on it."""
        read_ahead_on(raw_conn)
        return await super().upgrade_inbound_raw_conn(raw_conn, maddr)

    async def upgrade_outbound_raw_conn(
        self, raw_conn: IRawConnection, peer_id: ID, pre_scope: Any = None
    ) -> SwarmConn:
        """Secure and mux a connection, reading ahead on it."""
        read_ahead_on(raw_conn)
        return await super().upgrade_outbound_raw_conn(raw_conn, peer_id, pre_scope)

    async def _open_stream_on_connection(
        self, connection: INetConn, connections: list[INetConn], peer_id: ID
    ) -> INetStream:
        """Open and register a stream; it must not be cancelled between the two.

        Nor must its end, or it would stay open: walks of the DHT are cut short.
        """
        with trio.CancelScope(shield=True):
            stream = await super()._open_stream_on_connection(connection, connections, peer_id)
        stream.__class__ = OutboundStream
        return stream

    def _select_connection(self, connections: list[INetConn], peer_id: ID) -> INetConn:
        """Return the connection to use and keep: the one that the smaller peer id has dialled."""
        ours = self.get_peer_id().to_bytes() < peer_id.to_bytes()
        wanted = Direction.OUTBOUND if ours else Direction.INBOUND
        return next(
            (connection for connection in connections if _direction(connection) == wanted),
            connections[0],
        )

    async def notify_connected(self, conn: INetConn) -> None:
        """Announce a new connection, and retire superfluous ones."""
        await super().notify_connected(conn)
        peer_id = conn.muxed_conn.peer_id
        live = live_connections(self, peer_id)
        if len(live) < 2:
            return
        lasting = self._select_connection(live, peer_id)
        for spare in live:
            # Its dialler closes a spare. Otherwise each side could close what the other one keeps.
            if spare is not lasting and _direction(spare) == Direction.OUTBOUND:
                self.manager.run_task(self._retire, spare)

    async def _retire(self, spare: INetConn) -> None:
        """Close a spare connection once its streams have ended, or had time to end."""
        with trio.move_on_after(_DRAIN_LIMIT):
            while spare.get_streams():  # noqa: ASYNC110 (the library has no event for it)
                await trio.sleep(_POLL)
        with trio.move_on_after(CLEANUP_LIMIT):
            await self._close_connection_async(spare)


def inbound_slots(max_connections: int) -> int:
    """Return how many connections may be inbound; the others are left for our own dials."""
    return max(1, max_connections - max(1, max_connections // _DIALLED_SHARE))


def _direction(connection: INetConn) -> Direction:
    return cast(SwarmConn, connection).direction
