"""The store: the event log, its key store and its feed, as the layers above see them.

A change is made in the log first, in a thread. Once committed, it is published here, on trio's
thread and in the order of the commits: the key store and the feed's head move, those who wait for
them wake up, and only then does the caller get its answer.
"""

import math
import shutil
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import structlog
import trio

from recon_node.base.files import reserve_at
from recon_node.base.latest import Latest
from recon_node.base.terminal import human_size
from recon_node.ceramic import EventId
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyStore, KeyView, id_of, intersect_ranges
from recon_node.store.damage import DamageWatch
from recon_node.store.db.log import Committed, EventLog
from recon_node.store.db.settling import (
    commit_proofs,
    forget_far_dues,
    note_chains,
    postpone_proofs,
)
from recon_node.store.db.sql import explained_errors
from recon_node.store.errors import DiskFullError
from recon_node.store.intake import Intake, Writer
from recon_node.store.kept_interests import Interests
from recon_node.store.policy import Policy, PolicyGate
from recon_node.store.reading.feed_rows import find_time
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.ring_keys import RingKeys
from recon_node.store.values import FeedTime, Interest, Submission, Verdict
from recon_node.verification import Refusal
from recon_node.verification.facts import Finding

logger = structlog.get_logger(__name__)

DISK_CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks at the disk."""
_COPIES: Final = 3
"""How many times an event may be on the disk: in the write-ahead log, in the log, and its index."""
_ENOUGH: Final = 1.1
"""Peers' events are taken again once this many times the space that was needed is free."""
STALL: Final = 30.0
"""Seconds without progress after which nobody waits any longer."""
PROGRESS: Final = 1_000_000
"""Bytes of events that a snapshot brings in `STALL` seconds: one that is slower, perhaps on
purpose, is not worth waiting for."""
LATEST_KEYS: Final = 4096
"""The latest keys that are kept by default."""


class Store:
    """A node's events. Made by `opening.open_store`; used from trio's thread only.

    What asks or changes the log raises `StoreError` if the disk fails, or does not take it, or the
    store is closed; what admits events of peers also if the disk has no room for these.

    Attributes:
        network: of all its events.
        epoch: a UUID made with the log; feed positions are meaningful only together with it.
        wanted: the node's interests, to be listed, added to and removed from.
        filling: the ranges that a snapshot is filling.
        policy: decides which streams are accepted.
        disk: the part of the disk that is kept free.
        native_core: the version of the native core that checks signatures; None: Python does.
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
        totals: events by verdict since the store was opened; "late refused" waited, and turned out
            wrong when their history came; "policy refused" are those of the refused that the write
            policy refused.
        batch_durations: time from a batch's verification to the end of its transaction.
    """

    def __init__(
        self,
        log: EventLog,
        keys: KeyStore,
        refused: Iterable[EventId],
        withheld: Iterable[EventId],
        added_interests: Iterable[Interest],
        reader: LogReader,
        data_dir: Path,
        policy: Policy,
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
            ("new", "known", "refused", "late refused", "policy refused"), 0
        )
        self._refused = Latest[bytes, EventId](log.settings.max_refused)
        self._refused.update((id_of(event_id), event_id) for event_id in refused)
        self._withheld = {id_of(event_id): event_id for event_id in withheld}
        self._without_room = Latest[EventId, None](log.settings.max_refused)
        self._feed_moved = trio.lowlevel.ParkingLot()
        self._inits_moved = trio.lowlevel.ParkingLot()
        self._proofs_moved = trio.lowlevel.ParkingLot()
        self.network = log.network
        self.epoch = log.epoch
        self._writer = Writer(log, self.publish, lambda: log.close(self.keys, self.ring_keys))
        self.wanted = Interests(added_interests, self._writer, reader)
        self.filling = Filling()
        self.policy = PolicyGate(policy, log.network, reader)
        keep = log.settings.keep_free
        self.disk = DiskReserve(
            reserve_at(data_dir) if keep == "auto" else keep,
            partial(free_space, log.path),
            time.monotonic,
        )
        self._intake = Intake(
            log.settings, self._writer, lambda: self.wanted.ranges, self.policy, self.damage
        )
        self.native_core = self._intake.native_core
        self.batch_durations = self._intake.durations

    @property
    def write_failure(self) -> str:
        """Why the log could not be written when that was last tried, and what to do about it."""
        return self._writer.failure

    @property
    def pending(self) -> int:
        """How many events lack the lookup of an anchor: time events, and what builds on them."""
        held = len(self.keys) + self.damage.missing_keys + self.withheld
        return held - self.head - self.waiting

    @property
    def wants_keys_first(self) -> bool:
        """Whether events may be refused by their EventIds, before they are fetched: by a write
        policy, or because the disk has no room."""
        return not self.policy.is_open or self.disk.is_short

    def is_unwanted(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether the write policy refuses the events of that EventId, as far as it shows,
        or the disk has no room for events of peers.

        That is not the fault of those who hold them. A damaged event that is here is wanted.

        Args:
            event_id: of the events.
            for_good: do not count what is refused for now, for want of an answer or of room.
        """
        if self.disk.is_short and not for_good and event_id not in self.keys:
            return True
        refusal = self.policy.refusal(event_id)
        if refusal is None or (for_good and not refusal.is_final):
            return False
        return event_id.event_cid not in self.damage.cids()

    def is_ruled_out(self, event_id: EventId) -> bool:
        """Return whether there is no point in fetching the event of an EventId: it was seen and is
        known to be wrong under it, it is withheld, or it is unwanted.

        The latest `StoreSettings.max_refused` wrong ones are remembered, across restarts too.
        """
        return self._is_refused(event_id) or self.is_unwanted(event_id)

    def is_declined(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether an event is ruled out, or found no room lately: a peer that has it is not
        to blame. (Another version of this program may take events that this one refuses.)

        `for_good` does not count what may be different when the event comes again.
        """
        if self._is_refused(event_id) or (not for_good and event_id in self._without_room):
            return True
        return self.is_unwanted(event_id, for_good=for_good)

    def _is_refused(self, event_id: EventId) -> bool:
        name = id_of(event_id)
        return event_id in (self._refused.get(name), self._withheld.get(name))

    async def admit_local(self, cars: Sequence[bytes]) -> list[Verdict]:
        """Admit events of this node's own clients, in order: a CAR may build on those before it.

        An event is refused if its init event or a prev is not here, or if it is not valid.
        Interests do not matter. Cancelling the call does not take the events back.
        """
        return await self._intake.submit([Submission(car) for car in cars])

    async def admit_history(self, cars: Sequence[bytes]) -> list[Verdict]:
        """Admit events that the operator brings: as `admit_local`, but under capabilities that held
        at any time.
        """
        return await self._intake.submit([Submission(car, at_any_time=True) for car in cars])

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        """Admit events of peers, each under the EventId that the peer has for it.

        An event whose history is not here is kept, and served to peers, but not delivered before
        the history comes; it may turn out wrong then (`is_ruled_out`). Cancelling the call does not
        take the events back.
        """
        with self.disk.room_for(sum(len(car) for _, car in events)):
            return await self._intake.submit([Submission(car, key) for key, car in events])

    async def read_event(self, car: bytes) -> Finding:
        """Return what a CAR says of itself, read in a process; for large ones."""
        return await self._intake.verifiers.read(car)

    async def admit_from_ring(
        self, events: Sequence[tuple[HeightlessEventId, bytes]]
    ) -> list[Verdict]:
        """Admit events of ceramic-one nodes, each under the EventId without height that came with
        it; an event may build on those before it.

        Without a height, an event can only be placed once its history is here. Until then it is
        refused with the cause "history", and the caller may offer it again. Cancelling the call
        does not take the events back.
        """
        submitted = [Submission(car, ring_key=key) for key, car in events]
        with self.disk.room_for(sum(len(car) for _, car in events)):
            return await self._intake.submit(submitted)

    async def find_time(self, time: int) -> FeedTime:
        """Return the feed position of a time, in Unix milliseconds.

        Raises:
            UnknownTimeError: an earlier version delivered events around that time, and did not note
                when.
            StoreError: the disk failed, or the store is closed.
        """
        log = self._writer.log

        def find() -> FeedTime:
            with explained_errors(log.path):
                return find_time(log.connection, time, log.now(), log.marks.head)

        return await self._writer.ask(find)

    async def note_chains(self, chains: Collection[str]) -> None:
        """Note which chains are asked about anchors (CAIP-2): time events of others make room for
        theirs.
        """
        await self._writer.run(partial(note_chains, self._writer.log, chains))

    async def settle_proofs(self, verdicts: Sequence[tuple[CID, int | str]]) -> None:
        """Record the outcomes of lookups of proofs: the time of the block, in Unix seconds, or why
        the proof is wrong.

        In one transaction, time events with these proofs are delivered as far as their history is,
        or permanently refused, and so is what builds on them. A proof is settled once: a later
        outcome changes nothing.
        """
        settled = [
            (proof, Refusal(verdict, inherent=True) if isinstance(verdict, str) else verdict)
            for proof, verdict in verdicts
        ]
        await self._writer.commit(partial(commit_proofs, self._writer.log, settled))

    async def postpone_proofs(
        self, proofs: Sequence[tuple[CID, float]], not_found: Collection[CID] = ()
    ) -> None:
        """Record that lookups of proofs failed, and when each proof is due again, in Unix seconds.

        Args:
            proofs: with that time.
            not_found: those of them whose transaction the chain does not have. After the second
                time, what depends on it is not offered to ceramic-one nodes any more.
        """
        await self._writer.commit(partial(postpone_proofs, self._writer.log, proofs, not_found))

    async def forget_far_dues(self, now: float) -> None:
        """Have proofs looked up at once that are due later than any lookup is postponed, as after
        a clock that was ahead; `now` is in Unix seconds.
        """
        await self._writer.commit(partial(forget_far_dues, self._writer.log, now))

    @property
    def head(self) -> int:
        """The last feed position, 0 when the feed is empty."""
        return self.reader.head

    def find_refused(self, name: bytes) -> EventId | None:
        """Return the EventId that has this id (key_hashes.py), if it is refused or withheld."""
        return self._refused.get(name) or self._withheld.get(name)

    def refused_among(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return those of some ids whose EventIds are refused or withheld."""
        return (self._refused.keys() & ids) | (self._withheld.keys() & ids)

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
        if committed.repaired:  # before the next: what is repaired may be refused then
            self.damage.note_repaired(committed.repaired)
        self._change_keys(committed)
        self.arrivals.add(committed.added)
        if committed.damaged:
            self.damage.note(committed.damaged)
        self._count(committed)
        self._wake(committed)

    def _change_keys(self, committed: Committed) -> None:
        """Add the keys of a commit to those that are held, or refused or withheld, and to the
        ring's."""
        for event_id in committed.removed:
            self._keys.discard(event_id)
        self._keys.load(committed.added)
        if self._withheld:
            for event_id in (*committed.added, *committed.removed):
                self._withheld.pop(id_of(event_id), None)
        for event_id in committed.withheld:
            self._keys.discard(event_id)  # some were keys while they waited
            self._withheld[id_of(event_id)] = event_id
        if self._ring_keys is not None:
            _follow(committed, self._ring_keys)
        elif self._missed is not None:
            committed.completed = list(committed.completed)  # and let go of the records
            self._missed.append(committed)
        self._refused.update((id_of(event_id), event_id) for event_id in committed.refused)

    def _count(self, committed: Committed) -> None:
        """Count the verdicts of a commit, and note the events that found no room."""
        for verdict in committed.verdicts:
            self.totals[verdict.status] += 1
            if verdict.status != "refused":
                continue
            self.totals["policy refused"] += verdict.cause in ("policy", "unjudged")
            if verdict.cause == "waiting" and verdict.event_id is not None:
                self._without_room[verdict.event_id] = None
        self.totals["late refused"] += len(committed.removed)

    def _wake(self, committed: Committed) -> None:
        """Move on where the log stands, and wake those who wait for that."""
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
        if committed.marks.has_releases:
            self._intake.wake()

    async def run(self) -> None:
        """Write what is submitted, until `close`."""
        await self._intake.run()

    async def close(self) -> None:
        """End the reads under way, write what was submitted and close the log."""
        with trio.CancelScope(shield=True):
            await self.reader.close()
            await self._intake.close()  # last: closing the last connection removes the WAL


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


class Filling:
    """Ranges of keys that a snapshot fills, so that peers need not deliver the same events.

    A node that starts from a snapshot takes the bulk of its events there, and only then the rest
    from live nodes (CIP-124, appendix C). Until then, its sessions about these ranges wait, within
    bounds: a snapshot that brings less than `PROGRESS` bytes in `STALL` seconds no longer counts.
    Connections, pushes of a few new keys and other ranges do not wait. Used in trio's thread only.
    """

    def __init__(self) -> None:
        self._ranges: list[KeyRange] = []
        self._until = -math.inf
        self._brought = 0
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
        self._brought = 0
        self._came.clear()

    def narrow(self, ranges: Sequence[KeyRange]) -> None:
        """Stop filling what lies outside of these ranges."""
        self._ranges = intersect_ranges(self._ranges, ranges)

    def note(self, events: Sequence[tuple[EventId, bytes]]) -> None:
        """Note which events came from the snapshot."""
        self._came.update(event_id for event_id, _ in events)
        self._brought += sum(len(car) for _, car in events)
        if self._brought >= PROGRESS:
            self._until, self._brought = trio.current_time() + STALL, 0

    def end(self) -> None:
        """Stop filling, and wake the tasks that wait for that."""
        self._ranges = []
        self._over.unpark_all()

    async def wait(self, seconds: float) -> None:
        """Wait until nothing is filled, or the snapshot has stalled, for some seconds at most."""
        with trio.move_on_after(seconds):
            while self.ranges:
                with trio.move_on_at(self._until):
                    await self._over.park()

    def without_filled(self, keys: Sequence[EventId] | None) -> Sequence[EventId] | None:
        """Return new keys, without those that came from a snapshot, which peers can read as well.

        Args:
            keys: None if there are more than are remembered; the result is None then, too, unless
                something is being filled.
        """
        if keys is None:
            self._came.clear()
            return () if self.ranges else None
        left = [key for key in keys if key not in self._came] if self._came else keys
        self._came.difference_update(keys)
        return left


class DiskReserve:
    """The reserve on the disk of a store.

    Anybody may send valid events to a node on an open network, until its disk is full: then
    nothing works that has to write. So below a reserve (`keep_free`) nothing is taken from peers,
    while this node's own clients can still write. Peers are not informed: their events count as
    unwanted for now, so that sessions go on, this node's own events reach the others, and the rest
    is fetched once there is room again.

    Args:
        keep: bytes to keep free; 0: none.
        free: returns how many bytes are free now, less those that are still to be written.
        clock: returns the time in seconds.
    """

    def __init__(self, keep: int, free: Callable[[], int], clock: Callable[[], float]) -> None:
        self.keep = keep
        self._free = free
        self._clock = clock
        self._held = 0
        """Bytes of events that are being written."""
        self._is_short = False
        self._enough = 0.0
        """The bytes that must be free until peers' events are taken again."""
        self._looked_at = -DISK_CHECK_INTERVAL

    @property
    def free(self) -> int:
        """The bytes that are free now."""
        try:
            return self._free()
        except OSError:  # the disk is gone: writing says so better
            return self.keep

    @property
    def is_short(self) -> bool:
        """Whether nothing is taken from peers; as of the last look."""
        if self.keep and self._clock() >= self._looked_at + DISK_CHECK_INTERVAL:
            self._looked_at = self._clock()
            free = self.free
            self._set_short(free < (self._enough if self._is_short else self.keep), free, self.keep)
        return self._is_short

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Take room for events of peers, whose CARs have `size` bytes, while they are being
        written.

        Raises:
            DiskFullError: there is not enough.
        """
        free, needed = self.free, self.keep + _COPIES * (self._held + size)
        if self.keep and (self.is_short or free < needed):
            self._set_short(True, free, needed)
            raise DiskFullError(
                f"the disk has {human_size(free)} left, and {human_size(self.keep)} are kept "
                "free (keep_free): nothing is taken from peers until there is more"
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size

    def _set_short(self, is_short: bool, free: int, needed: int) -> None:
        if is_short and not self._is_short:
            self._enough = _ENOUGH * needed
        if is_short != self._is_short:
            (logger.warning if is_short else logger.info)(
                "The disk is nearly full: nothing is taken from peers until it has more room"
                if is_short
                else "The disk has room again: events are taken from peers",
                free=free,
                keep_free=self.keep,
            )
        self._is_short = is_short


def free_space(log: Path) -> int:
    """Return how many bytes are free on the disk of an event log, less its write-ahead log.

    What stands in that one is still to be written to the log itself.
    """
    try:
        ahead = log.with_name(log.name + "-wal").stat().st_size
    except OSError:  # there is none now
        ahead = 0
    return max(0, shutil.disk_usage(log.parent).free - ahead)


def _follow(committed: Committed, ring_keys: RingKeys) -> None:
    """Change the ring's keys as a commit did; a commit that they already have changes nothing."""
    for event_id in committed.removed:
        ring_keys.discard(event_id)
    ring_keys.add(committed.completed)
    ring_keys.doubt(committed.doubted)
    ring_keys.trust(committed.trusted)
