"""The keys of a ring as `/ceramic/recon/0.1.0` sees them: half-open ranges of a key store.

A range includes its first bound and excludes its last. The key store's ranges exclude both, so the
key that equals the first bound, if there is one, is added here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Final, Protocol

from recon_node.recon.keys.ordered_keys import KeyRange, Summary
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.ring.ring_codec import RangeHash

LISTING_THRESHOLD: Final = 4
"""Keys up to which a range is listed instead of halved; ceramic-one's.

At least 3: where a half could hold one key that is not its first bound, the receiver would take
that bound for the key, and keys would be lost without notice.
"""

NO_KEYS: Final = Summary(ZERO, 0)


class Outcome(Enum):
    """What comparing a peer's range with ours says."""

    AGREE = auto()
    """Both sides hold the same keys there."""
    PEER_LACKS = auto()
    """The peer holds nothing there, or only the first bound: it needs all our keys of the range."""
    DIFFER = auto()
    """The sides differ: the parts of the range go back to the peer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out of comparing a range."""

    outcome: Outcome
    parts: tuple[RangeHash, ...] = ()
    """Where the sides differ: the range with our summary, or its parts with theirs."""


class RingKeyView(Protocol):
    """Keys in order; see `OrderedKeys` for what each method does."""

    def __contains__(self, key: object) -> bool: ...
    def summarize(self, key_range: KeyRange) -> Summary: ...  # noqa: D102
    def keys(self, key_range: KeyRange) -> Iterator[bytes]: ...  # noqa: D102
    def nth(self, key_range: KeyRange, index: int) -> bytes: ...  # noqa: D102


class Ring:
    """A key store whose ranges include their first bound; some bounds are not keys."""

    def __init__(self, store: RingKeyView, is_fencepost: Callable[[bytes], bool]) -> None:
        self._store = store
        self._is_fencepost = is_fencepost

    def __contains__(self, key: bytes) -> bool:
        return key in self._store

    def state(self, first: bytes, last: bytes) -> RangeHash:
        """Return a range with the hash and the number of our keys in it."""
        summary = self._store.summarize(KeyRange(first, last))
        if first < last and first in self._store:
            summary = Summary(summary.hash + Sha256a.of(first), summary.count + 1)
        return RangeHash(first, summary, last)

    def keys(self, first: bytes, last: bytes) -> Iterator[bytes]:
        """Iterate over our keys of a range in order, lazily; the store may change meanwhile."""
        if first < last and first in self._store:
            yield first
        yield from self._store.keys(KeyRange(first, last))

    def compare(self, theirs: RangeHash) -> Comparison:
        """Compare a peer's range with ours, and say what the peer should get."""
        ours = self.state(theirs.first, theirs.last)
        if ours.summary == theirs.summary:
            return Comparison(Outcome.AGREE, (theirs,))
        if not ours.summary.count:
            return Comparison(Outcome.DIFFER, (ours,))
        has_first_at_most = theirs.summary.count == 1 and not self._is_fencepost(theirs.first)
        if theirs.summary.count and not has_first_at_most:
            return Comparison(Outcome.DIFFER, self._parts(ours))
        own_first = next(self.keys(ours.first, ours.last))
        if own_first == ours.first or self._is_fencepost(ours.first):
            return Comparison(Outcome.PEER_LACKS)
        # The first bound is a key that we lack. An empty part around it makes the peer send it.
        before = RangeHash(ours.first, NO_KEYS, own_first)
        return Comparison(Outcome.DIFFER, (before, self.state(own_first, ours.last)))

    def _parts(self, ours: RangeHash) -> tuple[RangeHash, ...]:
        """Halve a range at one of its keys, or split it at all of them where they are few."""
        if ours.summary.count <= LISTING_THRESHOLD:
            cuts = list(self.keys(ours.first, ours.last))
        else:
            rank = ours.summary.count // 2 - (ours.first in self._store)  # not in the store's range
            cuts = [self._store.nth(KeyRange(ours.first, ours.last), rank)]
        bounds = [ours.first, *(cut for cut in cuts if cut != ours.first), ours.last]
        return tuple(self.state(*pair) for pair in pairwise(bounds))
