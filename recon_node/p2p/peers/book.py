"""The node's own book of peers: their addresses, interests, failures and latencies.

libp2p's peerstore forgets addresses after minutes and does not rate peers. The book is kept in a
file (`network_side`); `draw` has the order in which peers are chosen from it.

Times to wait use trio's clock, which does not jump. Times that are shown are seconds since 1970.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from recon_node.base.latest import Latest
from recon_node.fairness.pacing import Backoff
from recon_node.fairness.slots import LATELY
from recon_node.p2p.peers.draw import PeerCandidate, draw_by_block, weights
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.recon import KeyRange, merge_ranges, subtract_ranges

FAILURE_HALF_LIFE: Final = 4 * 3600.0
"""Seconds in which failures in a row lose half their weight: longer than the waits between tries,
so that a peer that is gone for good still becomes hopeless."""
MISLED_HALF_LIFE: Final = 3600.0
"""Seconds in which it loses half its weight that a peer misled us; successes do not clear it."""
BEHIND_HALF_LIFE: Final = 600.0
"""Seconds in which it loses half its weight that a peer was behind."""
AFTER_FAILURE: Final = Backoff(first=1.0, longest=600.0)
"""For how long a peer is left alone after failures in a row."""
MAX_ADDRESSES: Final = 8
"""Maximum addresses of a peer."""
INTEREST_LIFETIME: Final = 300.0
"""Seconds for which a range that a peer asked for counts as its interest."""
HOPELESS_FAILURES: Final = 20
"""Peers that failed so often in a row make room for others first, and are not saved."""
MAX_INTERESTS: Final = 1000
"""Maximum ranges that are kept of a peer's stated interests."""
MAX_OBSERVED: Final = 128
"""Maximum ranges that are kept of what a peer asked for, and of what it declined: the latest."""
MAX_OBSERVING: Final = 128
"""Maximum peers of which such ranges are kept, the latest: a range takes about 230 bytes."""
MAX_KEPT: Final = 32
"""Maximum stated ranges that are kept of a peer that is no longer connected."""


@dataclass(frozen=True, slots=True)
class Fading:
    """A number that halves with time.

    It was `value` at the time `at`. Times are in seconds on any clock.
    """

    half_life: float
    value: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        """Return what is left of it."""
        return self.value * math.exp2(-max(0.0, now - self.at) / self.half_life)

    def plus(self, more: float, now: float) -> Fading:
        """Return what is left of it, increased."""
        return Fading(self.half_life, self.now(now) + more, now)

    def set(self, value: float, now: float) -> Fading:
        """Return it with another value."""
        return Fading(self.half_life, value, now)


_NO_FAILURES: Final = Fading(FAILURE_HALF_LIFE)
_NEVER_MISLED: Final = Fading(MISLED_HALF_LIFE)
_NOT_BEHIND: Final = Fading(BEHIND_HALF_LIFE)


@dataclass(frozen=True, slots=True)
class Stated:
    """What a peer has stated to be interested in."""

    ranges: list[KeyRange]
    """Ascending and apart."""
    until: float = math.inf
    """On trio's clock; infinite while the peer is connected and can announce changes."""


@dataclass(slots=True)
class Peer:
    """What the book knows of a peer."""

    id: str
    addresses: list[str] = field(default_factory=list)
    """The one that worked last comes first."""
    moved: float = -math.inf
    """When it last brought events that were new here, or fetched some, on trio's clock."""
    address_block: str = ""
    """That of the address from which it is connected, or was last; empty if it never was."""
    failed: Fading = _NO_FAILURES
    """Failures in a row; breaking a protocol counts as several."""
    misled: Fading = _NEVER_MISLED
    """How often it broke a protocol, or listed events without supplying them."""
    behind: Fading = _NOT_BEHIND
    """Which share of the common keys it or we lacked, from 0 to 1."""
    not_before: float = 0.0
    """When it may be synced with again, on trio's clock."""
    latency: float | None = None
    """The round-trip time in seconds."""
    last_sync: float | None = None
    """When a sync that this node began ended in agreement, in seconds since 1970."""
    last_visit: float | None = None
    """When one that the peer began did."""
    events_served: int = 0
    """Events that it fetched and that are not yet in the report of a session."""
    event_bytes_served: int = 0
    """Their size in bytes."""
    asked_for_all_at: float = -math.inf
    """When we last asked it for everything that interests us, on trio's clock."""
    interests: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that it asked or answered for, and until when they count, on trio's clock."""
    stated: Stated | None = None
    """What it has stated of its interests, which counts more than what was observed."""
    declined: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that we asked for and that it did not want, and until when they count."""
    overlap: float = 1.0
    """The share of our keys that it wants too, from 0 to 1, as last computed."""

    @property
    def failures(self) -> int:
        """Failures in a row, as far as they have not faded."""
        return round(self.failed.now(trio.current_time()))

    def candidate(self, now: float) -> PeerCandidate:
        """Return what counts when a peer is drawn."""
        failures = max(self.failed.now(now), self.misled.now(now))
        return PeerCandidate(self.overlap, self.latency, self.behind.now(now), failures)


class PeerBook:
    """At most `capacity` peers by peer id. For the trio thread only."""

    def __init__(self, capacity: int, rng: random.Random | None = None) -> None:
        self._capacity = capacity
        self._peers: dict[str, Peer] = {}
        self._random = rng or random.Random()
        self._observed: Latest[str, Peer] = Latest(MAX_OBSERVING)
        self.removed: set[str] = set()
        """Peers that the operator has removed: they are refused, and never in the book."""
        self.version = 0
        """Increases with every change that should be saved."""

    def __len__(self) -> int:
        return len(self._peers)

    def peers(self) -> list[Peer]:
        """Return all peers, in no particular order."""
        return list(self._peers.values())

    def get(self, peer_id: str) -> Peer | None:
        """Return what is known of a peer, or None."""
        return self._peers.get(peer_id)

    def note_peer(
        self, peer_id: str, addresses: Iterable[str], *, first_hand: bool = False
    ) -> Peer:
        """Add a peer, or addresses to it, after those that are known; return it.

        Args:
            peer_id: the peer.
            addresses: with or without /p2p/<peer id>. Those of another peer, and those that cannot
                be dialled, such as 0.0.0.0, are left out.
            first_hand: whether the peer itself gave them. They come before hearsay, and always find
                room.
        """
        peer = self._peers.get(peer_id)
        if peer is None and peer_id in self.removed:
            return Peer(peer_id)  # which is not kept
        if peer is None:
            self._make_room()
            peer = self._peers[peer_id] = Peer(peer_id)
            self.version += 1
        named = dict.fromkeys(
            address if "/p2p/" in address else f"{address}/p2p/{peer_id}" for address in addresses
        )
        fresh = [
            address
            for address in named
            if address not in peer.addresses and _is_usable(address, peer_id)
        ]
        if fresh:
            kept = 1 if first_hand else MAX_ADDRESSES
            known = peer.addresses
            peer.addresses = [*known[:kept], *fresh, *known[kept:]][:MAX_ADDRESSES]
            self.version += 1
        return peer

    def reached_at(self, peer_id: str, address: str) -> None:
        """Note the address at which a peer was reached; it is the first to be tried next time."""
        peer = self.note_peer(peer_id, ())
        if peer.addresses[:1] != [address]:
            others = [other for other in peer.addresses if other != address]
            peer.addresses = [address, *others][:MAX_ADDRESSES]
            self.version += 1

    def synced(
        self, peer_id: str, latency: float | None, now: float, *, supplied: bool = True
    ) -> None:
        """Note a sync that ended in agreement.

        Args:
            peer_id: the peer.
            latency: its round-trip time in seconds; None: not measured.
            now: seconds since 1970.
            supplied: whether the peer supplied all events that it listed. If not, the sync counts
                as a failure: it can happen to anyone, but a peer that always does it is asked less
                and less.
        """
        peer = self.note_peer(peer_id, ())
        peer.latency = peer.latency if latency is None else latency
        peer.last_sync = now
        self.version += 1
        if supplied:
            peer.failed = peer.failed.set(0, trio.current_time())
            peer.not_before = 0.0
        else:
            self.failed(peer_id, misled=True)

    def was_visited(self, peer_id: str, now: float) -> None:
        """Note a sync that the peer began, and that ended in agreement, in seconds since 1970.

        It does not show that the peer can be reached.
        """
        self.note_peer(peer_id, ()).last_visit = now

    def differed(self, peer_id: str, keys: int, of: int) -> None:
        """Note that a peer and this node differed.

        One of them lacked `keys` keys of the `of` that this node has.
        """
        peer = self.note_peer(peer_id, ())
        now = trio.current_time()
        share = keys / max(1.0, of * peer.overlap)
        peer.behind = peer.behind.set(min(1.0, peer.behind.now(now) + share), now)

    def failed(
        self, peer_id: str, *, severity: int = 1, at_least: float = 0.0, misled: bool = False
    ) -> float:
        """Note a failure; return for how many seconds the peer is left alone.

        Args:
            peer_id: the peer.
            severity: as how many failures it counts: 1 if it can happen to anyone.
            at_least: the least seconds to leave the peer alone.
            misled: whether it listed what it did not supply; assumed of more severe failures.
        """
        peer = self.note_peer(peer_id, ())
        now = trio.current_time()
        peer.failed = peer.failed.plus(severity, now)
        if misled or severity > 1:
            peer.misled = peer.misled.plus(severity, now)
        failures = max(1, round(peer.failed.now(now)))
        wait = max(at_least, AFTER_FAILURE.wait(failures, self._random.random()))
        peer.not_before = now + wait
        self.version += 1
        return wait

    def supplied(self, peer_id: str) -> None:
        """Note that a peer has brought events that were new here."""
        peer = self._peers.get(peer_id)
        if peer is not None:
            peer.moved = trio.current_time()

    def served(self, peer_id: str, *, events: int = 0, size: int = 0) -> None:
        """Count events that a peer fetched, or their bytes."""
        peer = self.note_peer(peer_id, ())
        peer.events_served += events
        if events:
            peer.moved = trio.current_time()
        peer.event_bytes_served += size

    def take_served(self, peer_id: str) -> tuple[int, int]:
        """Return the number of events that a peer fetched since the last call, and their bytes."""
        peer = self._peers.get(peer_id)
        if peer is None:
            return 0, 0
        served = peer.events_served, peer.event_bytes_served
        peer.events_served = peer.event_bytes_served = 0
        return served

    def states(self, peer_id: str, ranges: list[KeyRange]) -> None:
        """Note all interests of a peer, as it states them.

        They are ascending and apart, and count until `no_longer_states`.
        """
        peer = self.note_peer(peer_id, ())
        peer.stated = Stated(ranges)
        peer.interests, peer.declined = [], []

    def no_longer_states(self, peer_id: str) -> None:
        """Note that a peer can no longer announce changes of its interests.

        They count for a while longer, unless they take much memory: anybody may connect, state
        many, and leave.
        """
        peer = self._peers.get(peer_id)
        if peer is not None and peer.stated is not None:
            ranges, until = peer.stated.ranges, trio.current_time() + INTEREST_LIFETIME
            peer.stated = Stated(ranges, until) if len(ranges) <= MAX_KEPT else None

    def has_stated(self, peer_id: str) -> bool:
        """Return whether a peer has stated its interests, and they count."""
        peer = self._peers.get(peer_id)
        if peer is None or peer.stated is None:
            return False
        return trio.current_time() < peer.stated.until

    def asked_for(self, peer_id: str, key_range: KeyRange) -> None:
        """Note a range with which a peer started a session: one of its interests."""
        peer = self.note_peer(peer_id, ())
        if self.has_stated(peer_id):
            return
        self._observe(peer)
        now = trio.current_time()
        peer.interests = _with_range(peer.interests, key_range, now)
        peer.declined = [
            (until, declined)
            for until, declined in peer.declined
            if declined.intersect(key_range) is None
        ]

    def answered(self, peer_id: str, asked: KeyRange, answered: KeyRange | None) -> None:
        """Note a peer's answer to a range that we asked for.

        `answered` is the part that the peer answered for; None: it wants nothing of the range. What
        is above that part remains unknown.
        """
        peer = self.note_peer(peer_id, ())
        if self.has_stated(peer_id):
            return
        self._observe(peer)
        now = trio.current_time()
        if answered is not None:
            peer.interests = _with_range(peer.interests, answered, now)
        declined = asked if answered is None else KeyRange(asked.lower, answered.lower)
        if not declined.is_empty:
            peer.declined = _with_range(peer.declined, declined, now)
            peer.interests = [  # it may have wanted more before
                (until, part)
                for until, interest in peer.interests
                for part in subtract_ranges([interest], [declined])
            ]

    def _observe(self, peer: Peer) -> None:
        """Make room for what is observed of a peer: anybody may ask for anything, and leave."""
        if peer.id not in self._observed and len(self._observed) >= MAX_OBSERVING:
            _, earlier = self._observed.popitem(last=False)
            earlier.interests, earlier.declined = [], []
        self._observed[peer.id] = peer

    def interests(self, peer_id: str) -> list[KeyRange]:
        """Return the interests that a peer has stated, or else the ranges that it recently asked or
        answered for; none if unknown."""
        peer = self._peers.get(peer_id)
        if peer is None:
            return []
        if peer.stated is not None and self.has_stated(peer_id):
            return peer.stated.ranges
        return _live(peer.interests)

    def declined(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that we recently asked a peer for and that it did not want."""
        peer = self._peers.get(peer_id)
        return _live(peer.declined) if peer else []

    def choose(self, count: int, among: Sequence[Peer] | None = None) -> list[Peer]:
        """Draw peers that may be synced with now, at random by address block and weight (`draw`).

        The first is one with which events have lately moved, if there is any.

        Args:
            count: how many peers, at most.
            among: the peers to draw from; by default all that have an address.

        Returns:
            Peers in the order in which they were drawn.
        """
        now = trio.current_time()
        if among is None:
            among = [peer for peer in self._peers.values() if peer.addresses]
        able = [peer for peer in among if peer.not_before <= now]
        shares = weights([peer.candidate(now) for peer in able])
        blocks = [peer.address_block or peer.id for peer in able]
        drawn = [able[i] for i in draw_by_block(shares, blocks, len(able), self._random)]
        earned = next((peer for peer in drawn if now < peer.moved + LATELY), None)
        if earned is not None:  # one of them comes first: addresses cost little, either
            drawn.remove(earned)
            drawn.insert(0, earned)
        return drawn[:count]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what should outlive a restart."""
        return [
            {
                "id": peer.id,
                "addresses": peer.addresses,
                "latency": peer.latency,
                "last_sync": peer.last_sync,
            }
            for peer in self._peers.values()
            if peer.addresses and peer.failures < HOPELESS_FAILURES
        ]

    def load(self, rows: Any) -> None:
        """Add the peers that `to_json` returned.

        Raises:
            ValueError, TypeError, LookupError: `rows` is something else.
        """
        for row in rows:
            peer = self.note_peer(str(row["id"]), [str(address) for address in row["addresses"]])
            if not peer.addresses:  # earlier versions also kept addresses that cannot be dialled
                self.forget(peer.id)
                continue
            peer.latency = None if row["latency"] is None else float(row["latency"])
            peer.last_sync = None if row["last_sync"] is None else float(row["last_sync"])

    def forget(self, peer_id: str) -> None:
        """Remove a peer with which this node cannot sync."""
        if self._peers.pop(peer_id, None) is not None:
            self.version += 1

    def remove(self, peer_id: str) -> None:
        """Remove a peer, whoever names it, until `take_back`."""
        self.forget(peer_id)
        self.removed.add(peer_id)
        self.version += 1

    def take_back(self, peer_id: str) -> bool:
        """No longer refuse a peer; return whether it was refused."""
        was_removed = peer_id in self.removed
        self.removed.discard(peer_id)
        self.version += was_removed
        return was_removed

    def _make_room(self) -> None:
        """Remove the least useful peers while the book is full."""
        while len(self._peers) >= self._capacity:
            del self._peers[max(self._peers.values(), key=_uselessness).id]


def _is_usable(address: str, peer_id: str) -> bool:
    dialled, end, rest = address.partition(f"/p2p/{peer_id}")
    return bool(end) and not rest and is_dialable(dialled)


def _with_range(
    ranges: Iterable[tuple[float, KeyRange]], key_range: KeyRange, now: float
) -> list[tuple[float, KeyRange]]:
    """Add or renew a range; ranges that no longer count are left out."""
    others = [(until, other) for until, other in ranges if until > now and other != key_range]
    return [*others, (now + INTEREST_LIFETIME, key_range)][-MAX_OBSERVED:]


def _live(ranges: Iterable[tuple[float, KeyRange]]) -> list[KeyRange]:
    now = trio.current_time()
    return merge_ranges(key_range for until, key_range in ranges if until > now)


def _uselessness(peer: Peer) -> tuple[bool, int, float]:
    """Rank peers that may not exist first: anybody can name any number of them."""
    has_been_here = peer.last_sync is not None or peer.stated is not None
    unproven = not has_been_here or peer.failures >= HOPELESS_FAILURES
    return unproven, peer.failures, -(peer.last_sync or 0.0)
