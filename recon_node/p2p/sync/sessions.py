"""Sessions with peers, whatever the version: their slots, their streams, and their life.

    session    says what to do next, as actions (recon/actions.py)
    wire       turns a stream's bytes into messages, and back (`FrameWire`, `RingWire`)
    performer  fetches or admits what the peer has (`Fetcher`, `RingEvents`, `PeerEntries`)

One function, `converse`, runs every session from its first message to its last. A `SessionRun` is a
session with these three, and words its outcome: `ReconRun` where the sides take turns, `RingRun`
with a ceramic-one node. `Sessions` opens streams and serves those of peers. Whatever goes wrong in
a session ends only that session. Each one has a `SyncReport`; `SyncHistory` keeps the latest.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import structlog
import trio

from recon_node.base.timing import span
from recon_node.fairness.slots import GiveWay, Slots, address_block_of, working_for
from recon_node.p2p.context import Context, Counters, Result, Role
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    CutShortError,
    PeerGoneError,
    PeerProtocolError,
    StaleStreamError,
    describe_error,
)
from recon_node.p2p.sync.key_rate_limit import Meter
from recon_node.p2p.transport.framing import RECON_KEPT_FOR, KeptStreams, PeerFrames, PeerStream
from recon_node.recon import Actions, Failed, Fetch, FetchById, Send, Session
from recon_node.recon.actions import Admit, SendValues
from recon_node.store import StoreError

logger = structlog.get_logger(__name__)

M = TypeVar("M")
HUNG_UP: Final = (PeerGoneError, trio.BrokenResourceError)
"""The errors of a session whose stream the peer has ended."""
AGREED: Final = "agreed"
NO_COMMON_INTEREST: Final = "no common interest"
"""The outcome if nothing that the initiator asked for interests the other side."""
ANOTHER_NETWORK: Final = "another network"
"""How the outcome begins if the peer asks for events of another Ceramic network."""
CANCELLED: Final = "cancelled: this node is stopping"
GAVE_WAY: Final = "cut short: too many at once from its address, and another address needs the slot"


@dataclass(slots=True)
class Tally:
    """What moved in a session."""

    keys_received: int = 0
    """Keys that the peer listed and that we did not hold."""
    events_received: int = 0
    """Events that were new here."""
    event_bytes_received: int = 0
    events_sent: int = 0
    event_bytes_sent: int = 0
    not_supplied: int = 0
    """Events that the peer listed but did not have, or that were not valid. Those that we have
    no room for, or do not want, do not count: that is not the peer's fault."""


class Wire(Protocol[M]):
    """The messages of a session on a stream."""

    def traffic(self) -> tuple[int, int]:
        """Return how many bytes the session has sent, and how many it has received."""
        ...

    def open(self) -> AbstractAsyncContextManager[None]:
        """Carry messages while the block runs; what was sent is written when it ends."""
        ...

    async def receive(self) -> M | None:
        """Return the next message; None at the end of the stream.

        Raises:
            RemoteProtocolError: the bytes are not a message.
            PeerProtocolError: the peer takes too long.
            PeerGoneError: the stream ended within a message.
            trio.BrokenResourceError: the stream was lost.
        """
        ...

    async def send(self, action: Send[M] | SendValues) -> None:
        """Send messages, or have the values of a range sent."""
        ...


class Performer(Protocol):
    """Performs the actions that send nothing: it gets events of the peer into the store."""

    tally: Tally

    def perform(self, action: Fetch | FetchById | Admit) -> Awaitable[Failed | None]:
        """Fetch, or admit values; return what could not be fetched."""
        ...


class SessionRun(ABC, Generic[M]):
    """A session under way. Its subclasses note its end, and word its outcome."""

    keeps_idle_report: bool = True
    """Whether its report is kept if it found nothing to do."""

    def __init__(
        self,
        frames: PeerFrames,
        session: Session[M],
        wire: Wire[M],
        performer: Performer,
        meter: Meter | None = None,
    ) -> None:
        self.frames = frames
        self.peer_id = frames.stream.peer_id
        self.session = session
        self.wire = wire
        self.performer = performer
        self.tally = performer.tally
        self.meter = meter
        self.role: Role = "initiator" if session.initiates else "responder"
        self.started = trio.current_time()

    @abstractmethod
    def conclude(self) -> str:
        """Note that the session has ended well; return its outcome in words, for `SyncReport`."""

    @abstractmethod
    def left_out(self) -> tuple[int, int]:
        """Return how many keys of the peer we left out, and how many of ours it did."""

    def end(self, outcome: str, *, hung_up: bool) -> SyncReport:
        """Note that the session has ended, well or not; return its report."""
        tally, (left_out, left_out_by_peer) = self.tally, self.left_out()
        bytes_sent, bytes_received = self.wire.traffic()
        return SyncReport(
            peer=self.peer_id,
            role=self.role,
            protocol=self.frames.stream.protocol,
            rounds=self.session.rounds,
            bytes_sent=bytes_sent,
            bytes_received=bytes_received,
            event_bytes_sent=tally.event_bytes_sent,
            event_bytes_received=tally.event_bytes_received,
            keys_received=tally.keys_received,
            events_received=tally.events_received,
            events_sent=tally.events_sent,
            keys_left_out=left_out,
            keys_left_out_by_peer=left_out_by_peer,
            seconds=trio.current_time() - self.started,
            outcome=outcome,
            finished_at=time.time(),
        )


async def converse(
    session: Session[M], wire: Wire[M], performer: Performer, meter: Meter | None = None
) -> None:
    """Exchange messages until the session is done: read one, do what the session says, go on.

    Raises:
        PeerProtocolError: the peer takes too long, or its bytes are not frames.
        RemoteProtocolError: the peer breaks the recon protocol.
        PeerGoneError: the stream ended too early.
        CutShortError: too much of what the peer holds is invalid or unwanted here.
        trio.BrokenResourceError: the stream was lost.
        StoreError: the disk failed.
    """
    async with wire.open():
        if session.initiates:
            await _perform(session.start(), wire, performer, meter)
        while not session.done:
            message = await wire.receive()
            if message is None:
                if not session.end_of_stream():
                    raise PeerGoneError("the peer ended the stream before the session was over")
                break
            actions = session.receive(message)
            del message  # from now on, the session has it
            await _perform(actions, wire, performer, meter)


async def _perform(
    actions: Actions[M], wire: Wire[M], performer: Performer, meter: Meter | None
) -> None:
    """Do what a session says, one action after the other."""
    reply: Failed | None = None
    pause = trio.lowlevel.checkpoint if meter is None else meter.pay
    while True:
        try:
            with nullcontext() if meter is None else meter:
                action = actions.send(reply)
        except StopIteration:
            return
        reply = None
        if action is None:
            await pause()
        elif isinstance(action, Send | SendValues):
            await wire.send(action)
        else:
            reply = await performer.perform(action)


class PeerSlots:
    """A limited number of slots, in total and for each peer. Addresses share them fairly."""

    def __init__(self, limit: int, limit_per_peer: int) -> None:
        self._slots = Slots(limit, trio.current_time)
        self._limit_per_peer = limit_per_peer
        self._used = Counter[str]()
        self._until_unused: dict[str, trio.Event] = {}
        """For each peer that uses a slot: set when it uses none."""

    async def wait_until_unused(self, peer_id: str) -> None:
        """Wait until a peer uses no slot."""
        if (event := self._until_unused.get(peer_id)) is not None:
            await event.wait()

    @contextmanager
    def taken_by(self, peer_id: str, address: str, give_way: GiveWay) -> Iterator[bool]:
        """Take a slot for a peer at an IP address for the block; yield False if none is left.

        `give_way` is called if an address with fewer slots needs this one.
        """
        if self._used[peer_id] >= self._limit_per_peer:
            yield False
            return
        with self._slots.taken_by(address, give_way) as slot:
            if slot is None:
                yield False
                return
            self._used[peer_id] += 1
            self._until_unused.setdefault(peer_id, trio.Event())
            try:
                yield True
            finally:
                self._used[peer_id] -= 1
                if not self._used[peer_id]:
                    del self._used[peer_id]
                    self._until_unused.pop(peer_id).set()

    async def keep(self, frames: PeerFrames, seconds: float) -> bool:
        """Keep a stream in a slot; return whether its peer's next frame begins in that time."""
        stream = frames.stream
        with (
            trio.CancelScope() as scope,
            self.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
        ):
            return has_slot and await frames.wait_for_frame(seconds)
        return False


R = TypeVar("R", bound=SessionRun[Any])


BeginAnswer: TypeAlias = Callable[[PeerFrames], Awaitable[SessionRun[Any]]]
"""Begins a session that a peer starts; raises StoreError if the disk failed."""


class Sessions:
    """Runs all sessions of the node."""

    def __init__(self, context: Context, history: SyncHistory) -> None:
        self._host, self._book = context.host, context.book
        self._settings, self._counters = context.settings, context.counters
        self._history = history
        self._answered: dict[str, tuple[PeerSlots, BeginAnswer]] = {}
        self._reusable: set[str] = set()
        """Protocols whose streams may carry another session after one that ended well."""
        self._kept = KeptStreams()
        self._idle_streams = PeerSlots(context.settings.max_connections, 1)
        """For the streams that peers opened, between two sessions."""

    def register(
        self, protocol: str, slots: PeerSlots, begin: BeginAnswer, *, keeps_stream: bool = False
    ) -> None:
        """Answer the sessions of a protocol that peers start from now on, within some slots."""
        self._answered[protocol] = slots, begin
        if keeps_stream:
            self._reusable.add(protocol)
        self._host.handle(protocol, self.serve)

    async def initiate(
        self, peer_id: str, protocols: Sequence[str], begin: Callable[[PeerFrames], R]
    ) -> R:
        """Run a session on the stream that is kept with a peer, or on a new one; return it.

        It speaks one of `protocols`, the best first; streams of all of them are kept, or of none.

        Raises:
            Exception: one of `PEER_FAILURES` if the session fails, or StoreError.
        """
        frames = await self._kept.take(peer_id) if protocols[0] in self._reusable else None
        if frames is None:
            stream = await self._host.open_stream(peer_id, *protocols)
            frames = PeerFrames(stream, self._settings.max_frame)
        run = begin(frames)
        try:
            await self._run(run)
        except StaleStreamError:  # the kept stream is gone; this opens a new one
            await frames.stream.reset()
            return await self.initiate(peer_id, protocols, begin)
        except BaseException:
            del run  # what the session holds
            await frames.stream.reset()
            raise
        if frames.stream.protocol in self._reusable:
            await self._kept.put(frames)
        else:
            await frames.stream.aclose()
        return run

    async def serve(self, stream: PeerStream) -> None:
        """Answer the sessions that a peer starts on a stream, one after another."""
        frames = PeerFrames(stream, self._settings.max_frame)
        while await self._serve_session(frames) and stream.protocol in self._reusable:
            if not await self._idle_streams.keep(frames, RECON_KEPT_FOR):
                return

    async def _serve_session(self, frames: PeerFrames) -> bool:
        """Answer a session; return whether it ended well."""
        stream, scope = frames.stream, trio.CancelScope()
        slots, begin_answer = self._answered[stream.protocol]
        with slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot:
            if not has_slot:
                self._counters.sessions_refused += 1
                await stream.reset()
                return False
            try:
                run = await begin_answer(frames)
            except StoreError as error:
                logger.warning("A sync cannot begin", peer=stream.peer_id, reason=str(error))
                await stream.reset()
                return False
            try:
                await self._run(run, scope)
            except (*PEER_FAILURES, StoreError) as error:  # reported already
                if isinstance(error, BROKEN_PROTOCOL):
                    self._book.failed(stream.peer_id, severity=MISBEHAVED)
                del run  # what the session holds
                await stream.reset()
                return False
        self._book.was_visited(stream.peer_id, time.time())
        if run.tally.not_supplied:
            self._book.failed(stream.peer_id, misled=True)
        return True

    async def _run(self, run: SessionRun[Any], give_way: trio.CancelScope | None = None) -> None:
        """Run a session to its end, and report it, however it ends.

        `give_way` is cancelled when a peer at another address needs its slot.

        Raises:
            StaleStreamError: the stream was kept, and has ended before the session began.
            Exception: one of `PEER_FAILURES`, or StoreError, which are reported already.
        """
        outcome: str | None = CANCELLED
        hung_up, limit = False, self._settings.session_timeout
        try:
            with (
                trio.move_on_after(limit) as deadline,
                give_way or nullcontext(),
                working_for(address_block_of(run.frames.stream.address), run.peer_id),
            ):
                await converse(run.session, run.wire, run.performer, run.meter)
            if deadline.cancelled_caught:
                raise PeerProtocolError(f"the session took longer than {limit:g} s")
            if give_way is not None and give_way.cancelled_caught:
                raise CutShortError(GAVE_WAY)
            outcome = run.conclude()
        except Exception as error:
            outcome, hung_up = describe_error(error), isinstance(error, HUNG_UP)
            if hung_up and run.frames.was_kept and not run.session.rounds:
                outcome = None  # nothing has begun
                raise StaleStreamError(str(error)) from error
            if not isinstance(error, (*PEER_FAILURES, StoreError)):
                logger.exception("A bug in this node ended a sync", peer=run.peer_id)
            raise
        finally:
            if outcome is not None:
                self._report(run.end(outcome, hung_up=hung_up), keep_idle=run.keeps_idle_report)

    def _report(self, report: SyncReport, *, keep_idle: bool) -> None:
        if report.events_received:
            self._host.note_supply(report.peer)
            self._book.supplied(report.peer)
        self._history.add(report, keep_idle=keep_idle)


MAX_REPORTS: Final = 100
"""Maximum reports kept."""
MAX_TRANSFERS: Final = 500
"""Maximum reports kept of sessions that moved events."""
SUMMARY_INTERVAL: Final = 60.0
"""Seconds between two lines of the log about what the sessions have done."""
FAILURES_SHOWN: Final = 5
"""Failures in that time that have a line of their own at level info."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """One recon session with one peer. Bytes are those of frames, without libp2p's overhead."""

    peer: str
    """The peer id."""
    role: Role
    """Who started the session: the initiator."""
    protocol: str
    """The libp2p protocol id of the version of recon."""
    rounds: int
    """Turns that the peer took."""
    bytes_sent: int
    """Of recon messages."""
    bytes_received: int
    """Of recon messages."""
    event_bytes_sent: int
    """Of the events counted by `events_sent`."""
    event_bytes_received: int
    """Of events fetched from the peer."""
    keys_received: int
    """Keys that the peer listed and that we did not hold."""
    events_received: int
    """Events fetched from the peer that were valid and new."""
    events_sent: int
    """Events that the peer has fetched since our previous session with it ended. If two sessions
    with a peer overlap, each event counts in one of them."""
    seconds: float
    """How long it took."""
    keys_left_out: int
    """Keys that the peer listed and that we could not get, or refused."""
    keys_left_out_by_peer: int
    """Keys of ours that the peer could not get, or refused, as far as we know."""
    outcome: str
    """agreed, agreed but for keys left out, no common interest, or what went wrong."""
    finished_at: float
    """Seconds since 1970."""

    @property
    def result(self) -> Result:
        """The kind of outcome."""
        if self.outcome == NO_COMMON_INTEREST:
            return "no_common_interest"
        return "agreed" if self.outcome.startswith(AGREED) else "failed"

    @property
    def went_well(self) -> bool:
        """Whether the session ended as it should."""
        return self.result != "failed"

    @property
    def moved_events(self) -> bool:
        """Whether either side got an event from the other."""
        return bool(self.events_received or self.events_sent)


def agreed_but_for(left_out: int, left_out_by_peer: int) -> str:
    """Return the outcome of a session in which the sides agreed on all keys but those left out."""
    parts = []
    if left_out:
        parts.append(f"{_keys(left_out)} left out here")
    if left_out_by_peer:
        parts.append(f"{_keys(left_out_by_peer)} left out by the peer")
    return f"{AGREED} but for {' and '.join(parts)}" if parts else AGREED


def _keys(number: int) -> str:
    return "1 key" if number == 1 else f"{number:,} keys"


class SyncHistory:
    """The latest sessions; `counters` counts all of them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.reports: deque[SyncReport] = deque(maxlen=MAX_REPORTS)
        """The latest sessions, the newest last."""
        self.transfers: deque[SyncReport] = deque(maxlen=MAX_TRANSFERS)
        """The latest ones that moved events; most sessions find nothing to do."""
        self._since, self._peers = Counter[str](), set[str]()
        """What the sessions since the last summary have done, and with whom."""

    def add(self, report: SyncReport, *, keep_idle: bool = True) -> None:
        """Keep, count and log a session that has ended.

        Args:
            report: how it went.
            keep_idle: whether to keep it among the latest even if it went well and moved nothing.
        """
        is_idle = report.went_well and not (report.moved_events or report.keys_left_out)
        if keep_idle or not is_idle:
            self.reports.append(report)
        if report.moved_events:
            self.transfers.append(report)
        self._count(report)
        if report.outcome != CANCELLED:
            self._peers.add(report.peer)
            self._since.update(
                syncs=1,
                failed=int(not report.went_well),
                events_received=report.events_received,
                events_sent=report.events_sent,
                bytes_received=report.bytes_received + report.event_bytes_received,
                bytes_sent=report.bytes_sent + report.event_bytes_sent,
            )
        _log_report(report, shown=self._since["failed"] <= FAILURES_SHOWN)
        span(
            "sync",
            report.seconds,
            lambda: {f"recon.{name}": value for name, value in asdict(report).items()},
            kind="CLIENT" if report.role == "initiator" else "SERVER",
            error=None if report.went_well or report.outcome == CANCELLED else report.outcome,
        )

    def _count(self, report: SyncReport) -> None:
        """Count a session that has ended. Keys and events are counted as they arrive."""
        counters = self._counters
        counters.durations[report.role, report.result].observe(report.seconds)
        counters.keys_left_out += report.keys_left_out
        counters.keys_left_out_by_peers += report.keys_left_out_by_peer
        counters.rounds += report.rounds
        counters.recon_bytes_sent += report.bytes_sent
        counters.recon_bytes_received += report.bytes_received

    async def log_summaries(self) -> None:
        """Log what the sessions of each minute have done, until cancelled; the rest at the end."""
        try:
            while True:
                await trio.sleep(SUMMARY_INTERVAL)
                self._log_summary()
        finally:
            self._log_summary()

    def _log_summary(self) -> None:
        """Log what the sessions since the last summary have done, if they have done anything."""
        since, peers = self._since, len(self._peers)
        self._since, self._peers = Counter(), set()
        if since["failed"] or since["events_received"] or since["events_sent"]:
            logger.info("Synced with peers", peers=peers, **since)


def _log_report(report: SyncReport, *, shown: bool) -> None:
    """Log a session in one line: at level debug, as each event causes some, but for failures."""
    is_failure = not report.went_well and report.outcome != CANCELLED
    (logger.info if is_failure and shown else logger.debug)(
        "Sync finished" if report.went_well else "Sync failed",
        peer=report.peer,
        role=report.role,
        protocol=report.protocol,
        rounds=report.rounds,
        sent=report.bytes_sent,
        received=report.bytes_received,
        event_bytes_sent=report.event_bytes_sent,
        event_bytes_received=report.event_bytes_received,
        keys=report.keys_received,
        events=report.events_received,
        events_sent=report.events_sent,
        seconds=round(report.seconds, 3),
        outcome=report.outcome,
    )
