"""Attacks by peers that take part in the protocol, and lie in it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final

import trio
from nacl.signing import SigningKey

from benchmarks.attack import hostile
from benchmarks.attack.catalogue import attack
from benchmarks.attack.field import Field, document_id, make_model, updated
from recon_node.ceramic import EventId
from recon_node.ceramic.builder import init_event
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL, NOTHING_KNOWN, state
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host
from recon_node.recon import RECON_1_2
from recon_node.recon.coded.messages import END, KEYS, RANGE_DIGEST_SIZE, Gaps, Message

SECONDS: Final = 10.0
"""How long they lie."""
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


async def _liar(address: str, events: dict[EventId, bytes]) -> None:
    """Sync for a while; each time with other events under the keys, and with ends that differ."""
    kind = _LIES[0]
    victim = hostile.peer_id(address)

    async def read(wanted: Sequence[EventId]) -> list[bytes | None]:
        return _lie(kind, [events.get(key) for key in wanted])

    async def reconcile(host: Host) -> None:
        await hostile.sync(host, victim, events, lies=True)

    async def contradict(host: Host) -> None:
        """A list of keys, and an end that is that of other keys."""
        stream = await host.open_stream(victim, RECON_1_2.id)
        frames = hostile.frames_of(stream)
        for _ in range(100):
            keys = tuple(sorted(random.sample(sorted(events), 100)))
            message = Message(
                hostile.WHOLE, Gaps([END], [KEYS], [keys]), digest=os.urandom(RANGE_DIGEST_SIZE)
            )
            await frames.send([RECON_1_2.encode(message)], 10)
            await frames.receive(20, 20)

    async def announce(host: Host) -> None:
        """Interests that change with each statement."""
        stream = await host.open_stream(victim, INTERESTS_PROTOCOL)
        frames = FrameStream(stream, 0, account=stream.account)
        for number in range(20):
            ranges = [hostile.WHOLE] if number % 2 else []
            await frames.send([state(hostile.NETWORK, ranges, NOTHING_KNOWN).encode()], 5)

    async def lie_in_turn() -> None:
        nonlocal kind
        for lie in _LIES:
            kind = lie
            with hostile.cut_off():
                async with hostile.new_host(address) as host:
                    hostile.serve(host, events, read)
                    await trio.sleep(0.3)
                    for step in (announce, reconcile, contradict):
                        with hostile.cut_off(), trio.move_on_after(3):
                            await step(host)

    await hostile.at_once(SECONDS, 4, hostile.again, lie_in_turn)


@attack()
def liars(here: Field) -> None:
    """Peers send truncated, other, repeated and no events under the keys of an owner's, and ends of
    sessions that contradict what they list; the events never get in, or the stream changes."""
    owner = SigningKey.generate()
    model, model_id = make_model(owner)
    init = init_event(owner, model_id, {"a": "v0"}, unique=b"u")
    chain = updated(owner, init, 199)
    assert init.header is not None
    events = {
        event.event_id(hostile.NETWORK, init.header, height): event.car
        for height, event in enumerate(chain)
    }
    with here.attacked():
        hostile.attack_node(here, SECONDS, _liar, events)
        here.add([model, *chain])
        here.at_most("the owner's events", here.await_event(chain[-1]), 5.0)
    here.expect("the owner's stream", {"a": "v199"}, here.content(document_id(init)))
    shown = here.get(f"/ceramic/streams/{document_id(init)}/events").json()["events"]
    here.expect("its events", len(chain), sum(event["state"] == "delivered" for event in shown))
