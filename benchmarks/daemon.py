"""What running nodes take and cost, with their default settings, over HTTP and from node to node.

    python -m benchmarks.daemon [--events N] [--clients N,N...] [--peers N] [--json FILE]

Nodes on the loopback, and clients in this process, on the same cores; each client keeps its
connection.

  GET            `GET /ceramic/liveness`, again and again
  POST           events one by one, each when the one before is answered
  N clients      N clients at once, each of which posts its events one by one
  to a peer      events with pauses between them, until another node's feed has each
  in sync        a node and its peers, which hold the same and have nothing to do

`cpu_us` is what a request costs the node; `ms` and `ms_99` are median and 99th percentile of what
was waited for; `cpu_%` is a node's CPU in percent of a core. After the posts the node is killed
(SIGKILL) and started again: all that it answered must be there.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Final

import httpx
import trio

from benchmarks.admission import STREAM, signed_events
from benchmarks.plain_http import get, post, send, send_at_once
from benchmarks.processes import cpu_seconds
from benchmarks.report import Row, command_line, count, numbers, progress, show
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

NETWORK: Final = Network.local(5)
GETS: Final = 5_000
PUSHED: Final = 100
"""Events whose way to a peer is timed."""
PAUSE: Final = 0.5
SETTLED: Final = 5.0
"""Seconds after which nodes have met and nothing else happens."""
IDLE_SECONDS: Final = 60.0


@contextmanager
def nodes(directory: Path, number: int) -> Iterator[list[TestnetNode]]:
    """Run nodes, each connected with the first."""
    directory.mkdir()
    flags = ["--network", NETWORK.name, "--no-discovery"]
    started = [TestnetNode(f"node-{at}", directory, flags) for at in range(number)]
    with ExitStack() as stack:
        for node in started:
            node.launch()
            stack.callback(node.stop)
        for node in started:
            node.wait_until_ready()
        for node in started[1:]:
            address = {"addresses": started[0].addresses[0]}
            httpx.post(f"{node.api_url}/ceramic/peers", params=address).raise_for_status()
        yield started


def requests(node: TestnetNode, name: str, shares: Sequence[Sequence[bytes]]) -> Row:
    """Return what requests take and cost; each share has a client of its own."""
    progress(name)
    cpu, started = cpu_seconds(node.pid), time.perf_counter()
    if len(shares) == 1:
        waits = send(node.api_url, shares[0])
    else:
        waits = trio.run(send_at_once, node.api_url, shares)
    seconds = time.perf_counter() - started
    return {
        "what": name,
        "times": len(waits),
        "per_s": round(len(waits) / seconds),
        "cpu_us": (cpu_seconds(node.pid) - cpu) / len(waits) * 1e6,
        **_waits(waits),
    }


def _waits(seconds: list[float]) -> Row:
    ordered = sorted(seconds)
    return {"ms": median(ordered) * 1e3, "ms_99": ordered[len(ordered) * 99 // 100] * 1e3}


def http(directory: Path, events: int, clients: Sequence[int]) -> Iterator[Row]:
    """Measure what requests cost one node."""
    cars = signed_events(events * (1 + len(clients)))
    with nodes(directory, 1) as (node,):
        yield requests(node, "GET", [[get(node.api_url)] * GETS])
        posts = [post(node.api_url, car) for car in cars]
        yield requests(node, "POST", [posts[:events]])
        for number, several in enumerate(clients, 1):
            part = posts[number * events : (number + 1) * events]
            streams = [part[at : at + STREAM] for at in range(0, len(part), STREAM)]
            shares = [[*chain(*streams[at::several])] for at in range(min(several, len(streams)))]
            yield requests(node, f"{several:,} clients", shares)
        node.kill()
        node.restart()
        head = httpx.get(f"{node.api_url}/ceramic/feed/head").json()["head"]
        if head != len(posts):
            raise SystemExit(f"{len(posts)} events were acknowledged, {head} are there")


def to_a_peer(directory: Path) -> Row:
    """Measure how soon an event that one node is given is in another node's feed."""
    progress("to a peer")
    rng, waits = random.Random(7), []
    with (
        nodes(directory, 2) as (here, there),
        httpx.Client(base_url=here.api_url, timeout=60) as writer,
        httpx.Client(base_url=there.api_url, timeout=60) as reader,
    ):
        time.sleep(SETTLED)
        for position, car in enumerate(signed_events(PUSHED)):
            started = time.perf_counter()
            event = {"data": multibase.encode(car)}
            writer.post("/ceramic/events", json=event).raise_for_status()
            after: dict[str, int] = {"after": position, "wait": 30}
            while reader.get("/ceramic/feed/head", params=after).json()["head"] <= position:
                pass
            waits.append(time.perf_counter() - started)
            time.sleep(PAUSE * rng.uniform(0.5, 1.5))
    return {"what": "to a peer", "times": PUSHED, **_waits(waits)}


def in_sync(directory: Path, peers: int) -> Row:
    """Measure what a node in sync with some peers costs while nothing happens."""
    progress("in sync")
    with nodes(directory, peers + 1) as (node, *_):
        send(node.api_url, [post(node.api_url, car) for car in signed_events(500)])
        time.sleep(4 * SETTLED)
        cpu, started = cpu_seconds(node.pid), time.perf_counter()
        time.sleep(IDLE_SECONDS)
        used = (cpu_seconds(node.pid) - cpu) / (time.perf_counter() - started)
    return {"what": f"in sync with {peers} peers", "cpu_%": 100 * used}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("daemon", __doc__)
    parser.add_argument("--events", type=count, default=10_000, help="of each row")
    parser.add_argument("--clients", type=numbers, default=[10, 100, 1_000])
    parser.add_argument("--peers", type=count, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = [*http(directory / "http", options.events, options.clients)]
        rows.append(to_a_peer(directory / "peer"))
        rows.append(in_sync(directory / "idle", options.peers))
    show("Nodes", rows, options.json)


if __name__ == "__main__":
    main()
