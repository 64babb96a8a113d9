"""Syncing with ceramic-one nodes: the model ring and the peer ring of `/ceramic/recon/0.1.0`.

Of two connected nodes, only the one that dialled starts sessions, one at a time: first the peer
ring's, then the model ring's, and again a second after that. A session that fails is followed by a
longer and longer pause.

The peer ring is kept with every peer that speaks it. Events are exchanged on the model ring only
with peers that speak no version of recon that is better; so nothing comes twice.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
import trio

from recon_node.backoff import Backoff
from recon_node.ceramic.heightless_event_id import HeightlessEventId, is_fencepost
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    PeerGoneError,
    PeerProtocolError,
    describe_error,
)
from recon_node.p2p.interfaces import PeerHost
from recon_node.p2p.peers.book import MAX_INTERESTS, PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.reports import (
    AGREED,
    CANCELLED,
    NO_COMMON_INTEREST,
    SyncHistory,
    SyncReport,
)
from recon_node.p2p.sync.ring_differences import RingDifferences
from recon_node.p2p.sync.ring_intake import RingIntake
from recon_node.p2p.sync.ring_stream import RingStream, Traffic
from recon_node.p2p.sync.stream_slots import Slots
from recon_node.p2p.transport.streams import PeerStream
from recon_node.recon import KeyRange, KeyView
from recon_node.recon.ring.codec import KeyForm, Value
from recon_node.recon.ring.differences import Ending, Exchange
from recon_node.recon.ring.peer_entry import PeerEntry
from recon_node.recon.ring.peer_ring import MAX_ENTRIES, PeerRing, Verdict
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.session import Initiator, Responder
from recon_node.store import Store, StoreError

log = structlog.get_logger(__name__)

PEER_RING: Final = "/ceramic/recon/0.1.0/peer"
MODEL_RING: Final = "/ceramic/recon/0.1.0/model"
BETWEEN_SYNCS: Final = Backoff(first=1.0, longest=600.0)
"""The pauses between syncs with a peer, in seconds: the first after success, as ceramic-one's."""
IDLE_TIMEOUT: Final = 60.0
"""Seconds in which a peer must send or take something; a ceramic-one node is slow to admit."""
FOUND_AT_ONCE: Final = 32
"""Entries whose nodes may be dialled, in a sync interval: new ones, and some at random."""
MAX_NEW_ENTRIES: Final = 2 * MAX_ENTRIES
"""Entries that a session of the peer ring may bring; each costs the check of a signature."""

HUNG_UP: Final = (PeerGoneError, trio.BrokenResourceError)
"""The errors of a session whose stream the peer has ended."""
MAX_KEPT_BOUND: Final = 64
"""The most bytes of a bound of a peer's interest that is kept; fenceposts have 32 or less."""


@dataclass(slots=True)
class _Session:
    """A session under way, with what its report needs."""

    peer_id: str
    protocol: str
    session: Initiator | Responder
    exchange: Exchange | None
    intake: RingIntake | None
    traffic: Traffic = field(default_factory=Traffic)
    started: float = field(default_factory=trio.current_time)

    def report(self, outcome: str) -> SyncReport:
        traffic, events = self.traffic, self.intake
        return SyncReport(
            peer=self.peer_id,
            role="initiator" if isinstance(self.session, Initiator) else "responder",
            protocol=self.protocol,
            rounds=traffic.responses,
            bytes_sent=traffic.bytes_sent,
            bytes_received=traffic.bytes_received,
            event_bytes_sent=traffic.value_bytes_sent,
            event_bytes_received=traffic.value_bytes_received,
            keys_received=self.session.new_keys,
            events_received=0 if events is None else events.events_received,
            events_sent=0 if events is None else traffic.values_sent,
            seconds=trio.current_time() - self.started,
            keys_left_out=0 if self.exchange is None else self.exchange.left_out,
            keys_left_out_by_peer=0 if self.exchange is None else self.exchange.left_out_by_peer,
            outcome=outcome,
            finished_at=time.time(),
        )


class Rings:
    """Keeps the rings of this node equal to those of its peers.

    Args:
        host: opens streams to peers.
        store: its events are those of the model ring.
        keys: the keys of the model ring.
        peer_ring: the entries of the peer ring.
        book: is told which peers there are, and how they behave.
        settings: the limits.
        history: gets a report of each session.
        found: called with each node that the peer ring tells of, and its addresses.
        better: the protocols with which events are exchanged instead.
    """

    def __init__(
        self,
        host: PeerHost,
        store: Store,
        keys: KeyView,
        peer_ring: PeerRing,
        book: PeerBook,
        settings: P2PSettings,
        history: SyncHistory,
        found: Callable[[str, list[str]], None],
        better: Sequence[str],
    ) -> None:
        self._host = host
        self._store = store
        self._keys = keys
        self._peer_ring = peer_ring
        self._book = book
        self._settings = settings
        self._history = history
        self._found = found
        self._better = frozenset(better)
        self._slots = Slots(settings.max_sessions, settings.max_sessions_per_peer)
        self._at_once = trio.CapacityLimiter(settings.max_sessions)
        self._to_find = FOUND_AT_ONCE
        """How many more entries are passed on before the ring is looked after again."""
        self._differences = RingDifferences(settings.max_known_peers)
        self._syncing: set[str] = set()
        self._peer_interests: dict[str, list[KeyRange]] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Keep the peer ring up to date, and sync with the peers that `meet` names."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            while True:
                wait = self._peer_ring.refresh(int(time.time()), self._host.addresses)
                self._to_find = FOUND_AT_ONCE
                others = self._peer_ring.others()
                for entry in random.sample(others, min(FOUND_AT_ONCE // 2, len(others))):
                    self._note_found(entry)
                await trio.sleep(min(wait, self._settings.sync_interval))

    def meet(self, peer_id: str) -> None:
        """Sync with a connected peer from now on, if it is this node that dialled it."""
        speaks = self._host.known_protocols(peer_id)
        is_ours_to_start = self._host.has_dialled(peer_id) and not speaks.isdisjoint(
            (PEER_RING, MODEL_RING)
        )
        if is_ours_to_start and peer_id not in self._syncing and self._nursery is not None:
            self._syncing.add(peer_id)
            self._nursery.start_soon(self._keep_in_sync, peer_id, speaks)

    def interests_of(self, peer_id: str) -> list[KeyRange]:
        """Return what a connected peer has said to be interested in on the model ring."""
        return self._peer_interests.get(peer_id, [])

    def _note_interests(self, peer_id: str, ranges: list[KeyRange]) -> None:
        connected = set(self._host.connected_peers())
        kept = {each: known for each, known in self._peer_interests.items() if each in connected}
        kept[peer_id] = [
            each for each in ranges if max(len(each.lower), len(each.upper)) <= MAX_KEPT_BOUND
        ][:MAX_INTERESTS]
        self._peer_interests = kept

    async def serve(self, stream: PeerStream) -> None:
        """Answer a session that a peer starts, on either ring."""
        scope = trio.CancelScope()
        with self._slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot:
            if not has_slot:
                await stream.reset()
                return
            try:
                with scope:
                    await self._run(stream, Responder)
                    self._book.was_visited(stream.peer_id, time.time())
            except (*PEER_FAILURES, StoreError) as error:  # reported already
                if isinstance(error, BROKEN_PROTOCOL):
                    self._book.failed(stream.peer_id, severity=MISBEHAVED)
                await stream.reset()

    async def _keep_in_sync(self, peer_id: str, speaks: frozenset[str]) -> None:
        is_one_of_ours = not speaks.isdisjoint(self._better)
        rings = [PEER_RING] if is_one_of_ours else [PEER_RING, MODEL_RING]
        pause = self._settings.sync_interval if is_one_of_ours else BETWEEN_SYNCS.first
        pauses = replace(BETWEEN_SYNCS, first=pause)
        failures = 0
        try:
            while self._host.is_connected(peer_id):
                interests = self._store.wanted.all
                went_well = True
                for ring in rings:
                    if ring in speaks:
                        async with self._at_once:
                            went_well = went_well and await self._try_to_sync(peer_id, ring)
                failures = 1 if went_well else failures + 1
                with trio.move_on_after(pauses.wait(failures, random.random())):
                    await self._store.wanted.wait_for_change(interests)
                    failures = 0  # there may be more to take now: sync at once
        finally:
            self._syncing.discard(peer_id)

    async def _try_to_sync(self, peer_id: str, protocol: str) -> bool:
        """Run a session that this node starts; tell whether to come back soon."""
        try:
            stream = await self._host.open_stream(peer_id, protocol)
            try:
                ended = await self._run(stream, Initiator)
            except BaseException:
                await stream.reset()
                raise
            await stream.aclose()
        except PEER_FAILURES as error:
            severity = MISBEHAVED if isinstance(error, BROKEN_PROTOCOL) else 1
            self._book.failed(peer_id, severity=severity)
            log.info("Cannot sync with a peer now", peer=peer_id, reason=describe_error(error))
            return False
        except StoreError as error:
            log.error("Cannot sync: the store is failing", peer=peer_id, reason=str(error))
            return False
        self._book.synced(peer_id, self._host.latency(peer_id), time.time())
        exchange, intake = ended.exchange, ended.intake
        if exchange is None or intake is None:
            return True
        return not exchange.unremembered or bool(intake.events_received)

    async def _run(self, stream: PeerStream, role: type[Initiator] | type[Responder]) -> _Session:
        """Run a session to its end within its time, and report how it went."""
        run, on_stream = self._prepare(stream, role)
        outcome, ending = CANCELLED, Ending.BROKEN_OFF
        try:
            with trio.move_on_after(self._settings.session_timeout) as deadline:
                await on_stream.run(run.traffic)
            if deadline.cancelled_caught:
                raise PeerProtocolError(
                    f"the session took longer than {self._settings.session_timeout:g} s"
                )
            if run.intake is not None:
                run.intake.end()
                self._note_interests(stream.peer_id, run.session.peer_interests)
            outcome = AGREED if run.session.overlap else NO_COMMON_INTEREST
            ending = Ending.WELL
        except Exception as error:
            outcome = describe_error(error)
            if isinstance(error, HUNG_UP) and self._host.is_connected(stream.peer_id):
                ending = Ending.PEER_HUNG_UP
            raise
        finally:
            if run.exchange is not None:
                run.exchange.end(ending)
            # The rings are synced every second: idle sessions would push out all others.
            self._history.add(run.report(outcome), keep_idle=False)
        return run

    def _prepare(
        self, stream: PeerStream, role: type[Initiator] | type[Responder]
    ) -> tuple[_Session, RingStream]:
        peer_id = stream.peer_id
        exchange = intake = None
        if stream.protocol == MODEL_RING:
            interests = self._store.wanted.ring_ranges
            exchange = self._differences.begin(
                peer_id, self._host.known_agent(peer_id), interests, self._keys
            )
            intake = RingIntake(peer_id, self._store, stream.account, exchange)
            ring = Ring(exchange.keys, is_fencepost)
        else:
            interests = [self._peer_ring.interest(int(time.time()))]
            ring = self._peer_ring.ring
        run = _Session(peer_id, stream.protocol, role(ring, interests), exchange, intake)
        return run, RingStream(
            stream=stream,
            session=run.session,
            ring=ring,
            keys=KeyForm.TEXT if exchange is None else KeyForm.BYTES,
            arrange=_leave_in_order if exchange is None else partial(self._choose_events, exchange),
            load=_load_entries if exchange is None else partial(self._load_events, exchange),
            admit=partial(self._admit_entries, run.session) if intake is None else intake.admit,
            idle_timeout=IDLE_TIMEOUT,
            hold=partial(stream.account.hold, "ring values"),
            sync_id=str(uuid.uuid4()) if role is Initiator else None,
        )

    async def _choose_events(self, exchange: Exchange, keys: list[bytes]) -> list[bytes]:
        """Leave out events that the peer refuses; sort the others so that each comes after those
        of its stream that it builds on.

        A ceramic-one node takes events in any order, but of several with the same prev that come
        before it, its feed gets only one until the node starts again.
        """
        cids = {key: HeightlessEventId(key).event_cid for key in exchange.to_send(keys)}
        found = await self._store.get_event_ids(list(cids.values()))
        return sorted(cids, key=lambda key: (*found.get(cids[key], (b"",))[:1], key))

    async def _load_events(self, exchange: Exchange, keys: list[bytes]) -> list[Value]:
        cids = [HeightlessEventId(key).event_cid for key in keys]
        cars = await self._store.get_cars_by_cid(cids)
        values = [Value(key, car) for key, car in zip(keys, cars, strict=True) if car is not None]
        for value in values:
            exchange.note_sent(value.key)
        return values

    async def _admit_entries(
        self, session: Initiator | Responder, values: tuple[Value, ...]
    ) -> None:
        """Keep the entries of other nodes, and note where those can be reached."""
        if session.new_keys > MAX_NEW_ENTRIES:
            raise PeerProtocolError(f"the peer sent {session.new_keys} new peer entries")
        now = int(time.time())
        for value in values:
            verdict = self._peer_ring.admit(value.key, now)
            if verdict is Verdict.INVALID:
                raise PeerProtocolError("the peer sent a peer entry that is not valid")
            entry = self._peer_ring.entry(value.key)
            if verdict is Verdict.ADDED and entry is not None:
                self._note_found(entry)
            await trio.lowlevel.checkpoint()  # each costs a signature

    def _note_found(self, entry: PeerEntry) -> None:
        """Pass on where a node can be reached; made-up entries must not have us dial at will."""
        if self._to_find:
            self._to_find -= 1
            self._found(entry.peer_id, list(entry.addresses))


async def _leave_in_order(keys: list[bytes]) -> list[bytes]:
    return keys


async def _load_entries(keys: list[bytes]) -> list[Value]:
    return [Value(key, b"") for key in keys]
