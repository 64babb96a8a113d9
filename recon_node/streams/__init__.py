"""One stream: its graph, its tip (CIP-145) and its state. Pure functions over events.

`Stream` is all that can be asked about a stream. `select_tip` finds its tip and says why;
`StreamStates` computes its data after each of its events.
"""

from recon_node.streams.graph import (
    EventShape,
    ForgottenError,
    Statements,
    StreamShapeError,
    causal_order,
    shape_of,
    statements_of,
)
from recon_node.streams.json_values import json_diff, json_equal
from recon_node.streams.merging import Conflict, Expired, MergeProposal
from recon_node.streams.model_rules import (
    Definitions,
    account_relation,
    definitions_of,
    event_metadata,
    named_versions,
    unique_of,
    why_unusable,
)
from recon_node.streams.state import StreamStates, accepted_tip, no_version
from recon_node.streams.stream import Stream, StreamSummary
from recon_node.streams.stream_data import (
    EventState,
    StreamData,
    StreamState,
    data_json,
    stream_state,
)
from recon_node.streams.tip import Decision, Rule, Tip, select_tip

__all__ = [
    "Conflict",
    "Decision",
    "Definitions",
    "EventShape",
    "EventState",
    "Expired",
    "ForgottenError",
    "MergeProposal",
    "Rule",
    "Statements",
    "Stream",
    "StreamData",
    "StreamShapeError",
    "StreamState",
    "StreamStates",
    "StreamSummary",
    "Tip",
    "accepted_tip",
    "account_relation",
    "causal_order",
    "data_json",
    "definitions_of",
    "event_metadata",
    "json_diff",
    "json_equal",
    "named_versions",
    "no_version",
    "select_tip",
    "shape_of",
    "statements_of",
    "stream_state",
    "unique_of",
    "why_unusable",
]
