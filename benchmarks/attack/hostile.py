"""A hostile peer: it says what it likes over a real libp2p host, in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import struct
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from benchmarks.attack.field import NETWORK as NETWORK_NAME
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

Program = Callable[..., Awaitable[None]]
"""Gets the address of the node that is attacked, and what else it needs."""


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


def peer_id(address: str) -> str:
    """The peer id in an address."""
    return address.rpartition("/p2p/")[2]


@asynccontextmanager
async def hostile_host(address: str) -> AsyncIterator[Host]:
    """A host with a new identity that is connected with a node."""
    async with open_host(replace(_SETTINGS), create_new_key_pair()) as host:
        await host.connect(address)
        yield host


async def offer(address: str, events: Mapping[EventId, bytes]) -> None:
    """Have the node fetch any events under any EventIds."""
    async with hostile_host(address) as host:

        async def read(wanted: Sequence[EventId]) -> list[bytes | None]:
            return [events.get(key) for key in wanted]

        async def serve(stream: PeerStream) -> None:
            frames = FrameStream(stream, 1 << 20, account=stream.account)
            with cut_off():
                await serve_events(frames, read, NETWORK, _SETTINGS)

        async def serve_by_id(stream: PeerStream) -> None:
            frames = FrameStream(stream, 1 << 20, account=stream.account)
            with cut_off():
                await serve_events(frames, read, NETWORK, _SETTINGS, search)

        async def search(wanted: SoughtIds) -> dict[EventId, bytes]:
            return {names[id_]: id_ for id_ in wanted.ids if id_ in names}

        names = {id_of(key): key for key in events}
        host.handle(EVENTS_PROTOCOL, serve)
        host.handle(EVENTS_BY_ID_PROTOCOL, serve_by_id)
        await trio.sleep(1)
        stream = await host.open_stream(peer_id(address), RECON_1_2.id)
        side = Side(KeyStore(list(events)), [WHOLE], initiates=True)
        frames = FrameStream(stream, 1 << 20, account=stream.account)
        session = RECON_1_2.session(side)
        wire = FrameWire(RECON_1_2, session, frames, _SETTINGS, trio.CapacityLimiter(1))
        with cut_off():
            await converse(session, wire, _Nothing())
        await trio.sleep(1)


class _Nothing:
    """Fetches no event."""

    def __init__(self) -> None:
        self.tally = Tally()

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        return Failed(action.keys) if isinstance(action, Fetch) else None


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
