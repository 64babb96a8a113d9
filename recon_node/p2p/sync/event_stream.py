"""The requests of event streams (event_frames.py), and the streams that are kept for them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError, StaleStreamError
from recon_node.p2p.settings import MAX_REQUEST
from recon_node.p2p.sync.event_frames import (
    CAR,
    END,
    EVENTS_BY_ID_PROTOCOL,
    EVENTS_PROTOCOL,
    AwaitedIds,
    AwaitedKeys,
)
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.kept_streams import KeptStreams, OpenStream
from recon_node.recon import Missing

BATCH_EVENTS: Final = 1000
_BATCH_BYTES: Final = 2 << 20
"""Maximum events, and bytes, of a batch: as many as the store takes at once."""
_BATCHES_HELD: Final = 6
"""Maximum batches of fetched events held in memory: arriving, or being written."""
_STEP: Final = 16 * 1024
"""Bytes of memory that a batch is charged at a time."""

FetchedEvents = list[tuple[EventId, bytes]]
HandOver = Callable[[FetchedEvents], Awaitable[None]]


async def fetch_events(
    frames: FrameStream,
    wanted: Sequence[EventId] | Missing,
    hand_over: HandOver,
    patience: float,
    per_request: int = MAX_REQUEST,
) -> list[bytes]:
    """Fetch events; return the EventIds, or the ids, of those that the peer does not hold.

    Args:
        frames: an event stream that we have opened, of the version for what is wanted.
        wanted: the EventIds to ask for, or the ids of these.
        hand_over: gets the events in batches of bounded size. Meanwhile the peer can send until
            the stream's window is full.
        patience: longest wait for a frame, in seconds.
        per_request: most EventIds or ids in a request.

    Raises:
        PeerProtocolError: an answer is not what was asked for.
    """
    missing: list[bytes] = []
    batches = _Batches(frames, hand_over)
    arrived: deque[bytes] = deque()
    awaited = _requests(wanted, per_request)
    try:
        for index, request in enumerate(awaited):
            # One request ahead, so that the line is never idle between two.
            ahead = awaited[index + 1 if index else 0 : index + 2]
            await frames.send([item.request for item in ahead], patience)
            missing += await _receive_answer(frames, arrived, request, batches, patience)
        if arrived:
            raise PeerProtocolError("the peer sent more after the end of its last answer")
    except Exception:
        await batches.finish()
        raise
    await batches.finish()
    return missing


def _requests(
    wanted: Sequence[EventId] | Missing, per_request: int
) -> Sequence[AwaitedKeys | AwaitedIds]:
    if isinstance(wanted, Missing):
        starts, ids = range(0, len(wanted.ids), per_request), wanted.ids
        return [AwaitedIds(wanted.key_range, ids[at : at + per_request]) for at in starts]
    starts = range(0, len(wanted), per_request)
    return [AwaitedKeys(wanted[at : at + per_request]) for at in starts]


async def _receive_answer(
    frames: FrameStream,
    arrived: deque[bytes],
    awaited: AwaitedKeys | AwaitedIds,
    batches: _Batches,
    patience: float,
) -> list[bytes]:
    """Receive one answer; what has arrived of the next one is left in `arrived`."""
    while True:
        if not arrived:
            arrived += await frames.receive_all(patience)
        if not arrived:
            raise PeerGoneError("the peer ended the event stream within an answer")
        frame = arrived.popleft()
        if frame.startswith(CAR):
            if batches.add(*awaited.take(frame)):
                await batches.finish()
        elif frame.startswith(END):
            return awaited.end(frame[len(END) :])
        else:
            kind = frame[:1].hex() or "nothing"
            raise PeerProtocolError(f"an event frame of the unknown kind {kind}")


class _Batches:
    """Hands on the events of answers in batches of bounded size, as they arrive."""

    def __init__(self, frames: FrameStream, hand_over: HandOver) -> None:
        self._account = frames.account
        self._hand_over = hand_over
        self._batch: FetchedEvents = []
        self._size = 0
        self._held = deque([0], maxlen=_BATCHES_HELD)
        """Bytes of each batch, the last one rounded up to `_STEP`."""

    def add(self, event_id: EventId, car: bytes) -> bool:
        """Take an event; return whether the batch is to be handed on now."""
        self._batch.append((event_id, car))
        self._size += len(car)
        if self._size > self._held[-1]:
            self._held[-1] = self._size + _STEP
            self._account.hold("events", sum(self._held))
        return len(self._batch) >= BATCH_EVENTS or self._size >= _BATCH_BYTES

    async def finish(self) -> None:
        """Hand on what there is."""
        self._held[-1] = self._size
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._hand_over(batch)
            self._held.append(0)


EVENTS_USED_FOR: Final = 90.0
"""Seconds after which an event stream is no longer used again: servers close theirs after
`event_server.EVENTS_KEPT_FOR`, and those of earlier versions after `turn_timeout`, as long by
default."""


class EventStreams:
    """Opens event streams, and keeps them."""

    def __init__(self, host: Host, max_frame: int) -> None:
        self._host = host
        self._max_frame = max_frame
        self._kept = {
            protocol: KeptStreams(EVENTS_USED_FOR)
            for protocol in (EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL)
        }

    @asynccontextmanager
    async def open(self, peer_id: str, protocol: str) -> AsyncIterator[FrameStream]:
        """Yield a stream for one fetch. It is kept if the block ends well, with all answers read.

        Raises:
            PeerError: no stream can be opened.
            StaleStreamError: the stream was kept, and had ended.
        """
        opened = await self._kept[protocol].take(peer_id)
        if opened is None:
            stream = await self._host.open_stream(peer_id, protocol)
            opened = OpenStream(
                stream, FrameStream(stream, self._max_frame, account=stream.account)
            )
        opened.frames.start_count()
        try:
            yield opened.frames
        except (PeerGoneError, trio.BrokenResourceError) as error:
            await opened.stream.reset()
            if opened.has_served and not opened.frames.bytes_received:
                raise StaleStreamError(str(error)) from error
            raise
        except BaseException:
            await opened.stream.reset()
            raise
        await self._kept[protocol].put(opened)
