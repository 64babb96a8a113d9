"""Looking at the tables without Spark: how far they are, and what is in them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from recon_node.ipld import CID, CidError
from spark_sink.errors import TablesError
from spark_sink.tables import RAW_EVENTS_DIR, STREAM_TIPS_DIR, epoch_of, position_of, query


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A table as it is now. `position` is the feed's, `size` is in bytes."""

    name: str
    epoch: str
    position: int
    rows: int
    version: int
    files: int
    size: int


def table_status(directory: Path) -> list[TableStatus]:
    """How far each table in `directory` is.

    Raises:
        TablesError: there are no tables.
    """
    return [_status(name, table) for name, table in open_all(directory).items()]


def run_query(directory: Path, sql: str) -> pa.Table:
    """The answer to a SELECT over the tables in `directory`.

    Raises:
        TablesError: there are no tables, or the query is wrong.
    """
    try:
        return query(open_all(directory), sql)
    except DeltaError as error:
        raise TablesError(" ".join(str(error).split())) from error


def open_all(directory: Path) -> dict[str, DeltaTable]:
    """The tables in `directory` by their names.

    Raises:
        TablesError: there are none.
    """
    paths = [directory / name for name in (RAW_EVENTS_DIR, STREAM_TIPS_DIR)]
    found = {p.name: DeltaTable(str(p)) for p in paths if DeltaTable.is_deltatable(str(p))}
    if not found:
        raise TablesError(f"there are no tables in {directory}: spark-sink run makes them")
    return found


def show(value: Any) -> Any:
    """A value for people and for JSON: CIDs as text, other bytes as hex."""
    if isinstance(value, bytes):
        try:
            return str(CID(value))
        except CidError:
            return "0x" + value.hex()
    if isinstance(value, list):
        return [show(item) for item in value]
    if isinstance(value, tuple):  # an entry of a map
        return [show(item) for item in value]
    return value


def _status(name: str, table: DeltaTable) -> TableStatus:
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
