"""The Kademlia DHT of a network, as discovery uses it.

The server is in `dht_server`. On the client's side, only the walk to the closest peers is the
library's: its `provide` and `find_providers` use a stream for each message, announce to nobody
when a walk is cut short, and are content with cached providers.

The library adds every peer that another one names to its routing table, and takes that for a
sign of life, so that nodes remind each other of dead peers forever. Here a peer is only added to
the table while it is connected, and peers that are listed without a connection, in the table or as
providers, are dialled regularly and removed if they do not answer (`LivenessCheck`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import structlog
import trio
from google.protobuf.message import DecodeError
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.kad_dht.routing_table import RoutingTable
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.ceramic import Network
from recon_node.fairness.pacing import jittered
from recon_node.p2p.errors import PeerError, PeerGoneError, PeerProtocolError
from recon_node.p2p.peers.dht_server import (
    MAX_ADDRESSES,
    MAX_ANSWER,
    MAX_CHECKED,
    NetworkDHT,
    ProviderRecords,
    protocol_of,
    use_protocol_of,
)
from recon_node.p2p.transport.addresses import is_dialable, likely
from recon_node.p2p.transport.framing import FrameStream, PeerFrames
from recon_node.p2p.transport.hardening import MAX_ADDRESS
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.identity import MAX_PEER_ID

T = TypeVar("T")
logger = structlog.get_logger(__name__)

MAX_NEW: Final = 50
"""Maximum peers taken from one answer; of more, a random choice."""
CHECK_INTERVAL: Final = 60.0
"""Seconds between two checks of the peers that are listed without a connection."""
MAX_DIALLED: Final = 20
"""Maximum peers dialled in one check, starting with those checked longest ago. Half of them are of
the routing table, if it has as many to check: anybody can announce thousands of providers."""
CHECK_LIMIT: Final = 10.0
"""Seconds in which a peer must accept a connection."""
ENOUGH_CONNECTIONS: Final = 16
"""With more than this, a connection that was made for a check is closed after it."""


def admit_connected_only(table: RoutingTable, is_able: Callable[[str], bool]) -> None:
    """Make a routing table admit the peers of which `is_able` says that they are connected and
    speak the DHT."""
    stock = table.add_peer

    async def add_peer(peer: PeerInfo | ID, **_options: bool) -> bool:
        peer_id = peer.peer_id if isinstance(peer, PeerInfo) else peer
        if not is_able(str(peer_id)):
            return False
        return await stock(peer, skip_server_mode_check=True)  # the library knows one protocol id

    table.add_peer = add_peer  # type: ignore[assignment, method-assign]


class LivenessCheck:
    """Removes dead peers from a routing table and from provider records."""

    def __init__(self, host: Host, table: RoutingTable, records: ProviderRecords) -> None:
        self._host = host
        self._table = table
        self._records = records
        self._checked: dict[str, float] = {}

    async def run(self) -> None:
        """Check regularly until cancelled."""
        while True:
            await trio.sleep(jittered(CHECK_INTERVAL, random.random()))
            await self.check()

    async def check(self) -> None:
        """Dial peers that are listed without a connection; remove those that do not answer.

        A node without connections removes no peers, since it may be offline itself.
        """
        if not self._host.connected_peers():
            return
        fine = {self._host.peer_id, *self._host.connected_peers()}
        suspects = {
            peer: addresses for peer, addresses in self._listed().items() if peer not in fine
        }
        self._checked = {peer: at for peer, at in self._checked.items() if peer in suspects}
        longest_ago = sorted(suspects, key=lambda peer: self._checked.get(peer, 0.0))
        in_table = set(map(str, self._table.get_peer_ids()))
        first = [peer for peer in longest_ago if peer in in_table][: MAX_DIALLED // 2]
        async with trio.open_nursery() as nursery:
            for peer in [*dict.fromkeys([*first, *longest_ago])][:MAX_DIALLED]:
                self._checked[peer] = trio.current_time()
                addresses = list(map(str, map(Multiaddr, suspects[peer])))
                nursery.start_soon(self._check_one, peer, self._host.elsewhere(addresses))

    def _listed(self) -> dict[str, list[bytes]]:
        """Return all peers that the DHT's answers may name, which may be thousands, and their
        addresses."""
        listed: dict[str, list[bytes]] = {}
        for info in self._table.get_peer_infos():
            addresses = [address.to_bytes() for address in info.addrs]
            listed.setdefault(str(info.peer_id), []).extend(addresses)
        for provider in self._records.all_providers():
            listed.setdefault(provider.peer_id, []).extend(provider.addresses)
        return listed

    async def _check_one(self, peer_id: str, addresses: Iterable[str]) -> None:
        with trio.move_on_after(CHECK_LIMIT):
            for address in dict.fromkeys(addresses):
                transport_address = address.removesuffix(f"/p2p/{peer_id}")
                try:
                    await self._host.connect(f"{transport_address}/p2p/{peer_id}")
                except PeerError:
                    continue
                if len(self._host.connected_peers()) > ENOUGH_CONNECTIONS:
                    await self._host.disconnect(peer_id)
                return
        if self._host.is_connected(peer_id):
            return
        logger.debug("Removed a peer from the DHT: it does not answer", peer=peer_id)
        self._table.remove_peer(ID.from_string(peer_id))
        self._records.forget(peer_id)


CLOSEST: Final = 20
"""How many of the closest peers to a key have its providers (k, in the Kademlia paper)."""
KNOWN: Final = 5
"""How many of the closest peers in the routing table get announcements and lookups besides those
that a walk finds."""
REQUEST_TIMEOUT: Final = 10.0
"""Seconds in which a peer must take a request, and answer it."""
EXCHANGE_LIMIT: Final = 60.0
"""Seconds in which a peer must answer all questions of an exchange: a round of them ends when all
have."""
WALK_LIMIT: Final = 30.0
"""Seconds in which a walk through the DHT must end."""


@dataclass(frozen=True, slots=True)
class FoundProvider:
    """A provider that somebody has named."""

    peer_id: str
    addresses: tuple[str, ...]
    """Multiaddrs that can be dialled, with or without /p2p/<peer id>."""


class LibraryDht:
    """What discovery needs of a DHT, by the library. Peers are named by their peer id in base58."""

    def __init__(self, host: Host, network: Network) -> None:
        use_protocol_of(network)
        self._host = host
        self._protocol = protocol_of(network)
        self._dht = NetworkDHT(host.libp2p)
        self.records = self._dht.provider_store.records
        """The records that this node keeps for others."""
        admit_connected_only(
            self._dht.routing_table,
            lambda peer_id: host.is_connected(peer_id) and self._may_speak_dht(peer_id),
        )

    @property
    def peer_id(self) -> str:
        """This node's peer id."""
        return self._host.peer_id

    async def run(self) -> None:
        """Serve others until cancelled.

        Raises:
            Exception: it failed; a new one may work.
        """
        check = LivenessCheck(self._host, self._dht.routing_table, self.records)
        async with background_trio_service(self._dht):
            await check.run()

    async def admit(self, peer_id: str) -> None:
        """Take a connected peer into the routing table, if others can dial it and there is room."""
        with trio.move_on_after(REQUEST_TIMEOUT):
            await self._dht.add_peer(ID.from_string(peer_id))

    def near(self) -> list[str]:
        """Return the connected peers that may speak the DHT."""
        return list(filter(self._may_speak_dht, self._host.connected_peers()))

    async def closest(self, key: bytes) -> list[str]:
        """Return the closest peers to a key: those that a walk through the DHT leads to, at most
        `CLOSEST`, and a few known ones, since the walk may take too long or be led astray."""
        closest: list[ID] = self._dht.routing_table.find_local_closest_peers(key, KNOWN)
        with trio.move_on_after(WALK_LIMIT):
            closest += await self._dht.peer_routing.find_closest_peers_network(key, CLOSEST)
        return [peer_id for peer_id in dict.fromkeys(map(str, closest)) if peer_id != self.peer_id]

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[FoundProvider]]:
        """Announce this node to a peer as a provider of some keys, and ask it for the providers of
        others; return these by key, at most `MAX_NEW` of each.

        All messages go on one stream, and the answers come in their order.

        Raises:
            PeerError: the peer cannot be reached, or does not answer as it should.
        """
        requests = [*self._announcements(announce), *map(_question, ask)]
        if not ask:
            requests.append(Message(type=Message.PING))  # its answer shows that all was read
        stream = await self._host.open_stream(peer_id, self._protocol, dial=True)
        try:
            frames, found = PeerFrames(stream, MAX_ANSWER), dict[bytes, list[FoundProvider]]()
            with trio.move_on_after(EXCHANGE_LIMIT) as scope:
                await frames.send(
                    [request.SerializeToString() for request in requests], REQUEST_TIMEOUT
                )
                for key in ask:
                    found[key] = _found_in(await _answer(frames, Message.GET_PROVIDERS, key))
                    await trio.lowlevel.checkpoint()  # the next answer may be here
                if not ask:
                    await _answer(frames, Message.PING)
            if scope.cancelled_caught:
                raise PeerProtocolError(f"the peer did not answer all within {EXCHANGE_LIMIT:g} s")
        except (DecodeError, trio.BrokenResourceError, PeerProtocolError, PeerGoneError) as error:
            await stream.reset()
            raise PeerError(
                f"peer {peer_id} did not answer a question of the DHT: {error}"
            ) from error
        except BaseException:
            await stream.reset()
            raise
        await stream.aclose()
        return found

    def provide(self, keys: Collection[bytes]) -> None:
        """Name this node as a provider of exactly these keys when others ask."""
        self._dht.provider_store.own_keys = frozenset(keys)

    def known_providers(self, key: bytes) -> list[FoundProvider]:
        """Return providers of a key that have announced themselves to this node, at most
        `MAX_NEW`."""
        known = self.records.providers(key, trio.current_time())
        return [
            FoundProvider(provider.peer_id, _dialable(provider.addresses))
            for provider in _few(known)
        ]

    def _may_speak_dht(self, peer_id: str) -> bool:
        """Return whether a connected peer speaks the DHT; unless it says, it may."""
        speaks = self._host.known_protocols(peer_id)
        return not speaks or self._protocol in speaks

    def _announcements(self, keys: Sequence[bytes]) -> list[Message]:
        if not keys:
            return []
        addresses = self._host.libp2p.get_addrs()[:MAX_ADDRESSES]  # takes a while
        here = Message.Peer(
            id=self._host.libp2p.get_id().to_bytes(),
            addrs=[address.to_bytes() for address in addresses],
        )
        return [Message(type=Message.ADD_PROVIDER, key=key, providerPeers=[here]) for key in keys]


def _question(key: bytes) -> Message:
    return Message(type=Message.GET_PROVIDERS, key=key)


async def _answer(frames: FrameStream, kind: int, key: bytes = b"") -> Message:
    """Read the answer to a question; some servers answer announcements, too, and others do not.

    Raises:
        PeerProtocolError, PeerGoneError, DecodeError, trio.BrokenResourceError: there is none.
    """
    while (data := await frames.receive(REQUEST_TIMEOUT)) is not None:
        message = Message.FromString(data)
        if message.type == kind and message.key in (key, b""):
            return message
        if message.type != Message.ADD_PROVIDER:
            raise PeerProtocolError("the peer answered a different question")
    raise PeerGoneError("the peer ended the stream")


def _found_in(answer: Message) -> list[FoundProvider]:
    named = [peer for peer in answer.providerPeers if len(peer.id) <= MAX_PEER_ID]
    return [FoundProvider(str(ID(peer.id)), _dialable(peer.addrs)) for peer in _few(named)]


def _few(peers: Sequence[T]) -> list[T]:
    """Return a few of the peers that somebody names, at random: anybody can make up thousands."""
    return random.sample(peers, min(len(peers), MAX_NEW))


def _dialable(addresses: Iterable[bytes]) -> tuple[str, ...]:
    """Return the text of the first few binary multiaddrs if they can be dialled; anything may be in
    them."""
    short = (raw for raw in addresses if len(raw) <= MAX_ADDRESS)
    some = map(Multiaddr, likely(short, MAX_CHECKED))
    return tuple(map(str, islice(filter(is_dialable, some), MAX_ADDRESSES)))
