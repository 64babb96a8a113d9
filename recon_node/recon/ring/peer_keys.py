"""Our keys as a peer's set has them: without those that it refuses, with those that we refuse.

`/ceramic/recon/0.1.0` has no way to leave out a key. If one side refuses an event of the other, the
hashes of their ranges differ for ever, and the event is sent in every session. So hashes are
computed over the set that the peer holds as far as we know: then they are equal when all that both
sides take is at both.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import islice

from recon_node.recon.keys.key_store import KeyView
from recon_node.recon.keys.ordered_keys import Summary
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, Sha256a


class PeerKeys:
    """A view of keys, without some of them, and with some others.

    Args:
        held: our keys.
        refused_here: keys of the peer; those among them that we hold count once.
        refused_there: keys of ours.
    """

    def __init__(self, held: KeyView, refused_here: KeyView, refused_there: KeyView) -> None:
        self._held = held
        self._here = refused_here
        self._there = refused_there

    def __contains__(self, key: object) -> bool:
        return key in self._here or (key in self._held and key not in self._there)

    def summarize(self, key_range: KeyRange) -> Summary:
        """Return the Sha256a and the number of the keys in a range."""
        lanes = self._held.lanes(key_range) + self._here.lanes(key_range)
        lanes -= self._there.lanes(key_range)
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def keys(self, key_range: KeyRange) -> Iterator[bytes]:
        """Iterate over the keys of a range in order, lazily; all of them may change meanwhile."""
        held = (key for key in self._held.keys(key_range) if key not in self._there)
        return merge(held, self._here.keys(key_range))

    def nth(self, key_range: KeyRange, index: int) -> bytes:
        """Return the key of a range that has ``index`` keys of the range before it.

        Raises:
            IndexError: the range has no such key.
        """
        if not self._here and not self._there:
            return self._held.nth(key_range, index)
        lower, upper = key_range

        def rank(place: int) -> int:
            """How many keys are not above the key at a place among those that we hold."""
            below = KeyRange(lower, self._held.nth(key_range, place) + b"\0")
            return place + 1 + self._here.count(below) - self._there.count(below)

        places = range(self._held.count(key_range))
        # The ranks ascend, but stand still at keys that the peer refuses.
        before = bisect_right(places, index, key=rank)
        after = self._held.nth(key_range, before - 1) if before else lower
        left = index - (rank(before - 1) if before else 0)
        for key in islice(self.keys(KeyRange(after, upper)), left, None):
            return key
        raise IndexError(f"no key {index} in the range")
