"""What it costs to give many events their times: one tree, at three nodes and in Spark's tables.

    python -m benchmarks.anchoring [--events N] [--chain URL [--binary PATH]] [--spark]
                                   [--json FILE]

The first of three daemons on loopback gets init events through its API, and anchors them all at
once; the others get everything from it. By default the development clock anchors. --chain names
the endpoint of a development chain (anvil): a contract is deployed there, and an account gets the
coins to call it. --binary has three ceramic-one nodes do the same afterwards, on the same chain.
Rows:

  write      until all three have delivered the events
  anchor     from the request until the tree is anchored: the tree, and the authority
  make       until the first node has made and admitted all time events
  spread     until all three have delivered them, with their times
  tables     Spark's tables from the feed of the third node (with --spark; ours)

`cpu_s` is that of the first node in that time, `others_cpu_s` that of the two others together,
processes that they started included.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nacl.signing import SigningKey

from benchmarks.anchoring_nodes import LIMIT, Contestant, DevelopmentChain, Ours, Theirs
from benchmarks.ceramic_one import Node, cpu_seconds
from benchmarks.report import Row, count, new_file, progress, show
from recon_node.ceramic import StreamId, StreamType
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, multibase

_MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"the model of a benchmark"))
_POLL = 0.5
"""Seconds between two looks at how far the nodes are."""


class Stage:
    """Measures one stage after the other."""

    def __init__(self, name: str, nodes: Sequence[Node], events: int) -> None:
        self._name = name
        self._nodes = nodes
        self._events = events
        self.rows: list[Row] = []
        self.begin()

    def begin(self) -> None:
        """Begin a stage now."""
        self._started = time.perf_counter()
        self._cpu = [cpu_seconds(node) for node in self._nodes]

    def end(self, name: str, condition: Callable[[], bool]) -> None:
        """Wait for the end of a stage, and note what it took; the next one begins."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} took more than {LIMIT:g} s")
            time.sleep(_POLL)
        cpu = [cpu_seconds(node) - was for node, was in zip(self._nodes, self._cpu, strict=True)]
        row: Row = {"nodes": self._name, "stage": name, "events": self._events}
        row["seconds"] = round(time.perf_counter() - self._started, 1)
        row |= {"cpu_s": round(cpu[0], 2), "others_cpu_s": round(sum(cpu[1:]), 2)}
        progress(f"{name}: {row['seconds']:,} s, {row['cpu_s']:,} s of CPU")
        self.rows.append(row | {"load": round(os.getloadavg()[0], 1)})
        self.begin()


def measure(contestant: Contestant, events: Sequence[str], chain: DevelopmentChain | None) -> Stage:
    """Anchor events in one tree, and follow their times."""
    number = len(events)
    stage = Stage(contestant.name, contestant.nodes, number)
    progress(f"writing {number:,} events to {contestant.name}")
    contestant.write(events)
    stage.end("write", lambda: contestant.have_delivered(number))
    sent = 0 if chain is None else chain.transactions()
    progress("anchoring them")
    contestant.anchor(number)
    stage.begin()
    stage.end("anchor", contestant.is_anchored)
    stage.end("make", lambda: contestant.has_made(number))
    stage.end("spread", lambda: contestant.have_delivered(2 * number))
    assert chain is None or chain.transactions() == sent + 1, "not one transaction"
    return stage


def fill_tables(url: str, tables: Path, number: int) -> None:
    """Run the pipeline once, and check that every stream is anchored there."""
    progress("filling Spark's tables")
    command = [sys.executable, "-m", "spark_sink"]
    run = [*command, "run", "--once", "--url", url, "--tables", str(tables)]
    subprocess.run(run, check=True)
    sql = "SELECT count(*) AS n FROM stream_tips WHERE len(anchored_at) = 1"
    query = [*command, "query", "--json", "--tables", str(tables), sql]
    queried = subprocess.run(query, check=True, capture_output=True)
    assert f'"n": {number}'.encode() in queried.stdout, queried.stdout


def signed_events(number: int) -> list[str]:
    """Return so many init events, as multibase text."""
    key = SigningKey(bytes(32))
    return [
        multibase.encode(init_event(key, _MODEL, {"n": n}, unique=n.to_bytes(12, "big")).car)
        for n in range(number)
    ]


def _run(args: argparse.Namespace, directory: Path) -> list[Row]:
    events = signed_events(args.events)
    chain = DevelopmentChain(args.chain) if args.chain else None
    ours = Ours(directory, chain)
    try:
        stage = measure(ours, events, chain)
        if args.spark:
            fill_tables(ours.nodes[2].api_url, directory / "tables", len(events))
            stage.end("tables", lambda: True)
    finally:
        ours.close()
    if chain is None or args.binary is None:
        return stage.rows
    theirs = Theirs(directory, chain, args.binary, _MODEL)
    try:
        return stage.rows + measure(theirs, events, chain).rows
    finally:
        theirs.close()


def main() -> None:
    """Measure, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=count, default=100_000)
    parser.add_argument("--chain", metavar="URL")
    parser.add_argument("--binary", metavar="PATH", help="of ceramic-one; needs --chain")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--json", type=new_file)
    args = parser.parse_args()
    if args.binary and not args.chain:
        parser.error("--binary needs --chain")
    with tempfile.TemporaryDirectory(prefix="recon-bench-") as directory:
        rows = _run(args, Path(directory))
    show("Anchoring", rows, args.json)


if __name__ == "__main__":
    main()
