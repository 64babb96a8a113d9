"""Which connections are kept, and what the operator is told when there are none.

A connection with a peer that shares an interest is kept as long as there is room: the next sync is
never far. Walks through the DHT lead to peers that share none; of those that this node has dialled,
it keeps the few that have been connected longest. Connections with peers that are not in the book
are of use only while streams are open on them: with a node that only asks the DHT, with one of
another network, or with a stranger that never says what it is.
ceramic-one nodes close connections that are idle for 30 s themselves, and are dialled again when a
sync is due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog
import trio

from recon_node.p2p.interfaces import PeerHost
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.candidates import ENOUGH_OTHERS
from recon_node.p2p.settings import P2PSettings

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


async def let_go_of_idle(host: PeerHost, book: PeerBook) -> None:
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
    host: PeerHost, shares: Callable[[str], bool | None], kept: Collection[str]
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


async def tell_when_alone(host: PeerHost, book: PeerBook, settings: P2PSettings) -> None:
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
