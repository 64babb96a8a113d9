"""Attacks by the addresses that a peer names: its own, and those of others."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.envelope import seal_record
from libp2p.peer.id import ID
from libp2p.peer.peer_record import PeerRecord
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field
from recon_node.ipld import encode_varint
from recon_node.p2p.peers.dht_server import MAX_ANSWER, MAX_REQUEST, protocol_of
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import MAX_IDENTIFY, Host, IdentifyPushes
from recon_node.recon import RECON_1_2

SECONDS: Final = 8.0
"""How long each kind of message is sent."""
_HOSTS: Final = 8
_STREAMS: Final = 4
_KAD: Final = protocol_of(hostile.NETWORK)
_Program = Callable[[Host, str], Awaitable[None]]


def _ips(size: int) -> list[bytes]:
    """As many addresses as fit, each new."""
    return [b"\x04\x08" + os.urandom(3) + b"\x06\x10\x05" for _ in range(size // 10)]


def _names(size: int) -> list[bytes]:
    """The same, with names that are as long as they may be."""
    made = []
    for _ in range(size // 230):
        name = ".".join(os.urandom(23).hex() for _ in range(4)).encode() + b".example"
        made.append(b"\x36" + encode_varint(len(name)) + name + b"\x06\x10\x05")
    return made


async def _pushes(host: Host, victim: str) -> None:
    """Introduce itself again and again."""
    raw = Identify(listen_addrs=_ips(MAX_IDENTIFY - 100)).SerializeToString()
    stream = await host.open_stream(victim, str(IdentifyPushes.protocol))
    await stream.send_all(encode_varint(len(raw)) + raw)
    await stream.receive_some(1)


async def _signed_records(host: Host, victim: str) -> None:
    """Ask the DHT, and sign where it can be reached."""
    keys = create_new_key_pair()
    addresses = [*map(Multiaddr, _ips(MAX_REQUEST * 4 // 5))]
    record = seal_record(PeerRecord(ID.from_pubkey(keys.public_key), addresses), keys.private_key)
    kind, signed = Message.MessageType.FIND_NODE, record.marshal_envelope()
    await _ask(host, victim, Message(type=kind, key=os.urandom(32), senderRecord=signed))


async def _announcements(host: Host, victim: str) -> None:
    """Announce itself, at many addresses."""
    provider = Message.Peer(
        id=ID.from_string(host.peer_id).to_bytes(), addrs=_names(MAX_REQUEST - 500)
    )
    kind = Message.MessageType.ADD_PROVIDER
    await _ask(host, victim, Message(type=kind, key=os.urandom(32), providerPeers=[provider]))


async def _answers(host: Host, victim: str) -> None:
    """Answer the node's own questions, by itself."""
    await trio.sleep(SECONDS)


async def _ask(host: Host, victim: str, request: Message) -> None:
    stream = await host.open_stream(victim, _KAD)
    frames = hostile.frames_of(stream)
    await frames.send([request.SerializeToString()], 30)
    await frames.receive(30, 30)
    await stream.reset()


async def _answer(stream: PeerStream) -> None:
    frames = hostile.frames_of(stream)
    with hostile.cut_off():
        while (asked := await frames.receive(60)) is not None:
            request = Message.FromString(asked)
            answer = Message(type=request.type, key=request.key)
            for _ in range(MAX_ANSWER // 250 // 5 - 1):
                named = ID(bytes([0, 36, 8, 1, 18, 32]) + os.urandom(32)).to_bytes()
                answer.providerPeers.add(id=named, addrs=_names(1_000))
            await frames.send([answer.SerializeToString()], 30)


async def _idle(stream: PeerStream) -> None:
    while await stream.receive_some(65_536):
        pass


_PROGRAMS: Final[tuple[_Program, ...]] = (_pushes, _signed_records, _announcements, _answers)


async def _run(address: str, program: _Program) -> None:
    async def peer() -> None:
        with hostile.cut_off():
            async with hostile.new_host(address) as host, trio.open_nursery() as nursery:
                handlers: dict[str, Any] = {_KAD: _answer, RECON_1_2.id: _idle}
                for protocol, handler in handlers.items():
                    host.handle(protocol, handler)
                for _ in range(_STREAMS):
                    nursery.start_soon(hostile.again, program, host, hostile.peer_id(address))

    await hostile.at_once(SECONDS, _HOSTS, peer)


@attack(flags=lambda: ("--discovery",))
def addresses_without_end(here: Field) -> None:
    """Each address that a peer names, of itself or others, takes a millisecond to be checked."""
    for program in _PROGRAMS:
        with here.attacked():
            hostile.attack_node(here, SECONDS, _run, program)
