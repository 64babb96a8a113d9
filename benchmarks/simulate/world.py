"""A network of simulated nodes, and how far events have spread in it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

import trio
from libp2p.peer.id import ID

from benchmarks.simulate.bad import KINDS, LyingStore, be_silent, flood
from benchmarks.simulate.dht import SimulatedDht
from benchmarks.simulate.host import DHT_TRAFFIC, DIALS, PINGS, SimulatedHost
from benchmarks.simulate.store import NETWORK, Library, MemoryStore
from benchmarks.simulate.wire import Place, Wire
from recon_node.ceramic import EventId, Shard
from recon_node.p2p import P2P, P2PSettings
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.dht import LibraryDht
from recon_node.p2p.peers.dht_server import ProviderRecords
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL
from recon_node.p2p.peers.schedule import network_rendezvous
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.transport.host import Host
from recon_node.recon import VERSIONS, Version, intersect_ranges
from recon_node.store import Store

RECON: Final = "recon"
EVENTS: Final = "events"
KINDS_OF_TRAFFIC: Final = {
    **{version.id: RECON for version in VERSIONS},
    EVENTS_PROTOCOL: EVENTS,
    EVENTS_BY_ID_PROTOCOL: EVENTS,
    INTERESTS_PROTOCOL: "gossip",
    DHT_TRAFFIC: "dht",
    DIALS: "dials",
    PINGS: "pings",
}
"""What bytes are for, by protocol."""
MEGABIT: Final = 1_000_000 / 8
_LONG: Final = 1 << 30
"""No message is so long."""
ALL_RECORDS: Final = 1_000_000
"""Maximum provider records of the whole DHT."""
_KEY_HEAD: Final = b"\x00\x24\x08\x01\x12\x20"
"""What the peer id of an Ed25519 key starts with."""


def simulated_settings() -> P2PSettings:
    """Return the default settings of a node, but without worker threads, which take real time."""
    return P2PSettings(long_message=_LONG)


@dataclass(frozen=True)
class Plan:
    """What network to simulate."""

    nodes: int = 100
    seed: int = 1
    events: int = 500
    """That all nodes hold at the start, as far as they are interested."""
    models: int = 100
    interests: int = 0
    """Models that each node is interested in; 0: all of the network."""
    shards: tuple[int, ...] = ()
    """Into how many shards the nodes cut the models of their interests, in turn: with 4 and 5, half
    of the nodes have a quarter, and half a fifth. Empty: they want whole models."""
    meet_by_shard: bool = False
    """Whether a shard has a rendezvous of its own in the DHT, and not its model's."""
    bad: float = 0.0
    """The share of nodes that misbehave, a third of them each way."""
    loss: float = 0.0
    """The probability that a segment is lost."""
    bandwidth: float = 20 * MEGABIT
    """Bytes a second that a node can send."""
    version: str | None = None
    """The version of recon that all nodes speak, such as 1.0.0; by default all of them."""
    settings: P2PSettings = field(default_factory=simulated_settings)

    @property
    def versions(self) -> tuple[Version[Any], ...]:
        """The versions that each node speaks, best first."""
        if self.version is None:
            return VERSIONS
        return (version_names()[self.version],)


def version_names() -> dict[str, Version[Any]]:
    """Return the versions of recon by their number, the best first."""
    return {version.id.rpartition("/")[2]: version for version in VERSIONS}


@dataclass(eq=False, slots=True)
class Spread:
    """How far an event has spread among the honest nodes that want it."""

    started: float
    missing: set[int]
    """The nodes that it has not reached."""
    times: list[float] = field(default_factory=list)
    """Seconds after which it reached each node."""
    hops: list[int] = field(default_factory=list)
    """Pushes or syncs that it took to reach each node."""
    done: trio.Event = field(default_factory=trio.Event)


class World:
    """A network. Start its nodes, then write events and watch."""

    def __init__(self, plan: Plan, nursery: trio.Nursery) -> None:
        self.plan = plan
        self._random = random.Random(plan.seed)
        self._nursery = nursery
        self.wire = Wire(plan.loss, random.Random(plan.seed))
        self.library = Library(plan.models, self._random)
        self.records = ProviderRecords(max_records=ALL_RECORDS)
        self.hosts: dict[str, SimulatedHost] = {}
        self.spreads: dict[EventId, Spread] = {}
        keys = [self.library.make() for _ in range(plan.events)]
        bad = self._random.sample(range(plan.nodes), round(plan.nodes * plan.bad))
        kinds = {number: KINDS[at % len(KINDS)] for at, number in enumerate(bad)}
        self.nodes = [
            Node(self, number, kinds.get(number), keys, self._random)
            for number in range(plan.nodes)
        ]
        self.honest = [node for node in self.nodes if node.kind is None]
        nursery.start_soon(self.wire.run)

    def start(self, nodes: Iterable[Node]) -> None:
        """Start nodes."""
        for node in nodes:
            self._nursery.start_soon(node.run)

    def write(self, node: Node, model: int | None = None) -> Spread:
        """Write an event at a node; return how it spreads from there."""
        key = self.library.make(model)
        while self.plan.shards and not node.store.wants(key):
            key = self.library.make(model)
        wanting = {node.number for node in self.honest if node.store.wants(key)}
        spread = Spread(trio.current_time(), wanting - {node.number})
        self.spreads[key] = spread
        if not spread.missing:
            spread.done.set()
        node.store.write(key)
        return spread

    def arrived(self, number: int, key: EventId, hops: int) -> None:
        """Note that an event has reached a node."""
        spread = self.spreads.get(key)
        if spread is not None and number in spread.missing:
            spread.missing.discard(number)
            spread.times.append(trio.current_time() - spread.started)
            spread.hops.append(hops)
            if not spread.missing:
                spread.done.set()

    def partition(self, nodes: Sequence[Node]) -> None:
        """Cut some nodes off from all others; none: end the partition."""
        self.wire.cut_off([node.host.place for node in nodes])
        for node in self.nodes:
            node.host.notice_partition()

    def sent(self) -> Counter[str]:
        """Return the bytes that honest nodes have sent, by what they are for."""
        sent = Counter(dict.fromkeys(KINDS_OF_TRAFFIC.values(), 0))
        for node in self.honest:
            node.host.count_pings()
            for protocol, size in node.host.traffic.items():
                if protocol in KINDS_OF_TRAFFIC:
                    sent[KINDS_OF_TRAFFIC[protocol]] += size
        return sent

    def sessions(self) -> int:
        """Return how many recon sessions honest nodes have started."""
        return sum(
            took.count
            for node in self.honest
            if node.p2p
            for (role, _), took in node.p2p.counters.durations.items()
            if role == "initiator"
        )

    def sharing(self) -> list[int]:
        """Return with how many peers each honest node is connected that want some of the same."""
        by_id = {node.host.peer_id: node.store.wanted.ranges for node in self.nodes}
        return [
            sum(
                bool(intersect_ranges(by_id[node.host.peer_id], by_id[peer]))
                for peer in node.host.connected_peers()
            )
            for node in self.honest
        ]

    def connections(self) -> list[int]:
        """Return how many peers each honest node is connected with."""
        return [len(node.host.connected_peers()) for node in self.honest]


class Node:
    """One node. Its events and its peer book survive a stop."""

    def __init__(
        self,
        world: World,
        number: int,
        kind: str | None,
        keys: Sequence[EventId],
        rng: random.Random,
    ) -> None:
        plan = world.plan
        self.number = number
        self.kind = kind
        """How it misbehaves; None: it does not."""
        self._world = world
        self._random = random.Random(rng.random())
        models = rng.sample(range(plan.models), plan.interests)
        self.models = models or list(range(plan.models))
        """The models that it is interested in."""
        shard = None
        if plan.shards:
            of = plan.shards[number % len(plan.shards)]
            shard = Shard.of(rng.randrange(of) + 1, of)
        self._meeting = str(shard).encode() if plan.meet_by_shard else b""
        interests = [world.library.interest(model, shard) for model in models]
        arrived = partial(world.arrived, number)
        self.store = MemoryStore(world.library, interests, arrived)
        if kind == "lying":
            self.store = LyingStore(world.library, arrived)
        self.store.load(keys)
        self.host = SimulatedHost(
            world.wire,
            Place.at_random(number, plan.bandwidth, rng),
            ID(_KEY_HEAD + rng.randbytes(32)).to_base58(),
            world.hosts,
            plan.settings,
            self._random,
        )
        self.settings = plan.settings
        self.p2p: P2P | None = None
        """Its network side, once it was started."""
        self.book = PeerBook(plan.settings.max_known_peers, self._random)
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self._stopped.set()

    async def run(self) -> None:
        """Run until stopped."""
        await self._stopped.wait()
        self._stopped = trio.Event()
        try:
            with trio.CancelScope() as self._scope:
                async with trio.open_nursery() as nursery:
                    self.host.start(nursery)
                    await self._live(nursery)
        finally:
            self.host.stop()
            self._stopped.set()

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return not self._stopped.is_set()

    def stop(self) -> None:
        """Stop; `run` starts it again."""
        self._scope.cancel()

    async def _live(self, nursery: trio.Nursery) -> None:
        plan, world = self._world.plan, self._world
        dht = SimulatedDht(world.records, self.host, plan.nodes, self._random, self._meeting)
        if self.kind == "silent":
            dht.announce([network_rendezvous(NETWORK).key])
            await be_silent(self.host, plan.versions)
        host, store = cast(Host, self.host), cast(Store, self.store)
        save = trio.lowlevel.checkpoint  # nothing outlives the simulation
        self.p2p = p2p = P2P(host, store, self.book, self.settings, plan.versions, nursery, save)
        p2p.discover_by(lambda: cast(LibraryDht, dht), self._random)
        if isinstance(self.store, LyingStore):
            await self.store.lie()
        if self.kind == "flooding":
            await flood(self.host, plan.versions, self._random)
        await trio.sleep_forever()
