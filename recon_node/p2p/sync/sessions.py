"""Sessions with peers, whatever the version: their slots, their streams, and their life.

    session   says what to do next, as actions (recon/session.py)
    wire      turns a stream's bytes into messages, and back (`FrameWire`, `RingWire`)
    events    gets events from the peer into the store (fetch.py, ring_events.py)

What a session is about is up to the protocol of its stream: `Reconciler` has those that reconcile
in turns, `Rings` those of ceramic-one. `Sessions` opens streams and serves those of peers; one
function, `converse`, runs what either begins. Whatever goes wrong in a session ends only that
session.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog
import trio

from recon_node.fairness.slots import GiveWay, Slots, address_block_of
from recon_node.fairness.turns import working_for
from recon_node.p2p.context import Context
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
from recon_node.p2p.reports import CANCELLED, GAVE_WAY, Role, SyncHistory, SyncReport
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.p2p.transport.framing import (
    RECON_KEPT_FOR,
    FrameStream,
    KeptStreams,
    OpenStream,
    PeerStream,
)
from recon_node.recon import Actions, Failed, Fetch, FetchById, KeyView, Send, Session
from recon_node.recon.session import Admit, SendValues
from recon_node.store import StoreError

logger = structlog.get_logger(__name__)

M = TypeVar("M")
HUNG_UP: Final = (PeerGoneError, trio.BrokenResourceError)
"""The errors of a session whose stream the peer has ended."""


class PeerSlots:
    """A limited number of slots, in total and for each peer. Addresses share them fairly."""

    def __init__(self, limit: int, limit_per_peer: int) -> None:
        self._slots = Slots(limit, trio.current_time)
        self._limit_per_peer = limit_per_peer
        self._used = Counter[str]()
        self._unused: dict[str, trio.Event] = {}

    async def wait_until_unused(self, peer_id: str) -> None:
        """Wait until a peer uses no slot."""
        if (event := self._unused.get(peer_id)) is not None:
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
            self._unused.setdefault(peer_id, trio.Event())
            try:
                yield True
            finally:
                self._used[peer_id] -= 1
                if not self._used[peer_id]:
                    del self._used[peer_id]
                    self._unused.pop(peer_id).set()

    async def keep(self, stream: PeerStream, frames: FrameStream, seconds: float) -> bool:
        """Keep a stream in a slot; return whether its peer's next frame begins in that time."""
        with (
            trio.CancelScope() as scope,
            self.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot,
        ):
            return has_slot and await frames.wait_for_frame(seconds)
        return False


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

    @property
    def bytes_sent(self) -> int:
        """How many bytes the session has sent."""
        ...

    @property
    def bytes_received(self) -> int:
        """How many it has received."""
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

    def our_work(self) -> AbstractContextManager[None]:
        """Do not hold the time that the block takes against the peer."""
        ...


class Events(Protocol):
    """Gets events from the peer into the store."""

    tally: Tally

    def perform(self, action: Fetch | FetchById | Admit) -> Awaitable[Failed | None]:
        """Fetch or admit events; return what failed."""
        ...


class Meter:
    """Has a peer pay for what its session computes.

    It pays for the sums of ranges that are made, and for hashing keys with a salt. Sums that this
    node wants anyway are free (`is_free`).
    """

    def __init__(
        self, rate_limit: KeyRateLimit, address: str, keys: KeyView, is_free: Callable[[], bool]
    ) -> None:
        self._rate_limit = rate_limit
        self._address = address
        self._keys = keys
        self._is_free = is_free
        self._before = (0, 0)

    def start(self) -> None:
        """Count from here on: other tasks may have computed since."""
        self._before = self._keys.summed, self._keys.salted

    async def pay(self) -> None:
        """Let other tasks run, until the peer can pay for what was computed since the start."""
        summed, salted = self._before
        spent = self._keys.salted - salted
        if self._keys.summed > summed and not self._is_free():
            spent += self._keys.summed - summed
        if spent:
            self._rate_limit.spend(self._address, spent)
            await self._rate_limit.wait(self._address)
        else:
            await trio.lowlevel.checkpoint()


class SessionRun(ABC, Generic[M]):
    """A session under way, and what its protocol has to say of its end."""

    role: Role
    """Who has started it."""
    keeps_idle_report: bool = True
    """Whether its report is kept if it found nothing to do."""

    def __init__(
        self,
        opened: OpenStream,
        session: Session[M],
        wire: Wire[M],
        events: Events,
        meter: Meter | None = None,
    ) -> None:
        self.opened = opened
        self.peer_id = opened.stream.peer_id
        self.session = session
        self.wire = wire
        self.events = events
        self.tally = events.tally
        self.meter = meter
        self.started = trio.current_time()

    @abstractmethod
    def outcome(self) -> str:
        """Take note that the session has ended well; return what came of it, in words."""

    @abstractmethod
    def left_out(self) -> tuple[int, int]:
        """Return how many keys of the peer we left out, and how many of ours it did."""

    def end(self, outcome: str, *, hung_up: bool) -> SyncReport:
        """Take note that the session has ended; return its report."""
        tally, (left_out, left_out_by_peer) = self.tally, self.left_out()
        return SyncReport(
            peer=self.peer_id,
            role=self.role,
            protocol=self.opened.stream.protocol,
            rounds=self.session.rounds,
            bytes_sent=self.wire.bytes_sent,
            bytes_received=self.wire.bytes_received,
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
    session: Session[M],
    wire: Wire[M],
    events: Events,
    meter: Meter | None = None,
    *,
    initiates: bool,
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
        if initiates:
            await _perform(session.start(), wire, events, meter)
        while not session.done:
            message = await wire.receive()
            if message is None:
                if not session.end_of_stream():
                    raise PeerGoneError("the peer ended the stream before the session was over")
                break
            actions = session.receive(message)
            del message  # from now on, the session has it
            await _perform(actions, wire, events, meter)


async def _perform(actions: Actions[M], wire: Wire[M], events: Events, meter: Meter | None) -> None:
    """Do what a session says, one action after the other."""
    reply: Failed | None = None
    pause = trio.lowlevel.checkpoint if meter is None else meter.pay
    while True:
        if meter is not None:
            meter.start()
        try:
            action = actions.send(reply)
        except StopIteration:
            return
        reply = None
        if action is None:
            await pause()
        elif isinstance(action, Send | SendValues):
            await wire.send(action)
        else:
            with wire.our_work():
                reply = await events.perform(action)


R = TypeVar("R", bound=SessionRun[Any])


class Answerer(Protocol):
    """Answers the sessions of some protocols."""

    slots: PeerSlots
    """For the sessions that peers start."""

    def keeps_stream(self, protocol: str) -> bool:
        """Return whether a stream may carry another session after one that ended well."""
        ...

    async def begin_answer(self, opened: OpenStream) -> SessionRun[Any]:
        """Begin a session that a peer starts.

        Raises:
            StoreError: the disk failed.
        """
        ...


class Sessions:
    """Runs all sessions of the node."""

    def __init__(self, context: Context, history: SyncHistory) -> None:
        self._host, self._book = context.host, context.book
        self._settings, self._counters = context.settings, context.counters
        self._history = history
        self._answerers: dict[str, Answerer] = {}
        self._kept = KeptStreams()
        self._waiting = PeerSlots(context.settings.max_connections, 1)
        """Streams that peers opened and that wait for their next session."""

    def speak(self, protocols: Sequence[str], answerer: Answerer) -> None:
        """Answer sessions of some protocols from now on, and start them."""
        for protocol in protocols:
            self._answerers[protocol] = answerer
            self._host.handle(protocol, self.serve)

    async def initiate(
        self, peer_id: str, protocols: Sequence[str], begin: Callable[[OpenStream], R]
    ) -> R:
        """Run a session on the stream that is kept with a peer, or on a new one; return it.

        It speaks one of `protocols`, the best first; streams of all of them are kept, or of none.

        Raises:
            Exception: one of `PEER_FAILURES` if the session fails, or StoreError.
        """
        opened = await self._kept.take(peer_id) if self._keeps_stream(protocols[0]) else None
        if opened is None:
            stream = await self._host.open_stream(peer_id, *protocols)
            opened = OpenStream(stream, self._frames(stream))
        run = begin(opened)
        try:
            await self._run(run)
        except StaleStreamError:  # the kept stream is gone; this opens a new one
            await opened.stream.reset()
            return await self.initiate(peer_id, protocols, begin)
        except BaseException:
            del run  # what the session holds
            await opened.stream.reset()
            raise
        if self._keeps_stream(opened.stream.protocol):
            await self._kept.put(opened)
        else:
            await opened.stream.aclose()
        return run

    async def serve(self, stream: PeerStream) -> None:
        """Answer the sessions that a peer starts on a stream, one after another."""
        opened = OpenStream(stream, self._frames(stream))
        while await self._serve_session(opened) and self._keeps_stream(stream.protocol):
            if not await self._waiting.keep(stream, opened.frames, RECON_KEPT_FOR):
                return

    async def _serve_session(self, opened: OpenStream) -> bool:
        """Answer a session; return whether it ended well."""
        stream, answerer = opened.stream, self._answerers[opened.stream.protocol]
        scope = trio.CancelScope()
        with answerer.slots.taken_by(stream.peer_id, stream.address, scope.cancel) as has_slot:
            if not has_slot:
                self._counters.sessions_refused += 1
                await stream.reset()
                return False
            try:
                run = await answerer.begin_answer(opened)
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
                working_for(address_block_of(run.opened.stream.address), run.peer_id),
            ):
                await converse(
                    run.session, run.wire, run.events, run.meter, initiates=run.role == "initiator"
                )
            if deadline.cancelled_caught:
                raise PeerProtocolError(f"the session took longer than {limit:g} s")
            if give_way is not None and give_way.cancelled_caught:
                raise CutShortError(GAVE_WAY)
            outcome = run.outcome()
        except Exception as error:
            outcome, hung_up = describe_error(error), isinstance(error, HUNG_UP)
            if hung_up and run.opened.has_served and not run.session.rounds:
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

    def _keeps_stream(self, protocol: str) -> bool:
        return self._answerers[protocol].keeps_stream(protocol)

    def _frames(self, stream: PeerStream) -> FrameStream:
        return FrameStream(stream, self._settings.max_frame, account=stream.account)
