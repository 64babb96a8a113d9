"""Options and filters: the reader classes against real nodes, without a Java machine."""

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_helpers import Node

from recon_node.ceramic import Event, Shard
from recon_node.ceramic.header import METAMODEL
from spark_sink.errors import FeedChangedError, FeedUnreachableError, SinkError
from spark_sink.source.data_source import ReconDataSource, lag
from spark_sink.source.feed_client import Feed
from spark_sink.source.source_options import SourceOptions

LIMIT = ReadMaxRows(25)


def reader_of(**options: str) -> Any:
    source = ReconDataSource(options)
    return source.streamReader(source.schema())


def rows_of(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """What Spark's workers do with a batch: each gets the reader and one partition, pickled."""
    rows: list[dict[str, Any]] = []
    for partition in reader.partitions(start, end):
        worker, its_part = pickle.loads(pickle.dumps((reader, partition)))
        rows += [row for batch in worker.read(its_part) for row in batch.to_pylist()]
    return rows


def test_a_filter_is_the_node_s_and_positions_stay(full_node: Node, sample: list[Event]) -> None:
    streams: dict[bytes, list[int]] = {}
    for position, event in enumerate(sample, 1):
        streams.setdefault(bytes(event.init), []).append(position)
    headers = [(event, event.header) for event in sample if event.header is not None]
    longest = max(headers, key=lambda each: len(streams[each[0].cid]))
    by_header = {
        "sortKey": lambda header: header.sep_key,
        "sortValue": lambda header: header.sep_value,
        "controller": lambda header: header.controller,
    }
    numbers = range(1, 5)
    [shard] = (each for n in numbers if (each := Shard.of(n, 4)).covers(longest[1].controller))
    cases = {name: {name: value(longest[1])} for name, value in by_header.items()}
    cases["two of them"] = cases["sortValue"] | cases["controller"]
    by_header["controllers"] = lambda header: str(shard) if shard.covers(header.controller) else ""
    cases["a shard"] = {"controllers": str(shard)} | cases["sortKey"]
    for given in cases.values():
        expected = sorted(
            position
            for event, header in headers
            if all(by_header[name](header) == value for name, value in given.items())
            for position in streams[bytes(event.cid)]
        )
        reader = reader_of(url=full_node.url, **given)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(900))
        assert end["position"] == 900
        got = [row["position"] for row in rows_of(reader, start, end)]
        assert got == [position for position in expected if position <= 900]
    stream_id = str(longest[0].stream_id(longest[1]))
    source = ReconDataSource({"url": full_node.url, "STREAMID": stream_id})
    batch_reader = source.reader(source.schema())
    batches = [b for part in batch_reader.partitions() for b in batch_reader.read(part)]
    positions = pa.Table.from_batches(batches)["position"].to_pylist()
    assert positions == streams[bytes(longest[0].cid)]


def test_a_filter_that_the_node_refuses_is_told(full_node: Node) -> None:
    feed = Feed(full_node.url, filters={"streamId": "nonsense"})
    with pytest.raises(SinkError, match="400: streamId: "):
        next(feed.read(0, 9, feed.head().epoch))


def test_filters_are_as_the_node_compares_them() -> None:
    """A StreamID may be written in any base, the sort value of an event is in base36."""
    cases: list[dict[str, str]] = [
        {"sortKey": "model", "sortValue": "f" + METAMODEL.to_bytes().hex()},
        {"streamId": "f" + METAMODEL.to_bytes().hex()},
    ]
    for given in cases:
        name = [*given][-1]
        filters = SourceOptions.parse({"url": "http://n", **given}).feed.filters
        assert filters == {**given, name: "kh4q0ozorrgaq2mezktnrmdwleo1d"}


@pytest.mark.parametrize(
    "filters",
    [
        {"sortKey": "model"},
        {"sortKey": "dag", "sortValue": "anything"},
        {"sortKey": "family", "sortValue": "blog"},
        {"sortValue": "anything"},
        {"sortKey": "controllers", "sortValue": "did:key:z6Mk", "controller": "did:web:a.b"},
    ],
)
def test_filters_that_the_node_can_answer_are_not_refused(filters: dict[str, str]) -> None:
    assert SourceOptions.parse({"url": "http://n", **filters}).feed.filters == filters


def test_what_spark_adds_is_not_refused() -> None:
    added = {
        "path": "/a",
        "paths": '["/a"]',
        "provider": "recon",
        "location": "file:/a",
        "option.url": "http://n",
        "spark.sql.sources.schema": "{}",
    }
    assert SourceOptions.parse({"url": "http://n", **added}).feed.filters == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "a"}, "needs the option url, such as http://127.0.0.1:5101; it is 'a'"),
        ({"url": "http://a,http://b"}, "reads one node, but url is 'http://a,http://b'"),
        ({"url": "http://a", "mirrors": "http://b"}, "no option mirrors; it has"),
        ({"url": "http://a", "patience": "nan"}, "patience must be at least 0"),
        ({"url": "http://a", "sortkye": "m"}, "no option sortkye: did you mean sortKey"),
        ({"url": "http://a", "starting_offset": "1"}, "did you mean startingOffset[?]; it has"),
        ({"url": "http://a", "checkpointlocation": "/a"}, "no option checkpointlocation; it has"),
        (
            {"url": "http://a", "sortKey": "model", "sortValue": "kjzl6"},
            "sortValue names a model: 'kjzl6' is not a StreamID",
        ),
        ({"url": "http://a", "streamId": "nonsense"}, "streamId: 'nonsense' is not a StreamID"),
        ({"url": "http://a", "controller": "z6Mk"}, "controller must be a DID, not 'z6Mk'"),
        (
            {"url": "http://a", "sortKey": "controllers", "sortValue": "z6Mk"},
            "sortValue must be a DID",
        ),
    ],
)
def test_wrong_options_are_told(options: dict[str, str], message: str) -> None:
    with pytest.raises(SinkError, match=message):
        SourceOptions.parse(options)


def test_a_checkpoint_of_several_nodes_continues_with_one(
    full_node: Node, sample: list[Event]
) -> None:
    """Its last batch may have been left empty, so it is read again: nothing is lost."""
    reader = reader_of(url=full_node.url)
    start = {**reader.initialOffset(), "position": 50, "after": 25}
    end = reader.latestOffset(start, LIMIT)
    assert end == {"epoch": full_node.epoch, "position": 75}
    rows = [row["event_cid"] for row in rows_of(reader, start, end)]
    assert rows == [bytes(event.cid) for event in sample[25:75]]
    reader.stop()


def test_a_log_that_was_cut_ends_the_stream(full_node: Node, sample: list[Event]) -> None:
    reader = reader_of(url=full_node.url)
    start = {**reader.initialOffset(), "position": len(sample) + 1}
    for prepare in (lambda: None, reader.prepareForTriggerAvailableNow):
        prepare()
        with pytest.raises(FeedChangedError, match=f"ends at position {len(sample)}, but events"):
            reader.latestOffset(start, LIMIT)
    reader.stop()


def test_a_node_that_is_away_is_waited_for(pair: list[Node], sample: list[Event]) -> None:
    node = pair[0]
    node.add(sample[:10])
    reader = reader_of(url=node.url, patience="0")
    start = reader.initialOffset()
    node.kill()
    assert reader.latestOffset(start, LIMIT) == start
    assert reader.reportLatestOffset() is None
    with pytest.raises(FeedUnreachableError):
        reader.prepareForTriggerAvailableNow()
    node.start()
    assert reader.latestOffset(start, LIMIT) == {**start, "position": 10}
    reader.stop()


def test_available_now_ends_where_the_feed_ended(pair: list[Node], sample: list[Event]) -> None:
    node = pair[0]
    node.add(sample[:60])
    reader = reader_of(url=node.url)
    offset = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    node.add(sample[60:70])
    while (end := reader.latestOffset(offset, LIMIT)) != offset:
        offset = end
    assert offset["position"] == 60
    reader.stop()


@pytest.mark.parametrize(
    ("end", "latest", "behind"),
    [
        ('{"epoch": "A", "position": 5}', '{"epoch": "A", "position": 7}', 2),
        ({"epoch": "A", "position": 5}, {"epoch": "A", "position": 4}, 0),
        ({"epoch": "A", "position": 5}, {"epoch": "B", "position": 7}, None),
        ({"epoch": "A", "position": 5}, None, None),
        (None, {"epoch": "A", "position": 5}, None),
    ],
)
def test_the_lag_of_a_query(end: object, latest: object, behind: int | None) -> None:
    assert lag({"endOffset": end, "latestOffset": latest}) == behind
