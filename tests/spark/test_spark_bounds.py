"""Where reading starts and ends: positions and times, against a real node and without Java."""

import time
from datetime import datetime

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_helpers import Node

from recon_node.ceramic import Event
from spark_sink.errors import FeedRefusedError, SinkError
from spark_sink.source.data_source import ReconDataSource, ReconStreamReader
from spark_sink.source.feed_client import Feed, find_time


def stream_reader(url: str, **options: str) -> ReconStreamReader:
    source = ReconDataSource({"url": url, **options})
    return source.streamReader(source.schema())


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


def positions_of(url: str, **options: str) -> list[int]:
    """What a batch read of the source yields."""
    source = ReconDataSource({"url": url, "patience": "3", **options})
    reader = source.reader(source.schema())
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [at for batch in batches for at in batch["position"].to_pylist()]


def test_a_batch_read_starts_and_ends_where_it_is_told(node: Node, sample: list[Event]) -> None:
    first, second, third = three_times(node, sample)
    milliseconds = str(int(datetime.fromisoformat(second).timestamp() * 1000))
    for options, after, upto in (
        ({"endingOffset": "25"}, 0, 25),
        ({"startingOffset": "7", "endingOffset": "7"}, 7, 7),
        ({"startingOffset": "7", "endingOffset": "latest"}, 7, 60),
        ({"startingTimestamp": first}, 0, 60),
        ({"startingTimestamp": second}, 20, 60),
        ({"startingTimestamp": milliseconds, "endingTimestamp": third}, 20, 50),
        ({"endingTimestamp": second}, 0, 20),
        ({"startingOffset": "3", "endingTimestamp": third}, 3, 50),
        ({"startingTimestamp": third, "endingOffset": "55"}, 50, 55),
        (
            {"startingTimestamp": "1999-12-31", "endingTimestamp": "2999-12-31T12:00:00+02:00"},
            0,
            60,
        ),
    ):
        assert positions_of(node.url, **options) == [*range(after + 1, upto + 1)], options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffset": "931"}, r"^endingOffset 931 is beyond the node's head, 930$"),
        ({"endingOffset": "earliest"}, "endingOffset must be a number, not 'earliest'"),
        ({"startingOffset": "9", "endingOffset": "8"}, "startingOffset 9 is after endingOffset 8"),
        (
            {"startingTimestamp": "2026-01-02", "endingTimestamp": "2026-01-01"},
            "startingTimestamp 2026-01-02 is after endingTimestamp 2026-01-01",
        ),
        (
            {"startingOffset": "9", "endingTimestamp": "2001-01-01"},
            "startingOffset 9, position 9, is after endingTimestamp 2001-01-01, position 0",
        ),
        ({"startingTimestamp": "2999-01-01"}, "startingTimestamp 2999-01-01 is in the future of"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a time such"),
        (
            {"startingTimestamp": "1", "startingOffset": "1"},
            "startingOffset and startingTimestamp are both given",
        ),
    ],
)
def test_bounds_that_the_feed_does_not_have_are_told(
    full_node: Node, options: dict[str, str], message: str
) -> None:
    with pytest.raises(SinkError, match=message):
        positions_of(full_node.url, **options)


def test_a_stream_that_ends_can_be_told_where(node: Node, sample: list[Event]) -> None:
    _, second, _ = three_times(node, sample)
    for option, value, upto in (
        ("endingOffset", "45", 45),
        ("endingOffset", "latest", 60),
        ("endingTimestamp", second, 20),
    ):
        reader = stream_reader(node.url, **{option: value})
        reader.prepareForTriggerAvailableNow()
        end = reader.initialOffset()
        passed = []
        for _ in range(4):
            end = reader.latestOffset(end, ReadMaxRows(30))
            passed.append(end["position"])
        assert passed == [min(at, upto) for at in (30, 60, 90, 120)]


def test_a_stream_without_end_cannot_be_told_where_to_end(full_node: Node) -> None:
    for option, value in (("endingOffset", "7"), ("endingTimestamp", "2026-01-01")):
        reader = stream_reader(full_node.url, **{option: value})
        with pytest.raises(SinkError, match=rf"{option} {value} is for .*availableNow=True"):
            reader.latestOffset(reader.initialOffset(), ReadMaxRows(5))


def test_a_node_that_knows_no_times_is_told(full_node: Node) -> None:
    feed = Feed(f"{full_node.url}/elsewhere", patience=0)
    with pytest.raises(FeedRefusedError, match="does not know when it delivered events"):
        find_time(feed, 5)
