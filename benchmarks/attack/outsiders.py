"""Attacks by ids, forged signatures, snapshot stores, and files."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from nacl.signing import SigningKey

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import NETWORK as NETWORK_NAME
from benchmarks.attack.field import Field, document_id, make_model
from benchmarks.attack.measuring import MIB, Row, memory_of
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, RAW, dag_cbor
from recon_node.p2p.peers.dht_server import protocol_of
from recon_node.p2p.transport.framing import PeerStream
from recon_node.recon import RECON_1_2, KeyRange, Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.snapshot.packs import PackExtent, encode_locator, located, pack_name
from recon_node.snapshot.root import LATEST, SnapshotManifest, encode_root
from recon_node.snapshot.tree.nodes import (
    HIGHEST,
    LOWEST,
    InnerNode,
    LeafNode,
    Link,
    Root,
    node_cid,
)

_SECONDS: Final = 8.0


async def _long_ids(address: str) -> None:
    """Name peers by ids of 16 and 60 kB, in requests and in answers of the DHT."""
    protocol = protocol_of(hostile.NETWORK)

    async def answer(stream: PeerStream) -> None:
        frames = hostile.frames_of(stream)
        with hostile.cut_off():
            while (asked := await frames.receive(60)) is not None:
                request = Message.FromString(asked)
                named = [Message.Peer(id=os.urandom(60_000))]
                answer = Message(type=request.type, key=request.key)
                answer.providerPeers.extend(named)
                answer.closerPeers.extend(named)
                await frames.send([answer.SerializeToString()], 30)

    async def idle(_: PeerStream) -> None:
        await trio.sleep_forever()

    async with hostile.new_host(address) as host:
        host.handle(protocol, answer)
        host.handle(RECON_1_2.id, idle)
        await trio.sleep(0.5)
        for _ in range(20):
            with hostile.cut_off():
                stream = await host.open_stream(hostile.peer_id(address), protocol)
                frames = hostile.frames_of(stream)
                provider = Message.Peer(id=os.urandom(15_800))
                kind = Message.MessageType.ADD_PROVIDER
                added = Message(type=kind, key=os.urandom(32), providerPeers=[provider])
                await frames.send([added.SerializeToString()], 60)
        await trio.sleep(_SECONDS)


@attack(flags=lambda: ("--discovery",))
def long_ids(here: Field) -> None:
    """Peer ids of 16 to 60 kB in the DHT take seconds each to be written in base58."""
    with here.attacked():
        hostile.attack_node(here, _SECONDS, _long_ids)


@attack()
def forged_updates(here: Field) -> None:
    """3,000 updates of an owner's stream, signed by a stranger, fill it or change it."""
    owner, stranger = SigningKey.generate(), SigningKey.generate()
    model, model_id = make_model(owner)
    init = init_event(owner, model_id, {"a": "own"}, unique=b"u")
    assert init.header is not None
    here.add([model, init])
    here.await_event(init)
    keys = here.status()["events"]
    forged = [
        data_event(stranger, init, [init.cid], [{"op": "replace", "path": "/a", "value": str(n)}])
        for n in range(3_000)
    ]
    events = {event.event_id(hostile.NETWORK, init.header, 1): event.car for event in forged}
    update = data_event(owner, init, [init.cid], [{"op": "replace", "path": "/a", "value": "new"}])
    with here.attacked():
        hostile.attack_node(here, 15, hostile.offer, events)
        here.add([update])
        here.await_event(update)
    stream = document_id(init)
    here.expect("the owner's stream", {"a": "new"}, here.content(stream))
    shown = here.get(f"/ceramic/streams/{stream}/events").json()["events"]
    delivered = [event for event in shown if event["state"] == "delivered"]
    here.expect("events of the stream", 2, len(delivered))
    crossed = here.status()["events"] - keys
    here.expect("keys that peers see", True, crossed < 100)


def _store_of_full_leaves(store: Path, leaves: int, keys: int) -> None:
    """A snapshot whose leaves have as many keys of 128 bytes as fit, packed front to back."""
    (store / "packs").mkdir(parents=True)
    prefix = bytes(hostile.WHOLE.lower[:8])
    body, links, extents = b"", [], []
    for number in range(leaves):
        start = prefix + bytes([1 + number])
        step = (2**128 - 1) // keys
        fill = start + b"A" * (112 - len(start))
        leaf = LeafNode([fill + (at * step).to_bytes(16, "big") for at in range(keys)])
        held = [PackExtent(0, 300 * at, 300) for at in range(keys)]
        data = located(leaf, encode_locator(held))
        extents.append(PackExtent(0, len(body), len(data)))
        links.append(Link(0, start if number else LOWEST, leaf.hash, node_cid(leaf.encode())))
        body += data
    inner = InnerNode(links)
    data = located(inner, encode_locator(extents))
    extent = PackExtent(0, len(body), len(data))
    body += data
    pack = CID.of(RAW, body)
    (store / pack_name(pack)).write_bytes(body)
    total = Sha256a.from_lanes(sum(spread(link.hash) for link in links))
    root = Root(Link(1, LOWEST, total, node_cid(inner.encode())), leaves * keys)
    manifest = SnapshotManifest(
        network=hostile.NETWORK,
        interests=(),
        ranges=(KeyRange(LOWEST, HIGHEST),),
        created=int(time.time()),
        tree=root,
        extent=extent,
        packs=((pack, len(body)),),
        live=len(body),
    )
    _, car = encode_root(manifest, SigningKey.generate(), {})
    (store / LATEST).write_bytes(car)


@attack()
def a_store_of_full_leaves(here: Field) -> None:
    """Leaves of a snapshot that unfold to 200,000 keys each take hundreds of megabytes."""
    store = here.directory / "store"
    _store_of_full_leaves(store, 3, 200_000)
    with here.attacked():
        asked = httpx.post(f"{here.url}/ceramic/snapshots/sync", json={"urls": [str(store)]})
        here.expect("the sync begins", 202, asked.status_code)
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            if here.get("/ceramic/snapshots/sync").json()["state"] != "running":
                break
            time.sleep(0.1)


class _Endless(http.server.BaseHTTPRequestHandler):
    """A web server whose root object is a bomb, or whose errors never end."""

    root: bytes | None = None

    def do_GET(self) -> None:
        with suppress(OSError):
            if self.root is not None:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + self.root)
                return
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            while True:
                self.wfile.write(bytes(MIB))

    def log_message(self, *_: object) -> None:
        pass


def _manifest_of_zeros() -> bytes:
    """A root object with 200 key ranges whose bounds are numbers: as bytes, gigabytes of zeros."""
    manifest = SnapshotManifest(hostile.NETWORK, (), (), int(time.time()), None, None, (), 0)
    fields = dag_cbor.decode(manifest.encode())
    fields["ranges"] = [[(1 << 31) + n, (1 << 31) + n + 1] for n in range(200)]
    block = dag_cbor.encode(fields)

    class Bomb(SnapshotManifest):
        def encode(self) -> bytes:
            return block

    bomb = Bomb(hostile.NETWORK, (), (), 0, None, None, (), 0)
    return encode_root(bomb, SigningKey.generate(), {})[1]


@attack(short=True)
def a_web_server_with_snapshots(here: Field) -> None:
    """A web server sends an error without end, or a manifest of 3 kB that stands for gigabytes."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    for _Endless.root in (None, _manifest_of_zeros()):
        with here.attacked():
            httpx.post(f"{here.url}/ceramic/snapshots/sync", json={"urls": [url]}, timeout=60)
            limit = time.monotonic() + 15
            while time.monotonic() < limit:
                if here.get("/ceramic/snapshots/sync").json()["state"] != "running":
                    break
                time.sleep(0.1)
        httpx.delete(f"{here.url}/ceramic/snapshots/sync", timeout=60)
    server.shutdown()


def _start(here: Field, name: str, *flags: str) -> None:
    """Start a node by a hostile file: it must end soon, with a message, and take little."""
    command = [sys.executable, "-m", "recon_node", "run", "--network", NETWORK_NAME]
    command += ["--data-dir", str(here.directory / "own"), "--api", "127.0.0.1:0"]
    command += ["--listen", "/ip4/127.0.0.1/tcp/0", "--no-discovery", *flags]
    quiet = subprocess.DEVNULL
    memory, bound = 0, 20.0
    started = time.monotonic()
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE) as process:
        while process.poll() is None and time.monotonic() < started + bound * here.bounds.slack:
            memory = max(memory, memory_of(process.pid))
            time.sleep(0.05)
        here.at_most(f"the end, with {name}", time.monotonic() - started, bound)
        process.kill()
        _, said = process.communicate()
    is_told = process.returncode > 0 and b"Traceback" not in said
    here.expect(f"a message about {name}", True, is_told)
    here.rows.append(Row("memory", "300 MiB", f"{memory / MIB:.0f} MiB", memory <= 300 * MIB))


@attack()
def files_without_end(here: Field) -> None:
    """A token or key file that never ends, or is a pipe of nobody, takes all memory, or a start."""
    pipe = here.directory / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in ("/dev/zero", str(pipe)):
        _start(here, f"a token in {path}"[:30], "--token-file", path)
    _start(here, "a swarm key", "--swarm-key-file", "/dev/zero")
    identity = here.directory / "own" / "identity.key"
    identity.unlink(missing_ok=True)
    identity.parent.mkdir(exist_ok=True)
    with identity.open("wb") as file:
        file.truncate(1 << 34)
    _start(here, "an identity of 16 GiB")
