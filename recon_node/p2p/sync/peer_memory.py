"""What sessions have shown of peers, as far as later ones can use it. All of it is bounded, and
forgotten after a while.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from recon_node.base.latest import Remembered
from recon_node.recon import KeyRange
from recon_node.recon.ring.differences import Differences

AGREED_FOR: Final = 10.0
"""Seconds for which it is remembered that a peer agreed with this node."""
MAX_AGREEMENTS: Final = 256
"""Maximum peers and ranges of agreements, the latest ones."""
UNWANTED_FOR: Final = 3600.0
"""Seconds for which keys are remembered that a peer holds and this node refuses. The peer may have
dropped some then."""
MAX_UNWANTED_REMEMBERED: Final = 65_536
"""Maximum such keys, of all peers."""
MAX_STRANGERS: Final = 1000
"""Maximum peers of other networks."""
MAX_DIFFERENCES: Final = 50_000
"""Maximum events that either side refuses on the model ring, of all peers: about 15 MB. The peer
whose last session was the longest ago makes room."""


@dataclass(slots=True)
class RingPeer:
    """A peer on the model ring."""

    agent: tuple[str, str]
    """Its program, with the version."""
    interests: Sequence[KeyRange]
    """What this node was interested in."""
    differences: Differences = field(default_factory=lambda: Differences(time.monotonic))


class PeerMemory:
    """What is remembered of peers."""

    def __init__(self, max_peers: int = 1000) -> None:
        least = MAX_DIFFERENCES // max_peers
        clock = trio.current_time
        self._agreements = Remembered[tuple[str, KeyRange], float](
            MAX_AGREEMENTS, lifetime=AGREED_FOR, clock=clock
        )
        self._unwanted = Remembered[str, dict[bytes, None]](
            MAX_UNWANTED_REMEMBERED, lifetime=UNWANTED_FOR, clock=clock, weigh=len
        )
        self._strangers = Remembered[str, None](MAX_STRANGERS)
        self._ring_peers = Remembered[str, RingPeer](
            MAX_DIFFERENCES, weigh=lambda peer: least + len(peer.differences)
        )

    def note_agreement(self, peer_id: str, key_range: KeyRange, began: float) -> None:
        """Note a session that has ended in agreement.

        The peer has every key of the range that we had when it began. So there is no need to push
        such a key to it, no matter which of the two started the session. `began` is when it began,
        on trio's clock.
        """
        self._agreements.put((peer_id, key_range), began)

    def holders(self, key: bytes, since: float) -> set[str]:
        """Return the peers that have a key which we have had since then, on trio's clock."""
        return {
            peer_id
            for (peer_id, key_range), began in self._agreements.items()
            if began >= since and key_range.covers(key)
        }

    def note_unwanted(self, peer_id: str, keys: Iterable[bytes]) -> None:
        """Note keys that a peer has listed and that this node will not take.

        They are left out from the start of the next session with the same peer, so that it need not
        list them again: a session over ten thousand junk events then costs little more than one
        without any.
        """
        new = dict.fromkeys(keys)
        if not new:
            return
        known = {**self._unwanted.get(peer_id, {}), **new}
        while len(known) > MAX_UNWANTED_REMEMBERED:
            known.popitem()
        self._unwanted.put(peer_id, known, renew=False)

    def unwanted_of(self, peer_id: str) -> list[bytes]:
        """Return the keys that a peer holds and that this node does not want."""
        return list(self._unwanted.get(peer_id, ()))

    def is_new_stranger(self, peer_id: str) -> bool:
        """Note a peer of another network; return whether it was not known as one."""
        is_new = peer_id not in self._strangers
        self._strangers.put(peer_id, None)
        return is_new

    def differences_with(
        self, peer_id: str, agent: tuple[str, str], interests: Sequence[KeyRange]
    ) -> Differences:
        """Return what a peer on the model ring and this node refuse of each other.

        It is forgotten when the node restarts and when a peer becomes another program or version:
        either may take more then. What this node refuses is tried again when its interests change.
        """
        peer = self._ring_peers.get(peer_id, None)
        if peer is None or peer.agent != agent:
            peer = RingPeer(agent, interests)
        if peer.interests != interests:
            peer.differences.forget_refused_here()
            peer.interests = interests
        self._ring_peers.put(peer_id, peer)
        return peer.differences

    def weigh_differences(self, peer_id: str) -> None:
        """Take note that the differences with a peer have changed."""
        peer = self._ring_peers.get(peer_id, None)
        if peer is not None:
            self._ring_peers.put(peer_id, peer)
