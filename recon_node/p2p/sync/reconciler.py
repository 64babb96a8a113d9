"""Sessions of `/ceramic/recon/1.0.0` and 1.2.0: their ranges, their wire, and their outcomes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, TypeVar

import structlog
import trio

from recon_node.base.latest import Latest, Remembered
from recon_node.ceramic import network_id_of, network_name
from recon_node.fairness.slots import address_block_of
from recon_node.p2p.context import Context
from recon_node.p2p.errors import CutShortError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.event_stream import EventStreams
from recon_node.p2p.sync.fetch import Fetcher
from recon_node.p2p.sync.fetch_table import FetchTable
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit, Meter
from recon_node.p2p.sync.sessions import (
    AGREED,
    ANOTHER_NETWORK,
    NO_COMMON_INTEREST,
    PeerSlots,
    SessionRun,
    Sessions,
    SyncReport,
    agreed_but_for,
)
from recon_node.p2p.transport.framing import FrameStream, PeerFrames
from recon_node.recon import (
    KeyRange,
    Send,
    Side,
    Version,
    covers,
    intersect_ranges,
    merge_ranges,
)
from recon_node.recon.actions import SendValues
from recon_node.recon.session import TurnSession

logger = structlog.get_logger(__name__)

M = TypeVar("M")

MAX_SESSIONS_PER_RANGE: Final = 256
"""Maximum sessions for one range with a peer, which answers for one interest at a time."""
LISTED_PER_TIMEOUT: Final = 4096
"""Keys that a peer has `turn_timeout` to fetch. For a turn with more keys, its time is longer in
proportion."""
LONG_MESSAGES_AT_ONCE: Final = 2
"""Maximum long messages that are decoded at once, in worker threads."""


class Reconciler:
    """Reconciles this node's keys with those of peers.

    It speaks `versions`, best first, and calls `on_stranger` once with each peer that asks for
    events of another network.
    """

    def __init__(
        self,
        context: Context,
        on_stranger: Callable[[str], None],
        versions: Sequence[Version[Any]],
        rate_limit: KeyRateLimit,
        sessions: Sessions,
    ) -> None:
        settings, host = context.settings, context.host
        self._host, self.store, self.book = host, context.store, context.book
        self.settings, self.counters = settings, context.counters
        self._session_settings = settings.session_settings
        self._on_stranger = on_stranger
        self.versions = {version.id: version for version in versions}
        self.rate_limit = rate_limit
        self._sessions = sessions
        self.table = FetchTable()
        self.sources_of = self.table.sources_of
        self.event_streams = EventStreams(host, settings.max_frame)
        self.decoders = trio.CapacityLimiter(LONG_MESSAGES_AT_ONCE)
        self.memory = PeerMemory()
        """What sessions with peers have shown."""
        self.slots = PeerSlots(settings.max_sessions, settings.max_sessions_per_peer)
        """For the sessions that peers start."""
        for version in versions:
            keeps_stream = version.keeps_stream
            sessions.register(version.id, self.slots, self.begin_answer, keeps_stream=keeps_stream)

    async def reconcile(
        self, peer_id: str, key_range: KeyRange, news: Sequence[KeyRange] = ()
    ) -> int:
        """Reconcile a range with a connected peer, in as many sessions as its interests need.

        Returns:
            How many events the peer listed and did not supply.

        Raises:
            Exception: one of `PEER_FAILURES` if a session fails.
            CutShortError: the peer has many interests; the next call goes on above these.
            StoreError: the disk failed.
        """
        not_supplied = 0
        rest = self.memory.cut.pop((peer_id, key_range), key_range)
        for _ in range(MAX_SESSIONS_PER_RANGE):
            begin = partial(self._begin, rest, news, is_rest=rest != key_range)
            run = await self._sessions.initiate(peer_id, [*self.versions], begin)
            not_supplied += run.tally.not_supplied
            side = run.side
            self.book.answered(peer_id, rest, side.key_range)
            if side.remaining is None:
                return not_supplied
            rest = side.remaining
        self.memory.cut[peer_id, key_range] = rest
        raise CutShortError(
            f"the peer has cut one range into more than {MAX_SESSIONS_PER_RANGE} parts, and the "
            "others come with the next sync"
        )

    async def begin_answer(self, frames: PeerFrames) -> ReconRun:
        """Begin a session that a peer starts."""
        store = self.store
        side = Side.responder(store.keys, store.wanted.ranges, self._session_settings)
        return ReconRun(self, side, frames)

    def can_sync_with(self, peer_id: str) -> bool:
        """Return whether a connected peer speaks a version of recon, or did not say so."""
        speaks = self._host.known_protocols(peer_id)
        return bool(self.versions) and (not speaks or not speaks.isdisjoint(self.versions))

    def note_stranger(self, peer_id: str, its_network: str) -> None:
        """Note that a peer asked for events of another network, named `its_network`."""
        if self.memory.is_new_stranger(peer_id):
            logger.warning(
                "A peer is on another Ceramic network: there is nothing to sync with it",
                peer=peer_id,
                its_network=its_network,
                network=self.store.network.name,
            )
            self._on_stranger(peer_id)

    def _begin(
        self, key_range: KeyRange, news: Sequence[KeyRange], frames: PeerFrames, *, is_rest: bool
    ) -> ReconRun:
        side = Side.initiator(self.store.keys, key_range, self._session_settings, news)
        return ReconRun(self, side, frames, is_rest=is_rest)


class ReconRun(SessionRun[Any]):
    """A session of a reconciler, put together with its wire, its fetcher and its meter.

    `is_rest` says whether it is about what lies above a part that was reconciled before.
    """

    performer: Fetcher

    def __init__(
        self, reconciler: Reconciler, side: Side, frames: PeerFrames, *, is_rest: bool = False
    ) -> None:
        stream, store, settings = frames.stream, reconciler.store, reconciler.settings
        version, peer_id = reconciler.versions[stream.protocol], stream.peer_id
        if version.reports_left_out:
            side.begin_without(reconciler.memory.unwanted_of(peer_id))
        fetcher = Fetcher(
            peer_id,
            store,
            reconciler.table,
            partial(reconciler.event_streams.open, peer_id),
            settings,
            reconciler.counters,
            stream.account,
            address_block_of(stream.address),
        )
        meter = Meter(
            reconciler.rate_limit,
            stream.address,
            store.keys,
            lambda: side.key_range in store.wanted.ranges,
        )
        session = version.session(side)
        wire = FrameWire(version, session, frames, settings, reconciler.decoders)
        super().__init__(frames, session, wire, fetcher, meter)
        self.side = side
        self._book, self._store, self._memory = reconciler.book, store, reconciler.memory
        self._note_stranger = reconciler.note_stranger
        self._is_rest = is_rest

    def conclude(self) -> str:
        """Return what came of a session that ended well.

        Two sides that have nothing in common agree, too. Why they have nothing in common matters to
        the operator: a peer of another network, named by mistake, asks for nothing that this node
        could hold.
        """
        self._note_asked()
        side = self.side
        network_id = None if side.asked is None else network_id_of(side.asked.lower)
        if network_id is not None and network_id != self._store.network.id:
            there = network_name(network_id)
            self._note_stranger(self.peer_id, there)
            return f"{ANOTHER_NETWORK} ({there}): nothing in common"
        if not self._is_rest and not self._has_common_interest():
            return NO_COMMON_INTEREST
        outcome = agreed_but_for(*self.left_out())
        if outcome == AGREED and side.key_range is not None:
            self._memory.note_agreement(self.peer_id, side.key_range, self.started)
        return outcome

    def left_out(self) -> tuple[int, int]:
        """Return how many keys of the peer we left out, and how many of ours it did."""
        return self.side.left_out, self.side.left_out_by_peer

    def end(self, outcome: str, *, hung_up: bool) -> SyncReport:
        """Remember what the session has shown of its peer; return its report."""
        self._note_asked()
        tally, peer_id = self.tally, self.peer_id
        tally.events_sent, tally.event_bytes_sent = self._book.take_served(peer_id)
        if differing := tally.keys_received + tally.events_sent:
            self._book.differed(peer_id, differing, of=len(self._store.keys))
        is_declined = partial(self._store.is_declined, for_good=True)
        self._memory.note_unwanted(peer_id, filter(is_declined, self.performer.unwanted))
        self.frames.stream.account.hold("unwanted keys", 0)
        report = super().end(outcome, hung_up=hung_up)
        self.frames.start_count()
        return report

    def _note_asked(self) -> None:
        asked = self.side.asked
        if self.role == "responder" and asked is not None:
            self._book.asked_for(self.peer_id, asked)

    def _has_common_interest(self) -> bool:
        """Return whether both sides want a part of the range, or of others that the peer asked for.

        A range is reconciled in parts, and above the last one nothing is left in common.
        """
        if self.side.key_range is not None:
            return True
        theirs = self._book.interests(self.peer_id)
        return bool(intersect_ranges(self._store.wanted.ranges, theirs))


class FrameWire(Generic[M]):
    """The messages of 1.0.0 and 1.2.0 on a stream: one in each frame.

    `decoders` bounds how many long messages are decoded at once: their memory is charged
    afterwards.
    """

    def __init__(
        self,
        version: Version[M],
        session: TurnSession[M],
        frames: FrameStream,
        settings: P2PSettings,
        decoders: trio.CapacityLimiter,
    ) -> None:
        self._version = version
        self._session = session
        self._frames = frames
        self._settings = settings
        self._decoders = decoders
        self._account = frames.account
        self._held = 0
        """Bytes of memory that the messages of the peer's current turn take."""

    def traffic(self) -> tuple[int, int]:
        """Return how many bytes the session has sent, and how many it has received."""
        return self._frames.bytes_sent, self._frames.bytes_received

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Carry messages while the block runs."""
        yield
        self._hold(0)

    async def receive(self) -> M | None:
        """Return the peer's next message; None at the end of the stream."""
        # Only an answer takes work, and only before its first byte: the first message of a session
        # does not, nor does the rest of a turn.
        until_begun = self._time_to_answer if self._session.side.awaits_answer else 0.0
        data = await self._frames.receive(self._settings.idle_timeout, until_begun)
        if data is None:
            return None
        if len(data) <= self._settings.long_message:
            message, weight = self._decode(data)
        else:
            self._account.hold("messages", len(data))
            message, weight = await trio.to_thread.run_sync(
                self._decode, data, limiter=self._decoders
            )
            self._account.hold("messages", 0)
        self._hold(self._held + weight)
        return message

    @property
    def _time_to_answer(self) -> float:
        """Seconds until the peer's answer begins: it fetches what we have listed before that."""
        timeouts = max(1.0, self._session.side.listed_in_turn / LISTED_PER_TIMEOUT)
        return timeouts * self._settings.turn_timeout

    async def send(self, action: Send[M] | SendValues) -> None:
        """Send a turn."""
        assert isinstance(action, Send)  # only the rings send values
        self._hold(0)
        # In a turn of several messages the peer fetches the events of one before it reads the next.
        several, settings = len(action.messages) > 1, self._settings
        patience = settings.turn_timeout if several else settings.idle_timeout
        self._account.hold("answers", sum(map(self._version.weigh, action.messages)))
        try:
            await self._frames.send(map(self._version.encode, action.messages), patience)
        except trio.BrokenResourceError:
            if not self._session.done:  # else the peer has said its last word
                raise
        self._account.hold("answers", 0)

    def _decode(self, data: bytes) -> tuple[M, int]:
        message = self._version.decode(data)
        return message, self._version.weigh(message)

    def _hold(self, size: int) -> None:
        self._held = size
        self._account.hold("turns", size)


AGREED_FOR: Final = 10.0
"""Seconds for which it is remembered that a peer agreed with this node."""
MAX_AGREEMENTS: Final = 2048
"""Maximum peers and ranges of agreements, the latest ones: as many as there may be until the last
wave of a push, of which each may have a range for each of its keys."""
UNWANTED_FOR: Final = 3600.0
"""Seconds for which keys are remembered that a peer holds and this node refuses. The peer may have
dropped some then."""
MAX_UNWANTED_REMEMBERED: Final = 65_536
"""Maximum such keys, of all peers."""
MAX_STRANGERS: Final = 1000
"""Maximum peers of other networks."""


class PeerMemory:
    """What sessions show of peers, for later sessions: bounded, and forgotten after a while."""

    def __init__(self) -> None:
        clock = trio.current_time
        self._agreements = Remembered[tuple[str, KeyRange], float](
            MAX_AGREEMENTS, lifetime=AGREED_FOR, clock=clock
        )
        self._unwanted = Remembered[str, list[bytes]](
            MAX_UNWANTED_REMEMBERED, lifetime=UNWANTED_FOR, clock=clock, weigh=len
        )
        self._strangers = Remembered[str, None](MAX_STRANGERS)
        self.cut = Latest[tuple[str, KeyRange], KeyRange](MAX_AGREEMENTS)
        """What is left of ranges that peers with many interests have cut into many parts."""

    def note_agreement(self, peer_id: str, key_range: KeyRange, began: float) -> None:
        """Note a session that has ended in agreement.

        The peer has every key of the range that we had when it began. So there is no need to push
        such a key to it, no matter which of the two started the session. `began` is when it began,
        on trio's clock.
        """
        self._agreements.put((peer_id, key_range), began)

    def holders(self, since: float) -> Callable[[bytes], list[str]]:
        """Return a function that returns the peers that have a key which we have had since then,
        on trio's clock."""
        agreed = defaultdict[str, list[KeyRange]](list)
        for (peer_id, key_range), began in self._agreements.items():
            if began >= since:
                agreed[peer_id].append(key_range)
        merged = {peer_id: merge_ranges(ranges) for peer_id, ranges in agreed.items()}
        return lambda key: [peer_id for peer_id, ranges in merged.items() if covers(ranges, key)]

    def note_unwanted(self, peer_id: str, keys: Iterable[bytes]) -> None:
        """Note keys that a peer has listed and that this node will not take.

        They are left out from the start of the next session with the same peer, so that it need not
        list them again: a session over ten thousand junk events then costs little more than one
        without any.
        """
        known = self._unwanted.get(peer_id, [])
        if (new := {*keys}) and (new := new.difference(known)):  # mostly, there are none
            known = sorted([*known, *sorted(new)])  # merges two runs
            self._unwanted.put(peer_id, known[:MAX_UNWANTED_REMEMBERED], renew=False)

    def unwanted_of(self, peer_id: str) -> list[bytes]:
        """Return the keys that a peer holds and that this node does not want, ascending."""
        return self._unwanted.get(peer_id, []).copy()

    def is_new_stranger(self, peer_id: str) -> bool:
        """Note a peer of another network; return whether it was not known as one."""
        is_new = peer_id not in self._strangers
        self._strangers.put(peer_id, None)
        return is_new
