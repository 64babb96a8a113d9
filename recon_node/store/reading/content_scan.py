"""Streams in whose events texts occur, found by looking at the events.

No index has what documents hold: it would have to be kept by every node for a few. So a bounded
part of the log is looked through for each page; what the streams hold at their tips is for others
to compute (`recon_node.api.routes.listings`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from recon_node.store.reading import Reader
from recon_node.store.reading.stream_lists import (
    ListedStream,
    StreamFilter,
    StreamPage,
    read_streams,
)

_SIGNED: Final = (
    "FROM events INDEXED BY by_stream CROSS JOIN cars USING (id) "
    "WHERE stream = ? AND position IS NOT NULL AND kind <> 'time'"
)
_MAX_SCANNED: Final = 1000
"""Streams in which texts are looked for, for one page."""
_MAX_SCANNED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of their events, but for those of the last one."""
_OF_A_ROW: Final = 100
"""Bytes that it counts to look up an event."""


def read_streams_with(
    reader: Reader,
    wanted: StreamFilter,
    texts: Collection[str],
    before: int | None,
    limit: int,
    max_bytes: int,
) -> StreamPage:
    """Return the latest streams that match a filter and in whose signed events each text occurs.

    They are found by looking at the events: a page ends after 1,000 streams or 16 MiB at the
    latest, so it may have few streams, or none, while there is a following one. What occurs in the
    content at any time occurs in an event, as DAG-CBOR has texts as they are. Streams whose events
    have more than `max_bytes` are left out.
    """
    page = read_streams(reader, wanted, before, _MAX_SCANNED)
    matching: list[ListedStream] = []
    left = _MAX_SCANNED_BYTES
    for stream in page.streams:
        size = _size_of(reader, stream)
        if size <= max_bytes and _has_texts(reader, stream, texts):
            matching.append(stream)
        left -= size + _OF_A_ROW * stream.events
        if (left <= 0 or len(matching) >= limit) and stream is not page.streams[-1]:
            return StreamPage(matching, page.total, stream.row)
    return StreamPage(matching, page.total, page.next)


def _size_of(reader: Reader, stream: ListedStream) -> int:
    sql = f"SELECT coalesce(sum(length(car)), 0) {_SIGNED}"
    return int(reader.connection.execute(sql, (stream.row,)).fetchone()[0])


def _has_texts(reader: Reader, stream: ListedStream, texts: Collection[str]) -> bool:
    """Whether each text occurs in an event. CARs are looked at as they are stored: only blocks of
    capabilities are cut out of them."""
    sql = f"SELECT 1 {_SIGNED} AND instr(car, ?) LIMIT 1"
    return all(
        reader.connection.execute(sql, (stream.row, text.encode())).fetchone() is not None
        for text in texts
    )
