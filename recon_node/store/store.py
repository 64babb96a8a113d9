"""The store: the event log, its key store and its feed, as the floors above see them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from recon_node.ceramic import EventId, EventKind
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.files import reserve_at
from recon_node.ipld import CID
from recon_node.recon import KeyStore
from recon_node.store.admission.anchors import commit_proofs, postpone_proofs
from recon_node.store.contents import Contents, Writer
from recon_node.store.damage.detection import DamagedEventError
from recon_node.store.db import columns, questions
from recon_node.store.db.block_index import BlockFinder
from recon_node.store.db.log import EventLog
from recon_node.store.db.reader import Reader, ReaderPool
from recon_node.store.disk_reserve import DiskReserve, free_space
from recon_node.store.intake import Intake
from recon_node.store.interests import Interests
from recon_node.store.judging import PolicyGate
from recon_node.store.listings import Listings
from recon_node.store.policy import Policy
from recon_node.store.ring_keys import RingKeys
from recon_node.store.stream_reads import StreamReads
from recon_node.store.values import (
    FeedColumns,
    FeedFilter,
    FeedPlace,
    FeedRow,
    FeedTime,
    Interest,
    PendingProof,
    StoreStats,
    Submission,
    Verdict,
)
from recon_node.verification import Refusal

T = TypeVar("T")


class Store(Contents):
    """A node's events. Made by `open_store` (opening.py); used from trio's thread only.

    Attributes:
        network: of all its events.
        epoch: a UUID made with the log; feed positions are meaningful only together with it.
        wanted: the node's interests, to be listed, added to and removed from.
        policy: decides which streams are accepted.
        listings: of streams, models, and what is not delivered.
        streams: the events of one stream.
        disk: the part of the disk that is kept free.
    """

    def __init__(
        self,
        log: EventLog,
        keys: KeyStore,
        ring_keys: RingKeys | None,
        refused: Iterable[EventId],
        withheld: Iterable[EventId],
        added_interests: Iterable[Interest],
        readers: ReaderPool,
        data_dir: Path,
        policy: Policy,
    ) -> None:
        super().__init__(log, keys, ring_keys, refused, withheld, readers)
        self.network = log.network
        self.epoch = log.epoch
        self._readers = readers
        self.listings = Listings(readers)
        self.streams = StreamReads(readers, self)
        self._blocks = BlockFinder(data_dir, log.epoch, readers)
        self._writer = Writer(log, self)
        self.wanted = Interests(added_interests, self._writer, readers)
        self.policy = PolicyGate(policy, log.network, readers)
        keep = log.settings.keep_free
        self.disk = DiskReserve(
            reserve_at(data_dir) if keep == "auto" else keep,
            partial(free_space, log.path),
            time.monotonic,
        )
        self._intake = Intake(log.settings, self._writer, self.wanted, self, self.policy)

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
    def wants_keys_first(self) -> bool:
        """Whether events may be refused by their EventIDs, before they are fetched: by a write
        policy, or because the disk has no room."""
        return bool(self.policy.policy) or self.disk.is_short

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

    def is_excused(self, event_id: EventId, *, for_good: bool = False) -> bool:
        """Return whether it is this node's choice that it does not count an event that a peer has:
        it is unwanted, withheld, or found no room.

        Args:
            event_id: of the event.
            for_good: do not count what may be different when the event comes again.
        """
        is_here = self.is_withheld(event_id) or (not for_good and self.found_no_room(event_id))
        return is_here or self.is_unwanted(event_id, for_good=for_good)

    def is_refused(self, event_id: EventId) -> bool:
        """Do as `Contents` does; also if the event is unwanted."""
        return super().is_refused(event_id) or self.is_unwanted(event_id)

    def is_settled(self, event_id: EventId) -> bool:
        """Do as `Contents` does; also if the event is unwanted."""
        return super().is_settled(event_id) or self.is_unwanted(event_id)

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
        the history comes; it may turn out wrong then (`is_refused`). Cancelling the call does not
        take the events back.

        Raises:
            StoreError: the disk did not take them all, has no room for events of peers, or the
                store is closed.
        """
        with self.disk.room_for(sum(len(car) for _, car in events)):
            return await self._intake.hand_in([Submission(car, key) for key, car in events])

    async def admit_from_ring(
        self, events: Sequence[tuple[HeightlessEventId, bytes]]
    ) -> list[Verdict]:
        """Admit events of ceramic-one nodes, each under the EventID without height that came with
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

    async def get_event(self, cid: CID) -> bytes | None:
        """Return the CAR of an event, delivered or not; None when it is not here.

        Raises:
            DamagedEventError: the event is damaged.
            StoreError: the disk failed.
        """
        return await self._noting(partial(questions.read_car, cid))

    async def get_block(self, cid: CID) -> bytes | None:
        """Return a block of an event, delivered or not; None when it is not here.

        Raises:
            DamagedEventError: the event is damaged, or one that has to be read first.
            StoreError: the disk failed.
        """
        return await self.damage.noting(self._blocks.find(cid, self.head))

    async def get_cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """Return the CARs of some EventIds, in their order; None for those that are not here.

        Raises:
            DamagedEventError: one of them is damaged.
            StoreError: the disk failed.
        """
        cars, damaged = await self._readers.ask(partial(questions.read_cars, event_ids))
        if damaged:
            self.damage.note(damaged)
            raise DamagedEventError(*damaged)
        return cars

    async def get_cars_for_peers(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """Do the same for peers, to whom a damaged event is not here.

        Raises:
            StoreError: the disk failed.
        """
        cars, damaged = await self._readers.ask(partial(questions.read_cars, event_ids))
        self.damage.note(damaged)
        return cars

    async def get_cars_by_cid(self, cids: Sequence[CID]) -> list[bytes | None]:
        """Return the CARs of some events, in their order, to peers: None for those that are not
        here or are damaged.

        Raises:
            StoreError: the disk failed.
        """
        cars, damaged = await self._readers.ask(partial(questions.read_cars_by_cid, cids))
        self.damage.note(damaged)
        return cars

    async def get_event_ids(self, cids: Sequence[CID]) -> dict[CID, tuple[bytes, EventKind]]:
        """Return the EventIds and the kinds of those of some events that are here.

        Raises:
            StoreError: the disk failed.
        """
        return await self._readers.ask(partial(questions.read_event_ids, cids))

    async def read_feed(
        self, after: int, limit: int, upto: int | None = None, max_bytes: int | None = None
    ) -> list[FeedRow]:
        """Return at most `limit` delivered events of the positions (after, upto], in order.

        They end at `head`, before a damaged event, or, with `max_bytes`, with the event that takes
        the CARs to so many bytes.

        Raises:
            DamagedEventError: the first of them is damaged.
            StoreError: the disk failed.
        """
        read = partial(
            questions.read_feed_or_damage, after, limit, self._within_head(upto), max_bytes
        )
        found, damage = await self._readers.ask_for_page(read)
        if damage is not None:
            self.damage.note([damage])  # it is mended while the reader deals with what is before it
            if not found:
                raise DamagedEventError(damage)
        return found

    async def read_feed_columns(
        self,
        after: int,
        limit: int,
        upto: int,
        max_bytes: int,
        wanted: FeedFilter = FeedFilter(),  # noqa: B008 - a value, and immutable
        *,
        cars: bool = True,
    ) -> FeedColumns:
        """Return at most `limit` delivered events of the positions (after, upto] that match a
        filter, in order.

        The CARs of others are not touched. One thread is busy until as many are found or `upto` is
        reached: keep the range bounded. The last one is the event that takes the CARs to
        `max_bytes`. Without `cars`, they are not read, and the rows are not checked.

        Raises:
            DamagedEventError: one of them is damaged.
            StoreError: the disk failed.
        """
        upto = self._within_head(upto)
        read = partial(
            columns.read_columns, after, limit, upto, max_bytes, wanted, self.network, cars
        )
        return await self.damage.noting(self._readers.ask_for_page(read))

    async def read_columns_of(self, cids: Sequence[CID], max_bytes: int) -> tuple[FeedColumns, int]:
        """Return those of some events that are delivered, in the order of their CIDs, and how many
        of the CIDs were dealt with: the last event is the one that takes the CARs to `max_bytes`.

        Damaged events are not here, and noted.

        Raises:
            StoreError: the disk failed.
        """
        read = partial(columns.read_columns_of, cids, self.head, max_bytes)
        found, done, damaged = await self._readers.ask_for_page(read)
        self.damage.note(damaged)
        return found, done

    async def read_positions(self, after: int, upto: int) -> list[FeedPlace]:
        """Return the positions (after, upto] of the feed. The CARs are not touched.

        Raises:
            StoreError: the disk failed.
        """
        read = partial(questions.read_positions, after, self._within_head(upto))
        return await self._readers.ask_for_page(read)

    async def find_time(self, time: int) -> FeedTime:
        """Return the place of a time, in Unix milliseconds, in the feed.

        Raises:
            UnknownTimeError: an earlier version delivered events around that time, and did not note
                when.
            StoreError: the disk failed, or the store is closed.
        """
        return await self._writer.ask(partial(self._writer.log.find_time, time))

    async def read_sort_key(
        self, sort_key: str, after: int, upto: int, limit: int, max_bytes: int
    ) -> list[FeedRow]:
        """Return at most `limit` init events whose header has that sort key, of the positions
        (after, upto] of the feed, in order.

        The CARs of others are not touched. The last one is the event that takes the CARs to
        `max_bytes`.

        Raises:
            DamagedEventError: one of them is damaged.
            StoreError: the disk failed.
        """
        upto = self._within_head(upto)
        return await self._noting(
            partial(questions.read_sort_key, sort_key, after, upto, limit, max_bytes)
        )

    async def pending_proofs(
        self, limit: int, chain_id: str | None = None, *, shared_before: float | None = None
    ) -> list[PendingProof]:
        """Return at most `limit` proofs of time events that are to be looked up (of one chain,
        CAIP-2), those that are due first; some may not be due yet.

        With `shared_before`, in Unix seconds: of those due by then, a fair share for the
        controllers of their streams.

        Raises:
            StoreError: the disk failed.
        """
        read = partial(questions.read_pending_proofs, chain_id, limit, shared_before)
        return await self._readers.ask(read)

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
            await self._readers.close()
            self._blocks.close()
            await self._intake.close()  # last: closing the last connection removes the WAL

    async def _noting(self, question: Callable[[Reader], T]) -> T:
        """Return the answer to a question, and note what it finds damaged."""
        return await self.damage.noting(self._readers.ask(question))

    def _within_head(self, upto: int | None) -> int:
        """Return the last position that a read may show.

        Readers see a commit as soon as the disk has it; `head` moves a moment later, on trio's
        thread. A position beyond `head` must not get out: the next request with it would be
        answered as one of another log.
        """
        return self.head if upto is None else min(upto, self.head)
