"""The view `tangles`: as the node answers, from the tables alone."""

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from spark_helpers import EPOCH, feed_rows
from support.tangle_samples import ALL, BOTH, LEFT, LOOSE, RIGHT, ROOT, THREAD, WRONG, ids

from spark_sink.query.question import run_query
from spark_sink.query.tangles_view import tangles_of
from spark_sink.run.pipeline import Sink
from spark_sink.tables.tables import Tables


def asked(directory: Path, columns: str) -> list[tuple[object, ...]]:
    with run_query(directory, f"SELECT {columns} FROM tangles ORDER BY place, stream_id") as answer:
        return list(answer.rows)


def filled(directory: Path, *steps: slice) -> Path:
    sink = Sink(Tables(directory, EPOCH))
    for step in steps:
        sink.tables.append(feed_rows(ALL[step]))
        sink.catch_up()
    return directory


def test_a_thread_is_a_view(tmp_path: Path) -> None:
    filled(tmp_path, slice(None))
    rows = asked(tmp_path, "stream_id, place, is_tip, author, root, name")
    assert [row[0] for row in rows[:4]] == ids(ROOT, RIGHT, LEFT, BOTH)
    assert [row[1] for row in rows] == [0, 1, 2, 3, None, None]
    assert [row[2] for row in rows] == [False] * 3 + [True] + [False] * 2
    assert {row[4:] for row in rows} == {(*ids(ROOT), THREAD)}
    excluded = {row[0]: str(row[1]) for row in asked(tmp_path, "stream_id, excluded_because")[4:]}
    assert set(excluded) == set(ids(WRONG, LOOSE))
    assert "text" in excluded[ids(WRONG)[0]]
    assert "must be here" in excluded[ids(LOOSE)[0]]


@pytest.mark.spark
def test_a_thread_in_spark(tmp_path: Path, spark: SparkSession) -> None:
    """As the page says: the view, as a table of Spark, from what Spark reads of `event_states`."""
    tables = filled(tmp_path, slice(None))
    states = DeltaTable(tables / "event_states").to_pyarrow_table()
    rows = spark.createDataFrame(states).where("event_type = 'init'").toArrow().to_pylist()
    spark.createDataFrame(tangles_of(rows)).createOrReplaceTempView("tangles")
    columns = "stream_id, place, previous, is_tip, excluded_because, content"
    frame = spark.sql(f"SELECT {columns} FROM tangles ORDER BY place NULLS LAST, stream_id")
    assert list(map(tuple, frame.collect())) == asked(tables, columns)
    order = spark.sql("SELECT stream_id FROM tangles WHERE place IS NOT NULL ORDER BY place")
    assert [row[0] for row in order.collect()] == ids(ROOT, RIGHT, LEFT, BOTH)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_the_view_follows_the_tables(tmp_path: Path, cut: int) -> None:
    """In two steps, as in one."""
    filled(tmp_path / "one", slice(None))
    filled(tmp_path / "two", slice(cut), slice(None))
    columns = "stream_id, place, previous, content, excluded_because"
    assert asked(tmp_path / "one", columns) == asked(tmp_path / "two", columns)


def test_tables_without_tangles_have_an_empty_view(tmp_path: Path) -> None:
    filled(tmp_path, slice(1))
    assert asked(tmp_path, "*") == []
    with run_query(tmp_path, "SELECT count(*) AS tangles FROM event_states") as answer:
        assert list(answer.rows) == [(1,)]
