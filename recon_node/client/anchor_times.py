"""When events were anchored. Only nodes of this project answer these requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from recon_node.client.operations import (
    CidRef,
    ClientSession,
    Steps,
    StreamRef,
    get,
    segment,
    to_cid,
    to_stream_id,
)
from recon_node.connection import Request
from recon_node.ipld import CID

POLL_INTERVAL: Final = 2.0
"""Seconds between two questions whether an event is anchored by now."""
ANCHOR_TIMEOUT: Final = 3 * 3600.0
"""Seconds: anchoring takes as long as the node's interval, and until the block is final."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """When an event was anchored, or how far that has come."""

    state: str
    """`none`, `waiting`, `in_tree`, `made` (its transaction is to be looked up) or `anchored`."""
    time: int | None
    """The earliest proven time, in Unix seconds; None unless anchored."""
    time_event: CID | None
    """What proves it."""
    chain_id: str | None
    """CAIP-2."""
    tx_hash: str | None
    """0x and 64 digits."""
    explorer: str | None
    """The page of the transaction."""


def anchor(session: ClientSession, event: CidRef) -> Steps[Anchor]:
    """Ask when an event was anchored: itself, or through a later event that covers it.

    Raises:
        NotFoundError: the node does not have it.
    """
    answer = yield get(f"/ceramic/anchors/events/{to_cid(event)}")
    state, time, time_event, chain_id, tx_hash, explorer = answer.fields(
        "state", "time", "time_event", "chain_id", "tx_hash", "explorer"
    )
    proof = None if time_event is None else to_cid(time_event)
    return Anchor(state, time, proof, chain_id, tx_hash, explorer)


def request_anchor(session: ClientSession, stream: StreamRef) -> Steps[CID]:
    """Have the node anchor the tip of a stream; return the event that it will anchor.

    Raises:
        NotFoundError: the node does not have the stream.
        NodeError: the node does not anchor.
    """
    path = f"/api/v0/streams/{segment(to_stream_id(stream))}/anchor"
    (cid,) = (yield Request("POST", path)).fields("cid")
    return to_cid(cid)
