"""Serves the store's events to peers, within limits that all peers share.

A stream holds a slot only while requests come. Between two fetches of its peer it is kept for
`KEPT_FOR` seconds, because opening one takes longer than fetching an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.context import Context
from recon_node.p2p.errors import BROKEN_PROTOCOL, MISBEHAVED, PEER_FAILURES, describe_error
from recon_node.p2p.reports import GAVE_WAY
from recon_node.p2p.sync.event_stream import serve_events, serve_events_by_id
from recon_node.p2p.sync.purses import Purses, Searches
from recon_node.p2p.sync.sessions import PeerSlots
from recon_node.p2p.transport.framing import EVENTS_BY_ID_PROTOCOL, FrameStream, PeerStream
from recon_node.store import StoreError

log = structlog.get_logger(__name__)

LINGER: Final = 2.0
"""Seconds for which a stream keeps its slot after an answer."""
KEPT_FOR: Final = 120.0
"""Seconds for which it is kept without one."""
KEPT_PER_PEER: Final = 2
"""Maximum streams of a peer that are kept: one of each version."""


class EventServer:
    """Serves the store's events to peers, within slots. Register `serve` with the host.

    It speaks both versions: 1.0.0, by EventIds, and 1.1.0, by their ids.
    """

    def __init__(self, context: Context, purses: Purses) -> None:
        settings = self._settings = context.settings
        self._store, self._book, self._counters = context.store, context.book, context.counters
        self._searches = Searches(self._store.keys, purses)
        self._slots = PeerSlots(settings.max_event_streams, settings.max_event_streams_per_peer)
        self._waiting = PeerSlots(KEPT_PER_PEER * settings.max_connections, KEPT_PER_PEER)

    async def serve(self, stream: PeerStream) -> None:
        """Answer a peer's requests on a stream that it has opened."""
        frames = FrameStream(
            stream,
            self._settings.max_frame,
            partial(self._note_sent, stream.peer_id),
            stream.account,
        )
        while await self._serve_in_slot(stream, frames):
            if not await self._waiting.keep(stream, frames, KEPT_FOR):
                return

    async def _serve_in_slot(self, stream: PeerStream, frames: FrameStream) -> bool:
        """Answer requests while they come; return whether all went well."""
        with (
            trio.CancelScope() as scope,
            self._slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
        ):
            if has_slot:
                return await self._answer_requests(stream, frames)
        if scope.cancelled_caught:
            log.info("Event stream ended early", peer=stream.peer_id, reason=GAVE_WAY)
        await stream.reset()
        return False

    async def _answer_requests(self, stream: PeerStream, frames: FrameStream) -> bool:
        peer_id, settings = stream.peer_id, self._settings
        read_cars = partial(self._read_cars, peer_id)
        try:
            if stream.protocol == EVENTS_BY_ID_PROTOCOL:
                search = partial(self._searches.find, stream.address)
                await serve_events_by_id(frames, read_cars, search, settings, LINGER)
            else:
                await serve_events(frames, read_cars, self._store.network, settings, LINGER)
        except (*PEER_FAILURES, StoreError) as error:
            log.info("Event stream ended early", peer=peer_id, reason=describe_error(error))
            if isinstance(error, BROKEN_PROTOCOL):
                self._book.failed(peer_id, severity=MISBEHAVED)
            await stream.reset()
            return False
        return True

    async def _read_cars(self, peer_id: str, wanted: Sequence[EventId]) -> list[bytes | None]:
        cars = await self._store.log.cars_for_peers(wanted)
        self._book.served(peer_id, events=sum(car is not None for car in cars))
        return cars

    def _note_sent(self, peer_id: str, size: int) -> None:
        self._counters.event_bytes_sent += size
        self._book.served(peer_id, size=size)
