"""GET /ceramic/feed/arrow: a range of the feed as an Arrow IPC stream, for bulk readers.

An IPC stream is a schema message, record batch messages and an end mark, one after another; each
of them is made on its own in a worker thread and handed to the connection before the next page is
read from the log. So a slow reader slows the reading down, and no more than one page is in memory.

The rows of (after, upto] are the same for ever, whoever asks and whenever. A filter leaves some of
them out and changes no position; the metadata of the stream's schema then name it, so that a reader
can tell from an earlier node, which does not know filters and serves everything. A filtered range
is looked through piece by piece, and each piece ends with a batch, be it empty: so neither side
takes a long search for a dead connection.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial
from http import HTTPStatus

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.query import int_param
from recon_node.api.services import Limits, Services
from recon_node.api.threads import in_thread
from recon_node.ceramic import StreamId
from recon_node.store import FeedColumns, FeedFilter, Store

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

SCHEMA = pa.schema(
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
    ]
)

FILTERS = ("sortKey", "sortValue", "controller", "streamId")
_PIECE = 20_000
"""Positions that are looked through at once."""

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


async def get_arrow(request: Request) -> Response:
    """The feed's rows after position `after` up to and with `upto`, of the log `epoch`."""
    services: Services = request.app.state.services
    after, upto = _range(request, services.store)
    wanted = _filter(request)
    if request.method == "HEAD":
        return Response(media_type=MEDIA_TYPE)
    if not wanted:
        await services.store.damage.check_range(after, upto)
    body = stream(services.store, services.limits, after, upto, wanted, _schema(request))
    # What fails at once is answered as an error. Later on the connection is all that can be cut.
    first = [await anext(body), await anext(body)]
    return StreamingResponse(_join(first, body), media_type=MEDIA_TYPE)


async def stream(
    store: Store,
    limits: Limits,
    after: int,
    upto: int,
    wanted: FeedFilter = FeedFilter(),  # noqa: B008 - a value, and immutable
    schema: pa.Schema = SCHEMA,
) -> AsyncGenerator[bytes | memoryview]:
    """The IPC stream of those rows (after, upto] that are wanted, a message at a time."""
    yield schema.serialize().to_pybytes()
    while after < upto:
        end = min(upto, after + _PIECE) if wanted else upto
        rows = await store.read_feed_columns(
            after, limits.arrow_rows, end, limits.arrow_bytes, wanted
        )
        if not wanted and (not rows.positions or rows.positions[0] != after + 1):
            raise RuntimeError(f"the feed holds no event at position {after + 1}")
        full = len(rows.cars) == limits.arrow_rows or _size(rows) >= limits.arrow_bytes
        after = rows.positions[-1] if full else end
        message = await in_thread(partial(record_batch, rows))
        del rows  # a slow reader shall not hold the page twice
        yield message
    yield END_OF_STREAM


async def _join(
    first: Iterable[bytes | memoryview], rest: AsyncGenerator[bytes | memoryview]
) -> AsyncIterator[bytes | memoryview]:
    async with aclosing(rest):
        for message in first:
            yield message
        async for message in rest:
            yield message


def record_batch(rows: FeedColumns) -> memoryview:
    """One record batch message with a row for each event."""
    columns = [
        pa.array(rows.positions, pa.int64()),
        pa.array(rows.event_ids, pa.binary()),
        pa.array(rows.event_cids, pa.binary()),
        pa.array(rows.stream_cids, pa.binary()),
        pa.array(rows.kinds, pa.utf8()),
        pa.array(rows.cars, pa.binary()),
        pa.array(rows.block_times, pa.int64()),
        pa.array(rows.chain_ids, pa.utf8()),
    ]
    batch: pa.RecordBatch = pa.record_batch(columns, schema=SCHEMA)
    return memoryview(batch.serialize())


def _schema(request: Request) -> pa.Schema:
    """The schema of an answer, which names the filters that were applied."""
    named = {name: request.query_params[name] for name in FILTERS if name in request.query_params}
    return SCHEMA.with_metadata({"filter": json.dumps(named, sort_keys=True)} if named else None)


def _range(request: Request, store: Store) -> tuple[int, int]:
    epoch = request.query_params.get("epoch")
    if epoch is not None and epoch != store.epoch:
        raise ApiError(
            HTTPStatus.GONE,
            f"the log {epoch} is gone, this node's log is {store.epoch}: positions of the one mean "
            "nothing in the other; read again from position 0",
        )
    head = store.head
    after = int_param(request, "after", 0)
    upto = int_param(request, "upto", head)
    if upto > head:
        raise bad_request(f"upto is {upto}, but the feed ends at position {head}")
    if after > upto:
        raise bad_request(f"after is {after}, which is past {upto}")
    return after, upto


def _size(rows: FeedColumns) -> int:
    return sum(map(len, rows.cars))


def _filter(request: Request) -> FeedFilter:
    sort_key, sort_value, controller, stream = map(request.query_params.get, FILTERS)
    for name in FILTERS:
        if request.query_params.get(name) == "":
            raise bad_request(f"{name} cannot be empty: leave it out, to take them all")
    try:
        stream_id = None if stream is None else StreamId.parse(stream)
    except ValueError as error:
        raise bad_request(f"streamId: {error}") from None
    return FeedFilter(sort_key, sort_value, controller, stream_id)
