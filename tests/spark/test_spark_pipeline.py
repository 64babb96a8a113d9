"""The streaming query over a real node's feed: exactly once, whatever breaks off and where."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from spark_helpers import Node, feed_rows, wait_until
from spark_oracle import assert_tables
from spark_samples import scenario

from recon_node.ceramic import Event
from spark_sink.derive import derivation as derive
from spark_sink.derive.workers import SparkWorkers
from spark_sink.errors import FeedChangedError, SinkError, TablesError
from spark_sink.run.pipeline import BatchReport, QuerySettings, Sink, start_query
from spark_sink.run.session import translate
from spark_sink.schema import FEED, TABLES
from spark_sink.source.data_source import ReconDataSource
from spark_sink.tables.directory import Tables

pytestmark = pytest.mark.spark


@dataclass
class Pipeline:
    """What a `spark-sink run` has: a node to read, a directory to write to; and no process."""

    spark: SparkSession
    node: Node
    directory: Path
    reports: list[BatchReport] = field(default_factory=list)

    def sink(self) -> Sink:
        tables = Tables(self.directory, self.node.epoch)
        return Sink(tables, self.reports.append, workers=SparkWorkers(self.spark))

    def start(self, sink: Sink, trigger_ms: int | None = None) -> StreamingQuery:
        checkpoint = self.directory / "_checkpoint"
        return start_query(
            self.spark,
            sink,
            QuerySettings(self.node.url, checkpoint, trigger_ms, max_rows_per_batch=70),
        )

    def run_once(self, sink: Sink | None = None) -> list[BatchReport]:
        """Up to the head; returns what the batches of this run did."""
        self.reports.clear()
        query = self.start(sink or self.sink())
        try:
            assert query.awaitTermination(60), "the query did not end"
        finally:
            query.stop()
        return list(self.reports)

    def fails(self, sink: Sink) -> SinkError:
        """Run into an error; returns it as users are told."""
        try:
            self.run_once(sink)
        except Exception as error:
            return sink.error or translate(error)
        raise AssertionError("the query should have failed")

    def lose_tables(self) -> None:
        for name in TABLES:
            shutil.rmtree(self.directory / name)

    def versions(self) -> list[int]:
        return [DeltaTable(self.directory / name).version() for name in TABLES]

    def assert_right(self, events: int) -> None:
        """All tables are what plain Python makes of the node's events, which are so many."""
        feed = self.node.feed()
        assert len(feed) == events
        assert_tables(self.directory, feed)


@pytest.fixture
def pipeline(spark: SparkSession, node: Node, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, node, tmp_path / "tables")


def test_whatever_is_stopped_forgotten_or_lost_each_event_counts_once(
    pipeline: Pipeline, sample: list[Event]
) -> None:
    pipeline.node.add(sample[:150])
    reports = pipeline.run_once()
    assert [(r.batch, r.rows) for r in reports] == [(0, 70), (1, 70), (2, 10)]
    assert [r.position for r in reports] == [70, 140, 150]
    assert all(r.streams > 0 and r.seconds > 0 for r in reports)
    pipeline.assert_right(150)

    # Nothing new; and a batch that Spark did not get to note as done.
    before = pipeline.versions()
    for file in (pipeline.directory / "_checkpoint" / "commits").glob("*2*"):
        file.unlink()
    assert [(r.batch, r.rows, r.streams) for r in pipeline.run_once()] == [(2, 0, 0)]
    assert pipeline.versions() == before

    # A checkpoint and a table that are gone: batch numbers start again, positions do not.
    shutil.rmtree(pipeline.directory / "_checkpoint")
    shutil.rmtree(pipeline.directory / "stream_tips")
    pipeline.node.add(sample[150:180])
    assert [(r.batch, r.rows) for r in pipeline.run_once()] == [(0, 30)]
    pipeline.assert_right(180)


class KilledError(Exception):
    """The process ends here."""


@contextmanager
def dies_in(store: Any, step: str, after: bool) -> Iterator[None]:
    """The first call of that step of a table is the last thing to happen, or does not."""
    real = getattr(store, step)

    def dying(*args: Any) -> Any:
        if after:
            real(*args)
        raise KilledError

    setattr(store, step, dying)
    yield
    delattr(store, step)


def test_ended_at_some_steps_a_batch_counts_once(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forks, late anchors, poison: all of it computed by Spark's workers, with deaths on the way.

    tests/spark/test_spark_crashes.py has every step, without Spark.
    """
    monkeypatch.setattr(derive, "_SHORT", 0)
    trap = scenario()
    pipeline.node.add(trap.events)
    wait_until(lambda: len(pipeline.node.feed()) == len(trap.events), "all anchors are looked up")
    for name, step, after, versions in [
        ("raw_events", "append", True, [1, 0, 0, 0, 0]),
        ("stream_tips", "put", False, [1, 1, 1, 0, 0]),
    ]:
        sink = pipeline.sink()
        with dies_in(sink.tables.store(name), step, after):
            pipeline.fails(sink)
        assert pipeline.versions() == versions
        assert pipeline.reports == []
    assert [(r.batch, r.rows) for r in pipeline.run_once()] == [(0, 0)]
    assert pipeline.versions() == [1] * 5
    pipeline.assert_right(len(trap.events))


def test_lost_events_and_another_log_are_loud(
    pipeline: Pipeline, sample: list[Event], tmp_path: Path
) -> None:
    pipeline.node.add(sample[:40])
    pipeline.run_once()
    first = pipeline.node.epoch

    # The tables are gone, the checkpoint knows of 40 rows.
    pipeline.lose_tables()
    pipeline.node.add(sample[40:60])
    error = pipeline.fails(pipeline.sink())
    assert isinstance(error, TablesError)
    assert "is at position 0 of log " in str(error)
    assert "_checkpoint has read up to 40 of log " in str(error)

    # Another log at the same address: the tables of the first are not touched.
    pipeline.node.kill()
    pipeline.node.data_dir = tmp_path / "anew"
    pipeline.node.start()
    pipeline.node.add(sample[:30])
    with pytest.raises(FeedChangedError, match=f"was made from log {first}"):
        pipeline.sink()

    # New tables, the old checkpoint.
    pipeline.lose_tables()
    error = pipeline.fails(pipeline.sink())
    assert isinstance(error, TablesError)
    assert f"has read up to 40 of log {first}" in str(error)
    # One of which nobody knows how far it is: the source notices, in a process of Spark's.
    shutil.rmtree(pipeline.directory / "_checkpoint" / "commits")
    error = pipeline.fails(pipeline.sink())
    assert isinstance(error, FeedChangedError)
    assert f"not log {first}" in str(error)
    assert "\n" not in str(error)


def test_what_a_worker_cannot_write_is_told(
    pipeline: Pipeline, sample: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it is lost: the next run goes on."""
    monkeypatch.setattr(derive, "_SHORT", 0)
    pipeline.node.add(sample[:60])
    for name in ("raw_events", "event_states"):
        sink = pipeline.sink()
        in_the_way = pipeline.directory / name / "_staged"
        in_the_way.touch()
        error = pipeline.fails(sink)
        assert isinstance(error, TablesError)
        assert str(error).startswith(f"cannot write the tables in {in_the_way}: ")
        in_the_way.unlink()
    pipeline.run_once()
    pipeline.assert_right(60)


def test_a_node_that_restarts_is_waited_for(pipeline: Pipeline, sample: list[Event]) -> None:
    pipeline.node.add(sample[:30])
    sink = pipeline.sink()
    running = pipeline.start(sink, trigger_ms=20)
    try:
        wait_until(lambda: sink.tables.raw_position == 30, "the first events are in")
        pipeline.node.kill()
        pipeline.node.start()
        pipeline.node.add(sample[30:60])
        wait_until(lambda: sink.tables.position == 60, "the others are in too")
        assert running.isActive
    finally:
        sink.close(10)
        running.stop()
    pipeline.assert_right(60)


def test_as_a_batch_table(spark: SparkSession, full_node: Node, sample: list[Event]) -> None:
    spark.dataSource.register(ReconDataSource)
    options = {"url": full_node.url, "partitions": "2", "startingOffset": "10"}
    frame = spark.read.format("recon").options(**options).load()
    rows: pa.Table = frame.toArrow().sort_by("position")
    assert rows.schema.names == FEED.names
    columns = ["position", "event_cid", "stream_cid", "event_type", "car"]
    assert (
        rows.select(columns).to_pylist() == feed_rows(sample).slice(10).select(columns).to_pylist()
    )
    assert frame.where("event_type = 'init'").count() == sum(
        e.header is not None for e in sample[10:]
    )


def test_errors_are_told_in_one_line(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="needs the option url") as caught:
        spark.readStream.format("recon").load().writeStream.format(
            "noop"
        ).start().processAllAvailable()
    error = translate(caught.value)
    assert str(error).startswith("the source 'recon' needs the option url")
    with pytest.raises(Exception, match="nothing_here") as caught:
        spark.sql("SELECT * FROM nothing_here").collect()
    error = translate(caught.value)
    assert str(error).startswith("Spark failed: ")
    assert "\n" not in str(error)
    assert "--verbose" in str(error)
