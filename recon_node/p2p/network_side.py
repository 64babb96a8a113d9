"""The network side: how it starts, what it consists of, and its interface for the layers above.

The peer book is kept in the file `peers.json`.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio
from libp2p.crypto.keys import KeyPair
from libp2p.peer.id import ID

from recon_node.base.errors import unwrapped
from recon_node.base.files import draft_of, move_into_place, read_small
from recon_node.p2p.context import Context, Counters
from recon_node.p2p.errors import MISBEHAVED, PeerError
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.connections import (
    Candidates,
    keep_reconnecting,
    let_go_of_idle,
    let_go_of_others,
    warn_when_alone,
)
from recon_node.p2p.peers.dht import LibraryDht
from recon_node.p2p.peers.dht_server import networks_in
from recon_node.p2p.peers.discovery import Discovery, RendezvousReport
from recon_node.p2p.peers.draw import weights
from recon_node.p2p.peers.interest_gossip import InterestGossip
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.event_server import EventServer
from recon_node.p2p.sync.event_stream import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.p2p.sync.reconciler import Reconciler
from recon_node.p2p.sync.rings import MODEL_RING, PEER_RING, Rings
from recon_node.p2p.sync.sessions import ANOTHER_NETWORK, Sessions, SyncHistory
from recon_node.p2p.sync.sync_scheduler import SyncScheduler
from recon_node.p2p.transport.addresses import (
    is_loopback,
    peer_id_in,
)
from recon_node.p2p.transport.guarded_connection import REFUSED_FOR, shielded
from recon_node.p2p.transport.host import Host, open_host
from recon_node.p2p.transport.identity import open_identity, signing_key_of
from recon_node.p2p.transport.private_network import fingerprint, read_swarm_key
from recon_node.recon import VERSIONS, KeyRange, Version
from recon_node.recon.ring.peer_ring import PeerRing
from recon_node.store import Store

logger = structlog.get_logger(__name__)

ADDRESS_INTERVAL: Final = 30.0
"""Seconds between looks at this machine's own addresses."""


class P2P:
    """The running network side of the node. Get one from `open_p2p`.

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
        save: Callable[[], Awaitable[None]],
        peer_ring: PeerRing | None = None,
    ) -> None:
        self._host, self._book, self._settings = host, book, settings
        self._save_book = save
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
        context, rate_limit = Context(host, store, book, settings, self.counters), KeyRateLimit()
        self._overlap = Overlap(store, book)
        self._sessions = Sessions(context, self._history)
        self._reconciler = Reconciler(context, self._sync, versions, rate_limit, self._sessions)
        self._events = EventServer(context, rate_limit)
        self._gossip = InterestGossip(context, self._sync, nursery, rate_limit.pay)
        self._candidates = Candidates(
            host, book, store.wanted, self._overlap.shares, settings.max_connections
        )
        self._rings = None
        if peer_ring is not None:
            better = [version.id for version in versions]
            self._rings = Rings(context, peer_ring, self._sessions, self.found, better)
        self._syncer = SyncScheduler(
            context,
            self._reconciler,
            self._overlap,
            self._gossip.wait_for_interests,
            self._candidates.is_needed,
            self._rings,
        )
        self._discovery: Discovery | None = None
        self._start()

    def _start(self) -> None:
        """Answer peers, and start the tasks that go on until the end."""
        host, book, settings, nursery = self._host, self._book, self._settings, self._nursery
        for protocol in (EVENTS_PROTOCOL, EVENTS_BY_ID_PROTOCOL):
            host.handle(protocol, self._events.serve)
        if self._versions:  # the rings state their interests themselves
            host.handle(INTERESTS_PROTOCOL, self._gossip.serve)
        host.on_identified(self._identified)
        if self._rings is not None:
            nursery.start_soon(self._rings.run)
        nursery.start_soon(self._syncer.run)
        nursery.start_soon(self._history.log_summaries)
        nursery.start_soon(self._watch_addresses)
        nursery.start_soon(warn_when_alone, host, book, settings)
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

        Its addresses may end with /p2p/<peer id>. `sort_value` says at whose rendezvous it was
        found; None: it is a node of the network.
        """
        if peer_id in self._book.removed:
            return
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
        common = {peer.id: self._overlap.describe(peer.id) for peer in self._book.peers()}
        now = trio.current_time()
        drawn = [peer for peer in self._book.peers() if peer.id in connected]
        shares = weights([peer.candidate(now) for peer in drawn])
        scores = {peer.id: w / sum(shares) for peer, w in zip(drawn, shares, strict=True)}
        known = [
            PeerInfo(
                id=peer.id,
                addresses=tuple(peer.addresses),
                connected=peer.id in connected,
                latency=self._host.latency(peer.id) or peer.latency,
                last_sync=max(filter(None, (peer.last_sync, peer.last_visit)), default=None),
                failures=peer.failures,
                speaks=recon_versions(self._host.known_protocols(peer.id)),
                shares=shared[0] if (shared := common[peer.id]) else None,
                covers=shared[1] if shared else None,
                score=scores.get(peer.id),
                behind=round(peer.behind.now(now), 4),
            )
            for peer in self._book.peers()
        ]
        return sorted(known, key=lambda peer: (not peer.connected, peer.id))

    async def connect(self, multiaddr: str) -> None:
        """Connect to a peer at its multiaddr with /p2p/<peer id>, and sync with it soon.

        Raises:
            PeerError: nobody answers, or another peer does, or this node can never sync with the
                peer, which is then removed from the book.
        """
        try:
            peer_id = peer_id_in(multiaddr)
            if self._book.take_back(peer_id):
                await self._save_book()
            was_connected = self._host.is_connected(peer_id)
            await self._host.connect(multiaddr, redial=True)
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

    async def remove(self, peer_id: str) -> None:
        """Disconnect a peer, and refuse it until `connect` is called for it, on disk as well."""
        self._book.remove(peer_id)
        await self._save_book()
        await self._host.disconnect(peer_id)
        logger.info("Removed a peer", peer=peer_id)

    @property
    def removed(self) -> list[str]:
        """The peers that were removed, ascending."""
        return sorted(self._book.removed)

    def _identified(self, peer_id: str, addresses: list[str]) -> None:
        """Take up a connected peer that has stated its protocols and addresses."""
        if self._nursery.cancel_scope.cancel_called:
            return  # the node is stopping, and the nursery may be closed
        reason = self._why_incompatible(self._host.known_protocols(peer_id))
        if reason is not None:
            self._book.forget(peer_id)
            log = logger.warning if self._host.has_dialled(peer_id) else logger.info
            log("Cannot sync with a peer", peer=peer_id, reason=f"it {reason}")
            return
        if not self._host.is_on_this_machine(peer_id):
            addresses = [address for address in addresses if not is_loopback(address)]
        peer = self._book.note_peer(peer_id, addresses, first_hand=True)
        logger.info("Connected with a peer", peer=peer_id, addresses=peer.addresses)
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
                logger.info("The addresses of this node have changed", addresses=known)
                if self._discovery is not None:
                    self._discovery.look_now()

    def _why_incompatible(self, protocols: frozenset[str]) -> str | None:
        """Return why this node can never sync with a peer of these protocols; None if it can.

        A peer without a DHT does not reveal its network before the first sync.
        """
        recon = {version.id for version in self._versions}
        if self._rings is not None:
            recon |= {PEER_RING, MODEL_RING}
        if protocols.isdisjoint(recon):
            return "does not speak Recon: it is not a node of the Ceramic network, or an old one"
        networks = networks_in(protocols)
        if networks and self._network.name not in networks:
            there = ", ".join(sorted(networks))[:100]
            return f"is on {ANOTHER_NETWORK} ({there}), this node is on {self._network}"
        return None


_SAVE_INTERVAL: Final = 60.0
"""Seconds between two looks whether the peer book must be saved."""
_SAVE_LIMIT: Final = 1.0
"""Seconds in which the peer book is saved at the end."""


@asynccontextmanager
async def open_p2p(
    settings: P2PSettings, store: Store, data_dir: Path, versions: Sequence[Version[Any]] = VERSIONS
) -> AsyncIterator[P2P]:
    """Take part in the network of a store until the block ends.

    `versions` are the versions of recon to speak, best first.

    Raises:
        P2PError: the identity or the swarm key cannot be used, an address cannot be listened on, or
            a bootstrap address is not valid.
    """
    if store.has_ring:  # public bootstrap nodes speak only the rings
        settings = settings.joining(store.network)
    for address in settings.bootstrap:
        peer_id_in(address)
    identity = await trio.to_thread.run_sync(open_identity, data_dir)
    swarm_key = await _read_swarm_key(settings.swarm_key_file)
    book = PeerBook(settings.max_known_peers)
    await load_peers(book, data_dir)
    with unwrapped():
        async with (
            open_host(
                settings, identity, partial(_note_cut_off, book), swarm_key, book.removed
            ) as host,
            trio.open_nursery() as nursery,
        ):
            peer_ring = _peer_ring(identity, book) if store.has_ring else None
            save = partial(save_peers, book, data_dir)
            p2p = P2P(host, store, book, settings, versions, nursery, save, peer_ring)
            if settings.discovery:
                p2p.discover_by(partial(LibraryDht, host, store.network))
            nursery.start_soon(_save_from_time_to_time, book, data_dir)
            logger.info("Listening for peers", peer_id=p2p.peer_id, addresses=p2p.addresses)
            try:
                yield p2p
            finally:
                nursery.cancel_scope.cancel()
                with shielded(_SAVE_LIMIT):
                    await save()


async def _read_swarm_key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    key = await trio.to_thread.run_sync(read_swarm_key, path)
    logger.info("This node is in a private network", swarm_key_fingerprint=fingerprint(key))
    return key


def _peer_ring(identity: KeyPair, book: PeerBook) -> PeerRing:
    def was_connected(peer_id: str) -> bool:
        peer = book.get(peer_id)
        return peer is not None and peer.last_sync is not None

    return PeerRing(signing_key_of(identity), pick=random.randrange, was_connected=was_connected)


def _note_cut_off(book: PeerBook, peer_id: str) -> None:
    """Leave a peer alone that was cut off because of its memory, as long as it is refused."""
    if book.get(peer_id) is not None:
        book.failed(peer_id, severity=MISBEHAVED, at_least=REFUSED_FOR)


async def _save_from_time_to_time(book: PeerBook, data_dir: Path) -> None:
    saved = book.version
    while True:
        await trio.sleep(_SAVE_INTERVAL)
        if book.version != saved:
            saved = book.version
            await save_peers(book, data_dir)


PEERS_FILE: Final = "peers.json"
_MAX_PEERS: Final = 64 * 1024 * 1024
"""Bytes of it."""
_UNUSABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What reading a file of any content may raise."""


async def load_peers(book: PeerBook, data_dir: Path) -> None:
    """Load the book from its file, if there is one. A file that cannot be used is renamed."""
    path = data_dir / PEERS_FILE
    try:
        text = await trio.to_thread.run_sync(read_small, path, _MAX_PEERS)
        content = json.loads(text)
        book.removed.update(map(str, content.get("removed", ())))
        for row in content["peers"]:
            ID.from_string(row["id"])  # else it could be neither dialled nor looked up
        book.load(content["peers"])
    except FileNotFoundError:
        return
    except (*_UNUSABLE, OSError) as error:
        aside = path.with_suffix(".broken")
        await trio.to_thread.run_sync(os.replace, path, aside)
        logger.warning("Cannot read the peer book; starting without it", path=str(path),
                    error=str(error), kept_as=str(aside))  # fmt: skip


async def save_peers(book: PeerBook, data_dir: Path) -> None:
    """Save the book. If the disk fails, this is logged and the node continues."""
    content = json.dumps({"peers": book.to_json(), "removed": sorted(book.removed)}, indent=1)
    path = data_dir / PEERS_FILE
    try:
        await trio.to_thread.run_sync(_write, path, content)
    except OSError as error:
        logger.warning("Cannot write the peer book", path=str(path), error=str(error))


def _write(path: Path, content: str) -> None:
    # At the end of the node, an earlier save may still be under way in its thread.
    with draft_of(path, wait=True) as draft:
        draft.write_text(content)
        move_into_place(draft, path)


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What the node knows of a peer."""

    id: str
    """The peer id."""
    addresses: tuple[str, ...]
    """The multiaddrs where it was reached, or is said to be."""
    connected: bool
    latency: float | None
    """The round-trip time in seconds."""
    last_sync: float | None
    """When a sync last ended in agreement, in seconds since 1970."""
    failures: int
    """Failures in a row; breaking a protocol counts as several."""
    speaks: tuple[str, ...]
    """The versions of recon that it says it speaks, the highest first, such as recon/1.2.0;
    recon/0.1.0 is that of ceramic-one nodes. None before it has been connected."""
    shares: tuple[str, ...] | None = None
    """Interests of this node of which the peer shares at least a part, 20 at most, written like
    model=kjzl6hvfrbw6c...; empty if this node has none. None if the peer's are not known, as those
    of ceramic-one nodes."""
    covers: float | None = None
    """The share of this node's events that the peer is interested in, from 0 to 1; None if that is
    not known."""
    score: float | None = None
    """How likely it is drawn for the next sync: its share of the weights of all connected peers,
    from 0 to 1. None if it is not connected."""
    behind: float = 0.0
    """How far it and this node were apart lately: the share of the common keys that one of them
    lacked, from 0 to 1, which fades."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What a connected peer says about itself."""

    id: str
    """The peer id."""
    addresses: tuple[str, ...]
    """The multiaddrs where it was reached, or is said to be."""
    agent_version: str
    """Its software."""
    protocol_version: str
    """That of libp2p's identify protocol."""
    protocols: frozenset[str]
    """What it speaks."""


_RECON: Final = re.compile(r"/ceramic/(recon/(\d{1,9}\.\d{1,9}\.\d{1,9}))(?:/|$)", re.ASCII)


def recon_versions(protocols: Iterable[str]) -> tuple[str, ...]:
    """Return the versions of recon among some protocol ids, the highest first."""
    by_version = {match[1]: match[2] for protocol in protocols if (match := _RECON.match(protocol))}
    return tuple(
        sorted(by_version, key=lambda name: [*map(int, by_version[name].split("."))], reverse=True)
    )
