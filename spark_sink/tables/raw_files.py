"""Reading `raw_events` back: the files of one of its versions, as driver and workers read them.

The driver lists the files once a step; whoever computes a part of the step reads from them what it
needs, without a look at the table's log. Of each file it is known which positions are in it, and
for Delta also which partition, so that most files are not opened. Within a file rows are sorted by
stream, so that Parquet's statistics leave out nearly all of it when few streams are asked for, or
many that are next to each other.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_sink.errors import cannot_read
from spark_sink.schema import HISTORY_COLUMNS, RAW_EVENTS, partition_of

# No fewer streams are read at once, however large they are.
_FEW_STREAMS: Final = 32
# Bytes in files, of streams that are read at once.
_AT_ONCE: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file of `raw_events` of so many bytes, and the least and the largest position in it;
    `partition` is None where it has rows of all."""

    path: Path
    partition: int | None
    first: int
    last: int
    size: int


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

    def bytes_between(self, after: int, upto: int) -> int:
        """What the events at the positions (after, upto] take in files, and what is with them."""
        return sum(file.size for file in self._files(None, upto) if file.last > after)

    def pieces(self, streams: Sequence[bytes], upto: int) -> list[list[bytes]]:
        """Streams whose events, up to a position, can be in memory at once; few streams can."""
        by_partition = _by_partition(streams)
        size = sum(file.size for file in self._files(by_partition, upto))
        number = max(1, min(size // _AT_ONCE, len(streams) // _FEW_STREAMS))
        ordered = [cid for some in by_partition.values() for cid in some]
        ends = [len(ordered) * i // number for i in range(number + 1)]
        return [ordered[start:end] for start, end in pairwise(ends)]

    def events_of(self, streams: Iterable[bytes], upto: int) -> pa.Table:
        """The columns `HISTORY_COLUMNS` of these streams' events, up to a position."""
        by_partition = _by_partition(streams)
        if any(file.partition is None for file in self.files):
            wanted = [(self._files(None, upto), sorted(chain(*by_partition.values())))]
        else:
            wanted = [(self._files({p}, upto), some) for p, some in by_partition.items()]
        columns = list(HISTORY_COLUMNS)
        until = pc.field("position") <= upto
        empty = RAW_EVENTS.empty_table().select(columns)
        parts = (_select(files, columns, until & _one_of(some)) for files, some in wanted if some)
        return pa.concat_tables([empty, *parts])

    def _files(self, partitions: Collection[int] | None, upto: int) -> list[RawFile]:
        return [
            file
            for file in self.files
            if file.first <= upto
            and (partitions is None or file.partition is None or file.partition in partitions)
        ]


def _by_partition(streams: Iterable[bytes]) -> dict[int, list[bytes]]:
    """The streams of each partition, in order."""
    found: dict[int, list[bytes]] = defaultdict(list)
    for cid in sorted(set(streams)):
        found[partition_of(cid)].append(cid)
    return dict(sorted(found.items()))


def _one_of(streams: list[bytes]) -> pc.Expression:
    """Whether a row is of one of these streams, which are in order. Arrow looks up some fifty in
    the statistics of a row group; the first and the last one are there for more of them."""
    stream = pc.field("stream_cid")
    first, last = (pa.scalar(cid, pa.binary()) for cid in (streams[0], streams[-1]))
    return (stream >= first) & (stream <= last) & stream.isin(pa.array(streams, pa.binary()))


def _select(files: list[RawFile], columns: list[str], where: Any) -> pa.Table:
    try:
        dataset = ds.dataset([str(f.path) for f in files], schema=RAW_EVENTS, format="parquet")
        return dataset.to_table(columns=columns, filter=where)
    except (OSError, pa.ArrowInvalid) as error:
        raise cannot_read(error) from error
