"""Event streams: their frames, the requests for events by EventIds or by ids, and the streams that
are kept for them.

`/ceramic/events/1.0.0`, by EventIds:

    request:   EventId+                      one frame, at most 1000 of them
    answer:    00 CARv1                      a frame for each event that is held, in any order
               01 EventId*                   the end: the EventIds that are not held

`/ceramic/events/1.1.0`, by ids. An id is the first 8 bytes of an EventId's sha2-256, which is
all that a session of recon/1.2.0 sends of most keys. The answer has the rest of the EventId:

    request:   bound bound id+               one frame: where the EventIds lie, and at most 1000 ids
    answer:    00 head CARv1                 the head is the EventId without the event's CID,
                                             which is the root of the CAR
               01 id*                        the end: the ids of events that are not held

Bounds and heads begin with their size, a varint. After the end of an answer the next request may
follow on the same stream; a requester may send it earlier, to keep the line busy. An event that was
not asked for, or an end that leaves a request unanswered, is a protocol error.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, islice
from typing import Final, TypeAlias

import trio

from recon_node.ceramic import CeramicError, EventId, EventIdError, Network, scan
from recon_node.ceramic.event_id import USUAL_HEAD
from recon_node.ipld import CID, IpldError, VarintError, decode_varint, encode_varint
from recon_node.ipld.car import SIGNED_HEADER, read_header
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError, StaleStreamError
from recon_node.p2p.settings import MAX_REQUEST
from recon_node.p2p.transport.framing import FrameStream, KeptStreams, PeerFrames
from recon_node.p2p.transport.host import Host
from recon_node.recon import ID_SIZE, KeyRange, SoughtIds, id_of

EVENTS_PROTOCOL: Final = "/ceramic/events/1.0.0"
EVENTS_BY_ID_PROTOCOL: Final = "/ceramic/events/1.1.0"
CAR: Final = b"\x00"
"""First byte of a frame with a CAR."""
END: Final = b"\x01"
"""First byte of the frame that ends an answer."""
_MAX_BOUND: Final = 256
"""Maximum bytes of a bound or a head."""
_MAX_CAR_HEADER: Final = 4096
"""Bytes of the header of a CAR with an event: it names one root, or a few."""
_USUAL_START: Final = re.compile(USUAL_HEAD, re.DOTALL)
_USUAL_EVENT: Final = re.compile(CAR + b".(" + USUAL_HEAD + b")" + SIGNED_HEADER, re.DOTALL)
"""A frame whose head is as nearly all are, with the CAR of a signed event."""
BATCH_EVENTS: Final = 1000
_BATCH_BYTES: Final = 3 << 19
"""Maximum events, and bytes, of a batch: half as many as the store takes at once."""
_BATCHES_HELD: Final = 8
"""Maximum batches of fetched events held in memory: arriving, or being written."""
REQUESTS_AHEAD: Final = 1
"""Requests that are sent before the one that is being answered has ended: so the line is never
idle between two."""
_STEP: Final = 16 * 1024
"""Bytes of memory that a batch is charged at a time."""
EVENTS_USED_FOR: Final = 90.0
"""Seconds after which an event stream is no longer used again: servers close theirs after
`event_server.EVENTS_KEPT_FOR`, and those of earlier versions after `turn_timeout`, as long by
default."""

FetchedEvents = list[tuple[EventId, bytes]]
AdmitEvents = Callable[[FetchedEvents], Awaitable[None]]


class RequestByKeys:
    """A request for events by their EventIds, and those that have not come."""

    def __init__(self, keys: Sequence[EventId]) -> None:
        self.body = b"".join(keys)
        self._awaited: dict[CID, list[EventId]] = defaultdict(list)
        for event_id in keys:
            self._awaited[event_id.event_cid].append(event_id)

    def take(self, frames: deque[bytes], batch: FetchedEvents) -> None:
        """Move events that have come to a batch, until it is full or the answer ends."""
        while frames and frames[0].startswith(CAR) and len(batch) < BATCH_EVENTS:
            car = frames.popleft()[len(CAR) :]
            root = root_of(car)
            event_ids = self._awaited.get(root)
            if not event_ids:
                raise PeerProtocolError(
                    f"the peer sent a CAR with the root {root}, which was not asked for"
                )
            batch.append((event_ids.pop(), car))

    def end(self, content: bytes) -> list[bytes]:
        """Return what the end of the answer names, which is what has not come."""
        not_come = chain.from_iterable(self._awaited.values())
        return _checked_end([*_scan_all(content, "the end of an answer")], [*not_come])


class RequestByIds:
    """A request for events by the ids of their EventIds, and those that have not come.

    It adds the events that come to `ids_of_taken`, with their ids.
    """

    def __init__(
        self,
        key_range: KeyRange,
        ids: Sequence[bytes],
        ids_of_taken: dict[EventId, bytes] | None = None,
    ) -> None:
        self.body = b"".join([*map(_sized, key_range), *ids])
        self._range = key_range
        self._awaited = set(ids)
        self._taken: dict[EventId, bytes] = {}
        """What has come, with its ids."""
        self._ids_of_taken = {} if ids_of_taken is None else ids_of_taken

    def take(self, frames: deque[bytes], batch: FetchedEvents) -> None:
        """Move events that have come to a batch, until it is full or the answer ends."""
        lower, upper = self._range
        taken, awaited, ids_of_taken = self._taken, self._awaited, self._ids_of_taken
        while frames and frames[0].startswith(CAR) and len(batch) < BATCH_EVENTS:
            event = parse_event(frames.popleft())
            event_id = event[0]
            name = id_of(event_id)
            if event_id in taken or name not in awaited or not lower < event_id < upper:
                raise PeerProtocolError(
                    f"the peer sent the event {event_id}, which was not asked for"
                )
            taken[event_id] = ids_of_taken[event_id] = name
            batch.append(event)

    def end(self, content: bytes) -> list[bytes]:
        """Return what the end of the answer names, which is what has not come."""
        named = [content[at : at + ID_SIZE] for at in range(0, len(content), ID_SIZE)]
        return _checked_end(named, [*self._awaited.difference(self._taken.values())])


EventRequest: TypeAlias = RequestByKeys | RequestByIds


def _checked_end(named: list[bytes], not_come: list[bytes]) -> list[bytes]:
    if sorted(named) != sorted(not_come):
        raise PeerProtocolError(
            f"the end of the peer's answer names {len(named)} missing events, but "
            f"{len(not_come)} did not arrive"
        )
    return named


def parse_request(request: bytes, network: Network) -> list[EventId]:
    """Return the EventIds of a request.

    Raises:
        PeerProtocolError: there are none or too many, or one does not parse, is a fencepost, or
            belongs to another network.
    """
    wanted = list(_scan_all(request, "a request for events"))
    if not 0 < len(wanted) <= MAX_REQUEST:
        raise PeerProtocolError(
            f"the peer sent a request for {len(wanted)} events; it must be for 1 to {MAX_REQUEST}"
        )
    for event_id in wanted:
        if event_id.network_id != network.id or event_id.is_fencepost:
            raise PeerProtocolError(
                f"the peer sent a request for {event_id}, which is not an event of the network "
                f"{network}"
            )
    return wanted


def root_of(car: bytes) -> CID:
    """Return the root that a CAR's header names. The rest of the CAR is not read.

    Raises:
        PeerProtocolError: there is no such header.
    """
    try:
        roots, _ = read_header(car[:_MAX_CAR_HEADER])
        return roots[0]
    except (IpldError, LookupError) as error:
        raise PeerProtocolError(
            f"the peer sent an event frame that is not a CAR: {error}"
        ) from None


def _scan_all(data: bytes, what: str) -> Iterator[EventId]:
    offset = 0
    while offset < len(data):
        try:
            event_id, offset = scan(data, offset)
        except CeramicError as error:
            raise PeerProtocolError(f"the peer sent {what} that does not parse: {error}") from None
        yield event_id


def head_frame(event_id: EventId) -> bytes:
    """Return the start of the frame with an event: all before its CAR."""
    usual = _USUAL_START.match(event_id)
    return CAR + _sized(event_id[: -len(event_id.event_cid)] if usual is None else usual[0])


def _sized(part: bytes) -> bytes:
    return encode_varint(len(part)) + part


def parse_id_request(request: bytes) -> SoughtIds:
    """Return the ids of a request, and where their EventIds lie.

    Raises:
        PeerProtocolError: there are none or too many, or it does not parse.
    """
    lower, at = _read_sized(request, 0)
    upper, at = _read_sized(request, at)
    number, rest = divmod(len(request) - at, ID_SIZE)
    if rest or not 0 < number <= MAX_REQUEST or lower >= upper:
        raise PeerProtocolError(
            f"the peer sent a request for events with {len(request) - at} bytes of ids; it must "
            f"have 1 to {MAX_REQUEST} ids of {ID_SIZE} bytes, and bounds that ascend"
        )
    ids = [request[start : start + ID_SIZE] for start in range(at, len(request), ID_SIZE)]
    return SoughtIds(KeyRange(lower, upper), ids)


def parse_event(frame: bytes) -> tuple[EventId, bytes]:
    """Return the EventId and the CAR of an event that was asked for by its id.

    Raises:
        PeerProtocolError: the frame has no such two.
    """
    usual = _USUAL_EVENT.match(frame)
    if usual is not None and frame[len(CAR)] == len(usual[1]):
        return bytes.__new__(EventId, usual[1] + usual[2]), frame[usual.end(1) :]
    head, at = _read_sized(frame, len(CAR))
    car = frame[at:]
    try:
        return EventId(head + root_of(car)), car
    except EventIdError as error:
        raise PeerProtocolError(
            f"the peer sent an event whose head does not parse: {error}"
        ) from None


def _read_sized(data: bytes, at: int) -> tuple[bytes, int]:
    try:
        size, at = decode_varint(data, at)
    except VarintError as error:
        raise PeerProtocolError(
            f"the peer sent an event frame that does not parse: {error}"
        ) from None
    if size > _MAX_BOUND or at + size > len(data):
        raise PeerProtocolError(
            f"the peer sent an event frame with a bound or head of {size} bytes"
        )
    return data[at : at + size], at + size


async def fetch_events(
    frames: FrameStream,
    requests: Iterator[EventRequest],
    admit: AdmitEvents,
    answered: Callable[[list[bytes]], object],
    patience: float,
) -> None:
    """Fetch the events of some requests.

    Args:
        frames: an event stream that we have opened, of the version of the requests.
        requests: each is taken when it is sent.
        admit: takes the events in batches of bounded size. Meanwhile the peer can send until
            the stream's window is full.
        answered: called after each answer, with the EventIds, or the ids, of the events that the
            peer did not supply.
        patience: longest wait for a frame, in seconds.

    Raises:
        PeerProtocolError: an answer is not what was asked for.
    """
    batches = _Batches(frames, admit)
    arrived: deque[bytes] = deque()
    sent: deque[EventRequest] = deque()

    async def send(number: int) -> None:
        new = list(islice(requests, number))
        await frames.send([request.body for request in new], patience)
        sent.extend(new)

    try:
        await send(1 + REQUESTS_AHEAD)
        while sent:
            answered(await _receive_answer(frames, arrived, sent.popleft(), batches, patience))
            await send(1)
        if arrived:
            raise PeerProtocolError("the peer sent more after the end of its last answer")
    except Exception:
        await batches.finish()
        raise
    await batches.finish()


async def _receive_answer(
    frames: FrameStream,
    arrived: deque[bytes],
    request: EventRequest,
    batches: _Batches,
    patience: float,
) -> list[bytes]:
    """Receive one answer; what has arrived of the next one is left in `arrived`."""
    while True:
        if not arrived:
            arrived += await frames.receive_all(patience)
        if not arrived:
            raise PeerGoneError("the peer ended the event stream within an answer")
        if arrived[0].startswith(CAR):
            if batches.take(request, arrived):
                await batches.finish()
            continue
        frame = arrived.popleft()
        if frame.startswith(END):
            return request.end(frame[len(END) :])
        kind = frame[:1].hex() or "nothing"
        raise PeerProtocolError(f"the peer sent an event frame of the unknown kind {kind}")


class _Batches:
    """Has the events of answers admitted in batches of bounded size, as they arrive."""

    def __init__(self, frames: FrameStream, admit: AdmitEvents) -> None:
        self._account = frames.account
        self._admit = admit
        self._batch: FetchedEvents = []
        self._size = 0
        self._held = deque([0], maxlen=_BATCHES_HELD)
        """Bytes of each batch, the last one rounded up to `_STEP`."""

    def take(self, request: EventRequest, arrived: deque[bytes]) -> bool:
        """Take events that have come; return whether the batch is to be admitted now."""
        before = len(self._batch)
        request.take(arrived, self._batch)
        self._size += sum([len(car) for _, car in self._batch[before:]])
        if self._size > self._held[-1]:
            self._held[-1] = self._size + _STEP
            self._account.hold("events", sum(self._held))
        return len(self._batch) >= BATCH_EVENTS or self._size >= _BATCH_BYTES

    async def finish(self) -> None:
        """Have what there is admitted."""
        self._held[-1] = self._size
        batch, self._batch, self._size = self._batch, [], 0
        if batch:
            await self._admit(batch)
            self._held.append(0)


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
        frames = await self._kept[protocol].take(peer_id)
        if frames is None:
            stream = await self._host.open_stream(peer_id, protocol)
            frames = PeerFrames(stream, self._max_frame)
        frames.start_count()
        try:
            yield frames
        except (PeerGoneError, trio.BrokenResourceError) as error:
            await frames.stream.reset()
            if frames.was_kept and not frames.bytes_received:
                raise StaleStreamError(str(error)) from error
            raise
        except BaseException:
            await frames.stream.reset()
            raise
        frames.account.hold("events", 0)  # all are in the store
        await self._kept[protocol].put(frames)
