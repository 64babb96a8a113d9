"""Nodes that misbehave. They are found like all others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import trio

from benchmarks.simulate.host import SimulatedHost
from benchmarks.simulate.store import Library, MemoryStore
from recon_node.ceramic import EventId
from recon_node.ipld import encode_varint
from recon_node.p2p import PeerError
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.transport.framing import PeerStream
from recon_node.recon import Version

KINDS: Final = ("silent", "lying", "flooding")
LIE_EVERY: Final = 10.0
"""Seconds until a lying node makes up another key."""
FLOOD_EVERY: Final = 1.0
"""Seconds until a flooding node sends garbage to all its peers again."""
GARBAGE: Final = 64 * 1024
"""Bytes of a frame of it."""


async def be_silent(host: SimulatedHost, versions: tuple[Version[Any], ...]) -> None:
    """Accept connections and streams, and never say anything."""

    async def wait(stream: PeerStream) -> None:
        await trio.sleep_forever()

    for protocol in (*(version.id for version in versions), EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL):
        host.handle(protocol, wait)
    await trio.sleep_forever()


class LyingStore(MemoryStore):
    """Lists keys of events that do not exist, and delivers others for half of them."""

    def __init__(self, library: Library, on_arrival: Callable[[EventId, int], None]) -> None:
        super().__init__(library, (), on_arrival)

    async def lie(self) -> None:
        """Make up keys until cancelled."""
        while True:
            self.add_unseen(self._library.make_up_key())
            await trio.sleep(LIE_EVERY)

    def _car(self, key: EventId) -> bytes | None:
        if key in self._library.cars or key[-1] % 2:
            return super()._car(key)
        other = next(iter(self._library.cars.values()))
        return other.replace(next(iter(self._library.cars)).event_cid, key.event_cid) + b"\0"


async def flood(
    host: SimulatedHost, versions: tuple[Version[Any], ...], rng: random.Random
) -> None:
    """Send garbage to all peers, on stream after stream."""

    async def pour(peer_id: str) -> None:
        try:
            stream = await host.open_stream(peer_id, *(version.id for version in versions))
            await stream.send_all(encode_varint(GARBAGE) + rng.randbytes(GARBAGE))
            await stream.aclose()
        except (PeerError, trio.BrokenResourceError):
            return

    async with trio.open_nursery() as nursery:
        while True:
            for peer_id in host.connected_peers():
                nursery.start_soon(pour, peer_id)
            await trio.sleep(FLOOD_EVERY)
