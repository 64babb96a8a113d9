"""The network side as one thing: ``open_p2p`` starts it, ``P2P`` is what the floors above see."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
import trio

from recon_node.p2p.errors import MISBEHAVED, PeerError
from recon_node.p2p.nursery import open_service_nursery
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.discovery import Discovery, networks_in
from recon_node.p2p.peers.file import load_peers, save_peers
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.driver import Syncer
from recon_node.p2p.sync.event_server import EventServer
from recon_node.p2p.sync.mending import sync_when_damaged
from recon_node.p2p.sync.reports import ANOTHER_NETWORK, Counters, SyncHistory, SyncReport
from recon_node.p2p.sync.sessions import Sessions
from recon_node.p2p.transport.addresses import (
    check_dialable,
    is_dialable,
    is_loopback,
    parse_address,
    peer_id_in,
)
from recon_node.p2p.transport.budget import REFUSED_FOR
from recon_node.p2p.transport.host import Host, open_host
from recon_node.p2p.transport.identity import open_identity
from recon_node.p2p.transport.streams import EVENTS_PROTOCOL, shielded
from recon_node.recon.protocols import PROTOCOLS
from recon_node.store import Store

log = structlog.get_logger(__name__)

ENOUGH_PEERS: Final = 16
"""With so many connections, peers found through the DHT are noted, but not connected to at once."""
ALONE_AFTER: Final = 60.0
"""Seconds in which the peers that are known should have answered."""
ALONE_INTERVAL: Final = 1800.0
ADDRESS_INTERVAL: Final = 30.0
"""Seconds between looks at this machine's own addresses."""
_SAVE_INTERVAL: Final = 60.0
_SAVE_LIMIT: Final = 1.0


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What the node knows of a peer."""

    id: str
    addresses: tuple[str, ...]
    connected: bool
    latency: float | None
    """Seconds that a ping takes there and back."""
    last_sync: float | None
    """When a sync with it last ended in agreement, in seconds since 1970."""
    failures: int
    """Failures in a row; breaking a protocol counts as several."""


@asynccontextmanager
async def open_p2p(settings: P2PSettings, store: Store, data_dir: Path) -> AsyncIterator[P2P]:
    """Take part in the network of a store until the block ends.

    Raises P2PError when the identity cannot be used, an address cannot be listened on, or a
    bootstrap address is none.
    """
    for address in settings.bootstrap:
        peer_id_in(address)
        check_dialable(parse_address(address))
    identity = await trio.to_thread.run_sync(open_identity, data_dir)
    book = PeerBook(settings.max_known_peers)
    await load_peers(book, data_dir)
    async with open_host(settings, identity) as host, open_service_nursery() as nursery:
        p2p = P2P(host, store, book, settings, nursery)
        nursery.start_soon(_save_from_time_to_time, book, data_dir)
        log.info("Listening for peers", peer_id=p2p.peer_id, addresses=p2p.addresses)
        try:
            yield p2p
        finally:
            nursery.cancel_scope.cancel()
            with shielded(_SAVE_LIMIT):
                await save_peers(book, data_dir)


class P2P:
    """The running network side of the node. Get one from ``open_p2p``."""

    def __init__(
        self,
        host: Host,
        store: Store,
        book: PeerBook,
        settings: P2PSettings,
        nursery: trio.Nursery,
    ) -> None:
        self._host = host
        self._network = store.network
        self._book = book
        self._nursery = nursery
        self._history = SyncHistory(host.budget)
        self._sessions = Sessions(host, store, book, settings, self._history)
        self._events = EventServer(store, book, settings, self._history.counters)
        self._syncer = Syncer(host, store, book, self._sessions, settings)
        self._sessions.on_stranger = self._syncer.request  # so that it learns of us what we are
        self._discovery: Discovery | None = None
        for protocol in PROTOCOLS:
            host.handle(protocol.id, self._sessions.serve)
        host.handle(EVENTS_PROTOCOL, self._events.serve)
        host.on_identified(self._identified)
        host.budget.on_cut = self._cut_off
        nursery.start_soon(self._syncer.run)
        nursery.start_soon(self._watch_addresses)
        nursery.start_soon(tell_when_alone, host, book, settings)
        nursery.start_soon(
            sync_when_damaged,
            store,
            host.connected_peers,
            self._syncer.request,
            settings.sync_peers,
        )
        if settings.discovery:
            self._discovery = Discovery(
                host, store.network, settings.announce_interval, self._found
            )
            nursery.start_soon(self._discovery.run)

    @property
    def peer_id(self) -> str:
        """This node's peer id, in base58."""
        return self._host.peer_id

    @property
    def addresses(self) -> list[str]:
        """The multiaddrs that others reach this node by, each with /p2p/<peer id>."""
        return self._host.addresses

    @property
    def sync_reports(self) -> deque[SyncReport]:
        """The latest sessions, the newest last."""
        return self._history.reports

    @property
    def transfers(self) -> deque[SyncReport]:
        """The latest sessions that moved events, the newest last."""
        return self._history.transfers

    @property
    def counters(self) -> Counters:
        """Totals since the start, for metrics."""
        return self._history.counters

    def peers(self) -> list[PeerInfo]:
        """Return the peers that the node knows, connected ones first."""
        connected = set(self._host.connected_peers())
        known = [
            PeerInfo(
                id=each.id,
                addresses=tuple(each.addresses),
                connected=each.id in connected,
                latency=self._host.latency(each.id) or each.latency,
                last_sync=each.last_sync,
                failures=each.failures,
            )
            for each in self._book.peers()
        ]
        return sorted(known, key=lambda each: (not each.connected, each.id))

    async def connect(self, multiaddr: str) -> None:
        """Reach a peer at its multiaddr with /p2p/<peer id>, and sync with it soon.

        Raises PeerError when nobody answers there, when it is another peer, or when it is one that
        this node can never sync with; the text says why. Such a peer is not kept.
        """
        try:
            peer_id = peer_id_in(multiaddr)
            was_connected = self._host.is_connected(peer_id)
            await self._host.dial(multiaddr)
            reason = self._why_incompatible(await self._host.protocols_of(peer_id))
            if reason is not None:
                self._book.forget(peer_id)
                if not was_connected:
                    await self._host.disconnect(peer_id)
                raise PeerError(f"peer {peer_id} {reason}")
        except PeerError:
            self.counters.dials_failed += 1
            raise
        self._book.reached_at(peer_id, multiaddr)
        self._syncer.request(peer_id)

    def _identified(self, peer_id: str, addresses: list[str]) -> None:
        """A connected peer has told what it speaks, and where it listens."""
        if self._nursery.cancel_scope.cancel_called:
            return  # we are leaving, and the nursery may be closed
        reason = self._why_incompatible(self._host.known_protocols(peer_id))
        if reason is not None:
            self._book.forget(peer_id)
            tell = log.warning if self._host.has_dialled(peer_id) else log.info
            tell("Cannot sync with a peer", peer=peer_id, reason=f"it {reason}")
            return
        if not self._host.is_on_this_machine(peer_id):
            addresses = [each for each in addresses if not is_loopback(each)]
        peer = self._book.heard_of(peer_id, addresses, first_hand=True)
        log.info("Connected with a peer", peer=peer_id, addresses=peer.addresses)
        if self._discovery is not None:
            self._nursery.start_soon(self._discovery.join, peer_id)
        if self._host.has_dialled(peer_id):  # one side's sync does for both
            self._syncer.request(peer_id)

    def _cut_off(self, peer_id: str) -> None:
        """A peer made this node hold too much memory, and is refused for a while."""
        if self._book.get(peer_id) is not None:
            self._book.failed(peer_id, severity=MISBEHAVED, at_least=REFUSED_FOR)

    async def _watch_addresses(self) -> None:
        """Announce the node anew when a network comes up or another address is given to it."""
        known = self.addresses
        while True:
            await trio.sleep(ADDRESS_INTERVAL)
            if self.addresses != known:
                known = self.addresses
                log.info("This node is at other addresses now", addresses=known)
                if self._discovery is not None:
                    self._discovery.look_now()

    def _why_incompatible(self, protocols: frozenset[str]) -> str | None:
        """Why this node can never sync with a peer that speaks these protocols; None if it can.

        A peer that takes no part in a DHT does not say its network. Its first sync tells.
        """
        if not any(each.id in protocols for each in PROTOCOLS):
            return "does not speak Recon: it is not a node of the Ceramic network, or an old one"
        networks = networks_in(protocols)
        if networks and self._network.name not in networks:
            there = ", ".join(sorted(networks))[:100]
            return f"is on {ANOTHER_NETWORK} ({there}), this node is on {self._network}"
        return None

    def _found(self, peer_id: str, addresses: list[str]) -> None:
        """The DHT knows of a peer of our network."""
        is_new = self._book.get(peer_id) is None
        if not all(map(is_loopback, self.addresses)):
            addresses = [each for each in addresses if not is_loopback(each)]
        if is_new and not any(map(is_dialable, addresses)):
            return
        self._book.heard_of(peer_id, addresses)
        if is_new and len(self._host.connected_peers()) < ENOUGH_PEERS:
            log.info("Found a peer", peer=peer_id, addresses=addresses)
            self._syncer.request(peer_id)


async def tell_when_alone(host: Host, book: PeerBook, settings: P2PSettings) -> None:
    """Tell the operator of a node that has nobody to sync with, at the start and seldom again."""
    if settings.bootstrap or len(book):
        await trio.sleep(ALONE_AFTER)
    while True:
        if not any(map(book.get, host.connected_peers())):  # others take no part in the network
            log.warning(
                "This node is alone: no peer is connected. Name one that it can reach by "
                "--bootstrap (setting bootstrap), or by `recon-node peers add MULTIADDR`",
                known_peers=len(book),
            )
        await trio.sleep(ALONE_INTERVAL)


async def _save_from_time_to_time(book: PeerBook, data_dir: Path) -> None:
    saved = book.version
    while True:
        await trio.sleep(_SAVE_INTERVAL)
        if book.version != saved:
            saved = book.version
            await save_peers(book, data_dir)
