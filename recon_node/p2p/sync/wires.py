"""From a stream's bytes to the messages of a session, and back.

In 1.0.0 and 1.2.0 a message is a frame, and the sides take turns (``FrameWire``). In 0.1.0 both
sides send values while the other does, so that reading must not wait for writing: another task
writes what is queued for it (``RingWire``). Queued are messages and ranges; the values of a range
are loaded as they are written, so that a whole set passes through in bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Final, Generic, TypeAlias, TypeVar

import trio

from recon_node.exception_groups import unwrapped
from recon_node.p2p.errors import PEER_FAILURES, PeerGoneError, PeerProtocolError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import ByteStream
from recon_node.recon import Send, Side, Version
from recon_node.recon.ring.codec import KeyForm, Message, encode
from recon_node.recon.ring.decoder import Decoder
from recon_node.recon.ring.session import Responder, RingSession
from recon_node.recon.session import SendValues, Value

M = TypeVar("M")
READ_SIZE: Final = 64 * 1024
"""Bytes taken from the stream at once."""
MAX_QUEUED: Final = 1024
"""Messages and ranges that wait to be written; then reading waits as well."""

Values: TypeAlias = Callable[[bytes, bytes], AsyncGenerator[Value, None]]
"""Yields the values of our keys in a half-open range."""


class FrameWire(Generic[M]):
    """The messages of 1.0.0 and 1.2.0 on a stream: one in each frame.

    Args:
        version: how messages are written.
        side: whose turn it is.
        frames: the stream.
        settings: the limits.
        decoders: bounds how many long messages are decoded at once: their memory is charged
            afterwards.
    """

    def __init__(
        self,
        version: Version[M],
        side: Side,
        frames: FrameStream,
        settings: P2PSettings,
        decoders: trio.CapacityLimiter,
    ) -> None:
        self._version = version
        self._side = side
        self._frames = frames
        self._settings = settings
        self._decoders = decoders
        self._account = frames.account
        self._held = 0
        """Bytes of the peer's turn."""

    @property
    def bytes_sent(self) -> int:
        """How many bytes the session has sent."""
        return self._frames.bytes_sent

    @property
    def bytes_received(self) -> int:
        """How many it has received."""
        return self._frames.bytes_received

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Carry messages while the block runs."""
        yield
        self._hold(0)

    async def receive(self) -> M | None:
        """Return the peer's next message; None at the end of the stream."""
        # Only an answer takes work, and only before its first byte: the first message of a session
        # does not, nor does the rest of a turn.
        until_begun = self._settings.turn_timeout if self._side.awaits_answer else 0.0
        data = await self._frames.receive(self._settings.idle_timeout, until_begun)
        if data is None:
            return None
        if len(data) <= self._settings.long_message:
            message, weight = self._decode(data)
        else:
            self._account.hold("messages", len(data))
            message, weight = await trio.to_thread.run_sync(
                self._decode, data, limiter=self._decoders
            )
            self._account.hold("messages", 0)
        self._hold(self._held + weight)
        return message

    async def send(self, action: Send[M] | SendValues) -> None:
        """Send a turn."""
        assert isinstance(action, Send)
        self._hold(0)
        # In a turn of several messages the peer fetches the events of one before it reads the next.
        several, settings = len(action.messages) > 1, self._settings
        patience = settings.turn_timeout if several else settings.idle_timeout
        self._account.hold("answers", sum(map(self._version.weigh, action.messages)))
        try:
            await self._frames.send(map(self._version.encode, action.messages), patience)
        except trio.BrokenResourceError:
            if not self._side.done:  # else the peer has said its last word
                raise
        self._account.hold("answers", 0)

    @contextmanager
    def our_work(self) -> Iterator[None]:
        """Do nothing: the peer's time begins when its message is waited for."""
        yield

    def _decode(self, data: bytes) -> tuple[M, int]:
        message = self._version.decode(data)
        return message, self._version.weigh(message)

    def _hold(self, size: int) -> None:
        self._held = size
        self._account.hold("turns", size)


class RingWire:
    """The messages of 0.1.0 on a stream, one after the other.

    Args:
        stream: the bytes.
        session: what the peer makes us hold is charged to it.
        keys: how the ring writes keys.
        values: yields the values of keys that the peer lacks.
        hold: charges the peer with the bytes that it makes us hold, or raises one of
            ``PEER_FAILURES`` if they are too many.
        idle_timeout: seconds in which the peer must send or take something.
        sync_id: the session's id, which the initiator chooses; the responder echoes the peer's.
    """

    def __init__(
        self,
        stream: ByteStream,
        session: RingSession,
        keys: KeyForm,
        values: Values,
        hold: Callable[[int], None],
        idle_timeout: float,
        sync_id: str | None = None,
    ) -> None:
        self._stream = stream
        self._session = session
        self._keys = keys
        self._values = values
        self._hold = hold
        self._idle_timeout = idle_timeout
        self._sync_id = sync_id
        self._decoder = Decoder(keys, from_initiator=isinstance(session, Responder))
        self._arrived: Iterator[Message] = iter(())
        self._queue, self._queued = trio.open_memory_channel[Send[Message] | SendValues](MAX_QUEUED)
        self._idle = trio.CancelScope()
        """Ends the session when the peer has neither sent nor taken anything for a while."""
        self._is_working = False
        """Whether it is this node that takes its time, not the peer."""
        self.bytes_sent = 0
        """How many bytes the session has sent."""
        self.bytes_received = 0
        """How many it has received."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Carry messages while the block runs; wait until what was sent is written."""
        self._note_progress()
        with unwrapped(*PEER_FAILURES), self._idle:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                async with self._queue:
                    yield
                    self._charge()
        if self._idle.cancelled_caught:
            raise PeerProtocolError(
                f"the peer neither sent nor took anything for {self._idle_timeout:g} s"
            )

    async def receive(self) -> Message | None:
        """Return the peer's next message; None at the end of the stream."""
        while (message := next(self._arrived, None)) is None:
            self._charge()
            data = await self._stream.receive_some(READ_SIZE)
            if not data:
                if self._decoder.buffered:
                    raise PeerGoneError("the peer ended the stream within a message")
                return None
            self._note_progress()
            self.bytes_received += len(data)
            self._arrived = self._decoder.feed(data)
        return message

    async def send(self, action: Send[Message] | SendValues) -> None:
        """Have messages, or the values of a range, sent after what is queued already."""
        await self._queue.send(action)

    @contextmanager
    def our_work(self) -> Iterator[None]:
        """Do not hold the time that the block takes against the peer."""
        self._is_working = True
        self._note_progress()
        yield
        self._is_working = False
        self._note_progress()

    async def _write(self) -> None:
        async with self._queued:
            async for action in self._queued:
                if isinstance(action, Send):
                    for message in action.messages:
                        await self._send(message)
                else:
                    async with aclosing(self._values(action.first, action.last)) as values:
                        async for value in values:
                            await self._send(value)

    async def _send(self, message: Message) -> None:
        data = encode(message, self._keys, self._sync_id or self._decoder.sync_id)
        await self._stream.send_all(data)
        self.bytes_sent += len(data)
        self._note_progress()

    def _charge(self) -> None:
        self._hold(self._decoder.buffered + self._session.held)

    def _note_progress(self) -> None:
        patience = math.inf if self._is_working else self._idle_timeout
        self._idle.deadline = trio.current_time() + patience
