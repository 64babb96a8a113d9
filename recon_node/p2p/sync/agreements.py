"""Which peers lately agreed with this node on which ranges.

After a session in agreement, the peer has every key of its range that we had when it began. So
there is no need to push such a key to it, whoever of the two started the session.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import trio

from recon_node.recon import KeyRange

LIFETIME: Final = 10.0
"""Seconds for which a session is remembered."""
MAX_REMEMBERED: Final = 256
"""Maximum sessions remembered, the latest ones."""


class Agreements:
    """The latest sessions that ended in agreement on a range."""

    def __init__(self) -> None:
        self._latest: deque[tuple[float, str, KeyRange]] = deque(maxlen=MAX_REMEMBERED)

    def note(self, peer_id: str, key_range: KeyRange, began: float) -> None:
        """Note a session that has ended in agreement.

        Args:
            peer_id: the peer.
            key_range: the range of the session.
            began: when it began, on trio's clock.
        """
        horizon = trio.current_time() - LIFETIME
        while self._latest and self._latest[0][0] < horizon:
            self._latest.popleft()
        self._latest.append((began, peer_id, key_range))

    def holders(self, key: bytes, since: float) -> set[str]:
        """Return the peers that have a key which we have had since then, on trio's clock."""
        return {
            peer_id
            for began, peer_id, key_range in self._latest
            if began >= since and key_range.covers(key)
        }
