"""One reconciliation of one key range with one peer (CIP-124, "Interactive Sync Algorithm").

Theory of operation
-------------------
Two sides take turns in sending a message that covers the session's range. For each gap between two
bounds of a message they compare what it says with their own keys in that gap: where the hashes are
equal they agree; where they differ, the answer splits the gap, lists its keys, or asks for them.
The answers for all gaps go into one message. What messages look like is up to the protocol version,
a folder beside this file. This file has the interface that the versions share. Each session is
built on a ``Side`` (side.py), which knows whose turn it is, which range is being reconciled, and
what the peer may not do.

A key that a peer lists is not ours until its event is here and valid. So a turn has two halves::

    new_keys = session.receive(message)    # the keys of the message that we do not hold
    ...                                    # the driver fetches their events and stores the keys
    session.side.leave_out(keys)           # those that it refused, or does not want
    session.side.give_up(keys)             # those that it could not get
    missing = yield from session.find_missing()   # what the peer's turn names by id, if it does
    ...                                    # the same for these
    session.give_up_ids(ids)               # those that the peer did not deliver
    messages = yield from session.respond()   # the answer, now that the store holds the others

A driver that wants to see keys before events leaves out what concerns ids, and is told the keys.

A turn may be too long for one message. Then the peer says that its turn continues, and the answer
is due only after the last message (``Side.answer_due``). It may be several messages as well.

Whatever a side states is about keys that it holds. Keys that it gave up are *left out*: they only
tell the session that a gap in which the peer holds just our keys and these has nothing left to
learn. How a session over such keys ends, and what it says about them, is up to the version.

Why a session ends: a gap that differs is answered by a split into smaller gaps, by a list, or by a
request for a list. So after O(log n) messages without a listed key, every difference is inside a
gap that gets listed, and each listed key is one more key that both sides hold. A peer that keeps a
session going without either is stopped after ``max_idle_rounds``. The store may change under the
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
overlap with that range, or refuses if there is none. ``Side.remaining`` is then the part above the
overlap, for the next session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.side import Side

M = TypeVar("M")
T = TypeVar("T")
Steps = Generator[None, None, list[M]]
"""Work in steps of about a millisecond; the messages to send are the generator's return value."""
GAPS_A_STEP: Final = 32
"""Gaps answered between two yields."""


class Missing(NamedTuple):
    """Keys of the peer's that we lack, by their ids (sketch.py)."""

    key_range: KeyRange
    """Where they lie."""
    ids: list[bytes]


class Session(Protocol[M]):
    """One side's part in a session, in the messages of one protocol version. No method awaits."""

    side: Side
    """Whose turn it is, the range, and what has been learned so far."""

    def start(self) -> Steps[M]:
        """Return the initiator's first turn, in steps: one hash for the whole range."""
        ...

    def receive(self, message: M) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold, in order.

        Raises:
            RemoteProtocolError: the message breaks the protocol or comes out of turn, or the peer
                makes no progress. Whatever a peer sends, nothing else is raised.
        """
        ...

    def find_missing(self) -> Generator[None, None, Missing | None]:
        """Return what the peer's turn names by id and we lack, once it is over, in steps."""
        yield from ()
        return None

    def give_up_ids(self, ids: list[bytes]) -> None:
        """Take note of which of these the peer did not deliver.

        Raises:
            RemoteProtocolError: the peer named too many of them.
        """
        return

    def respond(self) -> Steps[M]:
        """Answer the peer's turn, in steps; no messages if there is nothing left to say.

        The store may change between two steps.
        """
        ...

    def end_of_stream(self) -> bool:
        """Take the end of the peer's side of the stream where its message is due.

        Returns whether the session has thereby ended well, which it does only in some versions.
        """
        return self.side.done


@dataclass(frozen=True, slots=True)
class Version(Generic[M]):
    """A version of the protocol: its libp2p protocol id, its sessions, and its messages' codec."""

    id: str
    session: Callable[[Side], Session[M]]
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


def all_at_once(steps: Generator[None, None, T]) -> T:
    """Do all the steps of an answer without a pause; return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
