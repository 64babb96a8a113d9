"""From keys that a peer lists to events in the store: what a session does between its turns.

One session at a time fetches a key. It claims it in a `FetchTable`, with the others of a request,
when it sends that, so that sessions with several peers share the work. One request is sent ahead of
another. Keys that another session has claimed are left for last, and fetched if they have not
arrived by then.

An event is asked for by its key, which is its EventId, or by the id of that (`ByKey`, `ById`).
Where either is meant, it is a *name*.

A claim lasts until its events are in the store or their fetching has failed. It becomes void
earlier if its peer stalls: if less than `MIN_BYTES` arrive from it in `STALLED_AFTER` seconds,
or if it takes longer than `CLAIM_TIME` since the last request, not counting the time in which the
store had to catch up. A claim of a few keys (`SMALL_CLAIM`), such as those of a push, is void as
soon as its peer has sent nothing for `SILENT_AFTER` seconds: to fetch a few events twice costs less
than to wait. A session with another peer that listed one of the keys then takes it over, and
the stalled fetch ends. For `SLOW_FOR` seconds, all claims for the slow peer are void, and for those
at its address: peer ids cost nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Final, Generic, TypeAlias, TypeVar

import numpy as np
import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.ceramic import EventId
from recon_node.p2p.context import Counters
from recon_node.p2p.errors import CutShortError, PeerProtocolError, StaleStreamError
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.event_stream import (
    BATCH_EVENTS,
    EVENTS_BY_ID_PROTOCOL,
    EVENTS_PROTOCOL,
    AdmitEvents,
    EventRequest,
    FetchedEvents,
    RequestByIds,
    RequestByKeys,
    fetch_events,
)
from recon_node.p2p.sync.key_rate_limit import in_steps
from recon_node.p2p.sync.sessions import Tally
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.guarded_connection import MemoryAccount
from recon_node.recon import (
    ID_SIZE,
    Failed,
    Fetch,
    FetchById,
    SoughtIds,
    covers,
    find,
    id_of,
    intersect_ranges,
)
from recon_node.recon.actions import Admit
from recon_node.store import Store, Verdict

logger = structlog.get_logger(__name__)

IN_FLIGHT: Final = 4
"""Maximum batches of one fetch that the store works on at once: queued, checked or written."""
PUSHED: Final = 16
"""Events that a session fetches while a snapshot fills their range: as many as a push lists."""
SNAPSHOTS_TURN: Final = 60.0
"""Seconds for which a session waits for a snapshot: half of what its peer waits for it."""
MAX_UNWANTED_IN_SESSION: Final = 500_000
"""Maximum keys that a peer may list in a session and that we refuse or do not want."""
UNWANTED_WEIGHT: Final = 160
"""Bytes of memory that such a key takes."""
NAME_WEIGHT: Final = 192
"""Bytes of memory that a name takes while its event is fetched: in lists, and among those that have
come."""
SORTED_BYTES: Final = 16 << 20
"""Bytes of events that are put in order at a time, where a peer sends them in another. An event
that comes before those that it builds on is written, waits, and is read and moved again."""
NOBODYS_FAULT: Final = ("waiting", "policy", "unjudged")
"""Causes of refusals for which no peer is to blame."""
MAX_INVALID: Final = 1000
"""Invalid events that a session may bring, beyond as many as are new; the next one goes on."""


def check_invalid(invalid: int, new: int) -> None:
    """End a session that brings too many events that are invalid here.

    They are remembered, so the next session with the peer begins where this one has ended.

    Raises:
        CutShortError: as described.
    """
    if invalid > MAX_INVALID + new:
        raise CutShortError(
            f"the peer sent {invalid:,} events that are invalid here; the next session goes on "
            "after them"
        )


def is_refused_or_declined(store: Store, key: EventId, *, for_good: bool = False) -> bool:
    """Return whether a peer may hold a key whose event we do not take: it is not to blame.

    Another version of this program may take events that this one refuses.
    """
    return store.find_refused(id_of(key)) == key or store.is_declined(key, for_good=for_good)


OpenEventStream = Callable[[str], AbstractAsyncContextManager[FrameStream]]
"""Opens a stream of a protocol with the peer, or takes one that was kept."""


@asynccontextmanager
async def _concurrently(admit: AdmitEvents) -> AsyncIterator[AdmitEvents]:
    """Yield an `AdmitEvents` that returns before `admit` does, so that events can arrive meanwhile.

    At most `IN_FLIGHT` calls run at once; all have ended when the block ends.
    """
    slots = trio.Semaphore(IN_FLIGHT)
    failures: list[Exception] = []

    async def run(events: FetchedEvents) -> None:
        try:
            await admit(events)
        except Exception as error:  # raised below, because the nursery would wrap it in a group
            failures.append(error)
        finally:
            slots.release()

    async def admit_soon(events: FetchedEvents) -> None:
        await slots.acquire()
        if failures:
            slots.release()
            raise failures[0]
        nursery.start_soon(run, events)

    async with trio.open_nursery() as nursery:
        try:
            yield admit_soon
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


@asynccontextmanager
async def _in_key_order(admit: AdmitEvents, account: MemoryAccount) -> AsyncIterator[AdmitEvents]:
    """Yield an `AdmitEvents` that puts events in the order of their EventIds, as many as fit.

    What has come when a fetch fails is admitted, too: otherwise it would have to come again.
    """
    held: FetchedEvents = []
    size = 0

    async def flush() -> None:
        nonlocal size
        events = sorted(held, key=itemgetter(0))
        held.clear()
        size = 0
        for start in range(0, len(events), BATCH_EVENTS):
            await admit(events[start : start + BATCH_EVENTS])
        account.hold("events in order", 0)

    async def take(events: FetchedEvents) -> None:
        nonlocal size
        held.extend(events)
        size += sum(len(car) for _, car in events)
        account.hold("events in order", size)
        if size >= SORTED_BYTES:
            await flush()

    try:
        yield take
    except Exception:
        await flush()
        raise
    await flush()


class Fetcher:
    """Fetches and admits, for one session with one peer."""

    def __init__(
        self,
        peer: str,
        store: Store,
        table: FetchTable,
        open_stream: OpenEventStream,
        settings: P2PSettings,
        counters: Counters,
        account: MemoryAccount,
        address_block: str = "",
    ) -> None:
        self._peer = peer
        self._address_block = address_block
        self._store = store
        self._table = table
        self._open_stream = open_stream
        self._settings = settings
        self._counters = counters
        self._account = account
        self._invalid = 0
        self._hurried = 0
        """Events that were asked for although a snapshot is filling their range."""
        self.tally = Tally()
        self.unwanted: list[bytes] = []
        """Keys that the peer listed, and whose events this node refuses or does not want."""

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        """Get events into the store; return what failed.

        Raises:
            CutShortError: the peer holds too much that we do not want, or sent too many invalid
                events.
            P2PError: the peer cannot be reached, or its stream ended too early.
            PeerProtocolError: the peer broke the protocol or took too long.
            trio.BrokenResourceError: the stream was lost.
            StoreError: our store cannot take the events.
        """
        assert not isinstance(action, Admit)  # only the rings send values unasked
        has_waited = await self._leave_to_snapshot(action)
        not_supplied: list[bytes] = []
        if isinstance(action, Fetch):
            failed = await self.obtain([EventId(key) for key in action.keys])
        elif self._store.wants_keys_first:
            return None
        else:
            failed, not_supplied = await self._obtain_by_id(action.sought, has_waited)
        unwanted = [key for key in failed if is_refused_or_declined(self._store, key)]
        self._note_unwanted(unwanted)
        return Failed(failed, unwanted, not_supplied)

    async def _leave_to_snapshot(self, action: Fetch | FetchById) -> bool:
        """Wait while a snapshot fills the range of many events: it is where their bulk comes from.

        A few are fetched at once: they may be news. Returns whether events may have come meanwhile.
        """
        filled = self._store.filling.ranges
        if isinstance(action, Fetch):
            self._hurried += sum(covers(filled, key) for key in action.keys) if filled else 0
        elif intersect_ranges([action.sought.key_range], filled):
            self._hurried += len(action.sought.ids)
        if self._hurried <= PUSHED:
            return False
        await self._store.filling.wait(SNAPSHOTS_TURN)
        return True

    async def obtain(self, keys: list[EventId]) -> list[EventId]:
        """Get the events of these keys into the store; return the keys for which that failed."""
        self._note_asked(len(keys))
        self._counters.keys_unwanted += sum(map(self._store.is_unwanted, keys))
        self._table.note_source(keys, self._peer)
        way = ByKey(self._store)
        await self._obtain(way, [*keys])
        return [key for key in keys if key not in way.delivered and key not in self._store.keys]

    async def _obtain_by_id(
        self, sought: SoughtIds, some_may_be_here: bool
    ) -> tuple[list[EventId], list[bytes]]:
        """Get the events of these ids into the store.

        Returns the EventIds of those that the store did not take, and the ids of those that did not
        come.
        """
        self._note_asked(len(sought.ids))
        way = ById(self._store, self._table, sought)
        if some_may_be_here:
            await way.look_up(sought.ids)
        await self._obtain(way, sought.ids)
        event_ids = {id_: way.find(id_) for id_ in sought.ids if id_ not in way.delivered}
        not_held = [event_id for event_id in event_ids.values() if event_id not in self._store.keys]
        refused = [event_id for event_id in not_held if event_id is not None]
        return refused, [id_ for id_, event_id in event_ids.items() if event_id is None]

    def _note_unwanted(self, keys: list[EventId]) -> None:
        if not keys:
            return
        self.unwanted += keys
        if len(self.unwanted) > MAX_UNWANTED_IN_SESSION:
            raise CutShortError(
                f"the peer holds more than {MAX_UNWANTED_IN_SESSION:,} events that this node or "
                "its write policy refuses, or that cost their makers nothing: narrow the node's "
                "interests"
            )
        self._account.hold("unwanted keys", UNWANTED_WEIGHT * len(self.unwanted))

    def _note_asked(self, events: int) -> None:
        self.tally.keys_received += events
        self._counters.keys_received += events

    async def _obtain(self, way: Way, names: list[bytes]) -> None:
        """Fetch events, or wait for the sessions that do."""
        self._account.hold("fetches", NAME_WEIGHT * len(names))
        try:
            await self._fetch_or_wait(way, names)
        finally:
            self._account.hold("fetches", 0)

    async def _fetch_or_wait(self, way: Way, names: list[bytes]) -> None:
        taken_over: list[bytes] = []
        while names := await _untried(way, names):
            try:
                names = await self._fetch_unclaimed(way, names, taken_over)
            except StaleStreamError:  # the kept stream is gone: another one is opened
                continue
            if names:
                await self._table.wait(names, self._peer)
                await way.look_up(names)
        while taken_over := self._table.claimed(await _untried(way, taken_over), self._peer):
            await self._table.wait(taken_over, self._peer)

    async def _fetch_unclaimed(
        self, way: Way, names: list[bytes], taken_over: list[bytes]
    ) -> list[bytes]:
        """Fetch what no other session has claimed; return what one has.

        If the peer stalls and another session takes over what it was asked for, that is added to
        `taken_over`: this session does not ask for it again.
        """
        if self._table.are_claimed(names, self._peer):
            return names
        with self._table.claim(self._peer, self._address_block) as claim:
            requests = Requests(way, names, claim, self._settings.events_per_request)
            with claim.until_taken_over():
                async with (
                    self._open_stream(way.protocol) as frames,
                    _concurrently(partial(self._admit_claimed, way, claim)) as admit_soon,
                    _in_key_order(admit_soon, frames.account)
                    if self._mixes(way, names)
                    else nullcontext(admit_soon) as admit,
                ):
                    claim.watch(lambda: frames.bytes_received)
                    await self._fetch(requests, frames, claim, admit)
            if claim.taken_over:
                rest = way.untried(requests.asked)
                self.tally.not_supplied += len(rest)
                taken_over += rest
        return requests.left

    def _mixes(self, way: Way, names: list[bytes]) -> bool:
        """Return whether events come in any order; those of one request come in the right one."""
        return not way.in_order and len(names) > self._settings.events_per_request

    async def _fetch(
        self, requests: Requests, frames: FrameStream, claim: Claim, admit: AdmitEvents
    ) -> None:
        """Send requests, and have what comes admitted."""
        missing, counted = 0, frames.bytes_received

        def count_bytes() -> None:
            nonlocal counted
            self.tally.event_bytes_received += frames.bytes_received - counted
            self._counters.event_bytes_received += frames.bytes_received - counted
            counted = frames.bytes_received

        def note_answer(not_supplied: list[bytes]) -> None:
            nonlocal missing
            count_bytes()
            claim.release(not_supplied)
            self.tally.not_supplied += len(not_supplied)
            self._counters.events_missing += len(not_supplied)
            missing += len(not_supplied)
            if missing > self._settings.recon.max_not_supplied:
                raise PeerProtocolError(
                    f"peer listed {missing} keys for which it delivered no event"
                )

        async def admit_off_the_clock(events: FetchedEvents) -> None:
            with claim.stores_turn():
                await admit(events)

        patience = self._settings.idle_timeout
        try:
            with claim.peers_turn():
                await fetch_events(
                    frames, iter(requests), admit_off_the_clock, note_answer, patience
                )
        finally:
            count_bytes()

    async def _admit_claimed(self, way: Way, claim: Claim, events: FetchedEvents) -> None:
        event_ids = [event_id for event_id, _ in events]
        # Before the store has them: they are not pushed to the peer.
        self._table.note_source(event_ids, self._peer)
        claim.release(way.note(event_ids, await self._admit(events)))

    async def _admit(self, events: FetchedEvents) -> list[Verdict]:
        verdicts = await self._store.admit_remote(events)
        new = 0
        for (event_id, _), verdict in zip(events, verdicts, strict=True):
            if verdict.status != "refused":
                new += verdict.status == "new"
            elif verdict.cause in NOBODYS_FAULT:
                logger.debug(
                    "Did not take an event from a peer",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
            else:
                self.tally.not_supplied += 1
                self._invalid += 1
                self._counters.events_refused += 1
                logger.info(
                    "Refused an event from a peer",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
        self.tally.events_received += new
        self._counters.events_received += new
        check_invalid(self._invalid, self.tally.events_received)
        return verdicts


class ByKey:
    """By their EventIds."""

    protocol: Final = EVENTS_PROTOCOL
    in_order: Final = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self.delivered: set[bytes] = set()
        """The EventIds of events that have come and were delivered: the store keeps them."""

    def untried(self, keys: list[bytes]) -> list[bytes]:
        """Return the EventIds that are neither held nor refused."""
        store = self._store
        wanted = map(EventId, keys)
        return [
            event_id
            for event_id in wanted
            if event_id not in store.keys and not store.is_ruled_out(event_id)
        ]

    def note(self, event_ids: list[EventId], verdicts: list[Verdict]) -> Iterable[bytes]:
        """Take note of what became of events that have come; return their EventIds."""
        pairs = zip(event_ids, verdicts, strict=True)
        self.delivered.update(
            event_id for event_id, verdict in pairs if verdict.position is not None
        )
        return event_ids

    async def look_up(self, keys: list[bytes]) -> None:
        """Find out which EventIds have come to other sessions: the store knows."""

    def request(self, keys: list[bytes]) -> RequestByKeys:
        """Return a request for the events of some EventIds."""
        return RequestByKeys([*map(EventId, keys)])


class ById:
    """By the ids of their EventIds, which are not known before the events are here."""

    protocol: Final = EVENTS_BY_ID_PROTOCOL

    def __init__(self, store: Store, table: FetchTable, sought: SoughtIds) -> None:
        self._store = store
        self._table = table
        self._range = sought.key_range
        self.in_order = sought.in_order
        """Whether events come in the order of their EventIds."""
        self.delivered: set[bytes] = set()
        """The ids of events that have come and were delivered, or that others have got into the
        store."""
        self._known: dict[bytes, EventId] = {}
        """The EventIds of others that have come, by their ids."""

    def untried(self, ids: list[bytes]) -> list[bytes]:
        """Return the ids of events that have not come, to this session or lately to another."""
        left = [id_ for id_ in ids if id_ not in self.delivered]
        known = self._known.keys() & left
        known |= self._store.refused_among(left) | self._table.fetched.among(left)
        return [id_ for id_ in left if id_ not in known or self.find(id_) is None]

    def find(self, id_: bytes) -> EventId | None:
        """Return the EventId of an id, if its event has come, or need not come."""
        if (event_id := self._known.get(id_) or self._store.find_refused(id_)) is not None:
            return event_id
        event_id = self._table.fetched.get(id_)
        return event_id if event_id in self._store.keys else None  # it may have been damaged since

    def note(self, event_ids: list[EventId], verdicts: list[Verdict]) -> Iterable[bytes]:
        """Take note of what became of events that have come; return their ids."""
        ids = [*map(id_of, event_ids)]
        for id_, event_id, verdict in zip(ids, event_ids, verdicts, strict=True):
            if verdict.position is None:
                self._known[id_] = event_id
            else:
                self.delivered.add(id_)
        self._table.fetched.update(dict(zip(ids, event_ids, strict=True)))
        return ids

    async def look_up(self, ids: list[bytes]) -> None:
        """Find out which ids have come to other sessions; `FetchTable` only has the latest ones."""
        wanted = np.frombuffer(b"".join(ids), "<u8")
        here = await in_steps(find(self._store.keys, self._range, wanted))
        self.delivered.update(id_.to_bytes(ID_SIZE, "little") for id_, _ in here)

    def request(self, ids: list[bytes]) -> RequestByIds:
        """Return a request for the events of some ids."""
        return RequestByIds(self._range, ids)


Way: TypeAlias = ByKey | ById
"""How to fetch some events."""


async def _untried(way: Way, names: list[bytes]) -> list[bytes]:
    """Return the names that are neither held nor refused; other tasks run meanwhile."""
    untried: list[bytes] = []
    for start in range(0, len(names), BATCH_EVENTS):
        untried += way.untried(names[start : start + BATCH_EVENTS])
        await trio.lowlevel.checkpoint()
    return untried


class Requests:
    """Requests for events that no other session has claimed.

    Args:
        way: how to fetch them.
        names: which ones.
        claim: of this session. It takes the names of each request when that is made.
        size: most names in a request.
    """

    def __init__(self, way: Way, names: list[bytes], claim: Claim, size: int) -> None:
        self._way = way
        self._names = names
        self._claim = claim
        self._size = size
        self._at = 0
        self._claimed: list[bytes] = []
        self.asked: list[bytes] = []
        """The names of all requests that were made."""

    def __iter__(self) -> Iterator[EventRequest]:
        while self._at < len(self._names):
            part = self._names[self._at : self._at + self._size]
            self._at += len(part)
            mine, others = self._claim.take(self._way.untried(part))
            self.asked += mine
            self._claimed += others
            if mine:
                yield self._way.request(mine)

    @property
    def left(self) -> list[bytes]:
        """The names that other sessions have claimed, or that were not looked at."""
        return self._claimed + self._names[self._at :]


STALLED_AFTER: Final = 10.0
"""Seconds in which a peer has to send `MIN_BYTES`."""
MIN_BYTES: Final = 16 * 1024
SILENT_AFTER: Final = 1.0
"""Seconds in which a peer has to send anything, if it was asked for few events."""
SMALL_CLAIM: Final = 32
"""Keys of such a claim, at most."""
CLAIM_TIME: Final = 60.0
"""Seconds that a claim lasts after its last request."""
SLOW_FOR: Final = 60.0
"""Seconds for which a peer that stalled counts as slow."""
LOOK_EVERY: Final = 0.25
"""Seconds between two checks of whether the session that is waited for has stalled."""
MAX_SOURCES: Final = 16384
"""Maximum keys of which it is remembered which peers listed them."""
MAX_SLOW: Final = 1000
"""Maximum addresses that are remembered as slow."""

K = TypeVar("K")
V = TypeVar("V")


class _Recent(Generic[K, V]):
    """The latest entries, from half of a limit up to all of it, for entries that come in masses.

    They go in masses, too: a map that drops one after the other takes ten times as long.
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._new: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def update(self, entries: Mapping[K, V]) -> None:
        """Put in entries."""
        left = iter(entries.items())
        while part := dict(islice(left, self._half)):
            if len(self._new) + len(part) > self._half:
                self._old, self._new = self._new, {}
            self._new.update(part)

    def get(self, key: K) -> V | None:
        """Return the value of a key, if it is here."""
        value = self._new.get(key)
        return self._old.get(key) if value is None else value

    def among(self, keys: Iterable[K]) -> set[K]:
        """Return those of some keys that are here."""
        return (self._new.keys() & keys) | (self._old.keys() & keys)


class Claim:
    """The keys that one session fetches. Made by `FetchTable.claim`."""

    def __init__(self, table: FetchTable, peer: str, address_block: str, *, is_void: bool) -> None:
        self.peer = peer
        self.address_block = address_block
        self.held = 0
        """Keys that are claimed now."""
        self.taken_over = False
        """Whether another session has taken over keys, which ends the fetch."""
        self._table = table
        self._scope = trio.CancelScope()
        self._received: Callable[[], int] = lambda: 0
        self._moved = trio.lowlevel.ParkingLot()
        self._is_void = is_void
        self._time_left = CLAIM_TIME
        self._window: tuple[float, int] | None = None
        """While we wait for the peer: since when, and how many bytes had arrived by then."""

    @contextmanager
    def until_taken_over(self) -> Iterator[None]:
        """Leave the block when another session takes keys over."""
        with self._scope:
            yield

    def watch(self, received: Callable[[], int]) -> None:
        """Set the function that returns how many bytes have arrived from the peer."""
        self._received = received

    def take(self, keys: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Claim the keys that no other session has claimed; return them, and the others."""
        claims = self._table.claims
        mine: list[bytes] = []
        others: list[bytes] = []
        for key in keys:
            if (before := claims.get(key)) is not None:
                if self._table.holder(key, self.peer) is not None:
                    others.append(key)
                    continue
                before.take_over()
                before.held -= 1
            claims[key] = self
            mine.append(key)
        self.held += len(mine)
        if mine:
            self._time_left = CLAIM_TIME
        return mine, others

    def release(self, keys: Iterable[bytes]) -> None:
        """Give up keys: they are in the store, or could not be fetched."""
        claims = self._table.claims
        for key in keys:
            if claims.get(key) is self:
                del claims[key]
                self.held -= 1
        self._moved.unpark_all()

    @contextmanager
    def peers_turn(self) -> Iterator[None]:
        """Count the time inside: the peer has been asked for events."""
        self._start_window()
        try:
            yield
        finally:
            self._end_window()

    @contextmanager
    def stores_turn(self) -> Iterator[None]:
        """Do not count the time inside: the store has to catch up."""
        self._end_window()
        try:
            yield
        finally:
            self._start_window()

    def is_void(self) -> bool:
        """Return whether the peer has stalled, now or before."""
        if not self._is_void and self._window is not None:
            since, received = self._window
            waited, came = trio.current_time() - since, self._received() - received
            stalled = waited >= STALLED_AFTER and came < MIN_BYTES
            silent = waited >= SILENT_AFTER and not came and self.held <= SMALL_CLAIM
            if stalled or silent or waited >= self._time_left:
                self._is_void = True
                self._table.slow[self.address_block] = trio.current_time() + SLOW_FOR
            elif waited >= STALLED_AFTER:
                self._end_window()
                self._start_window()
        return self._is_void

    def take_over(self) -> None:
        """End the fetch: another session has claimed some of its keys."""
        self.taken_over = True
        self._scope.cancel()

    async def wait_for_move(self) -> None:
        """Wait until some of its keys are released, at most `LOOK_EVERY` seconds."""
        with trio.move_on_after(LOOK_EVERY):
            await self._moved.park()

    def _start_window(self) -> None:
        self._window = (trio.current_time(), self._received())

    def _end_window(self) -> None:
        if self._window is not None:
            self._time_left -= trio.current_time() - self._window[0]
        self._window = None


class FetchTable:
    """The claims of all sessions, and which peers listed which keys."""

    def __init__(self) -> None:
        self.claims: dict[bytes, Claim] = {}
        """Who fetches each key, or id, that is being fetched."""
        self.slow = Latest[str, float](MAX_SLOW)
        """Until when an address block counts as slow, on trio's clock."""
        self.fetched = _Recent[bytes, EventId](MAX_SOURCES)
        """The EventIds of events that were fetched by their ids lately, taken or not."""
        self._sources = _Recent[EventId, tuple[str, ...]](MAX_SOURCES)

    @contextmanager
    def claim(self, peer: str, address_block: str = "") -> Iterator[Claim]:
        """Make an empty claim for a session with a peer; release its keys when the block ends."""
        address_block = address_block or peer
        is_slow = self.slow.get(address_block, 0.0) > trio.current_time()
        claim = Claim(self, peer, address_block, is_void=is_slow)
        try:
            yield claim
        finally:
            claim.release([key for key, holder in self.claims.items() if holder is claim])

    def claimed(self, keys: Iterable[bytes], peer: str) -> list[bytes]:
        """Return the keys that a session with this peer has to leave to others."""
        return [key for key in keys if self.holder(key, peer) is not None]

    def are_claimed(self, keys: Iterable[bytes], peer: str) -> bool:
        """Return whether a session with this peer has to leave all of these keys to others."""
        return all(self.holder(key, peer) is not None for key in keys)

    async def wait(self, keys: Sequence[bytes], peer: str) -> None:
        """Wait until a session with this peer may claim the first of these keys."""
        if keys:
            while (claim := self.holder(keys[0], peer)) is not None:
                await claim.wait_for_move()

    def note_source(self, keys: Iterable[EventId], peer: str) -> None:
        """Remember that a peer listed keys."""
        listed: dict[EventId, tuple[str, ...]] = dict.fromkeys(keys, (peer,))
        for key in self._sources.among(listed):
            sources = self.sources_of(key)
            listed[key] = sources if peer in sources else (*sources, peer)
        self._sources.update(listed)

    def sources_of(self, key: EventId) -> tuple[str, ...]:
        """Return the peers that listed a key lately."""
        return self._sources.get(key) or ()

    def holder(self, key: bytes, peer: str) -> Claim | None:
        """Return the claim that keeps a session with a peer from fetching a key, if there is one.

        Asking the same peer for a key twice is useless, however slow it is.
        """
        claim = self.claims.get(key)
        return claim if claim and (claim.peer == peer or not claim.is_void()) else None
