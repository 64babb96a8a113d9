"""Recon: set reconciliation over sorted keys (CIP-124), without I/O.

``KeyStore`` holds the keys and hashes any range of them; ``Session`` is one side of a
reconciliation; ``encode_message`` and ``decode_message`` put its messages on the wire.
"""

from recon_node.recon.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from recon_node.recon.key_range import KeyRange, intersect_ranges, merge_ranges
from recon_node.recon.key_store import KeyStore, Summary
from recon_node.recon.messages_1_0 import Message, decode_message, encode_message
from recon_node.recon.session_1_0 import Session10 as Session
from recon_node.recon.settings import DEFAULT_SETTINGS, SessionSettings
from recon_node.recon.sha256a import ZERO, Sha256a

__all__ = [
    "DEFAULT_SETTINGS",
    "ZERO",
    "KeyRange",
    "KeyStore",
    "LocalProtocolError",
    "Message",
    "ProtocolError",
    "RemoteProtocolError",
    "Session",
    "SessionSettings",
    "Sha256a",
    "Summary",
    "decode_message",
    "encode_message",
    "intersect_ranges",
    "merge_ranges",
]
