"""The server's side of the DHT: the library's, made fit for the provider records of many nodes.

The protocol is `/ceramic/<network>/kad/1.0.0`. The library's DHT is made for content on the
public network; `NetworkDHT` and `RecordStore` override what does not fit.

Anybody can announce any number of peer ids for any number of keys, so `ProviderRecords` are
limited in number, for each key and in total. When there is no room, the address with the most
records makes room, with its oldest. So a flood from one address replaces only its own records, and
of n addresses one with less than an n-th of the room never loses any.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.kad_dht import common, kad_dht, peer_routing, provider_store, value_store
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.kad_dht.provider_store import ProviderStore
from libp2p.kad_dht.routing_table import KBucket
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import NamespacedValidator
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.ceramic import Network
from recon_node.fairness.slots import Slots, TokenBucket, TokenBuckets, address_block_of
from recon_node.p2p.transport.addresses import is_dialable, likely

LIFETIME: Final = 3600.0
"""Seconds for which a record is kept unless its provider announces itself again."""
MAX_PROVIDERS: Final = 200
"""Maximum providers of a key."""
MAX_RECORDS: Final = 8192
"""Maximum records of all keys."""
MAX_ADDRESSES: Final = 8
"""Maximum addresses of a provider."""
MAX_CHECKED: Final = 32
"""Maximum addresses that are checked to find these."""

RecordKey = tuple[bytes, str]
"""A key and a provider's peer id: what a record is kept under."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer that has announced itself for a key."""

    peer_id: str
    addresses: tuple[bytes, ...]
    """Binary multiaddrs, with or without /p2p/<peer id>."""


@dataclass(frozen=True, slots=True)
class _Record:
    provider: Provider
    group: str
    expires_at: float


class ProviderRecords:
    """The providers of keys."""

    def __init__(self, max_providers: int = MAX_PROVIDERS, max_records: int = MAX_RECORDS) -> None:
        self._max_providers = max_providers
        self._max_records = max_records
        # All four have the records that were renewed longest ago first.
        self._records: dict[RecordKey, _Record] = {}
        self._of_key: dict[bytes, dict[RecordKey, None]] = {}
        self._of_group: dict[str, dict[RecordKey, None]] = {}
        self._of_peer: dict[str, dict[RecordKey, None]] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def keys(self) -> int:
        """The number of keys that have providers."""
        return len(self._of_key)

    def add(
        self, key: bytes, peer_id: str, addresses: Sequence[bytes], source: str, now: float
    ) -> None:
        """Add or renew a record.

        The first few addresses are kept. `source` is the IP address from which the peer is
        connected, and `now` a time on a clock that does not jump.
        """
        self.expire(now)
        self._remove((key, peer_id))
        group = address_block_of(source)
        of_key = self._of_key.get(key, {})
        if len(of_key) >= self._max_providers:
            self._remove(self._oldest_of_the_greediest(of_key))
        elif len(self._records) >= self._max_records:
            greediest = max(self._of_group.values(), key=len)
            self._remove(next(iter(greediest)))
        provider = Provider(peer_id, tuple(addresses[:MAX_ADDRESSES]))
        self._insert((key, peer_id), _Record(provider, group, now + LIFETIME))

    def providers(self, key: bytes, now: float) -> list[Provider]:
        """Return the providers of a key, those that announced themselves longest ago first."""
        self.expire(now)
        return [self._records[record].provider for record in self._of_key.get(key, ())]

    def all_providers(self) -> Iterable[Provider]:
        """Return each provider once, as it announced itself for one of its keys."""
        return (self._records[next(iter(keys))].provider for keys in self._of_peer.values())

    def forget(self, peer_id: str) -> None:
        """Remove a peer from all keys."""
        for key in list(self._of_peer.get(peer_id, ())):
            self._remove(key)

    def expire(self, now: float) -> None:
        """Remove the records that have expired."""
        while self._records:
            key, record = next(iter(self._records.items()))
            if record.expires_at > now:
                return
            self._remove(key)

    def _oldest_of_the_greediest(self, keys: Iterable[RecordKey]) -> RecordKey:
        """Return the oldest of these records whose address has the most of them."""
        by_group: dict[str, list[RecordKey]] = {}
        for key in keys:
            by_group.setdefault(self._records[key].group, []).append(key)
        return max(by_group.values(), key=len)[0]

    def _insert(self, key: RecordKey, record: _Record) -> None:
        self._records[key] = record
        for index, name in self._indexes(key, record):
            index.setdefault(name, {})[key] = None

    def _remove(self, key: RecordKey) -> None:
        record = self._records.pop(key, None)
        if record is None:
            return
        for index, name in self._indexes(key, record):
            del index[name][key]
            if not index[name]:
                del index[name]

    def _indexes(
        self, key: RecordKey, record: _Record
    ) -> Iterable[tuple[dict[Any, dict[RecordKey, None]], str | bytes]]:
        """Return the three indexes, and where each has a record."""
        return (self._of_key, key[0]), (self._of_group, record.group), (self._of_peer, key[1])


PROVIDERS_ANSWERED: Final = 20
"""Maximum providers in an answer, a random choice of those that are known."""
MAX_REQUEST: Final = 16 * 1024
"""Maximum bytes of a request; stock accepts and keeps 4 MiB."""
MAX_ANSWER: Final = 256 * 1024
"""Maximum bytes of an answer that lists providers; other nodes list more of them."""
MAX_PEERS_ANSWER: Final = 32 * 1024
"""Maximum bytes of an answer that lists the 20 closest peers."""
MAX_SERVED: Final = 32
"""Maximum streams at the same time. One more ends the oldest of the address with the most, so that
neither idle ones nor a crowd keep others out."""
MAX_SERVED_PER_PEER: Final = 4
"""Maximum streams of one peer at the same time."""
SERVE_LIMIT: Final = 30.0
"""Seconds for which a stream is served. Stock serves twelve streams, forever."""
MAX_ANNOUNCES: Final = 400
"""Maximum announcements of one peer in ten seconds; stock ignores all after the tenth. A node
announces itself for up to `schedule.MAX_QUICK` keys in each of its first rounds."""
ANSWERS_PER_SECOND: Final = 100
"""Answers to an address block in the long run, which take about a fifth of a core."""
ANSWERS_AT_ONCE: Final = 5_000
"""Answers to an address block without a wait. The first rounds of a node have up to 640
announcements and questions."""
_MAX_BLOCKS: Final = 1_000
"""Maximum address blocks whose answers are counted: the latest ones."""
_PROTOCOL: Final = re.compile(r"/ceramic/([^/]+)/kad/1\.0\.0")


class RecordStore(ProviderStore):
    """Puts `ProviderRecords` in place of the library's own.

    Stock keeps the first 20 providers of a key for 48 hours, and any number of keys.
    """

    def __init__(self, host: IHost) -> None:
        super().__init__(host)
        self.records = ProviderRecords()
        self.own_keys: frozenset[bytes] = frozenset()
        """The keys that this node provides itself."""

    def add_provider(self, key: bytes, provider: PeerInfo) -> None:
        """Add a provider; the library has checked that it has announced itself."""
        connections = self.host.get_network().get_connections(provider.peer_id)
        remotes = [
            cast(Any, connection.muxed_conn).get_remote_address() for connection in connections
        ]
        source = next((remote[0] for remote in remotes if remote), "")
        some = likely((address.to_bytes() for address in provider.addrs), MAX_CHECKED)
        addresses = [address for address in some if is_dialable(Multiaddr(address))]
        self.records.add(key, str(provider.peer_id), addresses, source, trio.current_time())

    def get_providers(self, key: bytes) -> list[PeerInfo]:
        """Return a few providers of a key, and this node itself if it is one."""
        known = self.records.providers(key, trio.current_time())
        providers = [
            PeerInfo(ID.from_string(provider.peer_id), list(map(Multiaddr, provider.addresses)))
            for provider in random.sample(known, min(len(known), PROVIDERS_ANSWERED))
        ]
        if key in self.own_keys:
            providers.append(PeerInfo(self.local_peer_id, self.host.get_addrs()[:MAX_ADDRESSES]))
        return providers


class _PacedStream:
    """A stream of an address block that waits for its next answer if it has had too many."""

    def __init__(self, stream: INetStream, bucket: TokenBucket) -> None:
        self._stream = stream
        self._bucket = bucket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def write(self, data: bytes) -> None:
        """Write an answer's length, or the answer, and wait until the next one may be written."""
        await self._stream.write(data)
        self._bucket.spend(0.5, trio.current_time())
        await trio.sleep(self._bucket.seconds_until(0, trio.current_time()))


class NetworkDHT(KadDHT):
    """A DHT for providers only: it refuses to store values."""

    provider_store: RecordStore

    def __init__(self, host: IHost) -> None:
        nothing = NamespacedValidator({}, strict_validation=True)
        super().__init__(
            host, DHTMode.SERVER, validator=nothing, validator_changed=True, strict_validation=True
        )
        self.provider_store = RecordStore(host)
        self._provider_rate_max = MAX_ANNOUNCES
        self._slots = Slots(MAX_SERVED, trio.current_time)
        self._served = Counter[ID]()
        """Streams of each peer."""
        self._answers = TokenBuckets[str](ANSWERS_AT_ONCE, ANSWERS_PER_SECOND, _MAX_BLOCKS)

    async def handle_stream(self, stream: INetStream) -> None:
        """Serve a stream for a limited time; a few of one peer, and the newest of all peers."""
        peer, remote = stream.muxed_conn.peer_id, stream.get_remote_address()
        address, is_served = remote[0] if remote else "", False
        bucket = self._answers.of(address_block_of(address), trio.current_time())
        if self._served[peer] < MAX_SERVED_PER_PEER:
            with (
                trio.move_on_after(SERVE_LIMIT) as scope,
                self._slots.taken_by(address, scope.cancel, busy=False) as slot,
            ):
                if slot is not None:
                    self._served[peer] += 1
                    try:
                        await self._do_handle_stream(cast(INetStream, _PacedStream(stream, bucket)))
                        is_served = True
                    finally:
                        self._served -= Counter([peer])
        if not is_served:
            await stream.reset()


def protocol_of(network: Network) -> TProtocol:
    """Return the DHT's protocol id of a Ceramic network."""
    return TProtocol(f"/ceramic/{network.name}/kad/1.0.0")


def networks_in(protocols: Iterable[str]) -> set[str]:
    """Return the names of the Ceramic networks whose DHTs are among some protocol ids."""
    return {match[1] for protocol in protocols if (match := _PROTOCOL.fullmatch(protocol))}


async def _keep(self: KBucket, peer_id: ID) -> bool:
    """Keep the oldest peer of a full bucket: `LivenessCheck` removes it if it is dead.

    Stock pings it first, and has all others wait whose requests come from peers for this bucket.
    """
    return True


def use_protocol_of(network: Network) -> None:
    """Make the library's DHT use a network's own protocol id, limit its messages, and ping nobody.

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
    vars(kad_dht)["MAX_PROVIDERS_PER_MSG"] = 1  # each has to be the sender
    KBucket._ping_peer = _keep  # type: ignore[method-assign]
