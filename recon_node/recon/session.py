"""One reconciliation of one key range with one peer (CIP-124, "Interactive Sync Algorithm").

Theory of operation
-------------------
Two sides take turns in sending a message that covers the session's range. For each gap between two
bounds of a message they compare what it says with their own keys in that gap: where the hashes are
equal they agree, where they differ the answer splits the gap, lists its keys, or asks for them. The
answers for all gaps go into one message. What the messages look like is up to the protocol version;
this class has what is common: the turns, the range, and the bounds of a session.

A key that a peer lists is not ours until its event is here and valid. So a turn has two halves::

    new_keys = session.receive(message)    # the keys of the message that we do not hold
    ...                                    # the driver gets their events and stores the keys
    session.give_up(keys)                  # those that could not be had, or were refused
    messages = session.respond()           # the answer, now that the store holds them

A turn may be too long for one message: then the peer says that it goes on, ``respond`` is not due
before the last one (``turn_complete``), and the answer may be several messages as well.

Whatever a side states is of the keys that it holds: keys given up are *left out*. A session knows
of them only that a gap in which the peer holds ours and them has nothing left to learn. How a
session over such keys ends, and what it says of them, is up to the protocol version.

Why it ends: a gap that differs is answered by a split into smaller gaps, by a list, or by asking
for one, which is answered by a list. So after O(log n) messages without a listed key every
difference is inside a gap that gets listed, and a listed key is a key more that both hold. A peer
that keeps a session going without either is stopped after ``max_idle_rounds``. The store may change
under the session: a key added meanwhile makes its gap differ, and is either told in this session or
left for the next one.

Why both then hold the same: a session ends well only when both sides have given one hash of the
whole range, or each knows that the two differ in just the keys that one of them left out. So they
agree, up to a collision of sha256 sums, on every other key that either held when the other's last
listing was answered. What came in after that, on either
side, is the next session's. Fan-out, threshold and page decide how soon it ends, not with what, so
the two sides' settings need not be the same. (1.1.0 allows one more end, see there: on a node that
takes in keys faster than its sessions close.)

Trimming: an initiator asks for one range of its interests; the responder answers for its first
overlap with that, or refuses where there is none. ``remaining`` is then the part above, for the
next session.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from enum import Enum, auto
from typing import ClassVar, Final, Generic, Self, TypeVar

from recon_node.recon.errors import LocalProtocolError, RemoteProtocolError
from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ranges import KeyRange, merge_ranges
from recon_node.recon.settings import DEFAULT_SETTINGS, SessionSettings
from recon_node.recon.view import View

M = TypeVar("M")
Steps = Generator[None, None, list[M]]
GAPS_A_STEP: Final = 32


class _State(Enum):
    START = auto()
    """Initiator: the first message is to be sent."""
    LISTENING = auto()
    """The peer's message is due."""
    RESPONDING = auto()
    """A message was received; the answer is due."""
    DONE = auto()


class Session(ABC, Generic[M]):
    """A session's state on one side. See the module's text for the turns; no method awaits.

    Args:
        store: the keys that this side holds; they may change meanwhile.
        ranges: the range to ask for (initiator), or all of this side's interests (responder).
        settings: how to split and list, and what bounds the session.
        initiates: whether this side speaks first.
    """

    max_turn: ClassVar[int] = 1
    """Messages of one turn at most: what the protocol version allows."""

    def __init__(
        self,
        store: KeyStore,
        ranges: Iterable[KeyRange],
        settings: SessionSettings = DEFAULT_SETTINGS,
        *,
        initiates: bool,
    ) -> None:
        self._view = View(store)
        self._interests = merge_ranges(ranges)
        if initiates and not self._interests:
            raise LocalProtocolError("a session needs a range that can hold a key")
        self._settings = settings
        self.initiates = initiates
        """Whether this side speaks first."""
        self._state = _State.START if initiates else _State.LISTENING
        self._turn: list[M] = []
        self._idle_rounds = 0
        self._listed = 0
        self._learned = False
        """Whether the peer's turn told keys that were new to us."""
        self.key_range: KeyRange | None = self._interests[0] if initiates else None
        """The range being reconciled: the one asked for, then what the responder made of it; None
        where the two sides have no interest in common."""
        self.asked: KeyRange | None = self.key_range
        """The range that the initiator asked for: an interest of the initiator."""
        self.remaining: KeyRange | None = None
        """Initiator: what lies above the responder's first overlap, for a session of its own."""
        self.rounds = 0
        """Turns that the peer has taken."""
        self.left_out_by_peer = 0
        """How many keys of ours the peer left out, as far as it is known."""
        self.turn_complete = False
        """Whether the peer has said all of its turn, so that an answer is due."""

    @classmethod
    def initiator(
        cls, store: KeyStore, key_range: KeyRange, settings: SessionSettings = DEFAULT_SETTINGS
    ) -> Self:
        """Make the side that asks for a range; begin with :meth:`start`."""
        return cls(store, [key_range], settings, initiates=True)

    @classmethod
    def responder(
        cls,
        store: KeyStore,
        interests: Iterable[KeyRange],
        settings: SessionSettings = DEFAULT_SETTINGS,
    ) -> Self:
        """Make the side that answers, within its interests; begin with :meth:`receive`."""
        return cls(store, interests, settings, initiates=False)

    @property
    def done(self) -> bool:
        """Whether the session has ended well: nothing more is sent or expected."""
        return self._state is _State.DONE

    @property
    def given_up(self) -> int:
        """Number of keys that the peer listed but that could not be had."""
        return len(self._view.given_up)

    @property
    def left_out(self) -> int:
        """Number of the keys given up that have not come in since."""
        return sum(key not in self._view.store for key in self._view.given_up)

    def end_of_stream(self) -> bool:
        """Take the end of the peer's side of the stream where its message is due.

        Returns whether the session has thereby ended well (1.0.0, keys left out).
        """
        return self.done

    def start(self) -> M:
        """Return the initiator's first message: one hash for the whole range."""
        self._expect(_State.START, "start")
        self._state = _State.LISTENING
        return self._open()

    def receive(self, message: M) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold, in order.

        Raises RemoteProtocolError when the message breaks the protocol, comes when it is not the
        peer's turn, or the peer makes no progress. Whatever the peer sends, nothing else is raised.
        """
        if self._state is not _State.LISTENING:
            raise RemoteProtocolError(_OUT_OF_TURN[self._state])
        if not self._turn:
            self.rounds += 1
            self._idle_rounds += 1
            self._learned = False
        self.turn_complete = not self._goes_on(message)
        if self.turn_complete:
            self._state = _State.RESPONDING
        elif len(self._turn) + 1 >= self.max_turn:
            raise RemoteProtocolError(f"a turn of more than {self.max_turn} messages")
        new = self._view.new_among(self._take(message))
        self._turn.append(message)
        if new:
            self._learned = True
            self._idle_rounds = 0
        if self._idle_rounds > self._settings.max_idle_rounds:
            raise RemoteProtocolError(f"peer made no progress in {self._idle_rounds} rounds")
        return new

    def give_up(self, keys: Iterable[bytes]) -> None:
        """Leave these keys of the message out: their events could not be had, or were refused.

        Raises RemoteProtocolError when the peer has listed too many of them.
        """
        for key in keys:
            self._view.give_up(key)
        if self.given_up > self._settings.max_given_up:
            raise RemoteProtocolError(
                f"peer listed {self.given_up} keys for which it delivered no valid event"
            )

    def respond(self) -> list[M]:
        """Return the answer to the peer's turn; empty when there is nothing left to say."""
        steps = self.respond_in_steps()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                answer: list[M] = end.value
                return answer

    def respond_in_steps(self) -> Steps[M]:
        """Do what :meth:`respond` does, in steps of about a millisecond between which it yields.

        The answer is the generator's return value. The store may change between two steps.
        """
        if self.done:
            return []
        self._expect(_State.RESPONDING, "respond")
        turn, self._turn = self._turn, []
        self._state = _State.LISTENING
        if self.key_range is None:
            self._finish()
            return [self._refuse(turn[0])]
        return (yield from self._answer(turn))

    @abstractmethod
    def _open(self) -> M:
        """Return the first message."""

    @abstractmethod
    def _take(self, message: M) -> Iterable[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""

    @abstractmethod
    def _refuse(self, message: M) -> M:
        """Return the answer to a range that does not interest this side."""

    @abstractmethod
    def _answer(self, turn: list[M]) -> Steps[M]:
        """Return the answer to every gap of a turn; finish where that is the last word."""

    def _goes_on(self, message: M) -> bool:
        """Tell whether the peer's turn goes on after this message."""
        return False

    def _finish(self) -> None:
        self._state = _State.DONE

    def _end_refused(self) -> None:
        """End the session of an initiator whose range does not interest the peer."""
        self.key_range = None
        self._finish()

    def _expect(self, state: _State, call: str) -> None:
        if self._state is not state:
            raise LocalProtocolError(f"{call}() in state {self._state.name}, needs {state.name}")

    def _count_listed(self, keys: int) -> None:
        """Count listed keys as progress, unless the peer asks for the same ones again."""
        self._listed += keys
        if keys and self._listed <= 2 * len(self._view.store):
            self._idle_rounds = 0

    def _settle_range(self, theirs: KeyRange) -> None:
        """Fix or check the session's range by the range that the peer's message is about."""
        if theirs.is_empty:
            raise RemoteProtocolError("peer ended the range in the middle of the session")
        if self.asked is None:
            self.asked = theirs
            overlaps = (theirs.intersect(interest) for interest in self._interests)
            self.key_range = next((overlap for overlap in overlaps if overlap is not None), None)
            return
        assert self.key_range is not None
        ours = self.key_range
        may_trim = self.initiates and self.rounds == 1
        lower_fits = theirs.lower == ours.lower or (
            may_trim if theirs.lower > ours.lower else self._may_extend(ours.lower)
        )
        upper_fits = theirs.upper == ours.upper or (
            may_trim if theirs.upper < ours.upper else self._may_extend(ours.upper)
        )
        if not (lower_fits and upper_fits):
            raise RemoteProtocolError(
                f"peer answered for {_show(theirs)}, which is not within {_show(ours)}"
            )
        self.key_range = theirs
        if may_trim and theirs.upper < ours.upper:
            self.remaining = KeyRange(theirs.upper, ours.upper)

    def _may_extend(self, bound: bytes) -> bool:
        """Tell whether the peer may answer for more than we asked for at this end."""
        return False


_OUT_OF_TURN: Final = {
    _State.START: "peer spoke first in a session that it did not start",
    _State.RESPONDING: "peer spoke again before its turn was answered",
    _State.DONE: "peer sent a message after the end of the session",
}


def _show(key_range: KeyRange) -> str:
    return f"({key_range.lower.hex()}, {key_range.upper.hex()})"
