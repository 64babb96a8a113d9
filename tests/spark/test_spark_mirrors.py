"""Reading a range's events from another node: always the rows that the first node would have given.

The reader classes of the source, real nodes, and between them a proxy that can change an answer.
"""

import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from spark_helpers import Node, NodeProcesses
from test_spark_feed import arrow

from recon_node.ceramic import Event
from recon_node.ceramic.builder import time_event
from recon_node.ipld import CID, car
from spark_sink.errors import SinkError
from spark_sink.schema import FEED
from spark_sink.source import mirrors
from spark_sink.source.data_source import ReconDataSource
from spark_sink.source.feed import Feed
from spark_sink.source.mirrors import fault_of
from spark_sink.source.options import SourceOptions

NOBODY = "http://127.0.0.1:1"
Answer = tuple[int, bytes]
ANCHORED_AT = 1_725_913_338


@pytest.fixture(autouse=True)
def _rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mirror is left alone because of an earlier test; answers are cut into several pieces."""
    monkeypatch.setattr(mirrors, "_resting", {})
    monkeypatch.setattr(mirrors, "PIECE", 300)


@pytest.fixture(scope="session")
def first(
    node_processes: NodeProcesses, tmp_path_factory: pytest.TempPathFactory, sample: list[Event]
) -> Node:
    """The node whose order counts: the sample, and time events; not to be changed."""
    running = Node(node_processes, tmp_path_factory.mktemp("mirrored") / "node")
    running.add(with_time_events(sample))
    return running


@pytest.fixture(scope="session")
def mirror(
    node_processes: NodeProcesses,
    tmp_path_factory: pytest.TempPathFactory,
    sample: list[Event],
) -> Node:
    """A node with the same events in another order; not to be changed."""
    running = Node(node_processes, tmp_path_factory.mktemp("mirror") / "node")
    running.add(by_stream(with_time_events(sample)))
    return running


def with_time_events(events: list[Event]) -> list[Event]:
    """The events, each tenth followed by a time event that anchors it."""
    found: list[Event] = []
    for number, event in enumerate(events):
        found.append(event)
        if number % 10 == 0:
            block = (ANCHORED_AT + number).to_bytes(32, "big")
            found.append(time_event(event.init, event.cid, tx_hash=block))
    return found


def by_stream(events: list[Event]) -> list[Event]:
    """The same events, stream after stream; models stay first."""
    models = {event.init for event in events[:40]}
    return sorted(events, key=lambda event: (event.init not in models, event.init))


def rows_of(batches: Iterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=FEED)


def plain(node: Node, **options: str) -> pa.Table:
    return read(node.url, **options)


def read(url: str, **options: str) -> pa.Table:
    """What Spark does with a batch: each worker gets the reader and one partition, pickled."""
    source = ReconDataSource({"url": url, "patience": "5", "partitions": "2", **options})
    reader = source.reader(source.schema())
    tables = []
    for partition in reader.partitions():
        worker, its_part = pickle.loads(pickle.dumps((reader, partition)))
        tables.append(rows_of(worker.read(its_part)))
    return pa.concat_tables(tables)


def unchanged(_: httpx.Request, status: int, body: bytes) -> Answer:
    return status, body


@dataclass
class Proxy:
    """Stands before a node; `change` gets each request, and its answer before it is sent."""

    node: Node
    change: Callable[[httpx.Request, int, bytes], Answer] = unchanged
    asked: list[str] = field(default_factory=list)
    cut_at: int | None = None
    """Bytes of an answer to a POST before the connection is cut."""
    url: str = ""

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        request = httpx.Request(method, f"{self.node.url}{path}", content=body)
        self.asked.append(f"{method} {request.url.path}")
        with httpx.Client(timeout=60) as client:
            got = client.send(request)
        return self.change(request, got.status_code, got.content)


@contextmanager
def before(node: Node, change: Callable[..., Answer] = unchanged) -> Iterator[Proxy]:
    proxy = Proxy(node, change)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("content-length", 0))
            status, body = proxy.answer(self.command, self.path, self.rfile.read(length))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: proxy.cut_at] if self.command == "POST" else body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


def test_the_rows_are_those_of_the_first_node(first: Node, mirror: Node) -> None:
    """Positions, times of delivery and all; the mirror has them in another order."""
    expected = plain(first)
    assert expected.num_rows == 1023
    assert plain(mirror)["event_cid"] != expected["event_cid"]
    assert expected["time"].null_count == 930
    assert expected["delivered_at"].null_count == 0
    with before(first) as ours, before(mirror) as other:
        for partitions in ("1", "2", "3", "8"):
            got = read(ours.url, mirrors=other.url, partitions=partitions)
            assert got == expected
        assert read(ours.url, mirrors=f"{other.url},{mirror.url}") == expected
        assert "POST /ceramic/feed/arrow" in other.asked
        assert "POST /ceramic/feed/arrow" not in ours.asked


def test_the_mirror_is_what_gives_the_bytes(first: Node, mirror: Node) -> None:
    """Of the second half, the first node is only asked for a list."""
    sent: list[set[str]] = []

    def note(request: httpx.Request, status: int, body: bytes) -> Answer:
        if request.url.path == "/ceramic/feed/arrow":
            sent.append(set(pa.ipc.open_stream(body).schema.names))
        return status, body

    with before(first, note) as ours:
        assert read(ours.url, mirrors=mirror.url) == plain(first)
    whole = set(FEED.names)
    assert sent == [whole, whole - {"car"}, whole - {"car"}]


@pytest.mark.parametrize("part", [0.0, 0.02, 0.1, 0.45, 0.9, 1.0])
def test_what_a_mirror_lacks_comes_from_the_first_node(
    first: Node, node: Node, sample: list[Event], part: float
) -> None:
    """Whole streams, or the latest events: scattered, or all behind some position."""
    inits = [event.cid for event in sample[40:] if event.cid == event.init]
    lacking = set(inits[: round(len(inits) * part)])
    events = with_time_events(sample)
    node.add([event for event in events if event.init not in lacking][: 40 + int(900 * (1 - part))])
    with before(first) as ours:
        assert read(ours.url, mirrors=node.url, partitions="3") == plain(first)


def test_a_mirror_without_any_event_is_left_alone(
    first: Node, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with before(node) as other:
        assert read(first.url, mirrors=other.url) == plain(first)
        assert other.asked == ["POST /ceramic/feed/arrow"]
    assert "it lacks 300 of 300 events" in caplog.text


def test_a_dead_mirror_is_asked_once_and_told_once(
    first: Node, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        assert read(first.url, mirrors=NOBODY) == plain(first)
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1
    assert f"the mirror {NOBODY} for a while: the node at {NOBODY} cannot be" in caplog.text
    mirrors._resting[NOBODY] = mirrors._Rest(3, 0.0)
    assert read(first.url, mirrors=NOBODY) == plain(first)
    assert mirrors._resting[NOBODY].failures == 4
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


def test_a_mirror_that_comes_back_is_read_again(first: Node, mirror: Node) -> None:
    mirrors._resting[mirror.url] = mirrors._Rest(3, 0.0)
    assert read(first.url, mirrors=mirror.url) == plain(first)
    assert mirrors._resting == {}


@pytest.mark.parametrize("cut_at", [0, 100, 5_000, 60_000, 150_000])
def test_a_mirror_that_dies_in_the_middle(first: Node, mirror: Node, cut_at: int) -> None:
    with before(mirror) as other:
        other.cut_at = cut_at
        assert read(first.url, mirrors=other.url) == plain(first)
        assert other.asked == ["POST /ceramic/feed/arrow"]


def changed(table: pa.Table, column: str, values: list[Any]) -> pa.Table:
    index = table.schema.get_field_index(column)
    return table.set_column(index, column, pa.array(values, pa.binary()))


def without_a_block(stored: bytes) -> bytes:
    found = car.decode(stored)
    blocks = list(found.blocks.items())
    kept = blocks[:1] if blocks[0][0] == found.roots[0] else blocks[1:2]
    return car.encode(found.roots, dict(kept))


def with_a_foreign_block(stored: bytes) -> bytes:
    found = car.decode(stored)
    return car.encode(found.roots, {**found.blocks, CID.of(0x71, b"\xa0"): b"\xa0"})


def with_a_block_twice(stored: bytes) -> bytes:
    found = car.decode(stored)
    header = car.encode(found.roots, {})
    return stored + stored[len(header) :]


def with_another_byte(stored: bytes) -> bytes:
    return stored[:-1] + bytes([stored[-1] ^ 1])


LIES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "other order": lambda rows: rows.take(list(reversed(range(rows.num_rows)))),
    "twice": lambda rows: rows.take([0, 0, 1]),
    "not asked for": lambda rows: changed(
        rows, "event_cid", [CID.of(0x85, bytes([n % 256, n // 256])) for n in range(rows.num_rows)]
    ),
    "another event's": lambda rows: changed(
        rows, "car", [*rows["car"].to_pylist()[1:], rows["car"][0].as_py()]
    ),
    "no CAR": lambda rows: changed(rows, "car", [None] * rows.num_rows),
    "no CID": lambda rows: changed(rows, "event_cid", [None] * rows.num_rows),
    "empty CAR": lambda rows: changed(rows, "car", [b""] * rows.num_rows),
    "no such column": lambda rows: rows.drop_columns("car"),
    "text": lambda rows: rows.set_column(2, "car", pa.array(["x"] * rows.num_rows)),
    **{
        change.__name__: lambda rows, change=change: changed(  # type: ignore[misc]
            rows, "car", [*rows["car"].to_pylist()[:-1], change(rows["car"][-1].as_py())]
        )
        for change in (
            without_a_block,
            with_a_foreign_block,
            with_a_block_twice,
            with_another_byte,
        )
    },
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_and_changes_nothing(
    first: Node, mirror: Node, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    def tell(_: httpx.Request, status: int, body: bytes) -> Answer:
        return status, arrow(LIES[lie](pa.ipc.open_stream(body).read_all()))

    with before(mirror, tell) as other:
        assert read(first.url, mirrors=other.url) == plain(first)
    assert f"not reading from the mirror {other.url} for a while" in caplog.text


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"hello"),
        (200, b""),
        (200, arrow(pa.table({"a": [1]}))),
        (404, b"{}"),
        (405, b'{"message": "Method Not Allowed"}'),
        (401, b"{}"),
        (429, b"{}"),
        (500, b"{}"),
    ],
)
def test_rubbish_and_refusals(first: Node, mirror: Node, status: int, body: bytes) -> None:
    with before(mirror, lambda *_: (status, body)) as other:
        assert read(first.url, mirrors=other.url) == plain(first)
        assert len(other.asked) == 1
        assert fault_of(Feed(other.url))
    assert fault_of(Feed(mirror.url)) is None
    assert "cannot be reached" in str(fault_of(Feed(NOBODY)))


def test_an_older_first_node_is_read_without_mirrors(first: Node, mirror: Node) -> None:
    def older(request: httpx.Request, status: int, body: bytes) -> Answer:
        if request.url.params.get("columns") in (None, "all", "event_cid"):
            return status, body
        return 400, b'{"message": "Invalid value: x. must be one of all, event_cid"}'

    with before(first, older) as ours, before(mirror) as other:
        assert read(ours.url, mirrors=other.url) == plain(first)
        assert other.asked == []
        epoch = Feed(ours.url).head().epoch
        cids = pa.concat_arrays(list(Feed(ours.url).event_cids(0, 9, epoch)))
        assert cids.to_pylist() == plain(first)["event_cid"].to_pylist()[:9]


def test_filters_are_those_of_the_first_node(
    first: Node, mirror: Node, sample: list[Event]
) -> None:
    stream = max(sample, key=lambda event: sum(each.init == event.init for each in sample))
    header = next(each.header for each in sample if each.cid == stream.init)
    assert header is not None
    for filters in ({"controller": header.controller}, {"sortValue": header.sep_value}):
        expected = plain(first, **filters)
        assert 0 < expected.num_rows < 1023
        with before(mirror) as other:
            got = read(first.url, mirrors=other.url, **filters)
            assert got == expected
            assert other.asked
    nothing = {"controller": "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"}
    assert read(first.url, mirrors=mirror.url, **nothing).num_rows == 0


def test_with_several_urls_mirrors_serve_the_one_that_is_read(
    first: Node, mirror: Node, node: Node
) -> None:
    urls = f"{NOBODY},{first.url}"
    with before(mirror) as other:
        assert read(urls, mirrors=other.url, failoverAfter="5") == plain(first)
        assert other.asked
    with before(first) as ours:  # a node does not mirror itself
        assert read(ours.url, mirrors=f"{ours.url}/") == plain(first)
        assert "POST /ceramic/feed/arrow" not in ours.asked


def test_options() -> None:
    given_options = {"url": "http://a", "mirrors": "http://b, http://c/"}
    options = SourceOptions.parse({**given_options, "token": "secret", "sortKey": "model"})
    assert [feed.url for feed in options.mirrors] == ["http://b", "http://c"]
    assert all(feed.filters == {} for feed in options.mirrors)
    assert "secret" not in repr(options)
    assert options.mirrors[1]._client.headers["authorization"] == "Bearer secret"
    dealt = [each.mirror for each in options.ranges(0, 5000, "e")]
    assert dealt == [None, 0, 1]
    many = SourceOptions.parse({**given_options, "partitions": "5"}).ranges(0, 5000, "e")
    assert [each.mirror for each in many] == [None, 0, 1, None, 0]
    assert SourceOptions.parse({"url": "http://a"}).partitions == 2
    assert SourceOptions.parse({"url": "http://a", "mirrors": ""}).mirrors == ()
    with pytest.raises(SinkError, match=r"has the option mirrors: http.* it is 'b:5101'"):
        SourceOptions.parse({"url": "http://a", "mirrors": "http://b,b:5101"})


@given(st.sets(st.integers(0, 200), min_size=1), st.integers(0, 100))
def test_runs_divide_the_rows_without_gap_or_overlap(found: set[int], start: int) -> None:
    places = sorted(start + place for place in found)
    runs = mirrors._runs(places, start)
    assert [run.start for run in runs] == [start, *(run.end for run in runs[:-1])]
    assert runs[-1].end == places[-1] + 1
    assert all(run.start < run.end for run in runs)
    for run in runs:
        if run.source is not None:
            wanted = places[run.source : run.source + run.end - run.start]
            assert wanted == list(range(run.start, run.end))
    kinds = [run.source is None for run in runs]
    assert all(one != other for one, other in pairwise(kinds))


def test_in_spark(spark: SparkSession, first: Node, mirror: Node) -> None:
    with before(mirror) as other:
        options = {"url": first.url, "mirrors": other.url, "partitions": "2"}
        got = spark.read.format("recon").options(**options).load().toArrow()
        assert other.asked
    names = ["position", "event_cid", "car", "time", "chain_id"]
    expected = plain(first).select(names)
    assert got.select(names).sort_by("position").to_pylist() == expected.to_pylist()
