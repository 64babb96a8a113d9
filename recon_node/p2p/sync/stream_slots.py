"""What peers may have open at once: slots for sessions, and streams kept between sessions.

A recon stream may carry one session after another, because opening a stream costs both sides more
than the rest of a session that finds nothing to do. Between sessions it is *kept*: it takes no
slot, but there is at most one for each peer and direction, and it is kept for ``KEPT_FOR`` at most.
Streams for events are kept likewise (``EventStreams``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from recon_node.p2p.errors import PeerGoneError
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.streams import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL, PeerStream
from recon_node.places import GiveWay, Places

KEPT_FOR: Final = 300.0
"""Seconds for which a responder keeps a stream for the initiator's next session."""
USED_FOR: Final = 240.0
"""Seconds after which an initiator no longer relies on that."""


class StaleStreamError(PeerGoneError):
    """A stream that was kept had ended before it was used again: open another one."""


class Slots:
    """A limited number of slots, in total and for each peer. Addresses share them fairly."""

    def __init__(self, limit: int, limit_per_peer: int) -> None:
        self._places = Places(limit, trio.current_time)
        self._limit_per_peer = limit_per_peer
        self._used = Counter[str]()
        self._unused: dict[str, trio.Event] = {}

    async def wait_until_unused(self, peer_id: str) -> None:
        """Wait until a peer uses no slot."""
        if (event := self._unused.get(peer_id)) is not None:
            await event.wait()

    @contextmanager
    def taken_by(self, peer_id: str, address: str, give_way: GiveWay) -> Iterator[bool]:
        """Take a slot for a peer at an IP address for the block; yield False if none is left.

        ``give_way`` is called if an address with fewer slots needs this one.
        """
        if self._used[peer_id] >= self._limit_per_peer:
            yield False
            return
        with self._places.taken_by(address, give_way) as place:
            if place is None:
                yield False
                return
            self._used[peer_id] += 1
            self._unused.setdefault(peer_id, trio.Event())
            try:
                yield True
            finally:
                self._used[peer_id] -= 1
                if not self._used[peer_id]:
                    del self._used[peer_id]
                    self._unused.pop(peer_id).set()


@dataclass(frozen=True, slots=True)
class OpenStream:
    """A recon stream that this node has opened."""

    stream: PeerStream
    frames: FrameStream
    has_served: bool = False
    """Whether it was kept: a session, or a fetch, has ended on it."""


class KeptStreams:
    """The streams that this node has opened and keeps, at most one for each peer.

    Args:
        used_for: seconds after which a kept stream is ended.
    """

    def __init__(self, used_for: float = USED_FOR) -> None:
        self._used_for = used_for
        self._kept: dict[str, tuple[float, OpenStream]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def take(self, peer_id: str) -> OpenStream | None:
        """Return the stream kept with a peer, if it can still be used."""
        await self._end_useless()
        _, kept = self._kept.pop(peer_id, (0.0, None))
        return kept

    async def put(self, open_stream: OpenStream) -> None:
        """Keep a stream after a session; end it if another one is kept with its peer."""
        peer_id, stream = open_stream.stream.peer_id, open_stream.stream
        if peer_id in self._kept or not stream.is_open:
            await stream.aclose()
            return
        used = OpenStream(stream, open_stream.frames, has_served=True)
        self._kept[peer_id] = trio.current_time(), used

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


EVENTS_USED_FOR: Final = 90.0
"""The same for an event stream: a server keeps it for ``event_server.KEPT_FOR``, and earlier ones
did so for ``turn_timeout``, the same by default."""


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
