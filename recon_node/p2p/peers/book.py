"""The node's own book of peers: their addresses, and how they did.

libp2p's peerstore forgets addresses after minutes, and knows nothing of who is worth talking to.
``peer_file`` keeps the book over restarts.

Times to wait are measured on trio's clock, which does not jump; times shown are seconds since 1970.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from recon_node.p2p.transport.addresses import is_dialable
from recon_node.recon import KeyRange, merge_ranges, subtract_ranges

FIRST_BACKOFF: Final = 1.0
MAX_BACKOFF: Final = 600.0
MAX_ADDRESSES: Final = 8
INTEREST_LIFETIME: Final = 300.0
"""For how long a range that a peer asked for counts as its interest."""
HOPELESS_FAILURES: Final = 20
"""A peer that failed so often in a row makes room for others first."""
MAX_INTERESTS: Final = 1000
"""Ranges kept of a peer's interests at most, the latest ones."""
MIN_OVERLAP: Final = 0.01
"""A peer with which less is in common, or nothing, is chosen as if this were: interests change."""
MIN_LATENCY: Final = 0.001
"""Below that, in seconds, a ping says more of the load of both sides than of the way."""
_UNKNOWN_LATENCY: Final = 0.1


@dataclass(slots=True)
class Peer:
    """What the book knows of a peer."""

    id: str
    addresses: list[str] = field(default_factory=list)
    """The one that worked last comes first."""
    failures: int = 0
    """In a row; breaking a protocol counts as several."""
    not_before: float = 0.0
    """On trio's clock: no sync earlier than that."""
    latency: float | None = None
    """Seconds that a ping takes there and back."""
    last_sync: float | None = None
    """Seconds since 1970."""
    events_served: int = 0
    """Events that it fetched and no report of a session has told of yet."""
    event_bytes_served: int = 0
    """The bytes of those."""
    asked_for_all_at: float = -math.inf
    """On trio's clock: when we last asked it for all that interests us."""
    interests: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that it asked for or answered for, and until when, on trio's clock, that counts."""
    declined: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that we asked for and it did not want, and until when that counts."""
    overlap: float = 1.0
    """The share of our keys that it wants, too, from 0 to 1, when it was last weighed."""

    @property
    def weight(self) -> float:
        """How likely it is chosen: proportional to the overlap, inversely to the latency.

        CIP-124, "Random Peer Sync Order". Beyond it, a peer that fails is chosen less often.
        """
        latency = self.latency if self.latency is not None else _UNKNOWN_LATENCY
        overlap = max(MIN_OVERLAP, self.overlap)
        return overlap / max(MIN_LATENCY, latency) / (1 + self.failures)


class PeerBook:
    """Peers by peer id, at most ``capacity`` of them. Used by the trio thread only."""

    def __init__(self, capacity: int, rng: random.Random | None = None) -> None:
        self._capacity = capacity
        self._peers: dict[str, Peer] = {}
        self._random = rng or random.Random()
        self.version = 0
        """Grows with every change that is worth saving."""

    def __len__(self) -> int:
        return len(self._peers)

    def peers(self) -> list[Peer]:
        """Return all peers, in no order that means anything."""
        return list(self._peers.values())

    def get(self, peer_id: str) -> Peer | None:
        """Return what is known of a peer, or None."""
        return self._peers.get(peer_id)

    def heard_of(self, peer_id: str, addresses: Iterable[str], *, first_hand: bool = False) -> Peer:
        """Note a peer and addresses for it, with or without /p2p/; those known stay in front.
        Addresses that cannot be dialled, such as 0.0.0.0, or are another peer's, are left out.

        What the peer itself says (``first_hand``) always finds room, and comes before hearsay.
        """
        peer = self._peers.get(peer_id)
        if peer is None:
            self._make_room()
            peer = self._peers[peer_id] = Peer(peer_id)
            self.version += 1
        named = dict.fromkeys(_with_peer_id(each, peer_id) for each in addresses)
        fresh = [each for each in named if each not in peer.addresses and _is_usable(each, peer_id)]
        if fresh:
            kept = 1 if first_hand else MAX_ADDRESSES
            known = peer.addresses
            peer.addresses = [*known[:kept], *fresh, *known[kept:]][:MAX_ADDRESSES]
            self.version += 1
        return peer

    def reached_at(self, peer_id: str, address: str) -> None:
        """Note the address by which a peer was reached: the first to try next time."""
        peer = self.heard_of(peer_id, ())
        if peer.addresses[:1] != [address]:
            others = [each for each in peer.addresses if each != address]
            peer.addresses = [address, *others][:MAX_ADDRESSES]
            self.version += 1

    def synced(
        self, peer_id: str, latency: float | None, now: float, *, delivered: bool = True
    ) -> None:
        """Note a sync that ended in agreement; ``now`` is in seconds since 1970.

        It still counts as a failure where the peer did not deliver all that it listed: that can
        happen to anyone, but who always does it is asked less and less.
        """
        peer = self.heard_of(peer_id, ())
        peer.latency = peer.latency if latency is None else latency
        peer.last_sync = now
        self.version += 1
        if delivered:
            peer.failures = 0
            peer.not_before = 0.0
        else:
            self.failed(peer_id)

    def failed(self, peer_id: str, *, severity: int = 1, at_least: float = 0.0) -> float:
        """Note a failure; return for how many seconds the peer is left alone.

        ``severity`` is 1 for what can happen to anyone, more for a peer that broke a protocol;
        ``at_least`` is how long the peer is left alone anyway, in seconds.
        """
        peer = self.heard_of(peer_id, ())
        peer.failures += severity
        wait = min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** (min(peer.failures, 20) - 1))
        wait *= self._random.uniform(0.75, 1.25)  # not all that lost a peer come back at once
        wait = max(wait, at_least)
        peer.not_before = trio.current_time() + wait
        self.version += 1
        return wait

    def served(self, peer_id: str, *, events: int = 0, size: int = 0) -> None:
        """Note events that a peer fetched, or bytes of such."""
        peer = self.heard_of(peer_id, ())
        peer.events_served += events
        peer.event_bytes_served += size

    def take_served(self, peer_id: str) -> tuple[int, int]:
        """Return how many events a peer fetched since this was last asked, and their bytes."""
        peer = self._peers.get(peer_id)
        if peer is None:
            return 0, 0
        served = peer.events_served, peer.event_bytes_served
        peer.events_served = peer.event_bytes_served = 0
        return served

    def asked_for(self, peer_id: str, key_range: KeyRange) -> None:
        """Note a range that a peer started a session with: it is an interest of its own."""
        peer = self.heard_of(peer_id, ())
        now = trio.current_time()
        peer.interests = _with_range(peer.interests, key_range, now)
        peer.declined = [
            (until, each) for until, each in peer.declined if each.intersect(key_range) is None
        ]

    def answered(self, peer_id: str, asked: KeyRange, answered: KeyRange | None) -> None:
        """Note what a peer made of a range that we asked for: the part that it answered for, or
        None when it wants nothing of it. What lies above the part is not known by that.
        """
        peer = self.heard_of(peer_id, ())
        now = trio.current_time()
        if answered is not None:
            peer.interests = _with_range(peer.interests, answered, now)
        declined = asked if answered is None else KeyRange(asked.lower, answered.lower)
        if not declined.is_empty:
            peer.declined = _with_range(peer.declined, declined, now)
            peer.interests = [  # it may have wanted more before
                (until, part)
                for until, each in peer.interests
                for part in subtract_ranges([each], [declined])
            ]

    def interests(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that a peer asked or answered for lately; none: they are not known."""
        peer = self._peers.get(peer_id)
        return _live(peer.interests) if peer else []

    def declined(self, peer_id: str) -> list[KeyRange]:
        """Return the ranges that we asked a peer for lately, and that it did not want."""
        peer = self._peers.get(peer_id)
        return _live(peer.declined) if peer else []

    def choose(self, count: int, among: Sequence[Peer] | None = None) -> list[Peer]:
        """Choose up to ``count`` peers that may be synced with now, at random by their weight.

        Without ``among``, those are the peers with an address. They come in the order in which
        they were drawn.
        """
        now = trio.current_time()
        if among is None:
            among = [each for each in self._peers.values() if each.addresses]
        able = [each for each in among if each.not_before <= now]
        # Weighted sampling without replacement (Efraimidis, Spirakis), by the logarithms of their
        # keys: u^(1/weight) itself is 0 for small weights and 1 for large ones.
        return heapq.nsmallest(count, able, key=lambda each: self._random.expovariate(each.weight))

    def to_json(self) -> list[dict[str, Any]]:
        """Return what is worth keeping over a restart."""
        return [
            {
                "id": each.id,
                "addresses": each.addresses,
                "latency": each.latency,
                "last_sync": each.last_sync,
            }
            for each in self._peers.values()
            if each.addresses and each.failures < HOPELESS_FAILURES
        ]

    def load(self, rows: Any) -> None:
        """Take over what ``to_json`` gave.

        Raises ValueError, TypeError or LookupError when it is something else.
        """
        for row in rows:
            peer = self.heard_of(str(row["id"]), [str(each) for each in row["addresses"]])
            if not peer.addresses:  # earlier versions kept some that cannot be dialled
                self.forget(peer.id)
                continue
            peer.latency = None if row["latency"] is None else float(row["latency"])
            peer.last_sync = None if row["last_sync"] is None else float(row["last_sync"])

    def forget(self, peer_id: str) -> None:
        """Forget a peer that this node has nothing to do with."""
        if self._peers.pop(peer_id, None) is not None:
            self.version += 1

    def _make_room(self) -> None:
        """Forget the least useful peers where the book is full."""
        while len(self._peers) >= self._capacity:
            del self._peers[max(self._peers.values(), key=_uselessness).id]


def _with_peer_id(address: str, peer_id: str) -> str:
    return address if "/p2p/" in address else f"{address}/p2p/{peer_id}"


def _is_usable(address: str, peer_id: str) -> bool:
    place, end, rest = address.partition(f"/p2p/{peer_id}")
    return bool(end) and not rest and is_dialable(place)


def _with_range(
    ranges: Iterable[tuple[float, KeyRange]], key_range: KeyRange, now: float
) -> list[tuple[float, KeyRange]]:
    """Add a range, or renew it; those that do not count any more are left out."""
    others = [(until, each) for until, each in ranges if until > now and each != key_range]
    return [*others, (now + INTEREST_LIFETIME, key_range)][-MAX_INTERESTS:]


def _live(ranges: Iterable[tuple[float, KeyRange]]) -> list[KeyRange]:
    now = trio.current_time()
    return merge_ranges(each for until, each in ranges if until > now)


def _uselessness(peer: Peer) -> tuple[bool, int, float]:
    """Peers that never proved to exist come first: anybody can make us hear of any number."""
    unproven = peer.last_sync is None or peer.failures >= HOPELESS_FAILURES
    return unproven, peer.failures, -(peer.last_sync or 0.0)
