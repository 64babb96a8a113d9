"""Attacks by peers that say little: one byte at a time, or nothing while they are waited for."""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from multiaddr import Multiaddr  # type: ignore[import-untyped]
from nacl.signing import SigningKey

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import NETWORK as NETWORK_NAME
from benchmarks.attack.field import Field, make_model
from recon_node.ceramic.builder import init_event
from recon_node.ipld import encode_varint
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL
from recon_node.p2p.sync.event_stream import EVENTS_PROTOCOL
from recon_node.p2p.sync.rings import MODEL_RING
from recon_node.p2p.transport.host import Host, IdentifyPushes
from recon_node.recon import RECON_1_0, RECON_1_2
from recon_node.recon.keys.ordered_keys import Summary
from recon_node.recon.keys.sha256a import ZERO
from recon_node.recon.ring.ring_codec import (
    InterestRequest,
    KeyForm,
    RangeHash,
    RangeRequest,
    encode,
)

SECONDS: Final = 6.0
"""How long each lasts."""
_OPENING: Final = b"\x13/multistream/1.0.0\n\x07/noise\n"
_PROTOCOLS: Final = (
    RECON_1_2.id,
    RECON_1_0.id,
    EVENTS_PROTOCOL,
    INTERESTS_PROTOCOL,
    MODEL_RING,
    str(IdentifyPushes.protocol),
    f"/ceramic/{NETWORK_NAME}/kad/1.0.0",
)
_Program = Callable[[str], Awaitable[None]]


async def _handshakes(address: str) -> None:
    """Negotiate and begin Noise, a byte in a packet."""
    port = int(address.split("/")[4])

    async def drip() -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for byte in _OPENING + os.urandom(500):
                await stream.send_all(bytes([byte]))
                await trio.sleep(0.01)

    await hostile.at_once(SECONDS, 150, hostile.again, drip)


async def _bytes_of_frames(address: str) -> None:
    """Begin a long message on streams of all protocols, and send it a byte in a frame."""

    async def drip(host: Host, protocol: str) -> None:
        stream: Any = await host.open_stream(hostile.peer_id(address), protocol)
        muxed = stream._stream.muxed_stream
        await stream.send_all(encode_varint(60_000))
        byte = struct.pack("!BBHII", 0, 0, 0, muxed.stream_id, 1) + b"\x00"
        for _ in range(100):
            await muxed.muxed_conn.secured_conn.write(byte * 500)
            await trio.sleep(0.05)

    await _with_hosts(address, 2, [partial(drip, protocol=protocol) for protocol in _PROTOCOLS])


async def _pushes(address: str) -> None:
    """Say again and again who this is, with all the addresses and protocols that fit."""
    message = Identify()
    for number in range(1_000):
        address_of = Multiaddr(f"/ip4/8.8.{number % 250}.{number // 250}/tcp/4101")
        message.listen_addrs.append(address_of.to_bytes())
        message.protocols.append(f"/protocol/{number}")
    raw = message.SerializeToString()
    push = encode_varint(len(raw)) + raw

    async def send(host: Host) -> None:
        stream = await host.open_stream(hostile.peer_id(address), str(IdentifyPushes.protocol))
        await stream.send_all(push)
        await stream.aclose()

    await _with_hosts(address, 4, [send] * 4)


async def _windows(address: str) -> None:
    """Ask for all events, and read none of them."""
    lower, upper = hostile.RING
    nothing = RangeHash(lower, Summary(ZERO, 0), upper)
    asked = encode(InterestRequest((hostile.RING,)), KeyForm.BYTES)
    asked += encode(RangeRequest(nothing), KeyForm.BYTES) * 10

    async def ask(host: Host) -> None:
        stream = await host.open_stream(hostile.peer_id(address), MODEL_RING)
        await stream.send_all(asked)
        await trio.sleep_forever()

    await _with_hosts(address, 16, [ask] * 4)


async def _with_hosts(
    address: str, count: int, programs: list[Callable[[Host], Awaitable[None]]]
) -> None:
    async def run() -> None:
        with hostile.cut_off():
            async with hostile.new_host(address) as host, trio.open_nursery() as nursery:
                for program in programs:
                    nursery.start_soon(hostile.again, program, host)

    await hostile.at_once(SECONDS, count, run)


_PROGRAMS: Final[tuple[_Program, ...]] = (_handshakes, _bytes_of_frames, _pushes, _windows)


@attack()
def slow_drips(here: Field) -> None:
    """Handshakes and messages a byte at a time, streams that nobody reads, and a peer that never
    ends to introduce itself."""
    key = SigningKey.generate()
    model, model_id = make_model(key)
    large = [
        init_event(key, model_id, {"a": str(number) + "z" * 100_000}, unique=bytes([number]))
        for number in range(20)
    ]
    here.add([model, *large])
    here.await_event(large[-1])
    with here.attacked():
        for program in _PROGRAMS:
            hostile.attack_node(here, SECONDS, program)
