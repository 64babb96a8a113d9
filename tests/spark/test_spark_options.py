"""Filters and several urls: the reader classes against real nodes, without a Java machine."""

import pickle
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from spark_helpers import Node

from recon_node.ceramic import Event
from recon_node.ceramic.stream_id import METAMODEL
from spark_sink.errors import FeedChangedError, FeedUnreachableError, SinkError
from spark_sink.source.data_source import ReconDataSource, lag
from spark_sink.source.failover import BatchPlan, Nodes
from spark_sink.source.feed import Feed
from spark_sink.source.options import SourceOptions

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
    cases = {name: {name: value(longest[1])} for name, value in by_header.items()}
    cases["two of them"] = cases["sortValue"] | cases["controller"]
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
        ({"url": "http://a,b"}, "comma-separated list of urls; it is 'b'"),
        ({"url": "http://a,http://b", "startingOffset": "7"}, "position in the log of one node"),
        ({"url": "http://a,http://b", "failoverAfter": "nan"}, "failoverAfter must be at least 0"),
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


def in_another_order(events: list[Event], rng: Random) -> list[Event]:
    """The same events, prevs first, as another node may have come by them."""
    left, order, known = list(events), [], set[bytes]()
    while left:
        ready = [e for e in left[:40] if all(p in known for p in e.prevs)]
        order.append(rng.choice(ready))
        known.add(order[-1].cid)
        left.remove(order[-1])
    return order


@dataclass
class Driver:
    """What Spark does with a reader, and what it writes down; it can die at any step."""

    url: str
    options: dict[str, str] = field(default_factory=dict)
    offsets: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0
    rows: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reader = reader_of(url=self.url, failoverAfter="0.15", patience="20", **self.options)

    def die(self) -> None:
        """Everything but the checkpoint and the sink is lost."""
        self.__post_init__()

    def step(self, die_before_commit: bool = False) -> bool:
        """One trigger; False when there was nothing to do."""
        if not self.offsets:
            self.offsets.append(self.reader.initialOffset())
        if self.committed == len(self.offsets) - 1:
            end = self.reader.latestOffset(self.offsets[-1], LIMIT)
            if end == self.offsets[-1]:
                return False
            self.offsets.append(end)
        batch = rows_of(self.reader, *self.offsets[-2:])
        self.rows += [row["event_cid"] for row in batch]  # the sink has it, Spark does not know
        if die_before_commit:
            self.die()
        else:
            self.committed += 1
        return True


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_whichever_node_or_driver_dies_no_event_is_left_out(
    pair: list[Node], sample: list[Event], seed: int
) -> None:
    """The rule of `source.failover`, against random deaths: at least once, by event CID."""
    rng = Random(seed)
    orders = [sample[:200], in_another_order(sample[:200], rng)]
    driver = Driver(",".join(node.url for node in pair))
    alive = [True, True]
    written = [0, 0]
    for _ in range(25):
        which = rng.randrange(2)
        action = rng.choice(["write", "write", "read", "read", "read", "kill", "die", "die late"])
        if action == "write" and alive[which]:
            upto = min(200, written[which] + rng.randint(1, 40))
            pair[which].add(orders[which][written[which] : upto])
            written[which] = upto
        elif action == "kill":
            pair[which].kill() if alive[which] else pair[which].start()
            alive[which] = not alive[which]
        elif action == "die":
            driver.die()
        elif any(alive):
            try:
                driver.step(die_before_commit=action == "die late")
            except FeedUnreachableError:  # the query fails, and is started again
                driver.die()
    # One node stays away for ever. The other one has, or gets, all the events.
    stays = rng.randrange(2)
    if not alive[stays]:
        pair[stays].start()
    if alive[1 - stays]:
        pair[1 - stays].kill()
    pair[stays].add(orders[stays][written[stays] :])
    epoch = pair[stays].epoch
    while driver.step() or driver.offsets[-1]["epoch"] != epoch:
        pass
    assert set(driver.rows) == {bytes(event.cid) for event in sample[:200]}


def test_a_batch_whose_log_is_gone_is_read_again_when_the_log_is_back(
    pair: list[Node], sample: list[Event]
) -> None:
    """Planned, left empty, committed; then the driver dies and the node returns."""
    pair[0].add(sample[:20])
    driver = Driver(",".join(node.url for node in pair))
    driver.step()
    pair[0].add(sample[20:30])
    driver.offsets.append(driver.reader.latestOffset(driver.offsets[-1], LIMIT))
    pair[0].kill()
    driver.die()
    assert driver.step()  # the batch that was written down: empty
    assert len(driver.rows) == 20
    driver.die()
    pair[0].start()
    assert driver.step()
    assert driver.offsets[-1] == {
        "epoch": pair[0].epoch,
        "position": 30,
        "after": 20,
        "again": 1,
    }
    assert driver.rows == [bytes(event.cid) for event in sample[:30]]
    assert not driver.step()


def test_without_deaths_several_urls_give_each_event_once(
    pair: list[Node], sample: list[Event]
) -> None:
    for node in pair:
        node.add(sample[:60])
    driver = Driver(",".join(node.url for node in pair))
    while driver.step():
        pass
    assert driver.rows == [bytes(event.cid) for event in sample[:60]]
    assert [end["after"] for end in driver.offsets] == [0, 0, 25, 50]
    source = ReconDataSource({"url": f"http://127.0.0.1:1,{pair[1].url}"})
    reader = source.reader(source.schema())  # a batch query reads the first node that answers
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert sum(batch.num_rows for batch in batches) == 60


def test_a_node_that_is_away_for_a_moment_is_waited_for(
    pair: list[Node], sample: list[Event]
) -> None:
    for node in pair:
        node.add(sample[:10])
    now = [0.0]
    nodes = Nodes([Feed(node.url) for node in pair])
    plan = BatchPlan(nodes, 30, clock=lambda: now[0])
    start = {"epoch": pair[0].epoch, "position": 10, "after": 10}
    pair[0].kill()
    assert plan.next(start, None) == start
    now[0] = 29.9
    assert plan.next(start, None) == start
    pair[0].start()
    assert plan.next(start, None) == start  # back, and nothing new
    pair[0].kill()
    now[0] = 31
    assert plan.next(start, None) == start  # the silence counts anew
    now[0] = 61
    assert plan.next(start, 4) == {"epoch": pair[1].epoch, "position": 4, "after": 0}
    nodes.close()


def test_a_query_goes_on_with_more_urls_or_fewer(pair: list[Node], sample: list[Event]) -> None:
    """The offsets in a checkpoint are understood either way."""
    pair[0].add(sample[:60])
    several = ",".join(node.url for node in pair)
    driver = Driver(pair[0].url)
    driver.step()
    assert driver.offsets[-1] == {"epoch": pair[0].epoch, "position": 25}
    driver.url = several
    driver.die()
    driver.step()
    assert driver.offsets[-1] == {"epoch": pair[0].epoch, "position": 50, "after": 25}
    driver.url = pair[0].url
    driver.die()
    while driver.step():
        pass
    # With several nodes, nobody knows whether the last batch was left empty: it is repeated.
    assert driver.offsets[-1] == {"epoch": pair[0].epoch, "position": 60, "after": 25}
    cids = [bytes(event.cid) for event in sample[:60]]
    assert driver.rows == [*cids[:50], *cids[25:60]]
    pair[0].add(sample[60:70])
    driver.step()
    assert driver.offsets[-1] == {"epoch": pair[0].epoch, "position": 70}


def test_a_log_that_was_cut_is_loud_with_several_urls_too(
    pair: list[Node], sample: list[Event]
) -> None:
    pair[0].add(sample[:10])
    reader = reader_of(url=",".join(node.url for node in pair))
    start = {**reader.initialOffset(), "position": 11, "after": 11}
    with pytest.raises(FeedChangedError, match="ends at position 10, but events up to 11"):
        reader.latestOffset(start, LIMIT)
    reader.stop()


def test_available_now_goes_over_to_another_log_and_ends(
    pair: list[Node], sample: list[Event]
) -> None:
    for node in pair:
        node.add(sample[:60])
    driver = Driver(",".join(node.url for node in pair))
    driver.step()
    pair[0].kill()
    driver.die()
    driver.reader.prepareForTriggerAvailableNow()
    pair[1].add(sample[60:70])
    while driver.step():
        pass
    assert driver.rows == [bytes(event.cid) for event in [*sample[:25], *sample[:60]]]
    pair[1].kill()
    driver.die()
    with pytest.raises(FeedUnreachableError, match=r"none of the nodes at .* answers"):
        driver.reader.prepareForTriggerAvailableNow()
    assert driver.reader.reportLatestOffset() is None


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
