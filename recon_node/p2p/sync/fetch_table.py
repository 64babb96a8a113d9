"""Which session fetches a key, of those with peers that list it.

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

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final, Generic, TypeVar

import trio

from recon_node.base.latest import Latest
from recon_node.ceramic import EventId

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
STALL_CHECK_INTERVAL: Final = 0.25
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

    def check_stalled(self) -> bool:
        """Return whether the claim is void, because the peer has stalled; if it has now, its
        address counts as slow for a while."""
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
        """Wait until some of its keys are released, at most `STALL_CHECK_INTERVAL` seconds."""
        with trio.move_on_after(STALL_CHECK_INTERVAL):
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
        return claim if claim and (claim.peer == peer or not claim.check_stalled()) else None
