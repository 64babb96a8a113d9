"""Reads `raw_events` back from the files of one version, on the driver and in workers.

The driver lists the files once per step, and workers read what they need without the table's log.
The partition and the positions of each file are known, so most files are not opened.
Rows within a file are sorted by stream (those of a long batch in parts), so Parquet's statistics
skip nearly everything when a few streams are wanted, or many neighbouring ones.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import islice, pairwise
from operator import attrgetter, or_
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from recon_node.base.latest import Remembered
from spark_sink.errors import cannot_read
from spark_sink.schema import DERIVATION_COLUMNS, RAW_EVENTS, partition_of
from spark_sink.tables.location import Location, faults_as, file_system
from spark_sink.tables.staging import DataFile, rows_in

Item = TypeVar("Item")

_MIN_STREAMS: Final = 32
"""Streams that are read at once at least, however large they are."""
_READ_BYTES: Final = 256 * 1024 * 1024
"""Bytes in files of the streams that are read at once."""
_SMALL_BYTES: Final = 32 * 1024
"""Bytes of a file up to which its rows are kept in memory once they were read."""
_CACHE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all such rows."""
# A plain binary column holds 2 GB in one piece, and sorting makes one piece of each column.
_LARGE: Final = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
_SLICE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a sorted slice, on average."""


@dataclass(frozen=True, slots=True)
class RawFiles:
    """All files of `raw_events` at `location`. Can be sent to a worker.

    Its methods raise `TablesError` if a file is missing or damaged.
    """

    files: tuple[DataFile, ...]
    location: Location = Path()

    def streams_between(
        self, after: int, upto: int, partitions: Collection[int] | None = None
    ) -> list[bytes]:
        """Return the streams with events at positions (after, upto], in some partitions or all."""
        between = (pc.field("position") > after) & (pc.field("position") <= upto)
        files = [f for f in self._files(partitions, upto) if f.last > after]
        cids = self._select(files, ["stream_cid"], between)["stream_cid"].unique().to_pylist()
        return sorted(c for c in cids if partitions is None or partition_of(c) in partitions)

    def bytes_between(self, after: int, upto: int) -> int:
        """Return the size of the files with events at positions (after, upto], in bytes."""
        return sum(file.size for file in self._files(None, upto) if file.last > after)

    def chunks(self, streams: Sequence[bytes], upto: int) -> list[list[bytes]]:
        """Divide streams into chunks whose events, up to a position, fit in memory."""
        by_partition = _by_partition(streams)
        size = sum(file.size for file in self._files(by_partition, upto))
        number = max(1, min(size // _READ_BYTES, len(streams) // _MIN_STREAMS))
        ordered = [cid for cids in by_partition.values() for cid in cids]
        ends = [len(ordered) * i // number for i in range(number + 1)]
        return [ordered[start:end] for start, end in pairwise(ends)]

    def events_of(self, streams: Collection[bytes], upto: int) -> pa.Table:
        """Return the columns `DERIVATION_COLUMNS` of these streams' events, up to a position."""
        by_partition = _by_partition(streams)
        columns = list(DERIVATION_COLUMNS)
        until = pc.field("position") <= upto
        parts = [RAW_EVENTS.empty_table().select(columns)]
        small: list[DataFile] = []
        for partition, cids in by_partition.items():
            files = self._files({partition}, upto)
            small += (file for file in files if file.size <= _SMALL_BYTES)
            large = [file for file in files if file.size > _SMALL_BYTES]
            parts += [self._select(large, columns, until & _one_of(cids))] if large else []
        if small:
            rows = pa.concat_tables([_read_small(file) for file in small]).combine_chunks()
            theirs = pc.is_in(rows["stream_cid"], value_set=pa.array(streams, pa.binary()))
            parts.append(rows.filter(pc.and_(theirs, pc.less_equal(rows["position"], upto))))
        return pa.concat_tables(parts)

    def later_events_of(self, after: Mapping[bytes, int], upto: int) -> pa.Table:
        """Return the events of each stream after a position of its own, by stream CID."""
        columns = list(DERIVATION_COLUMNS)
        parts = [RAW_EVENTS.empty_table().select(columns)]
        for partition, streams in _by_partition(after).items():
            for chunk in batched(streams, _MIN_STREAMS):
                first = min(after[cid] for cid in chunk)
                files = [f for f in self._files({partition}, upto) if f.last > first]
                until = pc.field("position") <= upto
                later = reduce(or_, (_later(cid, after[cid]) for cid in chunk))
                parts.append(self._select(files, columns, until & later))
        return pa.concat_tables(parts)

    def event_cids(self) -> Iterator[pa.Array]:
        """Yield the CIDs of all events, in any order, some at a time."""
        for file in self.files:
            cids = self._select([file], ["event_cid"], None)["event_cid"]
            yield from cids.chunks

    def _files(self, partitions: Collection[int] | None, upto: int) -> list[DataFile]:
        return [
            file
            for file in self.files
            if file.first <= upto and (partitions is None or file.partition in partitions)
        ]

    def _select(self, files: list[DataFile], columns: list[str], where: Any) -> pa.Table:
        with faults_as(partial(cannot_read, self.location)):
            dataset = ds.FileSystemDataset.from_paths(
                [file.path for file in files],
                schema=RAW_EVENTS,
                format=ds.ParquetFileFormat(),
                filesystem=file_system(self.location),
            )
            return dataset.to_table(columns=columns, filter=where)


_small_files: Final = Remembered[tuple[Location, str], pa.Table](
    _CACHE_BYTES, weigh=attrgetter("nbytes")
)
"""The files of a few rows that this process has read; of too many, those read last. Every batch
adds some, and they stay until they are merged. To read them again for each batch would be most of
what reading takes. Files never change."""


def _read_small(file: DataFile) -> pa.Table:
    place = file.location, file.path
    known = _small_files.get(place, None)
    if known is None:
        schema = pa.schema(map(RAW_EVENTS.field, DERIVATION_COLUMNS))
        # At once, without what makes large files faster.
        with (
            faults_as(partial(cannot_read, file.location)),
            file_system(file.location).open_input_stream(file.path) as stream,
        ):
            known = rows_in(stream.read_buffer(), schema)
    _small_files.put(place, known)
    return known


def _later(cid: bytes, after: int) -> pc.Expression:
    stream = pa.scalar(cid, pa.binary())
    return (pc.field("stream_cid") == stream) & (pc.field("position") > after)


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Divide items into lists of up to `size`."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


def _by_partition(streams: Iterable[bytes]) -> dict[int, list[bytes]]:
    """Group streams by partition, in order."""
    by_partition: dict[int, list[bytes]] = defaultdict(list)
    for cid in sorted(set(streams)):
        by_partition[partition_of(cid)].append(cid)
    return dict(sorted(by_partition.items()))


def _one_of(streams: list[bytes]) -> pc.Expression:
    """Return a condition for rows of these streams, which are in order.

    Arrow compares about fifty of them with the statistics of a row group; with more, the first and
    last one still skip row groups.
    """
    stream = pc.field("stream_cid")
    first, last = (pa.scalar(cid, pa.binary()) for cid in (streams[0], streams[-1]))
    return (stream >= first) & (stream <= last) & stream.isin(pa.array(streams, pa.binary()))


def ordered_slices(table: pa.Table, names: Sequence[str], most_rows: int) -> Iterator[pa.Table]:
    """Yield the rows sorted by some columns, up to a number at a time, fewer if they are large.

    Bytes and text become Arrow's large types, which makes no difference in Python.
    """
    order = pc.sort_indices(table.select(names), [(name, "ascending") for name in names])
    fields = [field.with_type(_LARGE.get(field.type, field.type)) for field in table.schema]
    whole = table.cast(pa.schema(fields)).combine_chunks()  # the cast copies only lengths
    rows = max(1, min(most_rows, _SLICE_BYTES * len(order) // max(1, whole.nbytes)))
    for start in range(0, len(order), rows):
        yield whole.take(order.slice(start, rows))
