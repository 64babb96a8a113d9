"""From keys that a peer lists to events in the store: what a session does between its turns.

One session at a time fetches a key. It claims it in a `FetchTable` (`fetch_table.py`), with the
others of a request, when it sends that, so that sessions with several peers share the work. One
request is sent ahead of another. Keys that another session has claimed are left for last, and
fetched if they have not arrived by then.

An event is asked for by its key, which is its EventId, or by the id of that (`ByKey`, `ById`).
Where either is meant, it is a *name*.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from operator import itemgetter
from typing import Final, TypeAlias

import numpy as np
import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.context import Counters, run_cooperatively
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
from recon_node.p2p.sync.fetch_table import Claim, FetchTable
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
    find_by_id,
    id_of,
    intersect_ranges,
)
from recon_node.recon.actions import Admit
from recon_node.store import Store, Verdict

logger = structlog.get_logger(__name__)

IN_FLIGHT: Final = 6
"""Maximum batches of one fetch that the store works on at once: queued, checked or written, two
of them together."""
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
            failed = await self.fetch_by_key([EventId(key) for key in action.keys])
        elif self._store.wants_keys_first:
            return None
        else:
            failed, not_supplied = await self._fetch_by_id(action.sought, has_waited)
        unwanted = [*filter(self._store.is_declined, failed)]
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

    async def fetch_by_key(self, keys: list[EventId]) -> list[EventId]:
        """Get the events of these keys into the store; return the keys for which that failed."""
        self._note_asked(len(keys))
        self._counters.keys_unwanted += sum(map(self._store.is_unwanted, keys))
        self._table.note_source(keys, self._peer)
        way = ByKey(self._store)
        await self._fetch(way, [*keys])
        return [key for key in keys if key not in way.delivered and key not in self._store.keys]

    async def _fetch_by_id(
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
        await self._fetch(way, sought.ids)
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

    async def _fetch(self, way: Way, names: list[bytes]) -> None:
        """Fetch events, or wait for the sessions that do."""
        self._account.hold("fetches", NAME_WEIGHT * len(names))
        taken_over: list[bytes] = []
        try:
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
        finally:
            self._account.hold("fetches", 0)

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
                    await self._send_requests(requests, frames, claim, admit)
            if claim.taken_over:
                rest = way.untried(requests.asked)
                self.tally.not_supplied += len(rest)
                taken_over += rest
        return requests.left

    def _mixes(self, way: Way, names: list[bytes]) -> bool:
        """Return whether events come in any order; those of one request come in the right one."""
        return not way.in_order and len(names) > self._settings.events_per_request

    async def _send_requests(
        self, requests: Requests, frames: FrameStream, claim: Claim, admit: AdmitEvents
    ) -> None:
        """Send requests, and have the events of their answers admitted."""
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
                    f"the peer listed {missing} keys for which it delivered no event"
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
        """Do nothing: the store knows which EventIds have come to other sessions."""

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
        self._ids: dict[EventId, bytes] = {}
        """The ids of events that are on their way into the store: to hash each EventId once."""
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
        ids = [self._ids.pop(event_id, b"") or id_of(event_id) for event_id in event_ids]
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
        here = await run_cooperatively(find_by_id(self._store.keys, self._range, wanted))
        self.delivered.update(id_.to_bytes(ID_SIZE, "little") for id_, _ in here)

    def request(self, ids: list[bytes]) -> RequestByIds:
        """Return a request for the events of some ids."""
        return RequestByIds(self._range, ids, self._ids)


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
