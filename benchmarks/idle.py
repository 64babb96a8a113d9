"""What nodes in sync cost: CPU of real daemons that reconcile and find nothing to do.

    python -m benchmarks.idle [--nodes N] [--events N] [--interval S] [--seconds S] [--json FILE]

The daemons run on loopback and hold the same events. Columns:

  cpu_%        CPU of one daemon, in percent of a core
  alone_%      the same before it has a peer: what the daemon costs without sessions
  sessions_s   sessions a second that one daemon takes part in
  ms_a_side    CPU of one side of a session: the difference of the two, by session
  session_ms   one side of the session itself: both messages, without libp2p, tasks and reports
  times        the ratio of the two
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from benchmarks.keys import event_ids
from benchmarks.report import Row, progress, show
from benchmarks.start_up import fill
from recon_node.ceramic import IN_MEMORY, network_range
from recon_node.recon import RECON_1_2, KeyRange, KeyStore, Side, turn_of
from recon_node.testnet import TestnetNode

_SETTLE = 5.0
_TICKS = os.sysconf("SC_CLK_TCK")
_ROUNDS = 2000


def session_seconds(events: int) -> float:
    """Return the CPU of one side of an in-sync session, with its codec, in seconds."""
    whole = KeyRange(*network_range(IN_MEMORY))
    store = KeyStore(event_ids(events, seed=1))
    encode, decode = RECON_1_2.encode, RECON_1_2.decode
    started = time.process_time()
    for _ in range(_ROUNDS):
        asking = RECON_1_2.session(Side.initiator(store, whole))
        answering = RECON_1_2.session(Side.responder(store, [whole]))
        (opening,) = turn_of(asking.start())
        (answer,) = turn_of(answering.receive(decode(encode(opening))))
        turn_of(asking.receive(decode(encode(answer))))
        assert asking.side.done
        assert answering.side.done
    return (time.process_time() - started) / _ROUNDS / 2


def cpu_seconds(node: TestnetNode) -> float:
    """Return the CPU that a daemon has used so far, its threads included."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def sessions(node: TestnetNode) -> float:
    """Return how many sessions a daemon has ended, as either side."""
    lines = httpx.get(f"{node.api_url}/metrics", timeout=30).text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("recon_session_duration_seconds_count{")
    )


def measure(nodes: list[TestnetNode], seconds: float) -> tuple[float, float]:
    """Return CPU and sessions a second of one daemon, on average."""
    before = [(cpu_seconds(each), sessions(each)) for each in nodes]
    started = time.monotonic()
    time.sleep(seconds)
    cpu = sum(cpu_seconds(each) - was for each, (was, _) in zip(nodes, before, strict=True))
    took = (time.monotonic() - started) * len(nodes)
    held = sum(sessions(each) - was for each, (_, was) in zip(nodes, before, strict=True))
    return cpu / took, held / took


def connect(nodes: list[TestnetNode]) -> None:
    """Connect each daemon with those before it."""
    for index, node in enumerate(nodes):
        for other in nodes[:index]:
            url, address = f"{node.api_url}/ceramic/peers", other.addresses[0]
            httpx.post(url, params={"addresses": address}, timeout=30).raise_for_status()


def run(count: int, events: int, interval: float, seconds: float, directory: Path) -> Row:
    """Start the daemons, and measure them alone, then in sync with each other."""
    with ExitStack() as stack:
        nodes = []
        for number in range(count):
            flags = ["--network", IN_MEMORY.name, "--no-discovery"]
            node = TestnetNode(f"node-{number}", directory, [*flags, *_interval(interval)])
            node.data_dir.mkdir(parents=True)
            fill(node.data_dir, events)
            stack.callback(node.stop)
            node.launch()
            nodes.append(node)
        for node in nodes:
            node.wait_until_ready()
        time.sleep(_SETTLE)
        progress("alone")
        alone, _ = measure(nodes, seconds)
        connect(nodes)
        time.sleep(_SETTLE)
        progress("in sync")
        cpu, rate = measure(nodes, seconds)
    alone_ms, side = session_seconds(events) * 1000, (cpu - alone) / max(rate, 1e-9) * 1000
    return {
        "nodes": count,
        "events": events,
        "interval_s": interval,
        "cpu_%": 100 * cpu,
        "alone_%": 100 * alone,
        "sessions_s": rate,
        "ms_a_side": side,
        "session_ms": alone_ms,
        "times": side / alone_ms,
    }


def _interval(seconds: float) -> list[str]:
    return ["--sync-interval", f"{seconds:g}"]


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--interval", type=float, default=2.0, help="sync_interval, in seconds")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--directory", type=Path, help="for the logs; removed afterwards")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        row = run(options.nodes, options.events, options.interval, options.seconds, Path(directory))
    show("Idle", [row], options.json)


if __name__ == "__main__":
    main()
