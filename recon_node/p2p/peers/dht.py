"""The Kademlia DHT of a network, as discovery uses it.

``Dht`` is what discovery needs of a DHT; ``LibraryDht`` provides it. The server is in
``dht_server``. On the client's side, only the walk to the closest peers is the library's: its
``provide`` and ``find_providers`` use a stream for each message, announce to nobody when a walk is
cut short, and are content with cached providers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import trio
from google.protobuf.message import DecodeError
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from libp2p.peer.id import ID
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr  # type: ignore[import-untyped]

from recon_node.ceramic import Network
from recon_node.p2p.errors import PeerError, PeerGoneError, PeerProtocolError
from recon_node.p2p.peers.dht_server import (
    IPFS_KAD,
    MAX_ANSWER,
    NetworkDHT,
    protocol_of,
    use_protocol_of,
)
from recon_node.p2p.peers.liveness import LivenessCheck, admit_connected_only
from recon_node.p2p.peers.provider_records import MAX_ADDRESSES
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.host import Host

CLOSEST: Final = 20
"""How many of the closest peers to a key have its providers (k, in the Kademlia paper)."""
KNOWN: Final = 5
"""How many of the closest peers in the routing table are told and asked, whatever the walk says."""
PATIENCE: Final = 10.0
"""Seconds in which a peer must take a request, and answer it."""
WALK_LIMIT: Final = 30.0
"""Seconds in which a walk through the DHT must end."""


@dataclass(frozen=True, slots=True)
class Found:
    """A provider that somebody has named."""

    peer_id: str
    addresses: tuple[str, ...]
    """Multiaddrs that can be dialled, with or without /p2p/<peer id>."""


class Dht(Protocol):
    """What discovery needs of a DHT. Peers are named by their peer id in base58."""

    @property
    def peer_id(self) -> str:
        """This node's peer id."""

    @property
    def records_kept(self) -> int:
        """The number of provider records that this node keeps for others."""

    async def run(self) -> None:
        """Serve others until cancelled.

        Raises:
            Exception: it failed; a new one may work.
        """

    async def admit(self, peer_id: str) -> bool:
        """Take a connected peer into the routing table; return False if it cannot be."""

    def near(self) -> Sequence[str]:
        """Return the connected peers that may speak the DHT."""

    async def closest(self, key: bytes) -> Sequence[str]:
        """Return the closest peers to a key: those that a walk through the DHT leads to, at most
        ``CLOSEST``, and a few known ones, since the walk may take too long or be led astray."""

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[Found]]:
        """Announce this node to a peer as a provider of some keys, and ask it for the providers of
        others; return these by key.

        Raises:
            PeerError: the peer cannot be reached, or does not answer as it should.
        """

    def provide(self, keys: Collection[bytes]) -> None:
        """Name this node as a provider of exactly these keys when others ask."""

    def known_providers(self, key: bytes) -> list[Found]:
        """Return the providers of a key that have announced themselves to this node."""


class LibraryDht:
    """A ``Dht`` by the library.

    Args:
        host: this node's.
        network: whose DHT.
        ipfs_kad: speak it under ``IPFS_KAD``, too.
    """

    def __init__(self, host: Host, network: Network, *, ipfs_kad: bool = False) -> None:
        use_protocol_of(network)
        self._host = host
        self._protocols = (protocol_of(network), *([IPFS_KAD] if ipfs_kad else []))
        self._dht = NetworkDHT(host.libp2p, self._protocols)
        self.records = self._dht.provider_store.records
        """The records that this node keeps for others."""
        admit_connected_only(
            self._dht.routing_table,
            lambda peer_id: host.is_connected(peer_id) and self._may_speak_dht(peer_id),
        )

    @property
    def peer_id(self) -> str:
        """See ``Dht``."""
        return self._host.peer_id

    @property
    def records_kept(self) -> int:
        """See ``Dht``."""
        return len(self.records)

    async def run(self) -> None:
        """See ``Dht``."""
        check = LivenessCheck(self._host, self._dht.routing_table, self.records)
        async with background_trio_service(self._dht):
            await check.run()

    async def admit(self, peer_id: str) -> bool:
        """See ``Dht``."""
        with trio.move_on_after(PATIENCE):
            return await self._dht.add_peer(ID.from_string(peer_id))
        return False

    def near(self) -> list[str]:
        """See ``Dht``."""
        return list(filter(self._may_speak_dht, self._host.connected_peers()))

    async def closest(self, key: bytes) -> list[str]:
        """See ``Dht``."""
        closest: list[ID] = self._dht.routing_table.find_local_closest_peers(key, KNOWN)
        with trio.move_on_after(WALK_LIMIT):
            closest += await self._dht.peer_routing.find_closest_peers_network(key, CLOSEST)
        return [each for each in dict.fromkeys(map(str, closest)) if each != self.peer_id]

    async def exchange(
        self, peer_id: str, announce: Sequence[bytes], ask: Sequence[bytes]
    ) -> dict[bytes, list[Found]]:
        """See ``Dht``. All messages go on one stream, and the answers come in their order."""
        requests = [*self._announcements(announce), *map(_question, ask)]
        if not ask:
            requests.append(Message(type=Message.PING))  # its answer shows that all was read
        stream = await self._host.open_stream(peer_id, *self._protocols, dial=True)
        try:
            frames = FrameStream(stream, MAX_ANSWER, account=stream.account)
            await frames.send([each.SerializeToString() for each in requests], PATIENCE)
            answers = {key: await _answer(frames, Message.GET_PROVIDERS, key) for key in ask}
            if not ask:
                await _answer(frames, Message.PING)
        except (DecodeError, trio.BrokenResourceError, PeerProtocolError, PeerGoneError) as error:
            await stream.reset()
            raise PeerError(
                f"peer {peer_id} did not answer a question of the DHT: {error}"
            ) from error
        except BaseException:
            await stream.reset()
            raise
        await stream.aclose()
        return {key: list(_found_in(answer)) for key, answer in answers.items()}

    def provide(self, keys: Collection[bytes]) -> None:
        """See ``Dht``."""
        self._dht.provider_store.own_keys = frozenset(keys)

    def known_providers(self, key: bytes) -> list[Found]:
        """See ``Dht``."""
        return [
            Found(each.peer_id, _dialable(each.addresses))
            for each in self.records.providers(key, trio.current_time())
        ]

    def _may_speak_dht(self, peer_id: str) -> bool:
        """Tell whether a connected peer speaks the DHT; unless it says, it may."""
        speaks = self._host.known_protocols(peer_id)
        return not speaks or not speaks.isdisjoint(self._protocols)

    def _announcements(self, keys: Sequence[bytes]) -> list[Message]:
        if not keys:
            return []
        addresses = self._host.libp2p.get_addrs()[:MAX_ADDRESSES]  # takes a while
        here = Message.Peer(
            id=self._host.libp2p.get_id().to_bytes(), addrs=[each.to_bytes() for each in addresses]
        )
        return [Message(type=Message.ADD_PROVIDER, key=key, providerPeers=[here]) for key in keys]


def _question(key: bytes) -> Message:
    return Message(type=Message.GET_PROVIDERS, key=key)


async def _answer(frames: FrameStream, kind: int, key: bytes = b"") -> Message:
    """Read the answer to a question; some servers answer announcements, too, and others do not.

    Raises:
        PeerProtocolError, PeerGoneError, DecodeError, trio.BrokenResourceError: there is none.
    """
    while (data := await frames.receive(PATIENCE)) is not None:
        message = Message.FromString(data)
        if message.type == kind and message.key in (key, b""):
            return message
        if message.type != Message.ADD_PROVIDER:
            raise PeerProtocolError("it answered a different question")
    raise PeerGoneError("it ended the stream")


def _found_in(answer: Message) -> Iterable[Found]:
    for each in answer.providerPeers:
        yield Found(str(ID(each.id)), _dialable(each.addrs))


def _dialable(addresses: Iterable[bytes]) -> tuple[str, ...]:
    """Return the text of those binary multiaddrs that can be dialled; anything may be in them."""
    usable = []
    for raw in addresses:
        try:
            address = Multiaddr(raw)
            if is_dialable(address):
                usable.append(str(address))
        except Exception:  # the library raises errors of any type
            continue
        if len(usable) == MAX_ADDRESSES:
            break
    return tuple(usable)
