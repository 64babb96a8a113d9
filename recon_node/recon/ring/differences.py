"""What a peer and we refuse of each other, as the sessions of `/ceramic/recon/0.1.0` show it.

We know at once which events of the peer we refuse. The peer does not say which of ours it refuses:
a ceramic-one node takes the valid ones of a batch of 100 values, and hangs up. So a session
remembers which events it sends, and a later one finds which of them the peer still lacks:

- If the session that sent the events ended well, the peer has refused all that it lacks.
- If the peer hung up, it has refused what it lacks of the first batch that it does not hold whole.
  It has not looked at the batches after that one.

Only a session that ends well settles this, and until then no event is sent a second time. So it
takes two sessions to find which events of a batch the peer refuses.

What either side has refused is tried again after growing pauses: meanwhile it may have got an
endpoint of a chain, or the history of an event.

0.1.0 has no way to leave out a key. If one side refuses an event of the other, the hashes of their
ranges differ for ever, and the event is sent in every session. So hashes are computed over the set
that the peer holds as far as we know (`PeerKeys`). They are equal once both sides hold every event
that both accept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import merge
from itertools import islice
from typing import Final

from recon_node.base.latest import Latest
from recon_node.fairness.pacing import Backoff
from recon_node.recon.keys.key_store import KeyStore, KeyView
from recon_node.recon.keys.ordered_keys import KeyRange, Summary
from recon_node.recon.keys.sha256a import COUNT_SHIFT, Sha256a
from recon_node.recon.ring.ring_session import BATCH_VALUES


class PeerKeys:
    """The keys that a peer holds as far as we know: ours without those that it refuses, and those
    that we refuse, of which we hold none.
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
        """Return the key of a range that has `index` keys of the range before it.

        Raises:
            IndexError: the range has no such key.
        """
        if not self._here and not self._there:
            return self._held.nth(key_range, index)
        lower, upper = key_range

        def rank_with_theirs(rank: int) -> int:
            """Return how many keys of the view are not above the held key of this rank."""
            below = KeyRange(lower, self._held.nth(key_range, rank) + b"\0")
            return rank + 1 + self._here.count(below) - self._there.count(below)

        ranks = range(self._held.count(key_range))
        # The ranks ascend, but stand still at keys that the peer refuses.
        before = bisect_right(ranks, index, key=rank_with_theirs)
        after = self._held.nth(key_range, before - 1) if before else lower
        left = index - (rank_with_theirs(before - 1) if before else 0)
        for key in islice(self.keys(KeyRange(after, upper)), left, None):
            return key
        raise IndexError(f"no key {index} in the range")


BEFORE_TRYING_AGAIN: Final = Backoff(first=10.0, longest=3600.0)
"""Seconds after which a refused event is sent, or may be received, again."""
MAX_REFUSED: Final = 10_000
"""Maximum refused events that are remembered of a peer: 3 MB. More are sent in every session."""
MAX_SENT: Final = 10_000
"""Maximum events that are remembered as sent; older ones count as taken."""


class Ending(Enum):
    """How a session ended."""

    WELL = auto()
    PEER_HUNG_UP = auto()
    """The peer ended it, but is still connected."""
    BROKEN_OFF = auto()
    """We ended it, or the connection was lost: it says nothing of the values."""


@dataclass(slots=True, eq=False)
class _Sent:
    """The values that a session has sent, by their order in it, and how the session ended."""

    order: Latest[bytes, int] = field(default_factory=lambda: Latest(MAX_SENT))
    count: int = 0
    ending: Ending = Ending.BROKEN_OFF

    def note(self, key: bytes) -> None:
        self.order[key] = self.count
        self.count += 1

    def refused(self, lacking: set[bytes]) -> list[bytes]:
        """Return the keys of values that the peer has refused, if it lacks some."""
        places = sorted((self.order[key], key) for key in lacking if key in self.order)
        if places and self.ending is Ending.PEER_HUNG_UP:
            end = (places[0][0] // BATCH_VALUES + 1) * BATCH_VALUES
            places = [(rank, key) for rank, key in places if rank < end]
        return [key for _, key in places]


class Differences:
    """What one peer and we refuse of each other. `clock` never jumps back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.refused_here = KeyStore()
        """Keys of the peer."""
        self.refused_there = KeyStore()
        """Keys of ours."""
        self._clock = clock
        self._tries: dict[bytes, tuple[int, float]] = {}
        """How often a key was refused, and when it may be tried again; the latest one last."""
        self._unsettled: list[_Sent] = []
        """What earlier sessions have sent, and no later one has decided about."""

    def __len__(self) -> int:
        return len(self._tries) + sum(len(sent.order) for sent in self._unsettled)

    def begin(self, held: KeyView) -> Exchange:
        """Begin a session."""
        now = self._clock()
        for refused, is_outdated in (
            (self.refused_here, held.__contains__),
            (self.refused_there, lambda key: key not in held),
        ):
            for key in list(refused):
                if is_outdated(key) or self._tries[key][1] <= now:
                    refused.discard(key)
        return Exchange(self, held, tuple(self._unsettled))

    def forget_refused_here(self) -> None:
        """Try again all that we have refused."""
        self.refused_here = KeyStore()

    def refuse(self, key: bytes, refused: KeyStore) -> bool:
        """Remember a refusal; return whether there is room for it."""
        times, _ = self._tries.pop(key, (0, 0.0))
        while len(self._tries) >= MAX_REFUSED:
            oldest = next(iter(self._tries))
            if oldest in self.refused_here or oldest in self.refused_there:
                return False
            del self._tries[oldest]
        self._tries[key] = times + 1, self._clock() + BEFORE_TRYING_AGAIN.wait(times + 1)
        refused.add(key)
        return True

    def settle(self, sessions: Iterable[_Sent], lacking: set[bytes]) -> None:
        """Decide what the peer has refused of the values of some sessions."""
        for sent in sessions:
            if sent in self._unsettled:
                self._unsettled.remove(sent)
                for key in sent.refused(lacking):
                    self.refuse(key, self.refused_there)

    def add_sent(self, sent: _Sent) -> None:
        """Remember what a session has sent; the oldest sessions make room."""
        self._unsettled.append(sent)
        while sum(len(earlier.order) for earlier in self._unsettled) > MAX_SENT:
            del self._unsettled[0]


class Exchange:
    """The values of one session. `keys` is the peer's set as far as we know."""

    def __init__(self, differences: Differences, held: KeyView, earlier: tuple[_Sent, ...]) -> None:
        self._differences = differences
        self._earlier = earlier
        self._sent = _Sent()
        self._lacking: set[bytes] = set()
        self._held = held
        self.keys = PeerKeys(held, differences.refused_here, differences.refused_there)
        self.unremembered = 0
        """Refused events for which there was no room, so that they come again."""

    @property
    def left_out(self) -> int:
        """Keys of the peer whose events we refuse."""
        return len(self._differences.refused_here)

    @property
    def left_out_by_peer(self) -> int:
        """Keys of ours whose events the peer refuses."""
        return len(self._differences.refused_there)

    def to_send(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return which of the keys that the peer lacks are to be sent."""
        chosen = []
        for key in keys:
            if self._differences.refused_here.discard(key):  # it has them no more
                continue
            if any(key in sent.order for sent in self._earlier):
                self._lacking.add(key)
            else:
                chosen.append(key)
        return chosen

    def note_sent(self, key: bytes) -> None:
        """Note that a value goes out."""
        self._sent.note(key)

    def leave_out(self, key: bytes) -> None:
        """Do not send the value of a key: the peer could not take it."""
        self._differences.refuse(key, self._differences.refused_there)

    def note_received(self, key: bytes) -> None:
        """Note what the peer holds, once its event is admitted or refused."""
        self._differences.refused_there.discard(key)
        if key not in self._held:
            self.unremembered += not self._differences.refuse(key, self._differences.refused_here)

    def end(self, ending: Ending) -> None:
        """End the session."""
        if ending is Ending.WELL:
            self._differences.settle(self._earlier, self._lacking)
        if ending is not Ending.BROKEN_OFF and self._sent.order:
            self._sent.ending = ending
            self._differences.add_sent(self._sent)
