"""The ranges that both this node and a peer want, as far as known, and their share of the keys.

A peer states its interests (`interest_gossip`). Those of a peer that does not speak that protocol
are the ranges that it asks for and those that it answers for (see `PeerBook`). If it has done
neither recently, it is assumed to want everything that it has not declined.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import trio

from recon_node.ceramic import sort_value_range
from recon_node.p2p.peers.book import Peer, PeerBook
from recon_node.recon import KeyRange, intersect_ranges, subtract_ranges
from recon_node.store import Interest, Store, format_interest
from recon_node.store.kept_interests import key_ranges

MAX_COUNTED: Final = 100
"""Maximum ranges in which keys are counted; of more ranges, a sample of this size."""
WEIGHED_EVERY: Final = 10.0
"""Seconds for which a share is not computed again."""
MAX_NAMED: Final = 20
"""Maximum interests of ours that are named as shared with a peer."""
COUNTED_AT_ONCE: Final = 500
"""Maximum ranges counted in a second to renew the shares of peers that are described; it takes a
few milliseconds. The shares of the other peers are renewed when they are described again."""
MAX_ANSWERS: Final = 64
"""Maximum sort values for which it is remembered whether a peer wants them."""


_NOBODY: Final = Peer("")
"""Stands for peers that are not in the book."""


class _Counts:
    """The numbers of keys in ranges, each counted once in `WEIGHED_EVERY` seconds: most of what
    peers want are the same ranges."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[KeyRange, int] = {}
        self._known_until = -math.inf
        self._second = -math.inf
        self._in_second = 0
        """Ranges that were counted since then."""

    def total(self, ranges: Sequence[KeyRange]) -> float:
        """Return the number of keys in some ranges; of many ranges, an estimate."""
        sample = ranges[:: -(-len(ranges) // MAX_COUNTED) or 1]
        if not sample:
            return 0.0
        now = trio.current_time()
        if now >= self._known_until:
            self._known, self._known_until = {}, now + WEIGHED_EVERY
        return sum(map(self._of, sample)) * len(ranges) / len(sample)

    def have_time(self) -> bool:
        """Return whether fewer than `COUNTED_AT_ONCE` ranges were counted in this second."""
        now = trio.current_time()
        if now >= self._second + 1:
            self._second, self._in_second = now, 0
        return self._in_second < COUNTED_AT_ONCE

    def _of(self, key_range: KeyRange) -> int:
        number = self._known.get(key_range)
        if number is None:
            self._in_second += 1
            number = self._known[key_range] = self._store.keys.count(key_range)
        return number


@dataclass(slots=True)
class _Common:
    """What was computed for one peer, with its inputs, so that it is computed once."""

    ours: list[KeyRange]
    stated: object
    interests: object
    declined: object
    until: float
    is_known: bool
    ranges: list[KeyRange]
    share: float = 1.0
    weigh_at: float = -math.inf
    named: tuple[tuple[Interest, ...], tuple[str, ...]] | None = None
    """Our interests, and those of them that are shared, as text."""
    answers: dict[str, bool] = field(default_factory=dict)
    """Whether the peer wants some of what we want of a sort value."""


class Overlap:
    """Compares this node's interests with those of its peers."""

    def __init__(self, store: Store, book: PeerBook) -> None:
        self._store = store
        self._book = book
        self._common: dict[str, _Common] = {}
        self._counts = _Counts(store)
        self._interests: tuple[Interest, ...] = ()
        self._texts: list[tuple[KeyRange, str]] = []
        """The range of each of those interests, and its text."""

    def is_known(self, peer_id: str) -> bool:
        """Return whether a peer's interests are known."""
        return self._common_with(peer_id).is_known

    def shares(self, peer_id: str, sort_value: str | None = None) -> bool | None:
        """Return whether a peer wants some of what this node wants of a sort value, or (None) at
        all; None if that is not known."""
        common = self._common_with(peer_id)
        if not common.is_known:
            return None
        if sort_value is None:
            return bool(common.ranges)
        answer = common.answers.get(sort_value)
        if answer is None:
            wanted = KeyRange(*sort_value_range(self._store.network, sort_value))
            answer = bool(intersect_ranges([wanted], common.ranges))
            if len(common.answers) < MAX_ANSWERS:
                common.answers[sort_value] = answer
        return answer

    def ranges(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that interest both sides, ascending."""
        return self._common_with(peer_id).ranges

    def describe(self, peer_id: str) -> tuple[tuple[str, ...], float] | None:
        """Return what of our interests a peer shares; None if its interests are not known.

        Returns:
            The first `MAX_NAMED` of our interests of which it shares at least a part, as text;
            and the share of our keys that it wants too, from 0 to 1, some seconds old.
        """
        if not self.is_known(peer_id):
            return None
        common, ours = self._common_with(peer_id), self._store.wanted.all
        if common.named is None or common.named[0] is not ours:
            common.named = ours, tuple(islice(self._name(ours, common.ranges), MAX_NAMED))
        now = trio.current_time()
        is_first = common.weigh_at == -math.inf
        if now >= common.weigh_at and (is_first or self._counts.have_time()):
            common.share, common.weigh_at = self._share(common), now + WEIGHED_EVERY
        return common.named[1], common.share

    async def weigh(self, peers: Iterable[Peer]) -> None:
        """Update `Peer.overlap` of some peers, with a checkpoint after each."""
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
        ours, peer = self._store.wanted.ranges, self._book.get(peer_id) or _NOBODY
        known = self._common.get(peer_id)
        if (
            known is not None
            and known.stated is peer.stated
            and known.interests is peer.interests
            and known.declined is peer.declined
            and known.ours == ours
            and (known.until == math.inf or trio.current_time() < known.until)
        ):
            return known
        return self._compare(peer_id, peer, ours)

    def _compare(self, peer_id: str, peer: Peer, ours: list[KeyRange]) -> _Common:
        until = min((until for until, _ in (*peer.interests, *peer.declined)), default=math.inf)
        is_known = True
        if self._book.has_stated(peer_id):
            assert peer.stated is not None
            until = peer.stated.until
            ranges = intersect_ranges(ours, peer.stated.ranges)
        elif theirs := self._book.interests(peer_id):
            ranges = intersect_ranges(ours, theirs)
        else:
            is_known = False
            ranges = subtract_ranges(ours, self._book.declined(peer_id))
        if len(self._common) > 2 * len(self._book):
            self._common.clear()  # the book has removed peers
        common = _Common(ours, peer.stated, peer.interests, peer.declined, until, is_known, ranges)
        self._common[peer_id] = common
        return common

    def _name(self, ours: tuple[Interest, ...], ranges: list[KeyRange]) -> Iterator[str]:
        if self._interests is not ours:
            firsts = (key_ranges(self._store.network, [interest])[0] for interest in ours)
            self._texts = list(zip(firsts, map(format_interest, ours), strict=True))
            self._interests = ours
        for wanted, text in self._texts:
            # Ranges are apart and ascend: the first that ends above the lower bound decides.
            at = bisect_right(ranges, wanted.lower, key=_upper)
            if at < len(ranges) and ranges[at].lower < wanted.upper:
                yield text

    def _share(self, common: _Common) -> float:
        """Return the share of our keys in the common ranges, from 0 to 1."""
        everything = self._counts.total(common.ours)
        if common.ranges == common.ours or not everything:
            return float(bool(common.ranges))
        return min(1.0, self._counts.total(common.ranges) / everything)


def _upper(key_range: KeyRange) -> bytes:
    return key_range.upper
