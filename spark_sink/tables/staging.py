"""Rows on their way into a table: written to files by workers, added to the table by a commit.

Theory of operation. Spark's workers have the rows, and the driver makes the commits. So a worker
writes its rows as Parquet files, sorted by stream, and sends the driver only their names and
statistics (`DataFile`). On a disk, the files are staged in another directory until the driver moves
them to the table, right before the commit that adds them. Staged files that a crash or a repeated
task leaves behind are deleted when the next step or run begins; those that were moved already are
deleted by vacuum. An object store cannot move files, only copy them, so there they are written to
their place, where no reader of the table sees them before the commit; vacuum deletes leftovers. On
a cluster, workers and driver must have the tables' directory at the same path, or reach the store.

All functions raise `TablesError` if files cannot be written, or are missing or damaged.
"""

import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from recon_node.base.chunks import in_chunks
from spark_sink.errors import cannot_read, cannot_write
from spark_sink.schema import PARTITION_COLUMN, TableSpec, with_partition
from spark_sink.tables.location import Location, concurrently, faults_as, file_system
from spark_sink.tables.placement import Placement

Item = TypeVar("Item")

ROW_GROUP: Final = 1024
"""Rows of a file that are read at once."""
MAX_STAGED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows that are collected before a file is written. Otherwise, a batch would have more
files."""
_CHUNK_BYTES: Final = 32 * 1024 * 1024
"""Bytes of the feed's rows that are sorted at a time. While a chunk is read, another one is copied
and written."""
_CHUNKS_PER_FILE: Final = 16
"""Chunks whose rows are in one file."""
_PART_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a file's rows that are read at a time."""
_FEW_VALUES: Final = ("stream_cid", "event_type", "controller", "chain_id")
"""Columns with few distinct values, for which a dictionary is worthwhile."""
_DICTIONARIES: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})
"""Encodings of the values of a dictionary."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file with rows of one partition, without the partition column.

    `path` is its name below `location`. `first` and `last` are the least and the largest value of
    the column `order`, the rows' feed positions; `size` is in bytes.
    """

    location: Location
    path: str
    partition: int
    rows: int
    size: int
    order: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Staged:
    """Rows for a table: in files, in memory, or both."""

    files: tuple[DataFile, ...] = ()
    tables: tuple[pa.Table, ...] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        in_memory: int = sum(table.num_rows for table in self.tables)
        return in_memory + sum(file.rows for file in self.files)

    def __add__(self, other: "Staged") -> "Staged":
        return Staged(self.files + other.files, self.tables + other.tables)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Read all rows."""
        return pa.concat_tables([schema.empty_table(), *self._tables(schema)])

    def chunks(self, schema: pa.Schema, most: int) -> Iterator[pa.Table]:
        """Read all rows, about `most` bytes at a time; yields at least one chunk."""
        tables = chain([schema.empty_table()], self._tables(schema))
        return map(pa.concat_tables, in_chunks(tables, attrgetter("nbytes"), most))

    def _tables(self, schema: pa.Schema) -> Iterator[pa.Table]:
        yield from self.tables
        for file in sorted(self.files, key=attrgetter("partition")):
            yield read_file(file, schema)


@dataclass(frozen=True, slots=True)
class Stager:
    """Writes rows of the table `spec` to files at `location`. Can be sent to a worker."""

    spec: TableSpec
    location: Location

    def stage(self, rows: pa.Table) -> Staged:
        """Write rows to one file per partition."""
        files = PartitionFiles(self)
        files.write(rows)
        return files.finish()

    def rewrite(
        self, files: Iterable[DataFile], change: Callable[[pa.Table], pa.Table] = lambda rows: rows
    ) -> Staged:
        """Write the rows of files, or what `change` makes of them, to one file per partition.

        Of more than `_PART_BYTES`, each such part is sorted for itself.
        """
        new = PartitionFiles(self)
        parts = chain.from_iterable(
            read_parts(file.location, file.path, file.partition, self.spec.schema) for file in files
        )
        for chunk in in_chunks(map(change, parts), attrgetter("nbytes"), _PART_BYTES):
            new.write(pa.concat_tables(chunk))
        return new.finish()


class PartitionFiles:
    """One file per partition, to which rows are written several times, sorted each time.

    Of such a file, Parquet's statistics skip as much as of a file for each time.
    """

    def __init__(self, stager: Stager) -> None:
        self._stager = stager
        self._files: dict[int, _OpenFile] = {}

    def write(self, rows: pa.Table) -> None:
        """Write rows of any partitions."""
        order = (PARTITION_COLUMN, "stream_cid", self._stager.spec.order)
        with faults_as(partial(cannot_write, self._stager.location)):
            for partition, part in by_partition(_sorted(rows, order)):
                part = part.drop_columns(PARTITION_COLUMN)
                if partition not in self._files:
                    self._files[partition] = _OpenFile(self._stager, partition, part.schema)
                self._files[partition].write(part)

    def finish(self) -> Staged:
        """Close the files and return them; what is written later goes to other files."""
        files, self._files = self._files, {}
        location = self._stager.location
        with faults_as(partial(cannot_write, location)):
            return Staged(tuple(concurrently(location, _OpenFile.finish, files.values())))


class _OpenFile:
    def __init__(self, stager: Stager, partition: int, schema: pa.Schema) -> None:
        location, folder = stager.location, folder_of(partition)
        path = f"{folder}/part-{uuid.uuid4()}.parquet"
        self._file = DataFile(location, path, partition, 0, 0, stager.spec.order, sys.maxsize, 0)
        files = file_system(location)
        files.create_dir(folder)
        self._stream = files.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            use_dictionary=[name for name in _FEW_VALUES if name in schema.names],
            store_schema=False,  # Arrow's, 2 KB in each of many small files
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, ROW_GROUP)
        file, span = self._file, pc.min_max(rows[self._file.order]).as_py()
        self._file = replace(
            file,
            rows=file.rows + rows.num_rows,
            first=min(file.first, span["min"]),
            last=max(file.last, span["max"]),
        )

    def finish(self) -> DataFile:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        return replace(self._file, size=size)


def _sorted(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Sort rows by columns.

    Those that were computed of streams, one after the other, are mostly in order: they need not be
    copied. Others are in many pieces, and sorted in half of the time once they are in one.
    """
    keys = rows.select(names).combine_chunks()
    order = pc.sort_indices(keys, [(name, "ascending") for name in names])
    places = order.to_numpy()
    return rows if (places[:-1] < places[1:]).all() else rows.combine_chunks().take(order)


@dataclass(frozen=True, slots=True)
class StagedFeed:
    """Rows of `raw_events` from position `first` to `last`; `positions` counts distinct ones."""

    first: int
    last: int
    positions: int
    staged: Staged


def stage_feed(
    batches: Iterable[pa.RecordBatch], stager: Stager, placement: Placement
) -> Iterator[StagedFeed]:
    """Write the rows of a part of the feed that have a place in the table.

    A thread reads what follows meanwhile, so that the node need not wait.
    """
    placed = (rows for rows in map(placement.place, batches) if rows.num_rows)
    files = PartitionFiles(stager)
    part = None
    for number, chunk in enumerate(_ahead(in_chunks(placed, attrgetter("nbytes"), _CHUNK_BYTES))):
        if part is not None:
            yield part
        part = feed_rows(pa.Table.from_batches(chunk))
        files.write(part.staged.tables[0])
        part = replace(part, staged=Staged() if (number + 1) % _CHUNKS_PER_FILE else files.finish())
    if part is not None:
        yield replace(part, staged=part.staged + files.finish())


def _ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, each while a thread gets the next one."""
    rest = iter(items)
    with ThreadPoolExecutor(max_workers=1) as thread:
        following = thread.submit(next, rest, None)
        while (item := following.result()) is not None:
            following = thread.submit(next, rest, None)
            yield item


def feed_rows(rows: pa.Table) -> StagedFeed:
    """Describe rows of the feed, at least one, that stay in memory."""
    span = pc.min_max(rows["position"]).as_py()
    positions = pc.count_distinct(rows["position"]).as_py()
    return StagedFeed(span["min"], span["max"], positions, Staged(tables=(with_partition(rows),)))


def folder_of(partition: int) -> str:
    """Return the directory of a partition's files."""
    return f"{PARTITION_COLUMN}={partition}"


def by_partition(ordered: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each partition, of rows that are sorted by it."""
    start = 0
    for count in pc.value_counts(ordered[PARTITION_COLUMN]).to_pylist():
        yield count["values"], ordered.slice(start, count["counts"])
        start += count["counts"]


def read_file(file: DataFile, schema: pa.Schema) -> pa.Table:
    """Read a file, adding the partition column, and nulls for columns that were added later."""
    with (
        faults_as(partial(cannot_read, file.location)),
        pq.ParquetFile(file.path, filesystem=file_system(file.location)) as parquet,
    ):
        return _whole(parquet.read(), file.partition, schema)


def read_parts(
    location: Location,
    path: str,
    partition: int,
    schema: pa.Schema,
    wanted: pc.Expression | None = None,
) -> Iterator[pa.Table]:
    """Read the wanted rows of a file, or all, as `read_file` does, some at a time.

    Up to `_PART_BYTES` of them, or one larger row, are read at once. Statistics skip row groups.
    """
    files = file_system(location)
    with (
        faults_as(partial(cannot_read, location)),
        pq.ParquetFile(path, filesystem=files, pre_buffer=False) as parquet,
    ):
        groups = [*range(parquet.num_row_groups)]
        if wanted is not None and len(groups) > 1:
            fragment = ds.ParquetFileFormat().make_fragment(path, files)
            groups = [group.id for group in fragment.subset(wanted, schema=schema).row_groups]
        columns = [name for name in schema.names if name in parquet.schema_arrow.names]
        for group in groups:
            most = _rows_that_fit(parquet.metadata.row_group(group), columns)
            for batch in parquet.iter_batches(most, [group], columns, use_threads=False):
                rows = _whole(pa.table(batch), partition, schema)
                yield rows if wanted is None else rows.filter(wanted)


def _rows_that_fit(group: pq.RowGroupMetaData, names: Collection[str]) -> int:
    """Return how many rows of a group surely take no more than `_PART_BYTES`, at least one.

    Plain values are in the file once for each row, but each row may have all those of a dictionary.
    """
    plain = shared = 0
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema.partition(".")[0] in names:
            if _DICTIONARIES.isdisjoint(column.encodings):
                plain += column.total_uncompressed_size
            else:
                shared += column.total_uncompressed_size
    fitting = (_PART_BYTES - plain) // max(1, shared)
    return int(max(1, min(group.num_rows, fitting)))


def read_file_upto(
    location: Location, path: str, partition: int, schema: pa.Schema, most: int
) -> pa.Table | None:
    """Read a file as `read_file` does; None if its rows take more than `most` bytes in memory."""
    parts = [schema.empty_table()]
    size = 0
    for part in read_parts(location, path, partition, schema):
        size += part.nbytes
        if size > most:
            return None
        parts.append(part)
    return pa.concat_tables(parts)


def rows_in(whole: pa.Buffer, schema: pa.Schema) -> pa.Table:
    """Return columns of the file that these bytes are."""
    with pq.ParquetFile(pa.BufferReader(whole), pre_buffer=False) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names]
        return conforming(file.read(there, use_threads=False), schema)


def _whole(rows: pa.Table, partition: int, schema: pa.Schema) -> pa.Table:
    columns = {name: rows[name] for name in rows.schema.names}
    columns[PARTITION_COLUMN] = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return conforming(pa.table(columns), schema)


def conforming(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to a schema; columns that they lack are null."""
    if rows.schema.equals(schema):
        return rows
    there = set(rows.schema.names)
    whole = [
        rows[f.name].cast(f.type) if f.name in there else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(whole, schema=schema)
