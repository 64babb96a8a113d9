"""Whose statement runs next: turns for the statements of all clients.

Statements wait for a place in the order in which they come, by network: a client with many that
wait does not stand before the others. The places follow the policy of `recon_node.places`: a client
of another network gets its share at once, at the cost of the one that has the most. Within a
network, the first half of the places is for statements of any length. The rest is a *quick lane*: a
statement there gives way after `QUICK` seconds if another one waits. So whoever fills all places
with long statements, on purpose or not, does not keep short ones out, not even its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final
from urllib.parse import unquote

from recon_node.places import Place, Places, network_of

QUICK: Final = 1.0
"""Seconds that a statement has in the quick lane, at least."""
MAX_WAITING: Final = 16
"""Maximum statements of a network that wait."""
_POLL: Final = 0.25
"""Seconds between two looks for a place that has had its time."""
_LANE_SHARE: Final = 2


class StatementTurns:
    """Turns for statements. Its methods may be called by any thread.

    Args:
        limit: the statements that run at once.
        quick_lane: whether to have one. A single place is never one.
    """

    def __init__(self, limit: int, *, quick_lane: bool = False) -> None:
        self._places = Places(limit, monotonic, grace=QUICK)
        lane = max(1, limit // _LANE_SHARE) if quick_lane and limit > 1 else 0
        self._lasting = limit - lane
        """How many of them may take as long as they need."""
        self._running: list[Place] = []
        self._waiting: list[_Waiter] = []
        self._changed = threading.Condition()

    @contextmanager
    def taken_by(self, client: str, give_way: Callable[[], None], wait: float) -> Iterator[bool]:
        """Take a turn for the block; yield False if there is none within ``wait`` seconds.

        Args:
            client: its address, as gRPC writes it.
            give_way: as in `Places.take`; any thread may call it.
            wait: how long to wait.
        """
        place = self._take(address_of(client), give_way, wait)
        try:
            yield place is not None
        finally:
            if place is not None:
                with self._changed:
                    place.leave()
                    self._settle()

    def _take(self, address: str, give_way: Callable[[], None], wait: float) -> Place | None:
        waiter, deadline = _Waiter(network_of(address)), monotonic() + wait
        with self._changed:
            if len(self._waiting_of(waiter)) >= MAX_WAITING:
                return None
            self._waiting.append(waiter)
            place, left = None, wait
            try:
                while place is None and left >= 0:
                    if self._waiting_of(waiter)[0] is waiter:
                        place = self._places.take(address, give_way)
                    if place is None:
                        self._changed.wait(min(left, _POLL))
                        left = deadline - monotonic()
            finally:
                self._waiting.remove(waiter)
                if place is not None:
                    self._running.append(place)
                self._settle()
            return place

    def _waiting_of(self, waiter: _Waiter) -> list[_Waiter]:
        return [each for each in self._waiting if each.network == waiter.network]

    def _settle(self) -> None:
        """Let those that came first take as long as they need, and whoever waits look again."""
        self._running = [each for each in self._running if not each.lost]
        for place in self._running[: self._lasting]:
            place.is_busy = True
        for place in self._running[self._lasting :]:
            place.is_busy = False
        self._changed.notify_all()


class _Waiter:
    """A statement that waits for its turn."""

    def __init__(self, network: str) -> None:
        self.network = network


def address_of(peer: str) -> str:
    """Return the IP address in what gRPC calls a client, such as `ipv6:%5B::1%5D:50000`."""
    kind, _, rest = unquote(peer).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return rest.rpartition(":")[0].strip("[]")
