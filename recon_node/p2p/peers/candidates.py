"""Which of the peers that were found to connect to.

A node does not have to meet everyone: events spread from peer to peer, as long as each node is
connected with some of those that share each of its interests. So a peer that was found at the
rendezvous of an interest is dialled while too few peers with that interest are connected. A node
that has interests connects to few of the others, which it needs only for the DHT, and to meet nodes
that want everything. Peers beyond these numbers stay in the book, from where the rounds of syncs
draw them.

Everything heard in the DHT is hearsay, and anybody can make up any number of peers. That is why
they are dialled a few at a time, and left alone after failures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Final

import structlog
import trio

from recon_node.latest import Latest
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.dht_server import LIFETIME
from recon_node.p2p.transport.addresses import is_dialable, is_loopback
from recon_node.p2p.transport.host import Host
from recon_node.store.interests import Interests

log = structlog.get_logger(__name__)

ENOUGH_SHARING: Final = 5
"""With so many connected peers that share an interest, no more of them are dialled when found. As
others dial this node, it has about twice as many in the end. More would not make events spread
faster, but each new event would be offered to more peers that have it already.
"""
FEWEST_SHARING: Final = 3
"""The same for a node that has very many interests."""
ENOUGH_IN_ALL: Final = 64
"""Nodes with several interests connect to so many peers for all of them together, unless that is
less than ``FEWEST_SHARING`` for each."""
ENOUGH_OTHERS: Final = 8
"""With so many other connected peers, no more of these are dialled when found."""
MOST_PLACES: Final = 2
"""Nobody is dialled when found while one in so many of all connections is in use."""
DIALLING: Final = 30.0
"""Seconds for which a peer that is being dialled counts as connected."""
MAX_REMEMBERED: Final = 200
"""Maximum peers that are remembered as found at the rendezvous of an interest."""

Shares = Callable[[str, str | None], bool | None]
"""Tells whether a peer wants some of what this node wants of a sort value, or (None) at all; None
if that is not known."""


class Candidates:
    """Takes the peers that were found, and says which of them to dial."""

    def __init__(
        self,
        host: Host,
        book: PeerBook,
        wanted: Interests,
        shares: Shares,
        max_connections: int,
    ) -> None:
        self._host = host
        self._book = book
        self._wanted = wanted
        self._shares = shares
        self._most = max_connections // MOST_PLACES
        self._found_at: dict[str, Latest[str, float]] = {}
        """The peers found at the rendezvous of each interest, and until when that counts."""
        self._dialling: dict[str, float] = {}
        """Peers to be dialled, and until when they count as connected."""

    def found(self, peer_id: str, addresses: Sequence[str], sort_value: str | None = None) -> bool:
        """Note a peer; return whether to dial it: there are not enough of its kind.

        Args:
            peer_id: the peer.
            addresses: multiaddrs, with or without /p2p/<peer id>.
            sort_value: at whose rendezvous it was found; None: it is a node of the network.
        """
        if peer_id == self._host.peer_id:  # others tell of this node, too
            return False
        others = [each for each in addresses if not is_loopback(each)]
        if len(others) < len(addresses) and not all(map(is_loopback, self._host.addresses)):
            addresses = others
        if self._book.get(peer_id) is None and not any(map(is_dialable, addresses)):
            return False
        peer = self._book.heard_of(peer_id, addresses)
        now = trio.current_time()
        if sort_value is not None:
            self._remember(peer_id, sort_value, now)
        self._dialling = {each: until for each, until in self._dialling.items() if until > now}
        if peer_id in self._dialling or peer.not_before > now or not peer.addresses:
            return False
        connected = {*self._host.connected_peers(), *self._dialling}
        if peer_id in connected or len(connected) >= self._most:
            return False
        if sort_value is not None and self._shares(peer_id, sort_value) is False:
            return False  # it said lately that it wants another shard of it
        if self._are_enough(connected, sort_value):
            return False
        self._dialling[peer_id] = now + DIALLING
        log.info("Found a peer", peer=peer_id, addresses=addresses, sort_value=sort_value)
        return True

    def shares(self, peer_id: str, sort_value: str | None) -> bool:
        """Return whether a peer wants some of what this node wants of a sort value, or (None) at
        all. Until it says, it does if it was found at the rendezvous of that lately."""
        known = self._shares(peer_id, sort_value)
        if known is not None:
            return known
        now = trio.current_time()
        places = self._found_at if sort_value is None else self._found_at.keys() & {sort_value}
        return any(self._found_at[each].get(peer_id, 0.0) > now for each in places)

    def has_enough(self, sort_value: str | None) -> bool:
        """Return whether enough peers are connected that share an interest; None: of any kind."""
        connected = self._host.connected_peers()
        if sort_value is None:
            return len(connected) >= ENOUGH_SHARING
        return self._are_enough(connected, sort_value)

    def has_some(self, sort_value: str) -> bool:
        """Return whether a connected peer shares an interest."""
        return any(self.shares(each, sort_value) for each in self._host.connected_peers())

    def is_needed(self, peer_id: str) -> bool:
        """Return whether a connected peer is one of too few that share one of our interests."""
        connected = [each for each in self._host.connected_peers() if each != peer_id]
        sort_values = {each.sort_value for each in self._wanted.all}
        if not sort_values:
            return not self._are_enough(connected, None)
        return any(
            self.shares(peer_id, each) and not self._are_enough(connected, each)
            for each in sort_values
        )

    def _are_enough(self, peers: Collection[str], sort_value: str | None) -> bool:
        """Return whether enough peers are connected of the kind that is found at a rendezvous."""
        sort_values = {each.sort_value for each in self._wanted.all}
        if not sort_values:
            return len(peers) >= ENOUGH_SHARING
        if sort_value is None:
            others = (each for each in peers if not self.shares(each, None))
            return _has(ENOUGH_OTHERS, others)
        a_share = max(FEWEST_SHARING, ENOUGH_IN_ALL // len(sort_values))
        sharing = (each for each in peers if self.shares(each, sort_value))
        return _has(min(ENOUGH_SHARING, a_share), sharing)

    def _remember(self, peer_id: str, sort_value: str, now: float) -> None:
        if sort_value not in self._found_at:
            wanted = {each.sort_value for each in self._wanted.all}
            kept = {each: found for each, found in self._found_at.items() if each in wanted}
            self._found_at = {**kept, sort_value: Latest(MAX_REMEMBERED)}
        self._found_at[sort_value][peer_id] = now + LIFETIME


def _has(count: int, peers: Iterable[str]) -> bool:
    """Return whether there are so many, without looking at more."""
    return sum(1 for _ in islice(peers, count)) == count
