"""The feed as JSON: /ceramic/feed/events, /ceramic/feed/resumeToken and /ceramic/feed/head.

The feed is the order in which this node delivered events. A position is assigned once, dense and
increasing, so a resume token is simply the position of the last event that a client has seen.

`wait`, which a ceramic-one node does not know, turns the first and the last into long polls: if
there is nothing new, the answer comes as soon as there is, or after that many seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

import trio
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.alias_generators import to_camel
from starlette.requests import Request
from starlette.responses import Response

from recon_node.api.endpoint import EXTENSION, Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    AsText,
    Body,
    FlagParameter,
    Parameters,
    SecondsParameter,
    Whole,
    WholeParameter,
    parse_int64,
    reply,
)
from recon_node.api.routes.events import EventBody
from recon_node.api.services import Services
from recon_node.ipld import multibase
from recon_node.store import FeedRow, UnknownTimeError
from recon_node.timestamps import parse_timestamp


class WaitQuery(Parameters):
    """The parameter of a long poll."""

    wait: SecondsParameter = Field(0.0, json_schema_extra={EXTENSION: True})
    """If there is nothing new, wait for it for this many seconds, at most 30."""


def _position(token: str) -> int:
    """The position that a client has read up to; a negative one means the start, as it does for
    a ceramic-one node."""
    position = parse_int64(token)
    if position is None:
        raise bad_request(
            f"Invalid resume token '{token}'. Invalid highwater value (should be an integer)"
        )
    return max(position, 0)


class FeedQuery(WaitQuery):
    """What of the feed to read."""

    resume_at: Annotated[int, BeforeValidator(_position), WithJsonSchema({"type": "string"})] = (
        Field(0, alias="resumeAt")
    )
    """A resume token: return the events after it. By default, from the start."""
    limit: WholeParameter = 100
    """Maximum number of events to return: 100 by default, at most 10,000."""
    include_data: Literal["none", "full"] = Field("none", alias="includeData")
    """Whether to include each event's CAR."""
    details: FlagParameter = Field(False, json_schema_extra={EXTENSION: True})
    """Whether to say of each event its position, kind, stream and time."""


class FeedEventBody(EventBody, alias_generator=to_camel):
    """An event of the feed."""

    position: Whole = 0
    """(+) In the feed. This and what follows is there with `details`."""
    kind: Literal["init", "data", "time"] = "data"
    """(+) What it does."""
    init: str = ""
    """(+) The CID of the stream's init event."""
    height: Whole = 0
    """(+) As in its EventId."""
    size: Whole = 0
    """(+) Bytes of its CAR."""
    time: int | None = None
    """(+) Of a time event: Unix seconds of its anchor's block."""
    delivered_at: int | None = None
    """(+) Unix milliseconds of its delivery; null if an earlier version delivered it."""
    fault: str | None = None
    """(+) What is wrong with the signature of a data event; null if it is valid."""


class EventFeedBody(Body, alias_generator=to_camel):
    """A page of the feed."""

    events: list[FeedEventBody]
    """In the order of their delivery."""
    resume_token: str
    """Where to continue: the position of the last event, as text."""


@endpoint("GET", "/ceramic/feed/events", errors=(410,))
async def get_events(call: Call[FeedQuery]) -> Annotated[Response, EventFeedBody]:
    """Read the feed: events in the order of their delivery."""
    services, given = call.services, call.parameters
    after, include_data = given.resume_at, given.include_data == "full"
    most = services.limits.feed_events
    if include_data and given.limit > most:
        raise bad_request(
            f"The limit value must be at most {most} when including data ({given.limit})"
        )
    if after > services.store.head:
        raise ApiError(
            HTTPStatus.GONE,
            f"The resume token '{after}' is beyond the feed's end, {services.store.head}: it "
            "belongs to a log that no longer exists (repaired, or another backup). Start from 0",
        )
    await _long_poll(call.request, services, after, given.wait)
    rows = await services.store.read_feed(
        after, min(given.limit, most), max_bytes=services.limits.feed_bytes
    )
    token = str(rows[-1].position) if rows else str(after)

    def render() -> Response:
        events = [_event(row, include_data, given.details) for row in rows]
        return reply({"events": events, "resumeToken": token})

    return await services.in_thread(render)


class ResumeTokenBody(Body, alias_generator=to_camel):
    """The feed's end."""

    resume_token: str
    """Its last position, as text."""


@endpoint("GET", "/ceramic/feed/resumeToken")
async def get_resume_token(call: Call[Parameters]) -> ResumeTokenBody:
    """Ask for the end of the feed."""
    return ResumeTokenBody(resume_token=str(call.services.store.head))


class HeadQuery(WaitQuery):
    """Which head to wait for."""

    after: WholeParameter | None = None
    """What `wait` waits for: a head beyond this."""


class FeedHeadBody(Body):
    """Where the feed stands."""

    epoch: str
    """The log's UUID. Positions of another log mean nothing in this one."""
    low: Whole
    """The feed holds the positions after this one: 0, since it keeps all."""
    head: Whole
    """The feed's last position."""


@endpoint("GET", "/ceramic/feed/head", own=True)
async def get_head(call: Call[HeadQuery]) -> FeedHeadBody:
    """Ask where the feed stands.

    It holds the positions in (low, head] of the log `epoch`.
    """
    store, after = call.services.store, call.parameters.after
    after = store.head if after is None else after
    await _long_poll(call.request, call.services, after, call.parameters.wait)
    return FeedHeadBody(epoch=store.epoch, low=0, head=store.head)


def _time(text: str) -> int:
    try:
        return parse_timestamp(text)
    except ValueError as error:
        raise bad_request(f"time: {error}") from None


class PositionQuery(Parameters):
    """Which time to find."""

    time: Annotated[int, AsText, BeforeValidator(_time)]
    """A time in ISO 8601, in UTC unless it names a zone, or in Unix milliseconds."""


class FeedPositionBody(Body):
    """The place of a time in the feed."""

    epoch: str
    """The log's UUID."""
    position: Whole
    """The events up to this position were delivered before the time, the others at it or later."""
    final: bool
    """Whether that stays so: no further event will be delivered before the time."""


@endpoint("GET", "/ceramic/feed/position", own=True)
async def get_position(call: Call[PositionQuery]) -> FeedPositionBody:
    """Ask up to which position events were delivered before a time."""
    store = call.services.store
    try:
        found = await store.find_time(call.parameters.time)
    except UnknownTimeError as error:
        raise bad_request(str(error)) from None
    return FeedPositionBody(epoch=store.epoch, position=found.position, final=found.is_final)


def _event(row: FeedRow, include_data: bool, details: bool) -> dict[str, Any]:
    event: dict[str, Any] = {"id": str(row.event_cid)}
    if details:
        event |= {
            "position": row.position,
            "kind": row.kind.value,
            "init": str(row.stream_cid),
            "height": row.event_id.height,
            "size": len(row.car),
            "time": row.block_time,
            "deliveredAt": row.delivered_at,
            "fault": row.fault,
        }
    if include_data:
        event["data"] = multibase.encode(row.car)
    return event


async def _long_poll(request: Request, services: Services, after: int, wait: float) -> None:
    """Wait until the feed passes `after`, the time is over, the client hangs up or the node
    shuts down."""
    if wait == 0 or services.store.head > after:
        return

    async def hang_up() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    async def first(event: Callable[[], Awaitable[None]]) -> None:
        await event()
        waits.cancel_scope.cancel()

    with trio.move_on_after(min(wait, services.limits.wait)):
        async with trio.open_nursery() as waits:
            waits.start_soon(first, partial(services.store.wait_for_feed, after))
            waits.start_soon(first, services.closing.wait)
            waits.start_soon(first, hang_up)
