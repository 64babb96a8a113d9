"""How many signed events a node takes in a second, into its durable log and in order of the feed.

    python -m benchmarks.admission [--events N] [--verifiers 0,1,2] [--native auto,off]
                                   [--json FILE]

Streams of ten events (an init event and nine updates, 660 bytes a CAR), signed by Ed25519. `file`:
handed to the store of this process, a thousand at a time as they were. `peer`: reconciled with a
node in another process, over libp2p on the loopback; that one uses the same cores. `api`: sent by
`recon-node events add` to a node in another process, on the same cores; the command's start counts.
`api, one by one`: 1,000 events, each in a request of its own once the one before was answered.
`verifiers` are the processes that check signatures; 0: none but the node's own. `native`: whether
the native core checks them, where it is installed. `node_cpu_us` and
`verifier_cpu_us` are what an event costs the node that takes it. The stages, alone and one after
the other: `parse` and `verify` are what a verifier does, `log` is all the rest of admission, in a
transaction.
"""

from __future__ import annotations

import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import structlog
import trio
from nacl.signing import SigningKey

from benchmarks.plain_http import post, send
from benchmarks.processes import running
from benchmarks.report import Row, command_line, numbers, progress, show
from recon_node.base.program import collect_seldom
from recon_node.ceramic import Network, StreamId, StreamType, parse_event, verify_signature
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.p2p import P2PSettings, open_p2p
from recon_node.snapshot.creating import create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, sync_all
from recon_node.store import StoreSettings, open_store
from recon_node.store.db.log import EventLog, commit_batch
from recon_node.store.kept_interests import key_ranges
from recon_node.store.values import Submission
from recon_node.testnet import Testnet
from recon_node.verification import check_event

NETWORK = Network.local(4)
LOOPBACK = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",), discovery=False)
STREAM = 10
BATCH = 1000


def signed_events(count: int) -> list[bytes]:
    """CARs of about that many events, prevs first; the same each time."""
    model = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
    keys = [SigningKey(bytes([n]) * 32) for n in range(1, 5)]
    cars = []
    for stream in range(count // STREAM):
        key = keys[stream % len(keys)]
        content = {"title": "a document", "body": "x" * 200}
        init = init_event(key, model, content, unique=stream.to_bytes(4, "big"))
        cars.append(init.car)
        prev = init.cid
        for change in range(STREAM - 1):
            patch = {"op": "replace", "path": "/body", "value": f"{change}" * 100}
            event = data_event(key, init, [prev], [patch])
            cars.append(event.car)
            prev = event.cid
    return cars


def stages(cars: list[bytes]) -> list[Row]:
    """What each stage costs, in one thread."""
    events = [parse_event(car) for car in cars]
    facts = [check_event(car) for car in cars]
    with tempfile.TemporaryDirectory() as directory:
        log = EventLog(Path(directory), NETWORK, StoreSettings())
        ranges = key_ranges(NETWORK, ())

        def write() -> None:
            for at in range(0, len(cars), BATCH):
                batch = zip(cars[at : at + BATCH], facts[at : at + BATCH], strict=True)
                events = [Submission(car, finding=finding) for car, finding in batch]
                commit_batch(log, events, ranges)

        works: dict[str, Callable[[], object]] = {
            "parse": lambda: [parse_event(car) for car in cars],
            "verify": lambda: [verify_signature(event, None) for event in events],
            "log": write,
        }
        rows = [_stage(name, work, len(cars)) for name, work in works.items()]
        log.close()
    return rows


def _stage(name: str, work: Callable[[], object], events: int) -> Row:
    progress(f"{name} alone")
    started, cpu = time.perf_counter(), time.process_time()
    work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return _row(name, StoreSettings(verifiers=0, native="off"), events, seconds, cpu, 0.0)


def _row(
    source: str, store: StoreSettings, events: int, seconds: float, node: float, others: float
) -> Row:
    return {
        "source": source,
        "verifiers": store.verifiers,
        "native": store.native,
        "events": events,
        "events_per_s": round(events / seconds),
        "node_cpu_us": node / events * 1e6,
        "verifier_cpu_us": others / events * 1e6,
    }


async def from_file(cars: list[bytes], settings: StoreSettings) -> Row:
    """Admit events of a local client."""
    with tempfile.TemporaryDirectory() as directory, _children() as others:
        async with open_store(Path(directory), NETWORK, settings=settings) as store:
            await store.admit_local(cars[:BATCH])  # the processes are there
            started, cpu = time.perf_counter(), time.process_time()
            await store.admit_local(cars[BATCH:])
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            rows = await store.reader.feed(0, len(cars) + 1)
            assert [row.car for row in rows] == cars
    return _row("file", settings, len(cars) - BATCH, seconds, cpu, others())


async def from_peer(giver: Path, events: int, settings: StoreSettings) -> Row:
    """Reconcile with a node of another process that has the events."""
    with (
        running(giver, NETWORK.name) as peer,
        tempfile.TemporaryDirectory() as directory,
        _children() as others,
    ):
        path = Path(directory)
        async with (
            open_store(path, NETWORK, settings=settings) as store,
            open_p2p(LOOPBACK, store, path) as p2p,
        ):
            started, cpu = time.perf_counter(), time.process_time()
            await p2p.connect(peer.addresses[0])
            await store.wait_for_feed(events - 1)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        return _row("peer", settings, events, seconds, cpu, others())


async def from_snapshot(snapshots: Path, events: int, settings: StoreSettings) -> Row:
    """Sync an empty store from a snapshot in a directory."""
    with tempfile.TemporaryDirectory() as directory, _children() as others:
        async with open_store(Path(directory), NETWORK, settings=settings) as store:
            started, cpu = time.perf_counter(), time.process_time()
            report = SnapshotSync([SourceReport(str(snapshots))])
            await sync_all(report, store, ())
            assert report.is_whole
            await store.wait_for_feed(events - 1)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return _row("snapshot", settings, events, seconds, cpu, others())


def _write_snapshot(giver: Path, snapshots: Path) -> None:
    with LogSource(giver) as source:
        key = SigningKey(bytes(32))
        create_snapshot(source, Objects.open(str(snapshots), make=True), key, lambda *step: None)


def from_api(cars: list[bytes], settings: StoreSettings, *, alone: bool = False) -> Row:
    """Send events to a node of another process, by HTTP: all with the command, or each alone."""
    with tempfile.TemporaryDirectory() as directory, _children() as others:
        config = Path(directory) / "node.toml"
        config.write_text(f'verifiers = {settings.verifiers}\nnative = "{settings.native}"\n')
        flags = ("--config", str(config))
        with Testnet(1, Path(directory), NETWORK.name, flags) as net:
            url = net.nodes[0].api_url
            start_up = _cpu_of(url)
            seconds = (
                sum(send(url, [post(url, car) for car in cars]))
                if alone
                else _add_all(url, cars, Path(directory))
            )
            client, node = others(), _cpu_of(url)
            head = httpx.get(f"{url}/ceramic/feed/head").json()["head"]
            assert head == len(cars)
        others_cpu = max(0.0, others() - client - node) if settings.verifiers else 0.0
    source = "api, one by one" if alone else "api"
    return _row(source, settings, len(cars), seconds, node - start_up, others_cpu)


def _add_all(url: str, cars: list[bytes], directory: Path) -> float:
    file = directory / "events.txt"
    file.write_text("".join(f"{multibase.encode(car)}\n" for car in cars))
    command = [sys.executable, "-m", "recon_node", "events", "add", str(file), "--url", url]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _cpu_of(url: str) -> float:
    """Seconds of CPU that a node says it has used."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    [line] = [line for line in lines if line.startswith("process_cpu_seconds_total ")]
    return float(line.split()[1])


@contextmanager
def _children() -> Iterator[Callable[[], float]]:
    """Give the CPU time of the child processes that have ended meanwhile."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    yield lambda: spent() - before


async def run(events: int, ways: list[StoreSettings]) -> list[Row]:
    """Measure everything."""
    progress(f"signing {events:,} events")
    cars = signed_events(events)
    rows = stages(cars)
    with tempfile.TemporaryDirectory() as directory:
        giver, snapshots = Path(directory) / "giver", Path(directory) / "snapshots"
        async with open_store(giver, NETWORK) as store:
            await store.admit_local(cars)
        await trio.to_thread.run_sync(_write_snapshot, giver, snapshots)
        for settings in ways:
            how = f"{settings.verifiers} verifiers, native {settings.native}"
            progress(f"from a file, {how}")
            rows.append(await from_file(cars, settings))
            progress(f"from a peer, {how}")
            rows.append(await from_peer(giver, len(cars), settings))
            progress(f"from a snapshot, {how}")
            rows.append(await from_snapshot(snapshots, len(cars), settings))
            progress(f"by the API, {how}")
            rows.append(await trio.to_thread.run_sync(from_api, cars, settings))
        progress("by the API, one by one")
        send = partial(from_api, cars[:BATCH], ways[0], alone=True)
        rows.append(await trio.to_thread.run_sync(send))
    return rows


def main() -> None:
    """Run the benchmark from the command line."""
    parser = command_line("admission", __doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--verifiers", type=numbers, default=[0, 1, 2])
    parser.add_argument("--native", default="auto,off")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    collect_seldom()  # as a node does
    ways = [
        StoreSettings(verifiers=count, native="off" if native == "off" else "auto")
        for count in options.verifiers
        for native in options.native.split(",")
    ]
    show("Admission", trio.run(run, options.events, ways), options.json)


if __name__ == "__main__":
    main()
