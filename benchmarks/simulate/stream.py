"""A stream between two simulated nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.guarded_connection import MemoryBudget

if TYPE_CHECKING:
    from benchmarks.simulate.host import ConnectionEnd

OVERHEAD: Final = 30
"""Bytes that Yamux and Noise add to a write."""
AHEAD: Final = 0.05
"""Seconds for which data may wait in the line's buffer before a writer has to wait."""

_numbers: Final = count()


class SimulatedStream(PeerStream):
    """One end of a stream, with all that is seen of a `PeerStream`.

    Args:
        end: the connection that it is on.
        protocol: its protocol id.
        budget: charged for what is held because of it.
    """

    def __init__(self, end: ConnectionEnd, protocol: str, budget: MemoryBudget) -> None:
        self.end = end
        self.protocol = protocol
        self.peer_id = end.peer.peer_id
        self.address = end.peer.ip
        self.account = budget.account(self.peer_id)
        self.other: SimulatedStream | None = None
        self._number = next(_numbers)
        self._buffer = bytearray()
        self._ended = False
        self._at_end = False
        self._was_reset = False
        self._under_way = 0
        """Bytes that we sent and the peer has not read."""
        self._moved = trio.lowlevel.ParkingLot()
        end.streams[self._number] = self

    def join(self, other: SimulatedStream) -> None:
        """Make this and another one the two ends of a stream."""
        self.other, other.other = other, self

    @property
    def is_open(self) -> bool:
        return not (self._ended or self._at_end or self._was_reset)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer:
            if self._was_reset:
                raise trio.BrokenResourceError("the peer reset the stream")
            if self._at_end or self._ended:
                return b""
            await self._moved.park()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self.end.hold_unread(-len(data))
        if self.other is not None:
            self.other._note_read(len(data))
        return data

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        window = self.end.host.settings.connection.max_window
        while self._under_way and self._under_way + len(data) > window:
            self._check_open()
            await self._moved.park()
        self._check_open()
        self._under_way += len(data)
        sent_at = self._carry(len(data) + OVERHEAD, lambda other: other._take(data))
        if sent_at > trio.current_time() + AHEAD:
            await trio.sleep_until(sent_at - AHEAD)

    async def aclose(self) -> None:
        if not self._ended:
            self._leave()
            self._carry(OVERHEAD, SimulatedStream._take_end)

    async def reset(self) -> None:
        if not self._ended:
            self._leave()
            self._carry(OVERHEAD, SimulatedStream._take_reset)

    def lose(self) -> None:
        """The connection is gone, which looks like the end of the stream."""
        self._at_end = True
        self._moved.unpark_all()

    def _check_open(self) -> None:
        if self._ended or self._was_reset or not self.end.is_open:
            raise trio.BrokenResourceError("the peer reset the stream")

    def _leave(self) -> None:
        self._ended = True
        self.end.streams.pop(self._number, None)
        if self._buffer and self.end.is_open:
            self.end.hold_unread(-len(self._buffer))
        self._buffer.clear()
        self.account.close()
        self._moved.unpark_all()

    def _carry(self, size: int, act: Callable[[SimulatedStream], None]) -> float:
        if not self.end.is_open:
            return 0.0
        return self.end.carry(self.protocol, size, partial(self._to_other, act))

    def _to_other(self, act: Callable[[SimulatedStream], None]) -> None:
        if self.other is not None:  # else the peer has not taken the stream
            act(self.other)

    def _take(self, data: bytes) -> None:
        if not self._ended and self.end.is_open:
            self._buffer += data
            self.end.hold_unread(len(data))
            self._moved.unpark_all()
        elif self.other is not None:
            self.other._note_read(len(data))

    def _take_end(self) -> None:
        self._at_end = True
        self._moved.unpark_all()

    def _take_reset(self) -> None:
        self._was_reset = True
        self._moved.unpark_all()

    def _note_read(self, size: int) -> None:
        self._under_way -= size
        self._moved.unpark_all()
