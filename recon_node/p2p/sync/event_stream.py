"""Events on streams of their own: asked for by their EventIds, or by the ids of these.

`/ceramic/events/1.0.0`, by EventIds:

    request:   EventId+                      one frame, at most 1000 of them
    answer:    00 CARv1                      a frame for each event that is held, in any order
               01 EventId*                   the end: the EventIds that are not held

`/ceramic/events/1.1.0`, by ids. An id is the first 8 bytes of an EventId's sha2-256, which is
all that a session of recon/1.2.0 tells of most keys. The answer has the rest of the EventId:

    request:   bound bound id+               one frame: where the EventIds lie, and at most 1000 ids
    answer:    00 head CARv1                 the head is the EventId without the event's CID,
                                             which is the root of the CAR
               01 id*                        the end: the ids of events that are not held

Bounds and heads begin with their size, a varint. After the end of an answer the next request may
follow on the same stream; a requester may send it earlier, to keep the line busy. An event that was
not asked for, or an end that leaves a request unanswered, is a protocol error.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Final, Protocol, TypeVar

import structlog
import trio

from recon_node.ceramic import CeramicError, EventId, EventIdError, Network, scan
from recon_node.ipld import CID, IpldError, VarintError, dag_cbor, varint
from recon_node.ipld.car import read_common_header
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError, StaleStreamError
from recon_node.p2p.settings import MAX_REQUEST, P2PSettings
from recon_node.p2p.transport.framing import (
    EVENTS_BY_ID_PROTOCOL,
    EVENTS_PROTOCOL,
    FrameStream,
    KeptStreams,
    OpenStream,
)
from recon_node.p2p.transport.host import Host
from recon_node.recon import ID_SIZE, KeyRange, Missing, id_of

log = structlog.get_logger(__name__)

CAR: Final = b"\x00"
"""First byte of a frame with a CAR."""
END: Final = b"\x01"
"""First byte of the frame that ends an answer."""
_READ_AT_ONCE: Final = 256
"""Maximum CARs read at a time while serving a request, as long as they are small."""
_READ_BYTES: Final = 512 * 1024
"""Bytes of CARs to read at a time, judging by the size of the previous ones."""
_MEMORY_A_BYTE: Final = 2
"""Bytes of memory that each byte of a CAR takes while it is served: the CAR and its frame."""
_BATCHES_HELD: Final = 6
"""Maximum batches of fetched events held in memory: arriving, or being written."""
_MAX_BOUND: Final = 256
"""Maximum bytes of a bound or a head."""
BATCH_EVENTS: Final = 1000
_BATCH_BYTES: Final = 2 << 20
"""Maximum events, and bytes, of a batch: as many as the store takes at once."""
_STEP: Final = 16 * 1024
"""Bytes of memory that a batch is charged at a time."""

N = TypeVar("N", bound=bytes)
"""What an event is asked for by: its EventId, or the id of that."""

FetchedEvents = list[tuple[EventId, bytes]]
ReadCars = Callable[[Sequence[EventId]], Awaitable[list[bytes | None]]]
Deliver = Callable[[FetchedEvents], Awaitable[None]]
Search = Callable[[Missing], Awaitable[list[EventId]]]


async def serve_events(
    frames: FrameStream,
    read_cars: ReadCars,
    network: Network,
    settings: P2PSettings,
    linger: float = math.inf,
) -> None:
    """Answer requests until the peer ends the stream, or none follows within `linger` seconds.

    The first request must come within `idle_timeout`. After that the peer may take
    `turn_timeout` to read an answer or to begin another request, because it stores events
    meanwhile.

    Raises:
        PeerProtocolError: a request does not parse, or asks for events of another network.
    """

    async def answer(request: bytes) -> Sequence[bytes]:
        wanted, patience = parse_request(request, network), settings.turn_timeout
        return await _send_cars(frames, wanted, read_cars, lambda _: CAR, patience)

    await _serve(frames, answer, settings, linger)


async def serve_events_by_id(
    frames: FrameStream,
    read_cars: ReadCars,
    search: Search,
    settings: P2PSettings,
    linger: float = math.inf,
) -> None:
    """Answer requests until the peer ends the stream, or none follows within `linger` seconds.

    The peer has the time that 1.0.0 allows.

    Args:
        frames: an event stream that the peer has opened.
        read_cars: reads events.
        search: returns the EventIds that have some ids (purses.py).
        settings: the time limits.
        linger: how long to wait for another request.

    Raises:
        PeerProtocolError: a request does not parse.
    """

    async def answer(request: bytes) -> Sequence[bytes]:
        wanted = _parse_id_request(request)
        held = await search(wanted)
        unread = await _send_cars(frames, held, read_cars, _head_frame, settings.turn_timeout)
        return sorted(set(wanted.ids) - set(map(id_of, held)) | set(map(id_of, unread)))

    await _serve(frames, answer, settings, linger)


async def _serve(
    frames: FrameStream,
    answer: Callable[[bytes], Awaitable[Sequence[bytes]]],
    settings: P2PSettings,
    linger: float,
) -> None:
    """Have requests answered, and end each answer with what is not held."""
    patience, until_begun = settings.turn_timeout, 0.0
    while (request := await frames.receive(settings.idle_timeout, until_begun)) is not None:
        until_begun = settings.turn_timeout
        missing = await answer(request)
        await frames.send([END + b"".join(missing)], patience)
        if linger < patience and not await frames.wait_for_frame(linger):
            return


async def _send_cars(
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
    return await _fetch(frames, wanted, b"", _AwaitedKeys, deliver, patience, per_request)


async def fetch_events_by_id(
    frames: FrameStream, wanted: Missing, deliver: Deliver, patience: float, per_request: int
) -> list[bytes]:
    """Fetch events; return the ids of those that the peer does not hold.

    Args:
        frames: an event stream that we have opened.
        wanted: the ids to ask for, and where their EventIds lie.
        per_request: most ids in a request.
        deliver: gets the events in batches of bounded size. While it works, the peer can send until
            the stream's window is full.
        patience: longest wait for a frame, in seconds.

    Raises:
        PeerProtocolError: the answer is not what was asked for.
    """
    bounds = b"".join(map(_sized, wanted.key_range))
    awaited = partial(_AwaitedIds, wanted.key_range)
    return await _fetch(frames, wanted.ids, bounds, awaited, deliver, patience, per_request)


async def _fetch(
    frames: FrameStream,
    names: Sequence[N],
    head: bytes,
    awaited_of: Callable[[Sequence[N]], _Awaited[N]],
    deliver: Deliver,
    patience: float,
    per_request: int,
) -> list[N]:
    """Request events, each request with a head; return what the peer does not hold."""
    missing: list[N] = []
    batches = _Batches(frames, deliver)
    arrived: deque[bytes] = deque()
    pages = [names[at : at + per_request] for at in range(0, len(names), per_request)]
    try:
        for index, page in enumerate(pages):
            # One request ahead, so that the line is never idle between two.
            ahead = pages[index : index + 2] if index == 0 else pages[index + 1 : index + 2]
            await frames.send([head + b"".join(each) for each in ahead], patience)
            missing += await _receive_answer(frames, arrived, awaited_of(page), batches, patience)
        if arrived:
            raise PeerProtocolError("the peer sent more after the end of its last answer")
    except Exception:
        await batches.finish()
        raise
    await batches.finish()
    return missing


async def _receive_answer(
    frames: FrameStream,
    arrived: deque[bytes],
    awaited: _Awaited[N],
    batches: _Batches,
    patience: float,
) -> list[N]:
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
            return _check_end(awaited.named(frame[1:]), awaited.open())
        else:
            kind = frame[:1].hex() or "nothing"
            raise PeerProtocolError(f"an event frame of the unknown kind {kind}")


def _check_end(named: list[N], missing: list[N]) -> list[N]:
    if sorted(named) != sorted(missing):
        raise PeerProtocolError(
            f"the end of an answer names {len(named)} missing events, but {len(missing)} did not "
            "arrive"
        )
    return named


class _Awaited(Protocol[N]):
    """What has not come of a request."""

    def take(self, frame: bytes) -> tuple[EventId, bytes]:
        """Return the EventId and the CAR of an event that has come."""
        ...

    def named(self, content: bytes) -> list[N]:
        """Return what the end of the answer names."""
        ...

    def open(self) -> list[N]:
        """Return what has not come."""
        ...


class _AwaitedKeys:
    def __init__(self, request: Sequence[EventId]) -> None:
        self._awaited: dict[CID, list[EventId]] = defaultdict(list)
        for event_id in request:
            self._awaited[event_id.event_cid].append(event_id)

    def take(self, frame: bytes) -> tuple[EventId, bytes]:
        car = frame[len(CAR) :]
        root = root_of(car)
        event_ids = self._awaited.get(root)
        if not event_ids:
            raise PeerProtocolError(f"a CAR with the root {root}, which was not asked for")
        return event_ids.pop(), car

    def named(self, content: bytes) -> list[EventId]:
        return list(_scan_all(content, "the end of an answer"))

    def open(self) -> list[EventId]:
        return list(chain.from_iterable(self._awaited.values()))


class _AwaitedIds:
    def __init__(self, key_range: KeyRange, request: Sequence[bytes]) -> None:
        self._range = key_range
        self._awaited = set(request)
        self._taken: dict[EventId, bytes] = {}
        """What has come, with its ids."""

    def take(self, frame: bytes) -> tuple[EventId, bytes]:
        event_id, car = _parse_event(frame)
        name = id_of(event_id)
        is_new = event_id not in self._taken and self._range.covers(event_id)
        if not is_new or name not in self._awaited:
            raise PeerProtocolError(f"the event {event_id}, which was not asked for")
        self._taken[event_id] = name
        return event_id, car

    def named(self, content: bytes) -> list[bytes]:
        return [content[at : at + ID_SIZE] for at in range(0, len(content), ID_SIZE)]

    def open(self) -> list[bytes]:
        return list(self._awaited.difference(self._taken.values()))


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


class _Batches:
    """Hands on the events of answers in batches of bounded size, as they arrive."""

    def __init__(self, frames: FrameStream, deliver: Deliver) -> None:
        self._account = frames.account
        self._deliver = deliver
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
            await self._deliver(batch)
            self._held.append(0)


_MAX_CAR_HEADER: Final = 4096
"""Bytes of the header of a CAR with an event: it names one root, or a few."""


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
        if length > _MAX_CAR_HEADER:
            raise PeerProtocolError(f"an event frame whose CAR has a header of {length} bytes")
        root = dag_cbor.decode(car[start : start + length])["roots"][0]
    except (IpldError, LookupError, TypeError) as error:
        raise PeerProtocolError(f"an event frame that is not a CAR: {error}") from None
    if not isinstance(root, CID):
        raise PeerProtocolError("an event frame that is not a CAR: its root is not a CID")
    return root


def _scan_all(data: bytes, what: str) -> Iterator[EventId]:
    offset = 0
    while offset < len(data):
        try:
            event_id, offset = scan(data, offset)
        except CeramicError as error:
            raise PeerProtocolError(f"{what} that does not parse: {error}") from None
        yield event_id


def _head_frame(event_id: EventId) -> bytes:
    """Return the start of the frame with an event: all before its CAR."""
    return CAR + _sized(event_id[: -len(event_id.event_cid)])


def _sized(part: bytes) -> bytes:
    return varint.encode(len(part)) + part


def _parse_id_request(request: bytes) -> Missing:
    lower, at = _read_sized(request, 0)
    upper, at = _read_sized(request, at)
    number, rest = divmod(len(request) - at, ID_SIZE)
    if rest or not 0 < number <= MAX_REQUEST or lower >= upper:
        raise PeerProtocolError(
            f"a request for events with {len(request) - at} bytes of ids; it must have 1 to "
            f"{MAX_REQUEST} ids of {ID_SIZE} bytes, and bounds that ascend"
        )
    ids = [request[start : start + ID_SIZE] for start in range(at, len(request), ID_SIZE)]
    return Missing(KeyRange(lower, upper), ids)


def _parse_event(frame: bytes) -> tuple[EventId, bytes]:
    head, at = _read_sized(frame, len(CAR))
    car = frame[at:]
    try:
        return EventId(head + root_of(car)), car
    except EventIdError as error:
        raise PeerProtocolError(f"an event whose head does not parse: {error}") from None


def _read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    try:
        size, at = varint.decode(data, at)
    except VarintError as error:
        raise PeerProtocolError(f"an event frame that does not parse: {error}") from None
    if size > _MAX_BOUND or at + size > len(data):
        raise PeerProtocolError(f"an event frame with a bound or head of {size} bytes")
    return data[at : at + size], at + size


EVENTS_USED_FOR: Final = 90.0
"""Seconds after which an event stream is no longer used again: servers close theirs after
`event_server.KEPT_FOR`, and those of earlier versions after `turn_timeout`, as long by
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
