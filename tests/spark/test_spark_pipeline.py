"""In Spark, over a real node's feed: the streaming query, exactly once, and the data source."""

import json
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable
from nacl.signing import SigningKey
from pyspark.sql import SparkSession
from spark_helpers import PATIENCE, Node, feed_rows, ran, told
from spark_oracle import assert_tables, table_rows
from spark_samples import TRAP
from support.waiting import wait_until

from recon_node.ceramic import Event
from recon_node.dag.dag_events import shard_event
from recon_node.ipld import CID, RAW
from spark_sink.derive import derivation
from spark_sink.derive.workers import Answer, Item, SparkWorkers
from spark_sink.errors import FeedChangedError, SinkError, TablesError
from spark_sink.run import cluster
from spark_sink.run import pipeline as pipeline_module
from spark_sink.run.cluster import check_workers
from spark_sink.run.feed_reader import FeedReader, RunNodes
from spark_sink.run.pipeline import BatchReport, QuerySettings, Sink, start_query
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.run.spark_session import translate
from spark_sink.schema import DERIVED, FEED, TABLES
from spark_sink.source.data_source import ReconDataSource
from spark_sink.source.feed_client import Feed
from spark_sink.source.source_options import RangePartition
from spark_sink.tables.catalog import find_own_table
from spark_sink.tables.delta_log import position_of
from spark_sink.tables.tables import Tables

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

    def run_once(self, sink: Sink | None = None) -> list[BatchReport]:
        """Up to the head; returns what the batches of this run did."""
        self.reports.clear()
        settings = QuerySettings(
            self.node.url, self.directory / "_checkpoint", trigger_ms=None, max_rows_per_batch=70
        )
        query = start_query(self.spark, sink or self.sink(), settings)
        try:
            assert query.awaitTermination(int(PATIENCE)), "the query did not end"
        finally:
            query.stop()
        return list(self.reports)

    def fails(self, sink: Sink) -> SinkError:
        """Run into an error; returns it as users see it."""
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


@pytest.fixture
def long_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's workers read all batches, and compute all steps."""
    monkeypatch.setattr(pipeline_module, "_SHORT_BATCH", 0)
    monkeypatch.setattr(derivation, "_SHORT_POSITIONS", 0)


@pytest.mark.long
def test_whatever_is_stopped_forgotten_or_lost_each_event_counts_once(pipeline, sample):
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


@pytest.mark.usefixtures("long_batches")
def test_ended_between_two_tables_a_batch_counts_once(pipeline, monkeypatch):
    """Forks, late anchors, poison: all of it computed by Spark's workers, with a death on the way.

    tests/spark/test_spark_crashes.py has every step, without Spark.
    """
    pipeline.node.add_scenario(TRAP)
    sink = pipeline.sink()

    def die(*_: object) -> None:
        raise RuntimeError("the process ends here")

    monkeypatch.setattr(sink.tables.table("stream_tips"), "append", die)
    pipeline.fails(sink)
    assert pipeline.versions() == [1, 1, 1, 0, 0, 1]
    assert pipeline.reports == []
    assert [(r.batch, r.rows) for r in pipeline.run_once()] == [(0, 0)]
    assert pipeline.versions() == [1] * 6
    pipeline.assert_right(len(TRAP.events))


def test_lost_events_and_another_log_are_loud(pipeline, sample, tmp_path):
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


@pytest.mark.parametrize("name", ["raw_events", "event_states"])
@pytest.mark.long
@pytest.mark.usefixtures("long_batches")
def test_what_a_worker_cannot_write_is_reported(pipeline, sample, name):
    """And nothing of it is lost: the next run goes on."""
    pipeline.node.add(sample[:60])
    sink = pipeline.sink()
    in_the_way = pipeline.directory / name / "_staged"
    in_the_way.touch()
    error = pipeline.fails(sink)
    assert isinstance(error, TablesError)
    assert str(error).startswith(f"cannot write the tables in {in_the_way}: ")
    in_the_way.unlink()
    pipeline.run_once()
    pipeline.assert_right(60)


class NotingWorkers(SparkWorkers):
    """Notes which ranges of the feed it is to read."""

    ranges: tuple[RangePartition, ...] = ()

    def map(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
        parts = [part for item in items if isinstance(item, list) for part in item]
        self.ranges += tuple(part for part in parts if isinstance(part, RangePartition))
        return super().map(function, items)


@pytest.mark.usefixtures("long_batches")
def test_the_bytes_of_dags_are_left_out_by_the_workers(pipeline, sample):
    """They read a long batch themselves: nothing is passed on from one to another."""
    shard = shard_event(SigningKey(b"k" * 32), CID.of(RAW, b""), bytes(50_000))
    pipeline.node.add([*sample[:20], shard, *sample[20:30]])
    tables = Tables(pipeline.directory, pipeline.node.epoch, exclude_dags=True)
    workers = NotingWorkers(pipeline.spark)
    pipeline.run_once(Sink(tables, pipeline.reports.append, workers=workers))
    assert workers.ranges == (RangePartition(0, 31, pipeline.node.epoch),)
    rows = [{**row, "car": b""} if row["position"] == 21 else row for row in pipeline.node.feed()]
    raw = table_rows(pipeline.directory, "raw_events")
    assert [(row["position"], row["car"]) for row in raw] == [
        (row["position"], row["car"]) for row in rows
    ]
    assert_tables(pipeline.directory, [row for row in rows if row["car"]], DERIVED)


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


def test_errors_are_reported_in_one_line(spark: SparkSession) -> None:
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


@pytest.mark.usefixtures("borrowed")
def test_the_console(node, sample, monkeypatch, tmp_path):
    """Rows are shown, those of the table that was asked for; nothing is kept."""
    events = sample[:90]
    node.add(events)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    settings = RunSettings(node.url, None, names=("stream_tips",), show_rows=True, once=True)
    shown = ran(settings)
    rows = [facts for event, facts in shown if event == "row"]
    tips = [facts["row"]["stream_id"] for facts in rows if facts["table"] == "stream_tips"]
    assert len(tips) == len(set(tips)) == len({event.init for event in events})
    assert len(rows) == len(events) + len(tips)
    assert shown[-1][0] == "stopped"
    assert list(temporary.iterdir()) == []


def test_workers_are_asked_whether_they_can_do_the_work(spark, tmp_path, monkeypatch):
    """As those of a cluster are, before the first batch."""
    check_workers(spark, tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(cluster, "_version", lambda: "0.0.1")
    with pytest.raises(SinkError, match=r"has recon-node .*, the driver 0\.0\.1: install the same"):
        check_workers(spark, tmp_path)


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        paths = [[sys.executable], [pyspark.__file__], [json.dumps(sys.path)]]
        yield pa.RecordBatch.from_arrays(list(map(pa.array, paths)), ["python", "pyspark", "path"])

    frame = spark.range(1).mapInArrow(where, "python string, pyspark string, path string")
    row = frame.first()
    assert (row["python"], row["pyspark"]) == (sys.executable, pyspark.__file__)
    assert not [entry for entry in json.loads(row["path"]) if entry.endswith("pyspark.zip")]


@pytest.mark.long
def test_it_is_found_by_its_name_without_being_registered(spark, full_node, sample):
    """What Spark finds when it looks through Python's modules; nothing was registered here."""
    models = [e.header.model for e in sample if e.header is not None]
    busiest, documents = Counter(map(str, models)).most_common(1)[0]
    options = {"url": full_node.url, "sortKey": "model", "sortValue": busiest}
    frame = spark.newSession().read.format("recon").options(**options).load()
    counts = Counter(row.event_type for row in frame.select("event_type").collect())
    assert counts["init"] == documents
    assert 0 < sum(counts.values()) < len(sample)


@contextmanager
def running(settings: RunSettings) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """A run in a thread, which is stopped at the end; yields what it tells."""
    events: list[tuple[str, dict[str, Any]]] = []
    runner = Runner(settings, lambda *event: events.append(event))
    with ThreadPoolExecutor() as pool:
        run = pool.submit(runner.run)
        try:
            yield events
        finally:
            runner.stop()
        run.result()


@pytest.mark.usefixtures("borrowed")
def test_a_view_that_is_created_meanwhile_is_filled_and_a_node_that_restarts_is_waited_for(
    node, sample, tmp_path, monkeypatch
):
    """By the run, which holds the lock: also when no event comes."""
    monkeypatch.setattr("spark_sink.run.feed_reader._ASK_NODE_EVERY", 0.3)
    tables = tmp_path / "tables"

    def position() -> int:
        table = find_own_table(tables / "stream_states")
        return 0 if table is None else position_of(table)

    def rows() -> int:
        return DeltaTable(tables / "views" / "documents").to_pyarrow_table(filesystem=None).num_rows

    node.add(sample[:60])
    documents = [event.header.model for event in sample[:90] if event.header is not None]
    [(model, count)] = Counter(documents).most_common(1)
    with running(RunSettings(node.url, tables)) as events:
        wait_until(lambda: position() == 60, "all is read")
        create = ("view", "create", model, "--as", "documents", "--tables", tables)
        assert "spark-sink run fills it" in told(*create)
        wait_until(lambda: 0 < rows() < count, "the run fills it")
        node.kill()
        node.start()
        node.add(sample[60:90])
        wait_until(lambda: rows() == count, "it has the others, too")
    assert events[-1][0] == "stopped"
    assert_tables(tables, node.feed())


# Instead of the process in which Spark asks for the feed's head: ends before it says who it is,
# which for Spark is the same as one that takes too long to start.
LATE = """\
#!/bin/sh
case "$*" in
    *python_streaming_source_runner*) rmdir {marks}/1 || rmdir {marks}/2 || exec {python} "$@";;
    *) exec {python} "$@";;
esac
exec {python} -c '
from os import environ
from pyspark.util import local_connect_and_auth
path, port = (environ.get(f"PYTHON_WORKER_FACTORY_{{name}}") for name in ("SOCK_PATH", "PORT"))
local_connect_and_auth(path or int(port), environ.get("PYTHON_WORKER_FACTORY_SECRET"))
'
"""


@pytest.mark.usefixtures("borrowed")
def test_a_process_of_spark_that_starts_late_is_started_again(
    spark, node, sample, tmp_path, monkeypatch
):
    """As on a busy machine: twice, and the third time it is there in time."""
    node.add(sample[:20])
    for mark in "12":
        (tmp_path / mark).mkdir()
    python = tmp_path / "python"
    python.write_text(LATE.format(marks=tmp_path, python=spark.sparkContext.pythonExec))
    python.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(spark.sparkContext, "pythonExec", str(python))
        spark.dataSource.register(ReconDataSource)  # notes which Python asks
    try:
        assert ran(RunSettings(node.url, tmp_path / "tables", once=True))[-1][1]["position"] == 20
    finally:
        spark.dataSource.register(ReconDataSource)
    assert not [path.name for path in tmp_path.iterdir() if path.name in "12"]
    assert_tables(tmp_path / "tables", node.feed())


class Fading(Feed):
    """The feed of a node that is gone by the time that a worker reads it."""

    def __reduce__(self) -> Any:
        return Feed, ("http://127.0.0.1:1", 0.0)


def test_a_node_that_fails_while_it_is_taken_over_is_left_for_another(
    spark, node, sample, tmp_path
):
    """In Spark's workers, after it has told which events it has."""
    node.add(sorted(sample[:80], key=lambda event: event.init))
    tables = Tables(tmp_path / "tables", "that of a node that is gone")
    tables.append(feed_rows(sample[:60]))
    fading = Fading(node.url, patience=0.0)
    stop = threading.Event()
    events: list[tuple[str, dict[str, Any]]] = []

    def on_event(event: str, facts: dict[str, Any]) -> None:
        events.append((event, facts))
        if event == "lost":
            stop.set()

    FeedReader(
        spark,
        tables,
        RunNodes([fading, Feed("http://127.0.0.1:1")], failover_after=0.0),
        QuerySettings(node.url, tmp_path / "checkpoint"),
        sink=lambda follower: Sink(tables, placement=follower.placement),
        patience=0.0,
        stop=stop,
        on_event=on_event,
        on_look=lambda head: None,
    ).run(fading.head())
    assert [event for event, _ in events][:2] == ["taking_over", "lost"]
    assert "127.0.0.1:1 cannot be reached" in events[1][1]["reason"]
    assert tables.reading.epoch == node.epoch


def test_a_run_that_must_end_lets_its_batch_finish(spark, node, sample, tmp_path, monkeypatch):
    """Or it would write the tables without their lock, or while Python ends, which crashes."""
    monkeypatch.setattr("spark_sink.run.feed_reader._ASK_NODE_EVERY", 0.1)
    node.add(sample[:60])
    writing, ending = threading.Event(), threading.Event()

    def on_write(*_: object) -> None:
        writing.set()
        assert ending.wait(PATIENCE)

    def on_look(_: object) -> None:
        if writing.is_set():
            ending.set()
            raise TablesError("the disk is nearly full")

    feed = Feed(node.url)
    tables = Tables(tmp_path / "tables", node.epoch, on_write=on_write)
    reader = FeedReader(
        spark,
        tables,
        RunNodes([feed], failover_after=0.0),
        QuerySettings(node.url, tmp_path / "checkpoint"),
        sink=lambda follower: Sink(tables, placement=follower.placement),
        patience=0.0,
        stop=threading.Event(),
        on_event=lambda *_: None,
        on_look=on_look,
    )
    try:
        with pytest.raises(TablesError, match="nearly full"):
            reader.run(feed.head())
        assert set(tables.positions.values()) == {60}
    finally:
        for query in spark.streams.active:
            query.stop()
