"""Attacks by peers that take part in the protocol, and lie in it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, Final

import trio
from nacl.signing import SigningKey

from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field, document_id, make_model
from benchmarks.attack.hostile import (
    NETWORK,
    WHOLE,
    attacker,
    cut_off,
    hostile_host,
    peer_id,
)
from recon_node.ceramic import EventId
from recon_node.ceramic.builder import data_event, init_event
from recon_node.p2p import P2PSettings
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL, NOTHING_KNOWN, state
from recon_node.p2p.sync.event_server import serve_events
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.sync.reconciler import FrameWire
from recon_node.p2p.sync.sessions import Tally, converse
from recon_node.p2p.transport.framing import FrameStream, PeerStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import (
    RECON_1_2,
    Failed,
    Fetch,
    FetchById,
    KeyStore,
    Side,
    SoughtIds,
    id_of,
)
from recon_node.recon.actions import Admit
from recon_node.recon.coded.messages import END, KEYS, RANGE_DIGEST_SIZE, Gaps, Message

SECONDS: Final = 10.0
"""How long they lie."""
_SETTINGS: Final = P2PSettings()
_LIES: Final = ("truncated", "another", "reversed", "repeated", "none", "empty", "long")


def _lie(kind: str, cars: Sequence[bytes | None]) -> list[bytes | None]:
    """What is sent in place of some events."""
    real = [car for car in cars if car is not None]
    if kind == "truncated":
        return [car and car[: random.randrange(len(car))] for car in cars]
    if kind == "another":
        return [real[(number + 1) % len(real)] if real else None for number in range(len(cars))]
    if kind == "reversed":
        return [*cars][::-1]
    if kind == "repeated":
        return [real[0] if real else None] * len(cars)
    if kind == "empty":
        return [b""] * len(cars)
    if kind == "long":
        return [car and car + os.urandom(900_000) for car in cars]
    return [None] * len(cars)


class _Fetched:
    """Fetches nothing, and says that all is here."""

    def __init__(self) -> None:
        self.tally = Tally()

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        return None


async def _liar(address: str, events: dict[EventId, bytes]) -> None:
    """Sync for a while; each time with other events under the keys, and with ends that differ."""
    names = {id_of(key): key for key in events}
    kind = _LIES[0]

    async def read(wanted: Sequence[EventId]) -> list[bytes | None]:
        return _lie(kind, [events.get(key) for key in wanted])

    async def search(wanted: SoughtIds) -> dict[EventId, bytes]:
        return {names[id_]: id_ for id_ in wanted.ids if id_ in names}

    async def serve(stream: PeerStream) -> None:
        frames = FrameStream(stream, 1 << 20, account=stream.account)
        with cut_off():
            await serve_events(frames, read, NETWORK, _SETTINGS)

    async def serve_by_id(stream: PeerStream) -> None:
        frames = FrameStream(stream, 1 << 20, account=stream.account)
        with cut_off():
            await serve_events(frames, read, NETWORK, _SETTINGS, search)

    async def sync(host: Host) -> None:
        stream = await host.open_stream(peer_id(address), RECON_1_2.id)
        side = Side(KeyStore(list(events)), [WHOLE], initiates=True)
        frames = FrameStream(stream, 1 << 20, account=stream.account)
        session = RECON_1_2.session(side)
        wire: Any = FrameWire(RECON_1_2, session, frames, _SETTINGS, trio.CapacityLimiter(1))
        await converse(session, wire, _Fetched())

    async def contradict(host: Host) -> None:
        """A list of keys, and an end that is that of other keys."""
        stream = await host.open_stream(peer_id(address), RECON_1_2.id)
        frames = FrameStream(stream, 1 << 20, account=stream.account)
        for _ in range(100):
            keys = tuple(sorted(random.sample(sorted(events), 100)))
            message = Message(
                WHOLE, Gaps([END], [KEYS], [keys]), digest=os.urandom(RANGE_DIGEST_SIZE)
            )
            await frames.send([RECON_1_2.encode(message)], 10)
            await frames.receive(20, 20)

    async def announce(host: Host) -> None:
        """Interests that change with each statement."""
        stream = await host.open_stream(peer_id(address), INTERESTS_PROTOCOL)
        frames = FrameStream(stream, 0, account=stream.account)
        for number in range(20):
            ranges = [WHOLE] if number % 2 else []
            await frames.send([state(NETWORK, ranges, NOTHING_KNOWN).encode()], 5)

    async def one() -> None:
        nonlocal kind
        while True:
            for lie in _LIES:
                kind = lie
                with cut_off():
                    async with hostile_host(address) as host:
                        host.handle(EVENTS_PROTOCOL, serve)
                        host.handle(EVENTS_BY_ID_PROTOCOL, serve_by_id)
                        await trio.sleep(0.3)
                        for step in (announce, sync, contradict):
                            with cut_off(), trio.move_on_after(3):
                                await step(host)
                await trio.sleep(0.02)

    with trio.move_on_after(SECONDS):
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(one)


@attack()
def liars(here: Field) -> None:
    """Peers send truncated, other, repeated and no events under the keys of an owner's, and ends of
    sessions that contradict what they list; the events never get in, or the stream changes."""
    owner = SigningKey.generate()
    model, model_id = make_model(owner)
    init = init_event(owner, model_id, {"a": "0"}, unique=b"u")
    chain = [init]
    for number in range(1, 200):
        patch = [{"op": "replace", "path": "/a", "value": str(number)}]
        chain.append(data_event(owner, init, [chain[-1].cid], patch))
    assert init.header is not None
    events = {
        event.event_id(NETWORK, init.header, height): event.car
        for height, event in enumerate(chain)
    }
    with here.attacked(), attacker(_liar, here.node.addresses[0], events) as process:
        process.join(SECONDS + 5)  # it takes a while to start
        here.add([model, *chain])
        here.at_most("the owner's events", here.await_event(chain[-1]), 5.0)
    here.expect("the owner's stream", {"a": "199"}, here.content(document_id(init)))
    shown = here.get(f"/ceramic/streams/{document_id(init)}/events").json()["events"]
    here.expect("its events", len(chain), sum(event["state"] == "delivered" for event in shown))
