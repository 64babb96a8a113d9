"""Serves the store's events to peers, within limits that all peers share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import BROKEN_PROTOCOL, MISBEHAVED, PEER_FAILURES, describe_error
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.event_stream import serve_events
from recon_node.p2p.sync.events_by_id import serve_events_by_id
from recon_node.p2p.sync.reports import GAVE_WAY, Counters
from recon_node.p2p.sync.searches import Searches
from recon_node.p2p.sync.stream_slots import Slots
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import EVENTS_BY_ID_PROTOCOL, PeerStream
from recon_node.store import StoreError

log = structlog.get_logger(__name__)


class EventServer:
    """Serves the store's events to peers, within slots. Register ``serve`` with the host.

    It speaks both versions: 1.0.0, by EventIDs, and 1.1.0, by their ids.
    """

    def __init__(
        self, store: EventStore, book: PeerBook, settings: P2PSettings, counters: Counters
    ) -> None:
        self._store = store
        self._book = book
        self._settings = settings
        self._counters = counters
        self._searches = Searches(store.keys)
        self._slots = Slots(settings.max_event_streams, settings.max_event_streams_per_peer)

    async def serve(self, stream: PeerStream) -> None:
        """Answer a peer's requests on a stream that it has opened."""
        with (
            trio.CancelScope() as scope,
            self._slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
        ):
            if has_slot:
                await self._answer_requests(stream)
                return
        if scope.cancelled_caught:
            log.info("Event stream ended early", peer=stream.peer_id, reason=GAVE_WAY)
        await stream.reset()

    async def _answer_requests(self, stream: PeerStream) -> None:
        peer_id = stream.peer_id
        frames = FrameStream(
            stream, self._settings.max_frame, partial(self._note_sent, peer_id), stream.account
        )
        read_cars = partial(self._read_cars, peer_id)
        try:
            if stream.protocol == EVENTS_BY_ID_PROTOCOL:
                search = partial(self._searches.find, stream.address)
                await serve_events_by_id(frames, read_cars, search, self._settings)
            else:
                await serve_events(frames, read_cars, self._store.network, self._settings)
        except (*PEER_FAILURES, StoreError) as error:
            log.info("Event stream ended early", peer=peer_id, reason=describe_error(error))
            if isinstance(error, BROKEN_PROTOCOL):
                self._book.failed(peer_id, severity=MISBEHAVED)
            await stream.reset()

    async def _read_cars(self, peer_id: str, wanted: Sequence[EventId]) -> list[bytes | None]:
        cars = await self._store.get_cars_for_peers(wanted)
        self._book.served(peer_id, events=sum(car is not None for car in cars))
        return cars

    def _note_sent(self, peer_id: str, size: int) -> None:
        self._counters.event_bytes_sent += size
        self._book.served(peer_id, size=size)
