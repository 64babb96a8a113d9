"""Pushing: every new key is sent to some of the peers that may want it.

CIP-124, "Random Peer Sync Order": when an event arrives, from the user or from a peer, recon
messages go to a set of random peers, so that the number of nodes with the event grows
exponentially. Only peers with an interest in the key are drawn, and each key has a draw of its own,
so that a peer is reached however few others share its interests. A key is not pushed to a peer that
listed it.

The first key after a while is pushed at once; those that come within `push_delay` of a push are
collected for the next one.

A push is a sync about the changed part of a common range: the streams of the new keys, and what
lies between them. Where the sides differ elsewhere is left to the rounds of syncs. Both sides may
have to hash what lies between, a microsecond or more for each key. So up to `MAX_APART` new keys
that are far apart get a sync each, and cost about the same in a large set as in a small one. One
sync is about more: of a set of a million keys, that may take each side seconds. New keys that
others listed are apart from those of our own clients, and many are apart from few: what anybody
sends in masses does not hold up the rest.

If each node pushed an event to three others once, it would miss 6 % of them: s = exp(-3 (1 - s)),
in Demers et al., "Epidemic Algorithms for Replicated Database Maintenance" (1987). So there are
`WAVES` waves of pushes. The later ones go to peers that are not known to have the key: they did
not list it, and no session agreed with them since it came. In a connected network that leaves
hardly anyone out, and most of what it costs are syncs that find nothing to do.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final, NamedTuple, Protocol

import trio

from recon_node.ceramic import EventId, streams_range
from recon_node.p2p.context import Context
from recon_node.p2p.peers.book import Peer
from recon_node.p2p.peers.overlap import Overlap
from recon_node.p2p.sync.reconciler import PeerMemory
from recon_node.recon import KeyRange, intersect_ranges

ALL_OF_FEW: Final = 2
"""If at most this many times `sync_peers` peers want a key, all of them get it at once."""

WAVES: Final = 3
"""How often a key is pushed, each time to others."""
NEXT_WAVE: Final = 4
"""A wave comes this many times `push_delay` after the one before, as long as a push takes about;
and then twice as many."""
MAX_AGAIN: Final = 256
"""More keys at once are pushed in one wave only: they come from a sync that caught up. More keys
that the same peers listed are not news, either: their push is a sync like others."""

MAX_APART: Final = 16
"""Maximum new keys that the same peers want, and listed, of which each gets a sync of its own; if
there are not about `MAX_AGAIN` others already."""
NEAR: Final = 4096
"""Keys between two new ones up to which one sync is about both: to hash them takes as long as a
round trip."""

TOGETHER: Final = 0.01
"""Seconds for which the first key after a while is kept, for others that come together with it."""

SourcesOf = Callable[[EventId], Collection[str]]


class RequestSync(Protocol):
    """Requests a sync with a peer, see `SyncScheduler.request`."""

    def __call__(
        self, peer_id: str, ranges: Sequence[KeyRange] | None = None, *, of_news: bool = False
    ) -> None:
        """Request it."""


class News(NamedTuple):
    """New keys that the same peers want, and that the same peers listed."""

    first: bytes
    """The lowest of them; it stands for all of them."""
    last: bytes
    """The highest of them."""
    sources: Collection[str]
    """The peers that listed them."""
    number: int
    """How many they are."""


@dataclass(frozen=True, slots=True)
class PushedPart:
    """What a peer may want of some new keys."""

    keys: Sequence[bytes]
    """The first key of each part of the news."""
    ranges: Sequence[KeyRange]
    """What to sync about because of news."""
    masses: Sequence[KeyRange] = ()
    """What to sync about because of many new keys."""


class Pusher:
    """Requests a sync with peers that want what is new in the store."""

    def __init__(
        self,
        context: Context,
        overlap: Overlap,
        near: Callable[[], Sequence[Peer]],
        sources_of: SourcesOf,
        memory: PeerMemory,
        request: RequestSync,
    ) -> None:
        self._store, self._book, self._settings = context.store, context.book, context.settings
        self._overlap = overlap
        self._near = near
        self._sources_of = sources_of
        self._memory = memory
        self._request = request

    async def run(self) -> None:
        """Push until cancelled."""
        seen, pushed_at = self._store.arrivals.total, trio.current_time()
        delay = self._settings.push_delay
        async with trio.open_nursery() as nursery:
            while True:
                await self._store.arrivals.wait(seen)
                await trio.sleep(min(TOGETHER, delay))
                await trio.sleep_until(pushed_at + delay)
                pushed_at = trio.current_time()
                keys, seen = self._store.arrivals.since(seen), self._store.arrivals.total
                news = self._store.filling.without_filled(keys)
                if news is None or news:
                    nursery.start_soon(self._push_in_waves, news, trio.current_time())

    async def _push_in_waves(self, keys: Sequence[EventId] | None, since: float) -> None:
        """Push keys that we have had since then; None: more than are remembered."""
        asked: set[str] = set()
        wait = NEXT_WAVE * self._settings.push_delay

        def knows(key: EventId) -> Collection[str]:
            return {*self._sources_of(key), *holders(key), *asked}

        asked.update(await self._push(keys, self._sources_of))
        if keys is None or len(keys) > MAX_AGAIN:
            return
        for _ in range(WAVES - 1):
            await trio.sleep(wait)
            wait *= 2
            holders = self._memory.holders(since)
            asked.update(await self._push(keys, knows))

    async def _push(self, keys: Sequence[EventId] | None, knows: SourcesOf) -> Collection[str]:
        """Request syncs about these keys, with peers that do not know them; return the peers."""
        near = self._near()
        if not near:  # a peer that we reach takes part from then on
            for peer in self._book.choose(self._settings.sync_peers):
                self._request(peer.id)
            return ()
        await self._overlap.weigh(near)
        drawn = self._book.choose(len(near), near)
        drawn.sort(key=lambda peer: not self._overlap.is_known(peer.id))  # stable
        common = {}
        for peer in drawn:
            common[peer.id] = self._overlap.ranges(peer.id)
            await trio.lowlevel.checkpoint()
        news = sort_news(keys, common.values(), knows)
        wants, count = {}, cache(self._store.keys.count)
        for peer_id, ranges in common.items():
            is_exact = keys is not None and self._book.has_stated(peer_id)
            wants[peer_id] = wanted_of(news, peer_id, ranges, count if is_exact else None)
            await trio.lowlevel.checkpoint()
        chosen = choose_receivers(wants, self._settings.sync_peers)
        for peer_id in chosen:
            if wants[peer_id].ranges:
                self._request(peer_id, wants[peer_id].ranges, of_news=True)
            if wants[peer_id].masses:
                self._request(peer_id, wants[peer_id].masses)
        return chosen


def choose_receivers(wants: Mapping[str, PushedPart], copies: int) -> list[str]:
    """Choose peers, in the given order, so that each key reaches `copies` of those that want it.

    If there are not many more (`ALL_OF_FEW`), it reaches all of them.
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


def sort_news(
    keys: Sequence[EventId] | None, common: Collection[Sequence[KeyRange]], sources_of: SourcesOf
) -> list[News]:
    """Sort new keys by who may want them and who listed them, ascending by the first key.

    Args:
        keys: the new keys; None if they are not known. Then there may be one in every part into
            which the bounds divide the ranges.
        common: the ranges in common with each peer.
        sources_of: returns the peers that listed a key.
    """
    bounds = sorted({bound for ranges in common for key_range in ranges for bound in key_range})
    if keys is None:
        unknown = MAX_AGAIN + 1
        return [News(key, key, (), unknown) for key in (bound + b"\0" for bound in bounds)]
    parts: defaultdict[tuple[int, frozenset[str]], list[bytes]] = defaultdict(list)
    for key in keys:
        parts[bisect_left(bounds, key), frozenset(sources_of(key))].append(key)
    pieces: list[News] = []
    for (_, sources), of in parts.items():
        if len(of) <= MAX_APART and len(pieces) < MAX_AGAIN:
            pieces += (News(key, key, sources, 1) for key in of)
        else:
            pieces.append(News(min(of), max(of), sources, len(of)))
    return sorted(pieces, key=_first)


def wanted_of(
    news: Sequence[News],
    peer_id: str,
    ranges: Sequence[KeyRange],
    count: Callable[[KeyRange], int] | None,
) -> PushedPart:
    """Return what a peer may want of the news, and the ranges to sync about.

    News and ranges are ascending, and ranges are apart. `count` returns how many keys a range has;
    None: the sync is about all of each range, not only about the streams with news.
    """
    wanted: list[bytes] = []
    few: list[tuple[int, KeyRange]] = []
    many: list[tuple[int, KeyRange]] = []
    for index, item in _concerning(news, ranges):
        if peer_id not in item.sources:
            wanted.append(item.first)
            changed = many if item.number > MAX_AGAIN else few
            lower, upper = ranges[index]
            if count is not None:
                lower, upper = _streams_of(item.first, item.last)
            if changed and changed[-1][0] == index:
                before = changed[-1][1]
                if count is None or count(KeyRange(before.upper, lower)) <= NEAR:
                    lower, upper = before.lower, max(before.upper, upper)
                    changed.pop()
            changed.append((index, KeyRange(lower, upper)))

    def common(changed: Sequence[tuple[int, KeyRange]]) -> Sequence[KeyRange]:
        return intersect_ranges(ranges, (key_range for _, key_range in changed))

    return PushedPart(wanted, common(few), common(many))


@lru_cache(maxsize=1024)  # for one peer after another
def _streams_of(first: bytes, last: bytes) -> tuple[EventId, EventId]:
    return streams_range(EventId(first), EventId(last))


def _concerning(news: Sequence[News], ranges: Sequence[KeyRange]) -> Iterator[tuple[int, News]]:
    """Yield the news that lie in one of the ranges, with its index; by whichever are fewer."""
    if len(news) < len(ranges):
        for item in news:
            index = bisect_left(ranges, item.first, key=_lower) - 1
            if index >= 0 and ranges[index].covers(item.first):
                yield index, item
    else:
        for index, (lower, upper) in enumerate(ranges):
            start = bisect_right(news, lower, key=_first)
            for item in news[start : bisect_left(news, upper, start, key=_first)]:
                yield index, item


def _lower(key_range: KeyRange) -> bytes:
    return key_range.lower


def _first(news: News) -> bytes:
    return news.first
