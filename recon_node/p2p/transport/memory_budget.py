"""An account of the memory that peers make this node hold, and who is cut off if it is too much.

Each limit of the network side is for one thing: a frame, a turn, a window, a number of streams.
What one peer can make us hold is their product, and what all peers can is that times their number.
So every part that keeps bytes for a peer also charges them here, and their sum has one limit.

When the sum exceeds the limit, peers are cut off one by one until it no longer does: at the address
that holds the most, the peer that holds the most. Addresses come first because peer ids cost
nothing: a hundred made-up ones on one machine count together. So of n addresses, one that holds
less than an n-th of the limit is never cut off.

A peer that was cut off is refused for `REFUSED_FOR` seconds, because otherwise it would come back
at once and hold the same again. After that it starts from nothing, even if a part of the node still
holds something from before.

What is charged is memory, not bytes on the wire: a decoded message takes several times as much.
This module does no I/O. Closing connections is up to the callbacks of those who own them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from recon_node.base.latest import Latest
from recon_node.fairness.slots import address_block_of
from recon_node.p2p.errors import P2PError

logger = structlog.get_logger(__name__)

Cut = Callable[[], None]
_SLACK: Final = 4
"""While peers that were cut off release their memory, the sum may exceed the limit by this fraction
of it: a quarter."""
REFUSED_FOR: Final = 60.0
"""Seconds for which a peer that was cut off is refused."""
WARN_EVERY: Final = 60.0
"""Seconds between two warnings about cut-offs at the same address."""
_MAX_REFUSED_PEERS: Final = 1000
"""Maximum peers that are refused, and addresses that were warned about: the latest ones."""


class OverBudgetError(P2PError):
    """A peer, or all peers together, made this node use too much memory."""


@dataclass(eq=False, slots=True)
class _Holder:
    """One peer, with everything that is held for it."""

    address: str
    held: int = 0
    accounts: int = 0
    cuts: list[Cut] = field(default_factory=list)
    leaving: bool = False


class MemoryAccount:
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
        """Set how many bytes of a kind are held from now on; call it before they are.

        Raises:
            OverBudgetError: it is more than before, and there is no room for it.
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
        on_cut: called with each peer that is cut off; it must neither wait nor raise.
        refused: peers that get nothing, as the operator has removed them; it may change.
    """

    def __init__(
        self,
        limit: int,
        clock: Callable[[], float] = trio.current_time,
        on_cut: Callable[[str], None] = lambda peer: None,
        refused: Set[str] = frozenset(),
    ) -> None:
        self.limit = limit
        self._removed = refused
        self._clock = clock
        self._on_cut = on_cut
        self._refused = Latest[str, float](_MAX_REFUSED_PEERS)
        self._warned = Latest[str, float](_MAX_REFUSED_PEERS)
        self.held = 0
        """Bytes held at the moment, for all peers."""
        self.by_kind = Counter[str]()
        """The same by kind, as the accounts name them."""
        self.cut_off = 0
        """Peers cut off since the start."""
        self._staying = 0
        """Bytes held for the peers that are not being cut off."""
        self._holders: dict[str, _Holder] = {}

    def account(self, peer: str, address: str = "", cut: Cut | None = None) -> MemoryAccount:
        """Open an account for a connection or a stream of a peer.

        Args:
            peer: its peer id.
            address: the IP address that it is connected from, if known.
            cut: called at most once, when the peer is cut off; it must neither wait nor raise.
        """
        holder = self._holders.setdefault(peer, _Holder(address_block_of(address)))
        if address:
            holder.address = address_block_of(address)
        return MemoryAccount(self, peer, holder, cut)

    def refused_for(self, peer: str) -> float:
        """Return for how many more seconds a peer is refused because it was cut off."""
        until = self._refused.get(peer)
        return 0.0 if until is None else max(0.0, until - self._clock())

    def check(self, peer: str) -> None:
        """Check that a peer is not refused.

        Raises:
            OverBudgetError: it was cut off a short while ago.
            P2PError: it was removed.
        """
        if peer in self._removed:
            raise P2PError(f"peer {peer} was removed: `recon-node peers add` takes it back")
        if wait := self.refused_for(peer):
            raise OverBudgetError(
                f"peer {peer} was cut off because it made this node use too much memory; "
                f"it is refused for another {wait:.0f} s"
            )

    def _make_room(self, peer: str, holder: _Holder, more: int) -> None:
        """Cut off peers until there is room for more bytes of one of them."""
        self.check(peer)
        while not holder.leaving and self._staying + more > self.limit:
            name, greediest = self._greediest(holder, more)
            self._cut(name, greediest, more if greediest is holder else 0)
        if holder.leaving:
            raise OverBudgetError("the peer is being cut off: it uses too much of our memory")
        if self.held + more > self.limit + self.limit // _SLACK:
            raise OverBudgetError("all peers together make this node use too much memory")

    def _greediest(self, asking: _Holder, more: int) -> tuple[str, _Holder]:
        by_address = Counter({asking.address: more})
        for holder in self._holders.values():
            if not holder.leaving:
                by_address[holder.address] += holder.held
        (address, _), *_ = by_address.most_common(1)
        there = {
            name: holder.held + (more if holder is asking else 0)
            for name, holder in self._holders.items()
            if holder.address == address and not holder.leaving
        }
        name = max(there, key=lambda holder: there[holder])
        return name, self._holders[name]

    def _cut(self, peer: str, holder: _Holder, more: int) -> None:
        self._warn_of(peer, holder, more)
        self.cut_off += 1
        holder.leaving = True
        self._staying -= holder.held
        del self._holders[peer]  # what is left of it goes with its accounts
        self._refused[peer] = self._clock() + REFUSED_FOR
        for cut in list(holder.cuts):
            cut()
        self._on_cut(peer)

    def _warn_of(self, peer: str, holder: _Holder, more: int) -> None:
        now, address = self._clock(), holder.address or peer
        is_news = now >= self._warned.get(address, now)
        if is_news:
            self._warned[address] = now + WARN_EVERY
        (logger.warning if is_news else logger.debug)(
            "Cutting off a peer: it takes the most memory (max_peer_memory)",
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


def unlimited() -> MemoryBudget:
    """Return a budget for streams without a peer, such as memory streams in tests."""
    return MemoryBudget(sys.maxsize)
