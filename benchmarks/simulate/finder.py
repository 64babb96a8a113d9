"""What a node finds in the DHT, without the DHT.

Nodes announce themselves under the network's rendezvous and one for each of their interests
(CIP-124, "Peer discovery"), and look up the same ones: after the start, then regularly. A record
lists the latest ``MAX_PROVIDERS`` nodes. A lookup takes a moment and always succeeds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import trio

from benchmarks.simulate.host import SimulatedHost
from recon_node.backoff import jittered
from recon_node.p2p import P2P
from recon_node.p2p.peers.discovery import FIRST_ROUNDS, MAX_PROVIDERS, ROUNDS

MAX_NEW: Final = 4
"""Maximum nodes of an answer that are passed on."""
LOOKUP: Final = 1.0
"""Seconds that announcing and looking up take."""


class Rendezvous:
    """The provider records of all keys."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, str]] = {}

    def announce(self, key: str, peer_id: str, address: str) -> None:
        """Put a node first in a record."""
        record = self._records.setdefault(key, {})
        record.pop(peer_id, None)
        record[peer_id] = address
        while len(record) > MAX_PROVIDERS:
            del record[next(iter(record))]

    def providers(self, key: str) -> list[tuple[str, str]]:
        """Return the nodes in a record, and their addresses."""
        return list(self._records.get(key, {}).items())


class SimulatedFinder:
    """Announces a node and finds others.

    Args:
        rendezvous: the records.
        keys: those of this node.
        host: of this node.
        p2p: is told of the peers that are found.
        interval: seconds between two rounds, in the long run.
        rng: draws from answers, and the times of rounds.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        keys: Sequence[str],
        host: SimulatedHost,
        p2p: P2P,
        interval: float,
        rng: random.Random,
    ) -> None:
        self._rendezvous = rendezvous
        self._keys = keys
        self._host = host
        self._p2p = p2p
        self._interval = interval
        self._random = rng

    async def run(self) -> None:
        rounds = 0
        while True:
            rounds += 1
            await trio.sleep(LOOKUP * self._random.random())
            for key in self._keys:
                self._rendezvous.announce(key, self._host.peer_id, self._host.addresses[0])
                self._report(self._rendezvous.providers(key))
            wait = self._interval if rounds > FIRST_ROUNDS else ROUNDS.wait(rounds)
            await trio.sleep(jittered(wait, self._random.random()))

    async def join(self, peer_id: str) -> None:
        """A peer that joins is found in the next round."""

    def look_now(self) -> None:
        """Addresses do not change here."""

    def _report(self, providers: list[tuple[str, str]]) -> None:
        others = [each for each in providers if each[0] != self._host.peer_id]
        for peer_id, address in self._random.sample(others, min(len(others), MAX_NEW)):
            self._p2p.found(peer_id, [address])
