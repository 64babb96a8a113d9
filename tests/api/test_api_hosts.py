"""Which hosts a request may name, and what is not a request or has two meanings."""

import socket

import pytest
from api_samples import connect, read_to_end, serving
from support import vectors

from recon_node.api.endpoint import Services
from recon_node.api.middleware import Hosts, host_in

REQUESTS = vectors.load("api_requests")
LOOPBACK = ("127.0.0.1",)
CLOSE = b"Connection: close\r\n\r\n"
VERSION = b" /ceramic/version HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("listening", "authority", "is_ours"),
    [
        *REQUESTS["authorities"],
        (LOOPBACK, socket.gethostname(), socket.gethostname() == "localhost"),
        (("0.0.0.0",), socket.gethostname(), True),
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
    assert "the name 'node-2': use" in str(hosts.refusal("node-2:5101"))  # as api_hosts takes it


ANSWERS = [
    *((request.encode(), status) for request, status in REQUESTS["requests"]),
    (b"GET" + VERSION + b"Host: x\r\nX: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    (b"GET" + VERSION + b"Host: localhost\r\nX: " + b"a" * 20_000 + b"\r\n" + CLOSE, 431),
    (b"\x00\xff\xfe\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), 400),  # TLS
]
"""Requests and the status of their answers. What follows one that has two meanings (RFC 9112,
section 6.1) is not taken for a request."""


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


async def test_a_client_that_expects_100_continue_gets_it(services: Services) -> None:
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
