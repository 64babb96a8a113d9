"""Which peers to connect to, which connections are kept, and the warning if there are none.

A node does not have to meet everyone: events spread from peer to peer, as long as each node is
connected with some of those that share each of its interests. So a peer that was found at the
rendezvous of an interest is dialled while too few peers with that interest are connected. A node
that has interests connects to few of the others, which it needs only for the DHT, and to meet nodes
that want everything. Peers beyond these numbers stay in the book, from where the rounds of syncs
draw them. Nothing found in the DHT is verified, and anybody can make up any number of peers. That
is why they are dialled a few at a time, and left alone after failures.

A connection with a peer that shares an interest is kept as long as there is room: the next sync is
never far. Walks through the DHT lead to peers that share none; of those that this node has dialled,
it keeps the few that have been connected longest. Connections with peers that are not in the book
are of use only while streams are open on them: with a node that only asks the DHT, with one of
another network, or with a stranger that never says what it is.
ceramic-one nodes close connections that are idle for 30 s themselves, and are dialled again when a
sync is due.

A peer whose connection is lost is dialled again, because a network that falls apart takes many
connections at once, and rounds of syncs would find these peers again one by one. It is dialled
often at first and at least every ten seconds, for a quarter of an hour. As soon as one of them
answers, the others are probably back as well, and are dialled soon. A dial that is under way by
then starts over, because TCP waits longer and longer before it sends its SYN again. Both sides do
so; the one with the larger peer id lets the other one go first, so that there are not two
connections.
"""

import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.fairness.pacing import Backoff
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.dht_server import LIFETIME
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.p2p.transport.host import Host
from recon_node.store.kept_interests import Interests

ENOUGH_SHARING: Final = 5
"""With this many connected peers that share an interest, no more of them are dialled when found. As
others dial this node, it has about twice as many in the end. More would not make events spread
faster, but each new event would be offered to more peers that have it already.
"""
FEWEST_SHARING: Final = 3
"""The same for a node that has very many interests."""
ENOUGH_IN_ALL: Final = 64
"""Nodes with several interests connect to this many peers for all of them together, unless that is
less than `FEWEST_SHARING` for each."""
ENOUGH_OTHERS: Final = 8
"""With this many other connected peers, no more of these are dialled when found."""
MOST_IN_USE: Final = 2
"""Nobody is dialled when found while one in this many of all connections is in use."""
DIALLING: Final = 30.0
"""Seconds for which a peer that is being dialled counts as connected."""
MAX_FOUND_PEERS: Final = 200
"""Maximum peers that are remembered as found at the rendezvous of an interest."""

Shares = Callable[[str, str | None], bool | None]
"""Returns whether a peer wants some of what this node wants of a sort value, or (None) at all; None
if that is not known."""


class Candidates:
    """Takes the peers that were found, and says which of them to dial."""

    def __init__(
        self, host: Host, book: PeerBook, wanted: Interests, shares: Shares, max_connections: int
    ) -> None:
        self._host = host
        self._book = book
        self._wanted = wanted
        self._shares = shares
        self._most = max_connections // MOST_IN_USE
        self._found_at: dict[str, Latest[str, float]] = {}
        """The peers found at the rendezvous of each interest, and until when that counts."""
        self._dialling: dict[str, float] = {}
        """Peers to be dialled, and until when they count as connected."""

    def found(self, peer_id: str, addresses: Sequence[str], sort_value: str | None = None) -> bool:
        """Note a peer; return whether to dial it: there are not enough of its kind.

        Its addresses may end with /p2p/<peer id>. `sort_value` says at whose rendezvous it was
        found; None: it is a node of the network.
        """
        if peer_id == self._host.peer_id:  # others name this node, too
            return False
        addresses = self._host.elsewhere(addresses)
        if self._book.get(peer_id) is None and not any(map(is_dialable, addresses)):
            return False
        peer = self._book.note_peer(peer_id, addresses)
        now = trio.current_time()
        if sort_value is not None:
            self._remember(peer_id, sort_value, now)
        self._dialling = {other: until for other, until in self._dialling.items() if until > now}
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
        logger.info("Found a peer", peer=peer_id, addresses=addresses, sort_value=sort_value)
        return True

    def shares(self, peer_id: str, sort_value: str | None) -> bool:
        """Return whether a peer wants some of what this node wants of a sort value, or (None) at
        all. Until it says, it does if it was found at the rendezvous of that lately."""
        known = self._shares(peer_id, sort_value)
        if known is not None:
            return known
        now = trio.current_time()
        places = self._found_at if sort_value is None else self._found_at.keys() & {sort_value}
        return any(self._found_at[place].get(peer_id, 0.0) > now for place in places)

    def has_enough(self, sort_value: str | None) -> bool:
        """Return whether enough peers are connected that share an interest; None: of any kind."""
        connected = self._host.connected_peers()
        if sort_value is None:
            return len(connected) >= ENOUGH_SHARING
        return self._are_enough(connected, sort_value)

    def has_some(self, sort_value: str) -> bool:
        """Return whether a connected peer shares an interest."""
        return any(self.shares(peer_id, sort_value) for peer_id in self._host.connected_peers())

    def is_needed(self, peer_id: str) -> bool:
        """Return whether a connected peer is one of too few that share one of our interests."""
        connected = [other for other in self._host.connected_peers() if other != peer_id]
        if not self._wanted.sort_values:
            return not self._are_enough(connected, None)
        return any(
            self.shares(peer_id, sort_value) and not self._are_enough(connected, sort_value)
            for sort_value in self._wanted.sort_values
        )

    def _are_enough(self, peers: Collection[str], sort_value: str | None) -> bool:
        """Return whether enough peers are connected of the kind that is found at a rendezvous."""
        if not self._wanted.sort_values:
            return len(peers) >= ENOUGH_SHARING
        if sort_value is None:
            others = (other for other in peers if not self.shares(other, None))
            return _has(ENOUGH_OTHERS, others)
        a_share = max(FEWEST_SHARING, ENOUGH_IN_ALL // len(self._wanted.sort_values))
        sharing = (other for other in peers if self.shares(other, sort_value))
        return _has(min(ENOUGH_SHARING, a_share), sharing)

    def _remember(self, peer_id: str, sort_value: str, now: float) -> None:
        if sort_value not in self._found_at:
            kept = {
                sort_value: peers
                for sort_value, peers in self._found_at.items()
                if sort_value in self._wanted.sort_values
            }
            self._found_at = {**kept, sort_value: Latest(MAX_FOUND_PEERS)}
        self._found_at[sort_value][peer_id] = now + LIFETIME


def _has(count: int, peers: Iterable[str]) -> bool:
    """Return whether there are `count` peers; look at no more of them."""
    return sum(1 for _ in islice(peers, count)) == count


CONNECTION_CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks at who is connected."""
RECONNECT_BACKOFF: Final = Backoff(first=2.0, longest=8.0)
"""The waits between two tries to reach a peer."""
VISIT: Final = 5.0
"""Seconds that a connection must have lasted to be missed. Peers with connections enough come only
for one sync."""
LOST_FOR: Final = 900.0
"""Seconds for which a lost peer is tried; after that, a round of syncs gets to it."""
MAX_LOST: Final = 100
"""Maximum lost peers, the latest ones."""
DIALLED_AT_ONCE: Final = 4
"""Maximum peers that are tried at once."""
DIALLED_AT_ONCE_IF_BACK: Final = 8
"""The same when one of them has come back: the others are likely to answer quickly."""
GIVE_WAY: Final = 1.5
"""Seconds for which one side leaves the dial to the other."""
SILENT_AFTER: Final = 3.0
"""Seconds after which TCP waits four seconds or more before it sends the SYN of a dial again."""


@dataclass(slots=True)
class _Lost:
    """A peer whose connection was lost."""

    since: float
    try_at: float
    tries: int = 0


class LostPeers:
    """Which lost peers to try, and when. Pure.

    `is_missed` says whether a peer that was lost is worth reaching.
    """

    def __init__(self, own: str, is_missed: Callable[[str], bool], rng: random.Random) -> None:
        self._own = own
        self._is_missed = is_missed
        self._random = rng
        self._connected: dict[str, float] = {}
        """Since when."""
        self._lost: dict[str, _Lost] = {}
        self.are_back = False
        """Whether some of them had come back at the last call of `due`."""

    def due(self, connected: Collection[str], trying: Collection[str], now: float) -> list[str]:
        """Return the peers to try now, in random order."""
        for peer in sorted(self._connected.keys() - connected):
            if now - self._connected[peer] >= VISIT and self._is_missed(peer):
                self._lost[peer] = _Lost(now, self._first_try(peer, now))
        self._connected = {peer: self._connected.get(peer, now) for peer in connected}
        back = [self._lost.pop(peer) for peer in list(self._lost) if peer in self._connected]
        self.are_back = bool(back)
        for peer, lost in list(self._lost.items()):
            if now - lost.since > LOST_FOR or len(self._lost) > MAX_LOST:
                del self._lost[peer]
            elif back:
                lost.try_at, lost.tries = self._first_try(peer, now), 0
        waiting = [
            peer for peer, lost in self._lost.items() if lost.try_at <= now and peer not in trying
        ]
        room = max(0, (DIALLED_AT_ONCE_IF_BACK if back else DIALLED_AT_ONCE) - len(trying))
        chosen = self._random.sample(waiting, min(room, len(waiting)))
        for peer in chosen:
            lost = self._lost[peer]
            lost.tries += 1
            lost.try_at = now + RECONNECT_BACKOFF.wait(lost.tries, self._random.random())
        return chosen

    def _first_try(self, peer: str, now: float) -> float:
        return now if self._own < peer else now + GIVE_WAY


async def keep_reconnecting(
    host: Host,
    book: PeerBook,
    shares: Callable[[str], bool | None],
    connect: Callable[[str], Awaitable[None]],
) -> None:
    """Dial peers of the book whose connection was lost, until cancelled.

    A peer that shares no interest is not missed.
    """
    rng = random.Random(random.random())  # a simulation seeds the latter

    def is_missed(peer_id: str) -> bool:
        return book.get(peer_id) is not None and shares(peer_id) is not False

    lost = LostPeers(host.peer_id, is_missed, rng)
    trying: dict[str, tuple[float, trio.CancelScope]] = {}

    async def dial(peer_id: str, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await connect(peer_id)
        except PeerError:
            return  # it is counted, and the next try comes
        finally:
            del trying[peer_id]

    async with trio.open_nursery() as nursery:
        while True:
            await trio.sleep(CONNECTION_CHECK_INTERVAL)
            now = trio.current_time()
            due = lost.due(host.connected_peers(), trying, now)
            if lost.are_back:
                for began, scope in trying.values():
                    if now - began >= SILENT_AFTER:
                        scope.cancel()
            for peer_id in due:
                trying[peer_id] = now, trio.CancelScope()
                nursery.start_soon(dial, peer_id, trying[peer_id][1])


logger = structlog.get_logger(__name__)

IDLE_LIMIT: Final = 60.0
"""Seconds without a stream after which a connection with a peer that is not in the book is closed.
It leaves time to identify, and to ask a second question."""
IDLE_POLL: Final = 5.0
"""Seconds between two looks for idle connections."""
ALONE_AFTER: Final = 60.0
"""Seconds after the start in which known peers should have answered, or others have dialled."""
ALONE_INTERVAL: Final = 1800.0
"""Seconds between two warnings that no peer is connected."""
NO_PEERS: Final = (
    "No peer is connected, and none is known: this node has only the events that its own API "
    "receives. Name a peer with --bootstrap (setting bootstrap), or with "
    "`recon-node peers add MULTIADDR`"
)
NOBODY_ANSWERS: Final = (
    "No peer is connected: none of the bootstrap and known peers can be reached. Check this "
    "machine's network and firewall, or name another peer with --bootstrap (setting bootstrap) or "
    "`recon-node peers add MULTIADDR`"
)


async def let_go_of_idle(host: Host, book: PeerBook) -> None:
    """Close connections that are idle, with peers that are not in the book, until cancelled."""

    def is_idle(peer_id: str) -> bool:
        return book.get(peer_id) is None and not host.has_streams(peer_id)

    await _let_go(host, is_idle, 0, "Closing an idle connection")


async def let_go_of_others(
    host: Host, shares: Callable[[str], bool | None], kept: Collection[str]
) -> None:
    """Close connections with peers that share no interest, beyond a few, until cancelled.

    What a peer shares may be unknown (None). Connections with the peers in `kept` are never closed.
    """

    def shares_none(peer_id: str) -> bool:
        return host.has_dialled(peer_id) and shares(peer_id) is False and peer_id not in kept

    await _let_go(host, shares_none, ENOUGH_OTHERS, "Closing a connection: no common interest")


async def _let_go(host: Host, is_useless: Callable[[str], bool], spared: int, why: str) -> None:
    """Close connections that have been useless for a while, but for the first few of them."""
    since: dict[str, float] = {}
    while True:
        await trio.sleep(IDLE_POLL)
        now = trio.current_time()
        useless = set(filter(is_useless, host.connected_peers()))
        since = {peer_id: at for peer_id, at in since.items() if peer_id in useless}
        since |= dict.fromkeys(sorted(useless.difference(since)), now)
        async with trio.open_nursery() as nursery:
            for peer_id in list(since)[spared:]:
                if now - since[peer_id] >= IDLE_LIMIT:
                    logger.debug(why, peer=peer_id)
                    nursery.start_soon(host.disconnect, peer_id)


async def warn_when_alone(host: Host, book: PeerBook, settings: P2PSettings) -> None:
    """Warn the operator if no peer is connected a while after the start, and seldom again."""
    await trio.sleep(ALONE_AFTER)
    while True:
        if not any(map(book.get, host.connected_peers())):  # others are not nodes of the network
            logger.warning(
                NOBODY_ANSWERS if len(book) or settings.bootstrap else NO_PEERS,
                known_peers=len(book),
                bootstrap=list(settings.bootstrap),
            )
        await trio.sleep(ALONE_INTERVAL)
