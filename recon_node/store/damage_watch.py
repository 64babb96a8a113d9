"""What becomes of a damaged event: its key leaves the key store until a sound copy replaces it.

Without its key, Recon fetches the event from a peer like one that is missing. An event is what its
CID says, so any sound CAR of it will do, from a peer or a client: nothing else of the event is
checked again, and only its bytes change. Position, state and key stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog
import trio

from recon_node.ceramic import EventId
from recon_node.ipld import CID
from recon_node.recon import KeyStore
from recon_node.store.damage import Damage, DamagedEventError
from recon_node.store.reading.log_reader import LogReader
from recon_node.store.ring_keys import RingKeys

logger = structlog.get_logger(__name__)


class DamageWatch:
    """The damaged events met since the store was opened. Used from trio's thread only.

    Args:
        keys: the EventIds held. Those of damaged events are taken out.
        ring_keys: the keys of the model ring, from which they are taken out as well.
        log: whose questions find damaged events, and which is asked for known ones again.

    Attributes:
        found_total: damaged events found so far.
        mended_total: how many of them were mended.
    """

    def __init__(self, keys: KeyStore, ring_keys: RingKeys | None, log: LogReader) -> None:
        self._keys = keys
        self._ring_keys = ring_keys
        self._taken_from_ring: set[EventId] = set()
        self._log = log
        log.on_damage = self.note
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
            cars = await self._log.cars_for_peers(event_ids)
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
