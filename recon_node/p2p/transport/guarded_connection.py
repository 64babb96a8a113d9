"""Connections with peers: muxed by Yamux, and cut if they freeze or take too much memory.

The muxer
---------
Here are the remedies for defects in py-libp2p's muxer and what it reads from; `hardening` lists
them all. The library reads a frame in four pieces: length and content of a Noise message, twice.
Each piece is a call of the operating system and a turn of the scheduler. With `ReadAhead`, one call
reads whatever has arrived, and the pieces are cut from that.

The memory that peers make this node hold
-----------------------------------------
Each limit of the network side is for one thing: a frame, a turn, a window, a number of streams.
What one peer can make us hold is their product, and what all peers can is that times their number.
So every part that keeps bytes for a peer also charges them here, and their sum has one limit.

When the sum exceeds the limit, peers are cut off one by one until it no longer does: at the address
that holds the most, the peer that holds the most. Addresses come first because peer ids cost
nothing: a hundred made-up ones on one machine count together. So of n addresses, one that holds
less than an n-th of the limit is never cut off.

A peer that was cut off is refused for `REFUSED_FOR` seconds, because otherwise it would come back
at once and hold the same again. After that it starts from nothing, even if a part of the node still
holds something from before.

What is charged is memory, not bytes on the wire: a decoded message takes several times as much.
A budget does no I/O: closing connections is up to the callbacks of those who own them.
"""

from __future__ import annotations

import struct
import sys
from collections import Counter
from collections.abc import Callable, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

import structlog
import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetConn, INetwork, IRawConnection, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.io.abc import ReadWriteCloser
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.exceptions import RawConnError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux

from recon_node.base.latest import Latest
from recon_node.fairness.slots import address_block_of
from recon_node.p2p.errors import P2PError
from recon_node.p2p.settings import ConnectionLimits

logger = structlog.get_logger(__name__)


def shielded(seconds: float) -> trio.CancelScope:
    """Return a cancel scope for clean-up: shielded from outside, but limited to `seconds`."""
    return trio.CancelScope(deadline=trio.current_time() + seconds, shield=True)


READ_AT_ONCE: Final = 64 * 1024
"""Maximum bytes that are read ahead. A connection is charged for them from its beginning."""


class ReadAhead(ReadWriteCloser):
    """A connection that is read in large pieces, by one reader at a time."""

    def __init__(self, stream: ReadWriteCloser) -> None:
        self._stream = stream
        self._ahead = b""
        self._at = 0

    async def read(self, n: int | None = None) -> bytes:
        """Return at most `n` bytes, and none only at the end."""
        if self._at == len(self._ahead):
            self._ahead, self._at = b"", 0
            if n is None or n >= READ_AT_ONCE:
                return await self._stream.read(n)
            if n == 0:
                return b""
            self._ahead = await self._stream.read(READ_AT_ONCE)
        end = len(self._ahead) if n is None else self._at + n
        part = self._ahead[self._at : end]
        self._at += len(part)
        return part

    async def write(self, data: bytes) -> None:
        """Send data."""
        await self._stream.write(data)

    async def close(self) -> None:
        """Close the connection below."""
        await self._stream.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return the address of the peer."""
        return self._stream.get_remote_address()


def read_ahead_on(raw: IRawConnection) -> None:
    """Read ahead on a connection on which nothing has been read yet."""
    connection = cast(RawConnection, raw)
    connection.stream = ReadAhead(connection.stream)


def show_ipv6_addresses() -> None:
    """Have connections over IPv6 know the peer's address. Applies to the whole process; idempotent.

    Stock takes an address of four parts, as sockets of IPv6 have them, for none.
    """
    TrioTCPStream.get_remote_address = _remote_address  # type: ignore[method-assign]


def _remote_address(self: TrioTCPStream) -> tuple[str, int] | None:
    if self._cached_remote_address is None:
        try:
            host, port, *_ = self.stream.socket.getpeername()
        except OSError:  # it is closed already
            return None
        self._cached_remote_address = str(host).partition("%")[0], int(port)
    return self._cached_remote_address


def live_connections(network: INetwork, peer_id: ID) -> list[INetConn]:
    """Return the connections with a peer that are not closed."""
    return [conn for conn in network.get_connections(peer_id) if not conn.is_closed]


CONNECTION_WEIGHT: Final = 128 * 1024
"""The memory of a connection without streams, in bytes."""
STREAM_WEIGHT: Final = 16 * 1024
"""The memory of a stream without data, in bytes."""
CLEANUP_LIMIT: Final = 5.0
"""Seconds in which a connection that is cut is cleaned up."""
_FIRST_PING: Final = 0.5
"""Seconds until the first ping of a connection."""
_FRAME_PAYLOAD: Final = MAX_PLAINTEXT_LENGTH - yamux.HEADER_SIZE
"""Bytes of data in a frame that fits into one Noise message."""


def _observed(name: str) -> Any:
    """Return an attribute of a stream whose every assignment wakes the writer that waits."""

    def read(stream: GuardedStream) -> Any:
        return stream.__dict__[name]

    def assign(stream: GuardedStream, value: Any) -> None:
        stream.__dict__[name] = value
        stream._changed.unpark_all()

    return property(read, assign)


class GuardedStream(yamux.YamuxStream):
    """A stream whose writers take turns, and decide themselves how long they wait for the peer.

    The library has no event for the peer's window and its resets, so what it assigns is observed.
    """

    _turn: trio.Lock
    _changed: trio.lowlevel.ParkingLot
    conn: GuardedYamux
    send_window: int = _observed("send_window")
    closed: bool = _observed("closed")
    """Assigned by every reset, too, and by the end of either side."""

    @classmethod
    def adopt(cls, stream: IMuxedStream) -> GuardedStream:
        """Guard a stream that the muxer has just made: its stream class cannot be configured."""
        stream.__class__ = cls
        guarded = cast(GuardedStream, stream)
        guarded._turn = trio.Lock()
        guarded._changed = trio.lowlevel.ParkingLot()
        return guarded

    async def write(self, data: bytes) -> None:
        """Write all of `data`; the caller limits the time with a cancel scope.

        A cancelled write may have sent a part of its data: reset the stream after it.
        """
        async with self._turn:
            view = memoryview(data)
            while view:
                size = min(await self._wait_for_window(), _FRAME_PAYLOAD, len(view))
                self.send_window -= size
                header = struct.pack(
                    yamux.YAMUX_HEADER_FORMAT, 0, yamux.TYPE_DATA, 0, self.stream_id, size
                )
                await self.conn._write_frame(header + view[:size])
                view = view[size:]

    async def _wait_for_window(self) -> int:
        while True:
            if self.reset_received:
                raise MuxedStreamReset("the stream was reset")
            if self.send_closed or self.closed:
                raise MuxedStreamError("the stream is closed for sending")
            if self.send_window > 0:
                return self.send_window
            await self._changed.park()

    async def read(self, n: int | None = -1) -> bytes:
        """Read up to `n` bytes, which are no longer charged to the peer."""
        try:
            return await super().read(n)
        finally:
            if self.stream_id not in self.conn.streams:  # a reader that waited has put it back
                self.conn.stream_events.pop(self.stream_id, None)
            self.conn.count_read()

    async def close(self) -> None:
        """End the stream: what was sent still arrives, and what the peer still sends is dropped.

        Stock keeps the stream until the peer ends it, too, which may be never.
        """
        self.recv_closed = True
        self.conn.stream_buffers.get(self.stream_id, bytearray()).clear()
        if (event := self.conn.stream_events.get(self.stream_id)) is not None:
            event.set()  # another task may read
        await super().close()
        self.conn.count_read()

    async def reset(self) -> None:
        """End the stream at once and drop its unread data, which stock keeps for a minute."""
        self.conn.stream_buffers.get(self.stream_id, bytearray()).clear()
        await super().reset()
        self.conn.stream_buffers.get(self.stream_id, bytearray()).clear()
        self.conn.count_read()

    async def _auto_tune_and_send_window_update(self, *, bytes_read: int = 0) -> None:
        """Give the peer new credit once it has used half of the window, as go-yamux does.

        Stock does so after every read, and much is read byte by byte: so each byte costs both sides
        a frame.
        """
        buffered = len(self.conn.stream_buffers.get(self.stream_id, b""))
        used = self.target_recv_window - self.recv_window - buffered
        if used >= self._grow_threshold():
            credit = self._grow_to_delta(buffered) + self._apply_autotune_epoch(buffered)
            with trio.CancelScope(shield=True):  # a reader that is cancelled would lose its data
                await self.send_window_update(credit)

    def _apply_autotune_epoch(self, buffered: int) -> int:
        """Stop the growth of the window at the limit, so that the peer's data is bounded."""
        if self.target_recv_window >= self.conn.limits.max_window:
            return 0
        return super()._apply_autotune_epoch(buffered)


class GuardedYamux(yamux.Yamux):
    """A muxed connection that survives cancelled writers and cuts off frozen or greedy peers."""

    def __init__(
        self,
        secured_conn: ISecureConn,
        peer_id: ID,
        is_initiator: bool,
        limits: ConnectionLimits,
        budget: MemoryBudget,
    ) -> None:
        super().__init__(secured_conn, peer_id, is_initiator=is_initiator)
        self.limits = limits
        self.inbound_streams = 0
        host, _ = secured_conn.get_remote_address() or ("", 0)
        self._account = budget.account(str(peer_id), host, self._leave_at_once)
        try:
            self._account.hold("connections", CONNECTION_WEIGHT)
        except OverBudgetError:
            self._account.close()  # nobody else will, since there is no connection
            raise

    async def open_stream(self) -> GuardedStream:
        """Open a stream, or fail at once if all 256 of the muxer are in use.

        Shielded, because an opening that is cancelled half-way would keep its slot forever.
        """
        if self.stream_backlog_semaphore.value == 0:
            raise MuxedStreamError(
                f"all {self.stream_backlog_limit} streams to peer {self.peer_id} are in use"
            )
        with trio.CancelScope(shield=True):
            return GuardedStream.adopt(await super().open_stream())

    async def accept_stream(self) -> GuardedStream:
        """Wait for a stream that the peer opens."""
        return GuardedStream.adopt(await super().accept_stream())

    async def close(self, error_code: int = yamux.GO_AWAY_NORMAL) -> None:
        """Close the connection gracefully."""
        try:
            await super().close(error_code)
        finally:
            self._account.close()

    async def _cleanup_on_error(self) -> None:
        try:
            await super()._cleanup_on_error()
        finally:
            self._account.close()

    def count_unread(self, coming: int = 0) -> None:
        """Charge the peer for its unread data and its streams.

        Args:
            coming: bytes that are about to be read from the connection.

        Raises:
            OverBudgetError: there is no room for them.
        """
        unread = sum(map(len, self.stream_buffers.values()))
        self._account.hold("unread", unread + coming)
        self._account.hold("streams", STREAM_WEIGHT * len(self.streams))

    def count_read(self) -> None:
        """Charge the peer for less unread data.

        Never raises, since the data has been read. New streams are charged with the next data.
        """
        with suppress(OverBudgetError):
            self.count_unread()

    def _leave_at_once(self) -> None:
        """Drop the unread data and cut the connection as soon as possible."""
        for buffer in self.stream_buffers.values():
            buffer.clear()
        if self._nursery is None or self.event_shutting_down.is_set():
            self.event_shutting_down.set()  # its start() closes the connection then
        else:
            self._nursery.start_soon(self._hang_up)

    async def _hang_up(self) -> None:
        with shielded(CLEANUP_LIMIT):
            await self.secured_conn.close()  # first, so that no writer keeps its lock
            await self._cleanup_on_error()

    async def _write_frame(self, data: bytes) -> None:
        """Write a whole frame even if the caller is cancelled: half of one ruins the connection.

        If the network does not accept it in time, the connection is cut.
        """
        async with self._write_lock:
            if self.event_shutting_down.is_set():
                raise RawConnError("the connection is closed")
            with shielded(self.limits.write_timeout) as scope:
                await self.secured_conn.write(data)
            if scope.cancelled_caught:
                self.event_shutting_down.set()
                # Before the lock is released, so that nobody writes any more.
                await self.secured_conn.close()
        if scope.cancelled_caught:
            await self._cut(f"took no data for {self.limits.write_timeout:g} s")
            raise RawConnError("the connection was cut: the peer takes no data")

    async def _read_data_body(self, length: int) -> bytes:
        """Read the data of a frame, or cut off a peer that sends more than the windows allow."""
        unread = sum(map(len, self.stream_buffers.values()))
        if length > self.limits.max_window or unread + length > self.limits.max_buffered:
            logger.warning("Closing a connection: unread data piles up", peer=str(self.peer_id))
            raise trio.TooSlowError  # on which the muxer's loop closes the connection
        try:
            self.count_unread(length)
        except OverBudgetError:
            raise trio.TooSlowError from None
        return await super()._read_data_body(length)

    async def _measure_rtt_loop(self) -> None:
        """Ping the peer regularly; cut the connection when it does not answer."""
        wait = min(_FIRST_PING, self.limits.ping_interval)
        while not self.event_shutting_down.is_set():
            with trio.move_on_after(wait):
                await self.event_shutting_down.wait()
                return
            wait = self.limits.ping_interval
            self._ping_id = (self._ping_id + 1) & 0xFFFFFFFF
            self._ping_event = trio.Event()
            self._ping_sent_time = trio.current_time()
            try:
                await self._write_frame(
                    struct.pack(
                        yamux.YAMUX_HEADER_FORMAT,
                        0,
                        yamux.TYPE_PING,
                        yamux.FLAG_SYN,
                        0,
                        self._ping_id,
                    )
                )
            except Exception:
                return  # the connection is closed already
            with trio.move_on_after(self.limits.ping_timeout):
                await self._ping_event.wait()
            if not self._ping_event.is_set() and not self.event_shutting_down.is_set():
                await self._cut(f"left a ping unanswered for {self.limits.ping_timeout:g} s")

    async def _cut(self, why: str) -> None:
        logger.warning("Closing a connection: the peer " + why, peer=str(self.peer_id))
        # Shielded, because the end of the muxer's read loop cancels its other tasks, also this one.
        with shielded(CLEANUP_LIMIT):
            await self._cleanup_on_error()


class GuardedMuxing(MuxerMultistream):
    """Muxer negotiation for `GuardedYamux`, whose arguments the library's cannot pass."""

    def __init__(self, limits: ConnectionLimits, budget: MemoryBudget) -> None:
        super().__init__({TProtocol(yamux.PROTOCOL_ID): GuardedYamux})
        self._limits = limits
        self._budget = budget

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Negotiate Yamux and start it.

        Raises:
            P2PError: the peer is refused.
        """
        self._budget.check(str(peer_id))  # first, so that the peer sees its dial fail
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = GuardedYamux(conn, peer_id, conn.is_initiator, self._limits, self._budget)
        return self._annotate_connection(muxed, conn, protocol)


Cut = Callable[[], None]
_SLACK: Final = 4
"""While peers that were cut off release their memory, the sum may exceed the limit by this fraction
of it: a quarter."""
REFUSED_FOR: Final = 60.0
"""Seconds for which a peer that was cut off is refused."""
WARN_EVERY: Final = 60.0
"""Seconds between two warnings about cut-offs at the same address."""
_MAX_REFUSED_PEERS: Final = 1000
"""Maximum peers that are refused, and addresses that were warned about: the latest ones."""


class OverBudgetError(P2PError):
    """A peer, or all peers together, made this node use too much memory."""


@dataclass(eq=False, slots=True)
class _Holder:
    """One peer, with everything that is held for it."""

    address: str
    held: int = 0
    accounts: int = 0
    cuts: list[Cut] = field(default_factory=list)
    leaving: bool = False


class MemoryAccount:
    """What one connection or stream of a peer holds, by kind. Close it at the end."""

    def __init__(self, budget: MemoryBudget, peer: str, holder: _Holder, cut: Cut | None) -> None:
        self._budget = budget
        self._peer = peer
        self._holder = holder
        self._cut = cut
        self._held: dict[str, int] = {}
        self._closed = False
        holder.accounts += 1
        if cut is not None:
            holder.cuts.append(cut)

    def hold(self, kind: str, size: int) -> None:
        """Set how many bytes of a kind are held from now on; call it before they are.

        Raises:
            OverBudgetError: it is more than before, and there is no room for it.
        """
        more = size - self._held.get(kind, 0)
        if self._closed or not more:
            return
        if more > 0:
            self._budget._make_room(self._peer, self._holder, more)
        self._held[kind] = size
        self._budget._add(self._holder, kind, more)

    def close(self) -> None:
        """Release everything."""
        if self._closed:
            return
        for kind in list(self._held):
            self.hold(kind, 0)
        self._closed = True
        if self._cut is not None:
            self._holder.cuts.remove(self._cut)
        self._budget._leave(self._peer, self._holder)


class MemoryBudget:
    """What all peers together hold, in bytes, with a limit.

    Args:
        limit: the sum that is allowed.
        clock: returns the time in seconds.
        on_cut: called with each peer that is cut off; it must neither wait nor raise.
        refused: peers that get nothing, as the operator has removed them; it may change.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = trio.current_time,
        on_cut: Callable[[str], None] = lambda peer: None,
        refused: Set[str] = frozenset(),
    ) -> None:
        self.limit = limit
        self._removed = refused
        self._clock = clock
        self._on_cut = on_cut
        self._refused = Latest[str, float](_MAX_REFUSED_PEERS)
        self._warned = Latest[str, float](_MAX_REFUSED_PEERS)
        self.held = 0
        """Bytes held at the moment, for all peers."""
        self.by_kind = Counter[str]()
        """The same by kind, as the accounts name them."""
        self.cut_off = 0
        """Peers cut off since the start."""
        self._staying = 0
        """Bytes held for the peers that are not being cut off."""
        self._holders: dict[str, _Holder] = {}

    def account(self, peer: str, address: str = "", cut: Cut | None = None) -> MemoryAccount:
        """Open an account for a connection or a stream of a peer.

        Args:
            peer: its peer id.
            address: the IP address that it is connected from, if known.
            cut: called at most once, when the peer is cut off; it must neither wait nor raise.
        """
        holder = self._holders.setdefault(peer, _Holder(address_block_of(address)))
        if address:
            holder.address = address_block_of(address)
        return MemoryAccount(self, peer, holder, cut)

    def refused_for(self, peer: str) -> float:
        """Return for how many more seconds a peer is refused because it was cut off."""
        until = self._refused.get(peer)
        return 0.0 if until is None else max(0.0, until - self._clock())

    def check(self, peer: str) -> None:
        """Check that a peer is not refused.

        Raises:
            OverBudgetError: it was cut off a short while ago.
            P2PError: it was removed.
        """
        if peer in self._removed:
            raise P2PError(f"peer {peer} was removed: `recon-node peers add` takes it back")
        if wait := self.refused_for(peer):
            raise OverBudgetError(
                f"peer {peer} was cut off because it made this node use too much memory; "
                f"it is refused for another {wait:.0f} s"
            )

    def _make_room(self, peer: str, holder: _Holder, more: int) -> None:
        """Cut off peers until there is room for more bytes of one of them."""
        self.check(peer)
        while not holder.leaving and self._staying + more > self.limit:
            name, greediest = self._greediest(holder, more)
            self._cut(name, greediest, more if greediest is holder else 0)
        if holder.leaving:
            raise OverBudgetError("the peer is being cut off: it uses too much of our memory")
        if self.held + more > self.limit + self.limit // _SLACK:
            raise OverBudgetError("all peers together make this node use too much memory")

    def _greediest(self, asking: _Holder, more: int) -> tuple[str, _Holder]:
        by_address = Counter({asking.address: more})
        for holder in self._holders.values():
            if not holder.leaving:
                by_address[holder.address] += holder.held
        (address, _), *_ = by_address.most_common(1)
        there = {
            name: holder.held + (more if holder is asking else 0)
            for name, holder in self._holders.items()
            if holder.address == address and not holder.leaving
        }
        name = max(there, key=lambda holder: there[holder])
        return name, self._holders[name]

    def _cut(self, peer: str, holder: _Holder, more: int) -> None:
        self._warn_of(peer, holder, more)
        self.cut_off += 1
        holder.leaving = True
        self._staying -= holder.held
        del self._holders[peer]  # what is left of it goes with its accounts
        self._refused[peer] = self._clock() + REFUSED_FOR
        for cut in list(holder.cuts):
            cut()
        self._on_cut(peer)

    def _warn_of(self, peer: str, holder: _Holder, more: int) -> None:
        now, address = self._clock(), holder.address or peer
        is_news = now >= self._warned.get(address, now)
        if is_news:
            self._warned[address] = now + WARN_EVERY
        (logger.warning if is_news else logger.debug)(
            "Cutting off a peer: it takes the most memory (max_peer_memory)",
            peer=peer,
            address=holder.address,
            bytes=holder.held + more,
            bytes_of_all=self.held + more,
            limit=self.limit,
        )

    def _add(self, holder: _Holder, kind: str, more: int) -> None:
        holder.held += more
        self.held += more
        if not holder.leaving:
            self._staying += more
        self.by_kind[kind] += more

    def _leave(self, peer: str, holder: _Holder) -> None:
        holder.accounts -= 1
        if not holder.accounts and self._holders.get(peer) is holder:
            del self._holders[peer]


def unlimited() -> MemoryBudget:
    """Return a budget for streams without a peer, such as memory streams in tests."""
    return MemoryBudget(sys.maxsize)
