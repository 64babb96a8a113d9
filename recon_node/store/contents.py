"""What the store holds, as the floors above see it, and the one writer that changes it.

A change is made in the log first, in a thread. Once committed, it is published here, on trio's
thread and in the order of the commits: the key store and the feed's head move, those who wait for
them wake up, and only then does the caller get its answer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Generic, TypeVar, cast

import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.ceramic import EventId
from recon_node.recon import KeyRange, KeyStore, KeyView, id_of, intersect_ranges
from recon_node.store.damage import DamageWatch
from recon_node.store.db.log import Committed, EventLog
from recon_node.store.errors import DiskFullError, StoreError
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.ring_keys import RingKeys
from recon_node.store.values import Verdict

STALL: Final = 30.0
"""Seconds without progress after which nobody waits any longer."""


class Filling:
    """Ranges of keys that a snapshot fills, so that peers need not deliver the same events.

    A node that starts from a snapshot takes the bulk of its events there, and only then the rest
    from live nodes (CIP-124, appendix C). Until then, its sessions about these ranges wait, within
    bounds: a snapshot that makes no progress for `STALL` seconds no longer counts. Connections,
    pushes of a few new keys and other ranges do not wait. Used from trio's thread only.
    """

    def __init__(self) -> None:
        self._ranges: list[KeyRange] = []
        self._until = -math.inf
        self._came: set[EventId] = set()
        self._over = trio.lowlevel.ParkingLot()

    @property
    def ranges(self) -> Sequence[KeyRange]:
        """The ranges, ascending and apart; none if nothing is under way, or it has stalled."""
        if self._ranges and trio.current_time() >= self._until:
            self.end()
        return self._ranges

    def begin(self, ranges: Sequence[KeyRange]) -> None:
        """Begin to fill some ranges."""
        self._ranges, self._until = list(ranges), trio.current_time() + STALL
        self._came.clear()

    def narrow(self, ranges: Sequence[KeyRange]) -> None:
        """Fill no others than these."""
        self._ranges = intersect_ranges(self._ranges, ranges)

    def note(self, event_ids: Iterable[EventId] = ()) -> None:
        """Take note that it goes on, and that these events have come by it."""
        self._until = trio.current_time() + STALL
        self._came.update(event_ids)

    def end(self) -> None:
        """Nothing is filled any longer."""
        self._ranges = []
        self._over.unpark_all()

    async def wait(self, seconds: float) -> None:
        """Wait until it is over or has stalled, for some seconds at most."""
        with trio.move_on_after(seconds):
            while self.ranges:
                with trio.move_on_at(self._until):
                    await self._over.park()

    def without_filled(self, keys: Sequence[EventId] | None) -> Sequence[EventId] | None:
        """Return new keys but for those that have come by a snapshot, which others can read, too.

        Args:
            keys: None if they are more than are remembered; then also while nothing is filled.
        """
        if keys is None:
            self._came.clear()
            return () if self.ranges else None
        left = [key for key in keys if key not in self._came] if self._came else keys
        self._came.difference_update(keys)
        return left


T = TypeVar("T")

logger = structlog.get_logger(__name__)

LATEST_KEYS: Final = 4096
"""The latest keys that are kept by default."""


class Arrivals:
    """Counts the keys that were added to a store, and remembers the latest of them.

    A reader keeps the `total` up to which it has read. So any number of readers share one bounded
    memory, and none can hold up the store. Used from trio's thread only.

    Args:
        remembered: how many keys are kept for readers that lag behind.
    """

    def __init__(self, remembered: int = LATEST_KEYS) -> None:
        self._latest: deque[EventId] = deque(maxlen=remembered)
        self._moved = trio.lowlevel.ParkingLot()
        self.total = 0
        """Keys added since the store was opened."""

    def add(self, keys: Sequence[EventId]) -> None:
        """Note keys that were added, and wake those who wait."""
        if keys:
            self._latest.extend(keys)
            self.total += len(keys)
            self._moved.unpark_all()

    def since(self, total: int) -> list[EventId] | None:
        """Return the keys added after the first `total` ones, oldest first.

        None when there are more of them than are remembered. Keys that were removed since are
        among them.
        """
        count = self.total - total
        if count > len(self._latest):
            return None
        return list(islice(self._latest, len(self._latest) - count, None))

    async def wait(self, total: int) -> None:
        """Return when more than `total` keys were added."""
        while self.total <= total:
            await self._moved.park()


class Contents:
    """What the log holds, in memory. Used from trio's thread only.

    Args:
        log: which was just opened.
        keys: those of the log; from now on they are changed here and by `damage` only.
        refused: EventIds that the log remembers as refused, oldest first.
        withheld: EventIds that the log holds, but that are not offered to peers.
        reader: of the same log.

    Attributes:
        keys: the EventIds held, to read from.
        has_ring: whether the node takes part in ceramic-one's model ring.
        arrivals: which of them came in lately, whether they are delivered or not.
        reader: of the log: answers questions about it.
        waiting: how many events wait for a prev, their init event, or a valid event to cover them.
        damage: what in the log is damaged, as far as it was read.
        proofs_pending: how many proofs await a lookup.
        proof_arrivals: how many came to await one since the store was opened.
        inits_upto: for each sort key that somebody follows, a position beyond which the feed has
            no init event with it.
        totals: what was done since the store was opened, by verdict and more.
    """

    def __init__(
        self,
        log: EventLog,
        keys: KeyStore,
        refused: Iterable[EventId],
        withheld: Iterable[EventId],
        reader: LogReader,
    ) -> None:
        self._keys = keys
        self.keys: KeyView = keys
        self.has_ring = log.settings.ceramic_one
        self._ring_keys: RingKeys | None = None
        self._ring_turn = trio.Lock()
        self._missed: list[Committed] | None = None
        """Commits since the keys of the model ring began to be loaded."""
        self.arrivals = Arrivals()
        self.reader = reader
        self.damage = DamageWatch(keys, reader)
        self.waiting = log.marks.waiting
        self.proofs_pending = log.pending_proofs
        self.proof_arrivals = 0
        self.inits_upto: dict[str, int] = {}
        self.totals = dict.fromkeys(
            ("new", "known", "refused", "late refused", "policy refused", "batches"), 0
        )
        self._refused = Latest[bytes, EventId](log.settings.max_refused)
        self._refused.update((id_of(event_id), event_id) for event_id in refused)
        self._withheld = {id_of(event_id): event_id for event_id in withheld}
        self._without_room = Latest[EventId, None](log.settings.max_refused)
        self._feed_moved = trio.lowlevel.ParkingLot()
        self._inits_moved = trio.lowlevel.ParkingLot()
        self._proofs_moved = trio.lowlevel.ParkingLot()

    @property
    def head(self) -> int:
        """The last feed position, 0 when the feed is empty."""
        return self.reader.head

    def find_refused(self, name: bytes) -> EventId | None:
        """Return the EventId that has this id (sums.py), if it is refused or withheld."""
        return self._refused.get(name) or self._withheld.get(name)

    def refused_among(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return those of some ids whose EventIds are refused or withheld."""
        return (self._refused.keys() & ids) | (self._withheld.keys() & ids)

    def is_withheld(self, event_id: EventId) -> bool:
        """Return whether an event is held but withheld from peers."""
        return self._withheld.get(id_of(event_id)) == event_id

    def found_no_room(self, event_id: EventId) -> bool:
        """Return whether an event was refused lately only because there was no room for it."""
        return event_id in self._without_room

    @property
    def withheld(self) -> int:
        """How many events are held but withheld from peers; they are among those that wait."""
        return len(self._withheld)

    @property
    def ring_keys(self) -> KeyView | None:
        """The keys of the model ring; None as long as nobody has loaded them."""
        return None if self._ring_keys is None else self._ring_keys.keys

    async def load_ring_keys(self) -> KeyView:
        """Return the keys of the model ring, which are loaded if they are not yet.

        The log is read meanwhile as it is at the beginning, and others may change it.

        Raises:
            StoreError: the disk failed, or the store is closed.
        """
        async with self._ring_turn:
            if self._ring_keys is None:
                missed = self._missed = []
                try:
                    ring_keys = await self.reader.ring_keys()
                finally:
                    self._missed = None
                for committed in missed:
                    _follow(committed, ring_keys)
                self.damage.leave_out_of(ring_keys)
                self._ring_keys = ring_keys
                logger.info("The keys of ceramic-one's ring are loaded", keys=len(ring_keys.keys))
            return self._ring_keys.keys

    async def wait_for_feed(self, after: int) -> None:
        """Return when the feed has a position beyond `after`."""
        while self.head <= after:
            await self._feed_moved.park()

    async def wait_for_init(self, sort_key: str, after: int) -> None:
        """Return when the feed may have an init event with a sort key beyond `after`."""
        while self.inits_upto[sort_key] <= after:
            await self._inits_moved.park()

    async def wait_for_proofs(self, after: int) -> None:
        """Return when `proof_arrivals` has gone beyond `after`."""
        while self.proof_arrivals <= after:
            await self._proofs_moved.park()

    def publish(self, committed: Committed) -> None:
        """Take over what a commit changed, and wake those who wait for it."""
        if committed.mended:  # before the next: what is mended may be refused then
            self.damage.mended(committed.mended)
        for event_id in committed.removed:
            self._keys.discard(event_id)
        self._keys.load(committed.added)
        if self._withheld:
            for event_id in (*committed.added, *committed.removed):
                self._withheld.pop(id_of(event_id), None)
        for event_id in committed.withheld:
            self._keys.discard(event_id)  # it was thought to be signed by one who may
            self._withheld[id_of(event_id)] = event_id
        if self._ring_keys is not None:
            _follow(committed, self._ring_keys)
        elif self._missed is not None:
            self._missed.append(committed)
        self.arrivals.add(committed.added)
        self._refused.update((id_of(event_id), event_id) for event_id in committed.refused)
        if committed.damaged:
            self.damage.note(committed.damaged)
        for verdict in committed.verdicts:
            self.totals[verdict.status] += 1
            if verdict.status != "refused":
                continue
            self.totals["policy refused"] += verdict.cause in ("policy", "unjudged")
            if verdict.cause == "waiting" and verdict.event_id is not None:
                self._without_room[verdict.event_id] = None
        self.totals["late refused"] += len(committed.removed)
        self.totals["batches"] += 1
        self.waiting = committed.marks.waiting
        self.proofs_pending += committed.proofs_added - committed.proofs_done
        if committed.proofs_added:
            self.proof_arrivals += committed.proofs_added
            self._proofs_moved.unpark_all()
        for sort_key in self.inits_upto.keys() & committed.sort_keys:
            self.inits_upto[sort_key] = committed.marks.head
            self._inits_moved.unpark_all()
        if committed.marks.head > self.head:
            self.reader.head = committed.marks.head
            self._feed_moved.unpark_all()


def _follow(committed: Committed, ring_keys: RingKeys) -> None:
    """Take over what a commit changed; one that was there when the keys were read does nothing."""
    for event_id in committed.removed:
        ring_keys.discard(event_id)
    ring_keys.add(committed.completed)
    ring_keys.doubt(committed.doubted)
    ring_keys.trust(committed.trusted)


@dataclass(eq=False, slots=True)
class _Job(Generic[T]):
    """What the writer's thread is to do, and what is done with the outcome."""

    work: Callable[[], T]
    done: Callable[[T | None, BaseException | None], object]
    """Called in trio's thread with the result, or with what went wrong; must not raise."""
    is_change: bool = True
    result: T | None = None
    error: BaseException | None = None


class Writer:
    """Changes the log in a thread of its own, one change at a time and in the order of the calls.

    Args:
        log: open; closed by `close`.
        contents: to which each commit is published, before anything else is committed.
    """

    def __init__(self, log: EventLog, contents: Contents) -> None:
        self.log = log
        self._contents = contents
        self._jobs = deque[_Job[Any]]()
        """The first of them is under way."""
        self._thread: Thread | None = None
        self._to_thread = SimpleQueue[_Job[Any] | None]()
        self._closed = False
        self._disk_full = False

    def commit_soon(
        self,
        change: Callable[[], Committed],
        done: Callable[[Sequence[Verdict], BaseException | None], object],
    ) -> None:
        """Make a change that others see, publish it, and call a function in trio's thread.

        Args:
            change: of the log.
            done: called with the verdicts, or with what went wrong: a `StoreError` if the disk did
                not take it. Must not raise.

        Raises:
            StoreError: the store is closed, or no thread can be had; `done` is not called.
        """

        def publish(committed: Committed | None, error: BaseException | None) -> None:
            if committed is not None:
                try:
                    self._contents.publish(committed)
                except Exception as failure:
                    error = failure
            done(() if committed is None else committed.verdicts, error)

        self._start(_Job(change, publish))

    async def commit(self, change: Callable[[], Committed]) -> Sequence[Verdict]:
        """Make a change that others see, and publish it. Cannot be cancelled.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        return await _outcome(partial(self.commit_soon, change))

    async def run(self, change: Callable[[], T]) -> T:
        """Make a change that nobody else sees, and return what it returns. Cannot be cancelled.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        return await _outcome(lambda done: self._start(_Job(change, done)))

    async def ask(self, question: Callable[[], T]) -> T:
        """Return the answer to a question about the log, asked while nothing is being changed.

        Raises:
            StoreError: the disk failed, or the store is closed.
        """
        return await _outcome(lambda done: self._start(_Job(question, done, is_change=False)))

    async def close(self) -> None:
        """Close the log after all changes so far; later ones find the store closed."""
        contents = self._contents

        def start(done: Callable[[None, BaseException | None], object]) -> None:
            try:
                self._start(_Job(lambda: self.log.close(contents.keys, contents.ring_keys), done))
            finally:
                self._closed = True

        try:
            await _outcome(start)
        except StoreError as error:  # all that was committed is safe: the next start finds it
            logger.warning("The event log was not closed cleanly", reason=str(error))
        finally:
            self._to_thread.put(None)

    def _start(self, job: _Job[Any]) -> None:
        if self._closed:
            raise StoreError("the store is closed")
        if self._thread is None:
            token = trio.lowlevel.current_trio_token()
            thread = Thread(target=self._work, args=(token,), name="event log", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the next change tries again
                raise StoreError(f"the event log cannot be changed: {error}") from None
            self._thread = thread
        self._jobs.append(job)
        if len(self._jobs) == 1:
            self._to_thread.put(job)

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        """Do one job after the other, in the thread."""
        while (job := self._to_thread.get()) is not None:
            try:
                job.result = job.work()
            except BaseException as error:
                job.error = error
            token.run_sync_soon(self._finish, job)
            del job

    def _finish(self, job: _Job[Any]) -> None:
        """Say what came of a job, and have the next one done."""
        if job.is_change:
            self._watch_disk(job.error)
        job.done(job.result, job.error)
        self._jobs.popleft()  # now: it may have started another one, which comes after it
        if self._jobs:
            self._to_thread.put(self._jobs[0])

    def _watch_disk(self, error: BaseException | None) -> None:
        if isinstance(error, DiskFullError):
            if not self._disk_full:
                logger.error(
                    "The disk is full: nothing is written until it has room", reason=str(error)
                )
            self._disk_full = True
        elif error is None:
            if self._disk_full:
                logger.info("The disk has room again: events are written")
            self._disk_full = False


async def _outcome(
    start: Callable[[Callable[[T | None, BaseException | None], object]], object],
) -> T:
    """Start a job, and return its result or raise its error once it is done. Unlike by
    `trio.to_thread.run_sync`, no other task has a turn first. Cannot be cancelled."""
    task = trio.lowlevel.current_task()
    outcome: list[Any] = []

    def done(result: T | None, error: BaseException | None) -> None:
        outcome[:] = result, error
        trio.lowlevel.reschedule(task)

    start(done)
    await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
    result, error = outcome
    if error is not None:
        raise error
    return cast(T, result)
