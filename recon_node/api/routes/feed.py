"""The feed as JSON: /ceramic/feed/events, /ceramic/feed/resumeToken and /ceramic/feed/head.

The feed is the order in which this node delivered events. A position is assigned once, dense and
increasing, so a resume token is nothing but the position of the last event that a client has seen.

`wait`, which a ceramic-one node does not know, turns the first and the last into long polls: with
nothing to tell yet, the answer comes when there is, or after so many seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.query import int_param, parse_int64, seconds_param
from recon_node.api.services import Services
from recon_node.api.threads import in_thread
from recon_node.ipld import multibase
from recon_node.store import FeedRow

DEFAULT_LIMIT = 100


async def get_events(request: Request) -> Response:
    """Events after `resumeAt`, at most `limit` of them, with their CARs if `includeData=full`."""
    services: Services = request.app.state.services
    after = _resume_at(request)
    limit = int_param(request, "limit", DEFAULT_LIMIT)
    include_data = _include_data(request)
    most = services.limits.feed_events
    if include_data and limit > most:
        raise bad_request(f"The limit value must be at most {most} when including data ({limit})")
    if after > services.store.head:
        raise ApiError(
            HTTPStatus.GONE,
            f"The resume token '{after}' lies beyond the feed's end, {services.store.head}: it "
            "is of a log that is gone (repaired, or another backup). Start again from 0",
        )
    await _long_poll(request, services, after)
    rows = await services.store.read_feed(
        after, min(limit, most), max_bytes=services.limits.feed_bytes
    )
    token = str(rows[-1].position) if rows else str(after)

    def render() -> Response:
        events = [_event_json(row, include_data) for row in rows]
        return JSONResponse({"events": events, "resumeToken": token})

    return await in_thread(render)


async def get_resume_token(request: Request) -> Response:
    """The token of the feed's end: resuming there gives only what comes from now on."""
    services: Services = request.app.state.services
    return JSONResponse({"resumeToken": str(services.store.head)})


async def get_head(request: Request) -> Response:
    """Where the feed stands: it holds the positions in (low, head] of the log `epoch`."""
    services: Services = request.app.state.services
    after = int_param(request, "after", services.store.head)
    await _long_poll(request, services, after)
    store = services.store
    return JSONResponse({"epoch": store.epoch, "low": 0, "head": store.head})


def _event_json(row: FeedRow, include_data: bool) -> dict[str, str]:
    event = {"id": str(row.event_cid)}
    if include_data:
        event["data"] = multibase.encode(row.car)
    return event


def _resume_at(request: Request) -> int:
    """The position that a client has read up to; a negative one means the start, as it does for
    a ceramic-one node."""
    text = request.query_params.get("resumeAt")
    if text is None:
        return 0
    position = parse_int64(text)
    if position is None:
        raise bad_request(
            f"Invalid resume token '{text}'. Invalid highwater value (should be an integer)"
        )
    return max(position, 0)


def _include_data(request: Request) -> bool:
    value = request.query_params.get("includeData", "none")
    if value not in ("none", "full"):
        raise bad_request(f"Invalid value: {value}. must be one of 'none' or 'full'")
    return value == "full"


async def _long_poll(request: Request, services: Services, after: int) -> None:
    """Wait until the feed passes `after`, the client's `wait` is over or it hangs up."""
    seconds = seconds_param(request, "wait", services.limits.wait)
    if seconds == 0 or services.store.head > after:
        return
    with trio.move_on_after(seconds):
        await _first_of(
            lambda: services.store.wait_for_feed(after),
            services.closing.wait,
            lambda: _hung_up(request),
        )


async def _first_of(*waits: Callable[[], Awaitable[None]]) -> None:
    """Return as soon as one of `waits` does; cancel the others."""
    async with trio.open_nursery() as nursery:

        async def run(wait: Callable[[], Awaitable[None]]) -> None:
            await wait()
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(run, wait)


async def _hung_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
