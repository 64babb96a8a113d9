"""GET /ceramic/streams/{stream_id}: what a stream says at its tip.

The state is computed from the stream's events when it is asked for, in a worker thread, and within
bounds: of the events read, and of time, which is looked at after each event. See
`recon_node.lattice.stream_state` for what it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.services import Limits, Services
from recon_node.api.threads import in_long_thread, in_thread
from recon_node.ceramic import InitHeader, StreamId, StreamIdError, StreamType, parse_event
from recon_node.ipld import CID, multibase
from recon_node.lattice import StreamState, branch_states, select_tip, shape_of, stream_state
from recon_node.store import FeedRow, Store

T = TypeVar("T")

MAX_ERRORS = 100
"""Events with validation errors that an answer lists, the latest ones."""


async def get_stream(request: Request) -> Response:
    """The state of a stream at its tip: its content and whose it is."""
    services: Services = request.app.state.services
    text = request.path_params["stream_id"]
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError as error:
        raise bad_request(f"Invalid stream ID: {error}") from None
    state = await load_state(services.store, services.limits, stream_id.cid)
    if state is None or state.id != stream_id:
        other = "" if state is None else f" (the stream that starts so is {state.id})"
        raise ApiError(HTTPStatus.NOT_FOUND, f"Stream not found : {text}{other}")
    return await in_thread(partial(_render, state))


async def load_state(store: Store, limits: Limits, init: CID) -> StreamState | None:
    """The state of the stream that `init` starts; None when the stream is not here.

    Raises:
        ApiError: 400, the stream takes more to compute than `limits` allow.
    """
    rows = await read_whole(store, limits, init)
    if not rows:
        return None
    header = await in_thread(partial(_header, rows[0]))
    model = None
    if header.stream_type is not StreamType.MODEL:
        model_rows = await read_whole(store, limits, header.model.cid)
        if model_rows:
            definition = await in_long_thread(partial(_compute, model_rows, None, limits))
            model = definition.data.content
    return await in_long_thread(partial(_compute, rows, model, limits))


async def read_whole(store: Store, limits: Limits, init: CID) -> list[FeedRow]:
    """All delivered events of a stream; raises `ApiError` 400 when they are too many."""
    rows = await store.read_stream(init, limits.stream_events + 1, limits.stream_bytes)
    size = sum(len(row.car) for row in rows)
    if len(rows) > limits.stream_events or size >= limits.stream_bytes:
        raise bad_request(
            f"the stream has more than {limits.stream_events} events or {limits.stream_bytes} "
            "bytes, too many for one answer: read its events from the feed"
        )
    return rows


def _header(row: FeedRow) -> InitHeader:
    header = parse_event(row.car).header
    if header is None:
        raise RuntimeError(f"the stream {row.stream_cid} starts with an event that is no init")
    return header


def _compute(rows: Sequence[FeedRow], model: Any, limits: Limits) -> StreamState:
    within = partial(_in_time, time.monotonic() + limits.stream_seconds)
    events = list(within(parse_event(row.car) for row in rows))
    shapes = [shape_of(event, time=row.block_time) for event, row in zip(events, rows, strict=True)]
    tip = select_tip(shapes)
    header = events[0].header
    if header is None:
        raise RuntimeError(f"the stream {rows[0].stream_cid} starts with an event that is no init")
    return stream_state(header, events[0].cid, within(branch_states(events, tip.event, model)))


def _in_time(deadline: float, items: Iterable[T]) -> Iterable[T]:
    for item in items:
        if time.monotonic() > deadline:
            raise bad_request(
                "the state of the stream takes too long to compute on request: its events are "
                "many, or its patches are made to be slow; read its events from the feed"
            )
        yield item


def _render(state: StreamState) -> Response:
    errors = list(state.validation_errors.items())[-MAX_ERRORS:]
    return JSONResponse(
        {
            "id": str(state.id),
            "event_cid": str(state.event_cid),
            "controller": state.controller,
            "dimensions": {
                name: multibase.encode(value, "base64url")
                for name, value in state.dimensions.items()
            },
            "data": multibase.encode(state.data.to_json(), "base64url"),
            "validation_errors": [
                {"event_cid": str(cid), "errors": list(messages)} for cid, messages in errors
            ],
        }
    )
