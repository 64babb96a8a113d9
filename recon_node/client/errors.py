"""What can go wrong between a program and a node. The messages say what to do."""

from __future__ import annotations

from collections.abc import Sequence

from recon_node.streams import MergeProposal


class ClientError(Exception):
    """The base of all errors of this package."""


class InvalidArgumentError(ClientError, ValueError):
    """A call that cannot mean anything, such as a StreamID that is none. Nothing was sent."""


class UnreachableError(ClientError):
    """No node answers at the URL, or it took longer than `timeout`."""


class NodeError(ClientError):
    """A node answered with an error.

    `status` is that of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFoundError(NodeError):
    """The node does not have the stream or event. It may have it later: nodes synchronise."""


class UnauthorizedError(NodeError):
    """The node wants a token, or another one than it was given."""


class RefusedEventError(NodeError):
    """The node does not accept an event: the message is its reason."""


class KeyFileError(ClientError):
    """A key file that is missing, or does not hold a key."""


class NoKeyError(ClientError):
    """Something has to be signed, and there is no key."""

    def __init__(self) -> None:
        super().__init__(
            "there is no key to sign with: give one to the client, `Ceramic(url, key=...)`, or to "
            "the call, `key=...`; `Key.generate()` makes one"
        )


class InvalidContentError(ClientError):
    """Content that breaks a rule of its stream or its model. Nothing was sent.

    `reasons` has the rules that it breaks, in plain English.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = tuple(reasons)


class TooMuchWorkError(ClientError):
    """A stream, or a proposal to merge it, takes more work than its events pay for."""


class MergeConflictError(ClientError):
    """The branches of a stream changed the same parts in different ways. Nothing was sent.

    `proposal` has the conflicts, with the value on each branch.
    """

    def __init__(self, proposal: MergeProposal) -> None:
        paths = ", ".join(conflict.path for conflict in proposal.conflicts)
        super().__init__(
            f"the branches of the stream differ at {paths}: decide, and merge with `content=...`, "
            "or with `prefer=...`, the event whose values shall win"
        )
        self.proposal = proposal
