"""What the HTTP API takes and costs: one client, and many at once.

    python -m benchmarks.http [--events N] [--clients N,N...] [--json FILE]

A node on loopback answers clients of another process, on the same cores, which keep their
connections and send raw requests. `one get`: `GET /ceramic/liveness` again and again; `one post`:
events one by one; `N posts`: N clients, each of which posts its events one by one. After the posts
the node is killed (SIGKILL) and started again: all that it answered must be there. `cpu_us` is the
node's CPU for a request, `client_cpu_us` that of the clients; `ms` a client's median wait, and the
99th percentile.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import httpx
import trio

from benchmarks.admission import signed_events
from benchmarks.idle import cpu_seconds
from benchmarks.report import Row, numbers, progress, show
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

NETWORK: Final = Network.local(5)
GETS: Final = 3_000
STREAM: Final = 10


class Client:
    """A connection that is kept."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    @classmethod
    async def open(cls, url: str) -> Client:
        """Connect with a node."""
        parts = urlsplit(url)
        return cls(await trio.open_tcp_stream(parts.hostname or "", parts.port or 0))

    async def ask(self, request: bytes, status: bytes) -> None:
        """Send a request, and read the answer, whose length is in its head, if it has a body."""
        await self._stream.send_all(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            part = await self._stream.receive_some(65_536)
            if not part:
                raise SystemExit(f"the node hung up: {answer!r}")
            answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        if status not in head.partition(b"\r\n")[0]:
            raise SystemExit(f"not {status!r}: {answer!r}")
        lines = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
        left = int(lines[0].partition(b":")[2]) - len(body) if lines else 0
        while left > 0:
            left -= len(await self._stream.receive_some(65_536))


def get(url: str) -> bytes:
    """Return a request that costs the node next to nothing."""
    return f"GET /ceramic/liveness HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode()


def post(url: str, car: bytes) -> bytes:
    """Return a request that adds an event."""
    body = b'{"data":"' + multibase.encode(car).encode() + b'"}'
    head = (
        f"POST /ceramic/events HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _ask_all(url: str, requests: Sequence[Sequence[bytes]], status: bytes) -> list[float]:
    """Have a client for each list of requests send them one by one; return their waits."""
    waits: list[float] = []

    async def send(client: Client, mine: Sequence[bytes]) -> None:
        for request in mine:
            started = time.perf_counter()
            await client.ask(request, status)
            waits.append(time.perf_counter() - started)

    clients = [await Client.open(url) for _ in requests]
    async with trio.open_nursery() as nursery:
        for client, mine in zip(clients, requests, strict=True):
            nursery.start_soon(send, client, mine)
    return waits


def measure(node: TestnetNode, name: str, requests: Sequence[Sequence[bytes]], code: bytes) -> Row:
    """Return what requests take."""
    progress(name)
    before, own, started = cpu_seconds(node), time.process_time(), time.perf_counter()
    waits = sorted(trio.run(_ask_all, node.api_url, requests, code))
    seconds = time.perf_counter() - started
    return {
        "what": name,
        "requests": len(waits),
        "per_s": round(len(waits) / seconds),
        "cpu_us": (cpu_seconds(node) - before) / len(waits) * 1e6,
        "client_cpu_us": (time.process_time() - own) / len(waits) * 1e6,
        "ms": median(waits) * 1e3,
        "ms_99": waits[len(waits) * 99 // 100] * 1e3,
        "load": os.getloadavg()[0],
    }


def run(events: int, clients: Sequence[int], directory: Path) -> list[Row]:
    """Start a node, and measure everything."""
    progress(f"signing {events * (len(clients) + 1):,} events")
    cars = signed_events(events * (len(clients) + 1))
    node = TestnetNode("node", directory, ["--network", NETWORK.name, "--no-discovery"])
    node.launch()
    try:
        node.wait_until_ready()
        url = node.api_url
        rows = [measure(node, "one get", [[get(url)] * GETS], b" 200")]
        posts = [post(url, car) for car in cars]
        rows.append(measure(node, "one post", [posts[:events]], b" 204"))
        for number, count in enumerate(clients, 1):
            part = posts[number * events : (number + 1) * events]
            streams = [part[at : at + STREAM] for at in range(0, len(part), STREAM)]
            shares = [[*chain(*streams[at::count])] for at in range(min(count, len(streams)))]
            rows.append(measure(node, f"{count:,} posts", shares, b" 204"))
        node.kill()
        node.restart()
        head = httpx.get(f"{node.api_url}/ceramic/feed/head").json()["head"]
        if head != len(posts):
            raise SystemExit(f"{len(posts)} events were acknowledged, {head} are there")
    finally:
        node.stop()
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=10_000, help="of each row")
    parser.add_argument("--clients", type=numbers, default=[10, 100, 1_000])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        show("HTTP", run(options.events, options.clients, Path(directory)), options.json)


if __name__ == "__main__":
    main()
