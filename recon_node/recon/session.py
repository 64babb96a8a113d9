"""One reconciliation of one key range with one peer (CIP-124, "Interactive Sync Algorithm").

Theory of operation
-------------------
Two sides take turns in sending a message that covers the session's range. For each gap between two
bounds of a message they compare what it says with their own keys in that gap: where the hashes are
equal they agree; where they differ, the answer splits the gap, lists its keys, or asks for them.
The answers for all gaps go into one message. What messages look like is up to the protocol version,
a folder beside this file. This file has the interface that the versions share. Each session is
built on a `Side` (side.py), which knows whose turn it is, which range is being reconciled, and
what the peer may not do.

In every version of the protocol a session says what to do by *actions*, and never awaits. The
driver (of a node, `converse` in p2p/sync/sessions.py) performs each action before it asks for the
next, and sends what came of it back into the generator::

    actions, result = session.receive(message), None    # the peer's next message
    while True:
        action = actions.send(result)     # Send, Fetch, FetchById, SendValues, Admit, or a pause
        result = ...                      # of Fetch, FetchById and Admit: what failed

A key that a peer lists is not ours until its event is here and valid. So before a session answers,
it has the events of new keys fetched. Those that the driver could not get, or does not take, are
left out. A driver that wants to see keys before events fetches nothing by id, and is told the keys.

A turn may be too long for one message. Then the peer says that its turn continues, and the answer
is due only after the last message (`Side.answer_due`). It may be several messages as well.

Whatever a side states is about keys that it holds. Keys that it gave up are *left out*: they only
tell the session that a gap in which the peer holds just our keys and these has nothing left to
learn. How a session over such keys ends, and what it says about them, is up to the version.

Why a session ends: a gap that differs is answered by a split into smaller gaps, by a list, or by a
request for a list. So after O(log n) messages without a listed key, every difference is inside a
gap that gets listed, and each listed key is one more key that both sides hold. A peer that keeps a
session going without either is stopped after `max_idle_rounds`. The store may change under the
session: a key added meanwhile makes its gap differ, and is either told in this session or left for
the next one.

Why both sides then hold the same keys: a session ends well only when both have stated one hash of
the whole range, or when each knows that they differ only in keys that one of them left out. So they
agree, up to a collision of sha256 sums, on every other key that either held when the other's last
list was answered. What arrived after that, on either side, is left for the next session. Fan-out,
threshold and page size decide how soon a session ends, not with what result, so the two sides'
settings may differ. (1.2.0 allows one more end, described there, for a node that receives keys
faster than its sessions finish.)

Trimming: an initiator asks for one range of its interests. The responder answers for its first
overlap with that range, or refuses if there is none. `Side.remaining` is then the part above the
overlap, for the next session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from recon_node.base.steps import run_steps
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.side import Side

M = TypeVar("M")
T = TypeVar("T")
Steps: TypeAlias = Generator[None, None, T]
"""A computation in steps of about a millisecond."""
GAPS_A_STEP: Final = 32
"""Gaps answered between two yields."""


@dataclass(frozen=True, slots=True)
class Send(Generic[M]):
    """Send messages, which are a whole turn where sides take turns."""

    messages: Sequence[M]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Get the events of keys into the store. The driver passes in what failed."""

    keys: list[bytes]


class Missing(NamedTuple):
    """Keys of the peer's that we lack, by their ids (sketch.py)."""

    key_range: KeyRange
    """Where they lie."""
    ids: list[bytes]
    in_order: bool = True
    """Whether the ids are in the order of the keys; symbols have none."""


@dataclass(frozen=True, slots=True)
class FetchById:
    """Get events into the store by the ids of their keys.

    The driver passes in what failed; or None if it has to see keys before events.
    """

    missing: Missing


class Failed(NamedTuple):
    """What could not be fetched."""

    keys: Sequence[bytes] = ()
    """Keys whose events did not arrive, or were not taken."""
    unwanted: Sequence[bytes] = ()
    """Those of them that this side refused, or does not want: the peer may well take them."""
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
    """Have values admitted; end the session if one of them is invalid."""

    values: tuple[Value, ...]


Action: TypeAlias = Send[M] | Fetch | FetchById | SendValues | Admit | None
"""What the driver performs before it goes on; None: let other tasks run."""
Actions: TypeAlias = Generator[Action[M], Any, None]


class Session(Protocol[M]):
    """One side's part in a session, in the messages of one protocol version. No method awaits."""

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


class TurnSession(Session[M], Protocol):
    """A session in which the sides take turns."""

    side: Side
    """Whose turn it is, the range, and what has been learned so far."""

    @property
    def done(self) -> bool:
        """Whether the session has ended well."""
        return self.side.done

    @property
    def rounds(self) -> int:
        """Turns that the peer has taken."""
        return self.side.rounds

    def end_of_stream(self) -> bool:
        """Return whether the session had ended; only some versions end so."""
        return self.side.done


@dataclass(frozen=True, slots=True)
class Version(Generic[M]):
    """A version of the protocol: its libp2p protocol id, its sessions, and its messages' codec."""

    id: str
    session: Callable[[Side], TurnSession[M]]
    encode: Callable[[M], bytes]
    """Encodes a message as the bytes of one frame."""
    decode: Callable[[bytes], M]
    """Decodes the bytes of one frame. Raises RemoteProtocolError."""
    weigh: Callable[[M], int]
    """Returns about how many bytes of memory a message takes."""
    keeps_stream: bool = False
    """Whether a stream may carry another session after one that ended well."""
    tells_left_out: bool = False
    """Whether a side tells the other that it left keys out, so that it may leave them out before
    they are listed. Otherwise only a peer that has listed a key understands that it is left out."""


FETCHED_AT_ONCE: Final = 4096
"""Events that are fetched before the next ones of a list are looked at."""


def fetch(side: Side, keys: list[bytes]) -> Generator[Fetch, Failed, None]:
    """Have the events of keys fetched that a peer listed; leave out those that could not be.

    They are fetched some at a time: a short message can list very many, and a peer that does not
    have them is found out by the first.
    """
    for start in range(0, len(keys), FETCHED_AT_ONCE):
        failed = yield Fetch(keys[start : start + FETCHED_AT_ONCE])
        side.leave_out(failed.unwanted)
        side.give_up(failed.keys)


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
