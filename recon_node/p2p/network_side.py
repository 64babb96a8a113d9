"""The network side: what it consists of, and its interface for the floors above."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog
import trio

from recon_node.p2p.context import Context
from recon_node.p2p.errors import PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.candidates import Candidates
from recon_node.p2p.peers.connections import (
    keep_reconnecting,
    let_go_of_idle,
    let_go_of_others,
    tell_when_alone,
)
from recon_node.p2p.peers.descriptions import (
    PeerIdentity,
    PeerInfo,
    RendezvousReport,
    recon_versions,
)
from recon_node.p2p.peers.dht import LibraryDht
from recon_node.p2p.peers.dht_server import networks_in
from recon_node.p2p.peers.discovery import Discovery
from recon_node.p2p.peers.draw import weights
from recon_node.p2p.peers.interest_gossip import InterestGossip
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.reports import ANOTHER_NETWORK, Counters, SyncHistory
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.driver import Syncer
from recon_node.p2p.sync.event_server import EventServer
from recon_node.p2p.sync.purses import Purses
from recon_node.p2p.sync.reconciler import Reconciler
from recon_node.p2p.sync.rings import MODEL_RING, PEER_RING, Rings
from recon_node.p2p.sync.sessions import Sessions
from recon_node.p2p.transport.addresses import is_loopback, peer_id_in
from recon_node.p2p.transport.host import Host
from recon_node.p2p.transport.streams import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.recon import KeyRange, Version
from recon_node.recon.ring.peer_ring import PeerRing
from recon_node.store import Store

log = structlog.get_logger(__name__)

ADDRESS_INTERVAL: Final = 30.0
"""Seconds between looks at this machine's own addresses."""


class P2P:
    """The running network side of the node. Get one from ``open_p2p``.

    With the entries of the peer ring, it syncs with ceramic-one nodes, too.
    """

    def __init__(
        self,
        host: Host,
        store: Store,
        book: PeerBook,
        settings: P2PSettings,
        versions: Sequence[Version[Any]],
        nursery: trio.Nursery,
        peer_ring: PeerRing | None = None,
    ) -> None:
        self._host, self._book, self._settings = host, book, settings
        self._network, self._wanted = store.network, store.wanted
        self._nursery = nursery
        self._versions = versions
        self.counters = Counters(memory=host.budget)
        """Totals since the start, for metrics."""
        self._history = SyncHistory(self.counters)
        self.sync_reports = self._history.reports
        """The latest sessions, the newest last."""
        self.transfers = self._history.transfers
        """The latest sessions that moved events, the newest last."""
        self.peer_id = host.peer_id
        """This node's peer id, in base58."""
        context, purses = Context(host, store, book, settings, self.counters), Purses()
        self._overlap = Overlap(store, book)
        self._sessions = Sessions(context, self._history)
        self._reconciler = Reconciler(context, self._sync, versions, purses, self._sessions)
        self._events = EventServer(context, purses)
        self._gossip = InterestGossip(context, self._sync, nursery)
        self._candidates = Candidates(
            host, book, store.wanted, self._overlap.shares, settings.max_connections
        )
        self._rings = None
        if peer_ring is not None and store.ring_keys is not None:
            better, memory = [version.id for version in versions], self._reconciler.memory
            self._rings = Rings(
                context, store.ring_keys, peer_ring, self._sessions, memory, self.found, better
            )
            nursery.start_soon(self._rings.run)
        self._syncer = Syncer(
            context,
            self._reconciler,
            self._gossip.wait_until_told,
            self._candidates.is_needed,
            self._rings,
        )
        self._discovery: Discovery | None = None
        for protocol in (EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL):
            host.handle(protocol, self._events.serve)
        if versions:  # the rings state their interests themselves
            host.handle(INTERESTS_PROTOCOL, self._gossip.serve)
        host.on_identified(self._identified)
        nursery.start_soon(self._syncer.run)
        nursery.start_soon(self._history.log_summaries)
        nursery.start_soon(self._watch_addresses)
        nursery.start_soon(tell_when_alone, host, book, settings)
        nursery.start_soon(let_go_of_idle, host, book)
        shares = self._overlap.shares
        nursery.start_soon(keep_reconnecting, host, book, shares, self._syncer.connect)
        nursery.start_soon(let_go_of_others, host, shares, set(map(peer_id_in, settings.bootstrap)))

    def discover_by(
        self, open_dht: Callable[[], LibraryDht], rng: random.Random | None = None
    ) -> None:
        """Find peers, and be found, through a DHT from now on."""
        self._discovery = Discovery(
            open_dht,
            self._network,
            self._wanted,
            self._settings.announce_interval,
            self.found,
            rng,
            self._candidates.has_enough,
            self._candidates.has_some,
        )
        self._nursery.start_soon(self._discovery.run)

    def found(self, peer_id: str, addresses: Sequence[str], sort_value: str | None = None) -> None:
        """Take a peer that was found, and sync with it if more of its kind are needed.

        Args:
            peer_id: the peer.
            addresses: multiaddrs, with or without /p2p/<peer id>.
            sort_value: at whose rendezvous it was found; None: it is a node of the network.
        """
        if self._candidates.found(peer_id, addresses, sort_value):
            self._syncer.request(peer_id)

    @property
    def addresses(self) -> list[str]:
        """The multiaddrs at which peers can reach this node, each with /p2p/<peer id>."""
        return self._host.addresses

    @property
    def protocols(self) -> frozenset[str]:
        """The libp2p protocols that this node speaks."""
        return self._host.own_protocols

    def interests_of(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that a peer has lately said to be interested in: of EventIds, or, from
        a ceramic-one node, of EventIds without height."""
        ring = [] if self._rings is None else self._rings.interests_of(peer_id)
        return ring + self._book.interests(peer_id)

    @property
    def provider_records(self) -> int:
        """The number of provider records that this node keeps in the DHT for others."""
        return 0 if self._discovery is None else self._discovery.records_kept

    def rendezvous(self) -> list[RendezvousReport]:
        """Return where this node announces itself in the DHT and looks for others, and what came of
        it; the network's rendezvous comes first. Empty without discovery."""
        return [] if self._discovery is None else self._discovery.reports()

    async def identify(self, peer_id: str) -> PeerIdentity | None:
        """Return what a connected peer says about itself; None if it is not connected.

        Raises:
            PeerError: it does not answer.
        """
        if not self._host.is_connected(peer_id):
            return None
        protocols = await self._host.protocols_of(peer_id)
        known = self._book.get(peer_id)
        addresses = () if known is None else tuple(known.addresses)
        return PeerIdentity(peer_id, addresses, *self._host.known_agent(peer_id), protocols)

    def peers(self) -> list[PeerInfo]:
        """Return the peers that the node knows, connected ones first."""
        connected = set(self._host.connected_peers())
        common = {each.id: self._overlap.describe(each.id) for each in self._book.peers()}
        now = trio.current_time()
        drawn = [each for each in self._book.peers() if each.id in connected]
        shares = weights([each.candidate(now) for each in drawn])
        scores = {each.id: w / sum(shares) for each, w in zip(drawn, shares, strict=True)}
        known = [
            PeerInfo(
                id=each.id,
                addresses=tuple(each.addresses),
                connected=each.id in connected,
                latency=self._host.latency(each.id) or each.latency,
                last_sync=max(filter(None, (each.last_sync, each.last_visit)), default=None),
                failures=each.failures,
                speaks=recon_versions(self._host.known_protocols(each.id)),
                shares=shared[0] if (shared := common[each.id]) else None,
                covers=shared[1] if shared else None,
                score=scores.get(each.id),
                behind=round(each.behind.now(now), 4),
            )
            for each in self._book.peers()
        ]
        return sorted(known, key=lambda each: (not each.connected, each.id))

    async def connect(self, multiaddr: str) -> None:
        """Connect to a peer at its multiaddr with /p2p/<peer id>, and sync with it soon.

        Raises:
            PeerError: nobody answers, or another peer does, or this node can never sync with the
                peer, which is then removed from the book.
        """
        try:
            peer_id = peer_id_in(multiaddr)
            was_connected = self._host.is_connected(peer_id)
            await self._host.connect(multiaddr, anew=True)
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
        """Take up a connected peer that has told its protocols and addresses."""
        if self._nursery.cancel_scope.cancel_called:
            return  # the node is stopping, and the nursery may be closed
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
        if self._versions:
            self._gossip.meet(peer_id)
        self._syncer.meet(peer_id)

    def _sync(self, peer_id: str, ranges: Sequence[KeyRange] | None = None) -> None:
        self._syncer.request(peer_id, ranges)

    async def _watch_addresses(self) -> None:
        """Announce the node again when its addresses have changed."""
        known = self.addresses
        while True:
            await trio.sleep(ADDRESS_INTERVAL)
            if self.addresses != known:
                known = self.addresses
                log.info("The addresses of this node have changed", addresses=known)
                if self._discovery is not None:
                    self._discovery.look_now()

    def _why_incompatible(self, protocols: frozenset[str]) -> str | None:
        """Return why this node can never sync with a peer of these protocols; None if it can.

        A peer without a DHT does not reveal its network before the first sync.
        """
        recon = {each.id for each in self._versions}
        if self._rings is not None:
            recon |= {PEER_RING, MODEL_RING}
        if protocols.isdisjoint(recon):
            return "does not speak Recon: it is not a node of the Ceramic network, or an old one"
        networks = networks_in(protocols)
        if networks and self._network.name not in networks:
            there = ", ".join(sorted(networks))[:100]
            return f"is on {ANOTHER_NETWORK} ({there}), this node is on {self._network}"
        return None
