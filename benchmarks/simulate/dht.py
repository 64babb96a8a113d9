"""The DHT of a simulation: all records in one place.

Nodes run the production discovery over it: what they announce and look up and when, and whom of
those found they dial. Every walk through the DHT leads to one server that is never down, and takes
a moment, as its answers do. That server stands for the closest nodes to a key, and for those on
the way to them: the bytes of all of them, requests and answers, count as the asking node's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from typing import Final

import trio

from benchmarks.simulate.host import DHT_TRAFFIC, SimulatedHost
from benchmarks.simulate.store import NETWORK
from recon_node.p2p.peers.dht import CLOSEST, FoundProvider
from recon_node.p2p.peers.dht_server import PROVIDERS_ANSWERED, ProviderRecords
from recon_node.p2p.peers.discovery import ASKED
from recon_node.p2p.peers.schedule import network_rendezvous

THE_SERVER: Final = "the server of the DHT"
"""The peer id of the one that has all records."""
WALK: Final = 1.0
"""Seconds that a walk through the DHT takes at most."""
ANSWER: Final = 0.2
"""Seconds that an answer takes at most."""
CLOSEST_TOLD: Final = 20
"""How many nodes an answer on the way names."""
ON_THE_WAY: Final = 3
"""Nodes that a walk asks at each step."""
NAMED_BYTES: Final = 60
"""Of a node in an answer, or in an announcement: its peer id, and an address."""
KEY_BYTES: Final = 40
"""Of a question: a rendezvous, and what is around it."""
_EVERYBODY: Final = network_rendezvous(NETWORK).key
MULTISTREAM_BYTES: Final = 160
"""What both sides send to open a stream and to close it."""


class SimulatedDht:
    """A node's part in the DHT; as `recon_node.p2p.peers.dht.LibraryDht` is.

    Args:
        records: of all nodes.
        host: of this node.
        nodes: how many nodes the DHT has.
        rng: draws from answers, and how long they take.
        shard: sets this node's rendezvous apart from those of other shards, but for the network's.
    """

    def __init__(
        self,
        records: ProviderRecords,
        host: SimulatedHost,
        nodes: int,
        rng: random.Random,
        shard: bytes = b"",
    ) -> None:
        self._shard = shard
        self._records = records
        self._host = host
        self._random = rng
        self._nodes = nodes

    @property
    def peer_id(self) -> str:
        return self._host.peer_id

    @property
    def records(self) -> tuple[()]:
        return ()

    async def run(self) -> None:
        await trio.sleep_forever()

    async def admit(self, peer_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        return False  # the server knows more than any peer that joins

    def near(self) -> list[str]:
        return [THE_SERVER]

    async def closest(self, key: bytes) -> list[str]:
        await trio.sleep(WALK * self._random.random())
        steps = ON_THE_WAY * math.log2(max(2.0, self._nodes / CLOSEST))
        answer = NAMED_BYTES * min(CLOSEST_TOLD, self._nodes)
        self._count(steps * (MULTISTREAM_BYTES + KEY_BYTES + answer))
        return [THE_SERVER]

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[FoundProvider]]:
        await trio.sleep(ANSWER * self._random.random())
        self.announce(announce)
        answers = {key: self._answer(key) for key in ask}
        servers = min(CLOSEST, self._nodes - 1)
        named = sum(KEY_BYTES + NAMED_BYTES * len(providers) for providers in answers.values())
        announced = len(announce) * (KEY_BYTES + NAMED_BYTES)
        self._count(servers * (MULTISTREAM_BYTES + announced) + min(ASKED, servers) * named)
        return answers

    def _count(self, size: float) -> None:
        """Count bytes, which are not sent: they do not take the line from anything else."""
        self._host.count(DHT_TRAFFIC, round(size))

    def announce(self, keys: Sequence[bytes]) -> None:
        """Add records of this node."""
        addresses = [address.encode() for address in self._host.addresses]
        for key in keys:  # the source is a made-up address, so that each node has its own
            source = self._host.peer_id
            self._records.add(
                self._place(key), self._host.peer_id, addresses, source, trio.current_time()
            )

    def provide(self, keys: Collection[bytes]) -> None:
        """Nobody asks this node."""

    def known_providers(self, key: bytes) -> list[FoundProvider]:
        return []

    def _answer(self, key: bytes) -> list[FoundProvider]:
        known = self._records.providers(self._place(key), trio.current_time())
        return [
            FoundProvider(
                provider.peer_id, tuple(address.decode() for address in provider.addresses)
            )
            for provider in self._random.sample(known, min(len(known), PROVIDERS_ANSWERED))
        ]

    def _place(self, key: bytes) -> bytes:
        """Return where the records of a rendezvous are."""
        return key if key == _EVERYBODY else key + self._shard
