"""A limited number of places that are shared fairly by address.

Connections, sessions and event streams are limited in number. Peer ids cost nothing, so a limit for
each peer does not stop one machine from taking all the places and shutting everyone else out. So
places are shared by address: when none is left, a newcomer gets one from the address that has the
most, provided that this address then still has as many as the newcomer's. Of n addresses, one with
less than an n-th of the places never gives way. If all come from one address, the first ones stay.

This module does no I/O: the caller that takes a place says how to give it up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recon_node.p2p.transport.budget import group_of

GiveWay = Callable[[], None]


class Places:
    """Places that are shared fairly by the addresses that want them.

    Args:
        limit: the number of places.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._by_address: dict[str, dict[object, GiveWay]] = {}

    @contextmanager
    def taken_by(self, address: str, give_way: GiveWay) -> Iterator[bool]:
        """Take a place while the block runs; yield False if there is none for this address.

        Args:
            address: an IP address.
            give_way: called at most once, when a newcomer gets the place: the block must then end
                soon. It must neither wait nor raise.
        """
        group = group_of(address)
        if self._taken >= self._limit and not self._make_room(group):
            yield False
            return
        place = object()
        self._taken += 1
        self._by_address.setdefault(group, {})[place] = give_way
        try:
            yield True
        finally:
            self._leave(group, place)

    def _make_room(self, newcomer: str) -> bool:
        """Take a place from the address with the most, if that is fair; return whether it was."""
        greediest = max(self._by_address, key=lambda each: len(self._by_address[each]), default="")
        theirs = self._by_address.get(greediest, {})
        if len(theirs) <= len(self._by_address.get(newcomer, {})) + 1:
            return False
        latest = next(reversed(theirs))
        give_way = theirs[latest]
        self._leave(greediest, latest)
        give_way()
        return True

    def _leave(self, group: str, place: object) -> None:
        places = self._by_address.get(group, {})
        if places.pop(place, None) is not None:  # else it has given way already
            self._taken -= 1
            if not places:
                del self._by_address[group]
