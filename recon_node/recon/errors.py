"""The two ways in which a session can go wrong, told apart as in h11 and wsproto."""

from __future__ import annotations


class ProtocolError(Exception):
    """A violation of the recon protocol."""


class LocalProtocolError(ProtocolError):
    """This side used a session in a way that the protocol does not allow: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The other side broke the protocol; the text says what it sent and where. The session ends."""
