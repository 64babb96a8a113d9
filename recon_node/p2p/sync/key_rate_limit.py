"""How many keys peers may have this node look at: a token bucket for each address block.

Some bytes of a peer can make this node go through all its keys: a request for an id or a list of
ids, which no index has, or an opening of a range that nobody else asks for, of which a sketch and a
hash have to be made. So the keys that are looked at are counted. Each address block (an IPv4
address, an IPv6 /56) has a bucket of `KEYS_AT_ONCE` looks, which fills up by `KEYS_PER_SECOND`; a
peer that has emptied it waits. Peer ids cost nothing, so they do not count.

`Meter` has sessions pay, `event_server.Searches` requests for ids, and `interest_gossip`
statements. A request for a single id may take a look at every key, about 10 ms for a million. For
each event that is found, the peer gets looks back, because sending an event takes longer than
looking at that many keys. So an honest peer, which asks for hundreds of events at a time, never
waits.
"""

from collections.abc import Callable
from typing import Final

import trio

from recon_node.fairness.slots import TokenBucket, TokenBuckets, address_block_of
from recon_node.recon import KeyView

KEYS_PER_SECOND: Final = 8_000_000
"""Keys that are looked at for an address block, in the long run: about a tenth of a core."""
KEYS_AT_ONCE: Final = 8 * KEYS_PER_SECOND
"""Keys that are looked at for an address block without a wait."""
_MAX_BLOCKS: Final = 1000
"""Maximum address blocks whose looks are counted: the latest ones."""


class KeyRateLimit:
    """How many keys are looked at for each address block."""

    def __init__(self) -> None:
        self._buckets = TokenBuckets[str](KEYS_AT_ONCE, KEYS_PER_SECOND, _MAX_BLOCKS)

    def _bucket_of(self, address: str) -> TokenBucket:
        return self._buckets.of(address_block_of(address), trio.current_time())

    def allows(self, address: str) -> bool:
        """Return whether keys may be looked at now for an address."""
        return self._bucket_of(address).left(trio.current_time()) > 0

    def spend(self, address: str, keys: float) -> None:
        """Count keys that are looked at; give them back if the number is negative."""
        self._bucket_of(address).spend(keys, trio.current_time())

    async def pay(self, address: str, keys: float) -> None:
        """Count keys, or work that takes as long, and wait until `allows`."""
        self.spend(address, keys)
        await self.wait(address)

    async def wait(self, address: str) -> None:
        """Wait until `allows`; at least for a turn of the other tasks."""
        await trio.lowlevel.checkpoint()
        while not self.allows(address):  # noqa: ASYNC110 (time fills it)
            await trio.sleep(self._bucket_of(address).seconds_until(1, trio.current_time()))


class Meter:
    """Has a peer pay for what its session computes in a `with` block.

    It pays for the sums of ranges that are made, for hashing keys with a salt, or those that were
    left out, and for looking for ids. Sums that this node wants anyway are free (`is_free`).
    """

    def __init__(
        self, rate_limit: KeyRateLimit, address: str, keys: KeyView, is_free: Callable[[], bool]
    ) -> None:
        self._rate_limit = rate_limit
        self._address = address
        self._keys = keys
        self._is_free = is_free
        self._before = (0, 0)
        self._owes = False

    def __enter__(self) -> None:
        self._before = self._keys.sums.cost, self._keys.session_cost

    def __exit__(self, *_: object) -> None:
        sum_cost, session_cost = self._before
        spent = self._keys.session_cost - session_cost
        if self._keys.sums.cost > sum_cost and not self._is_free():
            spent += self._keys.sums.cost - sum_cost
        if spent:
            self._rate_limit.spend(self._address, spent)
            self._owes = True

    async def pay(self) -> None:
        """Let other tasks run, until the peer can pay for what was computed."""
        if self._owes:
            self._owes = False
            await self._rate_limit.wait(self._address)
        else:
            await trio.lowlevel.checkpoint()
