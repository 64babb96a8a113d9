"""Finding the peers of the same Ceramic network through its own Kademlia DHT.

Every node announces itself as a provider of the network's rendezvous (CIP-124, "Peer discovery")
and looks up the other providers: often after the start, then every few minutes. The DHT's protocol
is ``/ceramic/<network>/kad/1.0.0``. A record is kept for an hour unless its node announces itself
again. The same DHT can also be spoken under libp2p's own protocol id, with nodes that know no other
(setting ``ipfs_kad``).

The library's DHT is made for content on the public network. ``ProviderRecords`` and ``NetworkDHT``
override what does not fit.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, cast

import structlog
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht import common, kad_dht, peer_routing, provider_store, value_store
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.provider_store import ProviderRecord, ProviderStore
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator
from libp2p.tools.anyio_service import background_trio_service

from recon_node.backoff import Backoff, jittered
from recon_node.ceramic import Network, rendezvous
from recon_node.p2p.peers.liveness import LivenessCheck, admit_connected_only
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.host import Host

log = structlog.get_logger(__name__)

RECORD_LIFETIME: Final = 3600.0
"""Seconds for which a provider's record is kept."""
MAX_PROVIDERS: Final = 200
"""Maximum providers of a key; the one that announced itself longest ago makes room."""
MAX_KEYS: Final = 4096
"""Maximum keys that providers are kept for."""
MAX_ADDRESSES: Final = 8
"""Maximum addresses of a provider."""
MAX_NEW: Final = 50
"""Maximum peers taken from one answer; of more, a random choice."""
MAX_REQUEST: Final = 16 * 1024
"""Maximum bytes of a request; stock accepts and keeps 4 MiB."""
MAX_ANSWER: Final = 256 * 1024
"""Maximum bytes of an answer that lists providers."""
MAX_PEERS_ANSWER: Final = 32 * 1024
"""Maximum bytes of an answer that lists the 20 closest peers."""
MAX_SERVED: Final = 32
"""Maximum streams at the same time. One more ends the oldest, so idle ones do not block others."""
MAX_SERVED_PER_PEER: Final = 4
"""Maximum streams of one peer at the same time."""
SERVE_LIMIT: Final = 30.0
"""Seconds for which a stream is served. Stock serves twelve streams, forever."""
MAX_ANNOUNCES: Final = 100
"""Maximum announcements of one peer in ten seconds; stock ignores all after the tenth."""
MAX_ASKED: Final = 40
"""Maximum connected peers that are asked for others in one round."""
ROUNDS: Final = Backoff(first=1.0, longest=60.0)
"""The waits between rounds at the start."""
FIRST_ROUNDS: Final = 7
"""Rounds until the longest of them; after that comes one every ``announce_interval``."""
PAUSE: Final = 0.1
"""The least seconds between two rounds, however many peers join."""
QUERY_LIMIT: Final = 10.0
"""Seconds in which a peer must answer a question."""
LOOKUP_LIMIT: Final = 30.0
"""Seconds in which a walk through the DHT must end."""
IPFS_KAD: Final = TProtocol("/ipfs/kad/1.0.0")
"""The protocol id that the library, rust-libp2p and the public IPFS network use."""
_PROTOCOL: Final = re.compile(r"/ceramic/([^/]+)/kad/1\.0\.0")
_SHA2_256_MULTIHASH: Final = b"\x12\x20"

Found = Callable[[str, list[str]], None]


class Discovery:
    """Announces this node and finds others.

    Connected peers are informed and asked first, and again when a peer has joined. The walk to the
    closest peers of the whole DHT runs beside that, and takes longer: it leads through peers that
    anybody may have named, and some of them do not answer or do not exist.
    """

    def __init__(
        self,
        host: Host,
        network: Network,
        announce_interval: float,
        on_found: Found,
        *,
        ipfs_kad: bool = False,
    ) -> None:
        use_protocol_of(network)
        self._protocols = (protocol_of(network), *([IPFS_KAD] if ipfs_kad else []))
        self._host = host
        self._key = rendezvous_key(network)
        self._announce_interval = announce_interval
        self._on_found = on_found
        self._dht = self._new_dht()
        self._joined = trio.Event()

    async def run(self) -> None:
        """Announce this node and look for peers until cancelled; restart the DHT when it fails."""
        while True:
            try:
                async with background_trio_service(self._dht), trio.open_nursery() as nursery:
                    nursery.start_soon(self._from_time_to_time, self._look_around)
                    nursery.start_soon(self._from_time_to_time, self._look_further)
                    nursery.start_soon(
                        LivenessCheck(
                            self._host, self._dht.routing_table, self._dht.provider_store
                        ).run
                    )
            except Exception as error:
                log.error("Peer discovery failed; restarting it", error=repr(error))
            await trio.sleep(ROUNDS.longest)
            self._dht = self._new_dht()

    def _new_dht(self) -> NetworkDHT:
        dht = NetworkDHT(self._host.libp2p, self._protocols)
        admit_connected_only(
            dht.routing_table,
            lambda peer_id: self._host.is_connected(peer_id) and self._may_speak_dht(peer_id),
        )
        return dht

    def _may_speak_dht(self, peer_id: str) -> bool:
        """Tell whether a connected peer speaks the DHT; unless it says, it may."""
        speaks = self._host.known_protocols(peer_id)
        return not speaks or not speaks.isdisjoint(self._protocols)

    async def join(self, peer_id: str) -> None:
        """Add a connected peer that has identified itself to the routing table, and look around.

        The library does not do so for a mere connection.
        """
        with trio.move_on_after(QUERY_LIMIT):
            if await self._dht.add_peer(ID.from_string(peer_id)):
                self.look_now()

    def look_now(self) -> None:
        """Start the next round now."""
        self._joined.set()
        self._joined = trio.Event()

    async def _from_time_to_time(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work at once, then after ever longer waits; start over when a peer has joined."""
        rounds = 0
        while True:
            rounds += 1
            joined = self._joined
            if self._host.connected_peers():
                await work()
            await trio.sleep(PAUSE)
            settled = rounds > FIRST_ROUNDS
            wait = self._announce_interval if settled else ROUNDS.wait(rounds)
            with trio.move_on_after(jittered(wait, random.random())):
                await joined.wait()
            if joined.is_set():
                rounds = 0

    async def _look_around(self) -> None:
        """Announce this node to connected peers, and ask them for others."""
        store = self._dht.provider_store
        near = filter(self._may_speak_dht, self._host.connected_peers())
        connected = [ID.from_string(each) for each in near]
        asked = random.sample(connected, min(len(connected), MAX_ASKED))

        async def announce(peer: ID) -> None:
            with trio.move_on_after(QUERY_LIMIT):
                await store.announce_to(peer, self._key)

        async with trio.open_nursery() as nursery:
            for peer in asked:
                nursery.start_soon(announce, peer)
        await self._ask(asked)

    async def _look_further(self) -> None:
        """Do the same with the closest peers of the whole DHT."""
        with trio.move_on_after(LOOKUP_LIMIT):
            try:
                await self._dht.provider_store.provide(self._key)
            except Exception as error:
                log.info("Cannot announce this node in the DHT", error=repr(error))
        closest: list[ID] = []
        with trio.move_on_after(LOOKUP_LIMIT):
            closest = await self._dht.peer_routing.find_closest_peers_network(self._key)
        await self._ask(closest)

    async def _ask(self, peers: Iterable[ID]) -> None:
        """Ask peers for providers. The library's own search is content with cached ones."""
        store = self._dht.provider_store

        async def ask(peer: ID) -> None:
            with trio.move_on_after(QUERY_LIMIT):
                self._report(await store.ask(peer, self._key))

        self._report(store.get_providers(self._key))
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)

    def _report(self, providers: Sequence[PeerInfo]) -> None:
        for each in random.sample(providers, min(len(providers), MAX_NEW)):
            if str(each.peer_id) != self._host.peer_id:
                self._on_found(
                    str(each.peer_id), [str(address) for address in each.addrs[:MAX_ADDRESSES]]
                )


class ProviderRecords(ProviderStore):
    """The providers of each key, with room for all nodes of a network under one key.

    Stock keeps the first 20 providers of a key for 48 hours, and any number of keys.
    """

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Add a provider. The oldest of the key makes room; a full store accepts no new key."""
        if key not in self.providers and len(self.providers) >= MAX_KEYS:
            return
        records = self.providers.setdefault(key, {})
        records.pop(str(provider.peer_id), None)
        while len(records) >= MAX_PROVIDERS:
            del records[next(iter(records))]
        few = PeerInfo(provider.peer_id, list(filter(is_dialable, provider.addrs))[:MAX_ADDRESSES])
        records[str(provider.peer_id)] = ProviderRecord(few, time.time())

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """Return the providers of a key whose records have not expired."""
        self.cleanup_expired()
        return [each.provider_info for each in self.providers.get(key, {}).values()]

    def cleanup_expired(self) -> None:
        """Remove expired records."""
        horizon = time.time() - RECORD_LIFETIME
        for key, records in list(self.providers.items()):
            kept = {peer: each for peer, each in records.items() if each.timestamp > horizon}
            if kept:
                self.providers[key] = kept
            else:
                del self.providers[key]

    async def announce_to(self, peer: ID, key: bytes) -> None:
        """Announce this node to a peer as a provider of a key."""
        await self._send_add_provider(peer, key)

    async def ask(self, peer: ID, key: bytes) -> list[PeerInfo]:
        """Ask a peer for the providers of a key."""
        providers, _ = await self._get_providers_from_peer_with_closers(peer, key)
        return providers


class NetworkDHT(KadDHT):
    """A DHT for providers only: it refuses to store values.

    Args:
        host: the library's.
        protocols: the protocol ids to serve, and to ask peers by, best first. The first one is that
            of ``use_protocol_of``.
    """

    provider_store: ProviderRecords

    def __init__(self, host: IHost, protocols: Sequence[TProtocol] = ()) -> None:
        nothing = NamespacedValidator({}, strict_validation=True)
        for protocol in protocols[1:]:
            host.set_stream_handler(protocol, self.handle_stream)
        super().__init__(
            cast(IHost, _OffersAll(host, protocols)) if protocols[1:] else host,
            DHTMode.SERVER,
            validator=nothing,
            validator_changed=True,
            strict_validation=True,
        )
        self.provider_store = ProviderRecords(host, self.peer_routing)
        self._provider_rate_max = MAX_ANNOUNCES
        self._served: dict[trio.CancelScope, ID] = {}

    async def handle_stream(self, stream: INetStream) -> None:
        """Serve a stream for a limited time; a few of one peer, and the newest of all peers."""
        peer = stream.muxed_conn.peer_id
        if list(self._served.values()).count(peer) >= MAX_SERVED_PER_PEER:
            await stream.reset()
            return
        if len(self._served) >= MAX_SERVED:
            oldest = next(iter(self._served))
            del self._served[oldest]
            oldest.cancel()
        with trio.move_on_after(SERVE_LIMIT) as scope:
            self._served[scope] = peer
            try:
                await self._do_handle_stream(stream)
            finally:
                self._served.pop(scope, None)
        if scope.cancelled_caught:
            await stream.reset()


class _OffersAll:
    """A host that opens streams of the DHT by several protocol ids: the library knows only one."""

    def __init__(self, host: IHost, protocols: Sequence[TProtocol]) -> None:
        self._host = host
        self._protocols = protocols

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    async def new_stream(self, peer_id: ID, protocols: Sequence[TProtocol]) -> INetStream:
        return await self._host.new_stream(peer_id, list(self._protocols))


def protocol_of(network: Network) -> TProtocol:
    """Return the DHT's protocol id of a Ceramic network."""
    return TProtocol(f"/ceramic/{network.name}/kad/1.0.0")


def networks_in(protocols: Iterable[str]) -> set[str]:
    """Return the names of the Ceramic networks whose DHTs are among some protocol ids."""
    return {match[1] for each in protocols if (match := _PROTOCOL.fullmatch(each))}


def use_protocol_of(network: Network) -> None:
    """Make the library's DHT use a network's own protocol id, and limit its messages.

    The library has no settings for that, so it applies to the whole process: one process is a node
    of one network.
    """
    protocol = protocol_of(network)
    modules: tuple[Any, ...] = (common, kad_dht, peer_routing, provider_store, value_store)
    for module in modules:
        module.PROTOCOL_ID = protocol
    limits: tuple[tuple[Any, int], ...] = (
        (kad_dht, MAX_REQUEST),
        (peer_routing, MAX_PEERS_ANSWER),
        (provider_store, MAX_ANSWER),
    )
    for module, limit in limits:
        module.MAX_DHT_MESSAGE_SIZE = limit


def rendezvous_key(network: Network) -> bytes:
    """Return the key that a network's nodes provide, a multihash: servers drop other long keys."""
    return _SHA2_256_MULTIHASH + hashlib.sha256(rendezvous(network)).digest()
