"""The store: the event log, its key store and its feed, as the floors above see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from recon_node.ceramic import EventId, Network
from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyStore
from recon_node.store.admission.pipeline import Writer
from recon_node.store.admission.records import Refusal
from recon_node.store.admission.rules import Submission
from recon_node.store.arrivals import Arrivals
from recon_node.store.damage.detection import DamagedEventError
from recon_node.store.damage.watch import DamageWatch
from recon_node.store.db.feed_filter import FeedFilter
from recon_node.store.db.log import BatchResult, EventLog
from recon_node.store.db.reader import ReaderPool
from recon_node.store.interests import Interests
from recon_node.store.values import (
    FeedColumns,
    FeedRow,
    Interest,
    PendingProof,
    StoreSettings,
    StoreStats,
    Verdict,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """What is read from the log before anyone uses it."""

    log: EventLog
    keys: KeyStore
    refused: list[EventId]
    interests: list[Interest]


class Store:
    """A node's events. Made by `open_store`; used from trio's thread only.

    Attributes:
        network: of all its events.
        epoch: a UUID made with the log; feed positions mean something only together with it.
        keys: the EventIds held. For reading: the store alone changes it.
        arrivals: which of them came in lately, whether they are delivered or not.
        head: the last feed position, 0 when the feed is empty.
        wanted: the node's interests, to be listed, added to and removed from.
        damage: what in the log is damaged, as far as it was read.
        proof_arrivals: how many proofs came to await a lookup since the store was opened.
    """

    def __init__(
        self, opened: Opened, data_dir: Path, network: Network, settings: StoreSettings
    ) -> None:
        self.network = network
        self.epoch = opened.log.epoch
        self.keys = opened.keys
        self.arrivals = Arrivals()
        self.head = opened.log.marks.head
        self._waiting = opened.log.marks.waiting
        self._pending_proofs = opened.log.pending_proofs
        self.proof_arrivals = 0
        self._proofs_moved = trio.Event()
        self._refused = dict.fromkeys(opened.refused)
        self._max_refused = settings.max_refused
        self._feed_moved = trio.Event()
        self._totals = dict.fromkeys(("new", "known", "refused", "late refused", "batches"), 0)
        self._readers = ReaderPool(data_dir, settings.readers)
        self.damage = DamageWatch(self.keys, self._readers)
        self._writer = Writer(
            opened.log,
            settings,
            self.key_ranges,
            self.damage.cids,
            self._is_settled,
            self._committed,
        )
        self.wanted = Interests(network, opened.interests, self._writer, self._readers)

    @property
    def waiting(self) -> int:
        """How many events wait for a prev, or for their init event."""
        return self._waiting

    @property
    def stats(self) -> StoreStats:
        """What the store holds now, and what it did since it was opened."""
        return StoreStats(
            events=len(self.keys),
            delivered=self.head,
            waiting=self._waiting,
            pending=len(self.keys) + self.damage.missing_keys - self.head - self._waiting,
            pending_proofs=self._pending_proofs,
            admitted_total=self._totals["new"],
            known_total=self._totals["known"],
            refused_total=self._totals["refused"],
            late_refused_total=self._totals["late refused"],
            batches_total=self._totals["batches"],
            failed_batches_total=self._writer.failed_batches,
        )

    async def admit_local(self, cars: Sequence[bytes]) -> list[Verdict]:
        """Admit events of this node's own clients, in order: a CAR may build on those before it.

        Refused are an event whose init event or prev is not here, and whatever is not valid.
        Interests do not matter. Cancelling the call does not take the events back.

        Raises:
            StoreError: the disk did not take them all, or the store is closed.
        """
        return await self._writer.admit([Submission(car) for car in cars])

    async def admit_remote(self, events: Sequence[tuple[EventId, bytes]]) -> list[Verdict]:
        """Admit events of peers, each under the EventId that the peer has for it.

        An event whose history is not here is kept, and handed to peers, but not delivered before
        the history comes; it may turn out wrong then (`is_refused`). Cancelling the call does not
        take the events back.

        Raises:
            StoreError: the disk did not take them all, or the store is closed.
        """
        return await self._writer.admit([Submission(car, event_id) for event_id, car in events])

    def is_refused(self, event_id: EventId) -> bool:
        """Tell whether the event of that EventId was seen and is known to be wrong under it.

        There is no use in fetching it again. The latest `StoreSettings.max_refused` are
        remembered, over restarts too.
        """
        return event_id in self._refused

    async def get_event(self, cid: CID) -> bytes | None:
        """The CAR of an event, delivered or not; None when it is not here.

        Raises:
            DamagedEventError: an event that is asked for is damaged.
            StoreError: the disk failed.
        """
        return await self.damage.noting(self._readers.car(cid))

    async def get_cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """The CARs of some EventIds, in their order; None for those that are not here.

        Raises:
            DamagedEventError: one of them is damaged.
            StoreError: the disk failed.
        """
        cars, damaged = await self._readers.cars(event_ids)
        if damaged:
            self.damage.note(damaged)
            raise DamagedEventError(*damaged)
        return cars

    async def get_cars_for_peers(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """As `get_cars`; an event that is damaged is not here, as far as peers are concerned.

        Raises:
            StoreError: the disk failed.
        """
        cars, damaged = await self._readers.cars(event_ids)
        self.damage.note(damaged)
        return cars

    async def read_feed(
        self, after: int, limit: int, upto: int | None = None, max_bytes: int | None = None
    ) -> list[FeedRow]:
        """At most `limit` delivered events of the positions (after, upto], in order; none beyond
        `head`. They end before an event that is damaged.

        With `max_bytes`, the last one is the event that takes the CARs to so many bytes.

        Raises:
            StoreError: the disk failed.
        """
        end = self._within_head(upto)
        return await self.damage.noting(self._readers.feed(after, limit, end, max_bytes))

    async def read_feed_columns(
        self,
        after: int,
        limit: int,
        upto: int,
        max_bytes: int,
        wanted: FeedFilter = FeedFilter(),  # noqa: B008 - a value, and immutable
    ) -> FeedColumns:
        """At most `limit` delivered events of the positions (after, upto] that fit the filter, in
        order; the CARs of others are not touched. One thread is busy until as many are found or
        `upto` is reached: keep the range bounded.

        The last one is the event that takes the CARs to `max_bytes`.

        Raises:
            StoreError: the disk failed.
        """
        end = self._within_head(upto)
        read = self._readers.columns(after, limit, end, max_bytes, wanted, self.network)
        return await self.damage.noting(read)

    async def read_sort_key(
        self, sort_key: str, after: int, upto: int, limit: int, max_bytes: int
    ) -> list[FeedRow]:
        """At most `limit` init events whose header has that sort key, of the positions
        (after, upto] of the feed, in order; the CARs of others are not touched.

        The last one is the event that takes the CARs to `max_bytes`.

        Raises:
            StoreError: the disk failed.
        """
        end = self._within_head(upto)
        read = self._readers.sort_key(sort_key, after, end, limit, max_bytes)
        return await self.damage.noting(read)

    async def read_stream(
        self, init: CID, limit: int | None = None, max_bytes: int | None = None
    ) -> list[FeedRow]:
        """At most `limit` delivered events of the stream that the event `init` starts, in feed
        order, which is causal; none when the stream is not here.

        With `max_bytes`, the last one is the event that takes the CARs to so many bytes.

        Raises:
            StoreError: the disk failed.
        """
        read = self._readers.stream(init, self.head, limit, max_bytes)
        return await self.damage.noting(read)

    async def wait_for_feed(self, after: int) -> None:
        """Return when the feed has a position beyond `after`."""
        while self.head <= after:
            await self._feed_moved.wait()

    async def pending_proofs(self, limit: int, chain_id: str | None = None) -> list[PendingProof]:
        """At most `limit` proofs of pending time events (of one chain, CAIP-2), first those that
        are due first; some may not be due yet.

        Raises:
            StoreError: the disk failed.
        """
        return await self._readers.pending_proofs(chain_id, limit)

    async def wait_for_proofs(self, after: int) -> None:
        """Return when `proof_arrivals` has gone beyond `after`."""
        while self.proof_arrivals <= after:
            await self._proofs_moved.wait()

    async def settle_proofs(self, verdicts: Sequence[tuple[CID, int | str]]) -> None:
        """Say what came of the lookup of proofs: the time of the block, in Unix seconds, or why
        the proof is wrong.

        In one transaction, time events with these proofs are delivered as far as their history is,
        or refused for good, and so is what builds on them. A proof is settled once: what is said
        of it later changes nothing.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        await self._writer.settle_proofs(
            [
                (proof, Refusal(verdict, inherent=True) if isinstance(verdict, str) else verdict)
                for proof, verdict in verdicts
            ]
        )

    async def postpone_proofs(self, proofs: Sequence[tuple[CID, float]]) -> None:
        """Say that proofs were looked up in vain, and from when on each is due again, in Unix
        seconds.

        Raises:
            StoreError: the disk did not take it, or the store is closed.
        """
        await self._writer.postpone_proofs(proofs)

    @property
    def interests(self) -> tuple[Interest, ...]:
        """What this node wants; empty means everything of its network."""
        return self.wanted.all

    async def add_interest(self, interest: Interest) -> bool:
        """See `Interests.add`."""
        return await self.wanted.add(interest)

    async def wait_for_interests(self, known: Sequence[Interest]) -> None:
        """Return when `interests` are not the `known` ones (any more)."""
        await self.wanted.wait_for_change(known)

    def key_ranges(self) -> list[KeyRange]:
        """The ranges of keys of the interests, ascending and apart; else the network's."""
        return list(self.wanted.ranges)

    def _within_head(self, upto: int | None) -> int:
        """The last position that a read may show.

        Readers see a commit as soon as the disk has it; `head` moves a moment later, on trio's
        thread. A position beyond `head` must not get out: the next request with it would be
        answered as one of another log.
        """
        return self.head if upto is None else min(upto, self.head)

    def _is_settled(self, event_id: EventId) -> bool:
        return event_id in self._refused or event_id in self.keys

    def _committed(self, result: BatchResult) -> None:
        """Take over what a batch changed; on trio's thread, before its callers hear of it."""
        for event_id in result.removed:
            self.keys.discard(event_id)
        for event_id in result.added:
            self.keys.add(event_id)
        self.arrivals.add(result.added)
        self._refused.update(dict.fromkeys(result.refused))
        while len(self._refused) > self._max_refused:
            del self._refused[next(iter(self._refused))]
        self.damage.committed(result)
        for verdict in result.verdicts:
            self._totals[verdict.status] += 1
        self._totals["late refused"] += len(result.removed)
        self._totals["batches"] += 1
        self._waiting = result.marks.waiting
        self._pending_proofs += result.proofs_added - result.proofs_done
        if result.proofs_added:
            self.proof_arrivals += result.proofs_added
            self._proofs_moved.set()
            self._proofs_moved = trio.Event()
        if result.marks.head > self.head:
            self.head = result.marks.head
            self._feed_moved.set()
            self._feed_moved = trio.Event()

    async def run_writer(self) -> None:
        """Write what is handed in, until `close`. Cannot be cancelled."""
        await self._writer.run()

    async def close(self) -> None:
        """End the reads under way, write what was handed in and close the log."""
        with trio.CancelScope(shield=True):
            await self._readers.close()
            await self._writer.close()  # last: closing the last connection removes the WAL
