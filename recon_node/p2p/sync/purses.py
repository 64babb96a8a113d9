"""What peers may have this node compute: looks at keys, a purse for each network.

Some bytes of a peer can make this node go through all its keys: a request for an id, which no index
has, or an opening of a range that nobody else asks for, of which a sketch and a hash have to be
made. So the keys that are looked at are counted. Each network (an IPv4 address, an IPv6 /56) has a
purse of ``KEYS_AT_ONCE`` looks, which fills up by ``KEYS_A_SECOND``; whoever has spent it waits.
Peer ids cost nothing, so they do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final, TypeVar

import trio

from recon_node.latest import Latest
from recon_node.places import network_of
from recon_node.recon import KeyView

T = TypeVar("T")

KEYS_A_SECOND: Final = 8_000_000
"""Keys that are looked at for a network, in the long run: about a tenth of a core."""
KEYS_AT_ONCE: Final = 8 * KEYS_A_SECOND
"""Keys that are looked at for a network without a wait."""
_MAX_NETWORKS: Final = 1000
"""Maximum networks whose looks are counted: the latest ones."""


class Purses:
    """The purses of all networks.

    Args:
        rate: keys that are looked at for a network in a second.
        burst: keys that are looked at without a wait.
    """

    def __init__(self, rate: float = KEYS_A_SECOND, burst: float = KEYS_AT_ONCE) -> None:
        self._rate = rate
        self._burst = burst
        self._left = Latest[str, tuple[float, float]](_MAX_NETWORKS)
        """For each network: the keys that may still be looked at without a wait, and when."""

    def has_some(self, address: str) -> bool:
        """Return whether an address may spend now."""
        return self._left_of(network_of(address)) > 0

    def spend(self, address: str, keys: float) -> None:
        """Take looks from the purse of an address, which may be overdrawn; put them back if less
        than none."""
        network = network_of(address)
        left = self._left_of(network) - keys
        self._left[network] = left, trio.current_time()

    async def wait(self, address: str) -> None:
        """Wait until an address may spend; at least for a turn of the other tasks."""
        await trio.lowlevel.checkpoint()
        while (left := self._left_of(network_of(address))) <= 0:  # noqa: ASYNC110 (time fills it)
            await trio.sleep((1 - left) / self._rate)

    async def in_steps(
        self,
        address: str,
        keys: KeyView,
        is_free: Callable[[], bool],
        steps: Generator[None, None, T],
    ) -> T:
        """Do all steps of a computation, and return its result.

        Other tasks run between two of them. The address spends what the sums of ranges take that
        are made in these steps, and what it takes to hash keys with a salt.

        Args:
            address: of the peer that asks.
            keys: whose sums are made.
            is_free: whether these are sums that this node wants anyway.
            steps: the computation.
        """
        while True:
            summed, salted = keys.summed, keys.salted
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            spent = keys.salted - salted
            if keys.summed > summed and not is_free():
                spent += keys.summed - summed
            if spent:
                self.spend(address, spent)
                await self.wait(address)
            else:
                await trio.lowlevel.checkpoint()

    def _left_of(self, network: str) -> float:
        now = trio.current_time()
        left, since = self._left.get(network, (self._burst, now))
        return min(self._burst, left + (now - since) * self._rate)
