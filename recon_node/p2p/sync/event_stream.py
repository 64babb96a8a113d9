"""Events on ``/ceramic/events/1.0.0``: a request lists EventIds, the answer has their CARs.

    request:   EventId+                      one frame, at most 1000 of them
    answer:    00 CARv1                      a frame for each event that is held, in any order
               01 EventId*                   the end: the EventIds that are not held

After the end of an answer the next request may follow on the same stream; a requester may send it
earlier, to keep the line busy. A CAR belongs to the EventId whose event CID is its root. A CAR that
was not asked for, or an end that leaves an EventId unanswered, is a protocol error.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import structlog

from recon_node.ceramic import CeramicError, EventId, Network, scan
from recon_node.ipld import CID, IpldError, dag_cbor, varint
from recon_node.ipld.car import read_common_header
from recon_node.p2p.errors import (
    PeerGoneError,
    PeerProtocolError,
)
from recon_node.p2p.settings import MAX_REQUEST, P2PSettings
from recon_node.p2p.transport.framing import FrameStream

log = structlog.get_logger(__name__)

CAR: Final = 0
"""First byte of a frame with a CAR."""
END: Final = 1
"""First byte of the frame that ends an answer."""
_READ_AT_ONCE: Final = 256
"""Maximum CARs read at a time while serving a request, as long as they are small."""
_READ_BYTES: Final = 512 * 1024
"""Bytes of CARs to read at a time, judging by the size of the previous ones."""
_MEMORY_A_BYTE: Final = 2
"""Bytes of memory that each byte of a CAR takes while it is served: the CAR and its frame."""
_BATCHES_HELD: Final = 6
"""Batches of fetched events in memory at once: in the store's hands, and arriving."""
BATCH_EVENTS: Final = 250
_BATCH_BYTES: Final = 2 << 20
"""Maximum events, and bytes, of a batch."""

FetchedEvents = list[tuple[EventId, bytes]]
ReadCars = Callable[[Sequence[EventId]], Awaitable[list[bytes | None]]]
Deliver = Callable[[FetchedEvents], Awaitable[None]]


async def serve_events(
    frames: FrameStream,
    read_cars: ReadCars,
    network: Network,
    settings: P2PSettings,
    linger: float = math.inf,
) -> None:
    """Answer requests until the peer ends the stream, or none follows within ``linger`` seconds.

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
        missing = await send_cars(frames, wanted, read_cars, lambda _: bytes((CAR,)), patience)
        await frames.send([bytes((END,)) + b"".join(missing)], patience)
        if linger < patience and not await frames.wait_for_frame(linger):
            return


async def send_cars(
    frames: FrameStream,
    wanted: Sequence[EventId],
    read_cars: ReadCars,
    head_of: Callable[[EventId], bytes],
    patience: float,
) -> list[EventId]:
    """Send a frame for each event that is held, a head and the CAR; return those not held."""
    missing: list[EventId] = []
    at, count = 0, 1
    while part := wanted[at : at + count]:
        cars = await read_cars(part)
        size = sum(len(car) for car in cars if car is not None)
        frames.account.hold("events", _MEMORY_A_BYTE * size)
        pairs = list(zip(part, cars, strict=True))
        found = [head_of(each) + car for each, car in pairs if car is not None]
        missing += [each for each, car in pairs if car is None]
        at += len(part)
        count = min(_READ_AT_ONCE, 2 * count, max(1, _READ_BYTES * len(part) // max(1, size)))
        del cars, pairs
        await frames.send(found, patience)
        del found
    frames.account.hold("events", 0)
    return missing


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
    batches = Batches(frames, deliver)
    while True:
        kind, content = await receive_part(frames, patience)
        if kind == END:
            await batches.finish()
            return _check_end(content, awaited)
        await batches.add(_take(awaited, root_of(content)), content)


async def receive_part(frames: FrameStream, patience: float) -> tuple[int, bytes]:
    """Return the kind, CAR or END, and the content of the next frame of an answer.

    Raises:
        PeerGoneError: the stream ended.
        PeerProtocolError: the frame is of another kind, or did not come in time.
    """
    frame = await frames.receive(patience)
    if frame is None:
        raise PeerGoneError("the peer ended the event stream within an answer")
    if frame[:1] not in (bytes((CAR,)), bytes((END,))):
        raise PeerProtocolError(
            f"an event frame of the unknown kind {frame[:1].hex() or 'nothing'}"
        )
    return frame[0], frame[1:]


class Batches:
    """Hands on the events of an answer in batches of bounded size, as they arrive."""

    def __init__(self, frames: FrameStream, deliver: Deliver) -> None:
        self._account = frames.account
        self._deliver = deliver
        self._batch: FetchedEvents = []
        self._size = 0
        self._held = deque([0], maxlen=_BATCHES_HELD)

    async def add(self, event_id: EventId, car: bytes) -> None:
        """Take an event."""
        self._batch.append((event_id, car))
        self._size += len(car)
        self._held[-1] = self._size
        self._account.hold("events", sum(self._held))
        if len(self._batch) >= BATCH_EVENTS or self._size >= _BATCH_BYTES:
            await self.finish()
            self._held.append(0)

    async def finish(self) -> None:
        """Hand on what is left."""
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._deliver(batch)


def root_of(car: bytes) -> CID:
    """Return the root that a CAR's header names. The rest of the CAR is not read.

    Raises:
        PeerProtocolError: there is no such header.
    """
    common = read_common_header(car)
    if common is not None:
        return common[0]
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
