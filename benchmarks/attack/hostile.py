"""A hostile peer: it says what it likes over a real libp2p host, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import struct
import traceback
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from benchmarks.attack.field import NETWORK as NETWORK_NAME
from benchmarks.attack.field import Field
from benchmarks.attack.measuring import MIB
from recon_node.ceramic import EventId, Network, heightless_event_id, network_range
from recon_node.ipld import CID, car, dag_cbor, encode_varint
from recon_node.p2p import P2PSettings
from recon_node.p2p.sync.event_server import serve_events
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.sync.reconciler import FrameWire
from recon_node.p2p.sync.sessions import Tally, converse
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host, open_host
from recon_node.recon import (
    RECON_1_2,
    Failed,
    Fetch,
    FetchById,
    KeyRange,
    KeyStore,
    Side,
    SoughtIds,
    id_of,
)
from recon_node.recon.actions import Admit

NETWORK: Final = Network.local(int(NETWORK_NAME.partition("-")[2]))
WHOLE: Final = KeyRange(*network_range(NETWORK))
RING: Final = KeyRange(*heightless_event_id.network_range(NETWORK))
"""The same on ceramic-one's rings."""
_DAG_CBOR: Final = 0x71
_SETTINGS: Final = P2PSettings(listen=("/ip4/127.0.0.1/tcp/0",))
_START: Final = 5.0
"""Seconds in which a process has started."""
_PAUSE: Final = 0.02
"""Seconds between two runs of a program."""

Program = Callable[..., Awaitable[None]]
"""What a peer does. In a process of its own, it gets the address of the node, and what else it
needs."""
Read = Callable[[Sequence[EventId]], Awaitable[list[bytes | None]]]
"""Returns what is sent in place of events."""


@contextmanager
def attacker(program: Program, address: str, *arguments: Any) -> Iterator[Any]:
    """Run a program of a hostile peer in another process, which is killed after the block.

    Yields:
        The process; `join` it to wait for the end of the program.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(program, address, arguments), daemon=True
    )
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def attack_node(here: Field, seconds: float, program: Program, *arguments: Any) -> None:
    """Run a program of a hostile peer until it ends, for some seconds at most."""
    with attacker(program, here.node.addresses[0], *arguments) as process:
        process.join(_START + seconds)


def _run(program: Program, address: str, arguments: tuple[Any, ...]) -> None:
    try:
        trio.run(program, address, *arguments)
    except BaseException:
        if "ATTACK_VERBOSE" in os.environ:
            traceback.print_exc()


@contextmanager
def cut_off() -> Iterator[None]:
    """Go on when the node has had enough of what the block says."""
    try:
        yield
    except Exception:
        if "ATTACK_VERBOSE" in os.environ:
            traceback.print_exc()


async def again(program: Program, *arguments: Any) -> None:
    """Run a program again and again, also if the node has had enough of it."""
    while True:
        with cut_off():
            await program(*arguments)
        await trio.sleep(_PAUSE)


async def at_once(seconds: float, count: int, program: Program, *arguments: Any) -> None:
    """Run a program several times at once, for some seconds."""
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(program, *arguments)


def frames_of(stream: PeerStream) -> FrameStream:
    """The frames of a stream, of up to 1 MiB."""
    return FrameStream(stream, MIB, account=stream.account)


def peer_id(address: str) -> str:
    """The peer id in an address."""
    return address.rpartition("/p2p/")[2]


@asynccontextmanager
async def new_host(address: str) -> AsyncIterator[Host]:
    """A host with a new identity that is connected with a node."""
    async with open_host(replace(_SETTINGS), create_new_key_pair()) as host:
        await host.connect(address)
        yield host


def serve(host: Host, keys: Collection[EventId], read: Read) -> None:
    """Answer the node's questions for the events of some keys."""
    names = {id_of(key): key for key in keys}

    async def search(wanted: SoughtIds) -> dict[EventId, bytes]:
        return {names[id_]: id_ for id_ in wanted.ids if id_ in names}

    async def by_key(stream: PeerStream) -> None:
        with cut_off():
            await serve_events(frames_of(stream), read, NETWORK, _SETTINGS)

    async def by_id(stream: PeerStream) -> None:
        with cut_off():
            await serve_events(frames_of(stream), read, NETWORK, _SETTINGS, search)

    host.handle(EVENTS_PROTOCOL, by_key)
    host.handle(EVENTS_BY_ID_PROTOCOL, by_id)


async def sync(host: Host, victim: str, keys: Collection[EventId], *, lies: bool = False) -> None:
    """Reconcile some keys with the node, and fetch nothing; who `lies` says that all is here."""
    stream = await host.open_stream(victim, RECON_1_2.id)
    session = RECON_1_2.session(Side(KeyStore(list(keys)), [WHOLE], initiates=True))
    wire = FrameWire(RECON_1_2, session, frames_of(stream), _SETTINGS, trio.CapacityLimiter(1))
    await converse(session, wire, _Nothing(lies))


@dataclass
class _Nothing:
    """Fetches no event."""

    lies: bool
    tally: Tally = field(default_factory=Tally)

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        if self.lies:
            return Failed()
        return Failed(action.keys) if isinstance(action, Fetch) else None


async def offer(address: str, events: Mapping[EventId, bytes]) -> None:
    """Have the node fetch any events under any EventIds."""

    async def read(wanted: Sequence[EventId]) -> list[bytes | None]:
        return [events.get(key) for key in wanted]

    async with new_host(address) as host:
        serve(host, events, read)
        await trio.sleep(1)
        with cut_off():
            await sync(host, peer_id(address), events)
        await trio.sleep(1)


def made_up(init: CID, prev: CID, number: int) -> tuple[CID, bytes]:
    """A time event that names a transaction which does not exist; nobody has to sign it."""
    digest = struct.pack("<Q", number) + bytes(24)
    transaction = CID(encode_varint(1) + encode_varint(0x93) + bytes([0x1B, 32]) + digest)
    proof = dag_cbor.encode(
        {
            "chainId": "eip155:11155111",
            "root": prev,
            "txHash": transaction,
            "txType": "f(bytes32)",
        }
    )
    proof_cid = CID.of(_DAG_CBOR, proof)
    block = dag_cbor.encode({"id": init, "prev": prev, "proof": proof_cid, "path": ""})
    cid = CID.of(_DAG_CBOR, block)
    return cid, car.encode([cid], {cid: block, proof_cid: proof})
