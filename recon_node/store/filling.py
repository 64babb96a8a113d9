"""Ranges of keys that a snapshot is filling, so that peers need not deliver the same events.

A node that starts from a snapshot takes the bulk of its events there, and only then the rest from
live nodes (CIP-124, appendix C). Until then, its sessions about these ranges wait, within bounds:
a snapshot that makes no progress for ``STALL`` seconds no longer counts. Connections, pushes of a
few new keys and other ranges do not wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import trio

from recon_node.ceramic import EventId
from recon_node.recon import KeyRange, intersect_ranges

STALL: Final = 30.0
"""Seconds without progress after which nobody waits any longer."""


class Filling:
    """What a snapshot is filling. Used from trio's thread only."""

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
        """Wait until it is over or has stalled, so many seconds at most."""
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
        left = [each for each in keys if each not in self._came] if self._came else keys
        self._came.difference_update(keys)
        return left
