"""What sessions with ceramic-one nodes are about: the peer ring, and the model ring, of
`/ceramic/recon/0.1.0`. `sync_scheduler` says when there is one.

The peer ring is kept with every peer that speaks it. Events are exchanged on the model ring only
with peers that speak no version of recon that is better; so nothing comes twice.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

import structlog
import trio

from recon_node.base.latest import Remembered
from recon_node.ceramic.heightless_event_id import is_fencepost
from recon_node.p2p.context import Context
from recon_node.p2p.errors import PeerProtocolError
from recon_node.p2p.peers.book import MAX_INTERESTS
from recon_node.p2p.sync.ring_events import RingEvents, RingWire
from recon_node.p2p.sync.sessions import (
    AGREED,
    NO_COMMON_INTEREST,
    PeerSlots,
    SessionRun,
    Sessions,
    SyncReport,
    Tally,
)
from recon_node.p2p.transport.framing import PeerFrames
from recon_node.recon import Failed, Fetch, FetchById, KeyRange
from recon_node.recon.actions import Admit, Value
from recon_node.recon.ring.differences import Differences, Ending, Exchange
from recon_node.recon.ring.peer_ring import (
    MAX_ENTRIES,
    EntryVerdict,
    PeerEntry,
    PeerRing,
    unexpired,
)
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import KeyForm, Message
from recon_node.recon.ring.ring_session import Initiator, Responder

logger = structlog.get_logger(__name__)

PEER_RING: Final = "/ceramic/recon/0.1.0/peer"
MODEL_RING: Final = "/ceramic/recon/0.1.0/model"
IDLE_TIMEOUT: Final = 60.0
"""Seconds in which a peer must send or take something; a ceramic-one node is slow to admit."""
FOUND_AT_ONCE: Final = 32
"""Entries whose nodes may be dialled, in a sync interval: new ones, and some at random."""
MAX_NEW_ENTRIES: Final = 2 * MAX_ENTRIES
"""Entries that a session of the peer ring may bring; each costs the check of a signature."""

MAX_KEPT_BOUND: Final = 64
"""The most bytes of a bound of a peer's interest that is kept; fenceposts have 32 or less."""


class Rings:
    """Keeps the rings of this node equal to those of its peers.

    `on_found` is called with each node that the peer ring names, and its addresses. With peers
    that speak a protocol in `better`, events are exchanged by that instead.
    """

    def __init__(
        self,
        context: Context,
        peer_ring: PeerRing,
        sessions: Sessions,
        on_found: Callable[[str, list[str]], None],
        better: Sequence[str],
    ) -> None:
        settings = self._settings = context.settings
        self._host, self._store, self._book = context.host, context.store, context.book
        self._peer_ring = peer_ring
        self._sessions = sessions
        self._peers = RingPeers(settings.max_known_peers)
        self._on_found = on_found
        self._better = frozenset(better)
        self.slots = PeerSlots(settings.max_sessions, settings.max_sessions_per_peer)
        """For the sessions that peers start."""
        self._at_once = trio.CapacityLimiter(settings.max_sessions)
        self._finds_left = FOUND_AT_ONCE
        """How many more entries are passed on before the ring is looked after again."""
        self._peer_interests: dict[str, list[KeyRange]] = {}
        for protocol in (PEER_RING, MODEL_RING):
            sessions.register(protocol, self.slots, self.begin_answer)

    async def run(self) -> None:
        """Keep the peer ring up to date, until cancelled."""
        while True:
            wait = self._peer_ring.refresh(int(time.time()), self._host.addresses)
            self._finds_left = FOUND_AT_ONCE
            others = self._peer_ring.others()
            for entry in random.sample(others, min(FOUND_AT_ONCE // 2, len(others))):
                self._note_found(entry)
            await trio.sleep(min(wait, self._settings.sync_interval))

    def interests_of(self, peer_id: str) -> list[KeyRange]:
        """Return what a connected peer has said to be interested in on the model ring."""
        return self._peer_interests.get(peer_id, [])

    def spoken_with(self, peer_id: str) -> tuple[list[str], bool]:
        """Return the rings to sync with a connected peer, and whether events are exchanged by a
        better version."""
        speaks = self._host.known_protocols(peer_id)
        is_one_of_ours = not speaks.isdisjoint(self._better)
        rings = (PEER_RING,) if is_one_of_ours else (PEER_RING, MODEL_RING)
        return [ring for ring in rings if ring in speaks], is_one_of_ours

    async def sync(self, peer_id: str, rings: Sequence[str]) -> bool:
        """Run a session for each ring, one after the other, until one is not complete.

        Returns:
            Whether the next ones may come soon: what is refused will not come again in them.

        Raises:
            Exception: one of `PEER_FAILURES` if a session fails.
            StoreError: the disk failed.
        """
        if MODEL_RING in rings:
            await self._store.load_ring_keys()
        for ring in rings:
            async with self._at_once:
                run = await self._sessions.initiate(
                    peer_id, [ring], partial(self._begin, Initiator)
                )
            self._book.synced(peer_id, self._host.latency(peer_id), time.time())
            if not run.is_complete:
                return False
        return True

    async def begin_answer(self, frames: PeerFrames) -> RingRun:
        """Begin a session that a peer starts.

        Raises:
            StoreError: the disk failed.
        """
        if frames.stream.protocol == MODEL_RING:
            await self._store.load_ring_keys()
        return self._begin(Responder, frames)

    def _begin(self, role: type[Initiator] | type[Responder], frames: PeerFrames) -> RingRun:
        stream, exchange = frames.stream, None
        events: RingEvents | PeerEntries
        if stream.protocol == MODEL_RING:
            interests, form = self._store.wanted.ring_ranges, KeyForm.BYTES
            agent = self._host.known_agent(stream.peer_id)
            known = self._peers.differences_with(stream.peer_id, agent, interests)
            assert self._store.ring_keys is not None
            exchange = known.begin(self._store.ring_keys)
            ring = Ring(exchange.keys, is_fencepost)
            events = RingEvents(stream.peer_id, self._store, stream.account, exchange, ring)
        else:
            interests, form = [unexpired(int(time.time()))], KeyForm.TEXT
            ring = self._peer_ring.ring
            events = PeerEntries(self._peer_ring, self._note_found)
        session = role(ring, interests)
        hold = partial(stream.account.hold, "ring values")
        sync_id = str(uuid.uuid4()) if role is Initiator else None
        wire = RingWire(stream, session, form, events.values, hold, IDLE_TIMEOUT, sync_id)
        return RingRun(frames, session, wire, events, self, exchange)

    def note_interests(self, peer_id: str, ranges: list[KeyRange]) -> None:
        """Note what a peer has said to be interested in, as long as it is connected."""
        connected = set(self._host.connected_peers())
        kept = {
            peer_id: known
            for peer_id, known in self._peer_interests.items()
            if peer_id in connected
        }
        short = (key_range for key_range in ranges if max(map(len, key_range)) <= MAX_KEPT_BOUND)
        self._peer_interests = {**kept, peer_id: list(islice(short, MAX_INTERESTS))}

    def end(self, run: RingRun, exchange: Exchange, *, hung_up: bool) -> None:
        """Remember what a session of the model ring has shown of its peer."""
        ending = Ending.WELL if run.went_well else Ending.BROKEN_OFF
        if hung_up and self._host.is_connected(run.peer_id):
            ending = Ending.PEER_HUNG_UP
        exchange.end(ending)
        self._peers.weigh_differences(run.peer_id)

    def _note_found(self, entry: PeerEntry) -> None:
        """Pass on where a node can be reached; made-up entries must not have us dial at will."""
        if self._finds_left:
            self._finds_left -= 1
            self._on_found(entry.peer_id, list(entry.addresses))


class PeerEntries:
    """Takes and gives the entries of a session of the peer ring."""

    def __init__(self, peer_ring: PeerRing, on_found: Callable[[PeerEntry], None]) -> None:
        self._peer_ring = peer_ring
        self._on_found = on_found
        self.tally = Tally()

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        """Keep the entries of other nodes.

        Raises:
            PeerProtocolError: one is not valid, or there are too many.
        """
        assert isinstance(action, Admit)  # the rings send values unasked
        self.tally.keys_received += len(action.values)
        if self.tally.keys_received > MAX_NEW_ENTRIES:
            raise PeerProtocolError(f"the peer sent {self.tally.keys_received} new peer entries")
        now = int(time.time())
        for value in action.values:
            verdict = self._peer_ring.admit(value.key, now)
            if verdict is EntryVerdict.INVALID:
                raise PeerProtocolError("the peer sent a peer entry that is not valid")
            entry = self._peer_ring.entry(value.key)
            if verdict is EntryVerdict.ADDED and entry is not None:
                self._on_found(entry)
            await trio.lowlevel.checkpoint()  # each costs a signature
        return None

    async def values(self, first: bytes, last: bytes) -> AsyncGenerator[Value, None]:
        """Yield the entries of a half-open range; a key is all that there is of one."""
        for key in self._peer_ring.ring.keys(first, last):
            yield Value(key, b"")


class RingRun(SessionRun[Message]):
    """A session of either ring."""

    keeps_idle_report = False  # the rings are synced every second: these would push out all others
    session: Initiator | Responder
    performer: RingEvents | PeerEntries

    def __init__(
        self,
        frames: PeerFrames,
        session: Initiator | Responder,
        wire: RingWire,
        events: RingEvents | PeerEntries,
        rings: Rings,
        exchange: Exchange | None,
    ) -> None:
        super().__init__(frames, session, wire, events)
        self.went_well = False
        self._rings = rings
        self._exchange = exchange

    @property
    def is_complete(self) -> bool:
        """Whether the next session may come soon: what is refused will not come again in it."""
        exchange = self._exchange
        return exchange is None or not exchange.unremembered or bool(self.tally.events_received)

    def conclude(self) -> str:
        """Return what came of a session that ended well."""
        self.went_well = True
        if isinstance(self.performer, RingEvents):
            self.performer.end()
            self._rings.note_interests(self.peer_id, self.session.peer_interests)
        return AGREED if self.session.overlap else NO_COMMON_INTEREST

    def left_out(self) -> tuple[int, int]:
        """Return how many keys of the peer we left out, and how many of ours it did."""
        known = self._exchange
        return (0, 0) if known is None else (known.left_out, known.left_out_by_peer)

    def end(self, outcome: str, *, hung_up: bool) -> SyncReport:
        """Take note that the session has ended; return its report."""
        if self._exchange is not None:
            self._rings.end(self, self._exchange, hung_up=hung_up)
        return super().end(outcome, hung_up=hung_up)


MAX_DIFFERENCES: Final = 50_000
"""Maximum events that either side refuses on the model ring, of all peers: about 15 MB. The peer
whose last session was the longest ago makes room."""


@dataclass(slots=True)
class RingPeer:
    """A peer on the model ring."""

    agent: tuple[str, str]
    """Its program, with the version."""
    interests: Sequence[KeyRange]
    """What this node was interested in."""
    differences: Differences = field(default_factory=lambda: Differences(time.monotonic))


class RingPeers:
    """What this node and its peers on the model ring refuse of each other."""

    def __init__(self, max_peers: int = 1000) -> None:
        least = MAX_DIFFERENCES // max_peers
        self._peers = Remembered[str, RingPeer](
            MAX_DIFFERENCES, weigh=lambda peer: least + len(peer.differences)
        )

    def differences_with(
        self, peer_id: str, agent: tuple[str, str], interests: Sequence[KeyRange]
    ) -> Differences:
        """Return what a peer on the model ring and this node refuse of each other.

        It is forgotten when the node restarts and when a peer becomes another program or version:
        either may take more then. What this node refuses is tried again when its interests change.
        """
        peer = self._peers.get(peer_id, None)
        if peer is None or peer.agent != agent:
            peer = RingPeer(agent, interests)
        if peer.interests != interests:
            peer.differences.forget_refused_here()
            peer.interests = interests
        self._peers.put(peer_id, peer)
        return peer.differences

    def weigh_differences(self, peer_id: str) -> None:
        """Take note that the differences with a peer have changed."""
        peer = self._peers.get(peer_id, None)
        if peer is not None:
            self._peers.put(peer_id, peer)
