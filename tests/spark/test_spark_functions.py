"""The functions for binary columns, in each engine: the same answers, and null for null."""

from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ipld import CID
from recon_node.recon import Sha256a
from spark_sink.functions import (
    DAG_MODEL,
    FUNCTIONS,
    register_arrow_functions,
    register_duckdb_functions,
    register_functions,
    sha256a,
    sha256a_of,
)
from spark_sink.schema import partition_of

ANSWERS = (
    "SELECT cid(raw) AS cid, cid_string(raw) AS again, from_cid(cid(raw)) AS back, "
    "stream_id(kind, raw) AS stream, stream_cid_of(stream_id(kind, raw)) AS of_stream, "
    "stream_id_string(from_stream_id(stream_id(kind, raw))) AS string, "
    "stream_partition(raw) AS partition, is_dag(dimensions) AS dag FROM t ORDER BY n"
)


def rows_of(sample: list[Event]) -> list[dict[str, Any]]:
    models = [DAG_MODEL.to_bytes(), b"", None]
    rows: list[dict[str, Any]] = [
        {"n": n, "raw": bytes(event.cid), "kind": 2 + n % 2, "model": models[n % 3]}
        for n, event in enumerate(sample[:6])
    ]
    return [*rows, {"n": 6, "raw": None, "kind": None, "model": None}]


def expected(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    results: list[tuple[Any, ...]] = []
    for row in rows:
        if row["raw"] is None:
            results.append((*(None,) * 7, False))
            continue
        text = str(CID(row["raw"]))
        stream = str(StreamId(StreamType(row["kind"]), CID(row["raw"])))
        raw = row["raw"]
        dag = row["model"] == DAG_MODEL.to_bytes()
        results.append((text, text, raw, stream, raw, stream, partition_of(raw), dag))
    return results


def test_in_duckdb(sample: list[Event]) -> None:
    rows = rows_of(sample)
    with duckdb.connect() as connection:
        register_duckdb_functions(connection)
        connection.execute("CREATE TABLE t (n INT, raw BLOB, kind INT, dimensions MAP(TEXT, BLOB))")
        for row in rows:
            values = [row["n"], row["raw"], row["kind"], row["model"]]
            connection.execute("INSERT INTO t VALUES (?, ?, ?, MAP {'model': ?})", values)
        assert connection.execute(ANSWERS).fetchall() == expected(rows)
        with pytest.raises(duckdb.Error, match="CidError"):
            connection.execute("SELECT cid('\\x00'::BLOB)")


def test_in_arrow(sample: list[Event]) -> None:
    register_arrow_functions()
    register_arrow_functions()  # as in a notebook whose cell is run again
    rows = rows_of(sample)
    raw = pa.chunked_array([[row["raw"] for row in part] for part in (rows[:3], rows[3:])])
    kind = pa.chunked_array([[row["kind"] for row in rows]], pa.int32())
    dimensions = pa.array(
        [[("model", row["model"])] for row in rows], pa.map_(pa.string(), pa.binary())
    )

    def call(name: str, *columns: Any) -> Any:
        return pc.call_function(name, list(columns))

    stream = call("stream_id", kind, raw.combine_chunks())
    columns = [
        call("cid", raw),
        call("cid_string", raw),
        call("from_cid", call("cid", raw)),
        stream,
        call("stream_cid_of", stream),
        call("stream_id_string", call("from_stream_id", stream)),
        call("stream_partition", raw),
        call("is_dag", dimensions),
    ]
    got = list(zip(*(column.to_pylist() for column in columns), strict=True))
    assert got == expected(rows)
    one = call("stream_id", pa.scalar(3, pa.int32()), raw.chunk(0))
    assert one.to_pylist() == [str(StreamId(3, CID(row["raw"]))) for row in rows[:3]]
    assert call("cid", pa.scalar(rows[0]["raw"])).as_py() == str(CID(rows[0]["raw"]))


@pytest.mark.spark
def test_in_spark(sample: list[Event], spark: SparkSession) -> None:
    register_functions(spark)
    rows = rows_of(sample)
    table = pa.table(
        {
            "n": pa.array([row["n"] for row in rows], pa.int32()),
            "raw": pa.array([row["raw"] for row in rows], pa.binary()),
            "kind": pa.array([row["kind"] for row in rows], pa.int32()),
            "dimensions": pa.array(
                [[("model", row["model"])] for row in rows], pa.map_(pa.string(), pa.binary())
            ),
        }
    )
    # Of several partitions, Spark would compute all twice, to know where to divide the order.
    spark.createDataFrame(table).coalesce(1).createOrReplaceTempView("t")
    answer = spark.sql(ANSWERS).toArrow().to_pylist()
    assert [tuple(row.values()) for row in answer] == expected(rows)


KEYS = st.lists(st.binary(max_size=60), max_size=40, unique=True)


@given(KEYS)
def test_sha256a_in_duckdb_and_arrow(keys: list[bytes]) -> None:
    column = pa.array(keys, pa.binary())
    with duckdb.connect() as connection:
        register_duckdb_functions(connection)
        connection.register("t", pa.table({"key": column}))
        ((digest,),) = connection.execute("SELECT sha256a(key) FROM t").fetchall()
    assert digest == sha256a_of(column) == str(Sha256a.of(*keys))


@pytest.mark.spark
def test_sha256a_in_spark(spark: SparkSession) -> None:
    """In several partitions, as a column and in SQL: the hash of the whole and of groups."""
    register_functions(spark)
    keys = [b"key %d" % n for n in range(1000)]
    table = pa.table({"key": pa.array(keys, pa.binary()), "half": [n % 2 for n in range(1000)]})
    rows = spark.createDataFrame(table).repartition(3)
    rows.createOrReplaceTempView("keys")
    halves = {half: str(Sha256a.of(*keys[half::2])) for half in (0, 1)}
    by_column = rows.rollup("half").agg(sha256a(rows["key"])).collect()
    assert dict(by_column) == {None: str(Sha256a.of(*keys)), **halves}
    by_sql = spark.sql("SELECT half, sha256a(key) FROM keys GROUP BY half").collect()
    assert dict(by_sql) == halves
    ((none,),) = rows.where("half = 2").select(sha256a(rows["key"])).collect()
    assert none == "0" * 64


def test_the_documentation_has_them() -> None:
    import spark_sink.functions

    documented = spark_sink.functions.__doc__ or ""
    assert all(f"{function.name}(" in documented for function in FUNCTIONS)
