"""Who can prove a time: the interface, and the development clock.

A *time authority* takes the root of a tree, and some time later has a transaction that proves since
when the root exists. Everybody who checks a time event looks that transaction up by themselves.
`evm` has the authority for real chains.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from recon_node.ceramic.time_proof import transaction_of
from recon_node.ipld import CID


class AuthorityError(Exception):
    """The authority cannot be used with these settings. The message is user-facing."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """A root is proven to have existed at a time, for good."""

    tx_hash: bytes
    block_time: int
    """Unix seconds."""
    cost: int
    """Wei."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A root is on its way."""

    reason: str
    """What is being waited for."""
    is_alarming: bool = False
    """Whether somebody should do something about it."""


@dataclass(frozen=True, slots=True)
class PayingAccount:
    """What pays for the transactions."""

    address: str
    balance: int | None
    """Wei; None while it is not known."""


class TimeAuthority(Protocol):
    """Submits roots, and looks up their proofs."""

    @property
    def account(self) -> PayingAccount | None:
        """What pays; None if nothing is paid."""

    async def advance(self, root: CID) -> Anchored | Pending:
        """Submit a root, or look its proof up: one step, after which the process may end.

        A root is anchored once, however often and by how many processes after each other this is
        called. It raises nothing that may pass by itself.
        """


class DevelopmentClock:
    """The clock of this machine, for local networks: it anchors at once, and proves nothing."""

    account = None

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now

    async def advance(self, root: CID) -> Anchored | Pending:
        """Anchor a root now."""
        time = int(self._now())
        return Anchored(transaction_of(time), time, 0)
