"""Layer 5, the chain side: when were the anchors of time events made?

`open_anchors` looks up the transactions of pending time events at JSON-RPC endpoints of their
chains. Read `proof_lookup` first (the outcomes of a lookup), then `rpc` (asking a chain),
`rpc_endpoint` (one URL) and `rpc_answers` (what an answer must look like).
"""

from recon_node.chain.proof_lookup import open_anchors
from recon_node.chain.rpc_endpoint import ChainError, ChainReport
from recon_node.chain.settings import ChainSettings, parse_confirmations, parse_providers

__all__ = [
    "ChainError",
    "ChainReport",
    "ChainSettings",
    "open_anchors",
    "parse_confirmations",
    "parse_providers",
]
