"""Pushing: every new key is sent to some of the peers that may want it.

CIP-124, "Random Peer Sync Order": when an event arrives, from the user or from a peer, recon
messages go to a set of random peers, so that the number of nodes with the event grows
exponentially. Only peers with an interest in the key are drawn, and each key has a draw of its own,
so that a peer is reached however few others share its interests. A key is not pushed to a peer that
told us of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from recon_node.ceramic import EventId
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.peers.peer import Peer
from recon_node.p2p.settings import P2PSettings
from recon_node.recon import KeyRange

ALL_OF_FEW: Final = 2
"""If at most this many times ``sync_peers`` peers want a key, all of them get it at once."""

NewKeys = dict[bytes, Collection[str]]
"""New keys, ascending, each with the peers that told us of it."""
ToldBy = Callable[[EventId], Collection[str]]
Request = Callable[[str, Sequence[KeyRange] | None], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a peer may want of some new keys."""

    keys: Sequence[bytes]
    ranges: Sequence[KeyRange]
    """The ranges in common with the peer that these keys lie in."""


class Pusher:
    """Requests a sync with peers that want what is new in the store.

    Args:
        store: has the keys to push.
        book: draws the peers.
        overlap: knows who wants what.
        near: returns the connected peers.
        told_by: returns the peers that told us of a key.
        request: requests a sync with a peer, about some ranges or (None) all of them.
        settings: how long keys are gathered, and how many peers to push to.
    """

    def __init__(
        self,
        store: EventStore,
        book: PeerBook,
        overlap: Overlap,
        near: Callable[[], Sequence[Peer]],
        told_by: ToldBy,
        request: Request,
        settings: P2PSettings,
    ) -> None:
        self._store = store
        self._book = book
        self._overlap = overlap
        self._near = near
        self._told_by = told_by
        self._request = request
        self._settings = settings

    async def run(self) -> None:
        """Push until cancelled."""
        seen = self._store.arrivals.total
        while True:
            await self._store.arrivals.wait(seen)
            await trio.sleep(self._settings.push_delay)
            keys, seen = self._store.arrivals.since(seen), self._store.arrivals.total
            await self._push(keys)

    async def _push(self, keys: Sequence[EventId] | None) -> None:
        """Request syncs about these keys; None stands for more keys than are remembered."""
        near = self._near()
        if not near:  # a peer that we reach takes part from then on
            for peer in self._book.choose(self._settings.sync_peers):
                self._request(peer.id, None)
            return
        await self._overlap.weigh(near)
        drawn = self._book.choose(len(near), near)
        drawn.sort(key=lambda peer: not self._overlap.is_known(peer.id))  # stable
        common = {}
        for peer in drawn:
            common[peer.id] = self._overlap.ranges(peer.id)
            await trio.lowlevel.checkpoint()
        news = _representatives(keys, common.values(), self._told_by)
        wants = {}
        for peer_id, ranges in common.items():
            wants[peer_id] = _wanted(peer_id, ranges, news)
            await trio.lowlevel.checkpoint()
        for peer_id in choose_receivers(wants, self._settings.sync_peers):
            self._request(peer_id, wants[peer_id].ranges)


def choose_receivers(wants: Mapping[str, Wanted], copies: int) -> list[str]:
    """Choose peers, in the given order, so that each key reaches ``copies`` of those that want it.

    If there are not many more (``ALL_OF_FEW``), it reaches all of them.
    """
    asked = Counter(key for wanted in wants.values() for key in wanted.keys)
    due = {key: many if many <= ALL_OF_FEW * copies else copies for key, many in asked.items()}
    chosen = []
    for peer_id, wanted in wants.items():
        if any(due[key] > 0 for key in wanted.keys):
            chosen.append(peer_id)
            for key in wanted.keys:
                due[key] -= 1
    return chosen


def _representatives(
    keys: Sequence[EventId] | None, common: Collection[Sequence[KeyRange]], told_by: ToldBy
) -> NewKeys:
    """Return one key for all those that the same peers want and the same peers told us of.

    If the keys are not known, return one for every part into which the bounds divide the ranges.
    """
    bounds = sorted({bound for ranges in common for each in ranges for bound in each})
    if keys is None:
        return {bound + b"\0": () for bound in bounds}
    parts = {(bisect_left(bounds, key), frozenset(told_by(key))): key for key in keys}
    return {key: tellers for (_, tellers), key in sorted(parts.items(), key=lambda each: each[1])}


def _wanted(peer_id: str, ranges: Sequence[KeyRange], news: NewKeys) -> Wanted:
    """Return what a peer may want of new keys, going by key or by range, whichever are fewer."""
    ascending = list(news)
    at: dict[bytes, int] = {}
    if len(ascending) < len(ranges):
        for key in ascending:
            index = bisect_left(ranges, key, key=_lower) - 1
            if index >= 0 and ranges[index].covers(key):
                at[key] = index
    else:
        for index, (lower, upper) in enumerate(ranges):
            inside = slice(bisect_right(ascending, lower), bisect_left(ascending, upper))
            at.update(dict.fromkeys(ascending[inside], index))
    keys = [key for key in at if peer_id not in news[key]]
    return Wanted(keys, [ranges[index] for index in dict.fromkeys(at[key] for key in keys)])


def _lower(key_range: KeyRange) -> bytes:
    return key_range.lower
