"""Streams as graphs: pure functions over the events of one stream, whatever their ids are.

`select_tip` is CIP-145: it says which event of a stream is its tip, and why.
"""

from recon_node.lattice.dag import StreamDag, StreamEvent, StreamShapeError, heights
from recon_node.lattice.tip import Decision, Rule, Tip, select_tip

__all__ = [
    "Decision",
    "Rule",
    "StreamDag",
    "StreamEvent",
    "StreamShapeError",
    "Tip",
    "heights",
    "select_tip",
]
