"""Events on ``/ceramic/events/1.1.0``: asked for by the ids of their EventIDs.

An id is the first 8 bytes of an EventID's sha2-256 digest, which is all that a session on
recon/1.2.0 tells of most keys. The answer has the rest of what the EventID consists of::

    request:   bound bound id+               one frame: where the EventIDs lie, and at most 1000 ids
    answer:    00 head CARv1                 a frame for each event that is held, in any order
               01 id*                        the end: the ids of events that are not held

Bounds and heads begin with their size, a varint. The head is the EventID without the event's CID,
which is the root of the CAR. All else is as in 1.0.0 (event_stream.py).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final

from recon_node.ceramic import EventId, EventIdError
from recon_node.ipld import VarintError, varint
from recon_node.p2p.errors import PeerProtocolError
from recon_node.p2p.settings import MAX_REQUEST, P2PSettings
from recon_node.p2p.sync.event_stream import (
    CAR,
    END,
    Batches,
    Deliver,
    ReadCars,
    receive_part,
    root_of,
    send_cars,
)
from recon_node.p2p.transport.framing import FrameStream
from recon_node.recon import ID_SIZE, KeyRange, Missing, id_of

_MAX_BOUND: Final = 256
"""Maximum bytes of a bound or a head."""

Search = Callable[[Missing], Awaitable[list[EventId]]]


async def serve_events_by_id(
    frames: FrameStream,
    read_cars: ReadCars,
    search: Search,
    settings: P2PSettings,
    linger: float = math.inf,
) -> None:
    """Answer requests until the peer ends the stream, or none follows within ``linger`` seconds.

    The peer has the time that 1.0.0 allows.

    Args:
        frames: an event stream that the peer has opened.
        read_cars: reads events.
        search: returns the EventIds that have some ids (searches.py).
        settings: the time limits.
        linger: how long to wait for another request.

    Raises:
        PeerProtocolError: a request does not parse.
    """
    patience, until_begun = settings.turn_timeout, 0.0
    while (request := await frames.receive(settings.idle_timeout, until_begun)) is not None:
        until_begun = settings.turn_timeout
        wanted = _parse_request(request)
        held = await search(wanted)
        unread = await send_cars(frames, held, read_cars, _head_frame, patience)
        missing = set(wanted.ids) - set(map(id_of, held)) | set(map(id_of, unread))
        await frames.send([bytes((END,)) + b"".join(sorted(missing))], patience)
        if linger < patience and not await frames.wait_for_frame(linger):
            return


async def fetch_events_by_id(
    frames: FrameStream, wanted: Missing, deliver: Deliver, patience: float, per_request: int
) -> list[bytes]:
    """Fetch events; return the ids of those that the peer does not hold.

    Args:
        frames: an event stream that we have opened.
        wanted: the ids to ask for, and where their EventIDs lie.
        per_request: most ids in a request.
        deliver: gets the events in batches of bounded size. While it works, the peer can send until
            the stream's window is full.
        patience: longest wait for a frame, in seconds.

    Raises:
        PeerProtocolError: the answer is not what was asked for.
    """
    bounds = b"".join(map(_sized, wanted.key_range))
    pages = [wanted.ids[at : at + per_request] for at in range(0, len(wanted.ids), per_request)]
    missing: list[bytes] = []
    for index, page in enumerate(pages):
        # One request ahead, so that the line is never idle between two.
        ahead = pages[index : index + 2] if index == 0 else pages[index + 1 : index + 2]
        await frames.send([bounds + b"".join(each) for each in ahead], patience)
        missing += await _receive_answer(frames, Missing(wanted.key_range, page), deliver, patience)
    return missing


async def _receive_answer(
    frames: FrameStream, wanted: Missing, deliver: Deliver, patience: float
) -> list[bytes]:
    batches = Batches(frames, deliver)
    awaited, taken = set(wanted.ids), set[EventId]()
    while True:
        kind, content = await receive_part(frames, patience)
        if kind == END:
            await batches.finish()
            return _check_end(content, awaited - set(map(id_of, taken)))
        event_id, car = _parse_event(content)
        is_new = event_id not in taken and wanted.key_range.covers(event_id)
        if not is_new or id_of(event_id) not in awaited:
            raise PeerProtocolError(f"the event {event_id}, which was not asked for")
        taken.add(event_id)
        await batches.add(event_id, car)


def _head_frame(event_id: EventId) -> bytes:
    """Return the start of the frame with an event: all before its CAR."""
    return bytes((CAR,)) + _sized(event_id[: -len(event_id.event_cid)])


def _sized(part: bytes) -> bytes:
    return varint.encode(len(part)) + part


def _parse_request(request: bytes) -> Missing:
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


def _parse_event(content: bytes) -> tuple[EventId, bytes]:
    head, at = _read_sized(content, 0)
    car = content[at:]
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


def _check_end(content: bytes, missing: set[bytes]) -> list[bytes]:
    named = [content[at : at + ID_SIZE] for at in range(0, len(content), ID_SIZE)]
    if set(named) != missing or len(named) != len(missing):
        raise PeerProtocolError(
            f"the end of an answer names {len(named)} missing events, but {len(missing)} did not "
            "arrive"
        )
    return named
