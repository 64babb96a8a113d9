"""The tables and views in a directory as readers find them, without Spark: where each is, its
versions, and its status.

Typed views of models are Delta tables below `views`, and know their models. A table's name is
unique among tables and views, so a name is enough to find the table.

A version of a table is readable while its log entries and all of its files exist. `vacuum`, and
`spark-sink run` itself, delete files that only versions older than the history need. So if a
version is readable, all later ones are.

All functions raise `TablesError` if a table cannot be opened, or an object store does not answer.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyarrow.fs import FileSelector, FileType

from spark_sink.errors import TablesError, another_log, cannot_open, must_rebuild, one_line
from spark_sink.schema import TABLES, UNPROCESSED, TableSpec
from spark_sink.tables.delta_log import (
    LOG,
    MODEL_PROPERTY,
    epoch_of,
    excludes_dags,
    listed,
    names_of,
    position_of,
    query,
    read_commit,
)
from spark_sink.tables.location import (
    FAULTS,
    Location,
    absolute,
    faults_as,
    file_system,
    files_below,
    find_delta_table,
    is_delta,
    open_delta_table,
)

VIEWS: Final = "views"
"""The directory of the views, below that of the tables."""
NAME: Final = re.compile("[a-z][a-z0-9_]{0,62}")
"""The name of a view."""
_PARQUET_SIGN: Final = "_position.json"
"""A file that only a plain Parquet table has."""

At = int | datetime | None
"""A version: its number, a time, or None for the latest."""


def view_names(directory: Location) -> list[str]:
    """Return the names of the views among the tables in a directory."""
    with faults_as(partial(cannot_open, directory / VIEWS)):
        entries = file_system(directory).get_file_info(FileSelector(VIEWS, allow_not_found=True))
        names = (entry.base_name for entry in entries if entry.type is FileType.Directory)
        usable = (name for name in names if NAME.fullmatch(name))
        return sorted(name for name in usable if is_delta(directory / VIEWS / name))


def path_of(directory: Location, name: str) -> Location:
    """Return where a table or a view is."""
    return directory / name if name in TABLES else directory / VIEWS / name


def spec_of(name: str, table: DeltaTable) -> TableSpec:
    """Return what a table or a view is like."""
    if name in TABLES:
        return TABLES[name]
    model = table.metadata().configuration.get(MODEL_PROPERTY)
    if model is None:
        raise TablesError(f"{table.table_uri} is not a view that spark-sink made")
    return TableSpec(name, pa.schema(table.schema().to_arrow()), "stream_cid", model)


def open_view(directory: Location, name: str) -> tuple[TableSpec, DeltaTable]:
    """Open a view."""
    table = find_delta_table(directory / VIEWS / name) if NAME.fullmatch(name) else None
    if table is None:
        there = ", ".join(view_names(directory)) or "none"
        raise TablesError(f"there is no view {name} in {directory}; there are: {there}")
    return spec_of(name, table), table


def open_delta(directory: Location) -> dict[str, DeltaTable]:
    """Open the tables and views in `directory`, by name."""
    return {
        name: table
        for name in (*TABLES, *view_names(directory))
        if (table := find_delta_table(path_of(directory, name))) is not None
    }


def are_without_dags(tables: Mapping[str, DeltaTable]) -> bool:
    """Return whether tables were made without the events of DAGs."""
    return any(map(excludes_dags, tables.values()))


def open_at(path: Location, at: At) -> DeltaTable:
    """Open the Delta table at `path` as of a version; if it is not readable, say which are."""
    with faults_as(partial(cannot_open, path)):
        latest = open_delta_table(path)
    if at is None:
        return latest
    table = _load(path, at)
    if table is None or not _is_whole(path, table):
        raise TablesError(_not_there(path, at, latest.version()))
    return table


def committed_at(path: Location, version: int) -> datetime:
    """Return when a version of the Delta table at `path` was committed."""
    kind = "json"
    try:
        for entry in read_commit(path, version):
            if stamp := entry.get("commitInfo", {}).get("timestamp"):
                return datetime.fromtimestamp(stamp / 1000, UTC)
    except FileNotFoundError:  # older than the log
        kind = "checkpoint.parquet"
    written: datetime = file_system(path).get_file_info(f"{LOG}/{version:020}.{kind}").mtime
    return written


def text_of(moment: datetime) -> str:
    """Format a time for display, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _load(path: Location, at: int | datetime) -> DeltaTable | None:
    """Open a version of the table; None if it does not exist."""
    version = at if isinstance(at, int) else _version_of(path, at)
    try:
        return None if version is None else open_delta_table(path, version)
    except FAULTS:
        return None


def _version_of(path: Location, moment: datetime) -> int | None:
    """Return the latest version at a time; None before the first.

    delta-rs uses the files' modification times, which a copy of the table loses, and returns the
    first version for earlier times. After a clock has gone back, there are times that were twice,
    and either version is right; but no version is later than the last one.
    """
    names = (PurePath(file.path) for file in files_below(path, LOG))
    versions = sorted(int(n.stem) for n in names if n.suffix == ".json" and n.stem.isdecimal())
    if versions and committed_at(path, versions[-1]) <= moment:
        return versions[-1]
    later = bisect_right(versions, moment, key=lambda version: committed_at(path, version))
    return versions[later - 1] if later else None


def _is_whole(path: Location, table: DeltaTable) -> bool:
    there = {file.path for file in files_below(path)}
    return there.issuperset(names_of(table))


def _not_there(path: Location, at: int | datetime, latest: int) -> str:
    oldest, low = latest, 0
    while low < oldest:
        middle = (low + oldest) // 2
        table = _load(path, middle)
        if table is not None and _is_whole(path, table):
            oldest = middle
        else:
            low = middle + 1
    what = f"has no version {at}" if isinstance(at, int) else f"has no version of {text_of(at)}"
    first = text_of(committed_at(path, oldest))
    kept = "; spark-sink run --history sets how long they are kept" if oldest else ""
    if isinstance(at, datetime):  # times that do not ascend are searched as if they did
        kept += "; if a clock was set back meanwhile, use --version"
    return (
        f"{path.name} {what} that can be read: its versions are {oldest} (of {first}) to "
        f"{latest} (of {text_of(committed_at(path, latest))}){kept}"
    )


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table's current state.

    `position` is the feed position; `files` and `size`, in bytes, are those of the latest version.
    `total` is everything below the table's directory: what older versions need, and the log, too.
    """

    name: str
    epoch: str
    position: int
    rows: int
    version: int
    files: int
    size: int
    total: int
    committed_at: datetime


def table_status(directory: Location) -> list[TableStatus]:
    """Return the status of each table and view in `directory`, at least one."""
    statuses = []
    for name in (*TABLES, *view_names(directory)):
        path = path_of(directory, name)
        try:
            if (table := find_delta_table(path)) is not None:
                statuses.append(_status(name, path, table))
        except (FileNotFoundError, pa.ArrowException) as error:
            raise must_rebuild(path, f"is damaged: {one_line(error)}") from error
        except FAULTS as error:
            raise cannot_open(path, error) from error
    if not statuses:
        raise no_tables(directory)
    return statuses


def read_unprocessed(directory: Location) -> list[dict[str, Any]]:
    """Return the streams that are set aside: `stream_id`, `reason`, `since` and `version`."""
    if (table := find_delta_table(directory / UNPROCESSED)) is None:
        return []
    columns, where = "stream_id, reason, since, version", "reason IS NOT NULL ORDER BY since"
    rows: list[dict[str, Any]] = query(table, f"SELECT {columns} FROM t WHERE {where}").to_pylist()
    return rows


def _status(name: str, path: Location, table: DeltaTable) -> TableStatus:
    files = [*listed(table, "num_records", "size_bytes")]
    return TableStatus(
        name=name,
        epoch=epoch_of(table),
        position=position_of(table),
        rows=sum(_rows_in(path, name) if rows is None else rows for name, rows, _ in files),
        version=table.version(),
        files=len(files),
        size=sum(size for *_, size in files),
        total=sum(file.size for file in files_below(path)),
        committed_at=committed_at(path, table.version()),
    )


def _rows_in(path: Location, file: str) -> int:
    rows: int = pq.read_metadata(file, filesystem=file_system(path)).num_rows
    return rows


def find_own_table(path: Location) -> DeltaTable | None:
    """Open the table at `path`, which spark-sink must have made; None if there is no table.

    Files with rows are not read: they may be damaged.
    """
    table = find_delta_table(path)
    if table is not None and not epoch_of(table):
        raise another_log(path, "", "")
    return table


def is_table(directory: Location) -> bool:
    """Return whether a directory is a table; False if it is on a disk and not readable."""
    if not isinstance(directory, Path):
        return find_delta_table(directory) is not None
    try:
        return any((directory / name).exists() for name in ("_delta_log", _PARQUET_SIGN))
    except OSError:
        return False


def are_parquet(directory: Location) -> bool:
    """Return whether a directory has plain Parquet tables, which older versions could write."""
    return isinstance(directory, Path) and any(
        (directory / name / _PARQUET_SIGN).exists() for name in TABLES
    )


def no_tables(directory: Location) -> TablesError:
    """Return the error for a directory without tables."""
    whole = absolute(directory)
    if is_table(whole):
        return TablesError(f"{directory} is a table itself: the tables are in {whole.parent}")
    try:
        if isinstance(whole, Path) and not whole.is_dir():
            return TablesError(f"there are no tables in {directory}: the directory does not exist")
        if are_parquet(whole):
            return TablesError(
                f"the tables in {directory} are plain Parquet files of an older version of "
                "spark-sink, and this one keeps Delta tables: run it with --tables and a new "
                "directory, and it reads all events from the node again"
            )
    except OSError as error:
        return TablesError(f"cannot look for tables in {directory}: {error.strerror}")
    return TablesError(f"there are no tables in {directory}: spark-sink run creates them")
