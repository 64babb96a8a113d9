"""The status of tables and views, without Spark: position, size and age.

All functions raise `TablesError` if a table cannot be opened, or an object store does not answer.
"""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_sink.errors import TablesError, another_log, cannot_open, damaged, one_line
from spark_sink.schema import TABLES, UNPROCESSED
from spark_sink.tables.commits import (
    Reading,
    epoch_of,
    excludes_dags,
    has_changed_logs,
    position_of,
    reading_of,
)
from spark_sink.tables.delta_files import listed, query
from spark_sink.tables.location import (
    FAULTS,
    Location,
    absolute,
    file_system,
    files_below,
    find_delta_table,
)
from spark_sink.tables.versions import committed_at
from spark_sink.tables.views import path_of, view_names

# Only a plain Parquet table has this file.
_PARQUET_SIGN: Final = "_position.json"


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
    statuses = [
        _status(name, path_of(directory, name)) for name in (*TABLES, *view_names(directory))
    ]
    if not any(statuses):
        raise no_tables(directory)
    return [status for status in statuses if status]


def read_unprocessed(directory: Location) -> list[dict[str, Any]]:
    """Return the streams that are set aside: `stream_id`, `reason`, `since` and `version`."""
    if (table := find_delta_table(directory / UNPROCESSED)) is None:
        return []
    columns = "stream_id, reason, since, version"
    where = "reason IS NOT NULL ORDER BY since"
    rows: list[dict[str, Any]] = query(
        {"t": table}, f"SELECT {columns} FROM t WHERE {where}"
    ).to_pylist()
    return rows


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


def open_delta(directory: Location) -> dict[str, DeltaTable]:
    """Open the tables and views in `directory`, by name."""
    return {
        name: table
        for name in (*TABLES, *view_names(directory))
        if (table := find_delta_table(path_of(directory, name))) is not None
    }


def are_without_dags(directory: Location) -> bool:
    """Return whether the tables in `directory` were made without the events of DAGs."""
    return any(map(excludes_dags, open_delta(directory).values()))


class Origin(NamedTuple):
    """The log that a table was made from, its position, and how far which log was read."""

    epoch: str
    position: int
    reading: Reading
    has_changed_logs: bool


def made_from(path: Location) -> Origin | None:
    """Return the log that the table at `path` was made from, and its position.

    None if there is no table. Files with rows are not read: they may be damaged.
    """
    if (table := find_delta_table(path)) is None:
        return None
    if not (epoch := epoch_of(table)):
        raise another_log(path, epoch, "")
    return Origin(
        epoch, position_of(table, epoch), reading_of(table, epoch), has_changed_logs(table)
    )


def _status(name: str, path: Location) -> TableStatus | None:
    try:
        table = find_delta_table(path)
        return None if table is None else _status_of(name, path, table)
    except (FileNotFoundError, pa.ArrowException) as error:
        raise damaged(path, one_line(error)) from error
    except FAULTS as error:
        raise cannot_open(path, error) from error


def _status_of(name: str, path: Location, table: DeltaTable) -> TableStatus:
    files = [*listed(table, "num_records", "size_bytes")]
    epoch = epoch_of(table)
    return TableStatus(
        name=name,
        epoch=epoch,
        position=position_of(table, epoch),
        rows=sum(_rows_in(path, name) if rows is None else rows for name, rows, _ in files),
        version=table.version(),
        files=len(files),
        size=sum(size for *_, size in files),
        total=sum(file.size for file in files_below(path)),
        committed_at=committed_at(path, table.version()),
    )


def _rows_in(path: Location, file: str) -> int:
    """Read the number of rows from a file without statistics."""
    rows: int = pq.read_metadata(file, filesystem=file_system(path)).num_rows
    return rows
