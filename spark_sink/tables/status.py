"""The status of the tables, without Spark: position, size and age."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_sink.errors import TablesError, another_log, cannot_open, damaged, one_line
from spark_sink.schema import TABLES
from spark_sink.tables.delta import FAULTS, epoch_of, position_of
from spark_sink.tables.versions import committed_at

# Only a plain Parquet table has this file.
_PARQUET_SIGN: Final = "_position.json"


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table's current state.

    `position` is the feed position; `files` and `size`, in bytes, are those of the latest version.
    """

    name: str
    epoch: str
    position: int
    rows: int
    version: int
    files: int
    size: int
    committed_at: datetime


def table_status(directory: Path) -> list[TableStatus]:
    """Return the status of each table in `directory`.

    Raises:
        TablesError: there are no tables, or one cannot be read.
    """
    found = [_status(name, directory / name) for name in TABLES]
    if not any(found):
        raise no_tables(directory)
    return [status for status in found if status]


def is_table(directory: Path) -> bool:
    """Return whether a directory is a table; False if it is not readable."""
    try:
        return any((directory / name).exists() for name in ("_delta_log", _PARQUET_SIGN))
    except OSError:
        return False


def are_parquet(directory: Path) -> bool:
    """Return whether a directory has plain Parquet tables, which older versions could write."""
    return any((directory / name / _PARQUET_SIGN).exists() for name in TABLES)


def no_tables(directory: Path) -> TablesError:
    """Return the error for a directory without tables."""
    absolute = directory.absolute()
    if is_table(absolute):
        return TablesError(f"{directory} is a table itself: the tables are in {absolute.parent}")
    try:
        if not absolute.is_dir():
            return TablesError(f"there are no tables in {directory}: the directory does not exist")
        if are_parquet(absolute):
            return TablesError(
                f"the tables in {directory} are plain Parquet files of an older version of "
                "spark-sink, and this one keeps Delta tables: run it with --tables and a new "
                "directory, and it reads all events from the node again"
            )
    except OSError as error:
        return TablesError(f"cannot look for tables in {directory}: {error.strerror}")
    return TablesError(f"there are no tables in {directory}: spark-sink run creates them")


def open_delta(directory: Path) -> dict[str, DeltaTable]:
    """Open the Delta tables in `directory`, by name.

    Raises:
        TablesError: one cannot be opened.
    """
    paths = [directory / name for name in TABLES]
    return {path.name: _open(path) for path in paths if is_delta(path)}


def is_delta(path: Path) -> bool:
    """Return whether there is a Delta table at `path`."""
    return DeltaTable.is_deltatable(str(path))


def made_from(path: Path) -> tuple[str, int] | None:
    """Return the log that the table at `path` was made from, and its feed position.

    None if there is no table. Files with rows are not read: they may be damaged.

    Raises:
        TablesError: its metadata is damaged, or it was not made by spark-sink.
    """
    if not is_delta(path):
        return None
    table = _open(path)
    if not (epoch := epoch_of(table)):
        raise another_log(path, epoch, "")
    return epoch, position_of(table, epoch)


def _open(path: Path) -> DeltaTable:
    try:
        return DeltaTable(str(path))
    except FAULTS as error:
        raise cannot_open(path, error) from error


def _status(name: str, path: Path) -> TableStatus | None:
    try:
        return _status_of(name, path) if is_delta(path) else None
    except (FileNotFoundError, pa.ArrowException) as error:
        raise damaged(path, one_line(error)) from error
    except FAULTS as error:
        raise cannot_open(path, error) from error


def _status_of(name: str, path: Path) -> TableStatus:
    table = _open(path)
    files = pa.table(table.get_add_actions(flatten=True))
    epoch = epoch_of(table)
    return TableStatus(
        name=name,
        epoch=epoch,
        position=position_of(table, epoch),
        rows=sum(_rows_of(path, files)),
        version=table.version(),
        files=files.num_rows,
        size=sum(files["size_bytes"].to_pylist()),
        committed_at=committed_at(path, table.version()),
    )


def _rows_of(path: Path, files: pa.Table) -> Iterator[int]:
    """Yield the number of rows in each file, reading it from files without statistics."""
    names, counts = files["path"].to_pylist(), files["num_records"].to_pylist()
    for name, count in zip(names, counts, strict=True):
        yield pq.read_metadata(path / unquote(name)).num_rows if count is None else count
