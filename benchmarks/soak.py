"""Whether the pipeline can run for long: thousands of small batches, and what they leave behind.

    python -m benchmarks.soak [--batches N] [--streams N] [--json FILE] [--plot FILE.png]
    python -m benchmarks.soak --again FILE --plot FILE.png

A node is given batches of 1 to 50 signed events of N streams, chosen at random; each batch is sent
once all tables have the one before. Beside it, `spark-sink run` keeps all tables. A row per batch:

- `seconds`: from the arrival of the batch to its last commit, as `spark-sink run` reports it
- `latency_s`: from before the write to the node until all tables have the batch
- `cpu_s`: CPU time of all processes of the pipeline, which other programs hardly change
- `java_mb`, `driver_mb`, `workers_mb`, `node_mb`: resident memory, of Spark's Java, of the
  pipeline's process, of its other Python processes together (they share some), and of the node
- `live_mb`, `kept_mb`, `other_mb`: what the tables take on the disk: the files of their latest
  versions, those that only older versions need, and the rest (logs, checkpoint); `files` of the
  latest versions

The last lines are the bounds: disk at most 3 times live (or what is always kept beside it), p99 of
the batches at most 2 s, memory of the last quarter at most a tenth above that of the second. The
exit code is 1 if one is not met. On two idle cores, a batch takes about half a second.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx
import trio

from benchmarks.plots import plot_soak
from benchmarks.processes import memory, running
from benchmarks.report import (
    Row,
    command_line,
    count,
    machine,
    new_file,
    progress,
    read_rows,
    write_rows,
)
from benchmarks.spark import CpuMeter, line, program
from benchmarks.spark_log import NETWORK, RandomEvents, fill_log
from recon_node.ceramic import Event
from recon_node.ipld import multibase
from spark_sink.schema import TABLES
from spark_sink.tables.catalog import table_status
from spark_sink.tables.location import files_below
from spark_sink.tables.retention import LEAST_KEPT

_LARGEST_BATCH: Final = 50
# Batches between two looks at the disk: to list the files of all tables takes 0.1 s.
_BATCHES_PER_LOOK: Final = 20
# The bounds.
_DISK_RATIO: Final = 3.0
_P99: Final = 2.0
_GROWTH: Final = 1.1


def write(client: httpx.Client, events: Iterable[Event]) -> None:
    """Write events to a node, in one request."""
    lines = [json.dumps({"data": multibase.encode(event.car)}) for event in events]
    answer = client.post(
        "/ceramic/events",
        content="\n".join(lines),
        headers={"content-type": "application/x-ndjson"},
    )
    verdicts = [verdict["status"] for verdict in answer.raise_for_status().json()]
    if len(verdicts) != len(lines) or set(verdicts) != {"new"}:
        raise SystemExit(f"the node has not taken all events: {answer.text[:500]}")


@dataclass
class Meter:
    """Measures the pipeline `pid` and its tables."""

    pid: int
    node: int
    tables: Path

    def __post_init__(self) -> None:
        self._cpu = CpuMeter(self.pid)
        self._before = self._cpu.read()

    def cpu(self) -> float:
        """Return the CPU seconds since the last call."""
        before, self._before = self._before, self._cpu.read()
        return self._before - before

    def memory(self) -> dict[str, float]:
        """Return the resident memory of the pipeline's processes, and of the node, in MB."""
        used = {"java_mb": 0.0, "workers_mb": 0.0}
        for pid in self._cpu.family - {self.pid}:
            kind = "java_mb" if _name(pid) == "java" else "workers_mb"
            used[kind] += _resident(pid)
        return used | {"driver_mb": _resident(self.pid), "node_mb": _resident(self.node)}

    def disk(self) -> dict[str, float]:
        """Return what the tables take, in MB, and the number of their files."""
        status = table_status(self.tables)
        live = sum(table.size for table in status)
        rows = total = 0
        for file in files_below(self.tables):
            total += file.size
            rows += file.size if file.path.endswith(".parquet") else 0
        return {
            "live_mb": live / 1e6,
            "kept_mb": (rows - live) / 1e6,
            "other_mb": (total - rows) / 1e6,
            "files": sum(table.files for table in status),
        }


def _resident(pid: int) -> float:
    return memory("VmRSS", pid) / 1e6


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def soak(directory: Path, batches: int, streams: int) -> Iterator[Row]:
    """Run the soak; yield a row for each batch."""
    trio.run(fill_log, directory / "node", 1, 1)
    tables = directory / "tables"
    with running(directory / "node", NETWORK.name) as node:
        arguments = ("--tables", str(tables), "--url", node.api_url, "--json")
        with (
            program("spark_sink", "run", *arguments) as pipeline,
            httpx.Client(base_url=node.api_url, timeout=60) as client,
        ):
            line(pipeline, "batch")
            meter = Meter(pipeline.pid, node.pid or 0, tables)
            events = RandomEvents(streams, Random(37))
            position = 1
            for batch in range(1, batches + 1):
                number = events.random.randint(1, _LARGEST_BATCH)
                started = time.perf_counter()
                write(client, islice(events, number))
                position += number
                seconds = 0.0
                while (report := line(pipeline, "batch"))["position"] < position:
                    seconds += report["seconds"]
                row = {
                    "batch": batch,
                    "events": number,
                    "seconds": seconds + report["seconds"],
                    "latency_s": time.perf_counter() - started,
                    "cpu_s": meter.cpu(),
                    **meter.memory(),
                }
                if batch % _BATCHES_PER_LOOK == 0 or batch == batches:
                    row |= meter.disk()
                yield row


def bounds(rows: Sequence[Row]) -> Iterator[tuple[str, bool]]:
    """Yield each bound, with what was measured, and whether it was met."""
    seconds = sorted(row["seconds"] for row in rows)
    p99 = seconds[min(len(seconds) - 1, round(0.99 * len(seconds)))]
    p50 = statistics.median(seconds)
    yield f"batch: p50 {p50:.2f} s, p99 {p99:.2f} s; at most {_P99:g} s", p99 <= _P99
    last = next(row for row in reversed(rows) if "live_mb" in row)
    disk = last["live_mb"] + last["kept_mb"] + last["other_mb"]
    most = max(_DISK_RATIO * last["live_mb"], last["live_mb"] + len(TABLES) * LEAST_KEPT / 1e6)
    text = f"disk: {disk:.1f} MB, {disk / last['live_mb']:.2f} times live; at most {most:.1f} MB"
    yield text, disk <= most
    quarter = max(1, len(rows) // 4)
    for what in ("java_mb", "driver_mb", "workers_mb", "node_mb"):
        early, late = (
            statistics.median(row[what] for row in part)
            for part in (rows[quarter : 2 * quarter] or rows, rows[-quarter:])
        )
        yield f"{what}: {early:.0f}, at the end {late:.0f}", late <= _GROWTH * early
    for name, part in {"first": rows[:quarter], "last": rows[-quarter:]}.items():
        cpu = statistics.fmean(row["cpu_s"] for row in part)
        yield f"CPU of a batch in the {name} quarter: {cpu:.2f} s", True


@contextmanager
def _directory(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        directory.mkdir()
        yield directory
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _measured(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell has it ignored
        signal.signal(number, signal.default_int_handler)
    with _directory(options.directory) as directory:
        try:
            for row in soak(directory, options.batches, options.streams):
                rows.append({**row, "machine": machine()} if not rows else row)
                if "live_mb" in row:
                    shown = {name: round(value, 2) for name, value in row.items()}
                    progress(json.dumps(shown))
        except KeyboardInterrupt:
            progress("stopped early")
    return rows


def main() -> None:
    """Run the soak from the command line."""
    parser = command_line("soak", __doc__)
    parser.add_argument("--batches", type=count, default=2_000, help="default: %(default)s")
    parser.add_argument("--streams", type=count, default=100_000, help="default: %(default)s")
    parser.add_argument("--directory", type=Path, help="a new one, which is kept")
    parser.add_argument("--plot", type=new_file, help="where to draw them")
    parser.add_argument("--again", type=Path, help="take the rows from this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = read_rows([options.again]) if options.again else _measured(options)
    if options.json is not None:
        write_rows(rows, options.json)
    if options.plot is not None:
        plot_soak(rows, options.plot)
    met = True
    for text, is_met in bounds(rows):
        progress(f"{'met' if is_met else 'NOT MET'}: {text}")
        met &= is_met
    sys.exit(not met)


if __name__ == "__main__":
    main()
