"""What the pipeline's tests share: real nodes in processes of their own, and what they serve."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from support import forking
from support.waiting import kept_port, post_events, wait_until

from recon_node.ceramic import Event
from recon_node.ipld import CID, multibase
from spark_sink.cli import main
from spark_sink.derive import portion
from spark_sink.query.question import run_query
from spark_sink.run.pipeline import Sink
from spark_sink.schema import DERIVED, FEED
from spark_sink.tables.directory import Tables
from spark_sink.tables.location import Location, StoreUrl
from spark_sink.tables.versions import At

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"
NODES = Path(__file__).with_name("spark_node.py")
PATIENCE = 120.0
NO_TIMES: dict[CID, int] = {}
NO_FAULTS: dict[CID, str] = {}


def diagonal(*choices: Sequence[Any]) -> list[Any]:
    """Return all combinations as parameters of a test. Those beside the diagonal, in which each
    choice is once or more, are for `make test-long`."""
    most = max(map(len, choices))
    short = {tuple(each[number % len(each)] for each in choices) for number in range(most)}
    return [
        pytest.param(*values, marks=() if values in short else pytest.mark.long)
        for values in product(*choices)
    ]


class NodeProcesses:
    """The process that all nodes of a test run are forked from."""

    def __init__(self) -> None:
        self.process = forking.Popen(
            [sys.executable, NODES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pids: set[int] = set()

    def start(self, data_dir: Path, port: int) -> tuple[int, str]:
        """Serve a data directory; returns the process id and the URL."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{data_dir} {port}\n")
        self.process.stdin.flush()
        word, pid, url = self.process.stdout.readline().split()
        assert word == "ready"
        self.pids.add(int(pid))
        return int(pid), url

    def kill(self, pid: int) -> None:
        """End a node without notice."""
        os.kill(pid, signal.SIGKILL)
        self.pids.discard(pid)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"process {pid} is gone")

    def close(self) -> None:
        for pid in list(self.pids):
            self.kill(pid)
        self.process.communicate()


class Node:
    """A node's API over a data directory; can be killed and started again at the same address."""

    def __init__(self, processes: NodeProcesses, data_dir: Path) -> None:
        self.processes = processes
        self.data_dir = data_dir
        self.port = 0
        self.keeper = ExitStack()
        self.start()

    def start(self) -> None:
        self.pid, self.url = self.processes.start(self.data_dir, self.port)
        self.port = httpx.URL(self.url).port or 0
        self.keeper.close()

    def kill(self) -> None:
        self.processes.kill(self.pid)
        self.keeper.enter_context(kept_port(self.port))

    def add(self, events: list[Event]) -> None:
        """Write events through the node's API."""
        post_events(self.url, [multibase.encode(event.car) for event in events])

    def feed(self) -> list[dict[str, Any]]:
        """All rows of the feed, read without the pipeline."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            answer = client.get("/ceramic/feed/arrow").raise_for_status()
        rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
        return rows

    @property
    def epoch(self) -> str:
        return str(httpx.get(f"{self.url}/ceramic/feed/head").json()["epoch"])


@dataclass
class Borrowed:
    """The Spark session of the tests, in the hands of one who would stop it."""

    spark: SparkSession

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spark, name)

    def stop(self) -> None:
        pass


def feed_rows(
    events: list[Event],
    times: Mapping[CID, int] = NO_TIMES,
    faults: Mapping[CID, str] = NO_FAULTS,
) -> pa.Table:
    """These events as a feed's rows at positions 1, 2, ...: what a node that has them serves.

    `times` are the block times of time events, `faults` say which data events are badly signed.
    """
    rows = [
        {
            "position": position,
            "event_id": b"\xce\x01\x05" + event.cid,
            "event_cid": bytes(event.cid),
            "stream_cid": bytes(event.init),
            "event_type": event.kind.value,
            "car": event.car,
            "time": times.get(event.cid),
            "chain_id": event.proof.chain_id if event.proof and event.cid in times else None,
            "fault": faults.get(event.cid),
        }
        for position, event in enumerate(events, 1)
    ]
    return pa.Table.from_pylist(rows, schema=FEED)


def filled(
    directory: Location,
    rows: pa.Table,
    *ends: int,
    names: Sequence[str] = DERIVED,
    epoch: str = EPOCH,
) -> Sink:
    """Bring tables to these positions of a feed, one after the other, or else to its end."""
    sink = Sink(Tables(directory, epoch, names))
    for end in ends or (len(rows),):
        sink.tables.append(rows.slice(0, end))
        sink.catch_up()
    return sink


def asked(directory: Path, sql: str, at: At = None) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with run_query(directory, sql, at) as answer:
        return list(answer.rows)


def told(*arguments: object, code: int = 0) -> str:
    """What `spark-sink` prints."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def environment_for(place: Location, state: Path) -> dict[str, str]:
    """The variables of a process that opens tables: what leads to their store, and where it keeps
    what belongs to them on this machine."""
    secrets = dict(place.options) if isinstance(place, StoreUrl) else {}
    return {**os.environ, **secrets, "XDG_STATE_HOME": str(state)}


def await_end_of(pids: set[int], what: str) -> None:
    """Wait until none of these processes runs."""
    wait_until(lambda: not any(map(_runs, pids)), what)


def _runs(pid: int) -> bool:
    """Whether a process is there. What nobody waited for is not: it may have become our child."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def processes_under(pid: int) -> set[int]:
    """A process's descendants."""
    children: set[int] = set()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children |= set(map(int, (task / "children").read_text().split()))
    return children.union(*(processes_under(child) for child in children))


class StreamCounter:
    """Counts the streams that are read whole, and those that go on from their summaries."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.whole = self.later = 0
        add = portion._Work.add

        def counted(work: Any, stream: Any) -> None:
            add(work, stream)
            goes_on = stream.stream.count > len(stream.entries)
            self.whole += not goes_on
            self.later += goes_on

        patch.setattr(portion._Work, "add", counted)
