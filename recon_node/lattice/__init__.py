"""Streams as graphs: pure functions over the events of one stream, whatever their ids are.

`select_tip` is CIP-145: it says which event of a stream is its tip, and why; `StreamTip` does so
while events come. `StreamStates` says what the stream's data is after each of its events, and
`accepted_tip` which of them its state is that of. Beside streams:
SSB-style tangles (`tangle`, `classic_feed`), and the DAG Replication & Publishing Protocol
(`operations`, `replica`, `shards`, `publishing`, `ucan`).
"""

from recon_node.lattice.dag import StreamEvent, StreamShapeError, causal_order, heights
from recon_node.lattice.model_versions import (
    Definitions,
    definitions_of,
    event_metadata,
    named_versions,
)
from recon_node.lattice.stream_state import (
    EventState,
    StreamData,
    StreamState,
    StreamStates,
    accepted_tip,
    shape_of,
    stream_state,
)
from recon_node.lattice.tip import Decision, Rule, StreamTip, Tip, select_tip

__all__ = [
    "Decision",
    "Definitions",
    "EventState",
    "Rule",
    "StreamData",
    "StreamEvent",
    "StreamShapeError",
    "StreamState",
    "StreamStates",
    "StreamTip",
    "Tip",
    "accepted_tip",
    "causal_order",
    "definitions_of",
    "event_metadata",
    "heights",
    "named_versions",
    "select_tip",
    "shape_of",
    "stream_state",
]
