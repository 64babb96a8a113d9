"""Slow, silent and many clients of a real node: what they cost, and whom they keep out."""

import resource
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from recon_node.testnet import Testnet, TestnetNode

MIB = 1 << 20
SLOW = 1.0
"""Seconds in which the vital answers have to come."""
LONG_POLL = b"GET /ceramic/feed/head?wait=30 HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_HEAD = b"GET /ceramic/version HTTP/1.1\r\nHost: localhost\r\nX: "
BODY = 4_000_000
MOST = bytes(BODY - 1)
HALF_A_BODY = (
    b"POST /ceramic/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % BODY
)


@pytest.fixture(scope="module")
def node() -> Iterator[TestnetNode]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    with Testnet(nodes=1) as net:
        yield net.nodes[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(node: TestnetNode, number: int, data: bytes, stack: ExitStack) -> list[socket.socket]:
    port = int(node.api_url.rpartition(":")[2])
    clients = []
    for _ in range(number):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        client.sendall(data)
        clients.append(client)
    return clients


def vital_answers_come(node: TestnetNode) -> None:
    """At once, each on a connection of its own; the machine may be busy during one of three."""
    for path in ("/ceramic/liveness", "/metrics"):
        seconds = []
        for _ in range(3):
            started = time.monotonic()
            assert httpx.get(node.api_url + path, timeout=30).status_code == 200
            seconds.append(time.monotonic() - started)
        assert min(seconds) < SLOW


@pytest.mark.parametrize(
    ("number", "data"), [(1_600, b""), (1_600, HALF_A_HEAD), (140, LONG_POLL), (1_100, HALF_A_BODY)]
)
def test_a_crowd_of_clients_keeps_nobody_out(node: TestnetNode, number: int, data: bytes) -> None:
    with ExitStack() as stack:
        crowd(node, number, data, stack)
        vital_answers_come(node)
        assert httpx.get(f"{node.api_url}/ceramic/version", timeout=30).status_code == 200


def send_most(client: socket.socket) -> None:
    """Send all of a body but its last byte, if it is read: it may have to give way, or to wait."""
    client.settimeout(5)
    with suppress(OSError):
        client.sendall(MOST)


def test_bodies_that_stall_cost_a_bounded_memory_and_give_way(node: TestnetNode) -> None:
    """128 of 4 MB were 500 MB, most of which stayed."""

    def resident() -> int:
        status = Path(f"/proc/{node.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line) * 1024

    before = resident()
    with ExitStack() as stack:
        clients = crowd(node, 128, HALF_A_BODY, stack)
        with ThreadPoolExecutor(len(clients)) as threads:
            threads.map(send_most, clients)
        vital_answers_come(node)
        assert resident() - before < 150 * MIB
        # Another address gets its share, however large its body is.
        transport = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=transport, base_url=node.api_url, timeout=30) as other:
            answer = other.post("/ceramic/events", content=b" " * BODY)
            assert answer.status_code == 400
    assert resident() - before < 150 * MIB
