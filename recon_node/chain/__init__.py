"""Floor 5, the chain side: when were the anchors of time events made?

`open_anchors` looks up the transactions of pending time events at JSON-RPC endpoints of their
chains. Read `anchors` first (the outcomes of a lookup), then `rpc` (asking a chain), `endpoint`
(one URL) and `answers` (what an answer must look like).
"""

from recon_node.chain.anchors import Anchors, open_anchors
from recon_node.chain.endpoint import ChainError
from recon_node.chain.rpc import ChainReport
from recon_node.chain.settings import ChainSettings, parse_confirmations, parse_providers

__all__ = [
    "Anchors",
    "ChainError",
    "ChainReport",
    "ChainSettings",
    "open_anchors",
    "parse_confirmations",
    "parse_providers",
]
