"""The connections to bootstrap peers, which are made again when they are lost."""

from __future__ import annotations

import random
from typing import Final

import structlog
import trio

from recon_node.backoff import Backoff
from recon_node.p2p.errors import PeerError
from recon_node.p2p.interfaces import PeerHost
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.sync.reports import Counters
from recon_node.p2p.transport.addresses import peer_id_in

log = structlog.get_logger(__name__)

BOOTSTRAP_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
"""The waits between tries to reach a bootstrap peer."""
CONNECTION_POLL: Final = 1.0
"""Seconds between two looks whether a bootstrap peer is still connected."""


async def keep_connected(address: str, host: PeerHost, book: PeerBook, counters: Counters) -> None:
    """Connect to a bootstrap peer, and again whenever the connection is gone, until cancelled.

    Args:
        address: of the peer.
        host: dials it.
        book: notes where it was reached.
        counters: counts failed dials.
    """
    if peer_id_in(address) == host.peer_id:
        return  # all nodes of a network may have the same list
    failures = 0
    while True:
        try:
            known = host.is_connected(peer_id_in(address))
            peer_id = await host.connect(address)
        except PeerError as error:
            counters.dials_failed += 1
            failures += 1
            wait = BOOTSTRAP_BACKOFF.wait(failures, random.random())
            log.info("Cannot reach a bootstrap peer", reason=str(error), next_try_in=round(wait, 1))
            await trio.sleep(wait)
            continue
        if not known:
            book.reached_at(peer_id, address)
        while host.is_connected(peer_id):  # noqa: ASYNC110 (there is no event for it)
            await trio.sleep(CONNECTION_POLL)
        if book.get(peer_id) is not None:
            failures = 0
        else:  # this node cannot sync with it
            failures += 1
            await trio.sleep(BOOTSTRAP_BACKOFF.wait(failures, random.random()))
