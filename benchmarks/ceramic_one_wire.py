"""How close the simulated wire of ceramic-one is to that of a real node.

The same initiator, the simulated one, reconciles the same keys with the simulated responder and
with a node. It lacks some of the keys and has no others, so that only the responder sends values.
Compared are the messages other than values, both ways, and their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair

from benchmarks import ceramic_one_simulated as simulation
from benchmarks.report import Row
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.rings import MODEL_RING
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.host import open_host
from recon_node.recon import KeyRange, KeyStore
from recon_node.recon.actions import Value
from recon_node.recon.ring.ring_codec import (
    Decoder,
    InterestResponse,
    KeyForm,
    RangeResponse,
)
from recon_node.recon.ring.ring_codec import Message as RealMessage

DIFFERENCES: Final = (0, 1, 10, 100)
LIMIT: Final = 300.0
"""Seconds in which a node must have answered everything."""


@dataclass(slots=True)
class _Talk:
    """What passed between an initiator and a responder, without values."""

    sent: list[bytes]
    received: list[bytes]

    def row(self, system: str, keys: int, differences: int) -> Row:
        return {
            "system": system,
            "keys": keys,
            "differences": differences,
            "messages": len(self.sent) + len(self.received),
            "bytes_sent": sum(map(len, self.sent)),
            "bytes_received": sum(map(len, self.received)),
        }


def compare(address: str, interest: KeyRange, keys: Sequence[bytes]) -> list[Row]:
    """Return a row for the simulated and one for the real node, for each number of differences.

    Args:
        address: a multiaddr of the node, with its peer ID.
        interest: the range of keys to reconcile.
        keys: those that the node has in it, ascending.
    """
    rows = []
    for differences in DIFFERENCES:
        step = max(1, len(keys) // max(1, differences))
        lacking = set(keys[::step][:differences])
        here = [key for key in keys if key not in lacking]
        simulated = _talk_to_simulation(here, keys, interest)
        real = trio.run(_talk_to_node, address, here, interest)
        rows += [
            simulated.row("ceramic-one (simulated)", len(keys), differences),
            real.row("ceramic-one", len(keys), differences),
        ]
    return rows


def _talk_to_simulation(here: Sequence[bytes], there: Sequence[bytes], interest: KeyRange) -> _Talk:
    size = len(there[0])
    asking = simulation.Initiator(KeyStore(here), interest, size)
    answering = simulation.Responder(KeyStore(there), size)
    talk = _Talk([], [])
    requests = asking.start()
    while requests:
        talk.sent += map(simulation.encode, requests)
        answers = [answer for request in requests for answer in answering.receive(request)]
        talk.received += (simulation.encode(answer) for answer in answers if answer[0] != "Value")
        requests = [request for answer in answers for request in asking.receive(answer)]
    return talk


async def _talk_to_node(address: str, here: Sequence[bytes], interest: KeyRange) -> _Talk:
    settings = replace(P2PSettings(), listen=("/ip4/127.0.0.1/tcp/0",))
    asking = simulation.Initiator(KeyStore(here), interest, len(here[0]))
    with trio.fail_after(LIMIT):
        async with open_host(settings, create_new_key_pair()) as host:
            peer = await host.connect(address)
            stream = await host.open_stream(peer, MODEL_RING)
            talk = await _talk(asking, stream)
            await stream.aclose()
            return talk


async def _talk(asking: simulation.Initiator, stream: PeerStream) -> _Talk:
    decoder = Decoder(KeyForm.BYTES, from_initiator=False)
    talk = _Talk([], [])

    async def send(messages: Sequence[simulation.Message]) -> None:
        for data in map(simulation.encode, messages):
            talk.sent.append(data)
            await stream.send_all(data)

    await send(asking.start())
    while not asking.done:
        for real in decoder.feed(await stream.receive_some(64 * 1024)):
            message = _as_simulated(real)
            if not isinstance(real, Value):
                talk.received.append(simulation.encode(message))
            await send(asking.receive(message))
    return talk


def _as_simulated(message: RealMessage) -> simulation.Message:
    """Return a node's message as the simulation has it; both are written in the same bytes."""
    if isinstance(message, InterestResponse):
        return "InterestResponse", [
            {"start": first, "end": last} for first, last in message.interests
        ]
    if isinstance(message, RangeResponse):
        ranges = [
            simulation.Range(range_.first, range_.summary.hash, range_.summary.count, range_.last)
            for range_ in message.ranges
        ]
        return "RangeResponse", ranges
    assert isinstance(message, Value)
    return "Value", {"key": message.key, "value": message.value}
