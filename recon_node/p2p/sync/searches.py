"""Which keys have some ids: a search through a range of keys, paced for each address.

The key store has no index of ids, so a request for a single one may take a look at every key: about
10 ms for a million. A peer that asks for one id after another could take most of our time with some
bytes. So the keys that are looked at are counted, less a number of them for each event that was
found, because sending an event takes longer than looking at so many keys. An honest peer asks for
hundreds of events at a time and never waits. Whoever asks for what is not here, or for one event at
a time, is served at ``KEYS_A_SECOND`` after its first ``KEYS_AT_ONCE``.

The count is kept by address, because peer ids cost nothing. One search runs at a time, so that all
of them together take at most every other step of the event loop.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import trio

from recon_node.ceramic import EventId
from recon_node.p2p.sync.steps import in_steps
from recon_node.places import network_of, remember
from recon_node.recon import KeyView, Missing, find

KEYS_A_SECOND: Final = 8_000_000
"""Keys that are looked at for an address, in the long run: about a tenth of a core."""
KEYS_AT_ONCE: Final = 8 * KEYS_A_SECOND
"""Keys that are looked at for an address without a wait."""
KEYS_AN_EVENT: Final = 20_000
"""Keys that do not count, for each event that was found."""
_MAX_ADDRESSES: Final = 1000
"""Maximum addresses whose searches are counted: the latest ones."""


class Searches:
    """The searches for all peers.

    Args:
        keys: the keys to search.
        rate: keys that are looked at for an address in a second.
        burst: keys that are looked at without a wait.
    """

    def __init__(
        self, keys: KeyView, rate: float = KEYS_A_SECOND, burst: float = KEYS_AT_ONCE
    ) -> None:
        self._keys = keys
        self._rate = rate
        self._burst = burst
        self._left: dict[str, tuple[float, float]] = {}
        """For each address: the keys that may still be looked at without a wait, and when."""
        self._turn = trio.Lock()

    async def find(self, address: str, wanted: Missing) -> list[EventId]:
        """Return the EventIds of a range that have one of some ids, as soon as it is our turn.

        Args:
            address: the IP address of the peer that asks.
            wanted: the ids, and the range.
        """
        group = network_of(address)
        while True:
            if (left := self._allowance(group)) <= 0:
                await trio.sleep((1 - left) / self._rate)
            async with self._turn:
                # Others from this address may have had their turn first.
                if self._allowance(group) > 0:
                    return await self._find(group, wanted)

    async def _find(self, group: str, wanted: Missing) -> list[EventId]:
        looked_at = self._keys.count(wanted.key_range)
        self._charge(group, looked_at)
        ids = np.frombuffer(b"".join(wanted.ids), "<u8")
        found = await in_steps(find(self._keys, wanted.key_range, ids))
        self._charge(group, -min(looked_at, KEYS_AN_EVENT * len(found)))
        return [EventId(key) for _, key in found]

    def _allowance(self, group: str) -> float:
        now = trio.current_time()
        left, since = self._left.get(group, (self._burst, now))
        return min(self._burst, left + (now - since) * self._rate)

    def _charge(self, group: str, keys: int) -> None:
        left = self._allowance(group) - keys
        remember(self._left, group, (left, trio.current_time()), _MAX_ADDRESSES)
