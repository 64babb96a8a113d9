"""Fetching damaged events again.

A damaged event has left the key store, so that any sync fetches it from a peer that has it. This
only sees to it that the syncs come soon.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import trio

from recon_node.store import Store

PAUSE: Final = 5.0
"""Seconds between two rounds: damage is often found in many events, one after another."""


async def sync_when_damaged(
    store: Store,
    connected_peers: Callable[[], Sequence[str]],
    request: Callable[[str], None],
    fanout: int,
) -> None:
    """Ask for a sync with some connected peers whenever an event is found damaged. Never returns.

    Args:
        store: whose events.
        connected_peers: the peer ids to choose from.
        request: asks for a sync with a peer, soon.
        fanout: how many peers are asked in a round.
    """
    found = 0
    while True:
        found = await store.damage.wait(found)
        peers = list(connected_peers())
        for peer_id in random.sample(peers, min(fanout, len(peers))):
            request(peer_id)
        await trio.sleep(PAUSE)
