"""The Spark data source "recon": a node's event feed as a streaming or a batch table.

    events = spark.readStream.format("recon").option("url", "http://127.0.0.1:5101").load()

The source registers itself in every Spark whose Python has this package installed (see
`spark_sink.source.registration`); elsewhere `spark.dataSource.register(ReconDataSource)` does it.

An offset is {epoch, position}: everything up to `position` of the node's log `epoch` was read. A
batch (start, end] is cut into ranges that Spark's workers fetch side by side; the rows of a range
never change, so a replayed batch is the same batch. A node that is away for a while makes a stream
wait; a node with another log ends it with a `FeedChangedError`. `commit` is of no use here: it
arrives late or not at all, and the node keeps its events anyway. With several nodes, see
`spark_sink.source.failover`.

Options:

| option | default | |
|---|---|---|
| url | | the node's HTTP API, or those of several nodes of one set, with commas between; required |
| token | | what the node's API asks for, if it does |
| startingOffset | earliest | earliest, latest, or a position: the rows after it are read |
| maxRowsPerBatch | 10000 | positions of a streaming batch; filters may leave fewer rows |
| partitions | 2 | ranges of a batch that are fetched at once |
| sortKey, sortValue, controller, streamId | | only rows of such streams; left out by the node |
| patience | 120 | seconds to wait for a node that does not answer, before the query fails |
| failoverAfter | 30 | the same, with several nodes, before another one is read |

Any other option is refused, and so is a filter that fits no event whatever the node has.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from spark_sink.errors import FeedUnreachableError, SinkError
from spark_sink.schema import FEED
from spark_sink.source.failover import FailOver, Nodes
from spark_sink.source.feed import Feed, Head
from spark_sink.source.options import RangePartition, SourceOptions

_SPARK_TYPES: Final = {pa.int64(): LongType(), pa.string(): StringType(), pa.binary(): BinaryType()}


class ReconDataSource(DataSource):
    """The source "recon"; see the module's description for its options."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "recon"

    def schema(self) -> StructType:
        """The columns of `spark_sink.schema.FEED`."""
        return StructType(
            [StructField(field.name, _SPARK_TYPES[field.type], field.nullable) for field in FEED]
        )

    def reader(self, schema: StructType) -> "ReconBatchReader":
        """Everything up to the feed's head at the time of the call."""
        return ReconBatchReader(SourceOptions.parse(self.options))

    def streamReader(  # noqa: N802
        self, schema: StructType
    ) -> "ReconStreamReader | FailOverReader":
        """Everything, and what comes."""
        options = SourceOptions.parse(self.options)
        return FailOverReader(options) if len(options.feeds) > 1 else ReconStreamReader(options)


class ReconBatchReader(DataSourceReader):
    """One look at the feed: from the starting offset to the head.

    Of several nodes, the first one that answers is read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges to fetch."""
        several = len(self.options.feeds) > 1
        feed = self.options.feed
        head = Nodes(self.options.feeds).await_any(feed.patience) if several else feed.head()
        return [*self.options.ranges(self.options.start(head), head.head, head.epoch)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        if len(self.options.feeds) == 1:
            return _read(self.options.feed, partition)
        assert isinstance(partition, RangePartition)
        return Nodes(self.options.feeds).read(partition, self.options.feed.patience)


class ReconStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The feed as a stream of batches."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._target: Head | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts."""
        head = self.options.feed.head()
        return _offset(head.epoch, self.options.start(head))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerBatch`."""
        return ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself while there is nothing new or no node.

        Raises:
            FeedChangedError: the feed does not continue `start`.
        """
        epoch, position = str(start["epoch"]), int(start["position"])
        try:
            head = self._target or self.options.feed.head(patience=0)
        except FeedUnreachableError:
            return start
        self.options.feed.check(position, epoch, head)
        end = head.head
        if isinstance(limit, ReadMaxRows):
            end = min(end, position + limit.max_rows)
        return _offset(epoch, end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the head is now.

        Raises:
            FeedUnreachableError: there is no node to ask, so the query could not know its end.
        """
        self._target = self.options.feed.head()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The head, for Spark's own progress report."""
        try:
            head = self._target or self.options.feed.head(patience=0)
        except SinkError:
            return None
        return _offset(head.epoch, head.head)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a batch."""
        epoch = str(end["epoch"])
        return [*self.options.ranges(int(start["position"]), int(end["position"]), epoch)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range; a node's restart in between goes unnoticed."""
        return _read(self.options.feed, partition)

    def stop(self) -> None:
        """Close the connection."""
        self.options.feed.close()


class FailOverReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The feeds of several nodes of one set as a stream of batches, each event at least once.

    See `spark_sink.source.failover`.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._nodes = Nodes(options.feeds)
        self._plan = FailOver(self._nodes, options.failover_after)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint starts: in the log of the first node that answers."""
        head = self._nodes.await_any(self.options.feed.patience)
        position = self.options.start(head)
        return {"epoch": head.epoch, "position": position, "after": position}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerBatch`."""
        return ReadMaxRows(self.options.max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself while there is nothing new or no node.

        Raises:
            FeedChangedError: the log that was read was cut.
        """
        if "after" not in start:  # of a query that was begun with one url
            start = {**start, "after": start["position"]}
        return self._plan.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read no further than the heads are now.

        Raises:
            FeedUnreachableError: there is no node to ask, so the query could not know its end.
        """
        self._plan.only_up_to_now()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The head, for Spark's own progress report."""
        try:
            found = self._nodes.find()
        except SinkError:
            return None
        return None if found is None else _offset(found[1].epoch, found[1].head)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The ranges of a batch; none when the log is gone."""
        return [*self._plan.ranges({"after": start["position"], **end}, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, RangePartition)
        try:
            yield from self._nodes.read(partition, self.options.failover_after)
        finally:
            self._nodes.close()

    def stop(self) -> None:
        """Close the connections."""
        self._nodes.close()


def lag(progress: Mapping[str, Any]) -> int | None:
    """How many positions a query is behind its node, from a source of `StreamingQuery`'s progress.

        lag(query.lastProgress["sources"][0])

    None while the node does not answer, and when its log is another one than was read.
    """
    ends = [progress.get(name) for name in ("endOffset", "latestOffset")]
    end, latest = (json.loads(each) if isinstance(each, str) else each for each in ends)
    if not end or not latest or end["epoch"] != latest["epoch"]:
        return None
    return max(0, int(latest["position"]) - int(end["position"]))


def _read(feed: Feed, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, RangePartition)
    try:
        yield from feed.read(partition.after, partition.upto, partition.epoch)
    finally:
        feed.close()


def _offset(epoch: str, position: int) -> dict[str, Any]:
    return {"epoch": epoch, "position": position}
