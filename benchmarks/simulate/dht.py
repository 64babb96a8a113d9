"""The DHT of a simulation: all records in one place.

Nodes run the production discovery over it: what they announce and look up and when, and whom of
those found they dial. Every walk through the DHT leads to one server that is never down, and takes
a moment, as its answers do.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final

import trio

from benchmarks.simulate.host import SimulatedHost
from recon_node.p2p.peers.dht import Found
from recon_node.p2p.peers.dht_server import MAX_TOLD
from recon_node.p2p.peers.provider_records import ProviderRecords

THE_SERVER: Final = "the server of the DHT"
"""The peer id of the one that has all records."""
WALK: Final = 1.0
"""Seconds that a walk through the DHT takes at most."""
ANSWER: Final = 0.2
"""Seconds that an answer takes at most."""


class SimulatedDht:
    """A node's part in the DHT; the class `recon_node.p2p.peers.dht.Dht` describes it.

    Args:
        records: of all nodes.
        host: of this node.
        rng: draws from answers, and how long they take.
    """

    def __init__(self, records: ProviderRecords, host: SimulatedHost, rng: random.Random) -> None:
        self._records = records
        self._host = host
        self._random = rng

    @property
    def peer_id(self) -> str:
        return self._host.peer_id

    @property
    def records_kept(self) -> int:
        return 0

    async def run(self) -> None:
        await trio.sleep_forever()

    async def admit(self, peer_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        return False  # the server knows more than any peer that joins

    def near(self) -> list[str]:
        return [THE_SERVER]

    async def closest(self, key: bytes) -> list[str]:
        await trio.sleep(WALK * self._random.random())
        return [THE_SERVER]

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[Found]]:
        await trio.sleep(ANSWER * self._random.random())
        self.announce(announce)
        return {key: self._answer(key) for key in ask}

    def announce(self, keys: Sequence[bytes]) -> None:
        """Add records of this node."""
        addresses = [each.encode() for each in self._host.addresses]
        for key in keys:  # the source is a made-up address, so that each node has its own
            source = self._host.peer_id
            self._records.add(key, self._host.peer_id, addresses, source, trio.current_time())

    def provide(self, keys: Collection[bytes]) -> None:
        """Nobody asks this node."""

    def known_providers(self, key: bytes) -> list[Found]:
        return []

    def _answer(self, key: bytes) -> list[Found]:
        known = self._records.providers(key, trio.current_time())
        return [
            Found(each.peer_id, tuple(address.decode() for address in each.addresses))
            for each in self._random.sample(known, min(len(known), MAX_TOLD))
        ]
