"""What can go wrong on the network side, in words for people."""

from __future__ import annotations


class P2PError(Exception):
    """The network side of the node cannot start or run; the text says why and what to do."""


class PeerError(P2PError):
    """A peer cannot be reached, or its address cannot be used."""


class PeerGoneError(P2PError):
    """A stream ended where it must not: the peer or the connection is gone, by no fault of it."""


class PeerProtocolError(Exception):
    """A peer broke the protocol of a stream; the stream is reset and the peer scored down."""
