"""Byte streams with peers, and frames on them: an unsigned-varint length, then that many bytes.

A `ByteStream` has the shape of `trio.abc.Stream`, so that a protocol also runs over the memory
streams of `trio.testing`; a `PeerStream` is a libp2p stream in that shape.

`FrameDecoder` is the parser, without I/O: bytes in, frames out. `FrameStream` reads and writes
frames on a byte stream, with a time limit on every wait, and counts the bytes in both directions.
A frame above the size limit is refused by its length, before its bytes are read. An end of the
stream within a frame is an error: on libp2p a lost connection looks like an end.

`KeptStreams` are kept between two uses, because opening one costs more than a short session.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

import trio
from libp2p.abc import INetStream
from libp2p.io.exceptions import IOException
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamError, StreamReset
from libp2p.stream_muxer.exceptions import MuxedStreamError

from recon_node.ipld import MAX_VARINT, VarintError, decode_varint, encode_varint
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.transport.guarded_connection import (
    MemoryAccount,
    MemoryBudget,
    shielded,
    unlimited,
)

_CLOSE_LIMIT: Final = 2.0
"""Seconds that ending a stream may take."""
RECON_KEPT_FOR: Final = 300.0
"""Seconds for which a responder keeps a stream for the initiator's next session."""
RECON_USED_FOR: Final = 240.0
"""Seconds after which an initiator no longer relies on that."""


class ByteStream(Protocol):
    """A two-way byte stream; failures are `trio.BrokenResourceError`."""

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return 1 to `max_bytes` bytes, or none at the end of the stream."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Send all of `data`."""
        ...


class PeerStream:
    """A libp2p stream to or from one peer: a `ByteStream` that can be ended.

    Attributes:
        account: what this node holds because of this stream; closed with it.
        address: the IP address that the peer is connected from.
        protocol: the protocol id that was negotiated.
    """

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
        """Return 1 to `max_bytes` bytes, or none at the end, or if the connection was lost."""
        try:
            return await self._stream.read(max_bytes)
        except StreamEOF:
            return b""
        except (StreamReset, StreamClosed) as error:
            raise trio.BrokenResourceError("the peer reset the stream") from error
        except (StreamError, MuxedStreamError, IOException) as error:
            raise trio.BrokenResourceError(f"the connection was lost: {error}") from error

    async def send_all(self, data: bytes) -> None:
        """Send all of `data`. If it is cancelled, reset the stream: a part may have been sent."""
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


READ_SIZE: Final = 64 * 1024
"""Maximum bytes that are read at a time."""
WRITE_SIZE: Final = 256 * 1024
"""Frames are gathered until they have this many bytes, and then written."""
_WRITE_STEP: Final = 16 * 1024
"""Bytes of memory that frames are charged at a time while they are gathered."""
_MORE: Final = 0x80
"""Set in a byte of a varint: another one follows."""


class FramingError(PeerProtocolError):
    """The bytes on a stream are not frames: a frame's length is malformed or too large."""


class FrameDecoder:
    """Cuts a stream's bytes into frames of at most `max_frame` bytes."""

    def __init__(self, max_frame: int) -> None:
        self.max_frame = max_frame
        self._buffer = bytearray()
        self._at = 0
        """How much of the buffer was returned as frames: less than `READ_SIZE`."""
        self._length: int | None = None
        """Of the frame whose length has been read."""

    @property
    def is_between_frames(self) -> bool:
        """Whether all bytes so far belong to frames that were returned."""
        return not self.buffered and self._length is None

    @property
    def buffered(self) -> int:
        """Number of bytes that were not returned as frames yet."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        self._trim()
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """Return the next frame; None if more bytes are needed.

        Raises:
            FramingError: its length is too large, longer than nine bytes, or not in its shortest
                form.
        """
        length = self._length
        if length is None:
            length = self._length = self._read_length()
            if length is None:
                return None
        end = self._at + length
        if end > len(self._buffer):
            return None
        frame = bytes(self._buffer[self._at : end])
        self._at, self._length = end, None
        if end == len(self._buffer) or end >= READ_SIZE:
            self._trim()
        return frame

    def whole_frames(self) -> list[bytes]:
        """Return the frames that are here, up to one whose length cannot be accepted."""
        frames: list[bytes] = []
        with suppress(FramingError):
            while True:
                frames += self._usual_frames()
                if (frame := self.next_frame()) is None:
                    break
                frames.append(frame)
        return frames

    def _usual_frames(self) -> list[bytes]:
        """Return the next frames, as long as their lengths have two bytes, as those of events."""
        frames: list[bytes] = []
        at, size = self._at, len(self._buffer)
        with memoryview(self._buffer) as view:
            while self._length is None and at + 1 < size:
                low, high = view[at], view[at + 1]
                start = at + 2
                end = start + (low & ~_MORE | high << 7)
                if (
                    low < _MORE
                    or not 0 < high < _MORE
                    or end > size
                    or end - start > self.max_frame
                ):
                    break
                frames.append(bytes(view[start:end]))
                at = end
        self._at = at
        self._trim()
        return frames

    def end(self) -> None:
        """Take the end of the stream.

        Raises:
            PeerGoneError: it comes within a frame.
        """
        if self._length is not None:
            raise PeerGoneError(
                f"the stream ended after {self.buffered} of a frame's {self._length} bytes"
            )
        if self.buffered:
            raise PeerGoneError("the stream ended within a frame's length")

    def _trim(self) -> None:
        del self._buffer[: self._at]
        self._at = 0

    def _read_length(self) -> int | None:
        try:
            length, end = decode_varint(self._buffer, self._at)
        except VarintError as error:
            rest = self._buffer[self._at :]
            if len(rest) < MAX_VARINT and all(byte >= _MORE for byte in rest):
                return None  # the length itself has not come yet
            raise FramingError(f"a frame's length cannot be read: {error}") from None
        if length > self.max_frame:
            raise FramingError(
                f"a frame of {length} bytes was announced; at most {self.max_frame} are accepted"
            )
        self._at = end
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
        account: MemoryAccount | None = None,
    ) -> None:
        self._stream = stream
        self.account = account or unlimited().account("")
        self._on_sent = on_sent
        self._decoder = FrameDecoder(max_frame)
        self.bytes_received = 0
        self.bytes_sent = 0

    async def wait_for_frame(self, patience: float) -> bool:
        """Wait for the first byte of a frame, for at most `patience` seconds.

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
            until_begun: if longer than `patience`: how long to wait for the first byte, in seconds,
                while the peer prepares its answer. `patience` then begins with that byte.

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

    async def receive_all(self, patience: float) -> list[bytes]:
        """Return the frames that are here, or wait for the next one; none at the end of the stream.

        Otherwise as `receive`, but an error of a frame is raised by the call after the frames
        before it.
        """
        frame = await self.receive(patience)
        return [] if frame is None else [frame, *self._decoder.whole_frames()]

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
        """Send frames, many in one write. Each write may take `patience` seconds.

        Raises:
            PeerProtocolError: the peer does not take them in time.
            trio.BrokenResourceError: the stream was reset.
        """
        pending, held = bytearray(), 0
        for frame in frames:
            if len(pending) + len(frame) > held:
                held = len(pending) + len(frame) + _WRITE_STEP
                self.account.hold("writes", held)
            pending += encode_varint(len(frame))
            pending += frame
            if len(pending) >= WRITE_SIZE:
                await self._write(bytes(pending), patience)
                pending, held = bytearray(), 0
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


class PeerFrames(FrameStream):
    """Frames on a stream with a peer, opened by either side."""

    def __init__(
        self, stream: PeerStream, max_frame: int, on_sent: Callable[[int], None] = lambda size: None
    ) -> None:
        super().__init__(stream, max_frame, on_sent, stream.account)
        self.stream = stream
        self.was_kept = False
        """Whether a session, or a fetch, has ended on it before."""


class KeptStreams:
    """The streams that this node has opened and keeps between two uses, at most one for each peer.

    A recon stream may carry one session after another, because opening a stream costs both sides
    more than the rest of a session that finds nothing to do. A stream that is kept takes no slot.

    Args:
        used_for: seconds after which a kept stream is ended.
    """

    def __init__(self, used_for: float = RECON_USED_FOR) -> None:
        self._used_for = used_for
        self._kept: dict[str, tuple[float, PeerFrames]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def take(self, peer_id: str) -> PeerFrames | None:
        """Return the stream kept with a peer, if it can still be used."""
        await self._end_useless()
        _, kept = self._kept.pop(peer_id, (0.0, None))
        return kept

    async def put(self, frames: PeerFrames) -> None:
        """Keep a stream after a session; end it if another one is kept with its peer."""
        peer_id, stream = frames.stream.peer_id, frames.stream
        if peer_id in self._kept or not stream.is_open:
            await stream.aclose()
            return
        frames.was_kept = True
        self._kept[peer_id] = trio.current_time(), frames

    async def _end_useless(self) -> None:
        """End the streams that are lost or were not used for long, all at once.

        Ending one may take a while if the peer is frozen.
        """
        expired = trio.current_time() - self._used_for
        useless = [
            peer_id
            for peer_id, (since, kept) in self._kept.items()
            if since <= expired or not kept.stream.is_open
        ]
        async with trio.open_nursery() as nursery:
            for peer_id in useless:
                _, kept = self._kept.pop(peer_id)
                nursery.start_soon(kept.stream.aclose)
