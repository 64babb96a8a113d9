"""Which keys have some ids: a search through a range of keys, paced for each network.

The key store has no index of ids, so a request for a single one may take a look at every key: about
10 ms for a million. The looks are taken from the peer's purse (``purses``), less a number of them
for each event that was found, because sending an event takes longer than looking at so many keys.
An honest peer asks for hundreds of events at a time and never waits.

One search runs at a time, so that all of them together take at most every other step of the event
loop.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.sync.purses import Purses
from recon_node.recon import KeyView, Missing, find
from recon_node.recon.session import Steps, T

KEYS_AN_EVENT: Final = 20_000
"""Keys that do not count, for each event that was found."""


class Searches:
    """The searches for all peers.

    Args:
        keys: the keys to search.
        purses: what each network may spend.
    """

    def __init__(self, keys: KeyView, purses: Purses) -> None:
        self._keys = keys
        self._purses = purses
        self._turn = trio.Lock()

    async def find(self, address: str, wanted: Missing) -> list[EventId]:
        """Return the EventIds of a range that have one of some ids, as soon as it is our turn.

        Args:
            address: the IP address of the peer that asks.
            wanted: the ids, and the range.
        """
        while True:
            await self._purses.wait(address)
            async with self._turn:
                if self._purses.has_some(address):  # others may have had their turn first
                    return await self._find(address, wanted)

    async def _find(self, address: str, wanted: Missing) -> list[EventId]:
        looked_at = self._keys.count(wanted.key_range)
        self._purses.spend(address, looked_at)
        ids = np.frombuffer(b"".join(wanted.ids), "<u8")
        found = await _in_steps(find(self._keys, wanted.key_range, ids))
        self._purses.spend(address, -min(looked_at, KEYS_AN_EVENT * len(found)))
        return [EventId(key) for _, key in found]


async def _in_steps(steps: Steps[T]) -> T:
    """Do all steps, and let other tasks run between two of them; return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
