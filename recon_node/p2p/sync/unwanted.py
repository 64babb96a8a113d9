"""Which keys peers hold that the write policy of this node refuses.

They are left out from the start of the next session with the same peer, so that it need not list
them again: a session over ten thousand junk events then costs little more than one without any.

The keys of a peer are forgotten after `KEPT_FOR` seconds, and learned anew, since it may have
dropped some.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

MAX_KEYS: Final = 65_536
"""Maximum keys that are remembered, of all peers."""
KEPT_FOR: Final = 3600.0
"""Seconds for which the keys of a peer are remembered."""


class UnwantedKeys:
    """Remembers the keys of the latest sessions, the keys of each peer apart."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[float, dict[bytes, None]]] = {}
        self._count = 0

    def of(self, peer_id: str) -> list[bytes]:
        """Return the keys that a peer holds and that this node does not want."""
        until, keys = self._of.get(peer_id, (0.0, {}))
        if until <= trio.current_time():
            self._forget(peer_id)
            return []
        return list(keys)

    def note(self, peer_id: str, keys: Iterable[bytes]) -> None:
        """Remember keys that a peer has listed. The peer of the oldest ones makes room for them."""
        new = dict.fromkeys(keys)
        if not new:
            return
        until, known = self._of.pop(peer_id, (trio.current_time() + KEPT_FOR, {}))
        self._count -= len(known)
        known.update(new)
        while len(known) > MAX_KEYS:
            known.popitem()
        self._of[peer_id] = until, known
        self._count += len(known)
        while self._count > MAX_KEYS:
            self._forget(next(iter(self._of)))

    def _forget(self, peer_id: str) -> None:
        _, keys = self._of.pop(peer_id, (0.0, {}))
        self._count -= len(keys)
