"""Functions for the binary columns of the tables: in Spark SQL, in DuckDB and as Arrow compute.

| function | returns |
|---|---|
| cid(BINARY), cid_string(BINARY) | a CID as text, `b...`; the second is ceramic-one's name |
| from_cid(TEXT) | the bytes of a CID |
| stream_id(INTEGER, BINARY) | the StreamID, `k...`, for a type and a stream CID |
| stream_cid_of(TEXT) | the stream CID in a StreamID, as bytes |
| stream_id_string(BINARY) | a binary StreamID, such as dimensions['model'], as text |
| from_stream_id(TEXT) | the bytes of a StreamID |
| stream_partition(BINARY) | the value of `stream_cid_partition` for a stream's CID |
| is_dag(dimensions) | whether a stream is a shard, a replica or a publish of a DAG |

`spark-sink query` has them. In a notebook:

    register_functions(spark)               # Spark SQL: SELECT cid(event_cid) FROM ...
    register_duckdb_functions(connection)   # DuckDB
    register_arrow_functions()              # pyarrow.compute.call_function("cid", [column])

Null gives null; a value that is not what its name says is an error, as a wrong cast is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from recon_node.ceramic import StreamId
from recon_node.ipld import CID
from spark_sink.schema import partition_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

#: The model of the streams that carry DAGs, `recon_node.dag.DAG_MODEL`.
DAG_MODEL: Final = StreamId.parse("k17ydli1hfz9iplck75yr5")


class Function(NamedTuple):
    """A function of values that are not null; `takes` names its arguments with their types."""

    name: str
    call: Callable[..., Any]
    takes: dict[str, pa.DataType]
    returns: pa.DataType
    meaning: str


def _cid(raw: bytes) -> str:
    return str(CID(bytes(raw)))


def _from_cid(text: str) -> bytes:
    return bytes(CID.parse(text))


def _stream_id(kind: int, raw: bytes) -> str:
    return str(StreamId(kind, CID(bytes(raw))))


def _stream_cid_of(text: str) -> bytes:
    return bytes(StreamId.parse(text).cid)


def _stream_id_string(raw: bytes) -> str:
    return str(StreamId.from_bytes(bytes(raw)))


def _from_stream_id(text: str) -> bytes:
    return StreamId.parse(text).to_bytes()


_RAW, _TEXT = {"cid": pa.binary()}, {"text": pa.string()}
FUNCTIONS: Final = (
    Function("cid", _cid, _RAW, pa.string(), "a CID as text"),
    Function("cid_string", _cid, _RAW, pa.string(), "a CID as text"),
    Function("from_cid", _from_cid, _TEXT, pa.binary(), "the bytes of a CID"),
    Function(
        "stream_id",
        _stream_id,
        {"stream_type": pa.int32(), "stream_cid": pa.binary()},
        pa.string(),
        "the StreamID for a type and a stream CID",
    ),
    Function("stream_cid_of", _stream_cid_of, _TEXT, pa.binary(), "the stream CID in a StreamID"),
    Function(
        "stream_id_string",
        _stream_id_string,
        {"stream_id": pa.binary()},
        pa.string(),
        "a binary StreamID as text",
    ),
    Function("from_stream_id", _from_stream_id, _TEXT, pa.binary(), "the bytes of a StreamID"),
    Function(
        "stream_partition",
        partition_of,
        {"stream_cid": pa.binary()},
        pa.int32(),
        "the partition of a stream",
    ),
)
_SPARK_TYPES: Final = {pa.string(): "string", pa.binary(): "binary", pa.int32(): "int"}
_DUCKDB_TYPES: Final = {pa.string(): "VARCHAR", pa.binary(): "BLOB", pa.int32(): "INTEGER"}
_DIMENSIONS: Final = pa.map_(pa.string(), pa.binary())
# These run inside the engines: they are cheap even for millions of rows.
_IS_DAG_IN_DUCKDB: Final = (
    "CREATE OR REPLACE TEMP MACRO is_dag(dimensions) AS coalesce(dimensions['model'] = "
    f"from_hex('{DAG_MODEL.to_bytes().hex()}'), false)"
)
_IS_DAG_IN_SPARK: Final = (
    "CREATE OR REPLACE TEMPORARY FUNCTION is_dag(dimensions MAP<STRING, BINARY>) RETURNS BOOLEAN "
    f"RETURN coalesce(dimensions['model'] = X'{DAG_MODEL.to_bytes().hex()}', false)"
)


def register_functions(spark: SparkSession) -> None:
    """Add the functions to a Spark session, for SQL and `expr`, until it ends.

    The workers need this package, as for the source "recon".
    """
    for function in FUNCTIONS:
        spark.udf.register(
            function.name, partial(_call, function.call), _SPARK_TYPES[function.returns]
        )
    spark.sql(_IS_DAG_IN_SPARK)


def register_duckdb_functions(connection: DuckDBPyConnection) -> None:
    """Add the functions to a DuckDB connection, until it is closed."""
    for function in FUNCTIONS:
        types: list[Any] = [_DUCKDB_TYPES[each] for each in function.takes.values()]
        result: Any = _DUCKDB_TYPES[function.returns]
        connection.create_function(function.name, function.call, types, result)
    connection.execute(_IS_DAG_IN_DUCKDB)


def register_arrow_functions() -> None:
    """Add the functions to Arrow's in this process; again does nothing."""
    if "is_dag" in pc.list_functions():
        return
    for function in FUNCTIONS:
        document = {"summary": function.meaning, "description": function.meaning}
        pc.register_scalar_function(
            partial(_compute, function), function.name, document, function.takes, function.returns
        )
    document = {"summary": "whether a stream belongs to a DAG", "description": "see docs/dag.md"}
    pc.register_scalar_function(
        _is_dag, "is_dag", document, {"dimensions": _DIMENSIONS}, pa.bool_()
    )


def _call(function: Callable[..., Any], *values: Any) -> Any:
    return None if None in values else function(*values)


def _compute(function: Function, context: pc.UdfContext, *columns: Any) -> Any:
    values: Sequence[Any] = [
        repeat(column.as_py(), context.batch_length)
        if isinstance(column, pa.Scalar)
        else column.to_pylist()
        for column in columns
    ]
    rows = zip(*values, strict=True)
    found = pa.array([_call(function.call, *row) for row in rows], function.returns)
    return found[0] if all(isinstance(column, pa.Scalar) for column in columns) else found


def _is_dag(context: pc.UdfContext, dimensions: Any) -> Any:
    models = pc.map_lookup(dimensions, pa.scalar("model"), "first")
    return pc.fill_null(pc.equal(models, pa.scalar(DAG_MODEL.to_bytes(), pa.binary())), False)
