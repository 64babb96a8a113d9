"""What becomes of a damaged event: its key leaves the key store until a sound copy replaces it.

Without its key, Recon fetches the event from a peer like one that is missing. An event is what its
CID says, so any sound CAR of it will do, from a peer or a client: nothing else of the event is
checked again, and only its bytes change. Position, state and key stay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Collection, Iterable
from functools import partial
from typing import TypeVar

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyStore
from recon_node.store.damage.detection import Damage, DamagedEventError
from recon_node.store.db import questions
from recon_node.store.db.blocks import cut_out_shared
from recon_node.store.db.reader import ReaderPool
from recon_node.store.ring_keys import RingKeys
from recon_node.store.values import Submission
from recon_node.verification import Facts, check_event

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class DamageWatch:
    """The damaged events met since the store was opened. Used from trio's thread only.

    Args:
        keys: the EventIds held. Those of damaged events are taken out.
        ring_keys: the keys of the model ring, from which they are taken out as well.
        readers: read known damaged events again.

    Attributes:
        found_total: damaged events found so far.
        mended_total: how many of them were mended.
    """

    def __init__(self, keys: KeyStore, ring_keys: RingKeys | None, readers: ReaderPool) -> None:
        self._keys = keys
        self._ring_keys = ring_keys
        self._taken_from_ring: set[EventId] = set()
        self._readers = readers
        self._damaged: dict[tuple[EventId | None, CID | None, int | None], Damage] = {}
        self._found = trio.lowlevel.ParkingLot()
        self.found_total = 0
        self.mended_total = 0

    @property
    def count(self) -> int:
        """Known damaged events that are not mended yet."""
        return len(self._damaged)

    @property
    def missing_keys(self) -> int:
        """Keys that are not in the key store because their events are damaged."""
        return len({key[0] for key in self._damaged if key[0] is not None})

    def cids(self) -> frozenset[CID]:
        """The events of which a sound copy is wanted."""
        return frozenset(key[0].event_cid for key in self._damaged if key[0] is not None)

    async def noting(self, read: Awaitable[T]) -> T:
        """Wait for a read, and note the damage that it finds.

        Raises:
            DamagedEventError: the read raised it.
        """
        try:
            return await read
        except DamagedEventError as error:
            self.note(error.found)
            raise

    def note(self, found: Iterable[Damage]) -> None:
        """Remember damaged events and log those that were not known."""
        for damage in found:
            name = (damage.event_id, damage.cid, damage.position)
            if name in self._damaged:
                continue
            self._damaged[name] = damage
            self.found_total += 1
            logger.error(
                "An event in the log is damaged",
                cid=None if damage.cid is None else str(damage.cid),
                position=damage.position,
                reason=str(damage),
            )
            if damage.event_id is not None:
                self._keys.discard(damage.event_id)
                if self._ring_keys is not None and self._ring_keys.discard(damage.event_id):
                    self._taken_from_ring.add(damage.event_id)
            self._found.unpark_all()

    def mended(self, event_ids: Iterable[EventId]) -> None:
        """Take over events whose copies in the log are sound again."""
        for event_id in event_ids:
            for name in [name for name in self._damaged if name[0] == event_id]:
                del self._damaged[name]
                self.mended_total += 1
                logger.info("A damaged event was mended", cid=str(event_id.event_cid))
            self._keys.add(event_id)
            if self._ring_keys is not None and event_id in self._taken_from_ring:
                self._taken_from_ring.remove(event_id)
                self._ring_keys.put_back(event_id)

    async def check_range(self, after: int, upto: int) -> None:
        """Read the known damaged events of the feed positions (after, upto] again.

        Raises:
            DamagedEventError: one of them is still damaged.
            StoreError: the disk failed.
        """
        event_ids = [each.event_id for each in self._between(after, upto) if each.event_id]
        if event_ids:
            cars, _ = await self._readers.ask(partial(questions.read_cars, event_ids))
            sound = zip(event_ids, cars, strict=True)
            self.mended(event_id for event_id, car in sound if car is not None)
        if still_damaged := self._between(after, upto):
            raise DamagedEventError(*still_damaged)

    async def wait(self, after: int) -> int:
        """Wait until `found_total` is more than `after`, and return it."""
        while self.found_total <= after:
            await self._found.park()
        return self.found_total

    def _between(self, after: int, upto: int) -> list[Damage]:
        return [each for each in self._damaged.values() if after < (each.position or 0) <= upto]


def mend(
    connection: sqlite3.Connection, batch: Iterable[Submission], damaged: Collection[CID]
) -> list[EventId]:
    """Write those events of a batch that are damaged in the log, and return their EventIds.

    Blocks that they share with other events are mended for those, too. Within a transaction.
    """
    mended: list[EventId] = []
    for submission in batch:
        facts = _facts(submission, damaged)
        if facts is None:
            continue
        [stored] = cut_out_shared(connection, [facts])
        rows = connection.execute(
            "SELECT id, event_id FROM events WHERE cid = ?", (facts.cid,)
        ).fetchall()
        connection.executemany(
            "INSERT OR REPLACE INTO cars (id, car) VALUES (?, ?)",
            ((row, stored) for row, _ in rows),
        )
        mended += (EventId(event_id) for _, event_id in rows)
    return mended


def _facts(submission: Submission, damaged: Collection[CID]) -> Facts | None:
    """The facts about a submission's event, if it is a damaged one."""
    named = submission.event_id
    if named is not None and named.event_cid not in damaged:
        return None
    facts = submission.finding or check_event(submission.car)
    return facts if isinstance(facts, Facts) and facts.cid in damaged else None
