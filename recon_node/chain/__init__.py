"""Layer 5, the chain side: when were the anchors of time events made?

`open_anchors` looks up the transactions of pending time events at JSON-RPC endpoints of their
chains. In reading order:

proof_lookup  the outcomes of a lookup, and when it is repeated
rpc           a chain, asked at one or more endpoints
rpc_endpoint  one endpoint
rpc_answers   what an answer must look like
settings      which chains are asked, where, and how much at once
"""

from recon_node.chain.proof_lookup import open_anchors
from recon_node.chain.rpc_endpoint import ChainError, ChainReport
from recon_node.chain.settings import ChainSettings

__all__ = ["ChainError", "ChainReport", "ChainSettings", "open_anchors"]
