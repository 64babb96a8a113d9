"""The versions of the recon protocol that this node speaks, best first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from recon_node.recon.session import Session
from recon_node.recon.v1_0 import codec as messages_1_0
from recon_node.recon.v1_0.session import Session10
from recon_node.recon.v1_1 import codec as messages_1_1
from recon_node.recon.v1_1.session import Session11


@dataclass(frozen=True, slots=True)
class Protocol:
    """A version: its libp2p protocol id, its sessions, and the codec of its messages."""

    id: str
    session: type[Session[Any]]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    """Raises RemoteProtocolError."""
    weigh: Callable[[Any], int]
    """About how many bytes of memory a message takes."""
    keeps_stream: bool = False
    """Whether a stream may carry another session after one that ended well."""


RECON_1_0: Final = Protocol(
    "/ceramic/recon/1.0.0",
    Session10,
    messages_1_0.encode_message,
    messages_1_0.decode_message,
    messages_1_0.weigh,
)
RECON_1_1: Final = Protocol(
    "/ceramic/recon/1.1.0",
    Session11,
    messages_1_1.encode_message,
    messages_1_1.decode_message,
    messages_1_1.weigh,
    keeps_stream=True,
)
PROTOCOLS: Final = (RECON_1_1, RECON_1_0)
"""In the order in which an initiator offers them."""
