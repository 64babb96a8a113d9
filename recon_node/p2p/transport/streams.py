"""Byte streams: what the protocols of this node need of one, and a libp2p stream in that shape.

It is the shape of ``trio.abc.Stream``, so that a protocol also runs over the memory streams of
``trio.testing``.
"""

from __future__ import annotations

from typing import Final, Protocol

import trio
from libp2p.abc import INetStream
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamError, StreamReset
from libp2p.stream_muxer.exceptions import MuxedStreamError

from recon_node.p2p.transport.budget import Account, MemoryBudget

EVENTS_PROTOCOL: Final = "/ceramic/events/1.0.0"
EVENTS_BY_ID_PROTOCOL: Final = "/ceramic/events/1.1.0"
_CLOSE_LIMIT: Final = 2.0
"""Seconds that ending a stream may take."""


def shielded(seconds: float) -> trio.CancelScope:
    """Return a cancel scope for clean-up: shielded from outside, but limited to ``seconds``."""
    return trio.CancelScope(deadline=trio.current_time() + seconds, shield=True)


class ByteStream(Protocol):
    """A two-way byte stream; failures are ``trio.BrokenResourceError``."""

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return 1 to ``max_bytes`` bytes, or none at the end of the stream."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Send all of ``data``."""
        ...


class PeerStream(ByteStream, Protocol):
    """A byte stream to or from one peer."""

    account: Account
    """What this node holds because of this stream; closed with it."""
    peer_id: str
    address: str
    """The IP address that the peer is connected from."""
    protocol: str
    """The protocol id that was negotiated."""

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it, as far as we know."""
        ...

    async def aclose(self) -> None:
        """End the stream in good order: what was sent still arrives."""
        ...

    async def reset(self) -> None:
        """End the stream at once, in both directions; the peer sees an error."""
        ...


class Libp2pStream(PeerStream):
    """A libp2p stream to or from one peer."""

    def __init__(self, stream: INetStream, budget: MemoryBudget) -> None:
        self._stream = stream
        self.account = budget.account(str(stream.muxed_conn.peer_id))
        self._ended = False
        self.peer_id = str(stream.muxed_conn.peer_id)
        remote = stream.muxed_conn.get_remote_address()  # type: ignore[attr-defined]
        self.address = remote[0] if remote else ""
        self.protocol = str(stream.get_protocol())

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it, as far as we know."""
        stream = self._stream.muxed_stream  # type: ignore[attr-defined]
        ended = stream.closed or stream.send_closed or stream.recv_closed or stream.reset_received
        return not (self._ended or ended or stream.muxed_conn.is_closed)

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return 1 to ``max_bytes`` bytes, or none at the end, or if the connection was lost."""
        try:
            return await self._stream.read(max_bytes)
        except StreamEOF:
            return b""
        except (StreamReset, StreamClosed) as error:
            raise trio.BrokenResourceError("the peer reset the stream") from error
        except (StreamError, MuxedStreamError, IOException) as error:
            raise trio.BrokenResourceError(f"the connection was lost: {error}") from error

    async def send_all(self, data: bytes) -> None:
        """Send all of ``data``. If it is cancelled, reset the stream: a part may have been sent."""
        try:
            await self._stream.write(data)
        except (StreamReset, StreamClosed) as error:
            raise trio.BrokenResourceError("the peer reset the stream") from error
        except (StreamError, MuxedStreamError, IOException) as error:
            raise trio.BrokenResourceError(f"the connection was lost: {error}") from error

    async def aclose(self) -> None:
        """End the stream in good order: what was sent still arrives."""
        if not self._ended:
            self._ended = True
            self.account.close()
            with shielded(_CLOSE_LIMIT) as scope:
                try:
                    await self._stream.close()
                except (StreamError, MuxedStreamError, IOException):
                    return  # nothing left to close
            if scope.cancelled_caught:
                await self._reset()

    async def reset(self) -> None:
        """End the stream at once, in both directions; the peer sees an error."""
        if not self._ended:
            self._ended = True
            self.account.close()
            await self._reset()

    async def _reset(self) -> None:
        with shielded(_CLOSE_LIMIT):
            await self._stream.reset()
