"""The node's own book of peers: their addresses, interests, failures and latencies.

libp2p's peerstore forgets addresses after minutes and does not rate peers. The book is kept in
``peers.json`` in the data directory.

Times to wait use trio's clock, which does not jump. Times that are shown are seconds since 1970.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from recon_node.backoff import Backoff
from recon_node.files import draft_of, move_into_place
from recon_node.p2p.transport.addresses import is_dialable
from recon_node.recon import KeyRange, merge_ranges, subtract_ranges

log = structlog.get_logger(__name__)

PEERS_FILE: Final = "peers.json"
AFTER_FAILURE: Final = Backoff(first=1.0, longest=600.0)
"""For how long a peer is left alone after failures in a row."""
MAX_ADDRESSES: Final = 8
"""Maximum addresses of a peer."""
INTEREST_LIFETIME: Final = 300.0
"""Seconds for which a range that a peer asked for counts as its interest."""
HOPELESS_FAILURES: Final = 20
"""Peers that failed so often in a row make room for others first, and are not saved."""
MAX_INTERESTS: Final = 1000
"""Maximum ranges that are kept of a peer's interests, the latest ones."""
MAX_KEPT: Final = 32
"""Maximum stated ranges that are kept of a peer that is no longer connected."""
MIN_OVERLAP: Final = 0.01
"""A smaller overlap counts as this when peers are chosen, since interests change."""
MIN_LATENCY: Final = 0.001
"""Seconds; shorter round trips say more about the load of both sides than about the network."""
_UNKNOWN_LATENCY: Final = 0.1
"""The seconds that are assumed before the first ping."""


@dataclass(frozen=True, slots=True)
class Stated:
    """What a peer has stated to be interested in."""

    ranges: list[KeyRange]
    """Ascending and apart."""
    until: float = math.inf
    """On trio's clock; infinite while the peer is connected and can tell us of changes."""


@dataclass(slots=True)
class Peer:
    """What the book knows of a peer."""

    id: str
    addresses: list[str] = field(default_factory=list)
    """The one that worked last comes first."""
    failures: int = 0
    """In a row; breaking a protocol counts as several."""
    not_before: float = 0.0
    """When it may be synced with again, on trio's clock."""
    latency: float | None = None
    """The round-trip time in seconds."""
    last_sync: float | None = None
    """Seconds since 1970."""
    events_served: int = 0
    """Events that it fetched and that are not yet in the report of a session."""
    event_bytes_served: int = 0
    """Their size in bytes."""
    asked_for_all_at: float = -math.inf
    """When we last asked it for everything that interests us, on trio's clock."""
    interests: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that it asked or answered for, and until when they count, on trio's clock."""
    stated: Stated | None = None
    """What it has told of its interests, which counts more than what was observed."""
    declined: list[tuple[float, KeyRange]] = field(default_factory=list)
    """Ranges that we asked for and that it did not want, and until when they count."""
    overlap: float = 1.0
    """The share of our keys that it wants too, from 0 to 1, as last computed."""

    @property
    def weight(self) -> float:
        """The relative probability of being chosen: overlap divided by latency.

        CIP-124, "Random Peer Sync Order". In addition, failures make it less likely.
        """
        latency = self.latency if self.latency is not None else _UNKNOWN_LATENCY
        overlap = max(MIN_OVERLAP, self.overlap)
        return overlap / max(MIN_LATENCY, latency) / (1 + self.failures)


class PeerBook:
    """At most ``capacity`` peers by peer id. For the trio thread only."""

    def __init__(self, capacity: int, rng: random.Random | None = None) -> None:
        self._capacity = capacity
        self._peers: dict[str, Peer] = {}
        self._random = rng or random.Random()
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

    def heard_of(self, peer_id: str, addresses: Iterable[str], *, first_hand: bool = False) -> Peer:
        """Add a peer, or addresses to it, after those that are known; return it.

        Args:
            peer_id: the peer.
            addresses: with or without /p2p/<peer id>. Those of another peer, and those that cannot
                be dialled, such as 0.0.0.0, are left out.
            first_hand: whether the peer itself gave them. They come before hearsay, and always find
                room.
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
        """Note the address at which a peer was reached; it is the first to be tried next time."""
        peer = self.heard_of(peer_id, ())
        if peer.addresses[:1] != [address]:
            others = [each for each in peer.addresses if each != address]
            peer.addresses = [address, *others][:MAX_ADDRESSES]
            self.version += 1

    def synced(
        self, peer_id: str, latency: float | None, now: float, *, delivered: bool = True
    ) -> None:
        """Note a sync that ended in agreement.

        Args:
            peer_id: the peer.
            latency: its round-trip time in seconds; None: not measured.
            now: seconds since 1970.
            delivered: whether the peer delivered all events that it listed. If not, the sync counts
                as a failure: it can happen to anyone, but a peer that always does it is asked less
                and less.
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

        Args:
            peer_id: the peer.
            severity: as how many failures it counts: 1 if it can happen to anyone.
            at_least: the least seconds to leave the peer alone.
        """
        peer = self.heard_of(peer_id, ())
        peer.failures += severity
        wait = max(at_least, AFTER_FAILURE.wait(peer.failures, self._random.random()))
        peer.not_before = trio.current_time() + wait
        self.version += 1
        return wait

    def served(self, peer_id: str, *, events: int = 0, size: int = 0) -> None:
        """Count events that a peer fetched, or their bytes."""
        peer = self.heard_of(peer_id, ())
        peer.events_served += events
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
        """Note all interests of a peer, as it tells them.

        Args:
            peer_id: the peer.
            ranges: ascending and apart. They count until ``no_longer_states``.
        """
        peer = self.heard_of(peer_id, ())
        peer.stated = Stated(ranges)
        peer.interests, peer.declined = [], []

    def no_longer_states(self, peer_id: str) -> None:
        """Note that a peer can no longer tell us when its interests change.

        They count for a while longer, unless they take much memory: anybody may connect, state
        many, and leave.
        """
        peer = self._peers.get(peer_id)
        if peer is not None and peer.stated is not None:
            ranges, until = peer.stated.ranges, trio.current_time() + INTEREST_LIFETIME
            peer.stated = Stated(ranges, until) if len(ranges) <= MAX_KEPT else None

    def has_stated(self, peer_id: str) -> bool:
        """Return whether a peer has told its interests, and they count."""
        peer = self._peers.get(peer_id)
        if peer is None or peer.stated is None:
            return False
        return trio.current_time() < peer.stated.until

    def asked_for(self, peer_id: str, key_range: KeyRange) -> None:
        """Note a range with which a peer started a session: one of its interests."""
        peer = self.heard_of(peer_id, ())
        if self.has_stated(peer_id):
            return
        now = trio.current_time()
        peer.interests = _with_range(peer.interests, key_range, now)
        peer.declined = [
            (until, each) for until, each in peer.declined if each.intersect(key_range) is None
        ]

    def answered(self, peer_id: str, asked: KeyRange, answered: KeyRange | None) -> None:
        """Note a peer's answer to a range that we asked for.

        Args:
            peer_id: the peer.
            asked: the range.
            answered: the part that the peer answered for; None: it wants nothing of the range. What
                is above that part remains unknown.
        """
        peer = self.heard_of(peer_id, ())
        if self.has_stated(peer_id):
            return
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
        """Draw peers that may be synced with now, at random by their weight.

        Args:
            count: how many peers, at most.
            among: the peers to draw from; by default all that have an address.

        Returns:
            Peers in the order in which they were drawn.
        """
        now = trio.current_time()
        if among is None:
            among = [each for each in self._peers.values() if each.addresses]
        able = [each for each in among if each.not_before <= now]
        # Weighted sampling without replacement (Efraimidis, Spirakis), by the logarithms of their
        # keys: u^(1/weight) itself is 0 for small weights and 1 for large ones.
        return heapq.nsmallest(count, able, key=lambda each: self._random.expovariate(each.weight))

    def to_json(self) -> list[dict[str, Any]]:
        """Return what should outlive a restart."""
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
        """Add the peers that ``to_json`` returned.

        Raises:
            ValueError, TypeError, LookupError: ``rows`` is something else.
        """
        for row in rows:
            peer = self.heard_of(str(row["id"]), [str(each) for each in row["addresses"]])
            if not peer.addresses:  # earlier versions also kept addresses that cannot be dialled
                self.forget(peer.id)
                continue
            peer.latency = None if row["latency"] is None else float(row["latency"])
            peer.last_sync = None if row["last_sync"] is None else float(row["last_sync"])

    def forget(self, peer_id: str) -> None:
        """Remove a peer with which this node cannot sync."""
        if self._peers.pop(peer_id, None) is not None:
            self.version += 1

    def _make_room(self) -> None:
        """Remove the least useful peers while the book is full."""
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
    """Add or renew a range; ranges that no longer count are left out."""
    others = [(until, each) for until, each in ranges if until > now and each != key_range]
    return [*others, (now + INTEREST_LIFETIME, key_range)][-MAX_INTERESTS:]


def _live(ranges: Iterable[tuple[float, KeyRange]]) -> list[KeyRange]:
    now = trio.current_time()
    return merge_ranges(each for until, each in ranges if until > now)


def _uselessness(peer: Peer) -> tuple[bool, int, float]:
    """Rank peers that may not exist first: anybody can make us hear of any number of them."""
    has_been_here = peer.last_sync is not None or peer.stated is not None
    unproven = not has_been_here or peer.failures >= HOPELESS_FAILURES
    return unproven, peer.failures, -(peer.last_sync or 0.0)


async def load_peers(book: PeerBook, data_dir: Path) -> None:
    """Load the book from its file, if there is one. A file that cannot be used is renamed."""
    path = data_dir / PEERS_FILE
    try:
        text = await trio.to_thread.run_sync(path.read_text)
        book.load(json.loads(text)["peers"])
    except FileNotFoundError:
        return
    except (OSError, ValueError, TypeError, LookupError) as error:
        aside = path.with_suffix(".broken")
        log.warning("Cannot read the peer book; starting without it", path=str(path),
                    error=str(error), kept_as=str(aside))  # fmt: skip
        if not isinstance(error, OSError):
            await trio.to_thread.run_sync(os.replace, path, aside)


async def save_peers(book: PeerBook, data_dir: Path) -> None:
    """Save the book. If the disk fails, this is logged and the node continues."""
    content = json.dumps({"peers": book.to_json()}, indent=1)
    path = data_dir / PEERS_FILE
    try:
        await trio.to_thread.run_sync(_write, path, content)
    except OSError as error:
        log.warning("Cannot write the peer book", path=str(path), error=str(error))


def _write(path: Path, content: str) -> None:
    # At the end of the node, an earlier save may still be under way in its thread.
    with draft_of(path, wait=True) as draft:
        draft.write_text(content)
        move_into_place(draft, path)
