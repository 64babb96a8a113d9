"""What can go wrong between a program and a node. The messages say what to do."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from recon_node.base.connection import ClientError, NodeError
from recon_node.ceramic import CeramicError

if TYPE_CHECKING:
    from recon_node.streams import MergeProposal


class InvalidArgumentError(ClientError, ValueError):
    """An invalid argument, such as text that is not a StreamID. Nothing was sent."""


@contextmanager
def checked_arguments() -> Generator[None]:
    """Turn what the layers below refuse into an `InvalidArgumentError`."""
    try:
        yield
    except CeramicError as error:
        raise InvalidArgumentError(str(error)) from None


class RefusedEventError(NodeError):
    """The node does not accept an event: the message is its reason."""


class OutsideInterestsWarning(UserWarning):
    """The node has interests, and none of them covers what was written: it keeps the event, but no
    peer gets it from there. Python shows it once for each model; see `warnings`."""


class FirstInterestWarning(UserWarning):
    """The node had no interests and fetched everything on its network: its first interest ends
    that."""


class KeyFileError(ClientError):
    """A key file that is missing, or does not hold a key."""


class NoKeyError(ClientError):
    """Something has to be signed, and there is no key."""

    def __str__(self) -> str:
        return (
            "there is no key to sign with: give one to the client, `Ceramic(url, key=...)`, or to "
            "the call, `key=...`; `Key.generate()` makes one"
        )


class CapabilityExpiredError(ClientError):
    """The account of a key has to sign again. Nothing was sent."""

    def __init__(self, account: str, expired: datetime | None) -> None:
        super().__init__(account, expired)
        self.account = account
        self.expired = expired

    def __str__(self) -> str:
        return (
            f"the capability of {self.account} is not valid now (until {self.expired}): have the "
            "account sign again, `client.key = account.renew(client.key)`"
        )


class InvalidContentError(ClientError):
    """Content that breaks a rule of its stream or its model. Nothing was sent.

    `reasons` has the rules that it breaks, in plain English.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(tuple(reasons))
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        return "; ".join(self.reasons)


class TooMuchWorkError(ClientError):
    """A stream, or a proposal to merge it, takes more work than its events pay for."""


class MergeConflictError(ClientError):
    """The branches of a stream changed the same parts in different ways. Nothing was sent.

    `proposal` has the conflicts, with the value on each branch.
    """

    def __init__(self, proposal: MergeProposal) -> None:
        super().__init__(proposal)
        self.proposal = proposal

    def __str__(self) -> str:
        paths = ", ".join(conflict.path for conflict in self.proposal.conflicts)
        return (
            f"the branches of the stream differ at {paths}: decide, and merge with `content=...`, "
            "or with `prefer=...`, the event whose values shall win"
        )
