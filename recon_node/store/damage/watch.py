"""What the store does about damaged events: they leave the key store until they are mended."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TypeVar

import trio

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyStore
from recon_node.store.damage.detection import Damage, DamagedEventError, DamageList
from recon_node.store.db.log import BatchResult
from recon_node.store.db.reader import ReaderPool

T = TypeVar("T")


class DamageWatch:
    """Damaged events that were met since the store was opened. Used from trio's thread only.

    Args:
        keys: the EventIds held. A damaged event is not held: peers are not offered it, and Recon
            fetches it as one that is not here.
        readers: by which what is thought damaged is looked at again.
    """

    def __init__(self, keys: KeyStore, readers: ReaderPool) -> None:
        self._keys = keys
        self._readers = readers
        self._events = DamageList()
        self._noted = trio.Event()
        self.found_total = 0

    @property
    def count(self) -> int:
        """Events that are damaged now, as far as is known: those that were read."""
        return len(self._events)

    @property
    def missing_keys(self) -> int:
        """Keys that are not in the key store because their events are damaged."""
        return self._events.named

    @property
    def mended_total(self) -> int:
        """Events that were mended since the store was opened."""
        return self._events.mended_total

    def cids(self) -> frozenset[CID]:
        """The events of which a whole copy is wanted."""
        return self._events.cids()

    async def noting(self, read: Awaitable[T]) -> T:
        """Wait for a read, and note what it finds damaged."""
        try:
            return await read
        except DamagedEventError as error:
            self.note(error.found)
            raise

    def note(self, found: Iterable[Damage]) -> None:
        """Note damaged events."""
        for damage in found:
            if self._events.note(damage):
                self.found_total += 1
                if damage.event_id is not None:
                    self._keys.discard(damage.event_id)
                self._noted.set()
                self._noted = trio.Event()

    def committed(self, result: BatchResult) -> None:
        """Take over what a batch mended, and what it met."""
        self._mended(result.mended)
        self.note(result.damaged)

    async def check_range(self, after: int, upto: int) -> None:
        """Look again at what is known to be damaged of the feed positions (after, upto].

        Raises:
            DamagedEventError: an event there still is damaged.
            StoreError: the disk failed.
        """
        known = self._events.between(after, upto)
        event_ids = [each.event_id for each in known if each.event_id is not None]
        if event_ids:
            cars, _ = await self._readers.cars(event_ids)
            whole = zip(event_ids, cars, strict=True)
            self._mended(event_id for event_id, car in whole if car is not None)
        known = self._events.between(after, upto)
        if known:
            raise DamagedEventError(*known)

    async def wait(self, after: int) -> int:
        """Return `found_total` when it has gone beyond `after`."""
        while self.found_total <= after:
            await self._noted.wait()
        return self.found_total

    def _mended(self, event_ids: Iterable[EventId]) -> None:
        for event_id in event_ids:
            self._events.mended(event_id)
            self._keys.add(event_id)
