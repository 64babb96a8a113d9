"""The reader classes of the source "recon", against a real node and without a Java machine."""

import os
import pickle
import runpy
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StringType, StructField, StructType
from spark_helpers import COLUMNS, Node, feed_rows
from support.waiting import finished

from recon_node.ceramic import Event, Shard
from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError, SinkError
from spark_sink.run.spark_session import find_java, java_home
from spark_sink.schema import FEED
from spark_sink.source.data_source import ReconDataSource, ReconStreamReader
from spark_sink.source.feed_client import Feed, Head, find_time
from spark_sink.source.snapshot_source import ReconSnapshotSource
from spark_sink.source.source_options import SourceOptions, check_schema

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "streams.py"


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


def positions_of(url: str, **options: str) -> list[int]:
    """What a batch read of the source yields."""
    source = ReconDataSource({"url": url, **options})
    reader = source.reader(source.schema())
    partitions = reader.partitions() or [InputPartition(None)]  # Spark has at least one
    batches = [batch for partition in partitions for batch in reader.read(partition)]
    return [at for batch in batches for at in batch["position"].to_pylist()]


def test_batches_of_any_limit_add_up_to_the_feed(full_node: Node, sample: list[Event]) -> None:
    reader = stream_reader(full_node.url, maxRowsPerBatch="300", partitions="3")
    assert isinstance(reader, SupportsTriggerAvailableNow)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(300)
    start = reader.initialOffset()
    assert start["position"] == 0
    assert reader.latestOffset(start, ReadAllAvailable())["position"] == 930
    ends, tables = [], []
    while (end := reader.latestOffset(start, limit)) != start:
        tables.append(read_between(reader, start, end))
        start = end
        ends.append(end["position"])
    assert ends == [300, 600, 900, 930]
    assert pa.concat_tables(tables).select(COLUMNS) == feed_rows(sample).select(COLUMNS)
    assert reader.reportLatestOffset() == end
    reader.stop()


def test_a_filter_is_the_node_s_and_positions_stay(full_node: Node, sample: list[Event]) -> None:
    streams: dict[bytes, list[int]] = {}
    for position, event in enumerate(sample, 1):
        streams.setdefault(bytes(event.init), []).append(position)
    headers = [(event, event.header) for event in sample if event.header is not None]
    init, header = max(headers, key=lambda stream: len(streams[stream[0].cid]))
    [shard] = (part for n in range(1, 5) if (part := Shard.of(n, 4)).covers(header.controller))
    by_header = {
        "sortKey": (header.sort_key, lambda other: other.sort_key == header.sort_key),
        "sortValue": (header.sort_value, lambda other: other.sort_value == header.sort_value),
        "controller": (header.controller, lambda other: other.controller == header.controller),
        "controllers": (str(shard), lambda other: shard.covers(other.controller)),
    }
    cases = [[name] for name in by_header] + [["sortValue", "controller"]]
    for names in cases:
        expected = sorted(
            position
            for event, other in headers
            if all(by_header[name][1](other) for name in names)
            for position in streams[bytes(event.cid)]
        )
        reader = stream_reader(full_node.url, **{name: by_header[name][0] for name in names})
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(900))
        assert end["position"] == 900
        got = read_between(reader, start, end)["position"].to_pylist()
        assert got == [position for position in expected if position <= 900]
    stream_id = str(init.stream_id(header))
    assert positions_of(full_node.url, STREAMID=stream_id) == streams[bytes(init.cid)]


def test_a_filter_that_the_node_refuses_is_reported(full_node: Node) -> None:
    feed = Feed(full_node.url, filters={"streamId": "nonsense"})
    with pytest.raises(SinkError, match="400: streamId: "):
        next(feed.read(0, 9, feed.head().epoch))


def three_times(node: Node, sample: list[Event]) -> list[str]:
    """Deliver 20, 30 and 10 events; return when the first of each were delivered."""
    times = []
    for start, end in ((0, 20), (20, 50), (50, 60)):
        node.add(sample[start:end])
        rows = Feed(node.url).read(start, end, node.epoch)
        first = next(iter(rows))["delivered_at"][0].as_py()
        times.append(first.isoformat(timespec="milliseconds"))
        time.sleep(0.002)  # so that the next ones have a later millisecond
    return times


def test_reading_starts_and_ends_where_the_options_say(node: Node, sample: list[Event]) -> None:
    first, second, third = three_times(node, sample)
    milliseconds = str(int(datetime.fromisoformat(second).timestamp() * 1000))
    ages = {"startingTimestamp": "1999-12-31", "endingTimestamp": "2999-12-31T12:00:00+02:00"}
    for options, after, upto in (
        ({"startingOffset": "latest"}, 60, 60),
        ({"startingOffset": "earliest", "endingOffset": "25"}, 0, 25),
        ({"startingOffset": "7", "endingOffset": "7"}, 7, 7),
        ({"startingOffset": "7", "endingOffset": "latest"}, 7, 60),
        ({"startingTimestamp": first}, 0, 60),
        ({"startingTimestamp": milliseconds, "endingTimestamp": third}, 20, 50),
        ({"endingTimestamp": second}, 0, 20),
        ({"startingOffset": "3", "endingTimestamp": third}, 3, 50),
        ({"startingTimestamp": third, "endingOffset": "55"}, 50, 55),
        (ages, 0, 60),
    ):
        assert positions_of(node.url, **options) == [*range(after + 1, upto + 1)], options
    # And a stream that ends: at its end, or at what was the head when it began.
    readers = []
    for options, upto in (
        ({"endingOffset": "45"}, 45),
        ({"endingOffset": "latest"}, 60),
        ({"endingTimestamp": second}, 20),
        ({}, 60),
    ):
        reader = stream_reader(node.url, **options)
        reader.prepareForTriggerAvailableNow()
        readers.append((reader, reader.initialOffset(), upto))
    node.add(sample[60:70])
    for reader, end, upto in readers:
        passed = []
        for _ in range(4):
            end = reader.latestOffset(end, ReadMaxRows(30))
            passed.append(end["position"])
        assert passed == [min(at, upto) for at in (30, 60, 90, 120)]
    assert stream_reader(node.url).latestOffset(end, ReadMaxRows(20))["position"] == 70


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffset": "931"}, r"^endingOffset 931 is beyond the node's head, 930$"),
        ({"startingOffset": "931"}, r"^startingOffset 931 is beyond the node's head, 930$"),
        ({"startingOffset": "9", "endingOffset": "8"}, "startingOffset 9 is after endingOffset 8"),
        (
            {"startingOffset": "9", "endingTimestamp": "2001-01-01"},
            "startingOffset 9, position 9, is after endingTimestamp 2001-01-01, position 0",
        ),
        ({"startingTimestamp": "2999-01-01"}, "startingTimestamp 2999-01-01 is in the future of"),
    ],
)
def test_bounds_that_the_feed_does_not_have_are_reported(full_node, options, message):
    with pytest.raises(SinkError, match=message):
        positions_of(full_node.url, **options)


def test_a_start_that_the_feed_has_dropped_is_reported() -> None:
    options = SourceOptions.parse({"url": "http://node", "startingOffset": "931"})
    with pytest.raises(SinkError, match=r"931 is before .* dropped those up to position 1000"):
        options.start(Head("A", 1000, 2000))


def test_a_stream_without_end_takes_no_end(full_node: Node) -> None:
    reader = stream_reader(full_node.url, endingTimestamp="2026-01-01")
    with pytest.raises(SinkError, match=r"endingTimestamp 2026-01-01 is for .*availableNow=True"):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))


def test_a_node_that_knows_no_times_is_reported(full_node: Node) -> None:
    feed = Feed(f"{full_node.url}/elsewhere", patience=0)
    with pytest.raises(FeedRefusedError, match="does not know when it delivered events"):
        find_time(feed, 5)


def test_without_a_node_a_stream_waits(node: Node, sample: list[Event]) -> None:
    reader = stream_reader(node.url, patience="0")
    start = reader.initialOffset()
    node.kill()
    assert reader.latestOffset(start, ReadMaxRows(5)) == start
    assert reader.reportLatestOffset() is None
    with pytest.raises(FeedUnreachableError, match="cannot be reached"):
        reader.prepareForTriggerAvailableNow()  # it could not know where to end
    node.start()
    assert reader.latestOffset(start, ReadMaxRows(5)) == start
    node.add(sample[:10])
    assert reader.latestOffset(start, ReadMaxRows(5)) == {**start, "position": 5}


def test_a_changed_epoch_and_a_log_that_was_cut_are_loud(full_node: Node) -> None:
    reader = stream_reader(full_node.url)
    before = {"epoch": "gone", "position": 5}
    with pytest.raises(FeedChangedError, match="not log gone"):
        reader.latestOffset(before, ReadMaxRows(5))
    (partition,) = reader.partitions(before, {"epoch": "gone", "position": 9})
    with pytest.raises(FeedChangedError, match="another log"):
        list(reader.read(partition))
    ahead = {**reader.initialOffset(), "position": 931}
    for prepare in (lambda: None, reader.prepareForTriggerAvailableNow):
        prepare()
        with pytest.raises(FeedChangedError, match="ends at position 930, but events up to 931"):
            reader.latestOffset(ahead, ReadMaxRows(5))


def test_a_checkpoint_of_several_nodes_continues_with_one(full_node, sample):
    """Its last batch may have been left empty, so it is read again: nothing is lost."""
    reader = stream_reader(full_node.url)
    start = {**reader.initialOffset(), "position": 50, "after": 25}
    end = reader.latestOffset(start, ReadMaxRows(25))
    assert end == {"epoch": full_node.epoch, "position": 75}
    rows = read_between(reader, start, end)["event_cid"].to_pylist()
    assert rows == [bytes(event.cid) for event in sample[25:75]]


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


@pytest.mark.parametrize("source", [ReconDataSource, ReconSnapshotSource])
def test_other_columns_than_those_of_the_source_are_refused(source):
    fields = source({}).schema().fields
    fields[0].nullable = True  # a catalog does not note which columns are never null
    check_schema(source({}), StructType(fields))
    for asked in (fields[:2], [StructField("position", StringType()), *fields[1:]]):
        with pytest.raises(SinkError, match=r"columns of its own: leave out schema\(...\)"):
            source({"url": "http://node"}).reader(StructType(asked))


def test_the_example_says_how_it_is_used(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(EXAMPLE))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "usage: streams.py URL DIRECTORY\n"


@pytest.mark.long
@pytest.mark.spark
def test_the_example_runs_with_a_python_that_is_not_on_the_path(full_node, tmp_path):
    """As in a notebook's kernel: Spark's own Python processes must be of the same environment."""
    empty = tmp_path / "bin"
    empty.mkdir()
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    with java_home(find_java(), tmp_path) as home:
        done = finished(
            [sys.executable, EXAMPLE, full_node.url, tmp_path],
            env={**environ, "PATH": f"{empty}:/usr/bin:/bin", "JAVA_HOME": str(home)},
            cwd=tmp_path,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    assert "930 events" in done.stdout
