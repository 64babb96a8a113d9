"""One stream: its graph, its tip (CIP-145) and its state. Pure functions over events.

`Stream` is all that can be asked about a stream. `select_tip` finds its tip and says why;
`StreamStates` computes its data after each of its events. In reading order:

    stream              everything about one stream, each thing computed once
    graph               its events as a graph; copies of a statement are one event
    tip                 which event of a diverged stream is its tip (CIP-145), and why
    state               content and metadata after each event, and at the tip
    merging             the event that merges branches, and their conflicts
    model_rules         what a change may do, by the kind of stream and by its model
    document_schema     whether a document conforms to the JSON Schema of its model
    schema_normal_form  a schema as what checks a document, and nothing else
    schema_price        what such a check may cost
    pattern_price       what it may cost to match a pattern
    json_patch          JSON Patch, at a bounded cost
    json_values         weight, equality and difference of values, and the budget for all work
    picture             a stream as a picture
"""

from recon_node.streams.graph import (
    EventShape,
    ForgottenError,
    NoTipError,
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
    event_metadata,
    named_versions,
    unique_of,
    why_unusable,
)
from recon_node.streams.state import (
    EventState,
    StreamData,
    StreamState,
    StreamStates,
    accepted_tip,
    data_json,
    definitions_of,
    no_version,
)
from recon_node.streams.stream import Stream, StreamSummary
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
    "NoTipError",
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
    "unique_of",
    "why_unusable",
]
