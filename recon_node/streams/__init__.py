"""One stream: its graph, its tip (CIP-145) and its state. Pure functions over events.

`select_tip` finds the tip of a stream and says why; `StreamTip` keeps it up to date while events
arrive. `StreamStates` computes the stream's data after each of its events. `LongStream` goes on
from a summary of the earlier events.
"""

from recon_node.streams.graph import (
    ForgottenError,
    StreamEvent,
    StreamShapeError,
    causal_order,
    heights,
)
from recon_node.streams.json_diff import json_diff, json_equal
from recon_node.streams.long_stream import LongStream
from recon_node.streams.merging import Conflict, MergeProposal, open_tips, propose_merge
from recon_node.streams.model_rules import unique_of, why_unusable
from recon_node.streams.model_versions import (
    Definitions,
    definitions_of,
    event_metadata,
    named_versions,
)
from recon_node.streams.state import (
    EventState,
    StreamState,
    StreamStates,
    accepted_tip,
    shape_of,
    stream_state,
)
from recon_node.streams.statements import Statements, statements_of
from recon_node.streams.stream_data import StreamData, data_json
from recon_node.streams.stream_summary import StreamSummary
from recon_node.streams.summary import SummarizedTip, TipSummary
from recon_node.streams.tip import Decision, Rule, StreamTip, Tip, select_tip

__all__ = [
    "Conflict",
    "Decision",
    "Definitions",
    "EventState",
    "ForgottenError",
    "LongStream",
    "MergeProposal",
    "Rule",
    "Statements",
    "StreamData",
    "StreamEvent",
    "StreamShapeError",
    "StreamState",
    "StreamStates",
    "StreamSummary",
    "StreamTip",
    "SummarizedTip",
    "Tip",
    "TipSummary",
    "accepted_tip",
    "causal_order",
    "data_json",
    "definitions_of",
    "event_metadata",
    "heights",
    "json_diff",
    "json_equal",
    "named_versions",
    "open_tips",
    "propose_merge",
    "select_tip",
    "shape_of",
    "statements_of",
    "stream_state",
    "unique_of",
    "why_unusable",
]
