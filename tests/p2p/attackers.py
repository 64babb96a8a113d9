"""Peers that try to make a node hold memory: each attack is a program over a real libp2p host.

An attack gets a host that is connected with the victim, and the victim's peer id. It returns when
it has said all that it has to say, or was cut off; what it has opened stays open with its host.
"""

import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import trio
from libp2p.identity.identify.pb.identify_pb2 import Identify
from p2p_support import NETWORK, encode_frame

from recon_node.ceramic import EventId, network_range
from recon_node.ipld import encode_varint
from recon_node.p2p.errors import PeerError
from recon_node.p2p.sync.event_stream import EVENTS_PROTOCOL
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import KeyRange
from recon_node.recon.coded import RECON_1_2
from recon_node.recon.coded.messages import MAX_BOUND, SKIP, Gaps, Message

MIB: Final = 1 << 20
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
WHOLE: Final = KeyRange(*network_range(NETWORK))
CUT_OFF: Final = (PeerError, trio.BrokenResourceError)
"""What an attacker sees when the victim has had enough of it."""

Attack = Callable[[Host, str], Awaitable[None]]


async def streams_of(host: Host, victim: str, protocol: str, count: int) -> list[PeerStream]:
    """Open as many streams as the victim allows, up to `count`."""
    streams: list[PeerStream] = []
    with suppress(*CUT_OFF):
        while len(streams) < count:
            streams.append(await host.open_stream(victim, protocol))
    return streams


async def for_each(items: list[Any], work: Callable[[Any], Awaitable[None]]) -> None:
    """Work on all items at once, until each is done or cut off."""

    async def one(item: Any) -> None:
        with suppress(*CUT_OFF):
            await work(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(one, item)


def identify_of(size: int, unique: int) -> bytes:
    """An identify message of about so many bytes that none before it had."""
    message = Identify()
    address = b"\xff" + unique.to_bytes(8, "big")
    message.listen_addrs.append(address + bytes(size // 2))
    message.protocols.extend([""] * (size // 4))
    raw: bytes = message.SerializeToString()
    return encode_varint(len(raw)) + raw


def identify_push_flood(size: int = MIB - 64, at_once: int = 16, rounds: int = 16) -> Attack:
    """Push identify messages of 1 MB, none like another, on many streams at once."""

    async def attack(host: Host, victim: str) -> None:
        unique = itertools.count()

        async def push(_: int) -> None:
            for _ in range(rounds):
                with suppress(trio.BrokenResourceError):
                    stream = await host.open_stream(victim, IDENTIFY_PUSH)
                    await stream.send_all(identify_of(size, next(unique)))
                    await stream.aclose()

        await for_each(list(range(at_once)), push)

    return attack


def identify_push_stall(size: int = MIB - 64, streams: int = 100) -> Attack:
    """Begin as many identify messages as there are streams, and finish none."""

    async def attack(host: Host, victim: str) -> None:
        async def stall(stream: PeerStream) -> None:
            await stream.send_all(identify_of(size, 0)[:-1])

        await for_each(await streams_of(host, victim, IDENTIFY_PUSH, streams), stall)

    return attack


def unread_answers(asked: EventId, streams: int = 16, requests: int = 4) -> Attack:
    """Ask for a large event a thousand times on each stream, and read nothing of the answers."""

    async def attack(host: Host, victim: str) -> None:
        async def ask(stream: PeerStream) -> None:
            for _ in range(requests):
                await stream.send_all(encode_frame(asked * 1000))

        await for_each(await streams_of(host, victim, EVENTS_PROTOCOL, streams), ask)

    return attack


def long_turn(messages: int = 6, weight: int = 15 * MIB) -> list[bytes]:
    """Frames of one turn that goes on: as much memory for as few bytes as a node takes.

    A bound of 256 bytes that shares 253 with the one before it is seven bytes on the wire.
    """
    stem = WHOLE.lower[:20] + b"\x01" + b"\x80" * (MAX_BOUND - 21 - 3)
    suffixes = (number.to_bytes(3, "big") for number in itertools.count(1))
    frames = []
    for index in range(messages):
        gaps = Gaps()
        for suffix in itertools.islice(suffixes, weight // (MAX_BOUND + 64)):
            gaps.append(stem + suffix, SKIP)
        message = Message(WHOLE if index == 0 else None, gaps, continues=True)
        frames.append(encode_frame(RECON_1_2.encode(message)))
    return frames


def turns_that_go_on(
    frames: list[bytes], protocol: str = RECON_1_2.id, sessions: int = 4
) -> Attack:
    """Begin turns, as many as a peer may have, say that they go on, and fall silent."""

    async def attack(host: Host, victim: str) -> None:
        async def go_on(stream: PeerStream) -> None:
            for frame in frames:
                await stream.send_all(frame)

        await for_each(await streams_of(host, victim, protocol, sessions), go_on)

    return attack


def half_frames(protocol: str, streams: int, size: int = MIB) -> Attack:
    """Announce frames, and send all of each but its last byte."""

    async def attack(host: Host, victim: str) -> None:
        async def send_half(stream: PeerStream) -> None:
            await stream.send_all(encode_frame(bytes(size))[:-1])

        await for_each(await streams_of(host, victim, protocol, streams), send_half)

    return attack


def ignored_flow_control(asked: EventId, streams: int = 1, size: int = 31 * MIB) -> Attack:
    """Leave an answer unread, and send far more on that stream than its window allows."""

    async def attack(host: Host, victim: str) -> None:
        async def send(stream: PeerStream) -> None:
            await stream.send_all(encode_frame(asked * 1000))
            muxed: Any = stream._stream.muxed_stream
            muxed.send_window = size
            for _ in range(size // MIB):
                await stream.send_all(bytes(MIB))

        await for_each(await streams_of(host, victim, EVENTS_PROTOCOL, streams), send)

    return attack
