"""The journeys: how each is caused, and which calls belong to it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from nacl.signing import SigningKey

from benchmarks.attack.field import add, document_id, make_model
from benchmarks.journeys.tracer import DIRECTORY, ROOT
from benchmarks.processes import family
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

_OWNER: Final = SigningKey(b"who writes what goes on journeys")
_FLAGS: Final = ("--network", "local-8", "--no-discovery", "--sync-interval", "3600")
_LIMIT: Final = 60.0
_STATED: Final = re.compile(r"```\n([^\n]+): (\d+) files\n(.*?)```", re.DOTALL)
_MOST_ASTRAY: Final = 2
"""Files by which two runs may differ: some things are done once in a while."""
_NETWORK: Final = "recon_node/p2p/"
_APART: Final = (
    "recon_node/api/metrics/",  # the event loop is watched
    "recon_node/dag/",
    "recon_node/tangles/",
    "recon_node/feed_index.py",
    "recon_node/store/reading/",
    "recon_node/store/damage.py",
    "recon_node/store/db/blocks.py",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One function that was called, once for each task and stretch."""

    at: float
    process: int
    task: str
    path: str
    function: str
    is_below_root: bool
    """Whether it was called by one of the tracer's `ROOTS`."""


@dataclass(frozen=True, slots=True)
class Journey:
    """What was counted of a journey."""

    name: str
    """As in docs/journeys.md."""
    calls: list[Call]

    @property
    def files(self) -> list[str]:
        """The files, in the order in which they are entered."""
        return list(dict.fromkeys(call.path for call in self.calls))

    @property
    def stated(self) -> set[str]:
        """The files that docs/journeys.md lists."""
        return stated_journeys()[self.name][1]

    @property
    def is_as_stated(self) -> bool:
        """Whether it crosses the files that docs/journeys.md lists."""
        return len(self.stated.symmetric_difference(self.files)) <= _MOST_ASTRAY

    @property
    def functions(self) -> int:
        """How many functions are called."""
        return len({(call.path, call.function) for call in self.calls})

    @property
    def lines(self) -> int:
        """How many lines these files have together."""
        return sum(len((ROOT / path).read_text().splitlines()) for path in self.files)


def stated_journeys() -> dict[str, tuple[int, set[str]]]:
    """Return how many files docs/journeys.md says that each journey crosses, and which."""
    page = (ROOT / "docs/journeys.md").read_text(encoding="utf-8")
    return {
        name: (int(number), set(_paths(lines))) for name, number, lines in _STATED.findall(page)
    }


def _paths(lines: str) -> Iterator[str]:
    for folder, *names in map(str.split, lines.splitlines()):
        package = "" if folder.startswith("spark_sink/") else "recon_node"
        yield from (Path(package, folder, f"{name}.py").as_posix() for name in names)


class Traces:
    """The traces of the processes that were started within `tracing`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def calls(self, since: float, until: float = float("inf")) -> list[Call]:
        """What was called in a stretch, in order."""
        calls = [
            Call(at, int(file.stem), task, path, function, is_below_root)
            for file in self._directory.glob("*.jsonl")
            for at, task, path, function, is_below_root in map(
                json.loads, file.read_text().splitlines()
            )
            if since <= at <= until
        ]
        return sorted(calls, key=lambda call: call.at)

    def mark(self) -> float:
        """Begin a stretch, in which each function is written down once more; returns its time."""
        time.sleep(0.2)
        (self._directory / "mark").touch()
        return time.time()


@contextmanager
def tracing(directory: Path) -> Iterator[Traces]:
    """Trace the processes of this project that are started meanwhile."""
    (directory / "traces").mkdir()
    (directory / "sitecustomize.py").write_text(
        "from benchmarks.journeys.tracer import start\nstart()\n"
    )
    before = dict(os.environ)
    os.environ[DIRECTORY] = str(directory / "traces")
    os.environ["PYTHONPATH"] = f"{directory}{os.pathsep}{ROOT}"
    try:
        yield Traces(directory / "traces")
    finally:
        os.environ.clear()
        os.environ.update(before)


def travel() -> list[Journey]:
    """Take all journeys, with real daemons and real Spark."""
    with tempfile.TemporaryDirectory(prefix="journeys-") as name, tracing(Path(name)) as traces:
        directory = Path(name)
        nodes = [TestnetNode(f"node{k}", directory, _FLAGS) for k in (1, 2)]
        try:
            for node in nodes:
                node.launch()
            for node in nodes:
                node.wait_until_ready()
            journeys = [*_in_the_node(nodes, traces), _merge(nodes[0], traces, directory)]
            return [*journeys, _row(nodes[0], traces, directory)]
        finally:
            for node in nodes:
                node.discard()


def _in_the_node(nodes: list[TestnetNode], traces: Traces) -> Iterator[Journey]:
    """A recon/1.2.0 message, from the socket to the answer; and a CAR, from POST /ceramic/events to
    its feed position: an event that is posted at one node, and pushed to the other."""
    first, second = nodes
    model, _ = make_model(_OWNER)
    _take(first.api_url, [model])
    addresses = {"addresses": second.addresses[0]}
    peer = httpx.post(f"{first.api_url}/ceramic/peers", params=addresses, timeout=30)
    peer.raise_for_status()
    _wait(lambda: _head(second) == 1)
    since = traces.mark()
    other, _ = make_model(_OWNER, name="Another")
    event = {"data": multibase.encode(other.car)}
    httpx.post(f"{first.api_url}/ceramic/events", json=event).raise_for_status()
    posted = traces.calls(since, time.time())
    _wait(lambda: _head(second) == 2)
    time.sleep(1)
    all_calls = traces.calls(since)
    answering = {
        (call.process, call.task)
        for call in all_calls
        if call.process == second.pid and call.path.startswith("recon_node/recon/coded/")
    }
    session = [call for call in all_calls if (call.process, call.task) in answering]
    yield Journey("recon/1.2.0 message", session)
    pushing = {(call.process, call.task) for call in posted if call.path.startswith(_NETWORK)}
    node = family(first.pid)
    car = [
        call
        for call in posted
        if call.process in node and not _is_apart(call) and (call.process, call.task) not in pushing
    ]
    yield Journey("CAR", car)


def _is_apart(call: Call) -> bool:
    """Whether a call belongs to a task that goes on meanwhile, or reads what was delivered."""
    return call.path.startswith(_APART)


def _merge(node: TestnetNode, traces: Traces, directory: Path) -> Journey:
    """A merge, by `recon-node stream merge`."""
    model, model_id = make_model(_OWNER, name="Merged")
    init = init_event(_OWNER, model_id, {"a": "0"}, unique=b"merged")
    branches = [
        data_event(_OWNER, init, [init.cid], [{"op": "replace", "path": "/a", "value": value}])
        for value in ("1", "2")
    ]
    _take(node.api_url, [model, init, *branches])
    key = directory / "owner.key"
    key.write_text(bytes(_OWNER).hex())
    since = traces.mark()
    stream = document_id(init)
    prefer = ("--prefer", str(branches[0].cid))
    where = ("--url", node.api_url, "--key", str(key))
    merging = _run("recon_node", "stream", "merge", stream, *prefer, *where)
    calls = [call for call in traces.calls(since) if call.process == merging]
    return Journey("merge", calls)


def _row(node: TestnetNode, traces: Traces, directory: Path) -> Journey:
    """A row, from raw_events to stream_tips: of a stream that gets an event, whose tip is there and
    is replaced."""
    model, model_id = make_model(_OWNER, name="Tabled")
    init = init_event(_OWNER, model_id, {"a": "0"}, unique=b"tabled")
    patch = [{"op": "replace", "path": "/a", "value": "1"}]
    _take(node.api_url, [model, init])
    tables = str(directory / "tables")
    run = ("run", "--once", "--url", node.api_url, "--tables", tables, "--table", "stream_tips")
    _run("spark_sink", *run)
    _take(node.api_url, [data_event(_OWNER, init, [init.cid], patch)])
    since = traces.mark()
    pid = _run("spark_sink", *run)
    calls = [call for call in traces.calls(since) if call.is_below_root]
    assert any(call.process == pid for call in calls)
    return Journey("row", calls)


def _take(url: str, events: list[Any]) -> None:
    refused = [verdict for verdict in add(url, events) if verdict.get("error")]
    if refused:
        raise RuntimeError(f"an event was refused: {refused[0]}")


def _run(module: str, *arguments: str) -> int:
    """Run a command of the project; returns the id that its process had.

    Without the native core, which may be installed or not: some streams take a shorter way by it.
    """
    command = [sys.executable, "-m", module, *arguments]
    env = {**os.environ, "RECON_NODE_NATIVE": "off"}
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, env=env, **streams) as process:
        output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output}")
    return process.pid


def _head(node: TestnetNode) -> int:
    return int(httpx.get(f"{node.api_url}/ceramic/recon", timeout=30).json()["head"])


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the event did not arrive at the other node")
        time.sleep(0.1)
