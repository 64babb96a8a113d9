"""GET /ceramic/streams/{stream_id}/events: the events of a stream, and the state of each.

Besides the delivered ones there are those that wait for an event that they build on, or for the
lookup of an anchor. They are found by their keys, which are in the stream's own range. The answer
has what a client needs to draw the stream and to compute its tip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import bad_request
from recon_node.api.models import AsText, Body, Parameters, Whole, reply
from recon_node.api.routes.streams import not_found, read_whole
from recon_node.api.services import Services
from recon_node.ceramic import (
    Event,
    EventId,
    StreamId,
    StreamIdError,
    parse_event,
    stream_range,
    validity_of,
)
from recon_node.ipld import CID, IpldError
from recon_node.recon import KeyRange
from recon_node.store import FeedRow, State, Store
from recon_node.streams import Statements, shape_of, statements_of
from recon_node.streams.picture import HeldEvent, Progress

_CARS_A_READ: Final = 64


@dataclass(frozen=True, slots=True)
class _Held:
    """An event that is stored but not delivered."""

    event_id: EventId
    event: Event
    state: Literal["pending", "waiting"]
    fault: str | None
    """What is wrong with its signature."""


def _parse(text: str) -> tuple[CID, StreamId | None]:
    """The CID of a stream's init event, given as such or in a StreamID; raises `ApiError` 400."""
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError as error:
        try:
            return CID.parse(text), None
        except IpldError:
            raise bad_request(f"Invalid stream ID: {error}") from None
    return stream_id.cid, stream_id


class StreamOrInitPath(Parameters):
    """Which stream."""

    stream_id: Annotated[tuple[CID, StreamId | None], AsText, BeforeValidator(_parse)]
    """A StreamID, as multibase text; or its init event's CID."""


class StreamEventBody(Body):
    """An event of a stream."""

    cid: str
    """The event's CID."""
    kind: Literal["init", "data", "time"]
    prev: list[str]
    """The CIDs of the events that it builds on."""
    height: Whole
    """As in its EventId: 0 for the init event."""
    state: Literal["delivered", "pending", "waiting"]
    """pending: an anchor has not been looked up yet, its own or that of an event it builds on;
    waiting: an event that it builds on is missing; or it is badly signed or builds on such an
    event, and no valid data event covers that."""
    position: int | None
    """In the feed."""
    time: int | None
    """Of a time event: Unix seconds of its anchor's block."""
    chain_id: str | None
    """Of a time event: its anchor's chain (CAIP-2)."""
    expires: int | None
    """When the capability that it is signed by expires, in Unix seconds."""
    fault: str | None
    """What is wrong with its signature; null if it is valid. Such an event is never the tip."""
    copy_of: str | None
    """The CID of the event that is shown in its place, if this is a copy of the same statement."""
    rank: str
    """Decides between events of the same time: the lowest wins (base16)."""


class StreamEventsBody(Body):
    """The events of a stream."""

    id: str
    """The StreamID."""
    init: str
    """The CID of its init event."""
    events: list[StreamEventBody]
    """The delivered ones in feed order, then the others."""


@endpoint("GET", "/ceramic/streams/{stream_id}/events", errors=(404,), own=True)
async def get_stream_events(call: Call[StreamOrInitPath]) -> Annotated[Response, StreamEventsBody]:
    """List the events of a stream, delivered or not."""
    init, stream_id = call.parameters.stream_id
    async with call.services.reading_streams:
        found, rows, held = await _read(call.services, init, stream_id)
        return await call.services.in_long_thread(partial(_render, found, rows, held))


async def held_events(
    services: Services, init: CID, stream_id: StreamId | None
) -> tuple[StreamId, list[HeldEvent]]:
    """The events of a stream, delivered or not, as they are drawn.

    Raises:
        ApiError: 404, the stream is not here; 400, it has too many events.
    """
    found, rows, held = await _read(services, init, stream_id)
    return found, await services.in_long_thread(partial(_to_draw, rows, held))


async def _read(
    services: Services, init: CID, stream_id: StreamId | None
) -> tuple[StreamId, list[FeedRow], list[_Held]]:
    limits = services.limits
    rows = await read_whole(services.store, limits, init, limits.stream_listed)
    found = await services.in_thread(partial(_stream_id, rows[0])) if rows else None
    if found is None or stream_id not in (None, found):
        raise not_found(str(stream_id or init), found)
    return found, rows, await _held(services, rows)


def _stream_id(row: FeedRow) -> StreamId:
    return parse_event(row.car).stream_id()


async def _held(services: Services, rows: Sequence[FeedRow]) -> list[_Held]:
    """The events in the stream's range of keys that are not among `rows`, the latest last.

    No more of them than a stream that is listed may have, by number and by size: strangers can have
    badly signed ones wait in any stream.
    """
    store, limits = services.store, services.limits
    key_range = await services.in_thread(partial(_key_range, store, rows[0]))
    delivered = {row.event_cid for row in rows}
    keys = chain(map(EventId, store.keys.keys(key_range)), store.withheld_in(key_range))
    others = (key for key in keys if key.event_cid not in delivered)
    left = list(islice(others, limits.stream_listed - len(rows)))
    cars = await _cars(store, left, limits.stream_bytes)
    progress = await store.listings.progress([key.event_cid for key in left])
    parse = partial(_parse_held, rows[0].stream_cid, left, cars, progress)
    return await services.in_long_thread(parse)


async def _cars(store: Store, keys: Sequence[EventId], max_bytes: int) -> list[bytes | None]:
    """The CARs of the first keys, up to `max_bytes` or somewhat more."""
    found: list[bytes | None] = []
    size = 0
    for start in range(0, len(keys), _CARS_A_READ):
        cars = await store.get_cars(keys[start : start + _CARS_A_READ])
        found += cars
        size += sum(len(car) for car in cars if car is not None)
        if size >= max_bytes:
            break
    return found


def _key_range(store: Store, row: FeedRow) -> KeyRange:
    header = parse_event(row.car).header
    if header is None:
        raise RuntimeError(f"the stream {row.stream_cid} starts with an event that is not an init")
    controller = header.controller
    return KeyRange(*stream_range(store.network, header.sep_value, controller, row.stream_cid))


def _parse_held(
    init: CID,
    keys: Iterable[EventId],
    cars: Iterable[bytes | None],
    progress: Mapping[CID, tuple[State, str | None]],
) -> list[_Held]:
    """Leave out other streams' events: an EventId has only four bytes of its stream's. An event
    whose history is incomplete may be held under several EventIds."""
    found: dict[CID, _Held] = {}
    for key, car in zip(keys, cars, strict=False):
        if car is not None:
            event = parse_event(car)
            if event.init == init:
                state, fault = progress.get(event.cid, (State.WAITING, None))
                found[event.cid] = _Held(
                    key, event, "pending" if state >= State.PENDING else "waiting", fault
                )
    return sorted(found.values(), key=lambda each: each.event_id.height)


def _render(stream_id: StreamId, rows: Sequence[FeedRow], held: Sequence[_Held]) -> Response:
    listed, statements = _listed(rows, held)
    described = [_describe(entry, statements) for entry in listed]
    return reply({"id": str(stream_id), "init": str(rows[0].stream_cid), "events": described})


@dataclass(frozen=True, slots=True)
class _Listed:
    """An event of the answer."""

    event: Event
    event_id: EventId
    state: Progress
    fault: str | None
    position: int | None = None
    time: int | None = None


def _listed(rows: Sequence[FeedRow], held: Sequence[_Held]) -> tuple[list[_Listed], Statements]:
    """The delivered events, then the others; and what they state. A delivered copy is shown rather
    than one that is not delivered."""
    delivered = [
        _Listed(
            parse_event(row.car), row.event_id, "delivered", row.fault, row.position, row.block_time
        )
        for row in rows
    ]
    others = [_Listed(each.event, each.event_id, each.state, each.fault) for each in held]
    listed = delivered + others
    faulty = {entry.event.cid for entry in listed if entry.fault is not None}
    first = statements_of((entry.event for entry in delivered), faulty)
    every = (*first.events, *(entry.event for entry in others))
    statements = statements_of(every, faulty, keep_first=True)
    copies = {cid: statements.shown(shown) for cid, shown in first.copies.items()}
    return listed, replace(statements, copies={**copies, **statements.copies})


def _to_draw(rows: Sequence[FeedRow], held: Sequence[_Held]) -> list[HeldEvent]:
    listed, statements = _listed(rows, held)
    by_cid = {entry.event.cid: entry for entry in listed}
    return [_drawn(event, by_cid[event.cid], statements) for event in statements.events]


def _drawn(event: Event, entry: _Listed, statements: Statements) -> HeldEvent:
    chain_id = None if event.proof is None else event.proof.chain_id
    rank = statements.ranks[event.cid]
    shape = shape_of(event, time=entry.time, valid=entry.fault is None, rank=rank)
    return HeldEvent(shape, entry.event_id.height, entry.state, chain_id)


def _describe(entry: _Listed, statements: Statements) -> dict[str, Any]:
    event = entry.event
    copy_of = statements.copies.get(event.cid)
    return {
        "cid": str(event.cid),
        "kind": event.kind.value,
        "prev": [str(prev) for prev in event.prevs],
        "height": entry.event_id.height,
        "state": entry.state,
        "position": entry.position,
        "time": entry.time,
        "chain_id": None if event.proof is None else event.proof.chain_id,
        "expires": None if entry.fault is not None else validity_of(event).expires,
        "fault": entry.fault,
        "copy_of": None if copy_of is None else str(copy_of),
        "rank": statements.ranks[statements.shown(event.cid)].hex(),
    }
