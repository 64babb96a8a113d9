"""The errors of the network side. Their messages are user-facing."""

from typing import Final

import trio

from recon_node.recon import RemoteProtocolError
from recon_node.store import StoreError


class P2PError(Exception):
    """The network side cannot start or run; the message says why and what to do about it."""


class PeerError(P2PError):
    """A peer cannot be reached, or its address cannot be used."""


class PeerGoneError(P2PError):
    """A stream ended too early because the peer or the connection is gone. Nobody is to blame."""


class CutShortError(P2PError):
    """This node ended a session in which the peer broke no protocol: too much of what it holds is
    invalid or unwanted here, or another peer needs the slot."""


class StaleStreamError(PeerGoneError):
    """A stream that was kept had ended before it was used again: open another one."""


class PeerProtocolError(Exception):
    """A peer broke the protocol of a stream. The stream is reset and the peer's score lowered."""


MISBEHAVED: Final = 4
"""Breaking a protocol counts as this many failures."""
BROKEN_PROTOCOL: Final = (PeerProtocolError, RemoteProtocolError)
PEER_FAILURES: Final = (P2PError, *BROKEN_PROTOCOL, trio.BrokenResourceError)
"""The errors of a session that a peer, or the connection to it, can cause."""


def describe_error(error: BaseException) -> str:
    """Describe an error to users."""
    if isinstance(error, trio.BrokenResourceError):
        return str(error) or "the connection was lost"
    if isinstance(error, (*PEER_FAILURES, StoreError)):
        return str(error)
    return f"a bug in this node: {error!r}"
