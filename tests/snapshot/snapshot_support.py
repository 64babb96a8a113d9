"""Logs with real events, snapshots of them, syncs from them, and web servers, for tests."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import trio
from nacl.signing import SigningKey

from recon_node.ceramic import Event, Network, StreamId, StreamType
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR
from recon_node.snapshot.creating import Created, create_snapshot
from recon_node.snapshot.event_source import LogSource
from recon_node.snapshot.objects import Objects
from recon_node.snapshot.syncing import SnapshotSync, SourceReport, sync_all
from recon_node.store import StoreSettings, open_store

KEY = SigningKey(b"k" * 32)
QUICK = StoreSettings(synchronous="normal", verifiers=0)
PACK = 20_000
NETWORK = Network.local(7)
MODELS = [StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model %d" % n)) for n in range(2)]


def events(count: int, seed: int) -> list[Event]:
    """Make events of many streams; each comes after what it builds on."""
    rng = Random(seed)
    keys = [SigningKey(rng.randbytes(32)) for _ in range(5)]
    made: list[Event] = []
    tips: list[tuple[SigningKey, Event, Event]] = []
    for n in range(count):
        if not tips or rng.random() < 0.4:
            key = rng.choice(keys)
            init = init_event(key, rng.choice(MODELS), {"n": n}, unique=rng.randbytes(12))
            tips.append((key, init, init))
            made.append(init)
        else:
            at = rng.randrange(len(tips))
            key, init, tip = tips[at]
            new = data_event(key, init, [tip.cid], {"text": rng.randbytes(20).hex()})
            tips[at] = (key, init, new)
            made.append(new)
    return made


def make_log(data_dir: Path, made: Sequence[Event]) -> None:
    """Add events to the log of a directory."""

    async def main() -> None:
        async with open_store(data_dir, NETWORK, settings=QUICK) as store:
            verdicts = await store.admit_local([event.car for event in made])
            assert {verdict.status for verdict in verdicts} <= {"new", "known"}

    trio.run(main)


def create(data_dir: Path, objects: Objects, *, afresh: bool = False) -> Created:
    """Make a snapshot of a log, in several packs."""
    with LogSource(data_dir) as source:
        return create_snapshot(
            source, objects, KEY, lambda *step: None, pack_bytes=PACK, afresh=afresh
        )


def sync(node: Path, *urls: Path | str, network: Network = NETWORK) -> tuple[SnapshotSync, int]:
    """Sync a node; return the report, and how many events the node has then."""
    report = SnapshotSync([SourceReport(str(url)) for url in urls])

    async def main() -> int:
        async with open_store(node, network, settings=QUICK) as store:
            await sync_all(report, store, ())
            return len(store.keys)

    return report, trio.run(main)


class Quiet:
    """For handlers of requests, of which nothing is logged."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], host: str = "127.0.0.1") -> Iterator[str]:
    """Run a web server; its URL."""
    with ThreadingHTTPServer((host, 0), handler) as server:
        server.handle_error = lambda *args: None  # type: ignore[method-assign]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
