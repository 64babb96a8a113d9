"""The ranges that both this node and a peer want, as far as known, and their share of the keys.

A peer states its interests (``interest_gossip``). Those of a peer that does not speak that protocol
are the ranges that it asks for and those that it answers for (see ``PeerBook``). If it has done
neither recently, it is assumed to want everything that it has not declined.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.peer import Peer
from recon_node.recon import KeyRange, intersect_ranges, subtract_ranges

MAX_COUNTED: Final = 100
"""Maximum ranges in which keys are counted; of more ranges, a sample of this size."""
WEIGHED_EVERY: Final = 10.0
"""Seconds for which a share is not computed again."""


@dataclass(slots=True)
class _Common:
    """What was computed for one peer, with its inputs, so that it is computed once."""

    ours: list[KeyRange]
    stated: object
    interests: object
    declined: object
    until: float
    ranges: list[KeyRange]
    share: float = 1.0
    weigh_at: float = -math.inf


class Overlap:
    """Compares this node's interests with those of its peers."""

    def __init__(self, store: EventStore, book: PeerBook) -> None:
        self._store = store
        self._book = book
        self._common: dict[str, _Common] = {}

    def is_known(self, peer_id: str) -> bool:
        """Return whether a peer's interests are known."""
        return self._book.has_stated(peer_id) or bool(self._book.interests(peer_id))

    def ranges(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that interest both sides, ascending."""
        return self._common_with(peer_id).ranges

    async def weigh(self, peers: Iterable[Peer]) -> None:
        """Update ``Peer.overlap`` of some peers, with a checkpoint after each."""
        now = trio.current_time()
        shares: dict[tuple[KeyRange, ...], float] = {}
        for peer in peers:
            common = self._common_with(peer.id)
            if now >= common.weigh_at:
                key = tuple(common.ranges)
                if key not in shares:
                    shares[key] = self._share(common)
                common.share, common.weigh_at = shares[key], now + WEIGHED_EVERY
            peer.overlap = common.share
            await trio.lowlevel.checkpoint()

    def _common_with(self, peer_id: str) -> _Common:
        ours, peer = self._store.wanted.ranges, self._book.get(peer_id) or Peer(peer_id)
        known = self._common.get(peer_id)
        if (
            known is not None
            and known.stated is peer.stated
            and known.interests is peer.interests
            and known.declined is peer.declined
            and known.ours == ours
            and trio.current_time() < known.until
        ):
            return known
        until = min((until for until, _ in (*peer.interests, *peer.declined)), default=math.inf)
        if self._book.has_stated(peer_id):
            assert peer.stated is not None
            until = peer.stated.until
            ranges = intersect_ranges(ours, peer.stated.ranges)
        elif theirs := self._book.interests(peer_id):
            ranges = intersect_ranges(ours, theirs)
        else:
            ranges = subtract_ranges(ours, self._book.declined(peer_id))
        if len(self._common) > 2 * len(self._book):
            self._common.clear()  # the book has removed peers
        common = _Common(ours, peer.stated, peer.interests, peer.declined, until, ranges)
        self._common[peer_id] = common
        return common

    def _share(self, common: _Common) -> float:
        """Return the share of our keys in the common ranges, from 0 to 1."""
        everything = self._count(common.ours)
        if common.ranges == common.ours or not everything:
            return float(bool(common.ranges))
        return min(1.0, self._count(common.ranges) / everything)

    def _count(self, ranges: Sequence[KeyRange]) -> float:
        sample = ranges[:: -(-len(ranges) // MAX_COUNTED) or 1]
        if not sample:
            return 0.0
        return sum(map(self._store.keys.count, sample)) * len(ranges) / len(sample)
