"""What a session that ended well came to, in words.

Two sides that have nothing in common agree, too. Why they have nothing in common matters to the
operator: a peer of another network, named by mistake, asks for nothing that this node could hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from recon_node.ceramic import network_id_of, network_name
from recon_node.latest import Latest
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.sync.reports import ANOTHER_NETWORK, NO_COMMON_INTEREST, agreed_but_for
from recon_node.recon import Side, intersect_ranges

log = structlog.get_logger(__name__)

MAX_STRANGERS: Final = 1000
"""Maximum peers of other networks that are remembered."""


class Outcomes:
    """Names the outcomes of sessions, and reports peers of other networks.

    Args:
        store: its network and interests are this node's.
        book: knows what peers are interested in.
        on_stranger: called once with each peer that asks for events of another network.
    """

    def __init__(
        self, store: EventStore, book: PeerBook, on_stranger: Callable[[str], None]
    ) -> None:
        self._store = store
        self._book = book
        self._on_stranger = on_stranger
        self._strangers = Latest[str, None](MAX_STRANGERS)
        """Peers of another network that were reported, the latest ones."""

    def of(self, peer_id: str, side: Side, *, is_rest: bool) -> str:
        """Return the outcome of a session that ended well.

        Args:
            peer_id: the peer.
            side: this node's side of the session.
            is_rest: whether it was about what lies above a part that was reconciled before.
        """
        network_id = None if side.asked is None else network_id_of(side.asked.lower)
        if network_id is None or network_id == self._store.network.id:
            if not is_rest and not self._has_common_interest(peer_id, side):
                return NO_COMMON_INTEREST
            return agreed_but_for(side.left_out, side.left_out_by_peer)
        there = network_name(network_id)
        self._note_stranger(peer_id, there)
        return f"{ANOTHER_NETWORK} ({there}): nothing in common"

    def _has_common_interest(self, peer_id: str, side: Side) -> bool:
        """Return whether both sides want a part of the range, or of others that the peer asked for.

        A range is reconciled in parts, and above the last one nothing is left in common.
        """
        if side.key_range is not None:
            return True
        theirs = self._book.interests(peer_id)
        return bool(intersect_ranges(self._store.wanted.ranges, theirs))

    def _note_stranger(self, peer_id: str, its_network: str) -> None:
        if peer_id in self._strangers:
            return
        self._strangers[peer_id] = None
        log.warning(
            "A peer is on another Ceramic network: there is nothing to sync with it",
            peer=peer_id,
            its_network=its_network,
            network=self._store.network.name,
        )
        self._on_stranger(peer_id)
