"""Attacks by what a peer lists in a session, or names and does not send."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import trio

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field
from recon_node.ceramic import EventId
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import RECON_1_2
from recon_node.recon.coded.messages import END, KEYS, RANGE_DIGEST_SIZE, Gaps, Listed, Message
from recon_node.recon.keys.key_hashes import NO_IDS

SECONDS: Final = 10.0
"""How long each attack lasts."""
_SESSIONS: Final = 4
"""At once, of each peer: as many as a node allows."""
_IDS: Final = 130_000
"""In a message of 1 MiB."""
_KEYS: Final = 100_000
"""Front-coded, in a message of 300 KB."""


@attack()
def listed_ids(here: Field) -> None:
    """A turn names two million events that do not exist, by ids of eight bytes."""
    _list(here, _turn_of_ids, 1)


@attack()
def listed_keys(here: Field) -> None:
    """A message of 300 KB lists 100,000 keys that share all but their last bytes."""
    _list(here, _message_of_keys, 2)


def _list(here: Field, make: Callable[[], list[bytes]], peers: int) -> None:
    with here.attacked():
        hostile.attack_node(here, SECONDS, _program, make, peers)


async def _program(address: str, make: Callable[[], list[bytes]], peers: int) -> None:
    await hostile.at_once(SECONDS, peers, hostile.again, _peer, address, make())


async def _peer(address: str, turn: list[bytes]) -> None:
    async with hostile.new_host(address) as host:
        for protocol in (EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL):
            host.handle(protocol, _swallow)
        await trio.sleep(0.5)
        async with trio.open_nursery() as nursery:
            for _ in range(_SESSIONS):
                nursery.start_soon(_session, host, hostile.peer_id(address), turn)


async def _session(host: Host, victim: str, turn: list[bytes]) -> None:
    stream = await host.open_stream(victim, RECON_1_2.id)
    frames = hostile.frames_of(stream)
    try:
        await frames.send(turn, 20)
        await frames.receive(60, 60)
    finally:
        await stream.reset()


async def _swallow(stream: PeerStream) -> None:
    while await stream.receive_some(65_536):
        pass


def _turn_of_ids() -> list[bytes]:
    messages: list[Any] = []
    for number in range(16):
        is_last = number == 15
        bound = END if is_last else bytes(hostile.WHOLE.lower[:8]) + bytes([number * 8 + 1]) + b"x"
        ids = np.frombuffer(os.urandom(8 * _IDS), "<u8").astype(np.uint64)
        messages.append(
            Message(
                None if number else hostile.WHOLE,
                Gaps([bound], [KEYS], [()]),
                digest=os.urandom(RANGE_DIGEST_SIZE) if is_last else None,
                continues=not is_last,
                listed=[Listed(ids, NO_IDS)],
            )
        )
    return [RECON_1_2.encode(message) for message in messages]


def _message_of_keys() -> list[bytes]:
    head = (
        bytes(hostile.WHOLE.lower[:8]) + os.urandom(20) + b"\x05\x01\x71\x12\x20" + os.urandom(29)
    )
    keys = tuple(EventId(head + number.to_bytes(3, "big")) for number in range(_KEYS))
    gaps = Gaps([END], [KEYS], [keys])
    return [RECON_1_2.encode(Message(hostile.WHOLE, gaps, digest=os.urandom(RANGE_DIGEST_SIZE)))]
