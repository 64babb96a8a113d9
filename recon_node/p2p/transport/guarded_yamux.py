"""Remedies for py-libp2p's muxer: see ``hardening`` for the whole, and what is remedied."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Final, cast

import structlog
import trio
from libp2p.abc import IMuxedConn, IMuxedStream, ISecureConn
from libp2p.custom_types import TProtocol
from libp2p.network.connection.exceptions import RawConnError
from libp2p.peer.id import ID
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH
from libp2p.stream_muxer.exceptions import MuxedStreamError, MuxedStreamReset
from libp2p.stream_muxer.muxer_multistream import MuxerMultistream
from libp2p.stream_muxer.yamux import yamux

from recon_node.p2p.settings import ConnectionLimits
from recon_node.p2p.transport.budget import MemoryBudget, OverBudgetError
from recon_node.p2p.transport.streams import shielded

log = structlog.get_logger(__name__)

CONNECTION_WEIGHT: Final = 128 * 1024
"""Bytes of memory that a connection takes without any stream."""
STREAM_WEIGHT: Final = 16 * 1024
"""Bytes of memory that a stream takes with nothing on it."""
_CLEANUP_LIMIT: Final = 5.0
_FIRST_PING: Final = 0.5
_WINDOW_POLL: Final = 0.005
_FRAME_PAYLOAD: Final = MAX_PLAINTEXT_LENGTH - yamux.HEADER_SIZE  # one yamux frame, one Noise frame


class GuardedStream(yamux.YamuxStream):
    """A stream whose writers wait for the peer as long as they themselves want to, one by one."""

    _turn: trio.Lock
    conn: GuardedYamux

    @classmethod
    def adopt(cls, stream: IMuxedStream) -> GuardedStream:
        """Guard a stream that the muxer has just made: it names its stream class in its code."""
        stream.__class__ = cls
        guarded = cast(GuardedStream, stream)
        guarded._turn = trio.Lock()
        return guarded

    async def write(self, data: bytes) -> None:
        """Write all of ``data``; how long that may take is up to the caller's cancel scope.

        A write that is cancelled may have sent a part of its data: reset the stream then.
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
            await trio.sleep(_WINDOW_POLL)

    async def read(self, n: int | None = -1) -> bytes:
        """Read up to ``n`` bytes, and say that they are no longer unread."""
        data = await super().read(n)
        self.conn.count_read()
        return data

    async def reset(self) -> None:
        """End the stream at once. What was not read of it is dropped; stock keeps it a minute."""
        self.conn.stream_buffers.get(self.stream_id, bytearray()).clear()
        await super().reset()
        self.conn.stream_buffers.get(self.stream_id, bytearray()).clear()
        self.conn.count_read()

    def _apply_autotune_epoch(self, buffered: int) -> int:
        """Let the window grow no further than the limit, so that what a peer buffers is bounded."""
        if self.target_recv_window >= self.conn.limits.max_window:
            return 0
        return super()._apply_autotune_epoch(buffered)


class GuardedYamux(yamux.Yamux):
    """A muxed connection that survives cancelled writers and drops peers that freeze or flood."""

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
            self._account.close()  # nobody else will: there is no connection
            raise

    async def open_stream(self) -> GuardedStream:
        """Open a stream, or fail at once where the muxer's 256 are in use.

        Shielded: an opening that is cancelled half-way would keep its slot for ever.
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
        """Close the connection in good order."""
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
        """Charge the peer for what it has sent and nobody has read, and for its streams.

        Raises OverBudgetError when there is no room for what is coming.
        """
        unread = sum(map(len, self.stream_buffers.values()))
        self._account.hold("unread", unread + coming)
        self._account.hold("streams", STREAM_WEIGHT * len(self.streams))

    def count_read(self) -> None:
        """Say that less is unread now. Never raises: what was read is here, and streams that came
        meanwhile are charged with the next data.
        """
        with suppress(OverBudgetError):
            self.count_unread()

    def _leave_at_once(self) -> None:
        """Drop what was not read, and hang up as soon as may be: the peer holds too much."""
        for buffer in self.stream_buffers.values():
            buffer.clear()
        if self._nursery is None or self.event_shutting_down.is_set():
            self.event_shutting_down.set()  # the end of its start closes the connection
        else:
            self._nursery.start_soon(self._hang_up)

    async def _hang_up(self) -> None:
        with shielded(_CLEANUP_LIMIT):
            await self.secured_conn.close()  # first, so that no writer keeps a lock
            await self._cleanup_on_error()

    async def _write_frame(self, data: bytes) -> None:
        """Write a whole frame, even if the caller is cancelled: half a frame ruins the connection.

        Where the network does not take it in time, the connection is closed.
        """
        async with self._write_lock:
            if self.event_shutting_down.is_set():
                raise RawConnError("the connection is closed")
            with shielded(self.limits.write_timeout) as scope:
                await self.secured_conn.write(data)
            if scope.cancelled_caught:
                self.event_shutting_down.set()
                await (
                    self.secured_conn.close()
                )  # whoever waits for the lock must not write any more
        if scope.cancelled_caught:
            await self._cut(f"took no data for {self.limits.write_timeout:g} s")
            raise RawConnError("the connection was cut: the peer takes no data")
        await trio.lowlevel.checkpoint()

    async def _read_data_body(self, length: int) -> bytes:
        """Read a frame's data, or cut off a peer that sends more than the windows allow."""
        unread = sum(map(len, self.stream_buffers.values()))
        if length > self.limits.max_window or unread + length > self.limits.max_buffered:
            log.warning("Cutting a connection: unread data piles up", peer=str(self.peer_id))
            raise trio.TooSlowError  # the muxer's loop closes the connection on this
        try:
            self.count_unread(length)
        except OverBudgetError:
            raise trio.TooSlowError from None
        return await super()._read_data_body(length)

    async def _measure_rtt_loop(self) -> None:
        """Ping the peer from time to time; drop it when it does not answer."""
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
        log.warning("Cutting a connection: the peer " + why, peer=str(self.peer_id))
        # Shielded: the end of the muxer's read loop cancels its other tasks, this one too.
        with shielded(_CLEANUP_LIMIT):
            await self._cleanup_on_error()


class GuardedMuxing(MuxerMultistream):
    """Muxer negotiation that ends with a ``GuardedYamux``; the library's names its own class."""

    def __init__(self, limits: ConnectionLimits, budget: MemoryBudget) -> None:
        super().__init__({TProtocol(yamux.PROTOCOL_ID): GuardedYamux})
        self._limits = limits
        self._budget = budget

    async def new_conn(self, conn: ISecureConn, peer_id: ID) -> IMuxedConn:
        """Agree on Yamux and start it.

        Raises OverBudgetError for a peer that is refused since it was cut off.
        """
        self._budget.check(str(peer_id))  # first, so that the peer sees its dial fail
        protocol, _ = await self._selector.select(conn, conn.is_initiator, self.negotiate_timeout)
        muxed = GuardedYamux(conn, peer_id, conn.is_initiator, self._limits, self._budget)
        return self._annotate_connection(muxed, conn, protocol)
