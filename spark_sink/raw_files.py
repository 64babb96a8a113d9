"""Reading `raw_events` back: the files of one of its versions, as driver and workers read them.

The driver lists the files once a step; whoever computes a part of the step reads from them what it
needs, without a look at the table's log. Of each file it is known which positions are in it, and
for Delta also which partition, so that most files are not opened. Within a file rows are sorted by
stream, so that Parquet's statistics leave out nearly all of it when few streams are asked for.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_sink.errors import TablesError
from spark_sink.schema import RAW_EVENTS, partition_of
from spark_sink.streams import COLUMNS

# Each stream that is asked for by itself is another look at the statistics of each row group.
_FEW_STREAMS: Final = 32


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file of `raw_events`, and the least and the largest position in it; `partition` is None
    where it has rows of all."""

    path: Path
    partition: int | None
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RawFiles:
    """All files of `raw_events`. Can be sent to a worker.

    Its methods raise TablesError where a file is not there or damaged.
    """

    files: tuple[RawFile, ...]

    def streams_between(
        self, after: int, upto: int, partitions: Collection[int] | None = None
    ) -> list[bytes]:
        """The streams with events at the positions (after, upto], of some partitions or all."""
        between = (pc.field("position") > after) & (pc.field("position") <= upto)
        files = [f for f in self._files(partitions, upto) if f.last > after]
        found = _select(files, ["stream_cid"], between)["stream_cid"].unique().to_pylist()
        return sorted(c for c in found if partitions is None or partition_of(c) in partitions)

    def events_of(self, streams: Iterable[bytes], upto: int) -> pa.Table:
        """What `read_streams` needs of these streams, up to a position."""
        wanted = sorted(set(streams))
        files = self._files({partition_of(cid) for cid in wanted}, upto)
        return _select(files, list(COLUMNS), (pc.field("position") <= upto) & _one_of(wanted))

    def _files(self, partitions: Collection[int] | None, upto: int) -> list[RawFile]:
        return [
            file
            for file in self.files
            if file.first <= upto
            and (partitions is None or file.partition is None or file.partition in partitions)
        ]


def _one_of(streams: list[bytes]) -> pc.Expression:
    stream = pc.field("stream_cid")
    if not streams:
        return pc.scalar(False)
    if len(streams) > _FEW_STREAMS:
        return stream.isin(pa.array(streams, pa.binary()))
    return reduce(or_, (stream == pa.scalar(cid, pa.binary()) for cid in streams))


def _select(files: list[RawFile], columns: list[str], where: Any) -> pa.Table:
    try:
        dataset = ds.dataset([str(f.path) for f in files], schema=RAW_EVENTS, format="parquet")
        return dataset.to_table(columns=columns, filter=where)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())
        raise TablesError(f"cannot read the files of raw_events: {reason}") from error
