"""Who does the work when the pipeline runs on a Spark cluster, and what more machines would do.

    python -m benchmarks.cluster [--events N] [--streams N] [--workers N,...] [--json FILE]

Starts a standalone cluster on this machine, a master and workers of one core each, and runs
`spark-sink run --once` on it against a node whose log `benchmarks.spark_log` filled beforehand. All
processes share this machine's cores, so rows per second say little about a cluster. What does not
depend on that is the CPU time that each part takes for a million rows:

    node_cpu_s      the node, which serves its feed: one process
    driver_cpu_s    the driver, which plans, commits and merges: one process, and its JVM
    workers_cpu_s   the executors, which fetch, write files and compute: they can be any number
    start_cpu_s     of all three until the first batch is done; not in the others

`limit_rows_per_s` is what follows for ten machines of four cores each, one of them the driver's and
one the node's: as fast as the slowest of a core of the node, a core of the driver, and 16 cores of
the workers (a step has as many tasks), if nobody waits for anybody. `limited_by` says which.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from benchmarks.report import Row, numbers, progress, show
from benchmarks.spark import CpuMeter, program
from benchmarks.spark_log import LogFiller
from spark_sink.run.java import find_java
from spark_sink.schema import PARTITIONS

HOST: Final = "127.0.0.1"
_SPARK_HOME: Final = Path(pyspark.__file__).parent
_DEPLOY: Final = "org.apache.spark.deploy"
_PATIENCE: Final = 180.0
_BATCH: Final = 50_000
_MILLION: Final = 1_000_000
# As little memory as it takes, so that four workers fit on a small machine.
_SPARK: Final = {
    "spark.executor.memory": "500m",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
}


@dataclass(frozen=True, slots=True)
class Shares:
    """CPU seconds so far."""

    node: float
    driver: float
    workers: float

    def __sub__(self, other: Shares) -> Shares:
        return Shares(
            self.node - other.node, self.driver - other.driver, self.workers - other.workers
        )

    @property
    def total(self) -> float:
        """Of all parts."""
        return self.node + self.driver + self.workers


class Cluster:
    """A standalone cluster on the loopback; all its processes end with `close`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        self._meters: list[CpuMeter] = []
        self._port = _free_port()
        self.master = f"spark://{HOST}:{self._port}"

    def start(self, workers: int) -> None:
        """Start the master and so many workers, and wait until it knows them."""
        self._start("master.Master", "--host", HOST, "--port", self._port)
        _await(lambda: _listens(self._port), "the master")
        options = ("--host", HOST, "--cores", 1, "--memory", "1g")
        for number in range(workers):
            work = self._directory / f"worker-{number}"
            self._start("worker.Worker", self.master, *options, "--work-dir", work)
        log = self._directory / "0.log"
        _await(lambda: log.read_text().count("Registering worker") == workers, "the workers")
        self._meters = [CpuMeter(process.pid) for process in self._running[1:]]

    def cpu(self) -> float:
        """Return the CPU seconds of all workers and their executors so far."""
        return sum(meter.read() for meter in self._meters)

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._running):
            process.terminate()
        for process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
            process.kill()
            process.wait()

    def _start(self, name: str, *arguments: object) -> None:
        java = find_java().program.resolve()
        environment = {
            **os.environ,
            "JAVA_HOME": str(java.parents[1]),
            "SPARK_HOME": str(_SPARK_HOME),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "400m",
        }
        command = [str(_SPARK_HOME / "bin" / "spark-class"), f"{_DEPLOY}.{name}"]
        with (self._directory / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *map(str, arguments), "--webui-port", "0"],
                env=environment,
                cwd=self._directory,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._running.append(process)


def measure(url: str, node: int, workers: int, events: int, streams: int) -> Row:
    """Run the pipeline to the head on a cluster of so many workers."""
    progress(f"{workers} workers, {events:,} events")
    with tempfile.TemporaryDirectory() as name, _cluster(Path(name), workers) as cluster:
        settings = [part for pair in _SPARK.items() for part in ("--spark-conf", "=".join(pair))]
        command = ["run", "--url", url, "--tables", f"{name}/tables", "--once", "--json"]
        command += ["--master", cluster.master, "--max-rows-per-batch", str(_BATCH), *settings]
        with program("spark_sink", *command) as process:
            meters = CpuMeter(node), CpuMeter(process.pid)

            def shares() -> Shares:
                return Shares(meters[0].read(), meters[1].read(), cluster.cpu())

            before, first, rows_then, started = shares(), None, 0, 0.0
            latest, seconds = before, 0.0
            for told in _told(process):
                latest = shares()
                if told["event"] == "batch" and first is None:
                    first, rows_then, started = latest, int(told["rows"]), time.perf_counter()
                seconds = time.perf_counter() - started
            if process.wait(_PATIENCE) or first is None or rows_then >= events:
                raise SystemExit("the pipeline ended early, or in a single batch: more --events?")
    return _row(workers, events, streams, first - before, latest - first, rows_then, seconds)


def _row(
    workers: int,
    events: int,
    streams: int,
    start: Shares,
    taken: Shares,
    rows_then: int,
    seconds: float,
) -> Row:
    rows = events - rows_then
    per_million = _MILLION / rows
    parallel = {
        "node": rows / taken.node,
        "driver": rows / taken.driver,
        "workers": PARTITIONS * rows / taken.workers,
    }
    slowest = min(parallel, key=lambda part: parallel[part])
    return {
        "workers": workers,
        "events": events,
        "streams": streams,
        "rows_per_s": rows / seconds,
        "start_cpu_s": start.total,
        "node_cpu_s": taken.node * per_million,
        "driver_cpu_s": taken.driver * per_million,
        "workers_cpu_s": taken.workers * per_million,
        "workers_share": taken.workers / taken.total,
        "limit_rows_per_s": parallel[slowest],
        "limited_by": slowest,
    }


def run(events: int, streams: int, workers: list[int]) -> list[Row]:
    """Measure clusters of these sizes, one after the other."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "node"
        progress(f"filling a log with {events:,} events of {streams:,} streams")
        LogFiller(log, streams).fill(events)
        with program("benchmarks.spark_log", str(log)) as node:
            assert node.stdout is not None
            url = node.stdout.readline().strip()
            for number in workers:
                rows.append(measure(url, node.pid, number, events, streams))
    return rows


@contextmanager
def _cluster(directory: Path, workers: int) -> Iterator[Cluster]:
    cluster = Cluster(directory)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.close()


def _told(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for text in process.stdout:
        yield json.loads(text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _await(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not start within {_PATIENCE:g} s")
        time.sleep(0.1)


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cluster",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--streams", type=int, help="default: a tenth of the events")
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4], metavar="N,...")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    streams = options.streams or max(1, options.events // 10)
    show("Cluster", run(options.events, streams, options.workers), options.json)


if __name__ == "__main__":
    main()
