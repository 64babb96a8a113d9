"""The feed as ranges of positions, for workers that read the rows of a range themselves.

Rows of the source "recon" go through Java to whoever wants them. If that is a Python worker that
writes them to files, the way there and back takes more time than everything that the worker does.
So the pipeline streams ranges, a few for each batch, and its workers read and write the rows of a
range in one go. The source "recon_ranges" has the options and the offsets of "recon", and so the
same batches: a checkpoint of either continues with the other.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_sink.source.data_source import ReconStreamReader, read_range
from spark_sink.source.options import RangePartition, SourceOptions

#: The fields of `RangePartition`.
_RANGES = pa.schema(
    [
        pa.field("after", pa.int64(), nullable=False),
        pa.field("upto", pa.int64(), nullable=False),
        pa.field("epoch", pa.utf8(), nullable=False),
    ]
)


class ReconRanges(DataSource):
    """The source "recon_ranges", which is only a stream."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "recon_ranges"

    def schema(self) -> StructType:
        """Return the columns of a range."""
        return from_arrow_schema(_RANGES)

    def streamReader(self, schema: StructType) -> "_RangesReader":  # noqa: N802
        """Return a reader of all ranges, including what is yet to come."""
        return _RangesReader(SourceOptions.parse(self.options))


class _RangesReader(ReconStreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the range."""
        assert isinstance(partition, RangePartition)
        yield pa.RecordBatch.from_pylist([asdict(partition)], _RANGES)


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads the rows of ranges. Can be sent to a worker.

    Args:
        options: those of the source that the ranges are from.
    """

    options: SourceOptions

    def rows(self, ranges: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges, in the schema `spark_sink.schema.FEED`.

        Raises:
            SinkError: as `Feed.read`.
        """
        for batch in ranges:
            for each in batch.to_pylist():
                yield from read_range(self.options.feed, RangePartition(**each))
