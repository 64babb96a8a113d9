"""Changes a few rows of a table of streams, and rewrites little more than them.

Theory of operation. A batch has events of streams all over the table, and Delta changes a row by
writing its whole file anew. So the files of a partition are like the leaves of a B+ tree: each has
the streams of a range of CIDs, sorted, and one that grows beyond a limit is divided when it is
rewritten next. Where a stream belongs is in the footers, which are read once. Files of another
kind, which `optimize` and large merges leave behind, are divided the same way when they are first
touched. So are files whose ranges overlap, together.

delta-rs would make one file of all that it rewrites in a partition, and decodes much of the table
to find a few rows; and it cannot commit files of the change data feed that others have written. So
these commits are made here. As there, the entry of the log is put only if it is absent: of two
processes that commit the same version, one fails, and nothing is visible before.
"""

import json
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice, pairwise
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from recon_node.base.chunks import in_chunks
from spark_sink.errors import cannot_read
from spark_sink.schema import PARTITION_COLUMN, partition_of
from spark_sink.tables.delta_log import CHANGE_DATA, CHANGE_TYPE, PARTITION, Action, listed, now
from spark_sink.tables.location import (
    Location,
    concurrently,
    faults_as,
    file_system,
    put_object,
    read_object,
)
from spark_sink.tables.staging import (
    ROW_GROUP,
    by_partition,
    conforming,
    folder_of,
    read_file_upto,
    rows_in,
)

MOST_ROWS: Final = 10_000
"""The largest change that is made here, in rows. delta-rs merges larger ones."""
_LEAF_BYTES: Final = 48 * 1024
"""Bytes of a leaf's rows in memory; one with more than twice as many is divided. On disk, it takes
about a quarter of that, of which 2 KB are not rows."""
_LEAVES: Final = 128
"""About how many files a partition has at most: in large tables, leaves are larger."""
_COMPRESSION: Final = 4
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that are rewritten together, at most."""
_CHUNK_BYTES: Final = 16 * 1024 * 1024
"""About how many bytes of these files are in memory at once."""
_MOST_ROW_BYTES: Final = 512 * 1024 * 1024
_FOOTER_BYTES: Final = 64 * 1024
"""Bytes at the end of a leaf in which its footer is, nearly always."""
_SUFFIX: Final = ".leaf.parquet"
"""How the names of leaves end, and those of other files do not."""
_KEY: Final = "stream_cid"
_CHANGE_FIELD: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
_STATISTICS: Final = (_KEY, "stream_id", "position")
"""Columns by which readers skip files and row groups."""


class _TooLargeError(Exception):
    """The rows of a file take too much memory."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A file with streams from `low` to `high`; its size is in bytes."""

    path: str
    size: int
    low: bytes
    high: bytes


@dataclass(frozen=True, slots=True)
class _Group:
    """Files of a partition that are rewritten together, and rows for them.

    A file whose rows take more than twice `most` bytes is divided.
    """

    partition: int
    leaves: Sequence[_Leaf]
    most: int
    rows: pa.Table

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(leaf.size for leaf in self.leaves)


class Leaves:
    """The files of a table of streams, or of a view."""

    def __init__(self, schema: pa.Schema, path: Location) -> None:
        self._path = path
        self._change_schema = pa.schema([*schema, _CHANGE_FIELD])
        self._schema = pa.schema(f for f in schema if f.name != PARTITION_COLUMN)
        self._spans: dict[str, tuple[bytes, bytes]] = {}

    def upsert(self, table: DeltaTable, rows: pa.Table) -> list[Action] | None:
        """Write files in which rows, of different keys, are inserted or updated.

        Rows that stay what they were are not written. Returns the actions to commit; None if too
        much would have to be rewritten at once.
        """
        files = self._files(table, set(rows[PARTITION_COLUMN].to_pylist()))
        groups = [*self._assigned(files, rows)]
        if any(group.size > _MOST_BYTES for group in groups):
            return None
        actions: list[Action] = []
        changes = [self._change_schema.empty_table()]
        try:
            for chunk in in_chunks(groups, attrgetter("size"), _CHUNK_BYTES):
                actions += self._rewrite(chunk, changes)
        except _TooLargeError:
            return None
        ordered = by_partition(pa.concat_tables(changes).sort_by(PARTITION_COLUMN))
        return actions + concurrently(self._path, self._write_changes, ordered)

    def _files(self, table: DeltaTable, partitions: Collection[int]) -> dict[int, list[_Leaf]]:
        files: dict[int, list[_Leaf]] = {partition: [] for partition in partitions}
        there = [*listed(table, "size_bytes", PARTITION)]
        theirs = [(path, size, partition) for path, size, partition in there if partition in files]
        new = [(path, size) for path, size, _ in theirs if path not in self._spans]
        known = self._spans | dict(concurrently(self._path, self._span, new))
        self._spans = {path: known[path] for path, _, _ in there if path in known}
        for path, size, partition in theirs:
            files[partition].append(_Leaf(path, size, *known[path]))
        return files

    def _span(self, file: tuple[str, int]) -> tuple[str, tuple[bytes, bytes]]:
        """Return the name of a file, of a name and a size, and its first and last stream."""
        path, size = file
        with faults_as(partial(cannot_read, self._path)):
            if path.endswith(_SUFFIX):
                end = read_object(self._path, path, max(0, size - _FOOTER_BYTES), size)
                footer = int.from_bytes(end[-8:-4], "little") + 8  # its length, and a sign
                if footer > end.size:
                    end = read_object(self._path, path, max(0, size - footer), size)
                metadata = pq.read_metadata(pa.BufferReader(end))
            else:
                metadata = pq.read_metadata(path, filesystem=file_system(self._path))
        column = metadata.schema.names.index(_KEY)
        row_groups = map(metadata.row_group, range(metadata.num_row_groups))
        spans = [row_group.column(column).statistics for row_group in row_groups]
        return path, (min(span.min for span in spans), max(span.max for span in spans))

    def _assigned(self, files: Mapping[int, list[_Leaf]], rows: pa.Table) -> Iterator[_Group]:
        """Yield the files where rows belong, with these rows."""
        ordered = rows.sort_by([(PARTITION_COLUMN, "ascending"), (_KEY, "ascending")])
        for partition, whole in by_partition(ordered):
            leaves, assigned = files[partition], conforming(whole, self._schema)
            overlapping = _overlapping(leaves) or [[]]
            most = max(_LEAF_BYTES, _COMPRESSION * sum(leaf.size for leaf in leaves) // _LEAVES)
            lows = [neighbours[0].low for neighbours in overlapping if neighbours]
            start = 0
            places = (max(0, bisect_right(lows, cid) - 1) for cid in assigned[_KEY].to_pylist())
            for place, same in groupby(places):
                number = len([*same])
                yield _Group(partition, overlapping[place], most, assigned.slice(start, number))
                start += number

    def _rewrite(self, groups: Sequence[_Group], changes: list[pa.Table]) -> Iterator[Action]:
        """Write the files of groups anew; yield the actions, and add what changes to `changes`."""
        # One list of files, and one table of the rows of all groups: the requests of a store are
        # made together, and Arrow takes longer for a call than for the rows of a small file.
        leaves = [leaf for group in groups for leaf in group.leaves]
        read = iter(concurrently(self._path, self._read, leaves))
        old, of_old = _numbered(self._concatenated(read, len(group.leaves)) for group in groups)
        new, of_new = _numbered(group.rows for group in groups)
        place = pc.index_in(new[_KEY], value_set=old[_KEY])  # null: the row is inserted
        before = old.take(place)
        # As Python's values, because Arrow compares neither lists nor maps.
        pairs = zip(before.to_pylist(), new.to_pylist(), strict=True)
        differs = pa.array([one != other for one, other in pairs], pa.bool_())
        before, after, was = (rows.filter(differs) for rows in (before, new, pc.is_valid(place)))
        inserted = after.filter(pc.invert(was))
        changes += self._changes(before.filter(was), after.filter(was), inserted)
        of_after = of_new.filter(differs)
        # No rows of a group in which nothing differs: its files stay.
        kept = pc.and_not(
            pc.is_in(of_old, value_set=of_after), pc.is_in(old[_KEY], value_set=after[_KEY])
        )
        rows = pa.concat_tables([old.filter(kept), after])
        numbers = pa.concat_arrays([of_old.filter(kept.combine_chunks()), of_after])
        # Sorted by stream within each group, as leaves are, to be cut where a group ends.
        keys = pa.table({"group": numbers, "key": rows[_KEY]})
        order = pc.sort_indices(keys, [("group", "ascending"), ("key", "ascending")])
        counts = sorted(Counter(numbers.to_pylist()).items())
        yield from self._replace(groups, rows.combine_chunks().take(order), counts)

    def _replace(
        self, groups: Sequence[_Group], rows: pa.Table, counts: Iterable[tuple[int, int]]
    ) -> Iterator[Action]:
        """Write the rows of some groups, in order, in place of their files.

        `counts` has the number of each of these groups, and how many of the rows are its own.
        """
        start = 0
        parts: list[tuple[int, pa.Table]] = []
        for number, count in counts:
            group = groups[number]
            yield from map(partial(_removed, group.partition), group.leaves)
            divided = _divided(rows.slice(start, count), group.most)
            parts += [(group.partition, part) for part in divided]
            start += count
        yield from concurrently(self._path, self._write_leaf, parts)

    def _read(self, leaf: _Leaf) -> pa.Table:
        if leaf.path.endswith(_SUFFIX):
            with faults_as(partial(cannot_read, self._path)):
                return rows_in(read_object(self._path, leaf.path), self._schema)
        # Of others, nobody knows what they take in memory.
        rows = read_file_upto(self._path, leaf.path, 0, self._schema, _MOST_ROW_BYTES)
        if rows is None:
            raise _TooLargeError
        return rows

    def _concatenated(self, tables: Iterator[pa.Table], count: int) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *islice(tables, count)])

    def _changes(self, before: pa.Table, after: pa.Table, inserted: pa.Table) -> Iterator[pa.Table]:
        kinds = {"update_preimage": before, "update_postimage": after, "insert": inserted}
        for kind, rows in kinds.items():
            partitions = pa.array(map(partition_of, rows[_KEY].to_pylist()), pa.int32())
            of_kind = pa.repeat(pa.scalar(kind), rows.num_rows)
            columns = {name: rows[name] for name in self._schema.names}
            columns |= {PARTITION_COLUMN: partitions, CHANGE_TYPE: of_kind}
            names = self._change_schema.names
            yield pa.table([columns[name] for name in names], schema=self._change_schema)

    def _write_leaf(self, part: tuple[int, pa.Table]) -> Action:
        partition, rows = part
        path, size = self._write(folder_of(partition), rows)
        self._spans[path] = rows[_KEY][0].as_py(), rows[_KEY][-1].as_py()
        stats = json.dumps(_stats(rows))
        facts = {"dataChange": True, "modificationTime": now(), "stats": stats}
        return _action("add", path, partition, size=size, **facts)

    def _write_changes(self, part: tuple[int, pa.Table]) -> Action:
        partition, changes = part
        folder = f"{CHANGE_DATA}/{folder_of(partition)}"
        path, size = self._write(folder, changes.drop_columns(PARTITION_COLUMN))
        return _action("cdc", path, partition, size=size, dataChange=False)

    def _write(self, folder: str, rows: pa.Table) -> tuple[str, int]:
        """Write a file; return its path in the table and its size."""
        path = f"{folder}/part-{uuid.uuid4()}{_SUFFIX}"
        written = pa.BufferOutputStream()
        # Of a small file, much is not rows: what can be left out is.
        pq.write_table(
            rows,
            written,
            row_group_size=ROW_GROUP,
            compression="zstd",
            use_dictionary=False,
            write_statistics=list(_STATISTICS),
            store_schema=False,
        )
        whole = written.getvalue().to_pybytes()
        put_object(self._path, path, whole)
        return path, len(whole)


def _numbered(tables: Iterable[pa.Table]) -> tuple[pa.Table, pa.Array]:
    """Concatenate tables; return also the number of the table that each row was in."""
    parts = [*tables]
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [part.num_rows for part in parts])
    return pa.concat_tables(parts).combine_chunks(), pa.array(numbers)


def _overlapping(leaves: Iterable[_Leaf]) -> list[list[_Leaf]]:
    """Group files by whether their ranges overlap; ascending."""
    groups: list[list[_Leaf]] = []
    end = b""
    for leaf in sorted(leaves, key=attrgetter("low")):
        if groups and leaf.low <= end:
            groups[-1].append(leaf)
        else:
            groups.append([leaf])
        end = max(end, leaf.high)
    return groups


def _divided(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    parts = min(rows.num_rows, rows.nbytes // most) if rows.nbytes > 2 * most else 1
    ends = [rows.num_rows * part // parts for part in range(parts + 1)]
    return (rows.slice(start, end - start) for start, end in pairwise(ends))


def _stats(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics by which readers skip files. Delta has none of binary columns."""
    spans = {name: pc.min_max(rows[name]).as_py() for name in ("stream_id", "position")}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: span["min"] for name, span in spans.items()},
        "maxValues": {name: span["max"] for name, span in spans.items()},
        "nullCount": dict.fromkeys(spans, 0),
    }


def _removed(partition: int, leaf: _Leaf) -> Action:
    facts = {"dataChange": True, "deletionTimestamp": now(), "extendedFileMetadata": True}
    return _action("remove", leaf.path, partition, size=leaf.size, **facts)


def _action(kind: str, path: str, partition: int, **facts: object) -> Action:
    values = {PARTITION_COLUMN: str(partition)}
    return {kind: {"path": path, "partitionValues": values, **facts}}
