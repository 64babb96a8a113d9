"""Serves the store's events to peers, within limits that all peers share.

A stream holds a slot only while requests come. Between two fetches of its peer it is kept for
`EVENTS_KEPT_FOR` seconds, because opening one takes longer than fetching an event.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import structlog
import trio

from recon_node.ceramic import EventId, Network
from recon_node.p2p.context import Context, run_cooperatively
from recon_node.p2p.errors import BROKEN_PROTOCOL, MISBEHAVED, PEER_FAILURES, describe_error
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.event_stream import (
    CAR,
    END,
    EVENTS_BY_ID_PROTOCOL,
    head_frame,
    parse_id_request,
    parse_request,
)
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.p2p.sync.sessions import GAVE_WAY, PeerSlots
from recon_node.p2p.transport.framing import FrameStream, PeerFrames, PeerStream
from recon_node.recon import ID_SIZE, KeyView, SoughtIds, find_by_id
from recon_node.store import StoreError

logger = structlog.get_logger(__name__)

LINGER: Final = 2.0
"""Seconds for which a stream keeps its slot after an answer."""
EVENTS_KEPT_FOR: Final = 120.0
"""Seconds for which it is kept without one."""
KEPT_PER_PEER: Final = 2
"""Maximum streams of a peer that are kept: one of each version."""
_READ_AT_ONCE: Final = 256
"""Maximum CARs read at a time while serving a request, as long as they are small."""
_READ_BYTES: Final = 512 * 1024
"""Bytes of CARs to read at a time, judging by the size of the previous ones."""
_MEMORY_PER_BYTE: Final = 2
"""Bytes of memory that each byte of a CAR takes while it is served: the CAR and its frame."""

ReadCars = Callable[[Sequence[EventId]], Awaitable[list[bytes | None]]]
Search = Callable[[SoughtIds], Awaitable[dict[EventId, bytes]]]


class EventServer:
    """Serves the store's events to peers, within slots. Register `serve` with the host.

    It speaks both versions: 1.0.0, by EventIds, and 1.1.0, by their ids.
    """

    def __init__(self, context: Context, rate_limit: KeyRateLimit) -> None:
        settings = self._settings = context.settings
        self._store, self._book, self._counters = context.store, context.book, context.counters
        self._searches = Searches(self._store.keys, rate_limit)
        self._slots = PeerSlots(settings.max_event_streams, settings.max_event_streams_per_peer)
        self._idle_streams = PeerSlots(KEPT_PER_PEER * settings.max_connections, KEPT_PER_PEER)

    async def serve(self, stream: PeerStream) -> None:
        """Answer a peer's requests on a stream that it has opened."""
        note_sent = partial(self._note_sent, stream.peer_id)
        frames = PeerFrames(stream, self._settings.max_frame, note_sent)
        while await self._serve_in_slot(frames):
            if not await self._idle_streams.keep(frames, EVENTS_KEPT_FOR):
                return

    async def _serve_in_slot(self, frames: PeerFrames) -> bool:
        """Answer requests while they come; return whether all went well."""
        stream = frames.stream
        with (
            trio.CancelScope() as scope,
            self._slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
        ):
            if has_slot:
                return await self._answer_requests(frames)
        if scope.cancelled_caught:
            logger.info("Event stream ended early", peer=stream.peer_id, reason=GAVE_WAY)
        await stream.reset()
        return False

    async def _answer_requests(self, frames: PeerFrames) -> bool:
        stream, settings = frames.stream, self._settings
        peer_id = stream.peer_id
        read_cars = partial(self._read_cars, peer_id)
        try:
            search = None
            if stream.protocol == EVENTS_BY_ID_PROTOCOL:
                search = partial(self._searches.find, stream.address)
            await serve_events(frames, read_cars, self._store.network, settings, search)
        except (*PEER_FAILURES, StoreError) as error:
            logger.info("Event stream ended early", peer=peer_id, reason=describe_error(error))
            if isinstance(error, BROKEN_PROTOCOL):
                self._book.failed(peer_id, severity=MISBEHAVED)
            await stream.reset()
            return False
        return True

    async def _read_cars(self, peer_id: str, wanted: Sequence[EventId]) -> list[bytes | None]:
        cars = await self._store.reader.cars_for_peers(wanted)
        self._book.served(peer_id, events=sum(car is not None for car in cars))
        return cars

    def _note_sent(self, peer_id: str, size: int) -> None:
        self._counters.event_bytes_sent += size
        self._book.served(peer_id, size=size)


KEYS_PER_EVENT: Final = 20_000
"""Keys that do not count, for each event that was found."""


class Searches:
    """Finds EventIds by their ids, for all peers, which pay for the keys that are looked at.

    One search runs at a time, so that all together take at most every other step of the event loop.
    """

    def __init__(self, keys: KeyView, rate_limit: KeyRateLimit) -> None:
        self._keys = keys
        self._rate_limit = rate_limit
        self._turn = trio.Lock()

    async def find(self, address: str, wanted: SoughtIds) -> dict[EventId, bytes]:
        """Return the EventIds of a range that have one of some ids, and their ids, as soon as it is
        our turn.

        `address` is the IP address of the peer that asks.
        """
        while True:
            await self._rate_limit.wait(address)
            async with self._turn:
                if self._rate_limit.allows(address):  # others may have had their turn first
                    return await self._find(address, wanted)

    async def _find(self, address: str, wanted: SoughtIds) -> dict[EventId, bytes]:
        looked_at = self._keys.count(wanted.key_range)
        self._rate_limit.spend(address, looked_at)
        ids = np.frombuffer(b"".join(wanted.ids), "<u8")
        pairs = await run_cooperatively(find_by_id(self._keys, wanted.key_range, ids))
        self._rate_limit.spend(address, -min(looked_at, KEYS_PER_EVENT * len(pairs)))
        return {  # our keys are not checked once more
            bytes.__new__(EventId, key): id_.to_bytes(ID_SIZE, "little") for id_, key in pairs
        }


async def serve_events(
    frames: FrameStream,
    read_cars: ReadCars,
    network: Network,
    settings: P2PSettings,
    search: Search | None = None,
) -> None:
    """Answer requests until the peer ends the stream, or none follows within `LINGER` seconds.

    They are for EventIds; with a `search`, for ids. The peer may take `turn_timeout` to read an
    answer, because it stores events meanwhile.

    Raises:
        PeerProtocolError: a request does not parse, or asks for EventIds of another network; or it
            does not come within `idle_timeout`.
    """
    answers = _Answers(frames, read_cars, settings.turn_timeout)
    while (request := await frames.receive(settings.idle_timeout)) is not None:
        if search is None:
            wanted = parse_request(request, network)
            await answers.send(wanted, lambda _: CAR, lambda unread: unread)
        else:
            sought = parse_id_request(request)
            held = await search(sought)
            await answers.send([*held], head_frame, partial(_not_held, sought, held))
        if not await frames.wait_for_frame(LINGER):
            return


def _not_held(
    sought: SoughtIds, held: Mapping[EventId, bytes], unread: Sequence[EventId]
) -> list[bytes]:
    """Return the ids that were not found, and those of events that have no CAR."""
    return sorted(set(sought.ids).difference(held.values()).union([held[key] for key in unread]))


class _Answers:
    """Sends answers on a stream, portion by portion: few CARs until they are known to be small."""

    def __init__(self, frames: FrameStream, read_cars: ReadCars, patience: float) -> None:
        self._frames = frames
        self._read_cars = read_cars
        self._patience = patience
        self._portion = 1

    async def send(
        self,
        wanted: Sequence[EventId],
        head_of: Callable[[EventId], bytes],
        not_held: Callable[[Sequence[EventId]], Sequence[bytes]],
    ) -> None:
        """Send a frame for each event that is held, a head and the CAR, and the end, with what is
        not held, given the EventIds that have no CAR."""
        unread: list[EventId] = []
        at, is_end = 0, False
        while not is_end:
            part = wanted[at : at + self._portion]
            at += len(part)
            is_end = at == len(wanted)
            cars = await self._read_cars(part) if part else []
            size = sum(len(car) for car in cars if car is not None)
            self._frames.account.hold("events", _MEMORY_PER_BYTE * size)
            pairs = list(zip(part, cars, strict=True))
            answers = [head_of(event_id) + car for event_id, car in pairs if car is not None]
            unread += [event_id for event_id, car in pairs if car is None]
            if is_end:
                answers.append(END + b"".join(not_held(unread)))
            fitting = _READ_BYTES * len(part) // max(1, size)
            self._portion = min(_READ_AT_ONCE, 2 * self._portion, max(1, fitting))
            del cars, pairs
            await self._frames.send(answers, self._patience)
            del answers
        self._frames.account.hold("events", 0)
