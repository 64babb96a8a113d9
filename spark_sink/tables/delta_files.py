"""The files of a Delta table: adding them to commits, keeping them few and sorted; SQL."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, WriterProperties
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import TablesError, cannot_read
from spark_sink.schema import PARTITION_COLUMN, TableSpec
from spark_sink.tables.location import Location, concurrently, file_system, files_below, move_file
from spark_sink.tables.staging import ROW_GROUP, DataFile, Stager, read_file_upto

#: The table property for how long older versions stay readable.
RETENTION: Final = "delta.deletedFileRetentionDuration"
#: The table property for how long its change data feed is kept.
CHANGES: Final = "recon.changesRetentionDuration"
#: For files that delta-rs writes; by default it does not compress.
WRITER: Final = WriterProperties(compression="SNAPPY", max_row_group_size=ROW_GROUP)
#: The directory of the log.
LOG: Final = "_delta_log"
#: The directory of the change data feed.
CHANGE_DATA: Final = "_change_data"
#: The column of the feed that says what became of a row.
CHANGE_TYPE: Final = "_change_type"
#: The partition of a file, among the facts that delta-rs has about it.
PARTITION: Final = f"partition.{PARTITION_COLUMN}"
# Hours per unit of the property; months and years count with their greatest length.
_HOURS: Final = {
    "microsecond": Fraction(1, 3_600_000_000),
    "millisecond": Fraction(1, 3_600_000),
    "second": Fraction(1, 3_600),
    "minute": Fraction(1, 60),
    "hour": Fraction(1),
    "day": Fraction(24),
    "week": Fraction(7 * 24),
    "month": Fraction(31 * 24),
    "year": Fraction(366 * 24),
}
_PLAIN_TYPES: Final = {pa.binary_view(): pa.binary(), pa.string_view(): pa.string()}
# Files of this size are not merged.
_TARGET_BYTES: Final = 32 * 1024 * 1024
# Merge at least this many files, none of which is more than this many times as large as all smaller
# ones together; limits in bytes per merge, on disk and in memory.
_MIN_FILES: Final = 8
_MAX_RATIO: Final = 2
_MAX_MERGE_BYTES: Final = 64 * 1024 * 1024
_MAX_ROW_BYTES: Final = 512 * 1024 * 1024


def placed(table: Location, files: Iterable[DataFile]) -> list[DataFile]:
    """Move staged files to the table, as far as they are not there.

    Raises:
        TablesError: this process does not see a file.
    """
    return concurrently(table, partial(_placed, table), files)


def _placed(table: Location, file: DataFile) -> DataFile:
    if file.location != table:
        try:
            move_file(file.path, file.location, table)
        except FileNotFoundError:
            raise TablesError(
                f"{file.location / file.path} was written for the table {table}, but the driver "
                "does not see it: all workers and the driver must have the directory of the tables "
                "at the same path"
            ) from None
    return replace(file, location=table)


def added(file: DataFile, *, is_new: bool = True) -> AddAction:
    """Return the action of a commit that adds a file."""
    stats = {
        "numRecords": file.rows,
        "minValues": {file.order: file.first},
        "maxValues": {file.order: file.last},
        "nullCount": {file.order: 0},
    }
    return AddAction(
        file.path,
        file.size,
        {PARTITION_COLUMN: str(file.partition)},
        round(time.time() * 1000),
        is_new,
        json.dumps(stats),
    )


def removed(file: DataFile, *, is_change: bool = True) -> RemoveAction:
    """Return the action of a commit that removes a file."""
    values: dict[str, str | None] = {PARTITION_COLUMN: str(file.partition)}
    return RemoveAction(file.path, is_change, round(time.time() * 1000), file.size, values)


def merge_small_files(
    table: DeltaTable, stager: Stager, most: float = math.inf
) -> list[AddAction | RemoveAction]:
    """Merge small files in each partition, sorted by stream; return the actions to commit.

    Only files of similar size are merged, so that a row is rewritten once per doubling of the table
    instead of every time. Partitions grow alike: all of them would have to be merged at once.

    Args:
        table: whose files are merged.
        stager: writes files of the table.
        most: bytes after which the rest, the larger files, is left to the next time.
    """
    files: dict[int, list[DataFile]] = defaultdict(list)
    for file in data_files(table, stager.spec, stager.location):
        if file.size < _TARGET_BYTES:
            files[file.partition].append(file)
    groups = [
        (sum(file.size for file in group), group)
        for small in files.values()
        for group in _groups_of_like_size(small)
    ]
    actions: list[AddAction | RemoveAction] = []
    for size, group in sorted(groups, key=itemgetter(0)):
        actions += _merge(stager, group)
        most -= size
        if most <= 0:
            break
    return actions


def _groups_of_like_size(files: list[DataFile]) -> Iterator[list[DataFile]]:
    """Group files to merge: from the smallest on, until one is much larger than all before it."""
    group: list[DataFile] = []
    total = 0
    for file in sorted(files, key=attrgetter("size")):
        if group and (file.size > _MAX_RATIO * total or total >= _MAX_MERGE_BYTES):
            if len(group) >= _MIN_FILES:
                yield group
            group, total = [], 0
        group.append(file)
        total += file.size
    if len(group) >= _MIN_FILES:
        yield group


def _merge(stager: Stager, old: list[DataFile]) -> Iterator[AddAction | RemoveAction]:
    for files, rows in _fitting_in_memory(stager, old):
        if len(files) > 1:
            for new in stager.stage(pa.concat_tables(rows)).files:
                yield added(new, is_new=False)
            for file in files:
                yield removed(file, is_change=False)


def _fitting_in_memory(
    stager: Stager, files: list[DataFile]
) -> Iterator[tuple[list[DataFile], list[pa.Table]]]:
    """Yield files and their rows as far as they fit in memory.

    A small file with repetitive rows may be too large on its own; it is skipped.
    """
    portion: list[DataFile] = []
    kept: list[pa.Table] = []
    size = 0
    for file in files:
        rows = read_file_upto(
            stager.location, file.path, file.partition, stager.spec.schema, _MAX_ROW_BYTES
        )
        if rows is None:
            continue
        if size + rows.nbytes > _MAX_ROW_BYTES:
            yield portion, kept
            portion, kept, size = [], [], 0
        portion.append(file)
        kept.append(rows)
        size += rows.nbytes
    yield portion, kept


def optimize(table: DeltaTable) -> int:
    """Sort the table's partitions by stream, into few files; return the number of files."""
    table.optimize.z_order(
        ["stream_cid"],
        target_size=_TARGET_BYTES,
        writer_properties=WRITER,
    )
    return len(table.file_uris())


def vacuum(
    location: Location, table: DeltaTable, hours: float | None, *, dry_run: bool
) -> list[str]:
    """Delete files that only versions older than `hours` need, and uncommitted files of that age.

    `hours` None: as the table's property says. Nothing else may be writing a table on a disk. In a
    store, where no lock ensures that, uncommitted files are kept for an hour at least, because they
    may be about to be committed.

    Returns:
        The names of the files.
    """
    keep = retention_of(table) if hours is None else timedelta(hours=hours)
    changes = keep if hours is not None else max(keep, retention_of(table, CHANGES))
    # delta-rs counts whole hours: round up to keep too much rather than too little.
    whole_hours = math.ceil(keep / timedelta(hours=1))
    clear = partial(table.vacuum, enforce_retention_duration=False, dry_run=dry_run)
    if isinstance(location, Path) and changes == keep:
        files = clear(whole_hours, full=True)
    else:  # in full, it deletes the change data feed, too
        uncommitted = max(1, math.ceil(changes / timedelta(hours=1)))
        files = [*clear(whole_hours), *clear(uncommitted, full=True)]
    return [*files, *_old_changes(location, changes, dry_run=dry_run)]


def _old_changes(location: Location, keep: timedelta, *, dry_run: bool) -> list[str]:
    """Delete files of the change data feed, which delta-rs does not vacuum."""
    before = datetime.now(UTC) - keep
    expired = [file.path for file in files_below(location, CHANGE_DATA) if file.mtime <= before]
    if not dry_run:
        concurrently(location, file_system(location).delete_file, expired)
    return expired


def data_files(table: DeltaTable, spec: TableSpec, location: Location) -> list[DataFile]:
    """List the files of a table that this version of the pipeline wrote."""
    order = spec.order
    facts = (PARTITION, "num_records", "size_bytes", f"min.{order}", f"max.{order}")
    return [
        DataFile(location, path, partition, count, size, order, first, last)
        for path, partition, count, size, first, last in listed(table, *facts)
    ]


def listed(table: DeltaTable, *facts: str) -> Iterator[tuple[Any, ...]]:
    """Yield the name of each file, relative to the table, and facts about it from the log."""
    files = pa.table(table.get_add_actions(flatten=True))
    names = map(unquote, files["path"].to_pylist())
    return zip(names, *(files[fact].to_pylist() for fact in facts), strict=True)


def names_of(table: DeltaTable) -> list[str]:
    """Return the names of the table's files, relative to the table."""
    return [name for (name,) in listed(table)]


def read_commit(location: Location, version: int) -> list[dict[str, Any]]:
    """Return the entries of a commit in the log.

    Raises:
        FileNotFoundError: the log does not reach back to it.
    """
    with file_system(location).open_input_stream(f"{LOG}/{version:020}.json") as stream:
        return [json.loads(line) for line in stream.read().splitlines()]


def retention_of(table: DeltaTable, name: str = RETENTION) -> timedelta:
    """Return how long older versions stay readable, or what another property says.

    Raises:
        TablesError: the property has an unknown format.
    """
    default = "interval 7 days" if name == RETENTION else "interval 0 seconds"
    text = table.metadata().configuration.get(name, default)
    words = text.lower().split()
    pairs = words[1:] if words[:1] == ["interval"] else words
    try:
        numbers = [Fraction(number) for number in pairs[::2]]
        hours = [_HOURS[unit.removesuffix("s")] for unit in pairs[1::2]]
        total = sum((n * h for n, h in zip(numbers, hours, strict=True)), Fraction())
        if not pairs or total < 0:
            raise ValueError(text)
        return timedelta(hours=float(total))
    except (ValueError, KeyError, ZeroDivisionError, OverflowError):
        raise TablesError(
            f"the table at {table.table_uri} has the property {name} = {text!r}, which is "
            "not a duration such as 'interval 7 days'"
        ) from None


def query(tables: dict[str, DeltaTable], sql: str) -> pa.Table:
    """Return the answer of delta-rs's DataFusion to a SELECT, with plain text and binary columns.

    Not `DeltaTable.to_pyarrow_table`: a process that used it was seen to abort when it ended.

    Raises:
        TablesError: a file of a table is missing or damaged.
    """
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    try:
        answer = pa.table(builder.execute(sql).read_all())
    except Exception as error:  # the reader of the answer raises no class of its own
        raise cannot_read(error) from error
    return answer.cast(pa.schema([_plain(field) for field in answer.schema]))


def _plain(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_map(kind):
        kind = pa.map_(_plain(kind.key_field).type, _plain(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_plain(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_plain(member) for member in kind])
    else:
        kind = _PLAIN_TYPES.get(kind, kind)
    return field.with_type(kind)
