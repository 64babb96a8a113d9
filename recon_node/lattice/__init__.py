"""Streams as graphs: pure functions over the events of one stream, whatever their ids are.

`select_tip` is CIP-145: it says which event of a stream is its tip, and why; `StreamTip` does so
while events come. `StreamStates` says what the stream's data is after each of its events;
`event_states` and `branch_states` are short for what it is mostly asked. Beside streams: SSB-style
tangles (`tangle`, `classic_feed`), and the DAG Replication & Publishing Protocol (`operations`,
`replica`, `shards`, `publishing`, `ucan`).
"""

from recon_node.lattice.dag import StreamEvent, StreamShapeError, causal_order, heights
from recon_node.lattice.stream_state import (
    EventState,
    StreamData,
    StreamState,
    StreamStates,
    branch_states,
    event_states,
    shape_of,
    stream_state,
)
from recon_node.lattice.tip import Decision, Rule, StreamTip, Tip, select_tip

__all__ = [
    "Decision",
    "EventState",
    "Rule",
    "StreamData",
    "StreamEvent",
    "StreamShapeError",
    "StreamState",
    "StreamStates",
    "StreamTip",
    "Tip",
    "branch_states",
    "causal_order",
    "event_states",
    "heights",
    "select_tip",
    "shape_of",
    "stream_state",
]
