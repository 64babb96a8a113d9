"""Sessions of `/ceramic/recon/0.1.0` on a stream: the I/O around a pure `Initiator` or `Responder`.

Both sides send values while the other does, so that reading must not wait for writing: one task
reads messages and performs what the session makes of them, another writes what is queued for it.
Queued are messages and ranges; the values of a range are loaded page by page as they are written,
so that a whole set passes through in bounded memory.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import trio

from recon_node.exception_groups import unwrapped
from recon_node.p2p.errors import PEER_FAILURES, PeerGoneError, PeerProtocolError
from recon_node.p2p.transport.streams import ByteStream
from recon_node.recon.ring.codec import (
    KeyForm,
    Message,
    Value,
    encode,
)
from recon_node.recon.ring.decoder import Decoder
from recon_node.recon.ring.inbox import Admit
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.session import Action, Initiator, Responder, Send, SendValues

READ_SIZE: Final = 64 * 1024
"""Bytes taken from the stream at once."""
PAGE: Final = 32
"""Values that are loaded at once."""
RUN: Final = 256
"""Keys that are put in order at once; more to end with the last event of a stream."""
MAX_RUN: Final = 4096
"""Keys of a run at most, however long a stream is."""
CID_SIZE: Final = 36
"""Bytes of an event's CID, at the end of the model ring's keys."""
MAX_QUEUED: Final = 1024
"""Messages and ranges that wait to be written; then reading waits as well."""

LoadValues: TypeAlias = Callable[[list[bytes]], Awaitable[list[Value]]]
"""Loads the values of some keys; leaves out those that it does not have any more."""
ArrangeKeys: TypeAlias = Callable[[list[bytes]], Awaitable[list[bytes]]]
"""Puts some keys into the order in which their values are sent."""
AdmitValues: TypeAlias = Callable[[tuple[Value, ...]], Awaitable[None]]
"""Has values checked and kept. Raises one of ``PEER_FAILURES`` for what no honest peer sends."""


@dataclass(slots=True)
class Traffic:
    """Bytes and values of a session, both ways."""

    bytes_sent: int = 0
    bytes_received: int = 0
    values_sent: int = 0
    values_received: int = 0
    value_bytes_sent: int = 0
    """Of the values alone; on the stream, each byte takes one or two."""
    value_bytes_received: int = 0
    responses: int = 0
    """Messages of the peer that are not values."""


@dataclass(frozen=True, slots=True)
class RingStream:
    """A session of a ring, and the stream that it runs on.

    Args:
        stream: the bytes.
        session: the session, which says what to do.
        ring: our keys.
        keys: how the ring writes keys.
        arrange: puts the keys whose values the peer lacks into order.
        load: loads those values.
        admit: takes the values that we lack.
        idle_timeout: seconds in which the peer must send or take something.
        hold: charges the peer with the bytes that it makes us hold, or raises one of
            ``PEER_FAILURES`` if they are too many.
        sync_id: the session's id, which the initiator chooses; the responder echoes the peer's.
    """

    stream: ByteStream
    session: Initiator | Responder
    ring: Ring
    keys: KeyForm
    arrange: ArrangeKeys
    load: LoadValues
    admit: AdmitValues
    idle_timeout: float
    hold: Callable[[int], None]
    sync_id: str | None = None

    async def run(self, traffic: Traffic) -> None:
        """Run the session to its end; the caller closes the stream then, or resets it on failure.

        Args:
            traffic: is counted up as bytes and values pass.

        Raises:
            RemoteProtocolError: the peer breaks the protocol.
            PeerProtocolError: the peer takes too long.
            PeerGoneError: the stream ended too early.
            trio.BrokenResourceError: the stream was lost.
        """
        run = _Run(self, traffic)
        with unwrapped(*PEER_FAILURES):
            await run.to_its_end()


class _Run:
    """A session while it runs."""

    def __init__(self, session_stream: RingStream, traffic: Traffic) -> None:
        self._on = session_stream
        self._session = session_stream.session
        self._traffic = traffic
        self._is_initiator = isinstance(self._session, Initiator)
        self._decoder = Decoder(session_stream.keys, from_initiator=not self._is_initiator)
        self._queue, self._queued = trio.open_memory_channel[Send | SendValues](MAX_QUEUED)
        self._idle = trio.CancelScope()
        """Ends the session when the peer has neither sent nor taken anything for a while."""

    async def to_its_end(self) -> None:
        if isinstance(self._session, Initiator):
            self._queue.send_nowait(Send(self._session.start()))
        self._note_progress()
        with self._idle:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                async with self._queue:
                    await self._read()
        if self._idle.cancelled_caught:
            raise PeerProtocolError(
                f"the peer neither sent nor took anything for {self._on.idle_timeout:g} s"
            )

    async def _read(self) -> None:
        while data := await self._on.stream.receive_some(READ_SIZE):
            self._note_progress()
            self._traffic.bytes_received += len(data)
            for message in self._decoder.feed(data):
                self._count(message)
                for action in self._session.receive(message):
                    await self._perform(action)
            self._on.hold(self._decoder.buffered + self._session.held)
            if self._session.finished and not self._is_initiator:
                return
        if self._decoder.buffered or not self._session.finished:
            raise PeerGoneError("the peer ended the stream before the session was over")

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Admit):
            self._idle.deadline = math.inf  # it is the store that takes its time, not the peer
            await self._on.admit(action.values)
            self._note_progress()
        else:
            await self._queue.send(action)

    async def _write(self) -> None:
        async with self._queued:
            async for action in self._queued:
                if isinstance(action, Send):
                    await self._send(action.message)
                else:
                    for run in _runs(self._on.ring.keys(action.first, action.last)):
                        await self._send_values(await self._on.arrange(run))

    async def _send_values(self, keys: list[bytes]) -> None:
        for start in range(0, len(keys), PAGE):
            for value in await self._on.load(keys[start : start + PAGE]):
                await self._send(value)
                self._traffic.values_sent += 1
                self._traffic.value_bytes_sent += len(value.value)

    async def _send(self, message: Message) -> None:
        data = encode(message, self._on.keys, self._on.sync_id or self._decoder.sync_id)
        await self._on.stream.send_all(data)
        self._traffic.bytes_sent += len(data)
        self._note_progress()

    def _count(self, message: Message) -> None:
        if isinstance(message, Value):
            self._traffic.values_received += 1
            self._traffic.value_bytes_received += len(message.value)
        else:
            self._traffic.responses += 1

    def _note_progress(self) -> None:
        self._idle.deadline = trio.current_time() + self._on.idle_timeout


def _runs(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Cut keys into runs that end with a stream: its keys are alike up to the event's CID."""
    run: list[bytes] = []
    for key in keys:
        if len(run) >= MAX_RUN or (len(run) >= RUN and key[:-CID_SIZE] != run[-1][:-CID_SIZE]):
            yield run
            run = []
        run.append(key)
    if run:
        yield run
