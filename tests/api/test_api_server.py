"""The API over real sockets: what only shows there, above all how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pyarrow as pa
import pytest
import trio
import trio.testing
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from recon_node.api import (
    Access,
    Limits,
    ListenError,
    Services,
    create_app,
    open_listener,
    serve,
)
from recon_node.api.http_connection import HEAD_LIMIT, KEEP_ALIVE
from recon_node.api.middleware.stack import (
    BODY_GRACE,
    LARGE_PIECE,
    PIECE,
    SMALL_ANSWER,
    Bound,
)
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.store import FeedColumns, Store, StoreError, open_store
from recon_node.store.errors import DiskFullError

Events = list[dict[str, str]]
PATIENCE = 60.0
"""Seconds to wait for what takes milliseconds: the machine may be slow, and busy with more."""
POLL = 30
"""Seconds of a long poll, which is answered after them at the latest."""
LONG_POLL = b"GET /ceramic/feed/head?wait=%d HTTP/1.1\r\nHost: node\r\n\r\n" % POLL
TARGET = {"path": "/", "headers": [], "query_string": b""}
pytestmark = pytest.mark.filterwarnings("error")


@asynccontextmanager
async def serving(services: Services) -> AsyncIterator[str]:
    """The API of `services` on a free port; on leaving, it must end in time."""
    listener = await open_listener("127.0.0.1", 0)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                serve, create_app(services), listener, services.closing, ("node", "x")
            )
            try:
                yield listener.url
            finally:
                services.closing.set()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def connect(url: str) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", port_of(url))


async def read_to_end(stream: trio.SocketStream) -> bytes:
    """What the server sends until it closes the connection."""
    data = b""
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            while chunk := await stream.receive_some(65536):
                data += chunk
    return data


async def test_requests_that_were_sent_ahead_leave_turns_to_others() -> None:
    """Each connection had one of its 200 answered in each turn of the event loop."""
    answered = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        answered += scope["path"] == "/ahead"
        await receive()
        await Response()(scope, receive, send)

    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    closing = trio.Event()
    listener = await open_listener("127.0.0.1", 0)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, app, listener, closing)
            floods = [await connect(listener.url) for _ in range(50)]
            for flood in floods:
                await flood.send_all(request % b"/" + request % b"/ahead" * 200)
            while not answered:
                await trio.lowlevel.checkpoint()
            before = answered
            client = await connect(listener.url)
            await client.send_all(request % b"/")
            assert b" 200 " in await client.receive_some(1000)
            meanwhile = answered - before
            for stream in (client, *floods):
                await stream.aclose()
            closing.set()
    assert meanwhile < 100


async def test_a_crowd_that_connects_is_accepted_at_once() -> None:
    """One was accepted in each turn of the event loop; a newcomer waited behind all of them."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response()(scope, receive, send)

    closing, turns, answer = trio.Event(), 0, b""
    listener = await open_listener("127.0.0.1", 0)
    address = ("127.0.0.1", port_of(listener.url))
    with trio.fail_after(PATIENCE), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        clients[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clients[-1].setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, app, listener, closing)
            while not answer:
                await trio.lowlevel.checkpoint()
                turns += 1
                with contextlib.suppress(BlockingIOError):
                    answer = clients[-1].recv(1000)
            closing.set()
    assert turns < 100


async def test_events_go_in_and_the_feed_comes_out(
    services: Services, sample: Events, store: Store
) -> None:
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        for event in sample[:20]:
            answer = await api.post("/ceramic/events", json={"data": event["car"]})
            assert answer.status_code == 204
        feed = (await api.get("/ceramic/feed/events")).json()
        arrow = await api.get("/ceramic/feed/arrow")
    assert [event["id"] for event in feed["events"]] == [event["cid"] for event in sample[:20]]
    assert pa.ipc.open_stream(arrow.content).read_all().num_rows == 20


@pytest.mark.parametrize("declared", [True, False])
async def test_ten_megabytes_are_told_they_are_too_much(
    services: Services, store: Store, declared: bool
) -> None:
    """With a Content-Length and, chunk by chunk, without one."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(160):
            yield bytes(65536)

    content = bytes(160 * 65536) if declared else chunks()
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        answer = await api.post("/ceramic/events", content=content)
        assert answer.status_code == 413
        assert answer.json() == {"message": "the body is longer than 4194304 bytes"}
        assert (await api.get("/ceramic/liveness")).status_code == 200
    assert store.head == 0


async def test_a_request_that_waits_for_news_gives_way_to_one_that_does_not(
    services: Services,
) -> None:
    services = dataclasses.replace(services, limits=Limits(requests=1))
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        polling = await connect(url)
        await polling.send_all(LONG_POLL)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await api.get("/ceramic/version")).status_code == 200
        answer = await read_to_end(polling)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"gave way to other requests" in answer


async def test_one_request_too_many(autojump_clock: trio.testing.MockClock) -> None:
    """A request that needs no more of its client does not give way, even before its turn comes;
    the liveness check has a place."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep(1)
        await Response("done")(scope, receive, send)

    bound = Bound(app, Limits(requests=1))

    async def status(path: str) -> int:
        statuses = []

        async def receive() -> Message:
            await trio.sleep(1)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
        await bound({**scope, "client": ("127.0.0.1", 1)}, receive, send)
        [only] = statuses
        return int(only)

    answers: list[int] = []

    async def ask(path: str) -> None:
        answers.append(await status(path))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, "/first")
        await trio.sleep(0.5)
        assert await status("/second") == 503
        nursery.start_soon(ask, "/ceramic/liveness")
        nursery.start_soon(ask, "/metrics")
    assert answers == [200, 200, 200]
    assert await status("/second") == 200


async def test_a_body_that_stalls_is_given_up(services: Services) -> None:
    services = dataclasses.replace(services, limits=Limits(stall=0.2))
    async with serving(services) as url:
        slow = await connect(url)
        head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nContent-Length: 100\r\n\r\n"
        await slow.send_all(head + b'{"data"')
        answer = await read_to_end(slow)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b'{"message":"no progress for 0.2 seconds: gave up"}' in answer


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff\xfe\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /ceramic/version HTTP/1.1\r\n\r\n",  # no Host
        b"POST /ceramic/events HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
    ],
)
async def test_what_is_not_http_ends_only_its_connection(
    services: Services, garbage: bytes
) -> None:
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        stream = await connect(url)
        await stream.send_all(garbage)
        await stream.send_eof()
        answer = await read_to_end(stream)
        assert b"Traceback" not in answer
        assert (await api.get("/ceramic/liveness")).status_code == 200


TINY = b"1\r\na\r\n"


@pytest.mark.parametrize("chunk", [TINY, b"3;x=%s\r\nabc\r\n" % (b"y" * 40)])
async def test_a_body_in_tiny_chunks_is_refused(services: Services, chunk: bytes) -> None:
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(services) as url, await connect(url) as client:
        await client.send_all(head + chunk * 1_100)
        answer = await client.receive_some()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"send larger ones" in answer


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1_000, 70_000])
async def test_a_body_in_chunks_arrives(services: Services, sample: Events, size: int) -> None:
    """Small ones, too, while they are few."""
    event = sample[0]["car"]
    body = b'{"data": "%s"%s}' % (event.encode(), b" " * (900 if size == 1 else 100_000))
    body = body[:900] if size == 1 else body
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n"
    async with serving(services) as url, await connect(url) as client:
        await client.send_all(head + b"Connection: close\r\n\r\n" + chunks)
        answer = b"".join([piece async for piece in client])
    assert (b"204" in answer[:20]) is (size >= 64), answer[:300]


@pytest.mark.parametrize(
    ("request_bytes", "answer_begins"),
    [
        (
            b"GET /ceramic/version HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
            b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
            b"HTTP/1.1 200",
        ),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"HTTP/1.1 505"),
    ],
)
async def test_http_2_is_not_spoken(
    services: Services, request_bytes: bytes, answer_begins: bytes
) -> None:
    async with serving(services) as url:
        stream = await connect(url)
        await stream.send_all(request_bytes)
        assert (await stream.receive_some(65536)).startswith(answer_begins)
        await stream.aclose()


async def test_what_nobody_foresaw_is_500_without_details(services: Services) -> None:
    def fail() -> None:
        raise RuntimeError("secret of the inside")

    broken = SimpleNamespace(peers=fail, sync_reports=[], peer_id="", addresses=[])
    services = dataclasses.replace(services, peers=broken)
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        answer = await api.get("/ceramic/peers")
        assert answer.status_code == 500
        assert answer.json() == {"message": "internal error: the node's log has the details"}


async def test_a_full_disk_is_507(services: Services, sample: Events) -> None:
    async def admit_local(cars: list[bytes]) -> None:
        raise DiskFullError("the event log x: the disk is full")

    full = dataclasses.replace(services, store=SimpleNamespace(admit_local=admit_local))
    async with serving(full) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
        assert answer.status_code == 507
        assert "nothing was written: the event log x: the disk is full" in answer.text


async def test_a_store_that_fails_is_500_with_the_reason(tmp_path: Path, sample: Events) -> None:
    async with open_store(tmp_path, Network.local(7)) as store:
        services = Services(store=store)
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
        assert answer.status_code == 500
        assert answer.json()["message"].startswith("the event log failed: ")


async def test_a_feed_that_breaks_off_does_not_look_whole(
    tmp_path: Path, sample: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store fails after the first of many batches: the client must see a broken answer."""
    limits = Limits(arrow_rows=1)
    async with open_store(tmp_path, Network.local(7)) as store:
        await store.admit_local([multibase.decode(event["car"]) for event in sample[:400]])
        services = Services(store=store, limits=limits)
        read, reads = store.reader.feed_columns, itertools.count(1)

        async def read_twice(*args: Any, **options: Any) -> FeedColumns:
            if next(reads) > 2:
                raise StoreError("the disk is gone")
            return await read(*args, **options)

        monkeypatch.setattr(store.reader, "feed_columns", read_twice)
        async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
            with pytest.raises(httpx.RemoteProtocolError):
                await api.get("/ceramic/feed/arrow")
            failed = await api.get("/ceramic/feed/arrow")
            assert failed.status_code == 500, "nothing was sent yet: it can be told"
            assert "the disk is gone" in failed.json()["message"]


async def silence(url: str) -> trio.SocketStream:
    return await connect(url)


async def idle(url: str) -> trio.SocketStream:
    stream = await connect(url)
    await stream.send_all(b"GET /ceramic/version HTTP/1.1\r\nHost: node\r\n\r\n")
    await stream.receive_some(65536)
    return stream


async def long_poll(url: str) -> trio.SocketStream:
    stream = await connect(url)
    await stream.send_all(LONG_POLL)
    return stream


async def half_a_body(url: str) -> trio.SocketStream:
    stream = await connect(url)
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nContent-Length: 100\r\n\r\n"
    await stream.send_all(head + b"{")
    return stream


async def one_behind_another(url: str) -> trio.SocketStream:
    stream = await connect(url)
    for path in (b"head?wait=0.2", b"arrow", b"arrow"):
        await stream.send_all(b"GET /ceramic/feed/" + path + b" HTTP/1.1\r\nHost: node\r\n\r\n")
    return stream


async def hang_up(stream: trio.SocketStream) -> None:
    await stream.aclose()


async def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await stream.aclose()


@pytest.mark.parametrize("leave", [hang_up, reset])
@pytest.mark.parametrize("client", [silence, idle, long_poll, half_a_body, one_behind_another])
async def test_a_client_that_leaves_frees_its_place(
    services: Services,
    monkeypatch: pytest.MonkeyPatch,
    client: Callable[[str], Awaitable[trio.SocketStream]],
    leave: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    monkeypatch.setattr("recon_node.api.server.MAX_CONNECTIONS", 1)
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        await leave(await client(url))
        with trio.fail_after(PATIENCE):
            while not await answers(api):
                pass


async def answers(api: httpx.AsyncClient) -> bool:
    """Whether the API answers on a connection of its own."""
    try:
        answer = await api.get("/ceramic/liveness", headers={"connection": "close"})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


@pytest.mark.parametrize("client", [silence, idle, long_poll, half_a_body])
async def test_no_client_holds_up_the_end(
    services: Services, client: Callable[[str], Awaitable[trio.SocketStream]]
) -> None:
    async with serving(services) as url:
        stream = await client(url)
        ending = trio.current_time()
    assert trio.current_time() - ending < POLL
    await stream.aclose()


async def test_a_slow_client_gets_its_whole_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """As long as it keeps reading, the answer may take longer than `stall`."""
    content = bytes(1_000_003)
    received = bytearray()

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def slow(message: Message) -> None:
        body = message.get("body", b"")
        await trio.sleep(len(body) / 10_000)
        received.extend(body)
        assert message.get("more_body", False) is (0 < len(received) < len(content))

    app = Bound(Response(content), Limits(stall=60))
    await app({"type": "http", "method": "GET", **TARGET}, receive, slow)
    assert received == content
    assert trio.current_time() >= 100


async def test_a_quick_client_gets_large_pieces_for_as_long_as_it_is_quick(
    autojump_clock: trio.testing.MockClock,
) -> None:
    message = bytes(range(256)) * 4_000
    sizes: list[list[int]] = []
    received = bytearray()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, True, True, False):
            sizes.append([])
            await send({"type": "http.response.body", "body": message, "more_body": more})

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def take(message: Message) -> None:
        if body := message.get("body", b""):
            # A piece of the third message takes longer than `stall`: no longer than it may.
            await trio.sleep(55 * len(body) / PIECE if len(sizes) == 3 else 0)
            sizes[-1].append(len(body))
            received.extend(body)

    await Bound(app, Limits(stall=60))({"type": "http", **TARGET}, receive, take)
    assert received == message * 5
    assert [max(each) for each in sizes] == [PIECE, LARGE_PIECE, LARGE_PIECE, PIECE, LARGE_PIECE]


async def test_answers_that_nobody_reads_have_room_together(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Room for two: a third one gets that of a client that reads nothing, and a fifth none."""
    size = 2 * SMALL_ANSWER
    statuses: dict[str, int] = {}
    whole: set[str] = set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(size))(scope, receive, send)

    bound = Bound(app, Limits(answers=2 * size))

    async def ask(name: str, *, reads: bool) -> None:
        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[name] = message["status"]
            elif not reads:
                await trio.sleep_forever()
            elif not message.get("more_body", False):
                whole.add(name)

        await bound({"type": "http", **TARGET, "client": ("127.0.0.1", 1)}, receive, send)

    async with trio.open_nursery() as nursery:
        for name in ("first", "second"):
            nursery.start_soon(partial(ask, name, reads=False))
        await trio.sleep(0.1)
        for name in ("third", "fourth"):
            nursery.start_soon(partial(ask, name, reads=True))
        await trio.sleep(0.1)
        assert statuses == {"first": 200, "second": 200}
        await ask("fifth", reads=True)
        assert statuses.pop("fifth") == 503
        await trio.sleep(BODY_GRACE + 1)
        assert {"third", "fourth"} <= whole
        nursery.cancel_scope.cancel()


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    started = trio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    closing = trio.Event()
    listener = await open_listener("127.0.0.1", 0)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, endless, listener, closing, ("node",))
            stream = await connect(listener.url)
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
            await started.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            closing.set()
    await stream.aclose()


async def test_a_request_under_way_is_finished_at_the_end(
    services: Services, sample: Events, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recon_node.api.server.GRACE", PATIENCE)
    body = b'{"data":"' + sample[0]["car"].encode() + b'"}'
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serving(services) as url:
        stream = await connect(url)
        await stream.send_all(head + body[:100])
        await trio.testing.wait_all_tasks_blocked(0.05)
        services.closing.set()
        await trio.testing.wait_all_tasks_blocked(0.05)
        await stream.send_all(body[100:])
        answer = await read_to_end(stream)
    assert answer.startswith(b"HTTP/1.1 204")
    assert store.head == 1


async def test_a_slow_head_is_refused_and_an_idle_connection_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both on a new connection and behind an answer."""
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    closing = trio.Event()
    listener = await open_listener("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, Response("done"), listener, closing)
        for first, then in itertools.product((b"", request), (b"", request[:-2])):
            stream = await connect(listener.url)
            if first:
                await stream.send_all(first)
                assert (await stream.receive_some()).endswith(b"done")
            begun = trio.current_time()
            await stream.send_all(then)
            answer = await read_to_end(stream)
            waited = trio.current_time() - begun
            assert waited == pytest.approx(HEAD_LIMIT if then else KEEP_ALIVE, abs=1)
            assert answer.startswith(b"HTTP/1.1 408 ") if then else not answer
        closing.set()


async def no_permission(*args: object) -> None:
    raise PermissionError(errno.EACCES, "Permission denied")


async def test_a_port_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1:{port}: .*--api"):
            await open_listener("127.0.0.1", port)
    with monkeypatch.context() as patch:
        patch.setattr("trio._socket._SocketType.bind", no_permission)
        with pytest.raises(ListenError, match=r"127\.0\.0\.1:80: Permission .* a higher port"):
            await open_listener("127.0.0.1", 80)
    with pytest.raises(ListenError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        await open_listener("192.0.2.1", 0)  # an address of no machine (RFC 5737)


async def test_ipv6(services: Services) -> None:
    listener = await open_listener("::1", 0)
    assert listener.url.startswith("http://[::1]:")
    listener.close()


async def test_a_name_of_several_addresses_is_listened_on_at_all_of_them(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that this machine does not have is passed over."""
    stream = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    hosts = ["127.0.0.1", "192.0.2.1", "127.0.0.2"]

    async def getaddrinfo(host: str, port: int, **kwargs: object) -> list[tuple[object, ...]]:
        return [(*stream, (host, port)) for host in hosts]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    listener = await open_listener("localhost", 0)
    assert listener.is_loopback
    [first, second] = [sock.getsockname() for sock in listener.sockets]
    assert (first[0], second) == ("127.0.0.1", ("127.0.0.2", first[1]))
    with pytest.raises(ListenError, match="Another node or program uses the port"):
        await open_listener("localhost", first[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, create_app(services), listener, services.closing)
        for host, port in (first, second):
            async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as api:
                assert (await api.get("/ceramic/liveness")).status_code == 200
        services.closing.set()


async def test_an_address_that_others_reach_is_no_loopback() -> None:
    listener = await open_listener("0.0.0.0", 0)
    assert not listener.is_loopback
    listener.close()


@pytest.mark.parametrize("size", [0, 100, 10 << 20])
async def test_who_is_refused_hears_of_it_after_sending_all(services: Services, size: int) -> None:
    """And the node goes on: the body of a refused request takes no place."""
    guarded = dataclasses.replace(services, access=Access(token="0123456789abcdef"))
    async with serving(guarded) as url:
        stream = await connect(url)
        head = f"POST /ceramic/events HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n"
        await stream.send_all(head.encode())
        await stream.send_all(bytes(size))
        answer = await read_to_end(stream)
        assert answer.startswith(b"HTTP/1.1 401")
        assert b"www-authenticate: Bearer" in answer
        async with httpx.AsyncClient(base_url=url, timeout=60) as api:
            assert (await api.get("/ceramic/version")).status_code == 200
