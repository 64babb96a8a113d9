"""Changes a few rows of a table of streams on a disk, and rewrites little more than them.

Theory of operation. A batch has events of streams all over the table, and Delta changes a row by
writing its whole file anew. So the files of a partition are like the leaves of a B+ tree: each has
the streams of a range of CIDs, sorted, and one that grows beyond a limit is divided when it is
rewritten next. Where a stream belongs is in the footers, which are read once. Files of another
kind, which `optimize` and large merges leave behind, are divided the same way when they are first
touched. So are files whose ranges overlap, together.

delta-rs would make one file of all that it rewrites in a partition, and decodes much of the table
to find a few rows; and it cannot commit files of the change data feed that others have written. So
these commits are made here. As there, the entry of the log is a link that can be made once only:
of two processes that commit the same version, one fails, and nothing is visible before. Stores have
no such link, and get their rows from delta-rs.
"""

import json
import os
import time
import uuid
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Transaction

from spark_sink.errors import cannot_read
from spark_sink.schema import PARTITION_COLUMN, partition_of
from spark_sink.tables.delta_files import CHANGE_DATA, CHANGE_TYPE, LOG, PARTITION, listed
from spark_sink.tables.location import FAULTS
from spark_sink.tables.staging import (
    ROW_GROUP,
    by_partition,
    conforming,
    folder_of,
    in_portions,
    read_file_upto,
    read_small_file,
)

#: More rows are not a few.
MOST_ROWS: Final = 10_000
# Bytes of rows in memory, below which a leaf is not divided; twice as many, and it is. On disk,
# they take about a quarter of that, of which 2 KB are not rows.
_LEAF_BYTES: Final = 48 * 1024
# Files of a partition at most, nearly: in large tables, leaves are larger.
_LEAVES: Final = 128
_COMPRESSION: Final = 4
# Bytes of files to rewrite together at most, and how many are in memory at once, nearly.
_MOST_BYTES: Final = 64 * 1024 * 1024
_PORTION_BYTES: Final = 16 * 1024 * 1024
_MOST_ROW_BYTES: Final = 512 * 1024 * 1024
# Of leaves, beside other files.
_SUFFIX: Final = ".leaf.parquet"
_KEY: Final = "stream_cid"
_CHANGE_FIELD: Final = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
# Readers skip files and row groups by these columns.
_STATISTICS: Final = (_KEY, "stream_id", "position")

Action = dict[str, dict[str, Any]]


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
class _Unit:
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
    """The files of a table of streams, or of a view, on a disk."""

    def __init__(self, schema: pa.Schema, path: Path) -> None:
        self._path = path
        self._feed_schema = pa.schema([*schema, _CHANGE_FIELD])
        self._schema = pa.schema(f for f in schema if f.name != PARTITION_COLUMN)
        self._spans: dict[str, tuple[bytes, bytes]] = {}

    def upsert(self, table: DeltaTable, rows: pa.Table) -> list[Action] | None:
        """Write files in which rows are inserted or updated; return the actions to commit.

        Rows that stay what they were are not written.

        Args:
            table: as it is now.
            rows: with different keys.

        Returns:
            None: too much would have to be rewritten at once.

        Raises:
            TablesError: a file is missing or damaged.
        """
        files = self._files(table, set(rows[PARTITION_COLUMN].to_pylist()))
        units = [*self._assigned(files, rows)]
        if any(unit.size > _MOST_BYTES for unit in units):
            return None
        actions: list[Action] = []
        feed = [self._feed_schema.empty_table()]
        try:
            for portion in in_portions(units, attrgetter("size"), _PORTION_BYTES):
                actions += self._rewrite(portion, feed)
        except _TooLargeError:
            return None
        for partition, changes in by_partition(pa.concat_tables(feed).sort_by(PARTITION_COLUMN)):
            folder = f"{CHANGE_DATA}/{folder_of(partition)}"
            path, size = self._write(folder, changes.drop_columns(PARTITION_COLUMN))
            actions.append(_action("cdc", path, partition, dataChange=False, size=size))
        return actions

    def _files(self, table: DeltaTable, partitions: Collection[int]) -> dict[int, list[_Leaf]]:
        """List the files of some partitions."""
        files: dict[int, list[_Leaf]] = {partition: [] for partition in partitions}
        known, self._spans = self._spans, {}
        for path, size, partition in listed(table, "size_bytes", PARTITION):
            span = known.get(path)
            if partition in files:
                span = span or self._span(path)
                files[partition].append(_Leaf(path, size, *span))
            if span is not None:
                self._spans[path] = span
        return files

    def _span(self, path: str) -> tuple[bytes, bytes]:
        """Return the first and last stream of a file, from its footer."""
        try:
            metadata = pq.read_metadata(self._path / path)
        except FAULTS as error:
            raise cannot_read(error) from error
        column = metadata.schema.names.index(_KEY)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        spans = [group.column(column).statistics for group in groups]
        return min(span.min for span in spans), max(span.max for span in spans)

    def _assigned(self, files: Mapping[int, list[_Leaf]], rows: pa.Table) -> Iterator[_Unit]:
        """Yield the files where rows belong, with these rows."""
        ordered = rows.sort_by([(PARTITION_COLUMN, "ascending"), (_KEY, "ascending")])
        for partition, whole in by_partition(ordered):
            leaves, assigned = files[partition], conforming(whole, self._schema)
            groups = _overlapping(leaves) or [[]]
            most = max(_LEAF_BYTES, _COMPRESSION * sum(leaf.size for leaf in leaves) // _LEAVES)
            lows = [group[0].low for group in groups if group]
            start = 0
            places = (max(0, bisect_right(lows, cid) - 1) for cid in assigned[_KEY].to_pylist())
            for place, same in groupby(places):
                number = len([*same])
                yield _Unit(partition, groups[place], most, assigned.slice(start, number))
                start += number

    def _rewrite(self, units: Sequence[_Unit], feed: list[pa.Table]) -> Iterator[Action]:
        """Write the files of units anew; yield the actions, and add what changes to the feed."""
        old, of_old = _numbered(self._read(unit.leaves) for unit in units)
        new, of_new = _numbered(unit.rows for unit in units)
        place = pc.index_in(new[_KEY], value_set=old[_KEY])
        before = old.take(place)
        pairs = zip(before.to_pylist(), new.to_pylist(), strict=True)
        differs = pa.array([one != other for one, other in pairs], pa.bool_())
        before, after, was = (array.filter(differs) for array in (before, new, pc.is_valid(place)))
        feed += self._changes(before.filter(was), after.filter(was), after.filter(pc.invert(was)))
        of_after = of_new.filter(differs)
        kept = pc.and_not(
            pc.is_in(of_old, value_set=of_after), pc.is_in(old[_KEY], value_set=after[_KEY])
        )
        rows = pa.concat_tables([old.filter(kept), after])
        numbers = pa.concat_arrays([of_old.filter(kept.combine_chunks()), of_after])
        keys = pa.table({"unit": numbers, "key": rows[_KEY]})
        order = pc.sort_indices(keys, [("unit", "ascending"), ("key", "ascending")])
        rows = rows.combine_chunks().take(order)
        start = 0
        for number, count in sorted(Counter(numbers.to_pylist()).items()):
            yield from self._replaced(units[number], rows.slice(start, count))
            start += count

    def _read(self, leaves: Iterable[_Leaf]) -> pa.Table:
        parts = [self._schema.empty_table()]
        for leaf in leaves:
            if leaf.path.endswith(_SUFFIX):
                rows = read_small_file(self._path, leaf.path, self._schema)
            else:  # of others, nobody knows what they take in memory
                rows = read_file_upto(self._path, leaf.path, 0, self._schema, _MOST_ROW_BYTES)
            if rows is None:
                raise _TooLargeError
            parts.append(rows)
        return pa.concat_tables(parts)

    def _changes(self, before: pa.Table, after: pa.Table, inserted: pa.Table) -> Iterator[pa.Table]:
        """Yield rows of the change data feed."""
        kinds = {"update_preimage": before, "update_postimage": after, "insert": inserted}
        for kind, rows in kinds.items():
            partitions = pa.array(map(partition_of, rows[_KEY].to_pylist()), pa.int32())
            of_kind = pa.repeat(pa.scalar(kind), rows.num_rows)
            columns = {name: rows[name] for name in self._schema.names}
            columns |= {PARTITION_COLUMN: partitions, CHANGE_TYPE: of_kind}
            names = self._feed_schema.names
            yield pa.table([columns[name] for name in names], schema=self._feed_schema)

    def _replaced(self, unit: _Unit, rows: pa.Table) -> Iterator[Action]:
        """Write rows to files that replace those of a unit; yield the actions."""
        now = round(time.time() * 1000)
        for leaf in unit.leaves:
            yield _action(
                "remove",
                leaf.path,
                unit.partition,
                size=leaf.size,
                dataChange=True,
                deletionTimestamp=now,
                extendedFileMetadata=True,
            )
        for part in _divided(rows, unit.most):
            path, size = self._write(folder_of(unit.partition), part)
            self._spans[path] = part[_KEY][0].as_py(), part[_KEY][-1].as_py()
            yield _action(
                "add",
                path,
                unit.partition,
                size=size,
                dataChange=True,
                modificationTime=now,
                stats=json.dumps(_stats(part)),
            )

    def _write(self, folder: str, rows: pa.Table) -> tuple[str, int]:
        """Write a file; return its path in the table and its size."""
        path = f"{folder}/part-{uuid.uuid4()}{_SUFFIX}"
        file = self._path / path
        file.parent.mkdir(parents=True, exist_ok=True)
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
        size = file.write_bytes(written.getvalue())
        return path, size


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
    """Divide rows if they take more than twice `most` bytes."""
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


def _action(kind: str, path: str, partition: int, **facts: object) -> Action:
    values = {PARTITION_COLUMN: str(partition)}
    return {kind: {"path": path, "partitionValues": values, **facts}}


def commit(
    path: Path,
    version: int,
    transactions: Iterable[Transaction],
    actions: Iterable[Action],
    drafts: Path,
) -> None:
    """Commit a version of a table on a disk.

    Args:
        path: of the table.
        version: that is made.
        transactions: with the table's position.
        actions: on files.
        drafts: a directory on the same disk that is cleared after a crash.

    Raises:
        FileExistsError: the version exists.
    """
    now = round(time.time() * 1000)
    entries: list[Mapping[str, object]] = [
        {"commitInfo": {"timestamp": now, "operation": "MERGE", "operationParameters": {}}},
        *(
            {"txn": {"appId": transaction.app_id, "version": transaction.version}}
            for transaction in transactions
        ),
        *actions,
    ]
    drafts.mkdir(parents=True, exist_ok=True)
    draft = drafts / f"{uuid.uuid4()}.json"
    draft.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    try:
        os.link(draft, path / LOG / f"{version:020}.json")
    finally:
        draft.unlink()
