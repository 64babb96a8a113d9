"""Fixtures of the pipeline's tests: real nodes, and one Spark session for all."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_helpers import Node, NodeProcesses
from support import forking, sdk_sample

from recon_node.ceramic import Event
from recon_node.processes import process
from spark_sink.run import runner
from spark_sink.run.spark_session import find_java, start_session
from spark_sink.tables.location import Location, StoreUrl
from spark_sink.upkeep import maintenance

_OTHER_STORE = os.environ.get("RECON_TEST_STORE")


@pytest.fixture(scope="session")
def sample() -> list[Event]:
    return sdk_sample.events()


@pytest.fixture(autouse=True)
def _signal_handlers() -> Iterator[None]:
    """`spark-sink run`, called in this process, takes SIGINT and SIGTERM: give them back."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _rebuild_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of its own takes a second to start: who wants one says so."""
    monkeypatch.setattr(maintenance, "COMMAND", None)


@pytest.fixture(autouse=True)
def _processes_of_streams_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "Popen", forking.Popen)


@pytest.fixture(scope="session")
def node_processes() -> Iterator[NodeProcesses]:
    processes = NodeProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """The variables that lead to an S3 server with the bucket `bucket`.

    RECON_TEST_STORE is another store to test, such as az://container: then they are set already.
    """
    if _OTHER_STORE:
        yield {}
        return
    command = [sys.executable, Path(__file__).with_name("spark_s3_server.py")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        url = server.stdout.readline().strip()
        assert url, "the S3 server has not started"
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }
        server.terminate()


@pytest.fixture
def store(s3: dict[str, str]) -> Location:
    """An empty directory in the S3 server."""
    return StoreUrl(f"{_OTHER_STORE or 's3://bucket'}/{uuid.uuid4()}", tuple(s3.items()))


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def place(request: pytest.FixtureRequest) -> Location:
    """An empty directory for tables, on the disk or in an S3 server."""
    name = "tmp_path" if request.param == "disk" else "store"
    location: Location = request.getfixturevalue(name)
    return location


@pytest.fixture
def node(node_processes: NodeProcesses, tmp_path: Path) -> Node:
    """A node without events."""
    return Node(node_processes, tmp_path / "node")


@pytest.fixture
def pair(node_processes: NodeProcesses, tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes without events."""
    nodes = [Node(node_processes, tmp_path / name) for name in ("first", "second")]
    yield nodes
    for node in nodes:
        if node.pid in node_processes.pids:
            node.kill()


@pytest.fixture(scope="session")
def full_node(
    node_processes: NodeProcesses, tmp_path_factory: pytest.TempPathFactory, sample: list[Event]
) -> Node:
    """A node with all events of the sample, at the positions of their order; not to be changed."""
    running = Node(node_processes, tmp_path_factory.mktemp("full") / "node")
    running.add(sample)
    return running


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    session = start_session(find_java(), tmp_path_factory.mktemp("spark"), driver_memory="600m")
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


class _Borrowed:
    """The Spark session of the tests, in the hands of a run that would stop it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def borrowed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process take the Spark session of the tests."""
    monkeypatch.setattr(runner, "start_session", lambda *args, **named: _Borrowed(spark))
