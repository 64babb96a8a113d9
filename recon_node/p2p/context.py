"""What the parts of the network side share."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

import trio

from recon_node.base.steps import Steps, T
from recon_node.base.timing import Durations
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.transport.guarded_connection import MemoryBudget, unlimited
from recon_node.p2p.transport.host import Host
from recon_node.store import Store


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that the others use."""

    host: Host
    """Has the connections with peers, by peer id, and opens streams."""
    store: Store
    """Has the events, and the node's interests."""
    book: PeerBook
    """Knows the peers, and records how they behave."""
    settings: P2PSettings
    """The limits."""
    counters: Counters
    """Count what the node does, for metrics."""


Role = Literal["initiator", "responder"]
Result = Literal["agreed", "no_common_interest", "failed"]


@dataclass(slots=True)
class Counters:
    """Totals since the node was started."""

    sessions_refused: int = 0
    """Inbound ones, because there were too many at once."""
    rounds: int = 0
    recon_bytes_sent: int = 0
    recon_bytes_received: int = 0
    event_bytes_sent: int = 0
    event_bytes_received: int = 0
    events_received: int = 0
    events_refused: int = 0
    """Events of peers that were not valid."""
    events_missing: int = 0
    """Events that a peer listed but did not have."""
    keys_left_out: int = 0
    """Keys that peers listed and that were left out, counted in each session."""
    keys_unwanted: int = 0
    """Keys that peers listed and whose events were not fetched, because of the write policy."""
    keys_left_out_by_peers: int = 0
    dials_failed: int = 0
    durations: dict[tuple[str, ...], Durations] = field(
        default_factory=lambda: {
            labels: Durations() for labels in product(get_args(Role), get_args(Result))
        }
    )
    """Of the sessions that have ended, by role and result."""
    statements_sent: int = 0
    """Of interests."""
    statements_received: int = 0
    peers_stating: int = 0
    """Peers that have stated their interests and can announce changes, now."""
    memory: MemoryBudget = field(default_factory=unlimited)
    """The memory that peers make this node hold now, and how many were cut off for it."""


async def run_cooperatively(steps: Steps[T]) -> T:
    """Run a computation to its end, with other tasks between two steps; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await trio.lowlevel.checkpoint()
