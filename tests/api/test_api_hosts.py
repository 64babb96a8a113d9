"""Which hosts a request may name, and what is no request or has two meanings."""

import socket

import pytest
from api_samples import connect, read_to_end, serving

from recon_node.api import Services
from recon_node.api.middleware import Hosts, host_in

LOOPBACK = ("127.0.0.1",)
EVERYWHERE = ("0.0.0.0",)
CLOSE = b"Connection: close\r\n\r\n"
VERSION = b" /ceramic/version HTTP/1.1\r\n"
POST = b"POST" + VERSION + b"Host: localhost\r\n"
HIDDEN = b"\r\n0\r\n\r\nGET" + VERSION + b"Host: localhost\r\n\r\n"


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
def test_which_hosts_are_this_node(listening, authority, is_ours):
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


ANSWERS = [
    (b"GET" + VERSION + b"Host: evil.example:5101\r\n" + CLOSE, 403),
    (b"GET" + VERSION + b"Host: evil.example\r\nOrigin: http://evil.example\r\n" + CLOSE, 403),
    (b"POST /api/v0/id HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n" + CLOSE, 403),
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
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40), 505),
    (b"GET" + VERSION + b"Host: localhost\r\nUpgrade: h2c\r\n" + CLOSE, 200),
    (b"GET" + VERSION + b"Host: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    (b"\x00\xff\xfe\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),  # TLS
    (POST + b"Content-Length: -5\r\n\r\n", 400),
    (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    # What has two meanings (RFC 9112, section 6.1): what follows is not taken for a request.
    (POST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n" + HIDDEN, 400),
    (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n" + HIDDEN, 400),
    (POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n" + HIDDEN, 400),
    (POST + b"Content-Length: 4\r\nContent-Length: 5\r\n" + HIDDEN, 400),
]


async def test_each_request_has_one_answer_and_ends_only_its_connection(services: Services) -> None:
    async with serving(services) as url:
        for request, status in ANSWERS:
            stream = await connect(url)
            await stream.send_all(request)
            await stream.send_eof()
            answer = await read_to_end(stream)
            assert answer.startswith(b"HTTP/1.1 %d " % status), (request[:99], answer)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert b"connection: close" in answer.lower()
            assert (b"api_hosts" in answer) is (status == 403)


async def test_who_expects_to_continue_is_told_to(services: Services) -> None:
    head = b"POST" + VERSION + b"Host: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n"
    async with serving(services) as url, await connect(url) as stream:
        await stream.send_all(head + CLOSE)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"{}")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


async def test_an_answer_to_head_has_no_body_and_the_connection_goes_on(services: Services) -> None:
    ask = VERSION + b"Host: localhost\r\n"
    async with serving(services) as url:
        stream = await connect(url)
        await stream.send_all(b"HEAD" + ask + b"\r\n" + b"GET" + ask + CLOSE)
        answer = await read_to_end(stream)
    head, body, whole = answer.split(b"\r\n\r\n", 2)
    assert head.startswith(b"HTTP/1.1 200")
    assert body.startswith(b"HTTP/1.1 200")
    assert b"content-length: %d\r\n" % len(whole) in head + b"\r\n"
