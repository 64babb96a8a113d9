"""How soon what is written at one node is at another, with a node's default settings.

    python -m benchmarks.latency [--events N] [--pause S] [--spark] [--json FILE]

Two daemons on loopback are peers. A client posts events to the one, each once the one before has
arrived and after a random pause around `--pause`, and reads the feed of the other with a long poll.
`post_ms` is until the post is answered, `feed_ms` from its start until the event is in the other
one's feed: medians, and the 99th percentiles. With `--spark`, `spark-sink run` follows the other
node; `table_ms` is until `raw_events` has the event.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from benchmarks.admission import signed_events
from benchmarks.report import Row, progress, show
from recon_node.ceramic import Network
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

NETWORK: Final = Network.local(6)
SETTLED: Final = 5.0
"""Seconds after which two nodes have met and nothing else happens."""
_TABLE_POLL: Final = 0.01


def head_after(api: httpx.Client, position: int) -> None:
    """Wait until a feed goes beyond a position."""
    while True:
        answer = api.get("/ceramic/feed/head", params={"after": position, "wait": 30})
        if answer.raise_for_status().json()["head"] > position:
            return


@contextmanager
def pipeline(url: str, tables: Path, log: Path) -> Iterator[None]:
    """Have the pipeline follow a node."""
    command = [sys.executable, "-m", "spark_sink", "run", "--url", url, "--tables", str(tables)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def rows_of(table: Path) -> int:
    """Return how many rows a Delta table has; 0 before it is there."""
    import deltalake

    if not deltalake.DeltaTable.is_deltatable(str(table)):
        return 0
    return int(deltalake.DeltaTable(str(table)).count())


def wait_for_rows(table: Path, count: int) -> None:
    """Wait until a table has so many rows."""
    while rows_of(table) < count:
        time.sleep(_TABLE_POLL)


def run(events: int, pause: float, directory: Path, *, spark: bool) -> Row:
    """Start the daemons, and measure."""
    rng = random.Random(7)
    flags = ["--network", NETWORK.name, "--no-discovery"]
    cars = signed_events(events + 10)[: events + 1]
    table = directory / "tables" / "raw_events"
    with ExitStack() as stack:
        nodes = [TestnetNode(name, directory, flags) for name in ("here", "there")]
        for node in nodes:
            stack.callback(node.stop)
            node.launch()
        for node in nodes:
            node.wait_until_ready()
        here, there = (
            stack.enter_context(httpx.Client(base_url=node.api_url, timeout=60)) for node in nodes
        )
        address = nodes[1].addresses[0]
        here.post("/ceramic/peers", params={"addresses": address}).raise_for_status()
        _post(here, cars[0])
        head_after(there, 0)
        if spark:
            progress("starting the pipeline")
            stack.enter_context(
                pipeline(nodes[1].api_url, directory / "tables", directory / "spark.log")
            )
            wait_for_rows(table, 1)
        time.sleep(SETTLED)
        progress(f"{events} events")
        posts, feeds, rows = [], [], []
        for number, car in enumerate(cars[1:], 1):
            started = time.perf_counter()
            _post(here, car)
            posts.append(time.perf_counter() - started)
            head_after(there, number)
            feeds.append(time.perf_counter() - started)
            if spark:
                wait_for_rows(table, number + 1)
                rows.append(time.perf_counter() - started)
            time.sleep(pause * rng.uniform(0.5, 1.5))
    return {
        "events": events,
        **_of("post", posts),
        **_of("feed", feeds),
        **_of("table", rows),
        "load": os.getloadavg()[0],
    }


def _of(name: str, seconds: Sequence[float]) -> Row:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    return {
        f"{name}_ms": median(ordered) * 1e3,
        f"{name}_ms_99": ordered[len(ordered) * 99 // 100] * 1e3,
    }


def _post(api: httpx.Client, car: bytes) -> None:
    api.post("/ceramic/events", json={"data": multibase.encode(car)}).raise_for_status()


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two events")
    parser.add_argument("--spark", action="store_true", help="measure the pipeline's table, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        row = run(options.events, options.pause, Path(directory), spark=options.spark)
    show("Latency", [row], options.json)


if __name__ == "__main__":
    main()
