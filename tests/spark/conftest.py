"""What the pipeline's tests share: a real node in a process of its own, and one Spark session."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from recon_node.ceramic import Event, parse_event
from recon_node.ipld import multibase
from spark_sink.java import find_java
from spark_sink.schema import FEED
from spark_sink.session import start_session

# 930 events written with the Ceramic JavaScript SDK; prevs come before their successors.
SAMPLE = Path(__file__).parent.parent / "data" / "sdk_sample.jsonl"
NODE = Path(__file__).with_name("spark_node.py")

# What makes Spark quick to start and to run tiny batches.
TEST_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Node:
    """A node's API over a data directory, in a process that can be killed and started again."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        """Serve; on the same port as before, once there was one."""
        self.process = subprocess.Popen(
            [sys.executable, NODE, self.data_dir, str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().split()
        assert ready, "the node did not start"
        assert ready[0] == "ready"
        self.url = ready[1]
        self.port = httpx.URL(self.url).port or 0

    def kill(self) -> None:
        """End it without notice."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def add(self, events: list[Event]) -> None:
        """Write events through the node's API."""
        with httpx.Client(base_url=self.url, timeout=30) as client:
            for event in events:
                body = {"data": multibase.encode(event.car)}
                assert client.post("/ceramic/events", json=body).status_code == 204

    def head(self) -> dict[str, int | str]:
        return httpx.get(f"{self.url}/ceramic/feed/head").json()


@pytest.fixture(scope="session")
def sample() -> list[Event]:
    with SAMPLE.open() as lines:
        return [parse_event(multibase.decode(json.loads(line)["car"])) for line in lines]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node without events."""
    running = Node(tmp_path / "node")
    yield running
    running.kill()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    before = dict(os.environ)
    session = start_session(
        find_java(),
        tmp_path_factory.mktemp("spark"),
        driver_memory="600m",
        java_options=TEST_JAVA_OPTIONS,
    )
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


def feed_rows(events: list[Event]) -> pa.Table:
    """These events as a feed's rows at positions 1, 2, ...: what a node that has them serves."""
    rows = [
        {
            "position": position,
            "event_id": b"\xce\x01\x05" + event.cid,
            "event_cid": bytes(event.cid),
            "stream_cid": bytes(event.init),
            "event_type": event.kind.value,
            "car": event.car,
        }
        for position, event in enumerate(events, 1)
    ]
    return pa.Table.from_pylist(rows, schema=FEED)
