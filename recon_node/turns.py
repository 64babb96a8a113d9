"""Places for computations, which are taken in turn by those who ask.

A client that asks for a hundred things at once must not keep all others waiting: when a place
becomes free, it goes to the network that has waited the longest since it last got one, whatever the
number of its requests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Final

import trio

ASKER: Final = ContextVar[str]("ASKER", default="")
"""The network for which a task works (`recon_node.places.network_of`); "": for this node."""


class Turns:
    """A number of places."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: dict[str, trio.lowlevel.ParkingLot] = {}

    @property
    def waiting(self) -> int:
        """How many wait for a place, for whomever."""
        return sum(map(len, self._waiting.values()))

    @property
    def waiting_as_this(self) -> int:
        """How many of them wait for the same asker as this task works for."""
        return len(self._waiting.get(ASKER.get(), ()))

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Take a place for the block, when it is this asker's turn."""
        await self.take()
        try:
            yield
        finally:
            self.leave()

    async def take(self) -> None:
        """Take a place, when it is this asker's turn; to be left by `leave`."""
        await trio.lowlevel.checkpoint()
        if self.take_at_once():
            return
        asker = ASKER.get()
        lot = self._waiting.setdefault(asker, trio.lowlevel.ParkingLot())
        try:
            await lot.park()
        finally:
            if not lot and self._waiting.get(asker) is lot:
                del self._waiting[asker]

    def take_at_once(self) -> bool:
        """Take a place if one is free; return whether it was."""
        is_free = self._free > 0
        self._free -= is_free
        return is_free

    def leave(self) -> None:
        """Leave a place to the next in turn."""
        for asker, lot in [*self._waiting.items()]:
            del self._waiting[asker]
            if lot:
                lot.unpark()
                if lot:
                    self._waiting[asker] = lot  # behind the others
                return
        self._free += 1
