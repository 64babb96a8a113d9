"""Who gets how much of what is limited: slots, and a rate.

Slots are for connections, requests, bodies, sessions, statements.

Peer ids and connections cost nothing, and addresses cost little. So the first to come must not
keep all the slots, nor those with the most addresses. Slots go to those who earn them:

- An address on the allow-list always gets a slot, and keeps it.
- Who has lately delivered something useful has *earned* its slot. Up to three quarters of the
  slots are kept by those who did so last, even if others want them, and also if they come again.
- An *idle* slot, in which nothing happens that would be lost, goes to any newcomer: first one of
  the address block that has the most, then the one that has been idle for the longest time. A block
  that has lost a slot takes none from another block for some seconds, so that a crowd cannot
  push newcomers out as fast as they come.
- A *busy* slot only goes to a newcomer whose block has fewer: of n blocks, one with less than
  an n-th of the slots loses none. If all come from one block, the first ones stay.
- A reserve on top of the limit is for what must always work, such as the liveness check.

An *address block* is what one customer is given: each IPv4 address; of IPv6 each /48, and within it
each /56. Slots may have sizes, such as the bytes of a body; then the limit is for their sum, and
blocks compare by theirs. What each block may use in the long run is limited by token buckets.

This module does no I/O: the clock is an argument, and the caller that takes a slot says how to
give it up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from math import inf
from operator import itemgetter
from typing import Final, Generic, TypeVar

from recon_node.base.latest import Latest

K = TypeVar("K")
GiveWay = Callable[[], None]

LATELY: Final = 3600.0
"""Seconds for which it counts that something useful was delivered."""
EARNED_SHARE: Final = 3 / 4
"""The part of the slots that can be earned; the rest is open to newcomers."""
REST: Final = 10.0
"""Seconds for which a block that has lost a slot takes none from others."""
MAX_REMEMBERED_BLOCKS: Final = 2000
"""Maximum blocks that are remembered for what they delivered, or lost: the latest ones."""
_PREFIXES: Final = (48, 56)


def ip_of(address: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that a text is, without its zone; one of IPv4 also where it is written
    as one of IPv6. None: it is none."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


@lru_cache(maxsize=1024)
def address_blocks_of(address: str) -> tuple[str, ...]:
    """Return the blocks of an IP address that are counted, the widest first."""
    ip = ip_of(address)
    if isinstance(ip, IPv6Address):
        return tuple(str(ip_network((ip, prefix), strict=False)) for prefix in _PREFIXES)
    return (address if ip is None else str(ip),)


def address_block_of(address: str) -> str:
    """Return what all addresses of one customer share: an IPv4 address, an IPv6 /56."""
    return address_blocks_of(address)[-1]


ASKER: Final = ContextVar[str]("ASKER", default="")
"""The address block for which a task works (`address_block_of`); "": for this node."""
PEER: Final = ContextVar[str]("PEER", default="")
"""The peer there for which it works; "": for a client."""


@contextmanager
def working_for(asker: str, peer_id: str = "") -> Iterator[None]:
    """Work for an address block, and a peer in it, while the block runs."""
    before, peer_before = ASKER.set(asker), PEER.set(peer_id)
    try:
        yield
    finally:
        ASKER.reset(before)
        PEER.reset(peer_before)


class AllowList:
    """Addresses, networks and peer ids that always get a slot: 192.0.2.7, 2001:db8::/48, or a peer
    id.

    Raises:
        ValueError: an entry with a slash is not a network.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: set[str] = set()
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError as error:
                if "/" in entry or "." in entry or ":" in entry:
                    raise ValueError(f"{entry!r} is not an address or a network: {error}") from None
                self._names.add(entry)

    def __contains__(self, name: str) -> bool:
        """Return whether an address or a peer id is on the list."""
        if name in self._names:
            return True
        ip = ip_of(name) if self._networks else None
        return ip is not None and any(ip in network for network in self._networks)


@dataclass(eq=False, slots=True)
class Slot:
    """A slot that is taken. Leave it at the end."""

    _slots: Slots
    address: str
    blocks: tuple[str, ...]
    give_way: GiveWay
    size: int
    is_busy: bool
    is_sure: bool
    """Whether the allow-list has its holder."""
    used_at: float
    lost: bool = False
    """Whether it was left, or given to another one."""

    def use(self, *, busy: bool) -> None:
        """Note that something happens here now, and whether it should not be interrupted."""
        self.used_at = self._slots.clock()
        self.is_busy = busy
        if not self.lost:
            self._slots._held[self.blocks][self] = self._slots._held[self.blocks].pop(self)

    def keep(self) -> None:
        """Never lose it: the holder turned out to be on the allow-list."""
        self.is_sure = True

    def leave(self) -> None:
        """Give the slot back; once it is lost, do nothing."""
        self._slots._leave(self)


class Slots:
    """Slots, each of which goes to the one who earns it most. See the module's docstring.

    Args:
        limit: the number of slots, or the sum of their sizes.
        clock: returns the time in seconds.
        allowed: who always gets in.
        reserve: slots on top of `limit` for what is vital.
        grace: seconds that a slot must have been idle before another one gets it.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float],
        allowed: AllowList | None = None,
        *,
        reserve: int = 0,
        grace: float = 0.0,
    ) -> None:
        self.limit = limit
        self.clock = clock
        self.taken = 0
        """How many are taken, or the sum of their sizes."""
        self._allowed = allowed or AllowList()
        self._reserve = reserve
        self._grace = grace
        self._held = defaultdict[tuple[str, ...], dict[Slot, None]](dict)
        """By block; in the order in which they were last used."""
        self._by_block = Counter[str]()
        self._earned = Latest[str, float](MAX_REMEMBERED_BLOCKS)
        """When each block delivered something useful."""
        self._lost = Latest[str, float](MAX_REMEMBERED_BLOCKS)
        """When each block lost a slot."""

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def take(
        self,
        address: str,
        give_way: GiveWay,
        *,
        size: int = 1,
        busy: bool = True,
        vital: bool = False,
    ) -> Slot | None:
        """Take a slot; return None if there is none for this address.

        Args:
            address: an IP address.
            give_way: called at most once, when another one gets the slot: its holder must then
                end soon. It must neither wait nor raise.
            size: of the slot.
            busy: whether something would be lost if another one got it.
            vital: whether it may come from the reserve.
        """
        sure = address in self._allowed
        slot = Slot(
            self, address, address_blocks_of(address), give_way, size, busy, sure, self.clock()
        )
        if not self._make_room(slot, self._reserve if vital else 0):
            return None
        self._held[slot.blocks][slot] = None
        self.taken += size
        for block in slot.blocks:
            self._by_block[block] += size
        return slot

    @contextmanager
    def taken_by(
        self, address: str, give_way: GiveWay, *, busy: bool = True
    ) -> Iterator[Slot | None]:
        """Take a slot while the block runs; yield None if there is none. See `take`."""
        slot = self.take(address, give_way, busy=busy)
        try:
            yield slot
        finally:
            if slot is not None:
                slot.leave()

    def earn(self, address: str) -> None:
        """Note that somebody at an address has delivered something useful."""
        self._earned[address_block_of(address)] = self.clock()

    def _leave(self, slot: Slot) -> None:
        if not slot.lost:
            slot.lost = True
            held = self._held[slot.blocks]
            del held[slot]
            if not held:
                del self._held[slot.blocks]
            self.taken -= slot.size
            for block in slot.blocks:
                self._by_block[block] -= slot.size
                if not self._by_block[block]:
                    del self._by_block[block]

    def _make_room(self, newcomer: Slot, reserve: int) -> bool:
        """Take slots from others until there is room; return False if there cannot be."""
        if newcomer.size > self.limit + reserve:
            return False
        while self.taken + newcomer.size > self.limit + reserve:
            losers = list(self._losers(newcomer))
            if not losers:
                return False
            _, loser = min(losers, key=itemgetter(0))
            self._lost[loser.blocks[-1]] = self.clock()
            self._leave(loser)
            loser.give_way()
        return True

    def _losers(self, newcomer: Slot) -> Iterator[tuple[tuple[object, ...], Slot]]:
        """Yield slots that may be taken from others for a newcomer, with their ranks: the first is.

        Of a block, only the one that comes first is ranked: the idle slot that was used first,
        or else the busy one that was used last. As the slots are in that order, a crowd that
        connects again and again does not have all of its slots compared each time.
        """
        now = self.clock()
        earned = self._with_earned_slots(now)
        resting = now < self._lost.get(newcomer.blocks[-1], -inf) + REST

        def first(slots: Iterable[Slot], *, busy: bool) -> Slot | None:
            may_lose = (slot for slot in slots if not (slot.is_sure or slot in earned))
            return next((slot for slot in may_lose if slot.is_busy is busy), None)

        for blocks, slots in self._held.items():
            idle = first(slots, busy=False)
            has_more = newcomer.is_sure or self._has_more(blocks, newcomer)
            crowd = tuple([-self._by_block[block] for block in blocks])
            if idle is not None:
                is_fresh = now < idle.used_at + self._grace
                if has_more or not (is_fresh or (resting and blocks != newcomer.blocks)):
                    yield (False, crowd, idle.used_at), idle
            elif has_more and (busy := first(reversed(slots), busy=True)) is not None:
                yield (True, crowd, -busy.used_at), busy

    def _with_earned_slots(self, now: float) -> set[Slot]:
        """Return the slots of those who have delivered lately: the latest, up to their share."""
        since = now - LATELY
        merits = [
            (when, slot)
            for blocks, slots in self._held.items()
            if (when := self._earned.get(blocks[-1], -inf)) > since
            for slot in slots
        ]
        merits.sort(key=itemgetter(0), reverse=True)
        room = int(self.limit * EARNED_SHARE)
        return {slot for _, slot in merits[:room]}

    def _has_more(self, theirs: Sequence[str], newcomer: Slot) -> bool:
        """Return whether a block would still have as much as the newcomer's, without this."""
        for their, our in zip(theirs, newcomer.blocks, strict=False):
            if their != our:
                return self._by_block[their] > self._by_block[our] + newcomer.size
        return False


class TokenBucket:
    """Holds up to `burst` tokens, and gets `rate` of them a second. It may be overdrawn."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._at = now

    def left(self, now: float) -> float:
        """Return how many tokens there are; less than none if it is overdrawn."""
        return min(self._burst, self._left + (now - self._at) * self._rate)

    def spend(self, tokens: float, now: float) -> None:
        """Take tokens, whether they are there or not; put them back if `tokens` is negative."""
        self._left = self.left(now) - tokens
        self._at = now

    def seconds_until(self, tokens: float, now: float) -> float:
        """Return how long it takes until so many tokens are there; 0 if they are."""
        return max(0.0, tokens - self.left(now)) / self._rate


class TokenBuckets(Generic[K]):
    """A bucket for each key: for the latest `limit` of them that were asked for."""

    def __init__(self, burst: float, rate: float, limit: int) -> None:
        self._burst = burst
        self._rate = rate
        self._buckets = Latest[K, TokenBucket](limit)

    def of(self, key: K, now: float) -> TokenBucket:
        """Return the bucket of a key; a full one if it is new."""
        bucket = self._buckets.use(key)
        if bucket is None:
            self._buckets[key] = bucket = TokenBucket(self._burst, self._rate, now)
        return bucket
