"""A quick look into the tables in SQL, by DuckDB: no Java, no server, JSON functions built in.

DuckDB reads the Parquet files that a version of a Delta table names; spark-sink writes nothing
beside them, such as deletion vectors. What Ceramic writes as text is bytes in the tables, so there
are functions for it:

| function | gives |
|---|---|
| cid(BLOB) | a CID as text, `b...`; also under ceramic-one's name `cid_string` |
| stream_id(stream_type, BLOB) | the StreamID of a stream, `k...` |
| stream_id_string(BLOB) | a StreamID in its bytes, such as dimensions['model'], as text |
| from_cid(VARCHAR) | the bytes of a CID |
| stream_cid_of(VARCHAR) | the bytes of the CID of a stream, of its StreamID |
| stream_partition(BLOB) | the value of `stream_cid_partition` for a stream's CID |
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from duckdb import DuckDBPyConnection

from recon_node.ceramic import StreamId
from recon_node.ipld import CID
from spark_sink import delta
from spark_sink.errors import TablesError
from spark_sink.parquet import files_of, read_position
from spark_sink.schema import PARTITION_COLUMN, TABLES, partition_of

# Name, types of the arguments, type of the result, and what it does with each row.
_Function = tuple[str, list[Any], str, Callable[..., Any]]
_FUNCTIONS: Final[tuple[_Function, ...]] = (
    ("cid", ["BLOB"], "VARCHAR", lambda raw: str(CID(raw))),
    ("cid_string", ["BLOB"], "VARCHAR", lambda raw: str(CID(raw))),
    ("stream_id", ["INTEGER", "BLOB"], "VARCHAR", lambda kind, raw: str(StreamId(kind, CID(raw)))),
    ("stream_id_string", ["BLOB"], "VARCHAR", lambda raw: str(StreamId.from_bytes(raw))),
    ("from_cid", ["VARCHAR"], "BLOB", lambda text: bytes(CID.parse(text))),
    ("stream_cid_of", ["VARCHAR"], "BLOB", lambda text: bytes(StreamId.parse(text).cid)),
    ("stream_partition", ["BLOB"], "INTEGER", partition_of),
)
# Delta keeps the partition in the names of directories.
_PARTITIONED: Final = f", hive_partitioning=true, hive_types={{'{PARTITION_COLUMN}': INTEGER}}"


def run_query(directory: Path, sql: str, version: int | None = None) -> pa.Table:
    """The answer to a SELECT over the tables in `directory`.

    Args:
        directory: of the tables.
        sql: in DuckDB's dialect.
        version: of the Delta tables that are asked; the latest when left out. Only tables that have
            such a version can be asked then.

    Raises:
        TablesError: there are no tables, or the query is wrong.
    """
    with duckdb.connect() as connection:
        for name, types, result, function in _FUNCTIONS:
            connection.create_function(name, function, types, result)
        found = [_register(connection, directory / name, version) for name in TABLES]
        if not any(found):
            at = "" if version is None else f" with a version {version}"
            raise TablesError(f"there are no tables{at} in {directory}: spark-sink run makes them")
        try:
            return connection.execute(sql).to_arrow_table()
        except duckdb.Error as error:
            raise TablesError(" ".join(str(error).split())) from error


def _register(connection: DuckDBPyConnection, path: Path, version: int | None) -> bool:
    """Make a table known by its name; False when it is not there."""
    files = _files(path, version)
    if files is None:
        return False
    spec = TABLES[path.name]
    if version is not None and not all(Path(file).exists() for file in files):
        raise TablesError(
            f"version {version} of {path.name} is too old: some of its files were deleted; see "
            "spark-sink run --history"
        )
    if not files:
        connection.register(path.name, spec.schema.empty_table())
        return True
    names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute(
        f"CREATE VIEW {path.name} AS SELECT * FROM read_parquet([{names}], union_by_name=true"
        f"{_PARTITIONED if (path / '_delta_log').exists() else ''})"
    )
    return True


def _files(path: Path, version: int | None) -> list[str] | None:
    if not DeltaTable.is_deltatable(str(path)):
        if version is not None or read_position(path) is None:
            return None
        return [str(file) for file in files_of(path)]
    try:
        return delta.files_of(DeltaTable(str(path), version=version))
    except DeltaError as error:
        if version is not None:
            return None
        raise TablesError(
            f"cannot open the table {path}: {' '.join(str(error).split())}"
        ) from error
