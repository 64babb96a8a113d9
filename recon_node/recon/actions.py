"""A session as its driver sees it, whatever the version: the actions that it yields.

A session never awaits. It says what to do by actions. The driver (of a node,
`converse` in p2p/sync/sessions.py) performs each one before it asks for the next, and sends what
came of it back into the generator::

    actions, result = session.receive(message), None    # the peer's next message
    while True:
        action = actions.send(result)
        result = ...    # of Fetch and FetchById: what failed; else None

Sessions in which sides take turns have events fetched. A driver that wants to see keys before
events fetches nothing by id, and gets the keys. Sessions of the rings send and admit values.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from recon_node.base.steps import run_steps
from recon_node.recon.keys.ordered_keys import KeyRange

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class Send(Generic[M]):
    """Send messages, which are a whole turn where sides take turns."""

    messages: Sequence[M]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get the events of keys into the store. The driver passes in what failed."""

    keys: list[bytes]


class SoughtIds(NamedTuple):
    """Ids (key_hashes.py) of the other side's keys whose events are to be fetched."""

    key_range: KeyRange
    """Where the keys lie."""
    ids: list[bytes]
    in_order: bool = True
    """Whether the ids are in the order of the keys; symbols have none."""


@dataclass(frozen=True, slots=True)
class FetchById:
    """Get events into the store by the ids of their keys.

    The driver passes in what failed; or None if it has to see keys before events.
    """

    sought: SoughtIds


class Failed(NamedTuple):
    """What could not be fetched."""

    keys: Sequence[bytes] = ()
    """Keys whose events the store has not taken."""
    unwanted: Sequence[bytes] = ()
    """Those of them that this side refuses or does not want: the peer may take them. The peer did
    not supply the rest."""
    ids: Sequence[bytes] = ()
    """Ids whose events the peer did not supply."""


@dataclass(frozen=True, slots=True)
class Value:
    """A key that the receiver lacks, and its value: an event's CAR; empty on the peer ring."""

    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class SendValues:
    """Send the values of all our keys in a half-open range, page by page, each as a `Value`."""

    first: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class Admit:
    """Have values admitted. The driver ends the session if too many are invalid."""

    values: tuple[Value, ...]


Action: TypeAlias = Send[M] | Fetch | FetchById | SendValues | Admit | None
"""What the driver performs before it goes on; None: let other tasks run."""
Actions: TypeAlias = Generator[Action[M], Any, None]


class Session(Protocol[M]):
    """One side's part in a session, in the messages of one protocol version. No method awaits."""

    @property
    def initiates(self) -> bool:
        """Whether this side speaks first."""
        ...

    @property
    def done(self) -> bool:
        """Whether nothing more is sent or expected."""
        ...

    @property
    def rounds(self) -> int:
        """Turns, or messages other than values, that the peer has sent."""
        ...

    def start(self) -> Actions[M]:
        """Begin as the initiator."""
        ...

    def receive(self, message: M) -> Actions[M]:
        """Take the peer's message; the store may change between two actions.

        Raises:
            RemoteProtocolError: the message breaks the protocol or comes out of turn, or the peer
                makes no progress. Whatever a peer sends, nothing else is raised.
        """
        ...

    def end_of_stream(self) -> bool:
        """Take the end of the peer's side of the stream where its message is due.

        Returns whether the session has thereby ended well.
        """
        ...


def turn_of(
    actions: Actions[M], fetch: Callable[[Fetch | FetchById], Failed | None] | None = None
) -> list[M]:
    """Perform actions without I/O; return the messages to send.

    Args:
        actions: of a session in which sides take turns.
        fetch: gets events; by default, all of them by their keys, and none by their ids.
    """
    turn: list[M] = []

    def perform(action: Action[M]) -> Failed | None:
        if isinstance(action, Send):
            turn.extend(action.messages)
        elif isinstance(action, Fetch | FetchById):
            by_key = Failed() if isinstance(action, Fetch) else None
            return by_key if fetch is None else fetch(action)
        return None

    run_steps(actions, perform)
    return turn
