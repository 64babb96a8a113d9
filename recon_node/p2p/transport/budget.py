"""A ledger of the memory that peers make this node hold, and who goes when it is too much.

Each limit of the network side is for one thing: a frame, a turn, a window, so many streams. What a
peer can make us hold is their product, and what all peers can is that times their number. So every
part that keeps bytes for a peer also charges them here, and there is one limit for their sum.

When the sum passes the limit, peers are cut off one by one until it does not: of the addresses the
one that holds the most, and of the peers there the greediest. Addresses come first since peer ids
cost nothing: a hundred made-up ones on one machine stand for each other. It follows what fair use
is: of n addresses, one that holds less than a n-th of the limit is never cut off.

A peer that was cut off is refused for ``REFUSED_FOR`` seconds: else it would come back at once and
hold the same again. After that it starts with nothing, even if a part of the node still has
something from before in hand.

What is charged is memory, not bytes on the wire: a decoded message takes several times as much.
This module does no I/O. Closing connections is up to the callbacks of those who have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

import structlog
import trio

from recon_node.p2p.errors import P2PError

log = structlog.get_logger(__name__)

Cut = Callable[[], None]
_IPV6_NETWORK: Final = 64
"""Bits of an IPv6 address that tell one customer from another."""
_SLACK: Final = 4
"""While peers that were cut off let go of their memory, the sum may be a quarter over the limit."""

REFUSED_FOR: Final = 60.0
"""For how long a peer that was cut off is refused, in seconds."""
WARN_EVERY: Final = 60.0
"""How often the log warns of cut-offs at the same address, in seconds."""
_MAX_REMEMBERED: Final = 1000
"""Peers that are refused, and addresses that were warned of, at most: the latest ones."""


class OverBudgetError(P2PError):
    """A peer, or all peers together, made this node hold too much memory."""


@dataclass(eq=False, slots=True)
class _Holder:
    """One peer, with everything that is held for it."""

    address: str
    held: int = 0
    accounts: int = 0
    cuts: list[Cut] = field(default_factory=list)
    leaving: bool = False


class Account:
    """What one connection or stream of a peer holds, by kind. Close it at the end."""

    def __init__(self, budget: MemoryBudget, peer: str, holder: _Holder, cut: Cut | None) -> None:
        self._budget = budget
        self._peer = peer
        self._holder = holder
        self._cut = cut
        self._held: dict[str, int] = {}
        self._closed = False
        holder.accounts += 1
        if cut is not None:
            holder.cuts.append(cut)

    def hold(self, kind: str, size: int) -> None:
        """Say how many bytes of a kind are held from now on; call it before they are.

        Raises OverBudgetError when there is more than before, and no room for it.
        """
        more = size - self._held.get(kind, 0)
        if self._closed or not more:
            return
        if more > 0:
            self._budget._make_room(self._peer, self._holder, more)
        self._held[kind] = size
        self._budget._add(self._holder, kind, more)

    def close(self) -> None:
        """Release everything."""
        if self._closed:
            return
        for kind in list(self._held):
            self.hold(kind, 0)
        self._closed = True
        if self._cut is not None:
            self._holder.cuts.remove(self._cut)
        self._budget._leave(self._peer, self._holder)


class MemoryBudget:
    """What all peers together hold, in bytes, with a limit.

    Args:
        limit: the sum that is allowed.
        clock: tells the time in seconds.
    """

    def __init__(self, limit: int, clock: Callable[[], float] = trio.current_time) -> None:
        self.limit = limit
        self._clock = clock
        self.on_cut: Callable[[str], None] = lambda peer: None
        """Called with each peer that is cut off; it must neither wait nor raise."""
        self._refused: dict[str, float] = {}
        self._warned: dict[str, float] = {}
        self.held = 0
        """Bytes held at the moment, for all peers."""
        self.by_kind = Counter[str]()
        """The same by kind, as the accounts name them."""
        self.cut_off = 0
        """Peers cut off since the start."""
        self._staying = 0
        """What those hold that are not being cut off."""
        self._holders: dict[str, _Holder] = {}

    def account(self, peer: str, address: str = "", cut: Cut | None = None) -> Account:
        """Open an account for a connection or a stream of a peer.

        ``address`` is the IP address that the peer is connected from, where that is known here.
        ``cut`` is called, once at most, when the peer has to go: it must neither wait nor raise.
        """
        holder = self._holders.setdefault(peer, _Holder(group_of(address)))
        if address:
            holder.address = group_of(address)
        return Account(self, peer, holder, cut)

    def refused_for(self, peer: str) -> float:
        """Return for how many more seconds a peer is refused because it was cut off."""
        until = self._refused.get(peer)
        return 0.0 if until is None else max(0.0, until - self._clock())

    def check(self, peer: str) -> None:
        """Raise OverBudgetError for a peer that is refused."""
        if wait := self.refused_for(peer):
            raise OverBudgetError(
                f"peer {peer} was cut off because it made this node hold too much memory; "
                f"it is refused for another {wait:.0f} s"
            )

    def held_by(self, peer: str) -> int:
        """Return how many bytes are held for a peer, but for what it had when it was cut off."""
        holder = self._holders.get(peer)
        return 0 if holder is None else holder.held

    def _make_room(self, peer: str, holder: _Holder, more: int) -> None:
        """Cut off peers until there is room for more bytes of one of them."""
        self.check(peer)
        while not holder.leaving and self._staying + more > self.limit:
            name, greediest = self._greediest(holder, more)
            self._cut(name, greediest, more if greediest is holder else 0)
        if holder.leaving:
            raise OverBudgetError("the peer is being cut off: it made this node hold too much")
        if self.held + more > self.limit + self.limit // _SLACK:
            raise OverBudgetError("all peers together make this node hold too much memory")

    def _greediest(self, asking: _Holder, more: int) -> tuple[str, _Holder]:
        by_address = Counter({asking.address: more})
        for each in self._holders.values():
            if not each.leaving:
                by_address[each.address] += each.held
        (address, _), *_ = by_address.most_common(1)
        there = {
            name: each.held + (more if each is asking else 0)
            for name, each in self._holders.items()
            if each.address == address and not each.leaving
        }
        name = max(there, key=lambda each: there[each])
        return name, self._holders[name]

    def _cut(self, peer: str, holder: _Holder, more: int) -> None:
        self._warn_of(peer, holder, more)
        self.cut_off += 1
        holder.leaving = True
        self._staying -= holder.held
        del self._holders[peer]  # what is left of it goes with its accounts
        _remember(self._refused, peer, self._clock() + REFUSED_FOR)
        for cut in list(holder.cuts):
            cut()
        self.on_cut(peer)

    def _warn_of(self, peer: str, holder: _Holder, more: int) -> None:
        now, address = self._clock(), holder.address or peer
        is_news = now >= self._warned.get(address, now)
        if is_news:
            _remember(self._warned, address, now + WARN_EVERY)
        (log.warning if is_news else log.debug)(
            "Cutting off a peer: it holds the most of the memory for peers (max_peer_memory)",
            peer=peer,
            address=holder.address,
            bytes=holder.held + more,
            bytes_of_all=self.held + more,
            limit=self.limit,
        )

    def _add(self, holder: _Holder, kind: str, more: int) -> None:
        holder.held += more
        self.held += more
        if not holder.leaving:
            self._staying += more
        self.by_kind[kind] += more

    def _leave(self, peer: str, holder: _Holder) -> None:
        holder.accounts -= 1
        if not holder.accounts and self._holders.get(peer) is holder:
            del self._holders[peer]


def _remember(times: dict[str, float], name: str, until: float) -> None:
    """Note a time under a name as the latest of a bounded number."""
    times.pop(name, None)
    times[name] = until
    while len(times) > _MAX_REMEMBERED:
        del times[next(iter(times))]


def group_of(address: str) -> str:
    """Return what stands for all peers of one machine or customer: an IPv4 address, an IPv6 /64."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> _IPV6_NETWORK << _IPV6_NETWORK)) + f"/{_IPV6_NETWORK}"
    return str(parsed)


UNLIMITED: Final = MemoryBudget(1 << 62)
"""For streams that no peer is behind, as in tests of a protocol over memory streams."""
