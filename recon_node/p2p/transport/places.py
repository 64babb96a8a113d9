"""Who gives way when all places are taken: the address that has the most of them.

Connections, sessions and event streams are limited in number. Peer ids cost nothing, so a limit for
each peer does not keep one machine from taking all the places, and everybody else out. So places
are shared by address: when none is left, a newcomer gets one of the address that has the most, as
long as that still has no fewer than the newcomer's. Of n addresses, one that has less than an n-th
of the places never gives way. Where all come from one address, the first to come stay.

This module does no I/O: whoever takes a place says how it is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recon_node.p2p.transport.budget import group_of

GiveWay = Callable[[], None]


class Places:
    """A number of places, shared fairly by the addresses that want them.

    Args:
        limit: how many there are.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._by_address: dict[str, dict[object, GiveWay]] = {}

    @contextmanager
    def taken_by(self, address: str, give_way: GiveWay) -> Iterator[bool]:
        """Take a place while the block runs; yields False where there is none for this address.

        ``address`` is an IP address. ``give_way`` is called, once at most, when a newcomer needs
        the place: the block must then end soon. It must neither wait nor raise.
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
        """Take a place from the address that has the most, if that is fair; tell whether it was."""
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
        if places.pop(place, None) is not None:  # else it has given way before
            self._taken -= 1
            if not places:
                del self._by_address[group]
