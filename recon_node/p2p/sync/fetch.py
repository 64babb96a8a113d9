"""From keys that a peer lists to events in the store: what a session does between its turns.

One session at a time fetches a key. It first claims it in ``claims.FetchTable``, together with a
few requests' worth of others, so that sessions with several peers share the work. Keys that another
session has claimed are left for last, and fetched if they have not arrived by then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync.claims import Claim, FetchTable
from recon_node.p2p.sync.event_stream import Deliver, FetchedEvents, fetch_events
from recon_node.p2p.sync.reports import Counters
from recon_node.p2p.transport.framing import FrameStream

log = structlog.get_logger(__name__)

IN_FLIGHT: Final = 4
"""Maximum batches of one fetch that the store works on at once: queued, checked or written."""
REQUESTS_A_CLAIM: Final = 2
"""Requests whose keys a session claims at a time: it sends one ahead of the other."""

NOBODYS_FAULT: Final = ("waiting", "policy", "unjudged")
"""Causes of refusals for which no peer is to blame."""

OpenEventStream = Callable[[], AbstractAsyncContextManager[FrameStream]]


@asynccontextmanager
async def _hand_on(admit: Deliver) -> AsyncIterator[Deliver]:
    """Yield a ``Deliver`` that returns before ``admit`` does, so that events can arrive meanwhile.

    At most ``IN_FLIGHT`` calls run at once; all have ended when the block ends.
    """
    places = trio.Semaphore(IN_FLIGHT)
    failures: list[Exception] = []

    async def run(events: FetchedEvents) -> None:
        try:
            await admit(events)
        except Exception as error:  # raised below, because the nursery would wrap it in a group
            failures.append(error)
        finally:
            places.release()

    async def deliver(events: FetchedEvents) -> None:
        await places.acquire()
        if failures:
            places.release()
            raise failures[0]
        nursery.start_soon(run, events)

    async with trio.open_nursery() as nursery:
        try:
            yield deliver
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


class Fetcher:
    """Fetches and admits, for one session with one peer."""

    def __init__(
        self,
        peer: str,
        store: EventStore,
        table: FetchTable,
        open_stream: OpenEventStream,
        settings: P2PSettings,
        counters: Counters,
    ) -> None:
        self._peer = peer
        self._store = store
        self._table = table
        self._open_stream = open_stream
        self._settings = settings
        self._counters = counters
        self.keys_received = 0
        self.events_received = 0
        self.undelivered = 0
        """Events that the peer listed but did not have, or that were not valid. Those that we have
        no room for, or do not want, do not count: that is not the peer's fault."""
        self.bytes_received = 0

    async def obtain(self, keys: list[EventId]) -> list[EventId]:
        """Get the events of these keys into the store; return the keys for which that failed.

        Raises:
            P2PError: the peer cannot be reached, or its stream ended too early.
            PeerProtocolError: the peer broke the protocol or took too long.
            trio.BrokenResourceError: the stream was lost.
            StoreError: our store cannot take the events.
        """
        self.keys_received += len(keys)
        self._counters.keys_received += len(keys)
        self._counters.keys_unwanted += sum(map(self._store.is_unwanted, keys))
        self._table.note_told(keys, self._peer)
        lost: list[EventId] = []
        untried = keys
        while untried := self._missing(untried):
            untried = await self._fetch_unclaimed(untried, lost)
            await self._table.wait(untried, self._peer)
        while lost := self._table.claimed(self._missing(lost), self._peer):
            await self._table.wait(lost, self._peer)
        return [key for key in keys if key not in self._store.keys]

    def _missing(self, keys: list[EventId]) -> list[EventId]:
        """Return the keys that are worth fetching."""
        store = self._store
        return [key for key in keys if key not in store.keys and not store.is_refused(key)]

    async def _fetch_unclaimed(self, keys: list[EventId], lost: list[EventId]) -> list[EventId]:
        """Fetch the keys that no other session has claimed; return those that one has.

        If the peer stalls and another session takes over what it was asked for, those keys are
        added to ``lost``: this session does not ask for them again.
        """
        left = self._table.claimed(keys, self._peer)
        if len(left) == len(keys):
            return left
        left = []
        asked: list[EventId] = []
        at, size = 0, REQUESTS_A_CLAIM * self._settings.events_per_request
        with self._table.claim(self._peer) as claim:

            async def admit(events: FetchedEvents) -> None:
                await self._admit(events)
                claim.release([key for key, _ in events])

            with claim.until_taken_over():
                async with self._open_stream() as frames, _hand_on(admit) as deliver:
                    claim.watch(lambda: frames.bytes_received)
                    while at < len(keys):
                        mine, others = claim.take(self._missing(keys[at : at + size]))
                        asked += mine
                        left += others
                        at += size
                        await self._fetch(mine, frames, claim, deliver)
            if claim.taken_over:
                taken_over = self._missing(asked)
                self.undelivered += len(taken_over)
                lost += taken_over
        return left + keys[at:]

    async def _fetch(
        self, keys: Sequence[EventId], frames: FrameStream, claim: Claim, deliver: Deliver
    ) -> None:
        if not keys:
            return
        patience, per_request = self._settings.idle_timeout, self._settings.events_per_request

        async def hand_on(events: FetchedEvents) -> None:
            with claim.stores_turn():
                await deliver(events)

        before = frames.bytes_received
        try:
            with claim.peers_turn():
                missing = await fetch_events(frames, keys, hand_on, patience, per_request)
        finally:
            self.bytes_received += frames.bytes_received - before
            self._counters.event_bytes_received += frames.bytes_received - before
        claim.release(missing)
        self.undelivered += len(missing)
        self._counters.events_missing += len(missing)

    async def _admit(self, events: FetchedEvents) -> None:
        verdicts = await self._store.admit_remote(events)
        for (event_id, _), verdict in zip(events, verdicts, strict=True):
            if verdict.status == "new":
                self.events_received += 1
                self._counters.events_received += 1
            elif verdict.cause in NOBODYS_FAULT:
                log.debug(
                    "Did not take an event from a peer",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
            elif verdict.status == "refused":
                self.undelivered += 1
                self._counters.events_refused += 1
                log.info(
                    "Refused an event from a peer",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
