"""What it costs to give many events their times: one tree, at three nodes and in Spark's tables.

    python -m benchmarks.anchoring [--events N] [--anchor FLAGS] [--flags FLAGS] [--spark]
                                   [--json FILE]

The first of three daemons on loopback gets init events through its API, and anchors them all at
once; the others get everything from it. By default the development clock anchors; --anchor has
other flags for the first node, and --flags some for all of them, such as those of a chain. Rows:

  write      until the first node has all events and has selected them, and the others have them
  anchor     from the request until the tree is anchored: the tree, and the authority
  make       until the first node has made and admitted all time events
  spread     until all three have delivered them, with their times
  tables     Spark's tables from the feed of the third node

`cpu_s` is that of the first node in that time, `others_cpu_s` that of the two others together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from nacl.signing import SigningKey

from benchmarks.report import Row, progress, show
from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.testnet import TestnetNode

_MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"the model of a benchmark"))
_POSTED = 1000
"""Events in one request."""
_CLOCK = "--anchor development"
_TICKS = os.sysconf("SC_CLK_TCK")
_LIMIT = 7200.0


def cpu_seconds(node: TestnetNode) -> float:
    """Return the CPU that a daemon has used so far, its threads included."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Stage:
    """Measures one stage after the other."""

    def __init__(self, nodes: list[TestnetNode], events: int) -> None:
        self._nodes = nodes
        self._events = events
        self.rows: list[Row] = []
        self._begin()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._cpu = [cpu_seconds(node) for node in self._nodes]

    def end(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait for the end of a stage, and note what it took."""
        deadline = time.monotonic() + _LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} took more than {_LIMIT:g} s")
            time.sleep(0.2)
        cpu = [cpu_seconds(node) - was for node, was in zip(self._nodes, self._cpu, strict=True)]
        row: Row = {"stage": name, "events": self._events}
        row["seconds"] = round(time.perf_counter() - self._started, 2)
        self.rows.append(row | {"cpu_s": round(cpu[0], 2), "others_cpu_s": round(sum(cpu[1:]), 2)})
        self._begin()


def measure(count: int, anchor: list[str], flags: list[str], *, spark: bool) -> list[Row]:
    """Anchor so many events in one tree, and follow their times."""
    with tempfile.TemporaryDirectory(prefix="recon-bench-") as directory:
        shared = ["--network", "local-77", "--sync-interval", "2", *flags]
        nodes = [TestnetNode(f"node-{n}", Path(directory), shared) for n in (1, 2, 3)]
        try:
            nodes[0].launch([*anchor, "--anchor-interval", "1d"])
            nodes[0].wait_until_ready()
            for node in nodes[1:]:
                node.launch(["--bootstrap", nodes[0].addresses[0]])
            for node in nodes[1:]:
                node.wait_until_ready()
            return _measure(nodes, count, Path(directory) / "tables", spark=spark)
        finally:
            for node in nodes:
                node.kill()


def _measure(nodes: list[TestnetNode], count: int, tables: Path, *, spark: bool) -> list[Row]:
    bodies = _bodies(count)
    stage = Stage(nodes, count)
    progress(f"writing {count:,} events")
    with httpx.Client(base_url=nodes[0].api_url, timeout=_LIMIT) as client:
        for body in bodies:
            headers = {"content-type": "application/x-ndjson"}
            client.post("/ceramic/events", content=body, headers=headers).raise_for_status()

        def anchors() -> dict[str, Any]:
            return dict(client.get("/ceramic/anchors").json())

        stage.end(
            "write",
            lambda: (
                anchors()["requests"]["waiting"] == count
                and all(_state(node)["head"] == count for node in nodes)
            ),
        )
        progress("anchoring them")
        client.post("/ceramic/anchors/now").raise_for_status()
        stage.end("anchor", lambda: bool(anchors()["latest"] and anchors()["latest"][0]["tx_hash"]))
        stage.end("make", lambda: bool(anchors()["latest"][0]["is_done"]))
        assert [tree["leaves"] for tree in anchors()["latest"]] == [count]
    stage.end("spread", lambda: all(_state(node)["head"] == 2 * count for node in nodes))
    if spark:
        progress("filling Spark's tables")
        command = [sys.executable, "-m", "spark_sink"]
        url, place = nodes[2].api_url, str(tables)
        subprocess.run([*command, "run", "--once", "--url", url, "--tables", place], check=True)
        stage.end("tables", lambda: True)
        sql = "SELECT count(*) AS n FROM stream_tips WHERE len(anchored_at) = 1"
        found = subprocess.run(
            [*command, "query", "--json", "--tables", place, sql], check=True, capture_output=True
        )
        assert f'"n": {count}'.encode() in found.stdout, found.stdout
    return stage.rows


def _bodies(count: int) -> list[bytes]:
    key, lines = SigningKey(bytes(32)), []
    for number in range(count):
        event = init_event(key, _MODEL, {"n": number}, unique=number.to_bytes(4, "big"))
        lines.append(b'{"data": "%s"}\n' % multibase.encode(event.car).encode())
    return [b"".join(lines[at : at + _POSTED]) for at in range(0, count, _POSTED)]


def _state(node: TestnetNode) -> dict[str, Any]:
    return dict(httpx.get(f"{node.api_url}/ceramic/recon", timeout=_LIMIT).json())


def main() -> None:
    """Measure, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--anchor", default=_CLOCK)
    parser.add_argument("--flags", default="--development-time")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = measure(args.events, args.anchor.split(), args.flags.split(), spark=args.spark)
    show("Anchoring", rows, args.json)


if __name__ == "__main__":
    main()
