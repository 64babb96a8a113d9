"""Throughput of the Spark pipeline per table, and the latency of a single event.

    python -m benchmarks.spark [--events N] [--streams N] [--tables NAMES] [--json FILE]

A node whose log was filled beforehand (see `benchmarks.spark_log`: interleaved streams, 650 bytes
per CAR) serves its feed from another process on the same machine. One row per run of a newly
started Spark, from its first batch to the feed's head:

- `source`: Spark reads the feed and drops the rows
- `raw_events`; each other table together with `raw_events`, from which it is computed; `all`
- `source (Parquet files)`: Spark's own source reads the same rows from files
- `raw_events (file sink)`: Spark's own streaming sink writes them to Parquet files
- `one event`: with all tables up to date, the time from writing an event to the node until the last
  table has it, repeatedly

`rows_per_s` counts from the start of the query to the last commit. `cpu_s` is the CPU time of all
processes of the pipeline, `node_cpu_s` that of the node.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import trio
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from benchmarks.processes import TICKS, running
from benchmarks.report import Row, command_line, progress, show
from benchmarks.spark_log import KEY, MODEL_ID, NETWORK, fill_log
from recon_node.ceramic.builder import init_event
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode
from spark_sink.run.pipeline import ROWS_PER_BATCH
from spark_sink.schema import PARTITION_COLUMN, PARTITIONS

DERIVED: Final = ("conclusion_events", "event_states", "stream_tips", "stream_states")
# Spark's own source and sink.
PEERS: Final = ("source (Parquet files)", "raw_events (file sink)")
WAYS: Final = ("source", "raw_events", *DERIVED, "all", *PEERS, "one event")


@dataclass
class CpuMeter:
    """CPU seconds of a process and its descendants, including those that have ended."""

    pid: int
    family: set[int] = field(default_factory=set)
    _taken: dict[tuple[int, int], float] = field(default_factory=dict)

    def read(self) -> float:
        """Return the total so far; call it often, or processes that end in between are missed."""
        samples: dict[int, tuple[int, int, float]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds = (int(fields[11]) + int(fields[12])) / TICKS
            samples[int(entry.name)] = int(fields[1]), int(fields[19]), seconds
        self.family, parents = {self.pid}, {self.pid}
        while parents:
            parents = {pid for pid, (parent, *_) in samples.items() if parent in parents}
            self.family |= parents
        for pid in self.family & samples.keys():
            self._taken[pid, samples[pid][1]] = samples[pid][2]
        return sum(self._taken.values())


@contextmanager
def program(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program of ours during the block."""
    command = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def line(process: subprocess.Popen[str], *events: str) -> dict[str, Any]:
    """Return the next line with one of these events."""
    assert process.stdout is not None
    for text in process.stdout:
        entry: dict[str, Any] = json.loads(text)
        if entry["event"] in events:
            return entry
    raise SystemExit("the pipeline ended early")


def throughput(way: str, node: TestnetNode, events: int, streams: int) -> Row:
    """Measure one run to the head."""
    progress(f"{way}, {events:,} events")
    with tempfile.TemporaryDirectory() as directory, _running(way, node, directory) as process:
        meter, node_meter = CpuMeter(process.pid), CpuMeter(node.pid or 0)
        line(process, "started")
        started, before, node_before = time.perf_counter(), meter.read(), node_meter.read()
        seconds = cpu = 0.0
        while line(process, "batch", "stopped", "tick")["event"] != "stopped":
            seconds = time.perf_counter() - started
            cpu = meter.read() - before
        node_cpu = node_meter.read() - node_before
    return {
        "table": way,
        "events": events,
        "streams": streams,
        "rows_per_s": events / seconds,
        "latency_p50_ms": None,
        "latency_p90_ms": None,
        "cpu_s": cpu,
        "node_cpu_s": node_cpu,
        "seconds": seconds,
    }


def latency(node: TestnetNode, events: int, streams: int, samples: int) -> Row:
    """Measure single events, from before the write until all tables have them."""
    progress(f"one event, after {events:,}")
    taken = []
    with (
        tempfile.TemporaryDirectory() as directory,
        _running("one event", node, directory) as process,
        httpx.Client(base_url=node.api_url, timeout=60) as client,
    ):
        meter, node_meter = CpuMeter(process.pid), CpuMeter(node.pid or 0)
        position = 0
        while position < events:
            position = line(process, "batch")["position"]
            meter.read()
        started, before, node_before = time.perf_counter(), meter.read(), node_meter.read()
        for sample in range(samples):
            event = init_event(KEY, MODEL_ID, {"title": "new"}, unique=os.urandom(12))
            time.sleep(0.05 * (sample % 10))  # not in step with the trigger
            sent = time.perf_counter()
            body = {"data": multibase.encode(event.car)}
            client.post("/ceramic/events", json=body).raise_for_status()
            position += 1
            while line(process, "batch")["position"] < position:
                pass
            taken.append((time.perf_counter() - sent) * 1000)
        cpu, node_cpu = meter.read() - before, node_meter.read() - node_before
        seconds = time.perf_counter() - started
    return {
        "table": "one event",
        "events": events,
        "streams": streams,
        "rows_per_s": None,
        "latency_p50_ms": statistics.median(taken),
        "latency_p90_ms": statistics.quantiles(taken, n=10)[-1],
        "cpu_s": cpu,
        "node_cpu_s": node_cpu,
        "seconds": seconds,
    }


def _running(
    way: str, node: TestnetNode, directory: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    where = ("--url", node.api_url, "--directory", directory)
    return program("benchmarks.spark", "--run", way, *where)


def run_way(way: str, url: str, directory: Path) -> None:
    """Run what is measured, in a process of its own, and report progress in JSON lines."""
    if way == "source" or way in PEERS:
        _run_spark(way, url, directory)
        return
    from spark_sink.run.runner import Runner, RunSettings

    names = DERIVED if way in ("all", "one event") else () if way == "raw_events" else (way,)
    settings = RunSettings(
        url,
        directory / "tables",
        names=names,
        once=way != "one event",
    )
    Runner(settings, tell).run()


def _run_spark(way: str, url: str, directory: Path) -> None:
    from spark_sink.run.spark_session import find_java, start_session

    spark = start_session(find_java(), directory / "scratch")
    spark.range(1).count()
    files = str(directory / "files")
    if way == "source (Parquet files)":
        spark.read.format("recon").option("url", url).load().write.parquet(files)
    tell("started", {})
    if way == "source":
        frame = spark.read.format("recon").option("url", url).option("partitions", "2").load()
        frame.write.format("noop").mode("overwrite").save()
    elif way == "source (Parquet files)":
        spark.read.parquet(files).write.format("noop").mode("overwrite").save()
    else:
        _write_files(spark, url, directory)
    tell("tick", {})
    spark.stop()
    tell("stopped", {})


def _write_files(spark: SparkSession, url: str, directory: Path) -> None:
    """Write the feed to Parquet files with Spark's own sink, partitioned like `raw_events`."""
    options = {"url": url, "maxRowsPerBatch": str(ROWS_PER_BATCH)}
    events = spark.readStream.format("recon").options(**options).load()
    partition = f.conv(f.hex(f.substring("stream_cid", -1, 1)), 16, 10).cast("int") % PARTITIONS
    writer = events.withColumn(PARTITION_COLUMN, partition).writeStream.format("parquet")
    query = (
        writer.partitionBy(PARTITION_COLUMN)
        .option("path", str(directory / "files"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def tell(event: str, facts: dict[str, Any]) -> None:
    """Report to the process that reads with `line`."""
    print(json.dumps({"event": event, **facts}, default=str), flush=True)


def run(events: int, streams: int, ways: list[str], samples: int, log: Path | None) -> list[Row]:
    """Measure these tables and alternatives."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        log = log or Path(name) / "node"
        if not log.exists():
            progress(f"filling a log with {events:,} events of {streams:,} streams")
            trio.run(fill_log, log, events, streams)
        with running(log, NETWORK.name) as node:
            for way in ways:
                if way == "one event":
                    rows.append(latency(node, events, streams, samples))
                else:
                    rows.append(throughput(way, node, events, streams))
                progress(f"{way}: {rows[-1]['seconds']:.1f} s, CPU {rows[-1]['cpu_s']:.1f} s")
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("spark", __doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--streams", type=int, help="default: a tenth of the events")
    parser.add_argument("--tables", default=",".join(WAYS), help="default: %(default)s")
    parser.add_argument("--samples", type=int, default=20, help="number of samples of `one event`")
    parser.add_argument("--log", type=Path, help="directory of the log; created if missing")
    for hidden in ("--run", "--url", "--directory"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run_way(options.run, options.url, Path(options.directory))
        return
    ways = options.tables.split(",")
    if unknown := set(ways) - set(WAYS):
        parser.error(f"--tables knows no {', '.join(sorted(unknown))}")
    streams = options.streams or max(1, options.events // 10)
    rows = run(options.events, streams, ways, options.samples, options.log)
    show("Spark", rows, options.json)


if __name__ == "__main__":
    main()
