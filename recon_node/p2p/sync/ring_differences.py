"""What each peer on the model ring and this node refuse of each other; bounded over all peers.

It is forgotten when the node restarts and when a peer becomes another program or version: either
may take more then. What this node refuses is tried again when its interests change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from recon_node.recon import KeyRange, KeyView
from recon_node.recon.ring.differences import Differences, Exchange

MAX_REMEMBERED: Final = 50_000
"""Events that are remembered of all peers: about 15 MB. The peer whose last session was the longest
ago makes room."""


@dataclass(slots=True)
class _Peer:
    agent: tuple[str, str]
    interests: Sequence[KeyRange]
    differences: Differences


class RingDifferences:
    """Remembers the differences with peers, each apart.

    Args:
        max_peers: how many are remembered.
    """

    def __init__(self, max_peers: int) -> None:
        self._max_peers = max_peers
        self._peers: dict[str, _Peer] = {}

    def begin(
        self, peer_id: str, agent: tuple[str, str], interests: Sequence[KeyRange], keys: KeyView
    ) -> Exchange:
        """Begin a session with a peer.

        Args:
            peer_id: the peer.
            agent: its program, with the version.
            interests: what this node is interested in.
            keys: those of the model ring.
        """
        peer = self._peers.pop(peer_id, None)
        if peer is None or peer.agent != agent:
            peer = _Peer(agent, interests, Differences(time.monotonic))
        if peer.interests != interests:
            peer.differences.forget_refused_here()
            peer.interests = interests
        self._peers[peer_id] = peer  # so that it becomes the latest
        while len(self._peers) > self._max_peers or self._count() > MAX_REMEMBERED:
            del self._peers[next(iter(self._peers))]
        return peer.differences.begin(keys)

    def _count(self) -> int:
        return sum(len(each.differences) for each in self._peers.values())
