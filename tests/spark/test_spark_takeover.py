"""Going on from another node's log: each event once, after its prevs; without Spark.

The logs are served from memory; the tables are real.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_helpers import Bomb, KilledError
from spark_oracle import table_rows

from spark_sink.derive.workers import NoWorkers
from spark_sink.errors import FeedChangedError, FeedUnreachableError, SinkError
from spark_sink.run import follower as follower_module
from spark_sink.run.feed_reader import RunNodes, delete_checkpoint
from spark_sink.run.follower import Follower, LogOverlap, _pieces, all_ids, ids_of
from spark_sink.schema import FEED
from spark_sink.serve.database import Database, Wanted
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.delta_log import Reading
from spark_sink.tables.location import Location
from spark_sink.tables.placement import Placement
from spark_sink.tables.staging import stage_feed
from spark_sink.tables.tables import Tables
from spark_sink.upkeep.health import check_health, show_health
from spark_sink.upkeep.maintenance import rebuild

EVENTS = 60


def cid_of(event: int) -> bytes:
    return b"\x01\x71\x12\x20" + hashlib.sha256(b"%d" % event).digest()


EVENT_OF = {cid_of(event): event for event in range(1000)}


class World:
    """Events that build on others, and nodes that have them in causal orders of their own."""

    def __init__(self, random: Random, events: int, nodes: int) -> None:
        self.random = random
        self.prevs = [random.sample(range(n), random.randint(0, min(n, 2))) for n in range(events)]
        self.nodes = [MemoryFeed(f"log-{n}") for n in range(nodes)]

    def deliver(self, node: MemoryFeed, most: int) -> None:
        """Let a node get some more events, in an order of its own."""
        for _ in range(most):
            there = set(node.log)
            ready = [
                event
                for event, prevs in enumerate(self.prevs)
                if event not in there and there.issuperset(prevs)
            ]
            if not ready:
                return
            node.log.append(self.random.choice(ready))


class MemoryFeed(Feed):
    """The feed of a node that is a list of events."""

    def __init__(self, epoch: str, *log: int) -> None:
        super().__init__(f"http://{epoch}")
        self.epoch = epoch
        self.log = [*log]
        self.fetched = 0
        self.is_up = True
        self.asked = 0

    def head(self, patience: float | None = None, on_failure: object = None) -> Head:
        self.asked += 1
        if not self.is_up:
            raise FeedUnreachableError("it is down")
        return Head(self.epoch, 0, len(self.log))

    def event_cids(self, after: int, upto: int, epoch: str) -> Iterator[pa.Array]:
        assert epoch == self.epoch
        for start in range(after, upto, 7):
            cids = [cid_of(event) for event in self.log[start : min(start + 7, upto)]]
            yield pa.array(cids, pa.binary())

    def read(
        self, after: int, upto: int, epoch: str, patience: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert epoch == self.epoch
        for start in range(after, upto, 5):
            rows = [
                {
                    "position": position,
                    "event_id": b"id",
                    "event_cid": cid_of(self.log[position - 1]),
                    "stream_cid": cid_of(self.log[position - 1] % 5),
                    "event_type": "data",
                    "car": b"",
                }
                for position in range(start + 1, min(start + 5, upto) + 1)
            ]
            self.fetched += len(rows)
            yield pa.RecordBatch.from_pylist(rows, schema=FEED)


def a_batch(tables: Tables, feed: MemoryFeed, follower: Follower, most: int) -> None:
    """What the streaming query does: a batch is planned, more comes, it is read and appended."""
    after = tables.reading.position
    upto = min(after + most, len(feed.log))
    placement = follower.placement()
    parts = stage_feed(feed.read(after, upto, feed.epoch), tables.raw.stager(), placement)
    tables.append_staged(list(parts), placement)


def begun(tables: Tables, feed: MemoryFeed) -> Follower:
    """Go on with the log that the table was read from, or from another one."""
    follower = Follower(tables, feed)
    known = tables.reading.epoch == feed.epoch
    (follower.begin if known else follower.take_over)(feed.head())
    return follower


def read_20(directory: Location, names: Sequence[str] = ()) -> tuple[Tables, MemoryFeed]:
    """Tables with the 20 events of a first node."""
    first = MemoryFeed("log-0", *range(20))
    tables = Tables(directory, "log-0", names)
    a_batch(tables, first, Follower(tables, first), 20)
    return tables, first


def order_of(directory: Location) -> list[int]:
    """The events of raw_events by position, which has no gaps."""
    rows = table_rows(directory, "raw_events")
    assert [row["position"] for row in rows] == list(range(1, len(rows) + 1))
    return [EVENT_OF[row["event_cid"]] for row in rows]


def assert_causal(world: World, order: list[int]) -> None:
    assert len(set(order)) == len(order), "an event is there twice"
    place = {event: n for n, event in enumerate(order)}
    for event in order:
        assert all(place[prev] < place[event] for prev in world.prevs[event])


def one_run(world: World, directory: Path, feed: MemoryFeed, random: Random) -> None:
    """A process: opens the tables, goes on from a node, and is killed at some commit, or not."""
    tables = Tables(directory, "log-0", [])
    table = tables.raw
    bomb = Bomb(table._advancing_to, random.choice([1, 2, 3, 100]))
    table._advancing_to = bomb  # type: ignore[method-assign,assignment]
    with suppress(KilledError):
        follower = begun(tables, feed)
        if random.random() < 0.1:
            return
        world.deliver(feed, random.randint(0, 5))
        follower.append_missing(NoWorkers(), 2, lambda: True)
        for _ in range(random.randint(0, 6)):
            world.deliver(feed, random.randint(0, 10))
            a_batch(tables, feed, follower, random.choice([3, 20]))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_event_is_there_once_after_its_prevs_whatever_happens(seed, tmp_path_factory):
    """Random events, orders, nodes ahead, behind or restored, deaths, changes to and fro."""
    random = Random(seed)
    directory = tmp_path_factory.mktemp("tables")
    world = World(random, EVENTS, nodes=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower_module, "_ROWS_PER_COMMIT", 4)
        patch.setattr(follower_module, "_MOST_GAP", 2)
        patch.setattr(follower_module, "_MIN_PIECE", 1)
        world.deliver(world.nodes[0], random.randint(5, EVENTS))
        one_run(world, directory, world.nodes[0], random)
        for _ in range(random.randint(1, 6)):
            node = random.choice(world.nodes)
            if node.epoch != Tables(directory, "log-0", []).reading.epoch and random.random() < 0.3:
                del node.log[random.randint(0, len(node.log)) :]  # restored from a backup
            world.deliver(node, random.randint(1, EVENTS))
            with suppress(SinkError):  # it has none of the table's events yet
                one_run(world, directory, node, random)
            assert_causal(world, order_of(directory))
        last = random.choice(world.nodes)
        world.deliver(last, EVENTS)
        tables = Tables(directory, "log-0", [])
        follower = begun(tables, last)
        follower.append_missing(NoWorkers(), 3, lambda: True)
        a_batch(tables, last, follower, EVENTS)
        assert tables.mirrors_log
    order = order_of(directory)
    assert sorted(order) == list(range(EVENTS))
    assert_causal(world, order)


def test_only_what_the_table_lacks_is_fetched(place: Location) -> None:
    """And the log that was read, the place in it, and one table of the same log, stay as is."""
    first, second = MemoryFeed("log-0", *range(900)), MemoryFeed("log-1")
    second.log = [*range(300, 600), 950, *range(300), *range(600, 890), *range(951, 960)]
    tables = Tables(place, "log-0", [])
    a_batch(tables, first, Follower(tables, first), 900)
    assert not tables.raw.has_changed_logs

    follower = Follower(tables, second)
    follower.take_over(second.head())
    assert follower.missing == 10
    assert follower.append_missing(NoWorkers(), 2, lambda: True) == 1
    assert second.fetched == 1
    assert (tables.raw_position, tables.reading.position) == (901, 891)
    second.log += [895, 960, *range(890, 895), *range(896, 900)]
    a_batch(tables, second, follower, 1000)
    assert second.fetched == 1 + 9 + 11
    assert tables.mirrors_log
    assert order_of(place) == [*range(900), 950, *range(951, 961)]

    again = Tables(place, "log-0", [])
    assert (again.reading.epoch, again.reading.position) == ("log-1", 911)
    one = Follower(again, second)
    one.begin(second.head())
    second.log.append(961)
    a_batch(again, second, one, 10)
    assert (again.raw_position, again.reading.position) == (912, 912)


def test_whoever_compares_tables_with_a_node_knows_that_positions_differ(tmp_path, monkeypatch):
    """20 events of the first node, of which the second lacks 5; it has 3 others."""
    tables, first = read_20(tmp_path, ["conclusion_events"])
    second = MemoryFeed("log-1", *range(5, 20), 30, 31, 32)
    begun(tables, second).append_missing(NoWorkers(), 2, lambda: True)
    assert (tables.raw_position, tables.reading.position) == (20, 15)
    assert tables.position_when_read_to(second.head().head) == 23

    nodes = {feed.url: feed for feed in (first, second)}
    monkeypatch.setattr(Feed, "head", lambda feed, patience=None: nodes[feed.url].head())
    health = check_health(tmp_path, [first.url, second.url], None, None, None)
    assert (health.lag, health.troubles) == ({"raw_events": 3, "conclusion_events": 23}, [])
    assert health.node.url == second.url
    show_health(health, datetime.now(UTC))
    only = check_health(tmp_path, [first.url], None, None, None)
    assert (only.lag, len(only.troubles)) == ({}, 1)

    with pytest.raises(SinkError, match="was filled from several nodes"):
        rebuild(tmp_path, "raw_events", second, lambda *_: None)
    database = Database(tmp_path, memory_mb=100, threads=1)
    assert database._goal(Wanted("log-1", 18, 1.0)) == 23
    assert database._goal(Wanted("log-0", 20, 1.0)) is None


def test_a_node_that_was_restored_from_a_backup_is_read_again(place: Location) -> None:
    """It has the same epoch, but other events at positions that were read of it before."""
    first, second = (MemoryFeed(epoch, *range(20)) for epoch in ("log-0", "log-1"))

    def goes_on_from(feed: MemoryFeed) -> Tables:
        tables = Tables(place, "log-0", [])
        follower = begun(tables, feed)
        follower.append_missing(NoWorkers(), 2, lambda: True)
        a_batch(tables, feed, follower, 100)
        return tables

    for feed in (first, second, first):
        assert goes_on_from(feed).mirrors_log
    second.log = [*range(10), 50, 51, *range(10, 19)]
    assert not goes_on_from(second).mirrors_log
    assert order_of(place) == [*range(20), 50, 51]
    # And while it is the one that is read, as far as the table has other events as well.
    second.log = [*range(10), 52, *range(10, 19), 50, 51, 53]
    goes_on_from(second)
    assert order_of(place) == [*range(20), 50, 51, 52, 53]


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([], "has 0 events, but none of the 20"),
        ([*range(20, 50)], r"has 30 events, but none of the 20 in .* one network"),
    ],
)
def test_a_node_with_none_of_the_events_is_refused(tmp_path, log, words):
    """It has been set up from scratch, or is of another network: all its events would be added."""
    tables, _ = read_20(tmp_path)
    other = MemoryFeed("log-1", *log)
    with pytest.raises(SinkError, match=words):
        Follower(tables, other).take_over(other.head())
    assert not Tables(tmp_path, "log-0", []).raw.has_changed_logs


def test_a_log_that_became_shorter_is_not_read_on(tmp_path: Path) -> None:
    tables, first = read_20(tmp_path)
    del first.log[10:]
    with pytest.raises(FeedChangedError, match="restored from an older copy"):
        Follower(tables, first).begin(first.head())


def test_the_node_to_go_on_from_has_the_log_or_else_the_most_events() -> None:
    """Another one than the one that was of no use, as long as there is one."""
    feeds = [MemoryFeed(f"log-{n}", *range(events)) for n, events in enumerate((20, 5, 9))]
    first, second, third = feeds
    nodes = RunNodes(feeds, failover_after=0.0)
    stop = threading.Event()

    def chosen(avoid: str | None = None) -> str:
        reading = Reading("log-0", 20)
        head = nodes.choose(reading, stop, silent_since=0.0, patience=0.0, avoid=avoid)
        assert nodes.current.url == f"http://{head.epoch}"
        return head.epoch

    assert [chosen(), chosen("log-0"), chosen("log-2")] == ["log-0", "log-2", "log-0"]
    first.is_up = False
    assert [chosen(), chosen("log-2")] == ["log-2", "log-1"]
    second.is_up = False
    first.asked = second.asked = 0
    assert chosen("log-2") == "log-2"
    assert (first.asked, second.asked) == (1, 1)  # each may take long not to answer
    first.is_up, first.log, third.log = True, first.log[:10], []
    with pytest.raises(
        FeedChangedError, match=r"none .* has log log-0 up to position 20, and none"
    ):
        chosen()
    first.is_up = third.is_up = False
    with pytest.raises(FeedUnreachableError, match=r"none of the nodes at .* answers"):
        chosen()


def test_of_a_directory_that_was_named_by_mistake_nothing_is_deleted(tmp_path: Path) -> None:
    for name in ("sources", "state", "other"):
        (tmp_path / name / "0").mkdir(parents=True)
    (tmp_path / "metadata").mkdir()
    delete_checkpoint(tmp_path)
    assert len(list(tmp_path.glob("*/0"))) == 3
    (tmp_path / "metadata").rmdir()
    (tmp_path / "metadata").write_text('{"id": "..."}')
    delete_checkpoint(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@given(st.sets(st.integers(6, 60)), st.integers(0, 99), st.data())
def test_rows_are_placed_one_behind_the_other(wanted, base, data):
    positions = np.array(sorted(wanted), np.int64)
    placement = Placement.of(positions, 70, base)
    rows = pa.table({"position": pa.array(range(1, 71), pa.int64())})
    placed = placement.place(rows)["position"].to_pylist()
    assert placed == list(range(base + 1, base + 1 + len(wanted)))
    done = data.draw(st.integers(0, len(wanted)))
    left = [*positions[done:].tolist(), 71]
    assert placement.read_position_at(base + done) == left[0] - 1
    covered = {p for after, upto in placement.ranges(3) for p in range(after + 1, upto + 1)}
    assert wanted <= covered
    parts = [part for piece in _pieces(placement.ranges(3), "log-0", 4) for part in piece]
    assert covered == {p for part in parts for p in range(part.after + 1, part.upto + 1)}


def test_behind_a_table_of_the_same_log_rows_keep_their_order() -> None:
    placement = Placement.following(10, 15)
    rows = pa.table({"position": pa.array([9, 10, 11, 12], pa.int64())})
    assert placement.place(rows)["position"].to_pylist() == [16, 17]
    assert (placement.read_position_at(15), placement.read_position_at(17)) == (10, 12)


def test_events_are_distinguished_by_their_digests() -> None:
    cids = pa.array([cid_of(event) for event in range(5)], pa.binary())
    assert [bytes(digest) for digest in ids_of(cids.slice(1, 3)).tolist()] == [
        cid_of(event)[-16:] for event in (1, 2, 3)
    ]
    with pytest.raises(ValueError, match="too short"):
        ids_of(pa.array([b"short"], pa.binary()))
    with pytest.raises(ValueError, match="5 events or more instead of 4"):
        all_ids([cids], 4)
    overlap = LogOverlap(all_ids([cids], 5))
    overlap.extend(ids_of(pa.array([cid_of(7), cid_of(3)], pa.binary())))
    assert (overlap.missing, overlap.lacking(0).tolist()) == (4, [1])
