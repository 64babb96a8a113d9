"""GET /ceramic/streams/{stream_id}/events: the events of a stream, and how far each has come.

Beside the delivered ones there are those that wait: for an event that they build on, or for the
lookup of an anchor. They are found by their keys, which lie in the stream's own range. The answer
has what a client needs to draw the stream, and to compute its tip by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.routes.streams import read_whole
from recon_node.api.services import Limits, Services
from recon_node.api.threads import in_long_thread, in_thread
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
from recon_node.store import FeedRow, Store


@dataclass(frozen=True, slots=True)
class _Held:
    """An event that is here and not delivered."""

    event_id: EventId
    event: Event


async def get_stream_events(request: Request) -> Response:
    """All events of a stream that are here: the delivered ones in feed order, then the others."""
    services: Services = request.app.state.services
    init, stream_id = _parse(request.path_params["stream_id"])
    rows = await read_whole(services.store, services.limits, init)
    found = await in_thread(partial(_stream_id, rows[0])) if rows else None
    if found is None or stream_id not in (None, found):
        other = "" if found is None else f" (the stream that starts so is {found})"
        raise ApiError(
            HTTPStatus.NOT_FOUND, f"Stream not found : {request.path_params['stream_id']}{other}"
        )
    held = await _held(services.store, services.limits, rows)
    return await in_long_thread(partial(_render, found, rows, held))


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


def _stream_id(row: FeedRow) -> StreamId:
    return parse_event(row.car).stream_id()


async def _held(store: Store, limits: Limits, rows: Sequence[FeedRow]) -> list[_Held]:
    """The events that are in the stream's range of keys, and not among `rows`: the latest come
    last, and no more of them than a stream may have events."""
    key_range = await in_thread(partial(_key_range, store, rows[0]))
    delivered = {row.event_cid for row in rows}
    keys = map(EventId, store.keys.keys(key_range))
    others = (key for key in keys if key.event_cid not in delivered)
    left = list(islice(others, limits.stream_events - len(rows)))
    cars = await store.get_cars(left)
    return await in_long_thread(partial(_parse_held, rows[0].stream_cid, left, cars))


def _key_range(store: Store, row: FeedRow) -> KeyRange:
    header = parse_event(row.car).header
    if header is None:
        raise RuntimeError(f"the stream {row.stream_cid} starts with an event that is not an init")
    controller = header.controller
    return KeyRange(*stream_range(store.network, header.sep_value, controller, row.stream_cid))


def _parse_held(init: CID, keys: Iterable[EventId], cars: Iterable[bytes | None]) -> list[_Held]:
    """An EventId has four bytes of its stream: others may share them. An event whose history is
    not here may be held under several EventIds."""
    found: dict[CID, _Held] = {}
    for key, car in zip(keys, cars, strict=True):
        if car is not None:
            event = parse_event(car)
            if event.init == init:
                found[event.cid] = _Held(key, event)
    return list(found.values())


def _render(stream_id: StreamId, rows: Sequence[FeedRow], held: Sequence[_Held]) -> Response:
    told = [_delivered(row) for row in rows]
    on_the_way = {row.event_cid for row in rows}
    for each in sorted(held, key=lambda each: each.event_id.height):
        is_pending = on_the_way.issuperset(each.event.prevs)
        if is_pending:
            on_the_way.add(each.event.cid)
        told.append(
            _describe(each.event, each.event_id)
            | {"state": "pending" if is_pending else "waiting", "position": None, "time": None}
        )
    return JSONResponse({"id": str(stream_id), "init": str(rows[0].stream_cid), "events": told})


def _delivered(row: FeedRow) -> dict[str, Any]:
    return _describe(parse_event(row.car), row.event_id) | {
        "state": "delivered",
        "position": row.position,
        "time": row.block_time,
    }


def _describe(event: Event, event_id: EventId) -> dict[str, Any]:
    return {
        "cid": str(event.cid),
        "kind": event.kind.value,
        "prev": [str(prev) for prev in event.prevs],
        "height": event_id.height,
        "chain_id": None if event.proof is None else event.proof.chain_id,
        "expires": validity_of(event).expires,
    }
