"""Recon sessions with peers, as initiator and as responder.

Sessions are bounded in time and number. Each reports how it went, and tells the peer book. Whatever
goes wrong in a session ends only that session.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    PeerError,
    PeerProtocolError,
    describe_error,
)
from recon_node.p2p.interfaces import EventStore, PeerHost
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.agreements import Agreements
from recon_node.p2p.sync.claims import FetchTable
from recon_node.p2p.sync.event_streams import EventStreams
from recon_node.p2p.sync.fetch import Fetcher
from recon_node.p2p.sync.outcomes import Outcomes
from recon_node.p2p.sync.purses import Purses
from recon_node.p2p.sync.recon_stream import ReconStream
from recon_node.p2p.sync.reports import (
    AGREED,
    CANCELLED,
    GAVE_WAY,
    Counters,
    Role,
    SyncHistory,
    SyncReport,
)
from recon_node.p2p.sync.stream_slots import (
    KEPT_FOR,
    KeptStreams,
    OpenStream,
    Slots,
    StaleStreamError,
)
from recon_node.p2p.sync.unwanted import UnwantedKeys
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import PeerStream
from recon_node.recon import KeyRange, Side, Version, id_of
from recon_node.store import StoreError

log = structlog.get_logger(__name__)

MAX_PARTS: Final = 256
"""Maximum sessions for one range with a peer, which answers for one interest at a time."""
LONG_MESSAGES_AT_ONCE: Final = 2
"""Maximum long messages that are decoded at once, in worker threads."""


class Sessions:
    """Runs all sessions of the node. Register ``serve`` with the host.

    Args:
        host: opens streams to peers.
        store: has the keys to reconcile, and takes the events of new ones.
        book: records what peers are interested in, and how they behave.
        settings: the limits.
        history: gets a report of each session.
        counters: counts what is not in a report.
        on_stranger: called once with each peer that asks for events of another network.
        versions: the versions of recon to speak, best first.
        purses: what peers may have computed.
    """

    def __init__(
        self,
        host: PeerHost,
        store: EventStore,
        book: PeerBook,
        settings: P2PSettings,
        history: SyncHistory,
        counters: Counters,
        on_stranger: Callable[[str], None],
        versions: Sequence[Version[Any]],
        purses: Purses,
    ) -> None:
        self._host = host
        self._store = store
        self._book = book
        self._settings = settings
        self._table = FetchTable()
        self.agreements = Agreements()
        """Who lately agreed with us on what."""
        self._slots = Slots(settings.max_sessions, settings.max_sessions_per_peer)
        self._kept = KeptStreams()
        self._event_streams = EventStreams(host, settings.max_frame)
        self._waiting = Slots(settings.max_connections, 1)
        """Streams that peers opened and that wait for their next session."""
        self._history = history
        self._counters = counters
        self._outcomes = Outcomes(store, book, on_stranger)
        self._versions = {each.id: each for each in versions}
        self._purses = purses
        self._unwanted = UnwantedKeys()
        self._decoders = trio.CapacityLimiter(LONG_MESSAGES_AT_ONCE)

    async def reconcile(self, peer_id: str, key_range: KeyRange) -> int:
        """Reconcile a range with a connected peer, in as many sessions as its interests need.

        Returns:
            How many events the peer listed without delivering them.

        Raises:
            Exception: one of ``PEER_FAILURES`` if a session fails.
            StoreError: the disk failed.
        """
        undelivered = 0
        rest = key_range
        for _ in range(MAX_PARTS):
            is_rest = rest != key_range
            try:
                run = await self._initiate(peer_id, rest, is_rest=is_rest)
            except StaleStreamError:  # the kept stream is gone; this opens a new one
                run = await self._initiate(peer_id, rest, is_rest=is_rest)
            undelivered += run.fetcher.undelivered
            side = run.recon.session.side
            self._book.answered(peer_id, rest, side.key_range)
            if side.remaining is None:
                return undelivered
            rest = side.remaining
        raise PeerProtocolError(f"the peer cut one range into more than {MAX_PARTS} parts")

    def can_sync_with(self, peer_id: str) -> bool:
        """Tell whether a connected peer speaks a version of recon; unless it says, it may."""
        speaks = self._host.known_protocols(peer_id)
        return not speaks or not speaks.isdisjoint(self._versions)

    def told_by(self, key: EventId) -> Collection[str]:
        """Return the peers that told us of a key lately."""
        return self._table.told_by(key)

    async def _initiate(self, peer_id: str, key_range: KeyRange, *, is_rest: bool) -> _Run:
        """Run one session, on the stream that is kept with the peer or on a new one."""
        opened = await self._kept.take(peer_id)
        if opened is None:
            stream = await self._host.open_stream(peer_id, *self._versions)
            opened = OpenStream(stream, self._frames(stream))
        stream = opened.stream
        version = self._versions[stream.protocol]
        side = Side.initiator(self._store.keys, key_range, self._settings.session_settings)
        self._leave_out_at_once(side, version, peer_id)
        run = self._new_run("initiator", version, side, opened, is_rest=is_rest)
        try:
            await self._reported(run, run.recon.initiate)
        except BaseException:
            await stream.reset()
            raise
        if version.keeps_stream:
            await self._kept.put(opened)
        else:
            await stream.aclose()
        return run

    def _leave_out_at_once(self, side: Side, version: Version[Any], peer_id: str) -> None:
        """Leave out what the peer is known to hold and we do not take: it need not list it."""
        if version.tells_left_out:
            side.leave_out(self._unwanted.of(peer_id))

    def _frames(self, stream: PeerStream) -> FrameStream:
        return FrameStream(stream, self._settings.max_frame, account=stream.account)

    async def serve(self, stream: PeerStream) -> None:
        """Answer the sessions that a peer starts on a stream, one after another."""
        opened = OpenStream(stream, self._frames(stream))
        while await self._serve_session(opened) and self._versions[stream.protocol].keeps_stream:
            is_kept = False
            with (
                trio.CancelScope() as scope,
                self._waiting.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
            ):
                is_kept = has_slot and await opened.frames.wait_for_frame(KEPT_FOR)
            if not is_kept:
                return

    async def _serve_session(self, opened: OpenStream) -> bool:
        """Answer a session; return whether it ended well."""
        stream = opened.stream
        scope = trio.CancelScope()
        with self._slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot:
            if not has_slot:
                self._counters.sessions_refused += 1
                await stream.reset()
                return False
            try:
                await self._respond(opened, scope)
            except (*PEER_FAILURES, StoreError) as error:  # reported already
                if isinstance(error, BROKEN_PROTOCOL):
                    self._book.failed(stream.peer_id, severity=MISBEHAVED)
                await stream.reset()
                return False
        return True

    async def _respond(self, opened: OpenStream, scope: trio.CancelScope) -> None:
        peer_id, version = opened.stream.peer_id, self._versions[opened.stream.protocol]
        side = Side.responder(
            self._store.keys, self._store.wanted.ranges, self._settings.session_settings
        )
        self._leave_out_at_once(side, version, peer_id)

        def note_interest() -> None:
            if side.asked is not None:
                self._book.asked_for(peer_id, side.asked)

        run = self._new_run("responder", version, side, opened)

        async def take_turns() -> None:
            with scope:
                await run.recon.respond(note_interest)
            if scope.cancelled_caught:
                raise PeerError(GAVE_WAY)

        await self._reported(run, take_turns)
        self._book.was_visited(peer_id, time.time())
        if run.fetcher.undelivered:
            self._book.failed(peer_id, misled=True)

    async def wait_for_peers_sessions(self, peer_id: str, limit: float) -> None:
        """Wait until no session that a peer has started is running, at most ``limit`` seconds."""
        with trio.move_on_after(limit):
            await self._slots.wait_until_unused(peer_id)

    async def _reported(self, run: _Run, take_turns: Callable[[], Awaitable[None]]) -> None:
        """Run a session within its time, and report how it went, however it ends."""
        outcome: str | None = CANCELLED
        try:
            with trio.move_on_after(self._settings.session_timeout) as deadline:
                await take_turns()
            if deadline.cancelled_caught:
                raise PeerProtocolError(
                    f"the session took longer than {self._settings.session_timeout:g} s"
                )
            side = run.recon.session.side
            outcome = self._outcomes.of(run.peer_id, side, is_rest=run.is_rest)
            if outcome == AGREED and (agreed := side.key_range) is not None:
                self.agreements.note(run.peer_id, agreed, run.started)
        except StaleStreamError:
            outcome = None  # nothing has begun
            raise
        except Exception as error:
            outcome = describe_error(error)
            if not isinstance(error, (*PEER_FAILURES, StoreError)):
                log.exception("A bug in this node ended a sync", peer=run.peer_id)
            raise
        finally:
            if outcome is not None:
                self._report(run, outcome)
                self._note_unwanted(run)

    def _report(self, run: _Run, outcome: str) -> None:
        report = run.report(outcome, *self._book.take_served(run.peer_id))
        self._history.add(report)
        if differing := report.keys_received + report.events_sent:
            self._book.differed(run.peer_id, differing, of=len(self._store.keys))
        run.recon.frames.start_count()

    def _is_excused(self, key: EventId, *, for_good: bool = False) -> bool:
        """Return whether a peer may have a key without being able to give us its event.

        Another version of this program may take events that this one refuses.
        """
        is_refused = self._store.find_refused(id_of(key)) == key
        return is_refused or self._store.is_excused(key, for_good=for_good)

    def _note_unwanted(self, run: _Run) -> None:
        """Remember the keys that we do not count."""
        is_excused = partial(self._is_excused, for_good=True)
        self._unwanted.note(run.peer_id, filter(is_excused, run.recon.unwanted))

    def _new_run(
        self,
        role: Role,
        version: Version[Any],
        side: Side,
        opened: OpenStream,
        *,
        is_rest: bool = False,
    ) -> _Run:
        peer_id = opened.stream.peer_id
        fetcher = Fetcher(
            peer_id,
            self._store,
            self._table,
            partial(self._event_streams.open, peer_id),
            self._settings,
            self._counters,
        )
        recon = ReconStream(
            version,
            version.session(side),
            opened.frames,
            fetcher.obtain,
            self._settings,
            self._decoders,
            opened.has_served,
            is_excused=self._is_excused,
            in_steps=partial(
                self._purses.in_steps,
                opened.stream.address,
                self._store.keys,
                lambda: side.key_range in self._store.wanted.ranges,
            ),
            obtain_by_id=None if self._store.wants_keys_first else fetcher.obtain_by_id,
        )
        return _Run(role, peer_id, recon, fetcher, trio.current_time(), is_rest)


@dataclass(frozen=True, slots=True)
class _Run:
    """A session under way, with everything that its report needs."""

    role: Role
    peer_id: str
    recon: ReconStream
    fetcher: Fetcher
    started: float
    is_rest: bool
    """Whether it is about what lies above a part that was reconciled before."""

    def report(self, outcome: str, events_sent: int, event_bytes_sent: int) -> SyncReport:
        return SyncReport(
            peer=self.peer_id,
            role=self.role,
            protocol=self.recon.version.id,
            rounds=self.recon.session.side.rounds,
            bytes_sent=self.recon.frames.bytes_sent,
            bytes_received=self.recon.frames.bytes_received,
            event_bytes_sent=event_bytes_sent,
            event_bytes_received=self.fetcher.bytes_received,
            keys_received=self.fetcher.keys_received,
            events_received=self.fetcher.events_received,
            events_sent=events_sent,
            keys_left_out=self.recon.session.side.left_out,
            keys_left_out_by_peer=self.recon.session.side.left_out_by_peer,
            seconds=trio.current_time() - self.started,
            outcome=outcome,
            finished_at=time.time(),
        )
