"""Recon: set reconciliation over sorted keys (CIP-124), without I/O.

``KeyStore`` holds the keys and hashes any range of them; ``Session`` is one side of a
reconciliation; ``PROTOCOLS`` names the versions, with their sessions and codecs.
"""

from recon_node.recon.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from recon_node.recon.keys.key_store import KeyStore, Summary
from recon_node.recon.keys.ranges import KeyRange, intersect_ranges, merge_ranges, subtract_ranges
from recon_node.recon.keys.sha256a import ZERO, Sha256a
from recon_node.recon.protocols import PROTOCOLS, RECON_1_0, RECON_1_1, Protocol
from recon_node.recon.session import Session
from recon_node.recon.settings import DEFAULT_SETTINGS, SessionSettings

__all__ = [
    "DEFAULT_SETTINGS",
    "PROTOCOLS",
    "RECON_1_0",
    "RECON_1_1",
    "ZERO",
    "KeyRange",
    "KeyStore",
    "LocalProtocolError",
    "Protocol",
    "ProtocolError",
    "RemoteProtocolError",
    "Session",
    "SessionSettings",
    "Sha256a",
    "Summary",
    "intersect_ranges",
    "merge_ranges",
    "subtract_ranges",
]
