"""The reader classes of the source "recon", against a real node and without a Java machine."""

import os
import pickle
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from spark_helpers import Node, feed_rows

from recon_node.ceramic import Event
from spark_sink.errors import FeedChangedError, FeedUnreachableError, SinkError
from spark_sink.run.spark_session import find_java, java_home
from spark_sink.schema import FEED
from spark_sink.source import source_options as parsing
from spark_sink.source.data_source import (
    ReconDataSource,
    ReconRanges,
    ReconStreamReader,
    read_ranges,
)
from spark_sink.source.feed_client import Head
from spark_sink.source.source_options import SourceOptions

COLUMNS = [name for name in FEED.names if name not in ("event_id", "delivered_at")]


def stream_reader(url: str, **options: str) -> ReconStreamReader:
    source = ReconDataSource({"url": url, **options})
    return source.streamReader(source.schema())


def read_between(reader: ReconStreamReader, start: dict[str, Any], end: dict[str, Any]) -> pa.Table:
    """What Spark's workers do: each gets the reader and one partition, pickled."""
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions(start, end):
        worker, its_part = pickle.loads(pickle.dumps((reader, partition)))
        batches += worker.read(its_part)
    return pa.Table.from_batches(batches, schema=FEED)


def test_ranges_are_those_of_the_rows(
    full_node: Node, sample: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark sends ranges from one worker to another, which reads their rows."""
    monkeypatch.setattr(parsing, "_MIN_RANGE", 300)
    options = {"url": full_node.url, "partitions": "3"}
    source = ReconRanges(options)
    reader = source.streamReader(source.schema())
    start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ReadMaxRows(9))
    rows_reader = stream_reader(**options)
    assert (start, end) == (rows_reader.initialOffset(), {**start, "position": 9})
    end = {**end, "position": 900}
    partitions = reader.partitions(start, end)
    assert partitions == rows_reader.partitions(start, end)
    assert len(partitions) == 3
    ranges = [batch for each in partitions for batch in reader.read(each)]
    assert all(batch.schema.names == source.schema().names for batch in ranges)
    feed = pickle.loads(pickle.dumps(SourceOptions.parse(options).feed))
    rows = pa.Table.from_batches(read_ranges(feed, ranges), FEED)
    assert rows.select(COLUMNS) == feed_rows(sample).slice(0, 900).select(COLUMNS)


def test_batches_of_any_limit_add_up_to_the_feed(full_node: Node, sample: list[Event]) -> None:
    reader = stream_reader(full_node.url, maxRowsPerBatch="300", partitions="3")
    assert isinstance(reader, SupportsTriggerAvailableNow)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    start = reader.initialOffset()
    assert start["position"] == 0
    ends, tables = [], []
    while (end := reader.latestOffset(start, limit)) != start:
        tables.append(read_between(reader, start, end))
        start = end
        ends.append(end["position"])
    assert ends == [300, 600, 900, 930]
    assert pa.concat_tables(tables).select(COLUMNS) == feed_rows(sample).select(COLUMNS)
    assert reader.reportLatestOffset() == end
    reader.stop()


def test_a_read_of_all_is_one_batch_whatever_the_option_says(full_node: Node) -> None:
    reader = stream_reader(full_node.url, maxRowsPerBatch="10")
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["position"] == 930


@pytest.mark.parametrize(
    ("option", "position"), [("earliest", 0), ("latest", 930), ("0", 0), ("77", 77), ("930", 930)]
)
def test_the_starting_offset(full_node: Node, option: str, position: int) -> None:
    reader = stream_reader(full_node.url, startingOffset=option)
    assert reader.initialOffset()["position"] == position


def test_available_now_ends_at_the_head_of_its_start(node: Node, sample: list[Event]) -> None:
    node.add(sample[:30])
    reader = stream_reader(node.url)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    node.add(sample[30:40])
    end = reader.latestOffset(start, ReadMaxRows(20))
    assert end["position"] == 20
    end = reader.latestOffset(end, ReadMaxRows(20))
    assert end["position"] == 30
    assert reader.latestOffset(end, ReadMaxRows(20)) == end
    assert stream_reader(node.url).latestOffset(end, ReadMaxRows(20))["position"] == 40


def test_without_a_node_a_stream_waits(node: Node) -> None:
    reader = stream_reader(node.url, patience="0")
    start = reader.initialOffset()
    node.kill()
    assert reader.latestOffset(start, ReadMaxRows(5)) == start
    assert reader.reportLatestOffset() is None
    with pytest.raises(FeedUnreachableError, match="cannot be reached"):
        reader.prepareForTriggerAvailableNow()  # it could not know where to end
    node.start()
    assert reader.latestOffset(start, ReadMaxRows(5)) == start


def test_a_changed_epoch_is_loud(full_node: Node) -> None:
    reader = stream_reader(full_node.url)
    before = {"epoch": "gone", "position": 5}
    with pytest.raises(FeedChangedError, match="not log gone"):
        reader.latestOffset(before, ReadMaxRows(5))
    (partition,) = reader.partitions(before, {"epoch": "gone", "position": 9})
    with pytest.raises(FeedChangedError, match="another log"):
        list(reader.read(partition))
    ahead = {**reader.initialOffset(), "position": 931}
    with pytest.raises(FeedChangedError, match="ends at position 930, but events up to 931"):
        reader.latestOffset(ahead, ReadMaxRows(5))


def test_a_starting_offset_that_the_feed_does_not_have_is_told(full_node: Node) -> None:
    """The user said it: nothing is known of a log that was longer once."""
    reader = stream_reader(full_node.url, startingOffset="99999")
    with pytest.raises(SinkError, match=r"^startingOffset 99999 is beyond the node's head, 930$"):
        reader.initialOffset()
    source = ReconDataSource(reader_options := {"url": full_node.url, "startingOffset": "931"})
    with pytest.raises(SinkError, match="startingOffset 931 is beyond"):
        source.reader(source.schema()).partitions()
    with pytest.raises(SinkError, match=r"931 is before .* dropped those up to position 1000"):
        SourceOptions.parse(reader_options).start(Head("A", 1000, 2000))


def test_the_batch_reader_reads_up_to_the_head(full_node: Node, sample: list[Event]) -> None:
    source = ReconDataSource(
        {"url": full_node.url, "startingOffset": "100", "PARTITIONS": "4", "patience": "3"}
    )
    reader = source.reader(source.schema())
    partitions = reader.partitions()
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    got = pa.Table.from_batches(batches, schema=FEED)
    assert got.select(COLUMNS) == feed_rows(sample).slice(100).select(COLUMNS)


def test_the_spark_schema_is_the_arrow_schema() -> None:
    assert [(f.name, f.dataType.simpleString(), f.nullable) for f in ReconDataSource({}).schema()] \
        == [
            ("position", "bigint", False),
            ("event_id", "binary", False),
            ("event_cid", "binary", False),
            ("stream_cid", "binary", False),
            ("event_type", "string", False),
            ("car", "binary", False),
            ("time", "bigint", True),
            ("chain_id", "string", True),
            ("delivered_at", "timestamp", True),
            ("fault", "string", True),
        ]  # fmt: skip


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 20))
def test_ranges_cut_a_batch_without_gap_or_overlap(after: int, rows: int, partitions: int) -> None:
    options = SourceOptions.parse({"url": "http://node", "partitions": str(partitions)})
    ranges = options.ranges(after, after + rows, "epoch")
    assert len(ranges) <= partitions
    assert all(r.after < r.upto for r in ranges)
    assert [r.after for r in ranges] == [after, *[r.upto for r in ranges][:-1]][: len(ranges)]
    assert [r.upto for r in ranges][-1:] == ([after + rows] if rows else [])
    sizes = [r.upto - r.after for r in ranges]
    assert not sizes or max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option url"),
        ({"url": "localhost:5101"}, "it is 'localhost:5101'"),
        ({"url": "http://n", "startingOffset": "soon"}, "startingOffset must be a number, not 'so"),
        ({"url": "http://n", "startingOffset": "-1"}, "startingOffset must be at least 0"),
        ({"url": "http://n", "maxRowsPerBatch": "0"}, "maxRowsPerBatch must be at least 1, not 0"),
        ({"url": "http://n", "partitions": "many"}, "partitions must be a number"),
    ],
)
def test_wrong_options_are_told(options: dict[str, str], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        SourceOptions.parse(options)


def test_the_token_goes_to_the_workers_and_into_no_text() -> None:
    options = SourceOptions.parse({"url": "http://127.0.0.1:1", "token": "0123456789abcdef"})
    copy = pickle.loads(pickle.dumps(options.feed))
    assert copy._client.headers["authorization"] == "Bearer 0123456789abcdef"
    assert "0123456789abcdef" not in repr(options)
    assert "authorization" not in SourceOptions.parse({"url": "http://x"}).feed._client.headers


def test_the_example_says_how_it_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "streams.py"
    monkeypatch.setattr("sys.argv", [str(example)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(example))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "usage: streams.py URL DIRECTORY\n"


@pytest.mark.long
@pytest.mark.spark
def test_the_example_runs_with_a_python_that_is_not_on_the_path(
    full_node: Node, tmp_path: Path
) -> None:
    """As in a notebook's kernel: Spark's own Python processes must be of the same environment."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "streams.py"
    empty = tmp_path / "bin"
    empty.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    with java_home(find_java(), tmp_path) as home:
        done = subprocess.run(
            [sys.executable, example, full_node.url, tmp_path],
            env={**environ, "PATH": f"{empty}:/usr/bin:/bin", "JAVA_HOME": str(home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert "930 events" in done.stdout
