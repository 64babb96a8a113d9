"""The peer ring: who can be reached where, as signed entries that nodes reconcile.

Entries are kept until they expire. A node publishes a new one at half its lifetime, and whenever
its addresses change; its older entries stay in the ring until they expire, as they do at other
nodes, because sets that differ would be sent again at every sync.

Anyone can make up nodes and sign for them. So the ring is bounded: for each node, and in all. What
is beyond a bound is refused without ending the session, since an honest peer may hold more than we
do. When the ring is full, a new entry replaces a random one of a node that we have never been
connected to, so that made-up entries cannot keep real ones out for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from nacl.signing import SigningKey

from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.ring.peer_entry import (
    MAX_EXPIRY,
    PeerEntry,
    PeerEntryError,
    expiry_bound,
    is_bound,
    parse_entry,
    sign_entry,
    unexpired,
)
from recon_node.recon.ring.ring import Ring

LIFETIME: Final = 24 * 60 * 60
"""Seconds for which a node's own entry is valid; ceramic-one's."""
MAX_LIFETIME: Final = 7 * LIFETIME
"""Seconds until an entry's expiry at most; one that is to stay longer is refused."""
MAX_ENTRIES: Final = 10_000
"""Entries in the ring at most."""
MAX_ENTRIES_OF_A_NODE: Final = 32
"""Entries of one node at most."""


_TRIES: Final = 32
"""Random entries that are looked at for one that may be replaced."""


class EntryVerdict(Enum):
    """What became of an entry."""

    ADDED = auto()
    KNOWN = auto()
    EXPIRED = auto()
    """It has expired, or would stay too long."""
    NO_ROOM = auto()
    """The node has too many entries, or the ring is full of nodes that we know."""
    INVALID = auto()
    """Malformed, or not signed by the node that it is about."""


class PeerRing:
    """The entries of all nodes that have not expired.

    Args:
        key: this node's identity.
        pick: returns a random number from 0 to below its argument.
        was_connected: tells whether we have ever been connected to a node, by its peer ID.
        max_entries: entries in the ring at most.
        lifetime: seconds for which our own entry is valid.
    """

    def __init__(
        self,
        key: SigningKey,
        *,
        pick: Callable[[int], int],
        was_connected: Callable[[str], bool],
        max_entries: int = MAX_ENTRIES,
        lifetime: int = LIFETIME,
    ) -> None:
        self._key = key
        self._pick = pick
        self._was_connected = was_connected
        self._max_entries = max_entries
        self._lifetime = lifetime
        self._store = KeyStore()
        self._entries: dict[bytes, PeerEntry] = {}
        self._entries_of: Counter[str] = Counter()
        """How many entries each node has, by its peer ID."""
        self._own: PeerEntry | None = None
        self.ring: Final = Ring(self._store, is_bound)
        """The keys, as sessions see them."""

    def __len__(self) -> int:
        return len(self._store)

    def interest(self, now: int) -> KeyRange:
        """Return the range of the entries that have not expired at a time (Unix seconds)."""
        return unexpired(now)

    def refresh(self, now: int, addresses: Sequence[str]) -> float:
        """Drop what has expired, and publish our own entry if it is due or our addresses changed.

        Args:
            now: Unix seconds.
            addresses: multiaddrs under which others can reach this node.

        Returns:
            The seconds after which to call again.
        """
        self._drop_expired(now)
        half = self._lifetime // 2
        own = self._own
        if own is None or own.addresses != tuple(addresses) or own.expiry - now <= half:
            entry = sign_entry(self._key, now + self._lifetime, tuple(addresses))
            own = self._own = parse_entry(entry)
            self._add(entry, own)
        return max(1, own.expiry - half - now)

    def admit(self, entry: bytes, now: int) -> EntryVerdict:
        """Check an entry that a peer sent, and keep it.

        Args:
            entry: a key of the ring.
            now: Unix seconds.
        """
        if entry in self._store:
            return EntryVerdict.KNOWN
        try:
            parsed = parse_entry(entry)
        except PeerEntryError:
            return EntryVerdict.INVALID
        if not now <= parsed.expiry <= now + MAX_LIFETIME:
            return EntryVerdict.EXPIRED
        if self._entries_of[parsed.peer_id] >= MAX_ENTRIES_OF_A_NODE:
            return EntryVerdict.NO_ROOM
        if len(self._store) >= self._max_entries and not self._make_room():
            return EntryVerdict.NO_ROOM
        self._add(entry, parsed)
        return EntryVerdict.ADDED

    def entry(self, key: bytes) -> PeerEntry | None:
        """Return what an entry says; None if it is not in the ring."""
        return self._entries.get(key)

    def others(self) -> list[PeerEntry]:
        """Return the latest entry of each node but this one."""
        latest: dict[str, PeerEntry] = {}
        for key in self._store:  # by expiry
            entry = self._entries[key]
            latest[entry.peer_id] = entry
        if self._own is not None:
            latest.pop(self._own.peer_id, None)
        return list(latest.values())

    def _add(self, key: bytes, entry: PeerEntry) -> None:
        self._store.add(key)
        self._entries[key] = entry
        self._entries_of[entry.peer_id] += 1

    def _discard(self, key: bytes) -> None:
        self._store.discard(key)
        peer_id = self._entries.pop(key).peer_id
        self._entries_of[peer_id] -= 1
        if not self._entries_of[peer_id]:
            del self._entries_of[peer_id]

    def _drop_expired(self, now: int) -> None:
        expired = KeyRange(expiry_bound(0), expiry_bound(now))
        for key in list(self._store.keys(expired)):
            self._discard(key)

    def _make_room(self) -> bool:
        """Discard a random entry of a node that we have never been connected to."""
        everything = KeyRange(b"", expiry_bound(MAX_EXPIRY))
        for _ in range(_TRIES):
            key = self._store.nth(everything, self._pick(len(self._store)))
            peer_id = self._entries[key].peer_id
            if self._entries[key] != self._own and not self._was_connected(peer_id):
                self._discard(key)
                return True
        return False
