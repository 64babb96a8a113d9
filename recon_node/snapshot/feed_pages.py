"""Which position each event of a snapshot has in the feed of the node that made it.

Feed positions, and the times of time events and deliveries, belong to one node's log. With them, a
reader of that node's feed can start from the snapshot and go on behind the last position in it.
They are in pages, Parquet files named by the CID of their bytes, which the signed manifest lists:
each has the positions from one to another, all of them, sorted by EventId.

    feeds/CID.parquet     position: int64, event_id: binary, time: int64 or null (Unix seconds),
                          chain_id: string or null (CAIP-2),
                          delivered_at: int64 or null (Unix milliseconds),
                          fault: string or null (why a data event is invalid)

Pages of earlier versions lack `delivered_at` or `fault`, which then are null.

A new snapshot adds a page with the new positions. If the page before has less than twice as many,
the new one takes its place as well. So pages are few, and each position is written a few times.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from recon_node.ipld import CID
from recon_node.ipld.cid import RAW
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.root import FEEDS, SnapshotFeed, SnapshotPage

if TYPE_CHECKING:  # it takes a node 0.15 s to import, and most nodes make no snapshots
    import pyarrow as pa

MAX_ROWS: Final = 500_000
"""Positions of a page."""
MAX_PAGE: Final = 64 * 1024 * 1024
"""Bytes of a page."""
Row = tuple[int, bytes, int | None, str | None, int | None, str | None]
"""Position, EventId, time, chain, time of delivery, fault."""


class PageError(ValueError):
    """A page is damaged or something else."""


@cache
def _schema() -> pa.Schema:
    import pyarrow as pa

    always = {"position": pa.int64(), "event_id": pa.binary()}
    sometimes = {"time": pa.int64(), "chain_id": pa.string()}
    sometimes |= {"delivered_at": pa.int64(), "fault": pa.string()}
    fields = [pa.field(name, kind, nullable=False) for name, kind in always.items()]
    return pa.schema([*fields, *sometimes.items()])


def page_name(cid: CID) -> str:
    """Return the name of a page."""
    return f"{FEEDS}/{cid}.parquet"


def ranges_to_write(
    base: SnapshotFeed | None, head: int
) -> tuple[list[SnapshotPage], list[tuple[int, int]]]:
    """Return the pages that stay, and the positions (after, upto] of those to write, up to `head`.

    `base` is the feed of the snapshot to build on, from the same log.
    """
    stay = list(base.pages) if base is not None else []
    after = base.position if base is not None else 0
    while stay and head > after and stay[-1].positions < 2 * (head - after):
        if head - stay[-1].after > MAX_ROWS:
            break
        after = stay.pop().after
    return stay, list(pairwise([*range(after, head, MAX_ROWS), head]))


def encode_page(rows: Sequence[Row]) -> tuple[CID, bytes]:
    """Return a page and its CID."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = _schema()
    columns = list(zip(*sorted(rows, key=lambda row: row[1]), strict=True))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=schema)
    out = io.BytesIO()
    pq.write_table(
        table,
        out,
        compression="zstd",
        use_dictionary=["chain_id", "fault"],
        column_encoding={"event_id": "DELTA_BYTE_ARRAY", "delivered_at": "DELTA_BINARY_PACKED"},
    )
    data = out.getvalue()
    return CID.of(RAW, data), data


def read_pages(objects: Objects, feed: SnapshotFeed) -> Iterator[pa.Table]:
    """Yield the pages of a feed; see `read_page`."""
    for page in feed.pages:
        yield read_page(objects, page)


def read_page(objects: Objects, page: SnapshotPage) -> pa.Table:
    """Return a page of a feed, checked against its CID.

    Raises:
        ObjectError: it cannot be read.
        PageError: it is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = page_name(page.cid)
    if page.size > MAX_PAGE:
        limit = f"{page.size:,} bytes; {MAX_PAGE:,} is the limit"
        raise PageError(f"{name} in {objects.url} has {limit}")
    data = objects.get_range(name, 0, page.size)
    if not page.cid.matches(data):
        raise PageError(f"{name} in {objects.url} does not match its CID")
    try:
        return pq.read_table(io.BytesIO(data), schema=_schema())
    except (pa.ArrowInvalid, OSError) as error:
        raise PageError(f"{name} in {objects.url} is not a page: {error}") from None
