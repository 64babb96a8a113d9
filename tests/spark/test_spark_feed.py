"""Reading a real node's feed: whole and in order, whatever happens to node and connection."""

import gzip
import json
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import count
from types import MappingProxyType, SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
from spark_helpers import COLUMNS, Node, feed_rows
from support.web_server import serving

from recon_node.base import connection
from recon_node.ceramic import Event
from recon_node.fairness.pacing import Backoff
from spark_sink.errors import FeedChangedError, FeedRefusedError, FeedUnreachableError
from spark_sink.schema import FEED
from spark_sink.source import feed_client, served_rows
from spark_sink.source.feed_client import Feed, Head


def rows_of(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=FEED)


def test_a_range_is_the_events_at_its_positions(full_node: Node, sample: list[Event]) -> None:
    feed = Feed(full_node.url)
    head = feed.head()
    assert (head.low, head.head) == (0, len(sample))
    expected = feed_rows(sample)
    for after, upto in [(0, 930), (0, 1), (17, 18), (400, 777), (929, 930)]:
        got = rows_of(feed.read(after, upto, head.epoch))
        assert got.select(COLUMNS) == expected.slice(after, upto - after).select(COLUMNS)
    assert rows_of(feed.read(5, 5, head.epoch)).num_rows == 0


def test_certificates_are_loaded_once(monkeypatch: pytest.MonkeyPatch, full_node: Node) -> None:
    """Not by each task of Spark, which has a feed of its own."""
    loaded = []
    real = httpx.create_ssl_context
    monkeypatch.setattr(httpx, "create_ssl_context", lambda: loaded.append(1) or real())
    connection._trusted.cache_clear()
    for _ in range(3):
        feed = Feed(full_node.url)
        assert feed.head().head == 930
        feed.close()
    assert loaded == [1]


def test_an_older_node_has_neither_times_of_delivery_nor_faults(sample: list[Event]) -> None:
    old = feed_rows(sample[:9]).drop_columns(["delivered_at", "fault"])
    with answering(arrow(old)) as url:
        got = rows_of(Feed(url).read(0, 9, "any"))
    assert got["delivered_at"].null_count == got["fault"].null_count == 9
    assert got.select(COLUMNS) == feed_rows(sample[:9]).select(COLUMNS)


@contextmanager
def cut_after(url: str, sizes: Iterator[int]) -> Iterator[str]:
    """A TCP relay to a node that cuts each connection after so many bytes of the answer."""
    target = ("127.0.0.1", int(url.rpartition(":")[2]))
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets = [listener]

    def relay() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                left = next(sizes)
                with client, socket.create_connection(target) as server:
                    open_sockets.append(server)
                    server.sendall(client.recv(65536))
                    while left > 0 and (data := server.recv(min(left, 65536))):
                        client.sendall(data)
                        left -= len(data)

    thread = threading.Thread(target=relay)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for open_socket in open_sockets:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that does not answer is asked again at once."""
    monkeypatch.setattr(feed_client, "_DELAYS", Backoff(0.01, 0.01))


@pytest.mark.usefixtures("soon_again")
def test_connections_cut_anywhere_neither_lose_nor_repeat_a_row(full_node, sample):
    epoch = Feed(full_node.url).head().epoch
    sizes = iter([0, 1, 90, 300, 1_500, 20_000, 20_001, 33_333, 70_000, *[10**9] * 9])
    with cut_after(full_node.url, sizes) as url:
        got = rows_of(Feed(url).read(0, 930, epoch))
    assert got.select(COLUMNS) == feed_rows(sample).select(COLUMNS)
    assert next(sizes) == 10**9, "every cut was met"


def test_a_node_that_stays_away_is_given_up_in_time() -> None:
    feed = Feed("http://127.0.0.1:1", patience=0.25)
    with pytest.raises(FeedUnreachableError, match=r"http://127.0.0.1:1 cannot be reached"):
        feed.head()
    with pytest.raises(FeedUnreachableError, match="is it running"):
        next(feed.read(0, 1, "any"))


def test_another_log_is_refused(full_node: Node) -> None:
    feed = Feed(full_node.url)
    with pytest.raises(
        FeedChangedError,
        match=r"another log, not log 5ca1ab1e.*from scratch.*--url.*new checkpoint",
    ):
        next(feed.read(0, 1, "5ca1ab1e-0000-0000-0000-000000000000"))


@pytest.mark.parametrize(
    ("position", "epoch", "message"),
    [
        (50, "B", "has log A, not log B"),
        (9, "A", "has dropped the events up to position 10"),
        (101, "A", "ends at position 100, but events up to 101 were read"),
    ],
)
def test_a_feed_that_does_not_continue_what_was_read_is_refused(position, epoch, message):
    feed, head = Feed("http://node"), Head("A", 10, 100)
    for right in (10, 55, 100):
        feed.check(right, "A", head)
    with pytest.raises(FeedChangedError, match=message):
        feed.check(position, epoch, head)


def test_what_is_not_a_node_is_refused_at_once(full_node: Node) -> None:
    with pytest.raises(FeedRefusedError, match="answered 404"):
        Feed(f"{full_node.url}/elsewhere").head()
    long = f"http://{'a' * 64}.test"
    for url in ("127.0.0.1:5101", "localhost", "ftp://node", "http://node:port", long):
        with pytest.raises(FeedRefusedError, match="is not a URL"):
            Feed(url).head()


@contextmanager
def saying(*greetings: bytes) -> Iterator[str]:
    """A port that says one of these to each client in turn, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(60)

    def greet() -> None:
        for greeting in greetings:
            with listener.accept()[0] as client:
                client.recv(65536)
                client.sendall(greeting)

    thread = threading.Thread(target=greet)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        thread.join()
        listener.close()


@pytest.mark.parametrize(
    "greeting",
    [
        b"\x13/multistream/1.0.0\n",  # libp2p
        b"\x15\x03\x03\x00\x02\x02\x16",  # TLS, an alert
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
)
def test_what_speaks_no_http_is_reported_at_once(greeting: bytes) -> None:
    with saying(greeting, greeting) as url:
        feed = Feed(url, patience=100)
        words = f"at {url} does not speak HTTP: is it the node's"
        with pytest.raises(FeedRefusedError, match=words):
            feed.head()
        with pytest.raises(FeedRefusedError, match=words):
            next(feed.read(0, 1, "any"))


@pytest.mark.usefixtures("soon_again")
def test_a_node_that_breaks_off_anywhere_is_asked_again() -> None:
    """It ends, or starts: nothing of an answer, a piece of its head, a piece of its body."""
    body = b'{"epoch": "A", "low": 0, "head": 7}'
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    chunks = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1f\r\n{"
    pieces = [b"", b"HT", head[:16], head[:-2], head, head + body[:9], chunks]
    with saying(*pieces, head + body) as url:
        assert Feed(url, patience=100).head() == Head("A", 0, 7)


def test_a_token_that_is_missing_or_wrong_is_reported_with_how_it_is_given() -> None:
    answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"
    how = "--token-file or RECON_NODE_TOKEN, or to the source 'recon' by its option token"
    for token, words in ((None, "requires a token"), ("0123", "refuses the token")):
        with (
            saying(answer) as url,
            pytest.raises(FeedRefusedError, match=rf"{url} {words} \(401\): .*{how}") as caught,
        ):
            Feed(url, token=token).head()
        assert "0123" not in str(caught.value)


@contextmanager
def answering(body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """A server that gives this answer to everything."""

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        for header in {"content-length": str(len(body)), **headers}.items():
            handler.send_header(*header)
        handler.end_headers()
        with suppress(OSError):
            handler.wfile.write(body)

    with serving(reply) as url:
        yield url


def arrow(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_rows_that_were_not_asked_for_are_refused(sample: list[Event]) -> None:
    rows = feed_rows(sample[:9])
    shuffled = rows.take([1, 0, 2])
    for served in (rows.slice(1), shuffled, rows):  # a gap, disorder, more than asked for
        with (
            answering(arrow(served)) as url,
            pytest.raises(FeedRefusedError, match="instead of 1 to 3"),
        ):
            next(Feed(url).read(0, 3, "any"))


POSITIONS: list[list[int | None]] = [
    [1, 3, 2, 4],  # ends as they should be, disorder between them
    [1, 2, 2, 4],
    [1, 2, 4, 4],
    [-(2**63), 2, 3, 4],
    [1, None, 3, 4],
    [1, 2, 3, None],
    [None, None, None, None],
    [0, 1, 2, 3],
    [2, 3, 4, 5],
    [1, 2, 3, 2**63 - 1],
]


@pytest.mark.parametrize("filters", [{}, {"controller": "did:key:z6Mk"}])
def test_positions_that_a_node_would_not_serve_are_refused(sample, filters):
    for positions in POSITIONS:
        rows = feed_rows(sample[:4]).set_column(0, "position", pa.array(positions, pa.int64()))
        served = rows.replace_schema_metadata({"filter": json.dumps(filters)})
        with (
            answering(arrow(served)) as url,
            pytest.raises(FeedRefusedError, match="instead of 1 to 4: is it a recon-node"),
        ):
            next(Feed(url, filters=filters).read(0, 4, "any"))


def test_positions_may_have_gaps_where_a_filter_made_them(sample: list[Event]) -> None:
    filters = {"controller": "did:key:z6Mk"}
    rows = feed_rows(sample[:9]).take([1, 4, 5, 8])
    served = arrow(rows.replace_schema_metadata({"filter": json.dumps(filters)}))
    with answering(served) as url:
        got = rows_of(Feed(url, filters=filters).read(0, 9, "any"))
    assert got["position"].to_pylist() == [2, 5, 6, 9]
    with (
        answering(arrow(rows)) as url,
        pytest.raises(FeedRefusedError, match="served the positions 2 to 9 instead of 1 to 9"),
    ):
        next(Feed(url).read(0, 9, "any"))


def test_other_columns_are_refused(sample: list[Event]) -> None:
    with (
        answering(arrow(feed_rows(sample[:3]).drop_columns("car"))) as url,
        pytest.raises(FeedRefusedError, match="use a node and a pipeline of the same version"),
    ):
        next(Feed(url).read(0, 3, "any"))
    rows = feed_rows(sample[:3])
    for name, values in (
        ("car", pa.nulls(3, pa.binary())),
        ("car", rows["car"].cast(pa.binary_view())),  # each may be the same large value
        ("stream_cid", pa.array([b"a", b"", b"a"])),
        ("delivered_at", pa.array([0, 2**63 - 1, None], pa.timestamp("us", "UTC"))),
    ):
        served = rows.set_column(rows.schema.get_field_index(name), name, values)
        with (
            answering(arrow(served)) as url,
            pytest.raises(FeedRefusedError, match=f"unexpected columns .*{name}"),
        ):
            next(Feed(url).read(0, 3, "any"))
    with (
        answering(arrow(pa.table({"position": pa.nulls(100_000)}))) as url,
        pytest.raises(FeedRefusedError, match="served 100000 rows instead of 1 to 3"),
    ):
        next(Feed(url).read(0, 3, "any"))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_are_decompressed(sample, codec):
    """They may take as much memory as the node likes."""
    served = arrow(feed_rows(sample[:3]), pa.ipc.IpcWriteOptions(compression=codec))
    with answering(served) as url, pytest.raises(FeedUnreachableError, match="rows are compressed"):
        next(Feed(url, patience=0).read(0, 3, "any"))


@pytest.mark.parametrize("size", [2**31, -1])
def test_messages_of_a_size_that_no_node_would_send_are_not_read(sample, size):
    rows = feed_rows(sample[:3])
    [batch] = rows.to_batches()
    message = bytes(batch.serialize())
    body = pa.ipc.read_message(message).body.size
    lying = message.replace(struct.pack("<q", body), struct.pack("<q", size), 1)
    long = struct.pack("<II", 0xFFFFFFFF, 2**31)
    schema = bytes(rows.schema.serialize())
    for served, said in ((schema + lying, f"of {size} bytes"), (long, "does not begin as one")):
        with answering(served) as url, pytest.raises(FeedUnreachableError, match=said):
            next(Feed(url, patience=0).read(0, 3, "any"))


NO_HEADS = [
    b'{"epoch": "A"}',
    b'{"epoch": "A", "low": 0, "head": 1e999}',
    b'{"epoch": "A", "low": 0, "head": 9223372036854775808}',
    b'{"epoch": "A", "low": -1, "head": 1}',
    b'{"epoch": "\\ud800", "low": 0, "head": 1}',
    b'{"epoch": {}, "low": 0, "head": 1}',
    b"[" * 100_000,
    gzip.compress(b'{"epoch": "A", "low": 0, "head": 1}'),
    b" " * (feed_client._MAX_ANSWER + 1),
]


@pytest.mark.parametrize("body", NO_HEADS, ids=range(len(NO_HEADS)))
def test_a_head_that_no_node_would_send_is_refused(body: bytes) -> None:
    with answering(body, {"content-encoding": "gzip"}) as url:
        with pytest.raises(FeedRefusedError, match=r"not a feed|more than"):
            Feed(url).head()
        with pytest.raises(FeedUnreachableError):
            next(Feed(url, patience=0).read(0, 1, "A"))


NO_HASHES: list[Any] = [
    [],
    {"count": 1},
    {"count": 1, "sha256a": "00", "event_ids": ["x"]},
    *(
        {"count": 1, "sha256a": "00", "parts": [{"prefix": prefix, "count": 1, "sha256a": "00"}]}
        for prefix in ("ab", "abcdef", "0bcd")
    ),
]


@pytest.mark.parametrize("answer", NO_HASHES, ids=range(len(NO_HASHES)))
def test_hashes_that_no_node_would_send_are_refused(answer: Any) -> None:
    """Parts of a part, for example, that are that part again: they would be divided for ever."""
    with (
        answering(json.dumps(answer).encode()) as url,
        pytest.raises(FeedRefusedError, match="no hashes"),
    ):
        Feed(url).hashes(1, "A", b"\xab", 1)


@pytest.mark.parametrize("metadata", [b"{", b"\xff", b"[" * 100_000])
def test_filters_that_no_node_would_name_are_refused(sample, metadata):
    rows = feed_rows(sample[:3]).replace_schema_metadata({"filter": metadata})
    with answering(arrow(rows)) as url, pytest.raises(FeedUnreachableError):
        next(Feed(url, patience=0).read(0, 3, "any"))


@pytest.mark.parametrize("status", [200, 500])
def test_an_answer_without_end_is_given_up(monkeypatch, status):
    """Each of its bytes comes in time, and what was asked for never does."""
    monkeypatch.setattr(feed_client, "_TIMEOUT", httpx.Timeout(1.0))
    monkeypatch.setattr(feed_client, "_HEAD_TIMEOUT", httpx.Timeout(1.0))
    monkeypatch.setattr(feed_client, "_MAX_ANSWER", math.inf)
    schema = FEED.serialize().to_pybytes()
    batch = pa.RecordBatch.from_pylist([], schema=FEED).serialize().to_pybytes()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()
        with suppress(OSError):
            handler.wfile.write(schema)
            while True:
                handler.wfile.write(batch)

    with serving(reply) as url:
        feed = Feed(url, patience=0)
        for ask in (feed.head, lambda: next(feed.read(0, 1, "any"))):
            with pytest.raises(FeedUnreachableError, match="timed out"):
                ask()


@pytest.mark.parametrize("slowest", [1, 1_000_000])
def test_a_batch_may_take_long_if_it_comes_at_some_pace(sample, monkeypatch, slowest):
    """4 MB take longer than an answer may over a slow line: they were asked for again, for ever."""
    clock = SimpleNamespace(monotonic=partial(next, count(0, 20)), sleep=time.sleep)
    monkeypatch.setattr(served_rows, "time", clock)
    monkeypatch.setattr(served_rows, "_SLOWEST", slowest)
    with answering(arrow(feed_rows(sample))) as url:
        rows = Feed(url, patience=0).read(0, len(sample), "any")
        if slowest == 1:
            assert sum(batch.num_rows for batch in rows) == len(sample)
        else:
            with pytest.raises(FeedUnreachableError, match="timed out"):
                next(rows)
