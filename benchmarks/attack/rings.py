"""Attacks by sessions of 1.0.0 and 0.1.0, whose messages a peer writes by hand."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from functools import cache
from itertools import count, pairwise
from typing import Final

import trio

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field
from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.p2p.sync.rings import MODEL_RING
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import RECON_1_0, KeyRange, Sha256a
from recon_node.recon.actions import Value
from recon_node.recon.cip124.cip124_codec import Cip124Message
from recon_node.recon.keys.ordered_keys import Summary
from recon_node.recon.keys.sha256a import ZERO
from recon_node.recon.ring.ring_codec import (
    MAX_INTERESTS,
    MAX_VALUE,
    InterestRequest,
    KeyForm,
    Message,
    RangeHash,
    RangeRequest,
    encode,
)

SECONDS: Final = 6.0
"""How long each kind of session goes on."""
_PEERS: Final = 8
_SESSIONS: Final = 4
"""At once, of each peer: as many as a node allows."""
_BOUNDS: Final = 8_000
"""In a message of 1.0.0 of less than 1 MiB."""
_Program = Callable[[PeerStream], Awaitable[None]]


def _say(message: Message) -> bytes:
    return encode(message, KeyForm.BYTES)


_ALL: Final = _say(InterestRequest((hostile.RING,)))


@cache
def _interests() -> bytes:
    """As many interests as there may be, each of a few bytes."""
    lower = hostile.RING.lower
    bounds = [lower + number.to_bytes(3, "big") for number in range(2 * MAX_INTERESTS)]
    return _say(InterestRequest(tuple(KeyRange(*pair) for pair in list(pairwise(bounds))[::2])))


@cache
def _value_of_24s() -> bytes:
    """A value whose every byte takes two, of the kind that is the hardest to read."""
    key = EventId.build(hostile.NETWORK, "k", "c", _cid(), 0, _cid())
    return _ALL + _say(Value(key, b"\x18" * MAX_VALUE))


@cache
def _tiny_values() -> bytes:
    """Values of one byte, each under a key that nobody has asked for."""
    keys = (hostile.RING.lower + os.urandom(30) for _ in range(20_000))
    return _ALL + b"".join(_say(Value(key, b"\0")) for key in keys)


async def _many_interests(stream: PeerStream) -> None:
    await stream.send_all(_interests())


async def _values_of_24s(stream: PeerStream) -> None:
    await stream.send_all(_value_of_24s())


async def _values_of_one_byte(stream: PeerStream) -> None:
    await stream.send_all(_tiny_values())


async def _endless_ranges(stream: PeerStream) -> None:
    """Ranges that overlap, go on without end, and whose hashes never agree."""
    await stream.send_all(_ALL)
    lower, upper = hostile.RING
    for _ in range(50):
        summary = Summary(Sha256a(os.urandom(32)), 1 << 40)
        asked = _say(RangeRequest(RangeHash(lower, summary, upper)))
        none = _say(RangeRequest(RangeHash(lower, Summary(ZERO, 0), upper)))
        await stream.send_all((asked + none) * 200)


async def _hashes_that_never_agree(stream: PeerStream) -> None:
    """The whole range again and again, each time with another hash."""
    frames = hostile.frames_of(stream)
    for _ in count():
        message = Cip124Message(tuple(hostile.WHOLE), (Sha256a(os.urandom(32)),))
        await frames.send([RECON_1_0.encode(message)], 10)
        await frames.receive(20, 20)


async def _bounds_without_events(stream: PeerStream) -> None:
    """A message of keys that do not exist, between hashes that are all wrong."""
    frames = hostile.frames_of(stream)
    keys = sorted(
        EventId.build(hostile.NETWORK, str(number), "c", _cid(), 0, _cid())
        for number in range(_BOUNDS)
    )
    hashes = [Sha256a(os.urandom(32)) for _ in range(_BOUNDS + 1)]
    message = Cip124Message((hostile.WHOLE.lower, *keys, hostile.WHOLE.upper), tuple(hashes))
    await frames.send([RECON_1_0.encode(message)], 20)
    await frames.receive(20, 20)


def _cid() -> CID:
    return CID.of(0x71, os.urandom(8))


_PROGRAMS: Final[dict[str, tuple[str, _Program]]] = {
    attack.__name__: (protocol, attack)
    for protocol, attack in (
        (MODEL_RING, _many_interests),
        (MODEL_RING, _values_of_24s),
        (MODEL_RING, _values_of_one_byte),
        (MODEL_RING, _endless_ranges),
        (RECON_1_0.id, _hashes_that_never_agree),
        (RECON_1_0.id, _bounds_without_events),
    )
}


async def _run(address: str, name: str) -> None:
    protocol, program = _PROGRAMS[name]

    async def session(host: Host) -> None:
        stream = await host.open_stream(hostile.peer_id(address), protocol)
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_swallow, stream)
                await program(stream)
        await stream.reset()

    async def peer() -> None:
        async with hostile.new_host(address) as host, trio.open_nursery() as nursery:
            for _ in range(_SESSIONS):
                nursery.start_soon(hostile.again, session, host)

    with trio.move_on_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(_PEERS):
                nursery.start_soon(peer)
                await trio.sleep(0.1)


async def _swallow(stream: PeerStream) -> None:
    if stream.protocol != MODEL_RING:
        return
    with hostile.cut_off():
        while await stream.receive_some(65_536):
            pass


@attack()
def sessions_of_older_versions(here: Field) -> None:
    """Sessions of 1.0.0 and 0.1.0 whose interests, ranges, values and hashes have no end."""
    with here.attacked():
        for name in _PROGRAMS:
            hostile.attack_node(here, SECONDS, _run, name)
