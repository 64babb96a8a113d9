"""Which connections are kept, and what the operator is told when there are none.

A connection with a peer that shares an interest is kept as long as there is room: the next sync is
never far. Walks through the DHT lead to peers that share none; of those that this node has dialled,
it keeps the few that have been connected longest. Connections with peers that are not in the book
are of use only while streams are open on them: with a node that only asks the DHT, with one of
another network, or with a stranger that never says what it is.
ceramic-one nodes close connections that are idle for 30 s themselves, and are dialled again when a
sync is due.

A peer whose connection is lost is dialled again, because a network that falls apart takes many
connections at once, and the rounds would find these peers again one by one. It is dialled often at
first and at least every ten seconds, for a quarter of an hour. As soon as one of them answers, the
others are probably back as well, and are dialled soon. A dial that is under way by then begins
anew, because TCP waits longer and longer before it sends its SYN again. Both sides do so; the one
with the larger peer id lets the other one go first, so that there are not two connections.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from recon_node.backoff import Backoff
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.candidates import ENOUGH_OTHERS
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.host import Host

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at who is connected."""
AGAIN: Final = Backoff(first=2.0, longest=8.0)
"""The waits between two tries to reach a peer."""
VISIT: Final = 5.0
"""Seconds that a connection must have lasted to be missed. Peers with connections enough come only
for one sync."""
LOST_FOR: Final = 900.0
"""Seconds for which a lost peer is tried; after that, the rounds get to it."""
MAX_LOST: Final = 100
"""Maximum lost peers, the latest ones."""
AT_ONCE: Final = 4
"""Maximum peers that are tried at once."""
AT_ONCE_IF_BACK: Final = 8
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

    Args:
        own: this node's peer id.
        is_missed: tells whether a peer that was lost is worth reaching.
        rng: a source of randomness.
    """

    def __init__(self, own: str, is_missed: Callable[[str], bool], rng: random.Random) -> None:
        self._own = own
        self._is_missed = is_missed
        self._random = rng
        self._connected: dict[str, float] = {}
        """Since when."""
        self._lost: dict[str, _Lost] = {}
        self.are_back = False
        """Whether some of them had come back at the last call of ``due``."""

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
        room = max(0, (AT_ONCE_IF_BACK if back else AT_ONCE) - len(trying))
        chosen = self._random.sample(waiting, min(room, len(waiting)))
        for peer in chosen:
            lost = self._lost[peer]
            lost.tries += 1
            lost.try_at = now + AGAIN.wait(lost.tries, self._random.random())
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

    Args:
        host: knows who is connected.
        book: knows which peers this node can sync with.
        shares: tells whether a peer shares an interest; one that does not is not missed.
        connect: connects to a peer, or raises PeerError.
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
            await trio.sleep(LOOK_EVERY)
            now = trio.current_time()
            due = lost.due(host.connected_peers(), trying, now)
            if lost.are_back:
                for began, scope in trying.values():
                    if now - began >= SILENT_AFTER:
                        scope.cancel()
            for peer_id in due:
                trying[peer_id] = now, trio.CancelScope()
                nursery.start_soon(dial, peer_id, trying[peer_id][1])


log = structlog.get_logger(__name__)

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
    idle_since: dict[str, float] = {}
    while True:
        await trio.sleep(IDLE_POLL)
        now = trio.current_time()
        idle = {
            peer_id
            for peer_id in host.connected_peers()
            if book.get(peer_id) is None and not host.has_streams(peer_id)
        }
        idle_since = {peer_id: idle_since.get(peer_id, now) for peer_id in idle}
        async with trio.open_nursery() as nursery:
            for peer_id, since in idle_since.items():
                if now - since >= IDLE_LIMIT:
                    log.debug("Closing an idle connection", peer=peer_id)
                    nursery.start_soon(host.disconnect, peer_id)


async def let_go_of_others(
    host: Host, shares: Callable[[str], bool | None], kept: Collection[str]
) -> None:
    """Close connections with peers that share no interest, beyond a few, until cancelled.

    Args:
        host: has the connections.
        shares: tells whether a peer shares an interest; None if that is not known.
        kept: peers whose connections are never closed.
    """
    since: dict[str, float] = {}
    while True:
        await trio.sleep(IDLE_POLL)
        now = trio.current_time()
        others = {
            peer_id
            for peer_id in host.connected_peers()
            if host.has_dialled(peer_id) and shares(peer_id) is False and peer_id not in kept
        }
        since = {peer_id: at for peer_id, at in since.items() if peer_id in others}
        since |= dict.fromkeys(sorted(others.difference(since)), now)
        async with trio.open_nursery() as nursery:
            for peer_id in list(since)[ENOUGH_OTHERS:]:
                if now - since[peer_id] >= IDLE_LIMIT:
                    log.debug("Closing a connection: no common interest", peer=peer_id)
                    nursery.start_soon(host.disconnect, peer_id)


async def tell_when_alone(host: Host, book: PeerBook, settings: P2PSettings) -> None:
    """Warn the operator if no peer is connected a while after the start, and seldom again."""
    await trio.sleep(ALONE_AFTER)
    while True:
        if not any(map(book.get, host.connected_peers())):  # others are not nodes of the network
            log.warning(
                NOBODY_ANSWERS if len(book) or settings.bootstrap else NO_PEERS,
                known_peers=len(book),
                bootstrap=list(settings.bootstrap),
            )
        await trio.sleep(ALONE_INTERVAL)
