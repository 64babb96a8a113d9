"""Looking at the tables without Spark: how far they are, and what they take."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_sink.delta import epoch_of, position_of
from spark_sink.errors import TablesError
from spark_sink.parquet import files_of, read_position
from spark_sink.schema import TABLES


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as it is now. `position` is the feed's, `size` is in bytes; only Delta tables have
    versions."""

    name: str
    epoch: str
    position: int
    rows: int
    version: int | None
    files: int
    size: int


def table_status(directory: Path) -> list[TableStatus]:
    """How far each table in `directory` is.

    Raises:
        TablesError: there are no tables.
    """
    found = [_status(name, directory / name) for name in TABLES]
    if not any(found):
        raise TablesError(f"there are no tables in {directory}: spark-sink run makes them")
    return [status for status in found if status]


def open_delta(directory: Path, version: int | None = None) -> dict[str, DeltaTable]:
    """The Delta tables in `directory` by their names, as they were at a version."""
    paths = [str(directory / name) for name in TABLES]
    found = [path for path in paths if DeltaTable.is_deltatable(path)]
    return {Path(path).name: DeltaTable(path, version=version) for path in found}


def _status(name: str, path: Path) -> TableStatus | None:
    if DeltaTable.is_deltatable(str(path)):
        return _delta_status(name, DeltaTable(str(path)))
    if (found := read_position(path)) is None:
        return None
    epoch, position, _ = found
    files = files_of(path)
    return TableStatus(
        name=name,
        epoch=epoch,
        position=position,
        rows=sum(pq.read_metadata(file).num_rows for file in files),
        version=None,
        files=len(files),
        size=sum(file.stat().st_size for file in files),
    )


def _delta_status(name: str, table: DeltaTable) -> TableStatus:
    files = pa.table(table.get_add_actions(flatten=True))
    epoch = epoch_of(table)
    return TableStatus(
        name=name,
        epoch=epoch,
        position=position_of(table, epoch),
        rows=sum(files["num_records"].to_pylist()),
        version=table.version(),
        files=files.num_rows,
        size=sum(files["size_bytes"].to_pylist()),
    )
