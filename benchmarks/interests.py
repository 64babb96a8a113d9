"""Partial interests: real daemons on one machine that want different models.

    python -m benchmarks.interests [--nodes N] [--rate R] [--seconds S] [--cut S] [--json FILE]

Runs daemons of which each is interested in one or two of four models. Events are
written to random interested daemons all the time. Rows:

  spread  in normal operation
  kill    three random daemons are killed (SIGKILL) under the load, and started again
  cut     the daemons are cut into two halves for `--cut` seconds, and joined again; this needs
          root and `ip`, for network namespaces, and is left out without them

  p50_s, p99_s, max_s   from the start of a write until an interested daemon has the event in its
                        feed, for all daemons and events of the phase
  late_s                cut, kill: after the halves were joined, or the daemons started again, until
                        every interested daemon has every event
  misplaced             events at daemons that are not interested in them
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.interests_daemons import (
    MODELS,
    Daemon,
    Writer,
    ip,
    model_of,
    start,
    two_halves,
)
from benchmarks.report import Row, command_line, progress, show

KILLED: Final = 3
LIMIT: Final = 120.0
"""Seconds in which every event must be where it is wanted."""
SETTLE: Final = 60.0
"""Seconds in which a dozen daemons that start at once and share the cores find each other."""


def lacking(daemons: Sequence[Daemon], writer: Writer) -> int:
    """Return how many events are still missing at how many daemons, in total."""
    written = list(writer.written.items())
    return sum(
        cid not in daemon.arrived
        for daemon in daemons
        for cid, of in written
        if of.model in daemon.wanted
    )


def wait_for_all(daemons: Sequence[Daemon], writer: Writer) -> float:
    """Wait until every event is everywhere it is wanted; return the seconds.

    Raises:
        SystemExit: it takes too long.
    """
    began = time.monotonic()
    while missing := lacking(daemons, writer):
        if time.monotonic() > began + LIMIT:
            raise SystemExit(f"{missing} events are missing after {LIMIT:g} s")
        time.sleep(0.02)
    return time.monotonic() - began


def row(phase: str, cids: Sequence[str], daemons: Sequence[Daemon], writer: Writer) -> Row:
    """Return the latencies of some events."""
    latencies = sorted(
        daemon.arrived[cid] - writer.written[cid].at
        for cid in cids
        for daemon in daemons
        if writer.written[cid].model in daemon.wanted
    )
    misplaced = sum(
        cid in writer.written and writer.written[cid].model not in daemon.wanted
        for daemon in daemons
        for cid in daemon.arrived
    )
    return {
        "phase": phase,
        "nodes": len(daemons),
        "events": len(cids),
        "p50_s": latencies[len(latencies) // 2],
        "p99_s": latencies[int(len(latencies) * 0.99)],
        "max_s": latencies[-1],
        "misplaced": misplaced,
    }


def run(count: int, rate: float, seconds: float, cut: float, directory: Path) -> list[Row]:
    """Run the phases, one after the other, on the same daemons."""
    with ExitStack() as stack:
        halves = stack.enter_context(two_halves())
        progress(f"starting {count} daemons")
        daemons = start(count, directory, halves)
        for daemon in daemons:
            stack.callback(daemon.node.kill)
        stop = threading.Event()
        stack.callback(stop.set)
        for daemon in daemons:
            threading.Thread(target=daemon.watch, args=[stop], daemon=True).start()
        time.sleep(SETTLE)
        models = [model_of(number) for number in range(MODELS)]
        writer = Writer(daemons, models, rate)
        rows = [spread(daemons, writer, seconds), kill(daemons, writer, seconds)]
        if halves is not None and cut:
            rows.append(cut_apart(daemons, writer, cut, halves[2]))
        return rows


def spread(daemons: Sequence[Daemon], writer: Writer, seconds: float) -> Row:
    """Measure normal operation."""
    progress("spread")
    cids = writer.write_for(seconds)
    wait_for_all(daemons, writer)
    return row("spread", cids, daemons, writer)


def kill(daemons: Sequence[Daemon], writer: Writer, seconds: float) -> Row:
    """Kill some daemons under the load, and start them again."""
    progress("kill")
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(writer.write_for, seconds)
        time.sleep(seconds / 2)
        killed = random.sample(list(daemons[1:]), KILLED)
        for daemon in killed:
            daemon.node.kill()
        cids = job.result()
    for daemon in killed:
        daemon.node.launch()
    for daemon in killed:
        daemon.node.wait_until_ready(180.0)
    late = wait_for_all(daemons, writer)
    return row("kill", cids, daemons, writer) | {"late_s": late}


def cut_apart(daemons: Sequence[Daemon], writer: Writer, seconds: float, middle: str) -> Row:
    """Cut the network in two while events are written to both halves, and join it again."""
    progress("cut")
    ip("-n", middle, "link", "set", "to-r", "nomaster")
    cids = writer.write_for(seconds)
    apart = lacking(daemons, writer)
    ip("-n", middle, "link", "set", "to-r", "master", "bridge")
    late = wait_for_all(daemons, writer)
    if not apart:
        raise SystemExit("the daemons were not cut apart")
    return row("cut", cids, daemons, writer) | {"late_s": late}


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("interests", __doc__)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rate", type=float, default=5.0, help="writes a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds; 0: leave this phase out")
    parser.add_argument("--directory", type=Path, help="for the logs; kept afterwards")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        rows = run(options.nodes, options.rate, options.seconds, options.cut, directory)
    show("Partial interests", rows, options.json)


if __name__ == "__main__":
    main()
