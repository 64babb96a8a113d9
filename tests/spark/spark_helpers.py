"""What the pipeline's tests share: real nodes in processes of their own, and what they serve."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from spark_oracle import table_rows
from spark_samples import TRAP, Scenario
from support import forking
from support.waiting import kept_port, post_events, wait_until

from recon_node.ceramic import Event
from recon_node.ipld import CID, multibase
from spark_sink.cli import main
from spark_sink.derive import portion
from spark_sink.query.question import run_query
from spark_sink.run.pipeline import Sink
from spark_sink.run.runner import Runner, RunSettings
from spark_sink.schema import DERIVED, FEED, PARTITION_COLUMN, TABLES
from spark_sink.source.feed_client import Feed, Head
from spark_sink.tables.catalog import At
from spark_sink.tables.delta_log import RULES_PROPERTY
from spark_sink.tables.location import Location, StoreUrl
from spark_sink.tables.sink_table import SinkTable
from spark_sink.tables.staging import Staged
from spark_sink.tables.tables import Tables

EPOCH = "5f0c8a10-aaaa-bbbb-cccc-000000000001"
COLUMNS = [name for name in FEED.names if name not in ("event_id", "delivered_at")]
"""What `feed_rows` knows of a feed's rows as a node does."""
NODES = Path(__file__).with_name("spark_node.py")
PATIENCE = 120.0
NO_TIMES: dict[CID, int] = {}
NO_FAULTS: dict[CID, str] = {}


def diagonal(*choices: Sequence[Any]) -> list[Any]:
    """Return all combinations as parameters of a test. Those beside the diagonal, in which each
    choice is once or more, are for `make test-long`."""
    most = max(map(len, choices))
    short = {tuple(choice[number % len(choice)] for choice in choices) for number in range(most)}
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

    def add_scenario(self, scenario: Scenario, more: Sequence[Event] = ()) -> None:
        """Write events, and wait until their anchors have been looked up."""
        events = [*scenario.events, *more]
        self.add(events)
        wait_until(lambda: len(self.feed()) == len(events), "all anchors are looked up")

    def feed(self) -> list[dict[str, Any]]:
        """All rows of the feed, read without the pipeline."""
        with httpx.Client(base_url=self.url, timeout=60) as client:
            answer = client.get("/ceramic/feed/arrow").raise_for_status()
        rows: list[dict[str, Any]] = pa.ipc.open_stream(answer.content).read_all().to_pylist()
        return rows

    @property
    def epoch(self) -> str:
        return str(httpx.get(f"{self.url}/ceramic/feed/head").json()["epoch"])


class Served(Feed):
    """A node's feed of these rows, as far as it is."""

    def __init__(self, rows: pa.Table, upto: int | None = None) -> None:
        super().__init__("http://node")
        self.rows = rows
        self.upto = len(rows) if upto is None else upto

    def head(self, patience: float | None = None) -> Head:
        return Head(EPOCH, 0, self.upto)

    def read(
        self, after: int, upto: int, epoch: str, patience: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        assert (epoch, upto <= self.upto) == (EPOCH, True)
        yield from self.rows.slice(after, upto - after).to_batches()


def silent(name: str, position: int, goal: int) -> None:
    """No news."""


class KilledError(BaseException):
    """The process ends here."""


class Bomb:
    """Wraps a function that writes: its n-th call is the last thing to happen, or does not."""

    def __init__(self, real: Callable[..., Any], call: int, after: bool = False) -> None:
        self.real = real
        self.left = call
        self.after = after

    @property
    def went_off(self) -> bool:
        return self.left <= 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            if self.after:
                self.real(*args, **named)
            raise KilledError
        return self.real(*args, **named)


def feed_rows(
    events: list[Event], times: Mapping[CID, int] = NO_TIMES, faults: Mapping[CID, str] = NO_FAULTS
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


ROWS = feed_rows(TRAP.events, TRAP.times)
"""The feed of all traps."""


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
        read_on(sink, rows.slice(0, end))
    return sink


def read_on(sink: Sink, rows: pa.Table) -> None:
    """Bring tables to the end of these rows, some of which they may have."""
    sink.tables.append(rows)
    sink.catch_up()


def asked(directory: Path, sql: str, at: At = None) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    with run_query(directory, sql, at) as answer:
        return list(answer.rows)


def make_old(directory: Path, name: str, *lacking: str) -> None:
    """Leave a table as an earlier version wrote it, without some columns."""
    spec, place = TABLES[name], directory / name
    rows = table_rows(directory, name)
    schema = pa.schema([column for column in spec.schema if column.name not in lacking])
    old = pa.Table.from_pylist([{n: row[n] for n in schema.names} for row in rows], schema=schema)
    shutil.rmtree(place)
    rules = {} if spec.rules is None else {RULES_PROPERTY: str(spec.rules)}
    DeltaTable.create(
        place,
        schema=schema,
        partition_by=[PARTITION_COLUMN],
        configuration={"recon.epoch": EPOCH, **rules},
        raise_if_key_not_exists=False,
    )
    table = SinkTable(spec, place, EPOCH, for_replacement=True)
    table.append(Staged(tables=(old,)), rows[-1][spec.order])


def invoked(*arguments: object, stdin: str | None = None, **environ: str) -> Result:
    """What comes of a command of `spark-sink`, run in this process."""
    command = [str(argument) for argument in arguments]
    return CliRunner().invoke(main, command, input=stdin, env=environ)


def told(*arguments: object, code: int = 0, **environ: str) -> str:
    """What a command says, on both of its outputs."""
    result = invoked(*arguments, **environ)
    assert result.exit_code == code, result.output
    return result.output


def printed(*arguments: object, code: int = 0) -> str:
    """What a command prints on its standard output."""
    result = invoked(*arguments)
    assert result.exit_code == code, result.output
    return result.stdout


def ran(settings: RunSettings) -> list[tuple[str, dict[str, Any]]]:
    """What a `spark-sink run` in this process tells until it ends."""
    events: list[tuple[str, dict[str, Any]]] = []
    Runner(settings, lambda *event: events.append(event)).run()
    return events


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
        add = portion._Work.add_stream

        def counted(work: Any, stream: Any) -> None:
            add(work, stream)
            goes_on = stream.as_stream.count > len(stream.entries)
            self.whole += not goes_on
            self.later += goes_on

        patch.setattr(portion._Work, "add_stream", counted)
