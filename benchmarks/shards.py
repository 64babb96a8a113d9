"""A model of many documents on real daemons that have a quarter of it each, and then a fifth.

    python -m benchmarks.shards [--documents N] [--directory DIR] [--json FILE]

One daemon has all documents. Four have a quarter each, and a fifth has two of them; they start
empty, all at once, and know the first one only. Then the first one stops, and each of the five
wants a fifth beside what it has: what they lack, they get from each other. Columns:

  node      which daemon
  wants     its shards of the step
  events    in its feed at the end of the step
  received  events that peers have delivered to it since its start, new or not
  right     whether the Sha256a of its feed is that of the documents in its shards
  seconds   from the start of the step until it was
  cpu_s     of the daemon since its start, without the processes that verify

The documents are of 4,000 controllers. Each is an unsigned init event of 250 bytes, as of a model
whose accounts have one document each: a signature would cost every daemon 0.1 ms more, and change
nothing in what is moved.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.report import Row, count, new_file, progress, show
from recon_node.ceramic import Network, Shard, StreamId, StreamType
from recon_node.ceramic.auth.did import ed25519_did
from recon_node.ceramic.builder import deterministic_init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import Sha256a
from recon_node.recon.keys.sha256a import lanes_of
from recon_node.store import StoreSettings
from recon_node.store.db.log import EventLog, commit_batch
from recon_node.store.kept_interests import key_ranges
from recon_node.store.values import Submission
from recon_node.testnet import TestnetNode
from recon_node.verification import check_event

MODEL: Final = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"a large model"))
CONTROLLERS: Final = 4000
QUARTERS: Final = (("1/4",), ("2/4",), ("3/4",), ("4/4",), ("1/4", "2/4"))
_BATCH: Final = 2000
_POLL: Final = 2.0
_STEP_TIMEOUT: Final = 10_000.0
"""Seconds that a step, or the start of the first daemon, takes at most."""


class Documents:
    """The documents, of which only the hashes are kept."""

    def __init__(self) -> None:
        self._random = random.Random(36)
        dids = [ed25519_did(self._random.randbytes(32)) for _ in range(CONTROLLERS)]
        self._lanes = dict.fromkeys(dids, 0)

    def write(self, directory: Path, network: Network, documents: int) -> None:
        """Fill the log of a daemon that does not run, by the way of local events."""
        directory.mkdir(parents=True)
        dids = list(self._lanes)
        log = EventLog(directory, network, StoreSettings(synchronous="normal"))
        ranges = key_ranges(network, ())
        for start in range(0, documents, _BATCH):
            owners = self._random.choices(dids, k=min(_BATCH, documents - start))
            cars = [
                deterministic_init_event(did, MODEL, unique=number.to_bytes(4)).car
                for number, did in enumerate(owners, start)
            ]
            batch = [Submission(car, finding=check_event(car)) for car in cars]
            verdicts = commit_batch(log, batch, ranges).verdicts
            for did, verdict in zip(owners, verdicts, strict=True):
                assert verdict.status == "new", verdict.reason
                assert verdict.event_id is not None
                self._lanes[did] += lanes_of(verdict.event_id)
        log.close()

    def hash_of(self, shards: Sequence[str]) -> str:
        """Return the Sha256a of the documents in some shards, in hexadecimal."""
        parsed = [Shard.parse(shard) for shard in shards]
        of = (n for did, n in self._lanes.items() if any(shard.covers(did) for shard in parsed))
        return Sha256a.from_lanes(sum(of)).hex()


def wait_for(
    nodes: Sequence[TestnetNode], shards: Sequence[Sequence[str]], documents: Documents
) -> list[Row]:
    """Wait until each daemon has what is in its shards; return what came of it."""
    started = time.monotonic()
    seconds: dict[str, float] = {}
    right = {node.name: documents.hash_of(s) for node, s in zip(nodes, shards, strict=True)}
    while len(seconds) < len(nodes) and time.monotonic() < started + _STEP_TIMEOUT:
        time.sleep(_POLL)
        for node in nodes:
            if node.name not in seconds and state(node)["sha256a"] == right[node.name]:
                seconds[node.name] = time.monotonic() - started
                progress(f"{node.name} is complete")
    return [
        {
            "node": node.name,
            "wants": " ".join(wanted),
            "events": state(node)["head"],
            "received": received(node),
            "right": str(state(node)["sha256a"] == right[node.name]).lower(),
            "seconds": seconds.get(node.name, _STEP_TIMEOUT),
            "cpu_s": cpu_seconds(node),
        }
        for node, wanted in zip(nodes, shards, strict=True)
    ]


def state(node: TestnetNode) -> dict[str, Any]:
    """Return what a daemon says of its events."""
    answer = httpx.get(f"{node.api_url}/ceramic/recon", timeout=300).raise_for_status()
    return dict(answer.json())


def received(node: TestnetNode) -> int:
    """Return how many events peers have delivered to a daemon, new or not."""
    metrics = httpx.get(f"{node.api_url}/metrics", timeout=300).text
    counted = re.findall(r"recon_peer_events_total\{[^}]*\} ([0-9.e+]+)", metrics)
    return sum(int(float(line)) for line in counted)


def cpu_seconds(node: TestnetNode) -> float:
    """Return the CPU that a daemon has used so far, its threads included."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(number: int, directory: Path) -> list[Row]:
    """Start the daemons with quarters, then give them fifths."""
    network = Network.local(secrets.randbelow(2**32))
    flags = ("--network", network.name, "--sync-interval", "5")
    documents = Documents()
    with ExitStack() as stack:
        first, *nodes = (TestnetNode(f"node-{n}", directory, flags) for n in range(6))
        progress(f"making {number:,} documents")
        documents.write(first.data_dir, network, number)
        stack.callback(first.discard)
        first.launch()
        first.wait_until_ready(_STEP_TIMEOUT)
        for node, shards in zip(nodes, QUARTERS, strict=True):
            wanted = [f for shard in shards for f in ("--interest", f"model={MODEL} shard={shard}")]
            stack.callback(node.discard)
            node.launch(["--bootstrap", first.addresses[0], *wanted])
        for node in nodes:
            node.wait_until_ready(_STEP_TIMEOUT)
        rows = wait_for(nodes, QUARTERS, documents)
        first.stop()
        fifths = [f"{number}/5" for number in range(1, 6)]
        for node, shard in zip(nodes, fifths, strict=True):
            wants = {"sep": "model", "sepValue": str(MODEL), "controllers": shard}
            url = f"{node.api_url}/ceramic/interests"
            httpx.post(url, json=wants, timeout=300).raise_for_status()
        both = [(*quarters, fifth) for quarters, fifth in zip(QUARTERS, fifths, strict=True)]
        return rows + wait_for(nodes, both, documents)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--documents", type=count, default=1_000_000)
    parser.add_argument("--directory", type=Path, help="for the logs; removed afterwards")
    parser.add_argument("--json", type=new_file)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        rows = run(options.documents, Path(directory))
    show(f"{options.documents:,} documents in shards", rows, options.json)


if __name__ == "__main__":
    main()
