"""The store: the event log, its key store and its feed, as the floors above see them."""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from recon_node.base.files import private_directory, reserve_at
from recon_node.base.program import no_garbage_collection
from recon_node.ceramic import EventId, Network
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.recon import KeyStore, id_of
from recon_node.store.contents import Contents, Filling, Writer
from recon_node.store.db.log import EventLog, commit_proofs, postpone_proofs, release_unsigned
from recon_node.store.db.sql import explained_errors
from recon_node.store.directory_lock import directory_lock
from recon_node.store.errors import DiskFullError, StoreError
from recon_node.store.intake import Intake
from recon_node.store.kept_interests import Interests, load_interests
from recon_node.store.policy import Policy, PolicyGate
from recon_node.store.reading.feed_rows import find_time
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.values import (
    FeedTime,
    Interest,
    StoreSettings,
    StoreStats,
    Submission,
    Verdict,
)
from recon_node.verification import Refusal
from recon_node.verification.facts import Finding

logger = structlog.get_logger(__name__)

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at the disk."""
_COPIES: Final = 3
"""How many times an event may be on the disk: in the write-ahead log, in the log, and its index."""
_ENOUGH: Final = 1.1
"""How many times what was lacking must be free until peers' events are taken again."""


class DiskReserve:
    """The reserve on the disk of a store.

    Anybody may send valid events to a node on an open network, until its disk is full: then
    nothing works that has to write. So below a reserve (`keep_free`) nothing is taken from peers,
    while this node's own clients can still write. Peers are told nothing: their events count as
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
        self._looked_at = -LOOK_EVERY

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
        if self.keep and self._clock() >= self._looked_at + LOOK_EVERY:
            self._looked_at = self._clock()
            free = self.free
            self._change(free < (self._enough if self._is_short else self.keep), free, self.keep)
        return self._is_short

    @contextmanager
    def room_for(self, size: int) -> Iterator[None]:
        """Take room for events of peers, whose CARs have `size` bytes, while they are being
        written.

        Raises:
            DiskFullError: there is not.
        """
        free, needed = self.free, self.keep + _COPIES * (self._held + size)
        if self.keep and (self.is_short or free < needed):
            self._change(True, free, needed)
            raise DiskFullError(
                f"the disk has {free / 1e6:,.0f} MB left, and {self.keep / 1e6:,.0f} MB are kept "
                "free (keep_free): nothing is taken from peers until there is more"
            )
        self._held += size
        try:
            yield
        finally:
            self._held -= size

    def _change(self, is_short: bool, free: int, needed: int) -> None:
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


class Store(Contents):
    """A node's events. Made by `open_store`; used from trio's thread only.

    Attributes:
        network: of all its events.
        epoch: a UUID made with the log; feed positions are meaningful only together with it.
        wanted: the node's interests, to be listed, added to and removed from.
        filling: the ranges that a snapshot is filling.
        policy: decides which streams are accepted.
        disk: the part of the disk that is kept free.
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
        super().__init__(log, keys, refused, withheld, reader)
        self.network = log.network
        self.epoch = log.epoch
        self._writer = Writer(log, self)
        self.wanted = Interests(added_interests, self._writer, reader)
        self.filling = Filling()
        self.policy = PolicyGate(policy, log.network, reader)
        keep = log.settings.keep_free
        self.disk = DiskReserve(
            reserve_at(data_dir) if keep == "auto" else keep,
            partial(free_space, log.path),
            time.monotonic,
        )
        self._intake = Intake(log.settings, self._writer, self.wanted, self.policy, self.damage)

    @property
    def stats(self) -> StoreStats:
        """What the store holds now, and what it did since it was opened."""
        held = len(self.keys) + self.damage.missing_keys + self.withheld
        return StoreStats(
            events=len(self.keys),
            delivered=self.head,
            waiting=self.waiting,
            pending=held - self.head - self.waiting,
            pending_proofs=self.proofs_pending,
            admitted_total=self.totals["new"],
            known_total=self.totals["known"],
            refused_total=self.totals["refused"],
            late_refused_total=self.totals["late refused"],
            policy_refused_total=self.totals["policy refused"],
            batches_total=self.totals["batches"],
            batch_durations=self._intake.durations,
        )

    @property
    def native_core(self) -> str | None:
        """The version of the native core that checks signatures; None: Python does."""
        return self._intake.native_core

    @property
    def wants_keys_first(self) -> bool:
        """Whether events may be refused by their EventIds, before they are fetched: by a write
        policy, or because the disk has no room."""
        return not self.policy.is_open or self.disk.is_short

    def is_unwanted(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether the write policy refuses the events of that EventId, as far as it tells,
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

    def is_declined(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether it is this node's choice that it does not count an event that a peer has:
        it is unwanted, withheld, or found no room.

        `for_good` does not count what may be different when the event comes again.
        """
        is_here = self.is_withheld(event_id) or (not for_good and self.found_no_room(event_id))
        return is_here or self.is_unwanted(event_id, for_good=for_good)

    def is_ruled_out(self, event_id: EventId) -> bool:
        """Return whether there is no point in fetching the event of an EventId: it was seen and is
        known to be wrong under it, it is withheld, or it is unwanted.

        The latest `StoreSettings.max_refused` wrong ones are remembered, across restarts too.
        """
        return self.find_refused(id_of(event_id)) == event_id or self.is_unwanted(event_id)

    async def admit_local(self, cars: Sequence[bytes]) -> list[Verdict]:
        """Admit events of this node's own clients, in order: a CAR may build on those before it.

        An event is refused if its init event or a prev is not here, or if it is not valid.
        Interests do not matter. Cancelling the call does not take the events back.

        Raises:
            StoreError: the disk did not take them all, or the store is closed.
        """
        return await self._intake.hand_in([Submission(car) for car in cars])

    async def admit_history(self, cars: Sequence[bytes]) -> list[Verdict]:
        """Admit events that the operator brings: as `admit_local`, but under capabilities that held
        at any time.

        Raises:
            StoreError: the disk did not take them all, or the store is closed.
        """
        return await self._intake.hand_in([Submission(car, at_any_time=True) for car in cars])

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        """Admit events of peers, each under the EventId that the peer has for it.

        An event whose history is not here is kept, and served to peers, but not delivered before
        the history comes; it may turn out wrong then (`is_ruled_out`). Cancelling the call does not
        take the events back.

        Raises:
            StoreError: the disk did not take them all, has no room for events of peers, or the
                store is closed.
        """
        with self.disk.room_for(sum(len(car) for _, car in events)):
            return await self._intake.hand_in([Submission(car, key) for key, car in events])

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

        Raises:
            StoreError: the disk did not take them all, has no room for events of peers, or the
                store is closed.
        """
        submitted = [Submission(car, ring_key=key) for key, car in events]
        with self.disk.room_for(sum(len(car) for _, car in events)):
            return await self._intake.hand_in(submitted)

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

    async def settle_proofs(self, verdicts: Sequence[tuple[CID, int | str]]) -> None:
        """Say what lookups of proofs led to: the time of the block, in Unix seconds, or why the
        proof is wrong.

        In one transaction, time events with these proofs are delivered as far as their history is,
        or permanently refused, and so is what builds on them. A proof is settled once: what is said
        of it later changes nothing.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        settled = [
            (proof, Refusal(verdict, inherent=True) if isinstance(verdict, str) else verdict)
            for proof, verdict in verdicts
        ]
        await self._writer.commit(partial(commit_proofs, self._writer.log, settled))
        self._intake.wake()

    async def postpone_proofs(
        self, proofs: Sequence[tuple[CID, float]], not_found: Collection[CID] = ()
    ) -> None:
        """Say that lookups of proofs failed, and when each proof is due again, in Unix seconds.

        Args:
            proofs: with that time.
            not_found: those of them whose transaction the chain does not have. If that is said
                again, what depends on it is not offered to ceramic-one nodes any more.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        await self._writer.commit(partial(postpone_proofs, self._writer.log, proofs, not_found))

    async def run_intake(self) -> None:
        """Write what is submitted, until `close`. Cannot be cancelled."""
        await self._intake.run()

    async def close(self) -> None:
        """End the reads under way, write what was submitted and close the log."""
        with trio.CancelScope(shield=True):
            await self.reader.close()
            await self._intake.close()  # last: closing the last connection removes the WAL


@asynccontextmanager
async def open_store(
    data_dir: Path,
    network: Network,
    *,
    settings: StoreSettings | None = None,
    policy: Policy | None = None,
    guarded: bool | None = None,
) -> AsyncIterator[Store]:
    """Open the store of a data directory; both are created if they do not exist.

    Without a policy, all valid events are accepted. Maintenance, to which a node's policy does not
    apply, says by `guarded` whether it decides in whose name streams are: then unsigned events stay
    as they are. None: the policy here says so.

    On leaving, what was submitted is written (see `StoreSettings.drain_seconds`), the log is
    closed and the directory's lock released.

    Raises:
        StoreError: the directory is in use by another process, or its log is another network's,
            damaged, foreign, of a later version, or cannot be read. Nothing is changed then.
    """
    settings = settings or StoreSettings()
    with ExitStack() as stack:
        policy = policy or Policy()
        guarded = policy.decides_by_name if guarded is None else guarded
        opened = await trio.to_thread.run_sync(_open, stack, data_dir, network, settings, guarded)
        reader = LogReader(
            data_dir, network, opened[0].epoch, opened[0].marks.head, settings.readers
        )
        store = Store(*opened, reader, data_dir, policy)
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.run_intake)
            try:
                yield store
            except BaseException as error:  # raised below: the nursery would wrap it in a group
                failure = error
            finally:
                await store.close()
        if failure is not None:
            raise failure


def _open(
    stack: ExitStack, data_dir: Path, network: Network, settings: StoreSettings, guarded: bool
) -> tuple[EventLog, KeyStore, list[EventId], list[EventId], list[Interest]]:
    """Open the log, and read from it what the store keeps in memory."""
    try:
        private_directory(data_dir)
    except FileExistsError:
        raise StoreError(f"the data directory {data_dir} is not a directory, but a file") from None
    except OSError as error:
        reason = error.strerror or error
        raise StoreError(f"the data directory {data_dir} cannot be created: {reason}") from error
    stack.enter_context(directory_lock(data_dir))
    event_log = EventLog(data_dir, network, settings, guarded=guarded)
    try:
        if not guarded:
            release_unsigned(event_log)
        with no_garbage_collection(for_good=True):
            keys = event_log.load_keys()
        refused, withheld = event_log.load_refused(), event_log.load_withheld()
        return event_log, keys, refused, withheld, load_interests(event_log)
    except BaseException:
        event_log.close()
        raise
