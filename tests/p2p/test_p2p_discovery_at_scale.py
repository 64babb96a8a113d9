"""Discovery in a network of many nodes, over a model of Kademlia, under a virtual clock."""

import hashlib
import random
from collections.abc import Collection, Sequence
from statistics import mean

import trio
from p2p_support import NETWORK

from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import ENOUGH_OTHERS, ENOUGH_SHARING, Candidates
from recon_node.p2p.peers.dht import CLOSEST, FoundProvider
from recon_node.p2p.peers.dht_server import PROVIDERS_ANSWERED, ProviderRecords
from recon_node.p2p.peers.discovery import Discovery
from recon_node.p2p.transport.host import Host
from recon_node.store import Interest

NODES, MODELS, LIKES = 36, 7, 1
"""So each model has about five nodes."""
SECONDS = 16.0


class World:
    """All nodes. Walks through the DHT lead to the closest peers that are alive."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: dict[str, Node] = {}
        self.messages = 0

    def closest(self, key: bytes) -> list[str]:
        place = _place(key)
        alive = [node for node in self.nodes.values() if node.is_alive]
        alive.sort(key=lambda node: node.place ^ place)
        return [node.peer_id for node in alive[:CLOSEST]]


class Node:
    """A node: the production code of discovery, over a host and a DHT of a few lines."""

    elsewhere = Host.elsewhere

    def __init__(self, world: World, number: int, sort_values: Sequence[str]) -> None:
        self.world = world
        self.random = random.Random(f"{world.random.random()}")
        self.peer_id = f"node {number}"
        self.place = _place(self.peer_id.encode())
        self.source = f"192.0.2.{number}" if number < 256 else f"198.51.100.{number - 256}"
        self.addresses = [f"/ip4/{self.source}/tcp/4101"]
        self.is_alive = True
        self.connected: dict[str, None] = {}
        self.records = ProviderRecords()
        self.changed = trio.Event()
        self.want(*sort_values)
        self.book = PeerBook(1000, self.random)
        self.candidates = Candidates(self, self.book, self, lambda peer, sort_value: None, 200)
        self.discovery = Discovery(
            lambda: self,
            NETWORK,
            self,
            600,
            self.found,
            self.random,
            self.candidates.has_enough,
            self.candidates.has_some,
        )
        world.nodes[self.peer_id] = self

    def connected_peers(self) -> list[str]:
        return [peer for peer in self.connected if self.world.nodes[peer].is_alive]

    def found(self, peer_id: str, addresses: Sequence[str], sort_value: str | None = None) -> None:
        if self.candidates.found(peer_id, addresses, sort_value):
            self.dial(peer_id)

    def dial(self, peer_id: str) -> None:
        if self.world.nodes[peer_id].is_alive:
            self.connected[peer_id] = self.world.nodes[peer_id].connected[self.peer_id] = None

    async def wait_for_change(self, known: Sequence[Interest]) -> None:
        while self.all == tuple(known):
            await self.changed.wait()

    def want(self, *sort_values: str) -> None:
        self.all = tuple(Interest("family", sort_value) for sort_value in sort_values)
        self.sort_values = frozenset(sort_values)
        self.changed.set()
        self.changed = trio.Event()

    # What follows is the DHT.

    async def run(self) -> None:
        await trio.sleep_forever()

    async def admit(self, peer_id: str) -> bool:
        await trio.lowlevel.checkpoint()
        return True

    near = connected_peers

    async def closest(self, key: bytes) -> list[str]:
        await trio.sleep(0.5 + self.random.random())
        return [peer for peer in self.world.closest(key) if peer != self.peer_id]

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[FoundProvider]]:
        await trio.sleep(0.05 + 0.1 * self.random.random())
        peer = self.world.nodes[peer_id]
        if not peer.is_alive:
            raise PeerError("it is dead")
        self.world.messages += 1
        for key in announce:
            addresses = [address.encode() for address in self.addresses]
            peer.records.add(key, self.peer_id, addresses, self.source, trio.current_time())
        return {key: peer.told(key) for key in ask}

    def told(self, key: bytes) -> list[FoundProvider]:
        known = self.known_providers(key)
        return self.random.sample(known, min(len(known), PROVIDERS_ANSWERED))

    def provide(self, keys: Collection[bytes]) -> None:
        pass

    def known_providers(self, key: bytes) -> list[FoundProvider]:
        return [
            FoundProvider(
                provider.peer_id, tuple(address.decode() for address in provider.addresses)
            )
            for provider in self.records.providers(key, trio.current_time())
            if self.world.nodes[provider.peer_id].is_alive
        ]

    def sharing(self) -> set[str]:
        """Everybody else who is alive and likes something that this node likes."""
        likes = {interest.sort_value for interest in self.all}
        others = [node for node in self.world.nodes.values() if node.is_alive and node is not self]
        return {node.peer_id for node in others if likes & {liked.sort_value for liked in node.all}}

    def has_met_enough(self) -> bool:
        met = set(self.connected_peers()) & self.sharing()
        return len(met) >= min(len(self.sharing()), ENOUGH_SHARING)


def _place(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest(), "big")


async def test_nodes_meet_those_who_share_an_interest_without_meeting_everyone(autojump_clock):
    world = World(seed=1)
    async with trio.open_nursery() as nursery:

        def start(node: Node, by: Node) -> None:
            node.dial(by.peer_id)
            nursery.start_soon(node.discovery.run)

        for number in range(NODES):
            likes = world.random.sample([f"model {number}" for number in range(MODELS)], LIKES)
            node = Node(world, number, likes if number else [])
            start(node, world.nodes["node 0"])
        await trio.sleep(SECONDS)
        first, *others = world.nodes.values()
        strangers = []
        for node in others:
            assert node.has_met_enough()
            strangers.append(len(set(node.connected_peers()) - node.sharing()))
            [_, report] = node.discovery.reports()
            assert report.sort_value == node.all[0].sort_value
            assert report.found >= min(len(node.sharing()), ENOUGH_SHARING)
        assert mean(strangers) <= 2 * ENOUGH_OTHERS + 1  # half of them have dialled this node

        first.is_alive = False  # the only one that everybody knew at the start
        changed = others[7]
        changed.want("model 3")
        await trio.sleep(SECONDS)
        assert changed.has_met_enough()
        last = Node(world, NODES, ["model 5"])
        start(last, others[-1])
        await trio.sleep(SECONDS)
        assert last.has_met_enough()
        assert len(set(last.connected_peers()) - last.sharing()) <= ENOUGH_OTHERS + 2
        nursery.cancel_scope.cancel()
