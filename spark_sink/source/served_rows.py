"""The rows of a feed as a node serves them: read at the pace at which they come, and judged.

A node may be anybody's. What would stop a reader of the tables for good is refused here.
"""

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pyarrow as pa
import pyarrow.compute as pc

from spark_sink.errors import FeedRefusedError
from spark_sink.schema import FEED

EVENT_CID: Final = "event_cid"
POSITION: Final = "position"
CIDS: Final = pa.schema([FEED.field(POSITION), FEED.field(EVENT_CID)])
# Nodes that do not note when they delivered an event, or deliver valid events only, serve their
# feed without these.
_NEW_COLUMNS: Final = frozenset({"delivered_at", "fault"})
_MAX_BATCH: Final = 8 * 1024 * 1024
"""Bytes of a batch of a node, and some more."""
_SLOWEST: Final = 16 * 1024
"""Bytes a second at which a batch may arrive for longer than an answer may take."""


class ResponseBody(io.RawIOBase):
    """A response's body as a file for the Arrow reader. What is read next has to come in `seconds`,
    or in more if it is no more than a batch and comes at some pace."""

    def __init__(self, response: httpx.Response, seconds: float) -> None:
        self._seconds = seconds
        self.wait()
        self._chunks = response.iter_raw()
        self._rest = memoryview(b"")

    def wait(self) -> None:
        """Wait for the next rows, until the time is up."""
        self._since, self._received = time.monotonic(), 0

    def _is_late(self) -> bool:
        seconds = time.monotonic() - self._since
        comes = _SLOWEST * seconds < self._received < _MAX_BATCH
        return seconds > self._seconds and not comes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        while not self._rest:
            if self._is_late():
                raise httpx.ReadTimeout("timed out")
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._received += len(chunk)
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


@dataclass(frozen=True, slots=True)
class RowChecks:
    """Checks the rows that the node at `url` serves with some filters."""

    url: str
    filters: Mapping[str, str]

    def check_filters(self, schema: pa.Schema) -> None:
        """Check that the node has left out what does not match.

        Raises:
            FeedRefusedError: it does not know the filters.
        """
        applied = (schema.metadata or {}).get(b"filter", b"{}")
        if json.loads(applied) != self.filters:
            raise FeedRefusedError(
                f"the node at {self.url} does not know the filters {', '.join(self.filters)}: use "
                "a node and a pipeline of the same version, or no filter"
            )

    def checked(
        self, batch: pa.RecordBatch, after: int, upto: int, columns: pa.Schema
    ) -> pa.RecordBatch:
        """Return the next rows of the positions (after, upto], in the schema `columns`.

        Raises:
            FeedRefusedError: they are others, or not what such rows are.
        """
        if batch.num_rows > upto - after:
            raise self._misplaced(f"{batch.num_rows} rows", after, upto)
        checked = self._shaped(batch, columns)
        positions = checked.column("position")
        first, last = positions[0].as_py(), positions[-1].as_py()
        right = _ascends(positions) and after < first and last <= upto
        # Ascending integers have no gaps if their count equals the distance between their ends.
        if not right or not (self.filters or last == after + len(positions)):
            raise self._misplaced(f"the positions {first} to {last}", after, upto)
        for field, column in zip(columns, checked.columns, strict=True):
            if column.null_count and not field.nullable:
                raise self._unexpected(f"a null in {field.name}")
        if columns == FEED:
            self._check_values(checked)
        return checked

    def _check_values(self, rows: pa.RecordBatch) -> None:
        """Check what would stop a reader of the tables for good."""
        if pc.min(pc.binary_length(rows.column("stream_cid"))).as_py() == 0:
            raise self._unexpected("an empty stream_cid")
        try:
            pc.min_max(rows.column("delivered_at")).as_py()
        except (OverflowError, ValueError) as error:
            raise self._unexpected(f"delivered_at: {error}") from None

    def _misplaced(self, what: str, after: int, upto: int) -> FeedRefusedError:
        return FeedRefusedError(
            f"the node at {self.url} served {what} instead of {after + 1} to {upto}: is it a "
            "recon-node, and is it undamaged?"
        )

    def _shaped(self, batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
        try:
            batch.validate(full=True)  # or reading it could read beyond its memory
            arrays = [_column_of(batch, field) for field in columns]
            return pa.RecordBatch.from_arrays(arrays, schema=columns)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise self._unexpected(str(error)) from None

    def _unexpected(self, what: str) -> FeedRefusedError:
        return FeedRefusedError(
            f"the feed of the node at {self.url} has unexpected columns ({what}): use a node "
            "and a pipeline of the same version"
        )


def last_position(batch: pa.RecordBatch) -> int:
    """Return the position of a batch's last row."""
    return int(batch.column(POSITION)[-1].as_py())


def _column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return a column of the feed; nulls for one that older nodes do not know."""
    if field.name in _NEW_COLUMNS and field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    column = batch.column(field.name)
    # Each row of a dictionary or of a view may have the same large value.
    if column.type.id != field.type.id:
        raise pa.ArrowInvalid(f"{field.name} is a {column.type}")
    return column.cast(field.type)


def _ascends(positions: pa.Array) -> bool:
    """Return whether each position is greater than the previous one and none is null."""
    steps = pc.less(positions[:-1], positions[1:])
    return positions.null_count == 0 and bool(pc.all(steps, min_count=0).as_py())
