"""What can go wrong on the network side, in words for people."""

from __future__ import annotations

from typing import Final

import trio

from recon_node.recon import RemoteProtocolError
from recon_node.store import StoreError


class P2PError(Exception):
    """The network side of the node cannot start or run; the text says why and what to do."""


class PeerError(P2PError):
    """A peer cannot be reached, or its address cannot be used."""


class PeerGoneError(P2PError):
    """A stream ended where it must not: the peer or the connection is gone, by no fault of it."""


class PeerProtocolError(Exception):
    """A peer broke the protocol of a stream; the stream is reset and the peer scored down."""


MISBEHAVED: Final = 4
"""How many failures it counts as when a peer breaks a protocol."""
BROKEN_PROTOCOL: Final = (PeerProtocolError, RemoteProtocolError)
PEER_FAILURES: Final = (P2PError, *BROKEN_PROTOCOL, trio.BrokenResourceError)
"""What a peer, or the way to it, can do to a session."""


def describe(error: BaseException) -> str:
    """Say what went wrong, for people."""
    if isinstance(error, trio.BrokenResourceError):
        return str(error) or "the connection was lost"
    if isinstance(error, (*PEER_FAILURES, StoreError)):
        return str(error)
    return f"a bug of this node: {error!r}"
