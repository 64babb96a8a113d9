"""Logs with real events, snapshots of them, syncs from them, and web servers, for tests."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random

import trio
from nacl.signing import SigningKey
from support.web_server import serving

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


@contextmanager
def web(directory: Path, misdeed: str = "none", only: str = "") -> Iterator[str]:
    """A web server of files, with byte ranges, that misbehaves for paths that contain `only`."""
    stopped = threading.Event()

    def reply(handler: BaseHTTPRequestHandler) -> None:
        path = directory / handler.path.lstrip("/").partition("?")[0]
        if not path.is_file():
            handler.send_error(404)
            return
        data, wanted = path.read_bytes(), handler.headers.get("Range")
        harm = misdeed if only in handler.path else "none"
        first, last, size = 0, len(data) - 1, len(data)
        if wanted is not None and harm != "no ranges":
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        elif harm == "redirects":
            handler.send_response(302)
            handler.send_header("Location", f"{handler.path.partition('?')[0]}?{id(handler)}")
        else:
            handler.send_response(200)
        data = data[first : last + 1]
        handler.send_header("Last-Modified", handler.date_time_string(0))
        length = 1 << 50 if harm == "endless" else len(data)
        handler.send_header("Content-Length", str(length))
        handler.end_headers()
        if harm == "other bytes":
            data = bytes(len(data))
        handler.wfile.write(data[: len(data) // 2] if harm == "cut off" else data)
        while harm == "endless" and not stopped.is_set():
            handler.wfile.write(bytes(1 << 20))

    with serving(reply) as url:
        yield url
        stopped.set()
