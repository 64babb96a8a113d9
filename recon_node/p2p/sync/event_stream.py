"""Events on ``/ceramic/events/1.0.0``: a request lists EventIds, the answer has their CARs.

    request:   EventId+                      one frame, at most 1000 of them
    answer:    00 CARv1                      a frame for each event that is held, in any order
               01 EventId*                   the end: the EventIds that are not held

After the end of an answer the next request may follow on the same stream; a requester may send it
earlier, to keep the line busy. A CAR belongs to the EventId whose event CID is its root. A CAR that
was not asked for, or an end that leaves an EventId unanswered, is a protocol error.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final

import structlog
import trio

from recon_node.ceramic import CeramicError, EventId, Network, scan
from recon_node.ipld import CID, IpldError, dag_cbor, varint
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    PeerGoneError,
    PeerProtocolError,
    describe_error,
)
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import MAX_REQUEST, P2PSettings
from recon_node.p2p.sync.reports import GAVE_WAY, Counters
from recon_node.p2p.sync.stream_slots import Slots
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import PeerStream
from recon_node.store import StoreError

log = structlog.get_logger(__name__)

CAR: Final = 0
"""First byte of a frame with a CAR."""
END: Final = 1
"""First byte of the frame that ends an answer."""
_READ_AT_ONCE: Final = 16
"""Maximum CARs read at a time while serving a request, as long as they are small."""
_READ_BYTES: Final = 512 * 1024
"""Bytes of CARs to read at a time, judging by the size of the previous ones."""
_MEMORY_A_BYTE: Final = 2
"""Bytes of memory that each byte of a CAR takes while it is served: the CAR and its frame."""
_BATCHES_HELD: Final = 6
"""Batches of fetched events in memory at once: in the store's hands, and arriving."""
_BATCH_EVENTS: Final = 250
_BATCH_BYTES: Final = 2 << 20
"""Maximum events, and bytes, of a batch."""

FetchedEvents = list[tuple[EventId, bytes]]
ReadCars = Callable[[Sequence[EventId]], Awaitable[list[bytes | None]]]
Deliver = Callable[[FetchedEvents], Awaitable[None]]


class EventServer:
    """Serves the store's events to peers, within slots. Register ``serve`` with the host."""

    def __init__(
        self, store: EventStore, book: PeerBook, settings: P2PSettings, counters: Counters
    ) -> None:
        self._store = store
        self._book = book
        self._settings = settings
        self._counters = counters
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


async def serve_events(
    frames: FrameStream, read_cars: ReadCars, network: Network, settings: P2PSettings
) -> None:
    """Answer requests until the peer ends the stream.

    The first request must come within ``idle_timeout``. After that the peer may take
    ``turn_timeout`` to read an answer or to begin another request, because it stores events
    meanwhile.

    Raises:
        PeerProtocolError: a request does not parse, or asks for events of another network.
    """
    patience, until_begun = settings.turn_timeout, 0.0
    while (request := await frames.receive(settings.idle_timeout, until_begun)) is not None:
        until_begun = settings.turn_timeout
        wanted = parse_request(request, network)
        missing: list[EventId] = []
        at, count = 0, 1
        while part := wanted[at : at + count]:
            cars = await read_cars(part)
            size = sum(len(car) for car in cars if car is not None)
            frames.account.hold("events", _MEMORY_A_BYTE * size)
            found = [bytes((CAR,)) + car for car in cars if car is not None]
            missing += [each for each, car in zip(part, cars, strict=True) if car is None]
            at += len(part)
            count = min(_READ_AT_ONCE, 2 * count, max(1, _READ_BYTES * len(part) // max(1, size)))
            del cars
            await frames.send(found, patience)
            del found
        frames.account.hold("events", 0)
        await frames.send([bytes((END,)) + b"".join(missing)], patience)


async def fetch_events(
    frames: FrameStream,
    wanted: Sequence[EventId],
    deliver: Deliver,
    patience: float,
    per_request: int = MAX_REQUEST,
) -> list[EventId]:
    """Fetch events; return the EventIds that the peer does not hold.

    Args:
        frames: an event stream that we have opened.
        wanted: the EventIds to ask for.
        deliver: gets the events in batches of bounded size. While it works, the peer can send until
            the stream's window is full.
        patience: longest wait for a frame, in seconds.
        per_request: most EventIds in a request.

    Raises:
        PeerProtocolError: an answer is not what was asked for.
    """
    missing: list[EventId] = []
    requests = [wanted[at : at + per_request] for at in range(0, len(wanted), per_request)]
    for index, request in enumerate(requests):
        # One request ahead, so that the line is never idle between two.
        ahead = requests[index : index + 2] if index == 0 else requests[index + 1 : index + 2]
        await frames.send(map(b"".join, ahead), patience)
        missing += await _receive_answer(frames, request, deliver, patience)
    return missing


def parse_request(request: bytes, network: Network) -> list[EventId]:
    """Return the EventIds of a request.

    Raises:
        PeerProtocolError: there are none or too many, or one does not parse, is a fencepost, or
            belongs to another network.
    """
    wanted = list(_scan_all(request, "a request for events"))
    if not 0 < len(wanted) <= MAX_REQUEST:
        raise PeerProtocolError(
            f"a request for {len(wanted)} events; it must be for 1 to {MAX_REQUEST}"
        )
    for event_id in wanted:
        if event_id.network_id != network.id or event_id.is_fencepost:
            raise PeerProtocolError(
                f"a request for {event_id}, which is not an event of the network {network}"
            )
    return wanted


async def _receive_answer(
    frames: FrameStream, request: Sequence[EventId], deliver: Deliver, patience: float
) -> list[EventId]:
    awaited: dict[CID, list[EventId]] = defaultdict(list)
    for event_id in request:
        awaited[event_id.event_cid].append(event_id)
    batch: FetchedEvents = []
    size = 0
    held = deque([0], maxlen=_BATCHES_HELD)
    while True:
        frame = await frames.receive(patience)
        if frame is None:
            raise PeerGoneError("the peer ended the event stream within an answer")
        kind, content = frame[:1], frame[1:]
        if kind == bytes((END,)):
            if batch:
                await deliver(batch)
            return _check_end(content, awaited)
        if kind != bytes((CAR,)):
            raise PeerProtocolError(f"an event frame of the unknown kind {kind.hex() or 'nothing'}")
        batch.append((_take(awaited, root_of(content)), content))
        size += len(content)
        held[-1] = size
        frames.account.hold("events", sum(held))
        if len(batch) >= _BATCH_EVENTS or size >= _BATCH_BYTES:
            await deliver(batch)
            batch, size = [], 0
            held.append(0)


def root_of(car: bytes) -> CID:
    """Return the root that a CAR's header names. The rest of the CAR is not read.

    Raises:
        PeerProtocolError: there is no such header.
    """
    try:
        length, start = varint.decode(car)
        root = dag_cbor.decode(car[start : start + length])["roots"][0]
    except (IpldError, LookupError, TypeError) as error:
        raise PeerProtocolError(f"an event frame that is not a CAR: {error}") from None
    if not isinstance(root, CID):
        raise PeerProtocolError("an event frame that is not a CAR: its root is not a CID")
    return root


def _take(awaited: dict[CID, list[EventId]], root: CID) -> EventId:
    event_ids = awaited.get(root)
    if not event_ids:
        raise PeerProtocolError(f"a CAR with the root {root}, which was not asked for")
    return event_ids.pop()


def _check_end(content: bytes, awaited: dict[CID, list[EventId]]) -> list[EventId]:
    missing = list(_scan_all(content, "the end of an answer"))
    open_ids = [event_id for event_ids in awaited.values() for event_id in event_ids]
    if sorted(missing) != sorted(open_ids):
        raise PeerProtocolError(
            f"the end of an answer names {len(missing)} missing events, but {len(open_ids)} did "
            "not arrive"
        )
    return missing


def _scan_all(data: bytes, what: str) -> Iterator[EventId]:
    offset = 0
    while offset < len(data):
        try:
            event_id, offset = scan(data, offset)
        except CeramicError as error:
            raise PeerProtocolError(f"{what} that does not parse: {error}") from None
        yield event_id
