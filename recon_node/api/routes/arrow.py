"""The feed as an Arrow IPC stream, for bulk readers: GET /ceramic/feed/arrow, a range of it, and
POST /ceramic/feed/arrow, those of its events that are named.

An IPC stream is a schema message, record batch messages and an end mark. Each message is made in a
worker thread and passed to the connection before the next page is read from the log. So a slow
reader slows the reading down, and at most one page is in memory.

The rows of (after, upto] are always the same, for all readers. A filter leaves some of them out and
does not change positions; the metadata of the stream's schema then name the filter, so that a
reader can recognize an older node, which ignores filters and serves everything. A filtered range
is searched in pieces, and each piece ends with a batch, even an empty one, so that neither side
mistakes a long search for a dead connection.

A reader that only wants to know which events are where asks for columns other than `car`. No CAR is
read for them, so they take a small part of the time. Nodes deliver the same events in different
orders. So a reader may list a range of one node's feed, and ask other nodes for the events by their
CIDs: the first node gives the order, the others give the bytes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Final

from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import bad_request
from recon_node.api.models import (
    Binary,
    Parameters,
    Parsed,
    StreamedAnswer,
    WholeParameter,
    parsed_by,
)
from recon_node.api.routes.feed import check_epoch
from recon_node.api.routes.listings import FilterDid, FilterText, read_stream_filter
from recon_node.ceramic import Shard, StreamId
from recon_node.ipld import CID, CidError, read_cid
from recon_node.store import FeedColumns, FeedFilter, Store

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

_SEARCHED_AT_ONCE = 20_000
"""Positions that are searched at a time."""

MAX_CIDS: Final = 10_000
"""Events that one request may name."""
_COLUMNS: Final = {
    "position": "positions",
    "event_id": "event_ids",
    "event_cid": "event_cids",
    "stream_cid": "stream_cids",
    "event_type": "kinds",
    "car": "cars",
    "time": "block_times",
    "chain_id": "chain_ids",
    "delivered_at": "delivered_at",
    "fault": "faults",
}
"""The columns, and what they are of `FeedColumns`."""
_ALL: Final = frozenset(_COLUMNS)
_POSITION: Final = frozenset(["position"])
_CAR: Final = "car"

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def _columns(text: str) -> frozenset[str]:
    if text == "all":
        return _ALL
    names = frozenset(text.split(","))
    for name in sorted(names - _ALL):
        raise bad_request(f"columns: {name!r} is not a column; there are {', '.join(_COLUMNS)}")
    return names | _POSITION


class ColumnsQuery(Parameters, frozen=True, rename="camel"):
    """Which columns to read."""

    columns: Annotated[frozenset[str], Parsed(_columns)] = _ALL
    """Names of columns with commas between them, besides the position; all by default. Without
    `car` it is much quicker, and rows are not compared with their events."""


class ArrowQuery(ColumnsQuery, frozen=True, rename="camel"):
    """The range of the feed to read, and the filters."""

    after: WholeParameter = 0
    """Positions after this one; 0 by default."""
    upto: WholeParameter | None = None
    """Positions up to and including this one; the feed's head by default."""
    epoch: str | None = None
    """The log that the positions belong to: 410 when it is another."""
    sort_key: FilterText | None = None
    """Only rows of streams with this sort key, such as `model`."""
    sort_value: FilterText | None = None
    """Only with this sort value: text; a StreamID in base36, `k...`."""
    controller: FilterDid | None = None
    """Only with this controller, a DID."""
    stream_id: Annotated[StreamId, parsed_by(read_stream_filter, "streamId: ")] | None = None
    """Only of this stream, as multibase text."""
    controllers: Annotated[Shard, parsed_by(Shard.parse, "controllers: ")] | None = None
    """Only of controllers in this shard: `1/4`, or `00..3f`."""


FILTERS: Final = ("sortKey", "sortValue", "controller", "streamId", "controllers")


@endpoint(
    "GET",
    "/ceramic/feed/arrow",
    Answer("The rows.", Binary, media_type=MEDIA_TYPE),
    errors=(410,),
    own=True,
)
async def get_arrow(call: Call[ArrowQuery]) -> Response:
    """Read a range of the feed as an Arrow IPC stream.

    These are the rows after position `after` up to and with `upto`, of the log `epoch`; 410
    if that is not this log. Without the column `car` it takes a third to a half of the time.
    """
    services, parameters = call.services, call.parameters
    after, upto = _range(parameters, services.store)
    filters = ("sort_key", "sort_value", "controller", "stream_id", "controllers")
    wanted = FeedFilter(*(getattr(parameters, name) for name in filters))
    if not wanted and _CAR in parameters.columns:
        await services.store.damage.check_range(after, upto)
    query = call.request.query_params
    named = {name: query[name] for name in FILTERS if name in query}
    return await _answer(stream(services, after, upto, wanted, named, parameters.columns))


@endpoint(
    "POST",
    "/ceramic/feed/arrow",
    Answer("The rows.", Binary, media_type=MEDIA_TYPE),
    binary="The binary CIDs of at most 10,000 events, one directly after the other.",
    own=True,
    need="read",
)
async def post_arrow(call: Call[ColumnsQuery]) -> Response:
    """Read events of the feed, named by their CIDs, as an Arrow IPC stream.

    They come in the order of the body, with their positions here. Those that are not delivered
    here, or are damaged in the log, are left out.
    """
    cids = await call.services.in_thread(partial(_read_cids, call.body))
    return await _answer(stream_of(call.services, cids, call.parameters.columns))


def _read_cids(body: bytes) -> list[CID]:
    cids: list[CID] = []
    at = 0
    while at < len(body):
        if len(cids) == MAX_CIDS:
            raise bad_request(f"the body names more than {MAX_CIDS} events")
        try:
            cid, at = read_cid(body, at)
        except CidError as error:
            raise bad_request(f"the body should be binary CIDs and nothing else: {error}") from None
        cids.append(cid)
    return cids


async def _answer(body: AsyncGenerator[bytes | memoryview]) -> Response:
    # An error here still becomes an error answer. Later, only the connection can be cut.
    first = [await anext(body), await anext(body)]
    return StreamedAnswer(_join(first, body), media_type=MEDIA_TYPE)


async def stream(
    services: Services,
    after: int,
    upto: int,
    wanted: FeedFilter,
    filters: Mapping[str, str],
    columns: frozenset[str],
) -> AsyncGenerator[bytes | memoryview]:
    """The IPC stream of those rows (after, upto] that are wanted, a message at a time."""
    store, limits = services.store, services.limits
    cars = _CAR in columns
    yield await services.in_thread(partial(schema_message, columns, filters))
    while after < upto:
        end = min(upto, after + _SEARCHED_AT_ONCE) if wanted else upto
        async with services.reading_pages.taken():
            rows = await store.reader.feed_columns(
                after, limits.arrow_rows, end, limits.arrow_bytes, wanted, cars=cars
            )
            if not wanted and (not rows.positions or rows.positions[0] != after + 1):
                raise RuntimeError(f"the feed holds no event at position {after + 1}")
            full = len(rows.positions) == limits.arrow_rows or _size(rows) >= limits.arrow_bytes
            after = rows.positions[-1] if full else end
            message = await services.in_thread(partial(record_batch, rows, columns))
            del rows  # or a slow reader would hold the page twice
        yield message
        del message
    yield END_OF_STREAM


async def stream_of(
    services: Services, cids: Sequence[CID], columns: frozenset[str]
) -> AsyncGenerator[bytes | memoryview]:
    """The IPC stream of those events that are delivered, a message at a time."""
    store, limits = services.store, services.limits
    yield await services.in_thread(partial(schema_message, columns, {}))
    done = 0
    while done < len(cids):
        page = cids[done : done + limits.arrow_rows]
        async with services.reading_pages.taken():
            rows, count = await store.reader.columns_of(page, limits.arrow_bytes)
            message = await services.in_thread(partial(record_batch, rows, columns))
            is_empty = not rows.positions
            del rows  # as above
        done += count
        if not is_empty:
            yield message
        del message
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

    always = {"position": pa.int64(), "event_type": pa.utf8()}
    always |= dict.fromkeys(("event_id", "event_cid", "stream_cid", "car"), pa.binary())
    sometimes = {
        # Of time events only: the time of the anchor's block, in Unix seconds, and its chain.
        "time": pa.int64(),
        "chain_id": pa.utf8(),
        # Null if an earlier version of the node delivered the event.
        "delivered_at": pa.timestamp("ms", "UTC"),
        # Of badly signed data events only: what is wrong with the signature.
        "fault": pa.utf8(),
    }
    fields = always | sometimes
    return pa.schema([pa.field(name, fields[name], name in sometimes) for name in _COLUMNS])


@cache
def _schema(columns: frozenset[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field for field in feed_schema() if field.name in columns])


def schema_message(columns: frozenset[str], filters: Mapping[str, str]) -> bytes:
    """Return the message that starts a stream, and names the filters that were applied."""
    named = {"filter": json.dumps(filters, sort_keys=True)} if filters else None
    message: bytes = _schema(columns).with_metadata(named).serialize().to_pybytes()
    return message


def record_batch(rows: FeedColumns, columns: frozenset[str]) -> memoryview:
    """Return one record batch message with a row for each event."""
    import pyarrow as pa

    schema = _schema(columns)
    arrays = [pa.array(getattr(rows, _COLUMNS[field.name]), field.type) for field in schema]
    batch: pa.RecordBatch = pa.record_batch(arrays, schema=schema)
    return memoryview(batch.serialize())


def _range(query: ArrowQuery, store: Store) -> tuple[int, int]:
    check_epoch(store, query.epoch)
    head, after = store.head, query.after
    upto = head if query.upto is None else query.upto
    if upto > head:
        raise bad_request(f"upto is {upto}, but the feed ends at position {head}")
    if after > upto:
        raise bad_request(f"after is {after}, which is past {upto}")
    return after, upto


def _size(rows: FeedColumns) -> int:
    return sum(map(len, rows.cars))
