"""The files of a Delta table: what commits say of new ones, and how they stay few and sorted."""

import json
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from operator import attrgetter
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.transaction import AddAction, RemoveAction

from spark_sink.errors import TablesError
from spark_sink.schema import PARTITION_COLUMN
from spark_sink.tables.staging import ROW_GROUP, DataFile, Stager, read_file_upto

#: The table property that says for how long what is replaced can be read in older versions.
HISTORY: Final = "delta.deletedFileRetentionDuration"
#: What delta-rs writes by itself; it compresses nothing if not told to.
WRITER: Final = WriterProperties(compression="SNAPPY", max_row_group_size=ROW_GROUP)
_CHANGES: Final = "_change_data"
# What it is told in; months and years are as long as the longest.
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
# Files of this size stay as they are.
_FILE_SIZE: Final = 32 * 1024 * 1024
# So many are worth merging; one that has so many times the size of all smaller ones is not; so many
# bytes are merged at once, which may be many more in memory.
_MANY: Final = 8
_BY_FAR: Final = 2
_MOST_MERGED: Final = 64 * 1024 * 1024
_MOST_ROWS: Final = 512 * 1024 * 1024


def placed(table: Path, file: DataFile) -> DataFile:
    """A file that was staged, moved to where files of the table belong.

    Raises:
        TablesError: it is not to be seen from here.
    """
    path = table / f"{PARTITION_COLUMN}={file.partition}" / file.path.name
    path.parent.mkdir(exist_ok=True)
    try:
        shutil.move(file.path, path)
    except FileNotFoundError:
        raise TablesError(
            f"{file.path} was written for the table {table}, but it is not to "
            "be seen from here: all workers and the driver must have the directory of the tables "
            "at the same path"
        ) from None
    return replace(file, path=path)


def added(table: Path, file: DataFile, *, is_new: bool = True) -> AddAction:
    """What a commit says of a file that becomes part of the table."""
    stats = {
        "numRecords": file.rows,
        "minValues": {file.order: file.first},
        "maxValues": {file.order: file.last},
        "nullCount": {file.order: 0},
    }
    return AddAction(
        str(file.path.relative_to(table)),
        file.size,
        {PARTITION_COLUMN: str(file.partition)},
        round(time.time() * 1000),
        is_new,
        json.dumps(stats),
    )


def merge_small_files(table: DeltaTable, stager: Stager) -> list[AddAction | RemoveAction]:
    """Write few files of many in each partition, sorted by stream; what a commit says of it.

    Files of about the same size are merged, so that a row is written anew as often as the table
    has doubled since, and not each time.
    """
    found = pa.table(table.get_add_actions(flatten=True))
    columns = ("path", "size_bytes", f"partition.{PARTITION_COLUMN}")
    files: dict[int, list[_Small]] = defaultdict(list)
    for path, size, partition in zip(*(found[c].to_pylist() for c in columns), strict=True):
        if size < _FILE_SIZE:
            files[partition].append(_Small(path, size))
    actions: list[AddAction | RemoveAction] = []
    for partition, small in files.items():
        for old in _of_a_size(small):
            actions += _merge(stager, partition, old)
    return actions


@dataclass(frozen=True, slots=True)
class _Small:
    path: str
    size: int


def _of_a_size(files: list[_Small]) -> Iterator[list[_Small]]:
    """Of these files the groups to merge: from the smallest on, until one is larger by far than all
    before it together."""
    group: list[_Small] = []
    total = 0
    for file in sorted(files, key=attrgetter("size")):
        if group and (file.size > _BY_FAR * total or total >= _MOST_MERGED):
            if len(group) >= _MANY:
                yield group
            group, total = [], 0
        group.append(file)
        total += file.size
    if len(group) >= _MANY:
        yield group


def _merge(stager: Stager, partition: int, old: list[_Small]) -> Iterator[AddAction | RemoveAction]:
    now = round(time.time() * 1000)
    values: dict[str, str | None] = {PARTITION_COLUMN: str(partition)}
    for files, rows in _that_fit(stager, partition, old):
        if len(files) > 1:
            for new in stager.stage(pa.concat_tables(rows)).files:
                yield added(stager.directory, new, is_new=False)
            for file in files:
                yield RemoveAction(file.path, False, now, file.size, values)


def _that_fit(
    stager: Stager, partition: int, files: list[_Small]
) -> Iterator[tuple[list[_Small], list[pa.Table]]]:
    """So many files and their rows as may be in memory at once. A small file may be too large for
    that, where its rows repeat each other: it is left out."""
    some: list[_Small] = []
    kept: list[pa.Table] = []
    size = 0
    for file in files:
        path = stager.directory / unquote(file.path)
        rows = read_file_upto(path, partition, stager.spec.schema, _MOST_ROWS)
        if rows is None:
            continue
        if size + rows.nbytes > _MOST_ROWS:
            yield some, kept
            some, kept, size = [], [], 0
        some.append(file)
        kept.append(rows)
        size += rows.nbytes
    yield some, kept


def optimize(table: DeltaTable) -> int:
    """Sort the table's partitions by stream, in few files; returns how many files it has then."""
    table.optimize.z_order(
        ["stream_cid"],
        target_size=_FILE_SIZE,
        writer_properties=WRITER,
    )
    return len(table.file_uris())


def vacuum(table: DeltaTable, hours: float | None, *, dry_run: bool) -> list[str]:
    """Delete the files that only versions older than `hours` need (None: as the table says), and
    those as old that no version has, for whoever wrote them ended before the commit; returns their
    names. Nobody else may be writing the table."""
    keep = history_of(table) if hours is None else timedelta(hours=hours)
    # delta-rs counts whole hours: rather keep too much.
    whole_hours = math.ceil(keep / timedelta(hours=1))
    files = table.vacuum(whole_hours, enforce_retention_duration=False, dry_run=dry_run, full=True)
    path = Path(unquote(urlsplit(table.table_uri).path))
    return [*files, *_old_changes(path, keep, dry_run=dry_run)]


def _old_changes(path: Path, keep: timedelta, *, dry_run: bool) -> list[str]:
    """The files of the change data feed, which delta-rs leaves where they are."""
    before = time.time() - keep.total_seconds()
    found = [f for f in (path / _CHANGES).rglob("*.parquet") if f.stat().st_mtime <= before]
    for file in () if dry_run else found:
        file.unlink()
    return [str(file.relative_to(path)) for file in found]


def files_of(table: DeltaTable) -> list[str]:
    """The paths of the table's files."""
    return [unquote(uri) for uri in table.file_uris()]


def history_of(table: DeltaTable) -> timedelta:
    """For how long what is replaced can be read in older versions.

    Raises:
        TablesError: another writer has said so in words that are not known.
    """
    text = table.metadata().configuration.get(HISTORY, "interval 7 days")
    words = text.lower().split()
    pairs = words[1:] if words[:1] == ["interval"] else words
    try:
        numbers = [Fraction(number) for number in pairs[::2]]
        hours = [_HOURS[unit.removesuffix("s")] for unit in pairs[1::2]]
        told = sum((n * h for n, h in zip(numbers, hours, strict=True)), Fraction())
        if not pairs or told < 0:
            raise ValueError(text)
        return timedelta(hours=float(told))
    except (ValueError, KeyError, ZeroDivisionError, OverflowError):
        raise TablesError(
            f"the table at {table.table_uri} has the property {HISTORY} = {text!r}, which is no "
            "time such as 'interval 7 days'"
        ) from None
