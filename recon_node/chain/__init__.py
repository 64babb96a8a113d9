"""Floor 5, the chain side: it asks blockchains when the anchors of time events were made.

`open_anchors` takes the proofs of pending time events from the store, looks each one's transaction
up once at a JSON-RPC provider of its chain, and tells the store what it found. Knows neither peers
nor the HTTP API. Start reading with `anchors` (what becomes of a proof), then `rpc` (how a chain is
asked) and `endpoint` (one URL).
"""

from recon_node.chain.anchors import Anchors, open_anchors
from recon_node.chain.errors import ChainError
from recon_node.chain.reports import BUCKETS, ChainReport
from recon_node.chain.rpc import Provider, RpcProvider
from recon_node.chain.settings import ChainSettings, parse_confirmations, parse_providers

__all__ = [
    "BUCKETS",
    "Anchors",
    "ChainError",
    "ChainReport",
    "ChainSettings",
    "Provider",
    "RpcProvider",
    "open_anchors",
    "parse_confirmations",
    "parse_providers",
]
