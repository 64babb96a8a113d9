"""Which keys came in lately: how the floors above hear of new events, delivered or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

import trio

from recon_node.ceramic import EventId

REMEMBERED: Final = 4096
"""The latest keys that are kept by default."""


class Arrivals:
    """Counts the keys that were added to a store, and remembers the latest of them.

    A reader keeps the ``total`` up to which it has read. So any number of readers share one bounded
    memory, and none can hold up the store. Used from trio's thread only.

    Args:
        remembered: how many keys are kept for readers that lag behind.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._latest: deque[EventId] = deque(maxlen=remembered)
        self._moved = trio.Event()
        self.total = 0
        """Keys added since the store was opened."""

    def add(self, keys: Sequence[EventId]) -> None:
        """Note keys that were added, and wake those who wait."""
        if keys:
            self._latest.extend(keys)
            self.total += len(keys)
            self._moved.set()
            self._moved = trio.Event()

    def since(self, total: int) -> list[EventId] | None:
        """Return the keys added after the first ``total`` ones, oldest first.

        None when there are more of them than are remembered. Keys that were removed since are
        among them.
        """
        count = self.total - total
        if count > len(self._latest):
            return None
        return list(islice(self._latest, len(self._latest) - count, None))

    async def wait(self, total: int) -> None:
        """Return when more than ``total`` keys were added."""
        while self.total <= total:
            await self._moved.wait()
