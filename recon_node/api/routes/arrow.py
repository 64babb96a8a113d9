"""GET /ceramic/feed/arrow: a range of the feed as an Arrow IPC stream, for bulk readers.

An IPC stream is a schema message, record batch messages and an end mark. Each message is made in a
worker thread and passed to the connection before the next page is read from the log. So a slow
reader slows the reading down, and at most one page is in memory.

The rows of (after, upto] are always the same, for all readers. A filter leaves some of them out and
does not change positions; the metadata of the stream's schema then name the filter, so that a
reader can recognize an older node, which ignores filters and serves everything. A filtered range
is searched in pieces, and each piece ends with a batch, even an empty one, so that neither side
mistakes a long search for a dead connection.

A reader that only wants to know which events are where asks for the column `event_cid`. No CAR is
read for it, so it takes a small part of the time.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache, partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BeforeValidator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError
from starlette.responses import Response, StreamingResponse

from recon_node.api.endpoint import Answer, Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import AsText, Binary, Parameters, WholeParameter
from recon_node.api.services import Services
from recon_node.ceramic import EventId, StreamId
from recon_node.store import FeedColumns, FeedFilter, Store

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

_PIECE = 20_000
"""Positions that are searched at a time."""

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def _given(text: str) -> str:
    if not text:
        raise PydanticCustomError("empty", "empty")
    return text


def _stream_id(text: str) -> StreamId:
    given = _given(text)
    try:
        return StreamId.parse(given)
    except ValueError as error:
        raise bad_request(f"streamId: {error}") from None


Filter = Annotated[str, BeforeValidator(_given)]


class ArrowQuery(Parameters, alias_generator=to_camel):
    """The range of the feed to read, and the filters."""

    after: WholeParameter = 0
    """Positions after this one; 0 by default."""
    upto: WholeParameter | None = None
    """Positions up to and including this one; the feed's head by default."""
    epoch: str | None = None
    """The log that the positions belong to: 410 when it is another."""
    sort_key: Filter | None = None
    """Only rows of streams with this sort key, such as `model`."""
    sort_value: Filter | None = None
    """Only with this sort value: text; a StreamID in base36, `k...`."""
    controller: Filter | None = None
    """Only with this controller, a DID."""
    stream_id: Annotated[StreamId, AsText, BeforeValidator(_stream_id)] | None = None
    """Only of this stream, as multibase text."""
    columns: Literal["all", "event_cid"] = "all"
    """`event_cid`: only the position and the CID of each event, without a filter."""


FILTERS: Final = ("sortKey", "sortValue", "controller", "streamId")


@endpoint(
    "GET",
    "/ceramic/feed/arrow",
    Answer("The rows.", Binary, media_type=MEDIA_TYPE),
    errors=(410,),
    own=True,
)
async def get_arrow(call: Call[ArrowQuery]) -> Response:
    """Read a range of the feed as an Arrow IPC stream.

    These are the rows after position `after` up to and with `upto`, of the log `epoch`.
    """
    services, given = call.services, call.parameters
    after, upto = _range(given, services.store)
    wanted = FeedFilter(given.sort_key, given.sort_value, given.controller, given.stream_id)
    if wanted and given.columns != "all":
        raise bad_request("columns: the CIDs alone are not filtered; leave out the filters")
    if call.request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    if given.columns == "event_cid":
        return await _answer(cid_stream(services, after, upto))
    if not wanted:
        await services.store.damage.check_range(after, upto)
    query = call.request.query_params
    filters = {name: query[name] for name in FILTERS if name in query}
    return await _answer(stream(services, after, upto, wanted, filters))


async def _answer(body: AsyncGenerator[bytes | memoryview]) -> Response:
    # An error here still becomes an error answer. Later, only the connection can be cut.
    first = [await anext(body), await anext(body)]
    return StreamingResponse(_join(first, body), media_type=MEDIA_TYPE)


async def stream(
    services: Services,
    after: int,
    upto: int,
    wanted: FeedFilter,
    filters: Mapping[str, str],
) -> AsyncGenerator[bytes | memoryview]:
    """The IPC stream of those rows (after, upto] that are wanted, a message at a time."""
    store, limits = services.store, services.limits
    yield await services.in_thread(partial(schema_message, filters))
    while after < upto:
        end = min(upto, after + _PIECE) if wanted else upto
        rows = await store.read_feed_columns(
            after, limits.arrow_rows, end, limits.arrow_bytes, wanted
        )
        if not wanted and (not rows.positions or rows.positions[0] != after + 1):
            raise RuntimeError(f"the feed holds no event at position {after + 1}")
        full = len(rows.cars) == limits.arrow_rows or _size(rows) >= limits.arrow_bytes
        after = rows.positions[-1] if full else end
        message = await services.in_thread(partial(record_batch, rows))
        del rows  # or a slow reader would hold the page twice
        yield message
    yield END_OF_STREAM


async def cid_stream(
    services: Services, after: int, upto: int
) -> AsyncGenerator[bytes | memoryview]:
    """The IPC stream of the positions (after, upto] and the CIDs of their events."""
    yield await services.in_thread(lambda: bytes(cid_schema().serialize()))
    while after < upto:
        end = min(upto, after + services.limits.arrow_rows)
        rows = await services.store.read_positions(after, end)
        if len(rows) != end - after:
            raise RuntimeError(f"the feed lacks some of the positions {after + 1} to {end}")
        event_ids = [row[1] for row in rows]
        yield await services.in_thread(partial(cid_batch, after, event_ids))
        after = end
    yield END_OF_STREAM


async def _join(
    first: Iterable[bytes | memoryview], rest: AsyncGenerator[bytes | memoryview]
) -> AsyncIterator[bytes | memoryview]:
    async with aclosing(rest):
        for message in first:
            yield message
        async for message in rest:
            yield message


@cache
def feed_schema() -> pa.Schema:
    """Return the columns of the feed.

    PyArrow is imported by the first request, in a thread: it takes 0.1 s and 40 MiB, which a node
    without bulk readers saves.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("position", pa.int64(), nullable=False),
            pa.field("event_id", pa.binary(), nullable=False),
            pa.field("event_cid", pa.binary(), nullable=False),
            pa.field("stream_cid", pa.binary(), nullable=False),
            pa.field("event_type", pa.utf8(), nullable=False),
            pa.field("car", pa.binary(), nullable=False),
            # Of time events only: the time of the anchor's block, in Unix seconds, and its chain.
            pa.field("time", pa.int64()),
            pa.field("chain_id", pa.utf8()),
            # Null if an earlier version of the node delivered the event.
            pa.field("delivered_at", pa.timestamp("ms", "UTC")),
        ]
    )


@cache
def cid_schema() -> pa.Schema:
    """Return the columns of a feed of CIDs."""
    import pyarrow as pa

    return pa.schema([feed_schema().field("position"), feed_schema().field("event_cid")])


def cid_batch(after: int, event_ids: Sequence[bytes]) -> memoryview:
    """Return one record batch message with the CIDs of the events after a position."""
    import pyarrow as pa

    columns = [
        pa.array(range(after + 1, after + 1 + len(event_ids)), pa.int64()),
        pa.array([bytes(EventId(event_id).event_cid) for event_id in event_ids], pa.binary()),
    ]
    return memoryview(pa.record_batch(columns, schema=cid_schema()).serialize())


def schema_message(filters: Mapping[str, str]) -> bytes:
    """Return the message that starts a stream, and names the filters that were applied."""
    named = {"filter": json.dumps(filters, sort_keys=True)} if filters else None
    message: bytes = feed_schema().with_metadata(named).serialize().to_pybytes()
    return message


def record_batch(rows: FeedColumns) -> memoryview:
    """Return one record batch message with a row for each event."""
    import pyarrow as pa

    columns = [
        pa.array(rows.positions, pa.int64()),
        pa.array(rows.event_ids, pa.binary()),
        pa.array(rows.event_cids, pa.binary()),
        pa.array(rows.stream_cids, pa.binary()),
        pa.array(rows.kinds, pa.utf8()),
        pa.array(rows.cars, pa.binary()),
        pa.array(rows.block_times, pa.int64()),
        pa.array(rows.chain_ids, pa.utf8()),
        pa.array(rows.delivered_at, pa.timestamp("ms", "UTC")),
    ]
    batch: pa.RecordBatch = pa.record_batch(columns, schema=feed_schema())
    return memoryview(batch.serialize())


def _range(given: ArrowQuery, store: Store) -> tuple[int, int]:
    if given.epoch not in (None, store.epoch):
        raise ApiError(
            HTTPStatus.GONE,
            f"the log {given.epoch} no longer exists; this node's log is {store.epoch}: positions "
            "in one mean nothing in the other; read again from position 0",
        )
    head, after = store.head, given.after
    upto = head if given.upto is None else given.upto
    if upto > head:
        raise bad_request(f"upto is {upto}, but the feed ends at position {head}")
    if after > upto:
        raise bad_request(f"after is {after}, which is past {upto}")
    return after, upto


def _size(rows: FeedColumns) -> int:
    return sum(map(len, rows.cars))
