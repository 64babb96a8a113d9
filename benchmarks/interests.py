"""Partial interests: real daemons on one machine that want different models.

    python -m benchmarks.interests [--nodes N] [--rate R] [--seconds S] [--cut S] [--json FILE]
    python -m benchmarks.interests fresh [--models N] [--events N] [--ceramic-one BINARY]

The first form runs daemons of which each is interested in one or two of four models. Events are
written to random interested daemons all the time. Rows:

  spread  in normal operation
  kill    three random daemons are killed (SIGKILL) under the load, and started again
  cut     the daemons are cut into two halves for ``--cut`` seconds, and joined again; this needs
          root and `ip`, for network namespaces, and is left out without them

  p50_s, p99_s, max_s   from the start of a write until an interested daemon has the event in its
                        feed, for all daemons and events of the phase
  late_s                cut, kill: after the halves were joined, or the daemons started again, until
                        every interested daemon has every event
  misplaced             events at daemons that are not interested in them

The second form: models, an event for each, and interests in all of them are given to three daemons
whose interests were others, as a client does that has just started. `seconds` pass until each
daemon has everything, of which `after_last_write_s` after the last write. With a binary of
ceramic-one, the same is measured with three of its nodes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
from nacl.signing import SigningKey

from benchmarks.ceramic_one_node import CeramicOneNode
from benchmarks.report import Row, progress, show
from recon_node.ceramic import METAMODEL, Event, StreamId, StreamType
from recon_node.ceramic.builder import init_event, model_event
from recon_node.ipld import multibase
from recon_node.testnet import TestnetNode

MODELS: Final = 4
KILLED: Final = 3
LIMIT: Final = 120.0
"""Seconds in which every event must be where it is wanted."""
SETTLE: Final = 10.0
"""Seconds in which three daemons find each other."""
SETTLE_MANY: Final = 60.0
"""The same of a dozen that start at once and share the cores."""
_DEFINITION: Final = {
    "version": "2.0",
    "accountRelation": {"type": "list"},
    "interface": False,
    "implements": [],
    "schema": {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "additionalProperties": False,
    },
}
_KEY: Final = SigningKey(bytes(32))
_CLONE_NEWNET: Final = 0x40000000
_HALVES: Final = ("10.77.0.1", "10.77.0.2")


@dataclass
class Written:
    """An event that was written to a daemon."""

    model: StreamId
    at: float
    """When the write began, on the monotonic clock."""


@dataclass
class Daemon:
    """A daemon, what it wants, and when each event came into its feed."""

    node: TestnetNode
    wanted: list[StreamId]
    namespace: str | None
    arrived: dict[str, float] = field(default_factory=dict)
    """By CID, on the monotonic clock."""
    client: httpx.Client | None = None
    """Of the thread that writes to it."""

    def enter(self) -> None:
        """Let this thread's sockets be in the daemon's network namespace."""
        if self.namespace is not None:
            with Path("/run/netns", self.namespace).open("rb") as handle:
                if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")

    def watch(self, stop: threading.Event) -> None:
        """Follow its feed until told to stop, across restarts."""
        self.enter()
        token = ""
        while not stop.is_set():
            try:
                with httpx.Client(base_url=self.node.api_url, timeout=40) as client:
                    while not stop.is_set():
                        page = client.get(
                            "/ceramic/feed/events",
                            params={"limit": 1000, "wait": 2}
                            | ({"resumeAt": token} if token else {}),
                        )
                        page.raise_for_status()
                        now = time.monotonic()
                        for each in page.json()["events"]:
                            self.arrived.setdefault(each["id"], now)
                        token = page.json()["resumeToken"]
            except httpx.HTTPError:
                time.sleep(0.1)


class Writer:
    """Writes events to random interested daemons, so many a second."""

    def __init__(self, daemons: Sequence[Daemon], models: Sequence[StreamId], rate: float) -> None:
        self._daemons = daemons
        self._models = models
        self._rate = rate
        self._random = random.Random(1)
        self.written: dict[str, Written] = {}
        self._pools = {id(each): ThreadPoolExecutor(1, initializer=each.enter) for each in daemons}

    def write_for(self, seconds: float) -> list[str]:
        """Write for some time; return the CIDs of what was accepted."""
        began = time.monotonic()
        jobs = []
        for number in range(int(seconds * self._rate)):
            time.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            model = self._random.choice(self._models)
            daemon = self._random.choice([each for each in self._daemons if model in each.wanted])
            jobs.append(self._pools[id(daemon)].submit(self._write, daemon, model))
        return [cid for job in jobs if (cid := job.result()) is not None]

    def _write(self, daemon: Daemon, model: StreamId) -> str | None:
        event = init_event(_KEY, model, {"n": 0}, unique=secrets.token_bytes(12))
        at = time.monotonic()
        try:
            if daemon.client is None:
                daemon.client = httpx.Client(base_url=daemon.node.api_url, timeout=30)
            post(daemon.client, event)
        except httpx.HTTPError:
            return None  # it is not running
        self.written[str(event.cid)] = Written(model, at)
        return str(event.cid)


def post(client: httpx.Client, event: Event) -> None:
    """Write an event to a daemon; an HTTPError says that it was not accepted."""
    body = {"data": multibase.encode(event.car)}
    client.post("/ceramic/events", json=body).raise_for_status()


def lacking(daemons: Sequence[Daemon], writer: Writer) -> int:
    """Return how many events are still missing at how many daemons, in total."""
    written = list(writer.written.items())
    return sum(
        cid not in each.arrived
        for each in daemons
        for cid, of in written
        if of.model in each.wanted
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
        cid in writer.written and writer.written[cid].model not in each.wanted
        for each in daemons
        for cid in each.arrived
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


@contextmanager
def two_halves() -> Iterator[tuple[str, str, str] | None]:
    """Yield two network namespaces and the one between them; None where they cannot be made."""
    if os.geteuid() or not shutil.which("ip"):
        yield None
        return
    tag = secrets.token_hex(2)
    left, right, middle = names = [f"recon-{tag}-{each}" for each in ("l", "r", "m")]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", middle, "link", "add", "bridge", "type", "bridge")
        ip("-n", middle, "link", "set", "bridge", "up")
        for name, address in zip((left, right), _HALVES, strict=True):
            port = f"to-{name[-1]}"
            pair = ("type", "veth", "peer", "name", port, "netns", middle)
            ip("-n", name, "link", "add", "eth", *pair)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth")
            for device in ("eth", "lo"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", middle, "link", "set", port, "master", "bridge", "up")
        yield left, right, middle
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True)


def start(count: int, directory: Path, halves: tuple[str, str, str] | None) -> list[Daemon]:
    """Start the daemons. All know the first one only."""
    models = [model_of(number) for number in range(MODELS)]
    network = f"local-{secrets.randbelow(2**32)}"
    daemons = []
    for number in range(count):
        wanted = [models[number % MODELS]]
        if number % 2:
            wanted.append(models[(number + 1) % MODELS])
        flags = ["--network", network]
        for model in wanted:
            flags += ["--interest", f"model={model}"]
        side = number % 2
        node = TestnetNode(
            f"node-{number}",
            directory,
            flags,
            host="127.0.0.1" if halves is None else _HALVES[side],
            prefix=() if halves is None else ("ip", "netns", "exec", halves[side]),
        )
        daemons.append(Daemon(node, wanted, None if halves is None else halves[side]))
    first, *others = daemons
    first.node.launch()
    first.node.wait_until_ready()
    for each in others:
        each.node.launch(["--bootstrap", first.node.addresses[0]])
    for each in others:
        each.node.wait_until_ready(180.0)
    return daemons


def model_of(number: int) -> StreamId:
    """Return the StreamID of a made-up model."""
    return StreamId(StreamType.MODEL, model_event(_KEY, {"name": str(number)}).cid)


def run(count: int, rate: float, seconds: float, cut: float, directory: Path) -> list[Row]:
    """Run the phases, one after the other, on the same daemons."""
    with ExitStack() as stack:
        halves = stack.enter_context(two_halves())
        progress(f"starting {count} daemons")
        daemons = start(count, directory, halves)
        for each in daemons:
            stack.callback(each.node.kill)
        stop = threading.Event()
        stack.callback(stop.set)
        for each in daemons:
            threading.Thread(target=each.watch, args=[stop], daemon=True).start()
        time.sleep(SETTLE_MANY)
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
        for each in killed:
            each.node.kill()
        cids = job.result()
    for each in killed:
        each.node.launch()
    for each in killed:
        each.node.wait_until_ready(180.0)
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


def fresh(models: int, events: int, interval: float, directory: Path, binary: str | None) -> Row:
    """Measure how long what was just asked for takes to come.

    Args:
        models: how many.
        events: how many, beside those of the models themselves.
        interval: the daemons' `sync_interval`, in seconds.
        directory: for data and logs.
        binary: of ceramic-one, to measure its nodes instead.
    """
    with ExitStack() as stack:
        urls = (
            _three(interval, directory, stack)
            if binary is None
            else _theirs(binary, directory, stack)
        )
        time.sleep(SETTLE)
        of_models = [model_event(_KEY, {**_DEFINITION, "name": f"m{n}"}) for n in range(models)]
        ids = [StreamId(StreamType.MODEL, each.cid) for each in of_models]
        made = of_models + [
            init_event(_KEY, ids[number % models], {"n": number}, unique=secrets.token_bytes(12))
            for number in range(events)
        ]
        clients = [httpx.Client(base_url=url, timeout=60) for url in urls]
        for client in clients:
            delivered(client)  # it is connected
        began = time.monotonic()
        for client in clients:
            for model in (METAMODEL, *ids):
                client.post(f"/ceramic/interests/model/{model}").raise_for_status()
        asked = time.monotonic()
        for number, event in enumerate(made):
            post(clients[number % len(clients)], event)
        written = time.monotonic()
        while any(delivered(client) < len(made) for client in clients):
            if time.monotonic() > began + LIMIT:
                raise SystemExit("not everything has arrived")
            time.sleep(0.02)
        ended = time.monotonic()
    return {
        "system": "recon-node" if binary is None else "ceramic-one",
        "nodes": len(urls),
        "models": models,
        "events": events,
        "asking_s": asked - began,
        "writing_s": written - asked,
        "after_last_write_s": ended - written,
        "seconds": ended - began,
    }


def _three(interval: float, directory: Path, stack: ExitStack) -> list[str]:
    """Start three daemons; return the URLs of their APIs."""
    flags = ["--network", f"local-{secrets.randbelow(2**32)}", "--sync-interval", f"{interval:g}"]
    flags += ["--interest", f"model={model_of(10**6)}"]
    nodes = [TestnetNode(f"node-{number}", directory, flags) for number in range(3)]
    for number, node in enumerate(nodes):
        stack.callback(node.kill)
        node.launch(["--bootstrap", nodes[0].addresses[0]] if number else [])
        node.wait_until_ready(180.0)
    return [node.api_url for node in nodes]


def _theirs(binary: str, directory: Path, stack: ExitStack) -> list[str]:
    """Start three ceramic-one nodes, each connected to those before it; return their APIs."""
    network = secrets.randbelow(2**32)
    nodes = [CeramicOneNode(binary, directory / f"one-{n}", network) for n in range(3)]
    for number, node in enumerate(nodes):
        stack.callback(node.kill)
        node.start([each.address for each in nodes[:number]])
    return [node.api_url for node in nodes]


def delivered(client: httpx.Client) -> int:
    """Return how many events are in a node's feed."""
    answer = client.get("/ceramic/feed/events", params={"limit": 10_000}).raise_for_status()
    return len(answer.json()["events"])


def main() -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("form", nargs="?", choices=["network", "fresh"], default="network")
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--rate", type=float, default=5.0, help="writes a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each phase")
    parser.add_argument("--cut", type=float, default=60.0, help="seconds; 0: leave this phase out")
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--events", type=int, default=60)
    parser.add_argument("--interval", type=float, default=2.0, help="sync_interval of `fresh`")
    parser.add_argument("--ceramic-one", metavar="BINARY", help="to compare with")
    parser.add_argument("--directory", type=Path, help="for the logs; kept afterwards")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = options.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        if options.form == "fresh":
            what = options.models, options.events, options.interval, directory
            binaries = [None, options.ceramic_one] if options.ceramic_one else [None]
            rows = [fresh(*what, each) for each in binaries]
        else:
            rows = run(options.nodes, options.rate, options.seconds, options.cut, directory)
    show("Partial interests", rows, options.json)


if __name__ == "__main__":
    main()
