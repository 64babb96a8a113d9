"""The provider records that this node keeps for others: bounded, expiring, shared by address.

Anybody can announce any number of peer ids for any number of keys, so records are limited in
number, for each key and in total. When there is no room, the address with the most records makes
room, with its oldest. So a flood from one address replaces only its own records, and of n
addresses one with less than an n-th of the room never loses any.

This module does no I/O: callers have the clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from recon_node.places import network_of

LIFETIME: Final = 3600.0
"""Seconds for which a record is kept unless its provider announces itself again."""
MAX_PROVIDERS: Final = 200
"""Maximum providers of a key."""
MAX_RECORDS: Final = 8192
"""Maximum records of all keys."""
MAX_ADDRESSES: Final = 8
"""Maximum addresses of a provider."""

Place = tuple[bytes, str]
"""A key and a provider's peer id: what a record is kept under."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A peer that has announced itself for a key."""

    peer_id: str
    addresses: tuple[bytes, ...]
    """Binary multiaddrs, with or without /p2p/<peer id>."""


@dataclass(frozen=True, slots=True)
class _Record:
    provider: Provider
    group: str
    expires_at: float


class ProviderRecords:
    """The providers of keys.

    Args:
        max_providers: maximum providers of a key.
        max_records: maximum records of all keys.
    """

    def __init__(self, max_providers: int = MAX_PROVIDERS, max_records: int = MAX_RECORDS) -> None:
        self._max_providers = max_providers
        self._max_records = max_records
        # All four have the records that were renewed longest ago first.
        self._records: dict[Place, _Record] = {}
        self._of_key: dict[bytes, dict[Place, None]] = {}
        self._of_group: dict[str, dict[Place, None]] = {}
        self._of_peer: dict[str, dict[Place, None]] = {}

    def __len__(self) -> int:
        return len(self._records)

    @property
    def keys(self) -> int:
        """The number of keys that have providers."""
        return len(self._of_key)

    def add(
        self, key: bytes, peer_id: str, addresses: Sequence[bytes], source: str, now: float
    ) -> None:
        """Add or renew a record.

        Args:
            key: what the peer provides.
            peer_id: the peer.
            addresses: where it says it can be reached; the first few are kept.
            source: the IP address from which the peer is connected.
            now: seconds; any clock that does not jump.
        """
        self.expire(now)
        self._remove((key, peer_id))
        group = network_of(source)
        of_key = self._of_key.get(key, {})
        if len(of_key) >= self._max_providers:
            self._remove(self._oldest_of_the_greediest(of_key))
        elif len(self._records) >= self._max_records:
            greediest = max(self._of_group.values(), key=len)
            self._remove(next(iter(greediest)))
        provider = Provider(peer_id, tuple(addresses[:MAX_ADDRESSES]))
        self._insert((key, peer_id), _Record(provider, group, now + LIFETIME))

    def providers(self, key: bytes, now: float) -> list[Provider]:
        """Return the providers of a key, those that announced themselves longest ago first."""
        self.expire(now)
        return [self._records[each].provider for each in self._of_key.get(key, ())]

    def each_provider(self) -> Iterable[Provider]:
        """Return each provider once, as it announced itself for one of its keys."""
        return (self._records[next(iter(places))].provider for places in self._of_peer.values())

    def forget(self, peer_id: str) -> None:
        """Remove a peer from all keys."""
        for place in list(self._of_peer.get(peer_id, ())):
            self._remove(place)

    def expire(self, now: float) -> None:
        """Remove the records that have expired."""
        while self._records:
            place, record = next(iter(self._records.items()))
            if record.expires_at > now:
                return
            self._remove(place)

    def _oldest_of_the_greediest(self, places: Iterable[Place]) -> Place:
        """Return the oldest of these records whose address has the most of them."""
        by_group: dict[str, list[Place]] = {}
        for place in places:
            by_group.setdefault(self._records[place].group, []).append(place)
        return max(by_group.values(), key=len)[0]

    def _indexes(self, place: Place, record: _Record) -> Iterable[dict[Place, None]]:
        """Return the parts of the three indexes in which a record is listed."""
        yield self._of_key.setdefault(place[0], {})
        yield self._of_group.setdefault(record.group, {})
        yield self._of_peer.setdefault(place[1], {})

    def _insert(self, place: Place, record: _Record) -> None:
        self._records[place] = record
        for index in self._indexes(place, record):
            index[place] = None

    def _remove(self, place: Place) -> None:
        record = self._records.pop(place, None)
        if record is None:
            return
        for index in self._indexes(place, record):
            del index[place]
        if not self._of_key[place[0]]:
            del self._of_key[place[0]]
        if not self._of_group[record.group]:
            del self._of_group[record.group]
        if not self._of_peer[place[1]]:
            del self._of_peer[place[1]]
