"""GET /ceramic/streams/{stream_id}/events/{event_id}: the content of a stream after an event."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Annotated

from msgspec import Raw
from pydantic_core import from_json
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Body, Whole, as_raw, reply
from recon_node.api.routes.events import EventCid
from recon_node.api.routes.stream_events import StreamOrInitPath
from recon_node.api.routes.streams import compute
from recon_node.ipld import CID
from recon_node.streams import Stream, StreamShapeError


class StreamEventPath(StreamOrInitPath, frozen=True):
    """Which event of which stream."""

    event_id: EventCid
    """The event's CID; or its EventId, in any multibase."""


class EventStateBody(Body, frozen=True):
    """A stream after one of its events."""

    event_cid: str
    """The event's CID."""
    height: Whole
    """The longest distance from the init event."""
    content: Raw
    """The content, as DAG-JSON; null: the stream has none."""
    metadata: Raw
    """`shouldIndex` and `modelVersion`."""
    errors: list[str]
    """Why the event was rejected: the content is then that before it. Empty if it was accepted."""


@endpoint("GET", "/ceramic/streams/{stream_id}/events/{event_id}", errors=(404,), own=True)
async def get_event_state(call: Call[StreamEventPath]) -> Annotated[Response, EventStateBody]:
    """Read the content of a stream after one of its delivered events.

    It says why that event was rejected, if it was.
    """
    init, stream_id = call.parameters.stream_id
    text = call.request.path_params["stream_id"]
    render = partial(_render, call.parameters.event_id)
    return await compute(call.services, text, init, stream_id, render)


def _render(cid: CID, stream: Stream) -> Response:
    try:
        state = stream.at(cid)
    except StreamShapeError:
        raise ApiError(HTTPStatus.NOT_FOUND, f"the stream has no delivered event {cid}") from None
    data = from_json(state.data.to_json())
    return reply(
        EventStateBody(
            event_cid=str(cid),
            height=state.height,
            content=as_raw(data.get("content")),
            metadata=as_raw(data.get("metadata")),
            errors=list(state.validation_errors),
        )
    )
