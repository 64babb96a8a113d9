"""Real nodes of both kinds side by side: what it costs to write to them and to fill an empty one.

    python -m benchmarks.ceramic_one --binary PATH [--events 10000,100000] [--json FILE]
    python -m benchmarks.ceramic_one --node http://127.0.0.1:5101

The first starts nodes of both kinds; the second fills an empty node of ours from one that is
running. Bytes are counted by a proxy between the two nodes, so they are those of TCP's payload,
encryption included. CPU and memory are the processes', as /proc has them; the memory is the largest
that was resident. The load is the machine's average of the last minute: above the number of its
cores, compare CPU times only.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import httpx
from nacl.signing import SigningKey

from benchmarks.ceramic_one_node import CeramicOneNode, holdings
from benchmarks.counting_proxy import Proxy
from benchmarks.plain_http import post, send
from benchmarks.processes import cpu_seconds, family, memory
from benchmarks.report import Row, command_line, machine, numbers, progress, show, write_rows
from recon_node.ceramic import Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event, model_event
from recon_node.client import ModelDefinition
from recon_node.testnet import TestnetNode

OURS: Final = "recon-node"
THEIRS: Final = "ceramic-one"
STREAM: Final = 5
"""Events of each stream."""
WRITERS: Final = 4
"""Clients that write to a node at once."""
FILL_LIMIT: Final = 3600.0
"""Seconds in which an empty node must have everything."""
_POLL: Final = 0.2
"""Seconds between two looks at how far a node of ours is."""
_POLL_THEIRS: Final = 1.0
"""The same for one of theirs, which has to add up the hashes of all its keys for it."""
IDLE: Final = 0.1
"""The share of a core that an idle node uses at most."""
IDLE_LIMIT: Final = 300.0
"""Seconds in which a node that was written to becomes idle; one of theirs aggregates events."""
_CLIENT: Final = httpx.Client()
"""One for all looks: to make one takes as long as to admit a thousand events."""

Node = TestnetNode | CeramicOneNode

_SCHEMA: Final = {"properties": {"n": {"type": "integer"}}}
_DEFINITION: Final = ModelDefinition(name="Note", schema=_SCHEMA).to_json()


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one model, its own one first, a stream's in causal order."""

    model: StreamId
    streams: list[list[bytes]]
    """Their CARs."""


def made_up_events(count: int) -> Events:
    """Sign so many events, the model's included."""
    author = SigningKey.generate()
    of_model = model_event(author, _DEFINITION)
    model = StreamId(StreamType.MODEL, of_model.cid)
    streams = [[of_model.car]]
    for start in range(1, count, STREAM):
        key = SigningKey.generate()
        init = last = init_event(key, model, {"n": 0}, unique=secrets.token_bytes(12))
        streams.append([init.car])
        for number in range(1, min(STREAM, count - start)):
            patch = [{"op": "replace", "path": "/n", "value": number}]
            last = data_event(key, init, [last.cid], patch)
            streams[-1].append(last.car)
    return Events(model, streams)


class Lab:
    """Nodes on loopback in a network of their own; use it as a context manager."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._temporary = tempfile.TemporaryDirectory(prefix="recon-benchmark-")
        self._count = 0
        self.network = Network.local(secrets.randbelow(2**31))

    @contextmanager
    def node(self, kind: str, model: StreamId, peer: str = "") -> Iterator[Node]:
        """Run a node that wants the events of a model and keeps a connection to a peer."""
        self._count += 1
        directory = Path(self._temporary.name)
        name = f"{kind}-{self._count}"
        node: Node
        if kind == OURS:
            flags = ["--network", self.network.name, "--sync-interval", "1"]
            node = TestnetNode(name, directory, flags + (["--bootstrap", peer] if peer else []))
            node.launch()
        else:
            number = int(self.network.name.rpartition("-")[2])
            node = CeramicOneNode(self._binary, directory / name, number)
        try:
            if isinstance(node, TestnetNode):
                node.wait_until_ready()
            else:
                node.start([peer] if peer else [])
                node.want([str(model)])
            yield node
        finally:
            node.kill()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self._temporary.cleanup()


def run(binary: str, sizes: list[int]) -> Iterator[Row]:
    """Measure writing to each kind, and filling an empty node of each kind from it.

    Yields the rows as they come, because it takes long.
    """
    with Lab(binary) as lab:
        for size in sizes:
            events = made_up_events(size)
            for kind in (OURS, THEIRS):
                with lab.node(kind, events.model) as source:
                    progress(f"{size:,} events written to {kind}")
                    yield _write(kind, source, events)
                    for receiver in (OURS, THEIRS):
                        _wait_until_idle(source)
                        progress(f"{size:,} events from {kind} to an empty {receiver}")
                        yield _fill(lab, kind, source, receiver, events)


def from_running_node(api_url: str) -> list[Row]:
    """Measure how an empty node of ours gets everything from a ceramic-one node that is running."""
    identity = httpx.post(f"{api_url}/api/v0/id").raise_for_status().json()
    network = httpx.get(f"{api_url}/ceramic/config/network").raise_for_status().json()["name"]
    address = next(address for address in identity["Addresses"] if "/tcp/" in address)
    count = holdings(address, Network.parse(network)).count
    flags = ["--network", network, "--sync-interval", "1", "--no-discovery"]
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        proxy = Proxy(_tcp_port(address))
        stack.callback(proxy.close)
        through = address.replace(f"/tcp/{_tcp_port(address)}", f"/tcp/{proxy.port}")
        node = TestnetNode(OURS, Path(directory), [*flags, "--bootstrap", through])
        stack.callback(node.kill)
        node.launch()
        node.wait_until_ready()
        started = time.perf_counter()
        _wait_until(lambda: _events_of_ours(node) >= count)
        return [_fill_row(THEIRS, OURS, count, time.perf_counter() - started, proxy, node, 0.0)]


def _write(kind: str, node: Node, events: Events) -> Row:
    cpu = cpu_seconds(*family(node.pid))
    started = time.perf_counter()
    _post(node, events.streams[:1])
    with ThreadPoolExecutor(WRITERS) as threads:
        for _ in threads.map(
            lambda first: _post(node, events.streams[first::WRITERS]), range(1, 1 + WRITERS)
        ):
            pass
    seconds = time.perf_counter() - started
    count = sum(map(len, events.streams))
    return {
        "measure": "written over HTTP",
        "from": f"{WRITERS} clients",
        "to": kind,
        "events": count,
        "seconds": seconds,
        "events_per_s": count / seconds,
        "bytes": 0,
        "cpu_s": cpu_seconds(*family(node.pid)) - cpu,
        "sender_cpu_s": 0.0,
        "memory_mb": memory("VmHWM", *family(node.pid)) / 1e6,
        "load": os.getloadavg()[0],
    }


def _post(node: Node, streams: list[list[bytes]]) -> None:
    send(node.api_url, [post(node.api_url, car) for car in chain(*streams)])


def _fill(lab: Lab, kind: str, source: Node, receiver: str, events: Events) -> Row:
    count = sum(map(len, events.streams))
    address = source.address if isinstance(source, CeramicOneNode) else source.addresses[0]
    proxy = Proxy(_tcp_port(address))
    through = address.replace(f"/tcp/{_tcp_port(address)}", f"/tcp/{proxy.port}")
    sender_cpu = cpu_seconds(*family(source.pid))
    try:
        with lab.node(receiver, events.model, through) as node:
            started = time.perf_counter()
            if isinstance(node, TestnetNode):
                ours = node
                _wait_until(lambda: _events_of_ours(ours) >= count)
            else:
                theirs = node
                _wait_until(
                    lambda: holdings(theirs.address, lab.network).count >= count, _POLL_THEIRS
                )
            seconds = time.perf_counter() - started
            spent = cpu_seconds(*family(source.pid)) - sender_cpu
            return _fill_row(kind, receiver, count, seconds, proxy, node, spent)
    finally:
        proxy.close()


def _fill_row(
    kind: str, receiver: str, count: int, seconds: float, proxy: Proxy, node: Node, spent: float
) -> Row:
    return {
        "measure": "to an empty node",
        "from": kind,
        "to": receiver,
        "events": count,
        "seconds": seconds,
        "events_per_s": count / seconds,
        "bytes": proxy.up + proxy.down,
        "cpu_s": cpu_seconds(*family(node.pid)),
        "sender_cpu_s": spent,
        "memory_mb": memory("VmHWM", *family(node.pid)) / 1e6,
        "load": os.getloadavg()[0],
    }


def _wait_until_idle(node: Node) -> None:
    """Let a node finish what it does with the events that it has; give up after a while."""
    deadline = time.monotonic() + IDLE_LIMIT
    before = cpu_seconds(*family(node.pid))
    while time.monotonic() < deadline:
        time.sleep(2.0)
        now = cpu_seconds(*family(node.pid))
        if now - before < 2.0 * IDLE:
            return
        before = now


def _events_of_ours(node: TestnetNode) -> int:
    return int(_CLIENT.get(f"{node.api_url}/ceramic/recon").raise_for_status().json()["head"])


def _tcp_port(address: str) -> int:
    return int(address.split("/tcp/")[1].split("/")[0])


def _wait_until(condition: Callable[[], bool], poll: float = _POLL) -> None:
    deadline = time.monotonic() + FILL_LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not done after {FILL_LIMIT:g} s")
        time.sleep(poll)


def main() -> None:
    """Measure real nodes from the command line."""
    parser = command_line("ceramic_one", __doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--binary", help="a binary of ceramic-one", metavar="PATH")
    which.add_argument("--node", help="the HTTP API of a ceramic-one node", metavar="URL")
    parser.add_argument("--events", type=numbers, default=[10_000], help="how many events")
    options = parser.parse_args()
    if options.node is not None:
        coming = iter(from_running_node(options.node))
    else:
        coming = run(options.binary, options.events)
    rows: list[Row] = []
    for row in coming:
        rows.append({**row, "machine": machine()})
        if options.json is not None:
            write_rows(rows, options.json)
    show("Beside ceramic-one nodes", rows, None)


if __name__ == "__main__":
    main()
