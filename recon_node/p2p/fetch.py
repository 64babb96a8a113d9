"""From keys that a peer tells to events in the store: what a session does between its turns.

A key is fetched by one session at a time: a session that meets a key which another one is fetching
waits for that, as long as it gets on, and fetches what is then still missing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Final

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.event_stream import Deliver, FetchedEvents, fetch_events
from recon_node.p2p.framing import FrameStream
from recon_node.p2p.reports import Counters
from recon_node.p2p.settings import P2PSettings
from recon_node.store import Store

log = structlog.get_logger(__name__)

STALLED_AFTER: Final = 5.0
"""A fetch that admits nothing for so many seconds is no longer waited for."""

IN_FLIGHT: Final = 4
"""Batches of one fetch that the store has in hand at once: in its queue, checked and written."""

OpenEventStream = Callable[[], AbstractAsyncContextManager[FrameStream]]


class _Fetch:
    """A fetch under way."""

    def __init__(self) -> None:
        self._done = trio.Event()
        self._moved_at = trio.current_time()

    def moved(self) -> None:
        self._moved_at = trio.current_time()

    def end(self) -> None:
        self._done.set()

    async def wait(self) -> None:
        """Wait for its end, as long as it gets on."""
        while not self._done.is_set() and trio.current_time() < self._moved_at + STALLED_AFTER:
            with trio.move_on_at(self._moved_at + STALLED_AFTER):
                await self._done.wait()


class FetchTable:
    """Which keys are being fetched, by any session."""

    def __init__(self) -> None:
        self._fetches: dict[EventId, _Fetch] = {}

    def split(self, keys: list[EventId]) -> tuple[list[EventId], list[EventId]]:
        """Part keys into those that nobody fetches, and those that are on their way."""
        free = [key for key in keys if key not in self._fetches]
        return free, [key for key in keys if key in self._fetches]

    @contextmanager
    def fetching(self, keys: list[EventId]) -> Iterator[Callable[[], None]]:
        """Let others wait for keys that are fetched; call what this gives whenever it gets on."""
        fetch = _Fetch()
        self._fetches.update(dict.fromkeys(keys, fetch))
        try:
            yield fetch.moved
        finally:
            for key in keys:
                if self._fetches.get(key) is fetch:
                    del self._fetches[key]
            fetch.end()

    async def wait(self, keys: list[EventId]) -> None:
        """Wait until the others have come to an end with these keys, or stall."""
        for fetch in {self._fetches[key] for key in keys if key in self._fetches}:
            await fetch.wait()


@asynccontextmanager
async def _hand_on(admit: Deliver) -> AsyncIterator[Deliver]:
    """Give a `Deliver` that returns before `admit` does, so that events come in while those before
    are checked and written. At most `IN_FLIGHT` calls at once; all have ended when this ends.
    """
    places = trio.Semaphore(IN_FLIGHT)
    failures: list[Exception] = []

    async def run(events: FetchedEvents) -> None:
        try:
            await admit(events)
        except Exception as error:  # raised below: the nursery would wrap it in a group
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
        store: Store,
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
        """Events that the peer listed, and then did not have, or that were not valid. Not those
        that this node has no room for, which is not the peer's fault."""
        self.bytes_received = 0

    async def obtain(self, keys: list[EventId]) -> list[EventId]:
        """Get the events of these keys into the store; return the keys for which that failed.

        Raises P2PError, PeerProtocolError or trio.BrokenResourceError when the peer does not serve
        its events, StoreError when ours cannot take them.
        """
        self.keys_received += len(keys)
        self._counters.keys_received += len(keys)
        free, on_their_way = self._table.split(self._missing(keys))
        await self._fetch(free)
        if on_their_way:
            await self._table.wait(on_their_way)
            await self._fetch(self._missing(on_their_way))
        return [key for key in keys if key not in self._store.keys]

    def _missing(self, keys: list[EventId]) -> list[EventId]:
        """Return the keys that are worth fetching."""
        store = self._store
        return [key for key in keys if key not in store.keys and not store.is_refused(key)]

    async def _fetch(self, keys: list[EventId]) -> None:
        if not keys:
            return
        patience, per_request = self._settings.idle_timeout, self._settings.events_per_request
        with self._table.fetching(keys) as moved:

            async def admit(events: FetchedEvents) -> None:
                await self._admit(events)
                moved()

            async with self._open_stream() as frames, _hand_on(admit) as deliver:
                try:
                    missing = await fetch_events(frames, keys, deliver, patience, per_request)
                finally:
                    self.bytes_received += frames.bytes_received
                    self._counters.event_bytes_received += frames.bytes_received
            self.undelivered += len(missing)
            self._counters.events_missing += len(missing)

    async def _admit(self, events: FetchedEvents) -> None:
        verdicts = await self._store.admit_remote(events)
        for (event_id, _), verdict in zip(events, verdicts, strict=True):
            if verdict.status == "new":
                self.events_received += 1
                self._counters.events_received += 1
            elif verdict.cause == "waiting":
                log.debug(
                    "Left an event of a peer for later",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
            elif verdict.status == "refused":
                self.undelivered += 1
                self._counters.events_refused += 1
                log.info(
                    "Refused an event of a peer",
                    peer=self._peer,
                    event_id=str(event_id),
                    reason=verdict.reason,
                )
