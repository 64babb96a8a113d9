"""Frames: an unsigned-varint length, then that many bytes.

``FrameDecoder`` is the parser, without I/O: bytes in, frames out. ``FrameStream`` reads and writes
frames on a byte stream, with a time limit on every wait, and counts the bytes in both directions.
A frame above the size limit is refused by its length, before its bytes are read. An end of the
stream within a frame is an error: on libp2p a lost connection looks like an end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from recon_node.ipld import VarintError, varint
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.transport.budget import Account, unlimited
from recon_node.p2p.transport.streams import ByteStream

READ_SIZE: Final = 64 * 1024
"""Maximum bytes that are read at a time."""
WRITE_SIZE: Final = 256 * 1024
"""Frames are gathered until they have this many bytes, and then written."""
_MORE: Final = 0x80
"""Set in a byte of a varint: another one follows."""


class FramingError(PeerProtocolError):
    """The bytes on a stream are not frames: a frame's length is malformed or too large."""


class FrameDecoder:
    """Cuts a stream's bytes into frames of at most ``max_frame`` bytes."""

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()
        self._length: int | None = None
        """Of the frame whose length has been read."""

    @property
    def is_between_frames(self) -> bool:
        """Whether all bytes so far belong to frames that were returned."""
        return not self._buffer and self._length is None

    @property
    def buffered(self) -> int:
        """Number of bytes that were not returned as frames yet."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next frame; None if more bytes are needed.

        Raises:
            FramingError: its length is too large, longer than nine bytes, or not in its shortest
                form.
        """
        if self._length is None:
            self._length = self._read_length()
        if self._length is None or len(self._buffer) < self._length:
            return None
        frame = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        self._length = None
        return frame

    def end(self) -> None:
        """Take the end of the stream.

        Raises:
            PeerGoneError: it comes within a frame.
        """
        if self._length is not None:
            raise PeerGoneError(
                f"the stream ended after {len(self._buffer)} of a frame's {self._length} bytes"
            )
        if self._buffer:
            raise PeerGoneError("the stream ended within a frame's length")

    def _read_length(self) -> int | None:
        prefix = bytes(self._buffer[: varint.MAX_BYTES])
        is_whole = any(byte < _MORE for byte in prefix)
        if not is_whole and len(prefix) < varint.MAX_BYTES:
            return None
        try:
            length, size = varint.decode(prefix)
        except VarintError as error:
            raise FramingError(f"a frame's length cannot be read: {error}") from None
        if length > self.max_frame:
            raise FramingError(
                f"a frame of {length} bytes was announced; at most {self.max_frame} are accepted"
            )
        del self._buffer[:size]
        return length


class FrameStream:
    """Frames over a byte stream. One task may read while another writes.

    Args:
        stream: the byte stream.
        max_frame: most bytes of a frame that is read.
        on_sent: called with the size of every write.
        account: charged for the memory in use, by the protocol on top as well.
    """

    def __init__(
        self,
        stream: ByteStream,
        max_frame: int,
        on_sent: Callable[[int], None] = lambda size: None,
        account: Account | None = None,
    ) -> None:
        self._stream = stream
        self.account = account or unlimited().account("")
        self._on_sent = on_sent
        self._decoder = FrameDecoder(max_frame)
        self.bytes_received = 0
        self.bytes_sent = 0

    async def wait_for_frame(self, patience: float) -> bool:
        """Wait for the first byte of a frame, for at most ``patience`` seconds.

        Returns False if none comes: the stream was ended, lost, or silent.
        """
        if not self._decoder.is_between_frames:
            return True
        with trio.move_on_after(patience):
            try:
                return await self._read_more()
            except trio.BrokenResourceError:
                return False
        return False

    def start_count(self) -> None:
        """Count bytes from here on."""
        self.bytes_sent = self.bytes_received = 0

    async def receive(self, patience: float, until_begun: float = 0.0) -> bytes | None:
        """Return the next frame, or None at the end of the stream.

        Args:
            patience: the longest wait for a whole frame, in seconds.
            until_begun: for a peer that has work to do first: the longest wait for the first byte
                of the frame, in seconds, if that is longer. Its ``patience`` begins with that byte.

        Raises:
            FramingError: the bytes are not a frame.
            PeerProtocolError: the peer takes longer.
            PeerGoneError: the stream ends within a frame.
            trio.BrokenResourceError: the stream was reset.
        """
        if (frame := self._decoder.next_frame()) is not None:
            return frame
        if self._decoder.is_between_frames and until_begun > patience:
            with trio.move_on_after(until_begun) as scope:
                if not await self._read_more():
                    return None
            if scope.cancelled_caught:
                raise PeerProtocolError(f"the peer sent nothing for {until_begun:g} s")
        with trio.move_on_after(patience):
            return await self._read_frame()
        raise PeerProtocolError(f"the peer sent no complete frame within {patience:g} s")

    async def _read_frame(self) -> bytes | None:
        while (frame := self._decoder.next_frame()) is None:
            if not await self._read_more():
                return None
        self.account.hold("frames", self._decoder.buffered)
        return frame

    async def _read_more(self) -> bool:
        """Read what has arrived; return False at the end of the stream."""
        data = await self._stream.receive_some(READ_SIZE)
        if not data:
            self._decoder.end()
            return False
        self.bytes_received += len(data)
        self.account.hold("frames", self._decoder.buffered + len(data))
        self._decoder.feed(data)
        return True

    async def send(self, frames: Iterable[bytes], patience: float) -> None:
        """Send frames, many in one write. Each write may take ``patience`` seconds.

        Raises:
            PeerProtocolError: the peer does not take them in time.
            trio.BrokenResourceError: the stream was reset.
        """
        pending = bytearray()
        for frame in frames:
            self.account.hold("writes", len(pending) + len(frame))
            pending += varint.encode(len(frame))
            pending += frame
            if len(pending) >= WRITE_SIZE:
                await self._write(bytes(pending), patience)
                pending.clear()
        if pending:
            await self._write(bytes(pending), patience)

    async def _write(self, data: bytes, patience: float) -> None:
        self.account.hold("writes", len(data))
        with trio.move_on_after(patience) as scope:
            await self._stream.send_all(data)
        self.account.hold("writes", 0)
        if scope.cancelled_caught:
            raise PeerProtocolError(f"the peer took no data for {patience:g} s")
        self.bytes_sent += len(data)
        self._on_sent(len(data))
