"""The Spark data source "recon": a node's event feed as a streaming or a batch table.

    events = spark.readStream.format("recon").option("url", "http://127.0.0.1:5101").load()

Any Spark whose Python has this package installed finds the source by its name (see
`spark_sink.source.registration`); elsewhere, call `spark.dataSource.register(ReconDataSource)`.

An offset is {epoch, position}: everything up to `position` of the node's log `epoch` has been read.
Spark's workers fetch the ranges of a batch (start, end] in parallel. The rows of a range never
change, so a replayed batch is the same batch. A stream waits for a node that is down; a node with
another log ends it with a `FeedChangedError`. `spark-sink run` can go over to another node, see
`spark_sink.run.follower`; this source reads one.
Spark's `commit` is not used: it comes late or never, and the node keeps its events anyway.

docs/tables.md lists the options, under "Reading the feed in your own Spark job". Unknown
options are refused, and so are filters that cannot match any event.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_sink.errors import FeedUnreachableError, SinkError
from spark_sink.schema import FEED
from spark_sink.source.feed_client import Feed, Head
from spark_sink.source.source_options import RangePartition, SourceOptions, check_schema

Offset = dict[str, Any]

_WAIT: Final = 0.5
"""Seconds to wait for an event before Spark learns that there is none. A stop takes as long."""


class ReconDataSource(DataSource):
    """The source "recon"."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "recon"

    def schema(self) -> StructType:
        """Return `spark_sink.schema.FEED` as a Spark schema."""
        return from_arrow_schema(FEED)

    def reader(self, schema: StructType) -> "ReconBatchReader":
        """Return a reader of everything up to the end, by default the feed's current head."""
        check_schema(self, schema)
        return ReconBatchReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "ReconStreamReader":  # noqa: N802
        """Return a reader of everything, including what is yet to come."""
        check_schema(self, schema)
        return ReconStreamReader(SourceOptions.parse(self.options))


class ReconBatchReader(DataSourceReader):
    """Reads the feed once, from its start to its end."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to fetch."""
        head = self._options.feed.head()
        return [*self._options.ranges(*self._options.span(head), head.epoch)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; none if there is nothing to read."""
        if not isinstance(partition, RangePartition):  # Spark's own, in place of no partitions
            return iter(())
        return read_range(self._options.feed, partition)


class ReconStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the feed as a stream of batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._feed = options.feed
        # Of a stream that ends: where the feed ended when it began, and where reading ends.
        self._ended: Head | None = None
        self._last: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        head = self._feed.head()
        return {"epoch": head.epoch, "position": self._options.start(head)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return `maxRowsPerBatch`."""
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch, or `start` if nothing new arrives for a while.

        Raises:
            FeedChangedError: the feed does not continue `start`.
            SinkError: an end is given, but the stream has none.
        """
        if self._options.ends is not None and self._last is None:
            raise SinkError(
                f"{self._options.ends} is for spark.read and for trigger(availableNow=True): any "
                "other stream goes on without end; leave it out"
            )
        epoch, position = str(start["epoch"]), int(start["position"])
        head = self._head({"after": position, "wait": _WAIT})
        if head is None:
            time.sleep(_WAIT)
            return start
        self._feed.check(position, epoch, head)
        last = head.head if self._last is None else self._last
        if isinstance(limit, ReadMaxRows):
            last = min(last, position + limit.max_rows)
        return {"epoch": epoch, "position": last} if last > position else start

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the end, by default the current head.

        Raises:
            FeedUnreachableError: the node does not answer, so the query cannot know where to end.
            SinkError: the feed has no such end.
        """
        self._ended = self._feed.head()
        self._last = self._options.end(self._ended)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """Return the head, for Spark's progress report."""
        try:
            head = self._head()
        except SinkError:
            return None
        return None if head is None else {"epoch": head.epoch, "position": head.head}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the ranges of a batch."""
        # Queries could once read several nodes. The checkpoint of such a query may end with a batch
        # that was left empty, and that began at `after`.
        after = int(start["after"] if "after" in start else start["position"])
        return [*self._options.ranges(after, int(end["position"]), str(end["epoch"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; the node may restart meanwhile."""
        assert isinstance(partition, RangePartition)
        return read_range(self._feed, partition)

    def stop(self) -> None:
        """Close the connection."""
        self._feed.close()

    def _head(self, long_poll: Mapping[str, float] | None = None) -> Head | None:
        """Where the feed ends; None if the node does not answer."""
        if self._ended is not None:
            return self._ended
        try:
            return self._feed.head(patience=0, long_poll=long_poll)
        except FeedUnreachableError:
            return None


def read_range(feed: Feed, partition: RangePartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range; then close the connection.

    Raises:
        SinkError: as `Feed.read`.
    """
    try:
        yield from feed.read(partition.after, partition.upto, partition.epoch)
    finally:
        feed.close()


def lag(progress: Mapping[str, Any]) -> int | None:
    """Return how many positions a query is behind its node.

        lag(query.lastProgress["sources"][0])

    None if the node does not answer, or now has another log than the one that was read.
    """
    ends = [progress.get(name) for name in ("endOffset", "latestOffset")]
    end, latest = (json.loads(end) if isinstance(end, str) else end for end in ends)
    if not end or not latest or end["epoch"] != latest["epoch"]:
        return None
    return max(0, int(latest["position"]) - int(end["position"]))
