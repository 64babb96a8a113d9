"""Finding the peers of the same Ceramic network through a Kademlia DHT of its own.

Every node provides, in the DHT's sense, the network's rendezvous (CIP-124, "Peer discovery"), and
looks up who else does: soon and often after the start, then every few minutes. The DHT's protocol
is ``/ceramic/<network>/kad/1.0.0``; a record is kept for an hour unless its node announces itself
again.

The library's DHT is built for content on the public network. What does not fit is overridden: see
``ProviderRecords`` and ``NetworkDHT``.
"""

from __future__ import annotations

import hashlib
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

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

from recon_node.ceramic import Network, rendezvous
from recon_node.p2p.peers.liveness import LivenessCheck, admit_connected_only
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.host import Host

log = structlog.get_logger(__name__)

RECORD_LIFETIME: Final = 3600.0
MAX_PROVIDERS: Final = 200
"""Peers kept for one key; the one that announced itself longest ago makes room."""
MAX_KEYS: Final = 4096
MAX_ADDRESSES: Final = 8
"""Addresses kept of a provider."""
MAX_NEW: Final = 50
"""Peers taken from one answer, at random where it has more."""
MAX_REQUEST: Final = 16 * 1024
"""Bytes of a request that is served; stock takes 4 MiB, and keeps all of it."""
MAX_ANSWER: Final = 256 * 1024
"""Bytes of an answer that names providers."""
MAX_PEERS_ANSWER: Final = 32 * 1024
"""Bytes of an answer that names the closest peers, 20 of them."""
MAX_SERVED: Final = 32
"""Streams served at once. One more ends the oldest, so that idle ones keep nobody out."""
MAX_SERVED_PER_PEER: Final = 4
SERVE_LIMIT: Final = 30.0
"""Seconds that a stream is served at most; stock serves twelve, without limit."""
MAX_ANNOUNCES: Final = 100
"""Announcements taken from one peer in ten seconds; stock takes ten and answers no more."""
MAX_ASKED: Final = 40
"""Connected peers that are asked for others at a time."""
FIRST_WAIT: Final = 1.0
PAUSE: Final = 0.1
"""At least so many seconds lie between two rounds, however many peers join."""
SETTLED_WAIT: Final = 60.0
QUERY_LIMIT: Final = 10.0
LOOKUP_LIMIT: Final = 30.0
_PROTOCOL: Final = re.compile(r"/ceramic/([^/]+)/kad/1\.0\.0")
_SHA2_256_MULTIHASH: Final = b"\x12\x20"

Found = Callable[[str, list[str]], None]


class Discovery:
    """Announces this node and tells of others that are found.

    The peers that we are connected with are told and asked first, and again when one has joined.
    Looking further takes its time beside that: the DHT's way to the closest peers leads through
    whatever peers anybody has named, of which some do not answer and some do not exist.
    """

    def __init__(
        self, host: Host, network: Network, announce_interval: float, on_found: Found
    ) -> None:
        use_protocol_of(network)
        self._host = host
        self._key = rendezvous_key(network)
        self._announce_interval = announce_interval
        self._on_found = on_found
        self._dht = self._new_dht()
        self._joined = trio.Event()

    async def run(self) -> None:
        """Announce and look for peers until cancelled. A failure of the DHT starts it anew."""
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
                log.error("Peer discovery failed; starting it again", error=repr(error))
            await trio.sleep(SETTLED_WAIT)
            self._dht = self._new_dht()

    def _new_dht(self) -> NetworkDHT:
        dht = NetworkDHT(self._host.libp2p)
        admit_connected_only(dht.routing_table, self._host.is_connected)
        return dht

    async def join(self, peer_id: str) -> None:
        """Take a connected peer that has told about itself into the routing table, and look around.

        A connection alone leaves the table empty.
        """
        with trio.move_on_after(QUERY_LIMIT):
            if await self._dht.add_peer(ID.from_string(peer_id)):
                self.look_now()

    def look_now(self) -> None:
        """Announce this node and look around soon, whatever the time of the next round."""
        self._joined.set()
        self._joined = trio.Event()

    async def _from_time_to_time(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work at once, and after ever longer waits; anew when a peer has joined."""
        wait = FIRST_WAIT
        while True:
            joined = self._joined
            if self._host.connected_peers():
                await work()
            await trio.sleep(PAUSE)
            with trio.move_on_after(wait * random.uniform(0.8, 1.2)):
                await joined.wait()
            if joined.is_set():
                wait = FIRST_WAIT
                continue
            settled = wait >= SETTLED_WAIT
            wait = self._announce_interval if settled else min(SETTLED_WAIT, wait * 2)

    async def _look_around(self) -> None:
        """Announce this node to the peers that we are connected with, and ask them for others."""
        store = self._dht.provider_store
        connected = [ID.from_string(each) for each in self._host.connected_peers()]
        asked = random.sample(connected, min(len(connected), MAX_ASKED))

        async def announce(peer: ID) -> None:
            with trio.move_on_after(QUERY_LIMIT):
                await store.announce_to(peer, self._key)

        async with trio.open_nursery() as nursery:
            for peer in asked:
                nursery.start_soon(announce, peer)
        await self._ask(asked)

    async def _look_further(self) -> None:
        """Do the same with the closest peers of the whole network."""
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
        """Ask peers afresh: the library's own search stops at what it has heard before."""
        store = self._dht.provider_store

        async def ask(peer: ID) -> None:
            with trio.move_on_after(QUERY_LIMIT):
                self._tell_of(await store.ask(peer, self._key))

        self._tell_of(store.get_providers(self._key))
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(ask, peer)

    def _tell_of(self, providers: Sequence[PeerInfo]) -> None:
        for each in random.sample(providers, min(len(providers), MAX_NEW)):
            if str(each.peer_id) != self._host.peer_id:
                self._on_found(
                    str(each.peer_id), [str(address) for address in each.addrs[:MAX_ADDRESSES]]
                )


class ProviderRecords(ProviderStore):
    """Who announced what. Bounded, with room for a network of nodes under one key.

    Stock keeps the first 20 providers of a key for 48 hours, and any number of keys.
    """

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Note a provider. In a full key the oldest makes room; a full store takes no new key."""
        if key not in self.providers and len(self.providers) >= MAX_KEYS:
            return
        records = self.providers.setdefault(key, {})
        records.pop(str(provider.peer_id), None)
        while len(records) >= MAX_PROVIDERS:
            del records[next(iter(records))]
        few = PeerInfo(provider.peer_id, list(filter(is_dialable, provider.addrs))[:MAX_ADDRESSES])
        records[str(provider.peer_id)] = ProviderRecord(few, time.time())

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """Return the providers that announced themselves within the lifetime of a record."""
        self.cleanup_expired()
        return [each.provider_info for each in self.providers.get(key, {}).values()]

    def cleanup_expired(self) -> None:
        """Forget old records."""
        horizon = time.time() - RECORD_LIFETIME
        for key, records in list(self.providers.items()):
            kept = {peer: each for peer, each in records.items() if each.timestamp > horizon}
            if kept:
                self.providers[key] = kept
            else:
                del self.providers[key]

    async def announce_to(self, peer: ID, key: bytes) -> None:
        """Tell one peer that we provide a key."""
        await self._send_add_provider(peer, key)

    async def ask(self, peer: ID, key: bytes) -> list[PeerInfo]:
        """Ask one peer who provides a key."""
        providers, _ = await self._get_providers_from_peer_with_closers(peer, key)
        return providers


class NetworkDHT(KadDHT):
    """A DHT that keeps providers only: it refuses to store values for others."""

    provider_store: ProviderRecords

    def __init__(self, host: IHost) -> None:
        nothing = NamespacedValidator({}, strict_validation=True)
        super().__init__(
            host,
            DHTMode.SERVER,
            validator=nothing,
            validator_changed=True,
            strict_validation=True,
        )
        self.provider_store = ProviderRecords(host, self.peer_routing)
        self._provider_rate_max = MAX_ANNOUNCES
        self._served: dict[trio.CancelScope, ID] = {}

    async def handle_stream(self, stream: INetStream) -> None:
        """Serve a stream, for some time; a few of one peer, and the newest of all."""
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


def protocol_of(network: Network) -> TProtocol:
    """Return the DHT's protocol id for a Ceramic network."""
    return TProtocol(f"/ceramic/{network.name}/kad/1.0.0")


def networks_in(protocols: Iterable[str]) -> set[str]:
    """Return the names of the Ceramic networks whose DHT is among some protocol ids."""
    return {match[1] for each in protocols if (match := _PROTOCOL.fullmatch(each))}


def use_protocol_of(network: Network) -> None:
    """Let the library's DHT speak a network's own protocol, in messages of a reasonable size.

    It has no settings for that.

    Applies to the process: one process is a node of one network.
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
    """Return the key that a network's nodes provide: a multihash, or servers would drop it."""
    return _SHA2_256_MULTIHASH + hashlib.sha256(rendezvous(network)).digest()
