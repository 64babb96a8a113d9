"""The feed as JSON: /ceramic/feed/events, resumeToken, head, position, and sha256a.

The feed is the order in which this node delivered events. A position is assigned once, dense and
increasing, so a resume token is simply the position of the last event that a client has seen.

`wait`, which a ceramic-one node does not know, turns the first and the last into long polls: if
there is nothing new, the answer comes as soon as there is, or after that many seconds.

/ceramic/feed/sha256a is the hash of the feed's events up to a position, and of parts of them. So a
copy of the feed finds where it differs as Recon does, by asking for the parts of parts that differ.
The hash of the node's keys (`sha256a` of /ceramic/recon) does not serve for that: it includes
undelivered events, and changes with each event that arrives.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import trio
from msgspec import UNSET, Meta, UnsetType, field
from starlette.requests import Request
from starlette.responses import Response

from recon_node.api.endpoint import EXTENSION, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Body,
    FlagParameter,
    Parameters,
    Parsed,
    SecondsParameter,
    UnfitError,
    Whole,
    WholeParameter,
    parse_int64,
    parsed_by,
    reply,
    text_of,
)
from recon_node.base.timestamps import parse_timestamp
from recon_node.ceramic import FIELDS_SIZE, prefix_range, rendezvous
from recon_node.ipld import CID, multibase
from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import COUNT_SHIFT, lanes_of
from recon_node.store import FeedRow, Store, UnknownTimeError


class WaitQuery(Parameters, frozen=True):
    """The parameter of a long poll."""

    wait: Annotated[SecondsParameter, EXTENSION] = 0.0
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


class FeedQuery(WaitQuery, frozen=True):
    """What of the feed to read."""

    resume_at: Annotated[int, Parsed(_position)] = field(default=0, name="resumeAt")
    """A resume token: return the events after it. By default, from the start."""
    limit: WholeParameter = 100
    """Maximum number of events to return: 100 by default, at most 10,000."""
    include_data: Literal["none", "full"] = field(default="none", name="includeData")
    """Whether to include each event's CAR."""
    details: Annotated[FlagParameter, EXTENSION] = False
    """Whether to say of each event its position, kind, stream and time."""
    streams: Annotated[FlagParameter, EXTENSION] = False
    """Whether to say of each event the StreamID, model and controller of its stream."""


class FeedEventBody(Body, frozen=True, rename="camel"):
    """An event of the feed."""

    id: str
    """The CID of the event's root block."""
    position: Whole | UnsetType = UNSET
    """(+) In the feed. This and what follows until `fault` is there with `details`."""
    kind: Literal["init", "data", "time"] | UnsetType = UNSET
    """(+) What it does."""
    init: str | UnsetType = UNSET
    """(+) The CID of the stream's init event."""
    height: Whole | UnsetType = UNSET
    """(+) As in its EventId."""
    size: Whole | UnsetType = UNSET
    """(+) Bytes of its CAR."""
    time: int | UnsetType | None = UNSET
    """(+) Of a time event: Unix seconds of its anchor's block."""
    delivered_at: int | UnsetType | None = UNSET
    """(+) Unix milliseconds of its delivery; null if an earlier version delivered it."""
    fault: str | UnsetType | None = UNSET
    """(+) What is wrong with the signature of a data event; null if it is valid."""
    stream: str | UnsetType = UNSET
    """(+) The StreamID. This and the next two are there with `streams`."""
    model: str | UnsetType | None = UNSET
    """(+) The StreamID of the stream's model; null if it is sorted by something else."""
    controller: str | UnsetType = UNSET
    """(+) The DID that the stream belongs to."""
    data: str | UnsetType = UNSET
    """The event's CAR, as multibase text."""


class EventFeedBody(Body, frozen=True, rename="camel"):
    """A page of the feed."""

    events: list[FeedEventBody]
    """In the order of their delivery."""
    resume_token: str
    """Where to continue: the position of the last event, as text."""


@endpoint("GET", "/ceramic/feed/events", errors=(410,))
async def get_events(call: Call[FeedQuery]) -> Annotated[Response, EventFeedBody]:
    """Read the feed: events in the order of their delivery.

    410 for a token beyond the feed's end: it belongs to a log that no longer exists.
    """
    services, query = call.services, call.parameters
    after, most, limit = query.resume_at, services.limits.feed_events, query.limit
    if query.include_data == "full" and limit > most:
        raise bad_request(f"The limit value must be at most {most} when including data ({limit})")
    if after > services.store.head:
        raise ApiError(
            HTTPStatus.GONE,
            f"The resume token '{after}' is beyond the feed's end, {services.store.head}: it "
            "belongs to a log that no longer exists (repaired, or another backup). Start from 0",
        )
    await _long_poll(call.request, services, after, query.wait)
    async with services.reading_pages.taken():
        return await _read_page(services, query, after)


async def _read_page(services: Services, query: FeedQuery, after: int) -> Response:
    limits = services.limits
    limit = min(query.limit, limits.feed_events)
    rows = await services.store.reader.feed(after, limit, max_bytes=limits.feed_bytes)
    token = str(rows[-1].position) if rows else str(after)
    streams = await _streams_of(services.store, rows) if query.streams else {}

    def render() -> Response:
        events = [_event(row, query, streams.get(row.stream_cid, {})) for row in rows]
        return reply(EventFeedBody(events, token))

    return await services.in_thread(render)


class ResumeTokenBody(Body, frozen=True, rename="camel"):
    """The feed's end."""

    resume_token: str
    """Its last position, as text."""


@endpoint("GET", "/ceramic/feed/resumeToken")
async def get_resume_token(call: Call[Parameters]) -> ResumeTokenBody:
    """Get the resume token at the end of the feed."""
    return ResumeTokenBody(resume_token=str(call.services.store.head))


class HeadQuery(WaitQuery, frozen=True):
    """Which head to wait for."""

    after: WholeParameter | None = None
    """What `wait` waits for: a head beyond this."""


class FeedHeadBody(Body, frozen=True):
    """Where the feed stands."""

    epoch: str
    """The log's UUID. Positions of another log mean nothing in this one."""
    low: Whole
    """The feed holds the positions after this one: 0, since it keeps all."""
    head: Whole
    """The feed's last position."""


def check_epoch(store: Store, epoch: str | None) -> None:
    """Refuse positions of another log."""
    if epoch not in (None, store.epoch):
        raise ApiError(
            HTTPStatus.GONE,
            f"the log {epoch} no longer exists; this node's log is {store.epoch}: positions "
            "in one mean nothing in the other; read again from position 0",
        )


@endpoint("GET", "/ceramic/feed/head", own=True)
async def get_head(call: Call[HeadQuery]) -> FeedHeadBody:
    """Get the head of the feed.

    It holds the positions in (low, head] of the log `epoch`.
    """
    store, after = call.services.store, call.parameters.after
    after = store.head if after is None else after
    await _long_poll(call.request, call.services, after, call.parameters.wait)
    return FeedHeadBody(epoch=store.epoch, low=0, head=store.head)


class PositionQuery(Parameters, frozen=True):
    """Which time to find."""

    time: Annotated[int, parsed_by(parse_timestamp, "time: ")]
    """A time in ISO 8601, in UTC unless it names a zone, or in Unix milliseconds."""


class FeedPositionBody(Body, frozen=True):
    """The feed position of a time."""

    epoch: str
    """The log's UUID."""
    position: Whole
    """The events up to this position were delivered before the time, the others at it or later."""
    final: bool
    """Whether that stays so: no further event will be delivered before the time."""


@endpoint("GET", "/ceramic/feed/position", own=True)
async def get_position(call: Call[PositionQuery]) -> FeedPositionBody:
    """Find the position up to which events were delivered before a time.

    400 if an earlier version delivered events around that time, and did not note when.
    """
    store = call.services.store
    try:
        feed_time = await store.find_time(call.parameters.time)
    except UnknownTimeError as error:
        raise bad_request(str(error)) from None
    return FeedPositionBody(store.epoch, feed_time.position, feed_time.is_final)


async def _streams_of(store: Store, rows: Sequence[FeedRow]) -> dict[CID, dict[str, Any]]:
    """The fields that say of which stream an event is, by the stream's init event."""
    inits = list({row.stream_cid for row in rows})
    ids = await store.reader.stream_ids(inits)
    return {
        header.init: {
            "stream": str(ids[header.init]),
            "model": text_of(header.model),
            "controller": header.controller,
        }
        for header in await store.reader.stream_headers(inits)
        if header.init in ids  # else its init event is damaged
    }


def _event(row: FeedRow, query: FeedQuery, stream: dict[str, Any]) -> FeedEventBody:
    more: dict[str, Any] = {}
    if query.include_data == "full" and row.car:  # else it is forgotten
        more["data"] = multibase.encode(row.car)
    if query.details:
        more |= {
            "position": row.position,
            "kind": row.kind.value,
            "init": str(row.stream_cid),
            "height": row.event_id.height,
            "size": len(row.car),
            "time": row.block_time,
            "delivered_at": row.delivered_at,
            "fault": row.fault,
        }
    return FeedEventBody(str(row.event_cid), **more, **stream)


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


MAX_ANSWER_PARTS: Final = 10_000
"""Parts of an answer."""
MAX_LISTED: Final = 1000
"""EventIds of an answer."""
_PAGE: Final = 10_000
"""EventIds that are read at once."""


def _prefix(text: str) -> bytes:
    try:
        prefix = bytes.fromhex(text)
    except ValueError:
        raise UnfitError("'{name}' should be hexadecimal") from None
    if len(prefix) > FIELDS_SIZE:
        raise UnfitError(f"'{{name}}' has at most {FIELDS_SIZE} bytes")
    return prefix


def _size(text: str) -> int:
    size = parse_int64(text)
    if size is None or not 1 <= size <= FIELDS_SIZE:
        raise UnfitError(f"'{{name}}' should be a number from 1 to {FIELDS_SIZE}")
    return size


class HashQuery(Parameters, frozen=True):
    """Which events, and how to divide them."""

    upto: WholeParameter | None = None
    """Those of positions up to and including this one; the feed's head by default."""
    epoch: str | None = None
    """The log that the position belongs to: 410 when it is another."""
    prefix: Annotated[bytes, Parsed(_prefix)] | None = None
    """Only those whose EventIds have these bytes after the network id, in hexadecimal: 8 of the
    sort value, 8 of the controller, 4 of the stream."""
    size: Annotated[int, Parsed(_size, Annotated[int, Meta(ge=1, le=FIELDS_SIZE)])] = 8
    """Divide them by this many bytes after the prefix; by default 8, the sort value."""


class HashPartBody(Body, frozen=True):
    """Some of the events."""

    prefix: str
    """What their EventIds have after the network id, in hexadecimal."""
    count: Whole
    """How many there are."""
    sha256a: str
    """Their Sha256a, in upper-case hex."""


class FeedHashBody(Body, frozen=True):
    """The hash of events of the feed, and of parts of them."""

    epoch: str
    """The log's UUID."""
    upto: Whole
    """The events are those of positions up to and including this one."""
    count: Whole
    """How many there are."""
    sha256a: str
    """Their Sha256a, in upper-case hex."""
    parts: list[HashPartBody]
    """By the next bytes of their EventIds, ascending."""
    event_ids: list[str] | UnsetType = UNSET
    """The EventIds, in hexadecimal, if there are at most 1000."""


@endpoint("GET", "/ceramic/feed/sha256a", errors=(410,), own=True)
async def get_feed_hash(call: Call[HashQuery]) -> FeedHashBody:
    """Get the Sha256a of the feed's events, and of parts of them, to compare a copy.

    Takes about 3 s for a million events; 400 if they have more than 10,000 parts.
    """
    store, query = call.services.store, call.parameters
    check_epoch(store, query.epoch)
    upto = store.head if query.upto is None else query.upto
    if upto > store.head:
        raise bad_request(f"upto is {upto}, but the feed ends at position {store.head}")
    start = len(rendezvous(store.network))
    prefix = query.prefix or b""
    end = start + min(len(prefix) + query.size, FIELDS_SIZE)
    lower, upper = map(bytes, prefix_range(store.network, prefix))
    lanes: dict[bytes, int] = {}
    listed: list[bytes] = []
    while page := await store.reader.keys(lower, upper, upto, _PAGE):
        added = await call.services.in_thread(partial(_by_part, page, start, end))
        for part, more in added.items():
            lanes[part] = lanes.get(part, 0) + more
        if len(lanes) > MAX_ANSWER_PARTS:
            text = f"more than {MAX_ANSWER_PARTS} parts: divide them by a smaller `size`"
            raise bad_request(text)
        if len(listed) <= MAX_LISTED:
            listed += page
        lower = page[-1]
    parts = [HashPartBody(part.hex(), *_count_and_hash(sums)) for part, sums in lanes.items()]
    count, sha256a = _count_and_hash(sum(lanes.values()))
    ids = [event_id.hex() for event_id in listed] if len(listed) <= MAX_LISTED else UNSET
    return FeedHashBody(store.epoch, upto, count, sha256a, parts, ids)


def _count_and_hash(lanes: int) -> tuple[int, str]:
    return lanes >> COUNT_SHIFT, str(Sha256a.from_lanes(lanes))


def _by_part(keys: list[bytes], start: int, end: int) -> dict[bytes, int]:
    """Sum up the hashes of keys by some of their bytes."""
    lanes: dict[bytes, int] = {}
    for key in keys:
        part = key[start:end]
        lanes[part] = lanes.get(part, 0) + lanes_of(key)
    return lanes
