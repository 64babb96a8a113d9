"""What readers of the feed do to the network side of a node.

    python -m benchmarks.feed [--readers 0,1,10] [--events N] [--samples N] [--json FILE]

Two nodes, each a process of its own, on the loopback. Readers in a third process fetch the whole
feed of the second node as Arrow, again and again, as fast as it comes. Meanwhile events are
written to the first node, one at a time, and the time is taken from the acknowledgement of the
write until the head of the second node's feed has moved: a push, a reconciliation, a fetch and a
commit.
Readers and nodes share the cores, so that a part of the difference is theirs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import trio

from benchmarks.admission import signed_events
from benchmarks.report import Row, numbers, progress, show
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.store import open_store
from recon_node.testnet import Testnet

NETWORK = Network.local(6)
PAGE = 1000


def read_for_ever(url: str, readers: int) -> None:
    """Read the feed until standard input ends; then print how many bytes came."""
    received = 0

    async def read(client: httpx.AsyncClient) -> None:
        nonlocal received
        while True:
            head = (await client.get("/ceramic/feed/head")).json()["head"]
            for after in range(0, head, PAGE):
                query = {"after": after, "upto": min(after + PAGE, head)}
                async with client.stream("GET", "/ceramic/feed/arrow", params=query) as answer:
                    answer.raise_for_status()
                    async for part in answer.aiter_raw():
                        received += len(part)

    async def main() -> None:
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(readers):
                nursery.start_soon(read, client)
            await trio.to_thread.run_sync(sys.stdin.read)
            nursery.cancel_scope.cancel()

    trio.run(main)
    print(received)


def latencies(testnet: Testnet, cars: list[bytes], seconds: float) -> list[float]:
    """Seconds from the acknowledgement of each write until the other node has it in its feed."""
    first, second = testnet.nodes
    taken = []
    with httpx.Client(timeout=60) as client:
        for car in cars:
            head = client.get(f"{second.api_url}/ceramic/feed/head").json()["head"]
            posted = client.post(
                f"{first.api_url}/ceramic/events", json={"data": multibase.encode(car)}
            )
            posted.raise_for_status()
            started = time.perf_counter()
            query = {"after": head, "wait": seconds}
            answer = client.get(f"{second.api_url}/ceramic/feed/head", params=query).json()
            assert answer["head"] > head, f"no event came within {seconds} seconds"
            taken.append(time.perf_counter() - started)
    return taken


def measure(testnet: Testnet, readers: int, cars: list[bytes]) -> Row:
    """Take the latencies while so many readers are at work."""
    progress(f"{readers} readers")
    url = testnet.nodes[1].api_url
    command = [sys.executable, "-m", "benchmarks.feed", "--read", url, "--readers", str(readers)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        latencies(testnet, cars[:2], 30)  # all is under way
        started = time.perf_counter()
        taken = latencies(testnet, cars[2:], 30)
        seconds = time.perf_counter() - started
    finally:
        output, _ = process.communicate()
    return {
        "readers": readers,
        "samples": len(taken),
        "median_ms": statistics.median(taken) * 1000,
        "p90_ms": statistics.quantiles(taken, n=10)[-1] * 1000,
        "max_ms": max(taken) * 1000,
        "read_mb_per_s": int(output) / seconds / 1e6,
    }


async def fill(directory: Path, cars: list[bytes]) -> None:
    """Give a node events before it starts."""
    async with open_store(directory, NETWORK) as store:
        await store.admit_local(cars)


def run(readers: list[int], events: int, samples: int) -> list[Row]:
    """Measure for each number of readers."""
    cars = signed_events(events + 10 * (samples + 2) * len(readers))
    held, fresh = cars[:events], cars[events::10]  # the init events of the further streams
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for node in ("node-1", "node-2"):
            trio.run(fill, directory / node, held)
        with Testnet(2, directory, NETWORK.name) as testnet:
            return [
                measure(testnet, count, fresh[at * (samples + 2) :][: samples + 2])
                for at, count in enumerate(readers)
            ]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--readers", type=numbers, default=[0, 1, 10])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read_for_ever(options.read, options.readers[0])
        return
    show("Feed", run(options.readers, options.events, options.samples), options.json)


if __name__ == "__main__":
    main()
