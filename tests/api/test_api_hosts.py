"""Which hosts a request may name, and requests that can be understood in two ways."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from recon_node.api import Services, create_app, open_listener, serve
from recon_node.api.middleware.guard import Hosts, host_in

LOOPBACK = ("127.0.0.1",)
EVERYWHERE = ("0.0.0.0",)
CLOSE = b"Connection: close\r\n\r\n"
VERSION = b" /ceramic/version HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("listening", "authority", "is_ours"),
    [
        (LOOPBACK, "127.0.0.1:5101", True),
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "localhost:5101", True),
        (LOOPBACK, "LOCALHOST.", True),
        (LOOPBACK, "app.localhost:1", True),
        (LOOPBACK, "[::1]:5101", True),
        (LOOPBACK, "192.0.2.7:5101", False),
        (LOOPBACK, "evil.example:5101", False),
        (LOOPBACK, "localhost.evil.example", False),
        (LOOPBACK, "127.0.0.1.evil.example", False),
        (LOOPBACK, "user@localhost", False),
        (LOOPBACK, "localhost/x", False),
        (LOOPBACK, "", False),
        (LOOPBACK, "[::1", False),
        (LOOPBACK, None, True),
        (LOOPBACK, socket.gethostname(), socket.gethostname() == "localhost"),
        (("192.0.2.7",), "192.0.2.7", True),
        (("192.0.2.7",), "192.0.2.8", False),
        (("node.example", "192.0.2.7"), "node.example:5101", True),
        (EVERYWHERE, "192.0.2.8:5101", True),
        (("::",), "[2001:db8::1]:5101", True),
        (EVERYWHERE, socket.gethostname(), True),
        (EVERYWHERE, "evil.example", False),
    ],
)
def test_which_hosts_are_this_node(
    listening: tuple[str, ...], authority: str | None, is_ours: bool
) -> None:
    refusal = Hosts(listening).refusal(authority)
    assert (refusal is None) == is_ours
    assert is_ours or "api_hosts" in str(refusal)


def test_names_in_the_settings() -> None:
    hosts = Hosts(LOOPBACK, ("node-1", ".Svc.Cluster.Local"))
    assert hosts.refusal("Node-1:5101") is None
    assert hosts.refusal("recon.default.svc.cluster.local") is None
    assert hosts.refusal("svc.cluster.local.evil.example") is not None
    assert Hosts(LOOPBACK, ("*",)).refusal("anything") is None
    assert host_in("[2001:DB8::1]:80") == "2001:db8::1"


@asynccontextmanager
async def node(services: Services) -> AsyncIterator[int]:
    listener = await open_listener("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, create_app(services), listener, services.closing)
        yield int(listener.url.rpartition(":")[2])
        services.closing.set()


async def answer_to(port: int, request: bytes) -> bytes:
    """What the node answers until it closes the connection."""
    data = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(20):
            await stream.send_all(request)
            while part := await stream.receive_some():
                data += part
    return data


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET" + VERSION + b"Host: evil.example:5101\r\n" + CLOSE, 403),
        (b"GET" + VERSION + b"Host: evil.example\r\nOrigin: http://evil.example\r\n" + CLOSE, 403),
        (
            b"POST /api/v0/id HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n" + CLOSE,
            403,
        ),
        (b"OPTIONS" + VERSION + b"Host: evil.example\r\n" + CLOSE, 403),
        (b"GET" + VERSION + b"Host: localhost\r\n" + CLOSE, 200),
        (b"GET /ceramic/version HTTP/1.0\r\n\r\n", 200),
        (b"GET http://127.0.0.1/ceramic/version HTTP/1.1\r\nHost: evil\r\n" + CLOSE, 200),
        (b"GET HTTP://localhost/ceramic/version?x=1 HTTP/1.1\r\nHost: a\r\n" + CLOSE, 200),
        (b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, 200),
        (b"GET http://evil/ceramic/version HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, 403),
        (b"GET https://localhost/ HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, 400),
        (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n" + CLOSE, 404),
        (b"GET" + VERSION + b"Host: a\r\nHost: localhost\r\n" + CLOSE, 400),
        (b"GET" + VERSION + CLOSE, 400),
        (b"GET / HTTP/2.0\r\nHost: localhost\r\n" + CLOSE, 505),
        (b"GET" + VERSION + b"Host: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
)
async def test_answers_by_host_and_target(
    services: Services, request_bytes: bytes, status: int
) -> None:
    async with node(services) as port:
        answer = await answer_to(port, request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    if status == 403:
        assert b"api_hosts" in answer


@pytest.mark.parametrize(
    "framing",
    [
        b"HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        b"HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nContent-Length: 5\r\n",
    ],
)
async def test_a_request_with_two_meanings_ends_the_connection(
    services: Services, framing: bytes
) -> None:
    """RFC 9112, section 6.1: what follows it must not be taken for another request."""
    hidden = b"GET" + VERSION + b"Host: localhost\r\n\r\n"
    async with node(services) as port:
        request = b"POST /ceramic/version " + framing + b"\r\n0\r\n\r\n" + hidden
        answer = await answer_to(port, request)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer.lower()


async def test_a_bad_chunk_is_refused_and_ends_the_connection(services: Services) -> None:
    head = b"POST /ceramic/events HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    async with node(services) as port:
        answer = await answer_to(port, head + b"\r\nzz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_who_expects_to_continue_is_told_to(services: Services) -> None:
    head = b"POST" + VERSION + b"Host: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
    async with node(services) as port, await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.fail_after(20):
            await stream.send_all(head + CLOSE)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
            await stream.send_all(b"{}")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_an_answer_to_head_has_no_body_and_the_connection_goes_on(services: Services) -> None:
    ask = VERSION + b"Host: localhost\r\n"
    async with node(services) as port:
        answer = await answer_to(port, b"HEAD" + ask + b"\r\n" + b"GET" + ask + CLOSE)
    head, body, whole = answer.split(b"\r\n\r\n", 2)
    assert head.startswith(b"HTTP/1.1 200")
    assert body.startswith(b"HTTP/1.1 200")
    assert b"content-length: %d\r\n" % len(whole) in head + b"\r\n"
