"""Looking at the tables without Spark: how far they are, what they take, and how old they are."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_sink.errors import TablesError
from spark_sink.schema import TABLES
from spark_sink.tables.delta import epoch_of, position_of
from spark_sink.tables.parquet import POSITION_FILE, files_of, read_position
from spark_sink.tables.versions import committed_at


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as it is now. `position` is the feed's; `files` and `size`, in bytes, are those of
    the latest version; only Delta tables have versions."""

    name: str
    format: str
    epoch: str
    position: int
    rows: int
    version: int | None
    files: int
    size: int
    committed_at: datetime


def table_status(directory: Path) -> list[TableStatus]:
    """How far each table in `directory` is.

    Raises:
        TablesError: there are no tables, or one cannot be read.
    """
    found = [_status(name, directory / name) for name in TABLES]
    if not any(found):
        raise no_tables(directory)
    return [status for status in found if status]


def no_tables(directory: Path) -> TablesError:
    """What is wrong with a directory that holds no tables."""
    absolute = directory.absolute()
    if any((absolute / name).exists() for name in ("_delta_log", POSITION_FILE)):
        return TablesError(f"{directory} is a table itself: the tables are in {absolute.parent}")
    if not absolute.is_dir():
        return TablesError(f"there are no tables in {directory}: there is no such directory")
    return TablesError(f"there are no tables in {directory}: spark-sink run makes them")


def open_delta(directory: Path) -> dict[str, DeltaTable]:
    """The Delta tables in `directory` by their names."""
    paths = [directory / name for name in TABLES]
    return {path.name: DeltaTable(str(path)) for path in paths if is_delta(path)}


def is_delta(path: Path) -> bool:
    """Whether there is a Delta table at `path`."""
    return DeltaTable.is_deltatable(str(path))


def _status(name: str, path: Path) -> TableStatus | None:
    try:
        if is_delta(path):
            return _delta_status(name, path)
        return _parquet_status(name, path)
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise TablesError(
            f"cannot read the table {path}: {' '.join(str(error).split())}"
        ) from error


def _parquet_status(name: str, path: Path) -> TableStatus | None:
    if (found := read_position(path)) is None:
        return None
    epoch, position, _ = found
    files = files_of(path)
    return TableStatus(
        name=name,
        format="parquet",
        epoch=epoch,
        position=position,
        rows=sum(pq.read_metadata(file).num_rows for file in files),
        version=None,
        files=len(files),
        size=sum(file.stat().st_size for file in files),
        committed_at=datetime.fromtimestamp((path / POSITION_FILE).stat().st_mtime, UTC),
    )


def _delta_status(name: str, path: Path) -> TableStatus:
    table = DeltaTable(str(path))
    files = pa.table(table.get_add_actions(flatten=True))
    epoch = epoch_of(table)
    return TableStatus(
        name=name,
        format="delta",
        epoch=epoch,
        position=position_of(table, epoch),
        rows=sum(files["num_records"].to_pylist()),
        version=table.version(),
        files=files.num_rows,
        size=sum(files["size_bytes"].to_pylist()),
        committed_at=committed_at(path, table.version()),
    )
