"""The Spark data source "recon": a node's event feed as a streaming or a batch table.

    spark.dataSource.register(ReconDataSource)
    events = spark.readStream.format("recon").option("url", "http://127.0.0.1:5101").load()

An offset is {epoch, position}: everything up to `position` of the node's log `epoch` was read. A
batch (start, end] is cut into ranges that Spark's workers fetch side by side; the rows of a range
never change, so a replayed batch is the same batch. A node that is away for a while makes a stream
wait; a node with another log ends it with a `FeedChangedError`. `commit` is of no use here: it
arrives late or not at all, and the node keeps its events anyway.

Options:

| option | default | |
|---|---|---|
| url | | the node's HTTP API; required |
| token | | what the node's API asks for, if it does |
| startingOffset | earliest | earliest, latest, or a position: the rows after it are read |
| maxRowsPerBatch | 10000 | rows of a streaming batch |
| partitions | 2 | ranges of a batch that are fetched at once |
| patience | 120 | seconds to wait for a node that does not answer, before the query fails |
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar

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
from spark_sink.feed import PATIENCE, Feed, Head
from spark_sink.schema import FEED

MAX_ROWS_PER_BATCH: Final = 10_000
PARTITIONS: Final = 2
# Below this a range is not cut further: one more request would cost more than it saves.
_MIN_RANGE: Final = 500

_Number = TypeVar("_Number", int, float)

_SPARK_TYPES: Final = {pa.int64(): LongType(), pa.string(): StringType(), pa.binary(): BinaryType()}


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """The positions (after, upto] of the log `epoch`."""

    after: int
    upto: int
    epoch: str


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one `load()`, checked."""

    feed: Feed
    starting_offset: str | int
    max_rows: int
    partitions: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Check the options as Spark hands them over: text, names in any case.

        Raises:
            SinkError: the url is missing, or a value is not of the right kind.
        """
        given = {name.lower(): value for name, value in options.items()}
        url = given.get("url", "")
        if not url.startswith(("http://", "https://")):
            raise SinkError(
                "the source 'recon' needs the option url, as in http://127.0.0.1:5101; "
                f"it is {url!r}"
            )
        start = given.get("startingoffset", "earliest")
        return cls(
            feed=Feed(url, _number(given, "patience", PATIENCE, float), given.get("token")),
            starting_offset=start
            if start in ("earliest", "latest")
            else _number(given, "startingOffset", 0, int),
            max_rows=_number(given, "maxRowsPerBatch", MAX_ROWS_PER_BATCH, int, least=1),
            partitions=_number(given, "partitions", PARTITIONS, int, least=1),
        )

    def start(self, head: Head) -> int:
        """The position after which reading starts."""
        if self.starting_offset == "latest":
            return head.head
        if self.starting_offset == "earliest":
            return head.low
        position = int(self.starting_offset)
        self.feed.check(position, head.epoch, head)
        return position

    def ranges(self, after: int, upto: int, epoch: str) -> list[RangePartition]:
        """(after, upto] as at most `partitions` ranges of about the same size."""
        count = max(1, min(self.partitions, (upto - after) // _MIN_RANGE))
        cuts = [after + (upto - after) * i // count for i in range(count + 1)]
        return [RangePartition(low, high, epoch) for low, high in pairwise(cuts) if low < high]


class ReconDataSource(DataSource):
    """The source "recon"; see the module's description for its options."""

    @classmethod
    def name(cls) -> str:
        """What `format()` takes."""
        return "recon"

    def schema(self) -> StructType:
        """The columns of `spark_sink.schema.FEED`, none nullable."""
        return StructType(
            [StructField(field.name, _SPARK_TYPES[field.type], nullable=False) for field in FEED]
        )

    def reader(self, schema: StructType) -> "ReconBatchReader":
        """Everything up to the feed's head at the time of the call."""
        return ReconBatchReader(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> "ReconStreamReader":  # noqa: N802
        """Everything, and what comes."""
        return ReconStreamReader(SourceOptions.parse(self.options))


class ReconBatchReader(DataSourceReader):
    """One look at the feed: from the starting offset to the head."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        """The ranges to fetch."""
        head = self.options.feed.head()
        return [*self.options.ranges(self.options.start(head), head.head, head.epoch)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        return _read(self.options.feed, partition)


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


def _read(feed: Feed, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, RangePartition)
    try:
        yield from feed.read(partition.after, partition.upto, partition.epoch)
    finally:
        feed.close()


def _offset(epoch: str, position: int) -> dict[str, Any]:
    return {"epoch": epoch, "position": position}


def _number(
    given: Mapping[str, str],
    name: str,
    default: _Number,
    kind: Callable[[str], _Number],
    least: int = 0,
) -> _Number:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        raise SinkError(f"the option {name} must be a number, not {text!r}") from None
    if value < least:
        raise SinkError(f"the option {name} must be at least {least}, not {text}")
    return value
