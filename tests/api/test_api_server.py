"""The API over real sockets: what only shows there, above all how it ends."""

import contextlib
import dataclasses
import errno
import itertools
import resource
import socket
import struct
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import trio
import trio.testing
from api_samples import PATIENCE, Api, Events, api_of, connect, read_to_end, serving
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from recon_node.api.app import create_app
from recon_node.api.endpoint import Services
from recon_node.api.listener import ListenError, open_listener
from recon_node.api.middleware import BODY_GRACE, LARGE_PIECE, PIECE, SMALL_ANSWER, Bound
from recon_node.api.server import HEAD_LIMIT, KEEP_ALIVE, serve
from recon_node.api.settings import Access, Limits
from recon_node.store import FeedColumns, StoreError
from recon_node.store.errors import DiskFullError

POLL = 30
"""Seconds of a long poll, which is answered after them at the latest."""
LONG_POLL = b"GET /ceramic/feed/head?wait=%d HTTP/1.1\r\nHost: node\r\n\r\n" % POLL
TARGET = {"path": "/", "headers": [], "query_string": b""}
pytestmark = pytest.mark.filterwarnings("error")


async def test_requests_that_were_sent_ahead_leave_turns_to_others() -> None:
    """Each connection had one of its 200 answered in each turn of the event loop."""
    answered = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        answered += scope["path"] == "/ahead"
        await receive()
        await Response()(scope, receive, send)

    request = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(app) as url:
        floods = [await connect(url) for _ in range(50)]
        for flood in floods:
            await flood.send_all(request % b"/" + request % b"/ahead" * 200)
        while not answered:
            await trio.lowlevel.checkpoint()
        before = answered
        client = await connect(url)
        await client.send_all(request % b"/")
        assert b" 200 " in await client.receive_some(1000)
        meanwhile = answered - before
        for stream in (client, *floods):
            await stream.aclose()
    assert meanwhile < 100


async def test_without_more_files_clients_wait_and_the_log_says_so_once(autojump_clock) -> None:
    """A line was logged every tenth of a second: a gigabyte in a few days."""
    closing, listener = trio.Event(), await open_listener("127.0.0.1", 0)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (
        socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2]))) as client,
        capture_logs() as logs,
    ):
        client.setblocking(False)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        async with trio.open_nursery() as nursery:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
            try:
                nursery.start_soon(serve, Response(), listener, closing)
                await trio.sleep(59)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            await trio.sleep(59)
            closing.set()
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")
    assert [line["event"] for line in logs] == ["Cannot accept API connections"]


async def test_a_crowd_that_connects_is_accepted_at_once() -> None:
    """One was accepted in each turn of the event loop; a newcomer waited behind all of them."""
    closing, turns, answer = trio.Event(), 0, b""
    listener = await open_listener("127.0.0.1", 0)
    address = ("127.0.0.1", int(listener.url.rpartition(":")[2]))
    with trio.fail_after(PATIENCE), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        clients[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        clients[-1].setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve, Response(), listener, closing)
            while not answer:
                await trio.lowlevel.checkpoint()
                turns += 1
                with contextlib.suppress(BlockingIOError):
                    answer = clients[-1].recv(1000)
            closing.set()
    assert turns < 100


@pytest.mark.parametrize("declared", [True, False])
async def test_ten_megabytes_are_refused_as_too_much(services, store, declared):
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


async def test_a_request_that_waits_for_news_gives_way_to_one_that_does_not(services):
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


TINY = b"1\r\na\r\n"


@pytest.mark.parametrize("chunk", [TINY, b"3;x=%s\r\nabc\r\n" % (b"y" * 40)])
async def test_a_body_in_tiny_chunks_is_refused(services: Services, chunk: bytes) -> None:
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(services) as url, await connect(url) as client:
        await client.send_all(head + chunk * 1_100)
        answer = await client.receive_some()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"send larger ones" in answer


async def test_a_body_in_chunks_arrives(services: Services, sample: Events) -> None:
    """Small ones, too, while they are few."""
    body = b'{"data": "%s"}' % sample[0]["car"].encode()
    long = body + b" " * 100_000
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: node\r\nConnection: close\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving(services) as url:
        for content, size, status in (
            (body, 1, 204),
            (long, 63, 400),
            (long, 64, 204),
            (long, 70_000, 204),
        ):
            parts = [content[at : at + size] for at in range(0, len(content), size)]
            chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
            client = await connect(url)
            await client.send_all(head + chunks)
            answer = await read_to_end(client)
            assert answer.startswith(b"HTTP/1.1 %d " % status), (size, answer)


async def test_what_nobody_foresaw_is_500_without_details(services: Services) -> None:
    def fail() -> None:
        raise RuntimeError("secret of the inside")

    broken = SimpleNamespace(peers=fail, sync_reports=[], peer_id="", addresses=[])
    services = dataclasses.replace(services, peers=broken)
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        answer = await api.get("/ceramic/peers")
    assert answer.status_code == 500
    assert answer.json() == {"message": "internal error: the node's log has the details"}


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DiskFullError("x: the disk is full"), 507, "nothing was written: x: the disk is full"),
        (StoreError("the event log failed"), 500, "the event log failed"),
    ],
)
async def test_an_event_that_cannot_be_written(services, sample, error, status, words):
    async def admit_local(cars: list[bytes]) -> None:
        raise error

    async with api_of(services, store=SimpleNamespace(admit_local=admit_local)) as api:
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
    assert (answer.status_code, words in answer.json()["message"]) == (status, True)


async def test_a_feed_that_breaks_off_does_not_look_whole(services, filled, monkeypatch):
    """The store fails after the first of many batches: the client must see a broken answer."""
    services = dataclasses.replace(services, limits=Limits(arrow_rows=1))
    reader, reads = services.store.reader, itertools.count(1)
    read = reader.feed_columns

    async def read_twice(*args: Any, **options: Any) -> FeedColumns:
        if next(reads) > 2:
            raise StoreError("the disk is gone")
        return await read(*args, **options)

    monkeypatch.setattr(reader, "feed_columns", read_twice)
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


async def test_a_client_that_leaves_frees_its_place(services, monkeypatch):
    monkeypatch.setattr("recon_node.api.server.MAX_CONNECTIONS", 1)
    clients = (silence, idle, long_poll, half_a_body, one_behind_another)
    async with serving(services) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        for client, leave in itertools.product(clients, (hang_up, reset)):
            await leave(await client(url))
            while not await answers(api):
                pass


async def answers(api: Api) -> bool:
    """Whether the API answers on a connection of its own."""
    try:
        answer = await api.get("/ceramic/liveness", headers={"connection": "close"})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


async def test_no_client_holds_up_the_end(services: Services) -> None:
    async with serving(services) as url:
        streams = [await client(url) for client in (silence, idle, long_poll, half_a_body)]
        ending = trio.current_time()
    assert trio.current_time() - ending < POLL
    for stream in streams:
        await stream.aclose()


async def whole_request() -> Message:
    """`receive` of a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def test_a_slow_client_gets_its_whole_answer(autojump_clock: trio.testing.MockClock) -> None:
    """As long as it keeps reading, the answer may take longer than `stall`."""
    content = bytes(1_000_003)
    received = bytearray()

    async def slow(message: Message) -> None:
        body = message.get("body", b"")
        await trio.sleep(len(body) / 10_000)
        received.extend(body)
        assert message.get("more_body", False) is (0 < len(received) < len(content))

    app = Bound(Response(content), Limits(stall=60))
    await app({"type": "http", "method": "GET", **TARGET}, whole_request, slow)
    assert received == content
    assert trio.current_time() >= 100


async def test_a_quick_client_gets_large_pieces_for_as_long_as_it_is_quick(autojump_clock):
    message = bytes(range(256)) * 8_000
    sizes: list[list[int]] = []
    received = bytearray()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, True, True, True, False):
            sizes.append([])
            await send({"type": "http.response.body", "body": message, "more_body": more})

    async def take(message: Message) -> None:
        if body := message.get("body", b""):
            # A piece of the third message takes longer than `stall`: no longer than it may.
            await trio.sleep(55 * len(body) / PIECE if len(sizes) == 3 else 0)
            sizes[-1].append(len(body))
            received.extend(body)

    await Bound(app, Limits(stall=60))({"type": "http", **TARGET}, whole_request, take)
    assert received == message * 5
    assert [max(size) for size in sizes] == [PIECE, LARGE_PIECE, LARGE_PIECE, PIECE, LARGE_PIECE]


async def test_answers_that_nobody_reads_have_room_together(autojump_clock):
    """Room for two: a third one gets that of a client that reads nothing, and a fifth none."""
    size = 2 * SMALL_ANSWER
    statuses: dict[str, int] = {}
    whole: set[str] = set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(bytes(size))(scope, receive, send)

    bound = Bound(app, Limits(answers=2 * size))

    async def ask(name: str, *, reads: bool) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                statuses[name] = message["status"]
            elif not reads:
                await trio.sleep_forever()
            elif not message.get("more_body", False):
                whole.add(name)

        scope = {"type": "http", **TARGET, "client": ("127.0.0.1", 1)}
        await bound(scope, whole_request, send)

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
    bound.waiting = 2 * size  # room has become free, and those who wait for it have not looked yet
    await ask("sixth", reads=True)
    assert statuses["sixth"] == 503


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    started = trio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        started.set()
        while True:
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    async with serving(endless) as url:
        stream = await connect(url)
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
        await started.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
    await stream.aclose()


async def test_a_request_under_way_is_finished_at_the_end(services, sample, store, monkeypatch):
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


@pytest.mark.parametrize("empty", [b"\r\n", b"\n", b"\r\n" * 3, b"\r\n" * 20_000], ids=repr)
async def test_empty_lines_before_a_request_do_not_count(empty: bytes) -> None:
    """RFC 9112, section 2.2: at the beginning, and behind a body, in one piece or in several."""
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nhi"
    async with serving(Response()) as url:
        stream = await connect(url)
        for parts in (
            [empty + request + empty],
            [empty[:1], empty[1:], request + empty],
            [request],
        ):
            for part in parts:
                await stream.send_all(part)
                await trio.testing.wait_all_tasks_blocked()
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        await stream.send_all(b"\r\r\n" + request)
        assert (await read_to_end(stream)).startswith(b"HTTP/1.1 400 ")


async def test_nothing_but_empty_lines_is_not_a_request() -> None:
    async with serving(Response()) as url:
        stream = await connect(url)
        answer = b""
        with contextlib.suppress(trio.BrokenResourceError):
            while not answer:
                await stream.send_all(b"\r\n")
                with trio.move_on_after(0.01):
                    answer = await stream.receive_some()
        await stream.aclose()
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_slow_head_is_refused_and_an_idle_connection_ends(autojump_clock):
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


async def test_a_port_that_cannot_be_had_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_ipv6() -> None:
    listener = await open_listener("::1", 0)
    assert listener.url.startswith("http://[::1]:")
    listener.close()


async def test_a_name_of_several_addresses_is_listened_on_at_all_of_them(services, monkeypatch):
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


async def test_a_refused_client_is_answered_after_it_has_sent_all(services: Services) -> None:
    """And the node goes on: the body of a refused request takes no place."""
    guarded = dataclasses.replace(services, access=Access(token="0123456789abcdef"))
    async with serving(guarded) as url, httpx.AsyncClient(base_url=url, timeout=60) as api:
        for size in (0, 100, 10 << 20):
            stream = await connect(url)
            head = b"POST /ceramic/events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            await stream.send_all(head % size + bytes(size))
            answer = await read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 401")
            assert b"www-authenticate: Bearer" in answer
            assert (await api.get("/ceramic/version")).status_code == 200
