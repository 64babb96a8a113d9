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
| sha256a(BINARY) | an aggregate: the associative hash of a set of keys, as a node shows it |

`spark-sink query` has them. In a notebook:

    register_functions(spark)               # Spark SQL: SELECT cid(event_cid) FROM ...
    register_duckdb_functions(connection)   # DuckDB
    register_arrow_functions()              # pyarrow.compute.call_function("cid", [column])

`sha256a(event_id)` over a set of events is the Sha256a of CIP-124 (appendix A), by which nodes
compare their sets. It is a sum, so hashes of parts add up: Spark and DuckDB compute it in parallel.

Null gives null; a value that is not what its name says is an error, as a wrong cast is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    from pyspark.sql import Column, SparkSession

DAG_MODEL: Final = StreamId.parse("k17ydli1hfz9iplck75yr5")
"""The model of the streams that carry DAGs, `recon_node.dag.DAG_MODEL`."""


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
_LANES: Final = 8
"""The numbers of 32 bits in a Sha256a."""


def _lane_of(digest: str, lane: int) -> str:
    """Return SQL for the bytes of a lane of a hexadecimal digest, the highest first."""
    return " || ".join(f"substr({digest}, {8 * lane + 2 * byte + 1}, 2)" for byte in (3, 2, 1, 0))


def _sha256a_in_duckdb() -> Iterator[str]:
    yield (
        "CREATE OR REPLACE TEMP MACRO sha256a_lane(total) AS regexp_replace(printf('%08X', "
        "(coalesce(total, 0) % 4294967296)::BIGINT), '(..)(..)(..)(..)', '\\4\\3\\2\\1')"
    )
    lanes = (
        f"sha256a_lane(sum(('0x' || {_lane_of('sha256(key)', lane)})::UBIGINT))"
        for lane in range(_LANES)
    )
    yield f"CREATE OR REPLACE TEMP MACRO sha256a(key) AS {' || '.join(lanes)}"


def sha256a(key: Column) -> Column:
    """Return an aggregate for Spark: the Sha256a of the keys in a column, in upper-case hex.

    The lanes are summed by Spark itself, first within each partition. In SQL, the aggregate of the
    same name collects a group's keys in one place first.
    """
    from pyspark.sql import functions as sql

    digest = sql.sha2(key, 256)
    lanes = []
    for lane in range(_LANES):
        parts = [sql.substring(digest, 8 * lane + 2 * byte + 1, 2) for byte in (3, 2, 1, 0)]
        total = sql.sum(sql.conv(sql.concat(*parts), 16, 10).cast("bigint"))
        folded = sql.lpad(sql.hex(sql.coalesce(total, sql.lit(0)) % 2**32), 8, "0")
        lanes += [sql.substring(folded, place, 2) for place in (7, 5, 3, 1)]
    return sql.concat(*lanes)


def _sha256a_in_spark() -> Any:
    """Return the aggregate for SQL, which computes a group's hash in one place."""
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]  # not in its stub

    def hash_of(keys: pa.Array) -> str:
        return sha256a_of(keys)

    return arrow_udf(hash_of, "string")


def sha256a_of(keys: pa.Array | pa.ChunkedArray) -> str:
    """Return the Sha256a of the keys in an Arrow column, in upper-case hex."""
    from recon_node.recon import Sha256a  # with numpy, which no other function needs

    return str(Sha256a.of(*keys.to_pylist()))


def register_functions(spark: SparkSession) -> None:
    """Add the functions to a Spark session, for SQL and `expr`, until it ends.

    The workers need this package, as for the source "recon".
    """
    for function in FUNCTIONS:
        spark.udf.register(
            function.name, partial(_call, function.call), _SPARK_TYPES[function.returns]
        )
    spark.sql(_IS_DAG_IN_SPARK)
    spark.udf.register("sha256a", _sha256a_in_spark())


def register_duckdb_functions(connection: DuckDBPyConnection) -> None:
    """Add the functions to a DuckDB connection, until it is closed."""
    for function in FUNCTIONS:
        types: list[Any] = [_DUCKDB_TYPES[take] for take in function.takes.values()]
        result: Any = _DUCKDB_TYPES[function.returns]
        connection.create_function(function.name, function.call, types, result)
    for statement in (_IS_DAG_IN_DUCKDB, *_sha256a_in_duckdb()):
        connection.execute(statement)


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
    results = pa.array([_call(function.call, *row) for row in rows], function.returns)
    return results[0] if all(isinstance(column, pa.Scalar) for column in columns) else results


def _is_dag(context: pc.UdfContext, dimensions: Any) -> Any:
    models = pc.map_lookup(dimensions, pa.scalar("model"), "first")
    return pc.fill_null(pc.equal(models, pa.scalar(DAG_MODEL.to_bytes(), pa.binary())), False)
