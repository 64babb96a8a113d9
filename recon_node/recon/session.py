"""One reconciliation of one key range with one peer (CIP-124, "Interactive Sync Algorithm").

Theory of operation
-------------------
Two sides take turns in sending a message that covers the session's range. For each gap of a message
they compare the hash in it with that of their own keys in the same gap, and answer:

===================================  =========================================================
our keys and the peer's hash         the answer for that gap
===================================  =========================================================
hashes are equal                     a match; neighbouring matches are merged into one hash
we hold none                         0: "send me yours"
the peer holds none (its hash is 0)  all our keys: a page of them, then the hash of the rest
we hold at most ``list_threshold``   all our keys
else                                 ``fan_out`` equal parts: pivot keys with hashes between
===================================  =========================================================

The answers for all gaps go into one message. When everything matched, the merged answer is a single
hash for the whole range; when both sides have said that, the session is done.

Why it ends: a gap that differs is answered by a split into smaller gaps, by a list, or by 0, and 0
is answered by a list. So after O(log n) messages without a listed key every difference is inside a
gap that gets listed, and a listed key is a key more that both hold. A peer that keeps a session
going without either is stopped after ``max_idle_rounds``. The store may change under the session: a
key added meanwhile makes its gap differ, and is either told in this session or left for the next
one. A side that gets back the very hash it sent has reached agreement about that, whatever came in
since.

A key that a peer lists is not ours until its event is here and valid. So a turn has two halves::

    new_keys = session.receive(message)    # the keys of the message that we do not hold
    ...                                    # the driver gets their events and stores the keys
    session.give_up(keys)                  # those that could not be had, or were refused
    reply = session.respond()              # the answer, now that the store holds them

Keys given up are left out of the store, but counted with our own in every hash of this session:
else the two sides would differ on them for ever and could not reconcile what is beside them. The
peer is told nothing but what it has told us itself.

Trimming: an initiator asks for one range of its interests; the responder answers for its first
overlap with that. No overlap is the empty range of the asked lower bound. ``remaining`` is then the
part above, for the next session. A bound that is a key (as in CIP-124's example, where a range goes
from the initiator's first key to its last) is extended to the responder's own first or last key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from itertools import pairwise

from recon_node.ceramic import EventId
from recon_node.recon.errors import LocalProtocolError, RemoteProtocolError
from recon_node.recon.key_range import KeyRange, merge_ranges
from recon_node.recon.key_store import KeyStore
from recon_node.recon.messages import Message
from recon_node.recon.reply import Reply, View
from recon_node.recon.settings import DEFAULT_SETTINGS, SessionSettings
from recon_node.recon.sha256a import ZERO, Sha256a


class _State(Enum):
    START = auto()
    """Initiator: the first message is to be sent."""
    LISTENING = auto()
    """The peer's message is due."""
    RESPONDING = auto()
    """A message was received; the answer is due."""
    DONE = auto()


class Session:
    """A session's state on one side. See the module's text for the turns; no method awaits."""

    def __init__(
        self,
        store: KeyStore,
        interests: Iterable[KeyRange],
        settings: SessionSettings,
        is_fencepost: Callable[[bytes], bool],
        state: _State,
    ) -> None:
        self._view = View(store)
        self._interests = merge_ranges(interests)
        self._settings = settings
        self._is_fencepost = is_fencepost
        self._state = state
        self._initiated = state is _State.START
        self._message: Message | None = None
        self._agreement: Message | None = None  # the single hash that we sent last, if we did
        self._idle_rounds = 0
        self._listed = 0
        self.key_range: KeyRange | None = self._interests[0] if self._initiated else None
        """The range being reconciled: the one asked for, then what the responder made of it."""
        self.asked: KeyRange | None = self.key_range
        """The range that the initiator asked for: an interest of the initiator."""
        self.remaining: KeyRange | None = None
        """Initiator: what lies above the responder's first overlap, for a session of its own."""
        self.rounds = 0
        """Messages received from the peer."""

    @classmethod
    def initiator(
        cls,
        store: KeyStore,
        key_range: KeyRange,
        settings: SessionSettings = DEFAULT_SETTINGS,
        is_fencepost: Callable[[bytes], bool] | None = None,
    ) -> Session:
        """Make the side that asks for a range; begin with :meth:`start`."""
        if key_range.is_empty:
            raise LocalProtocolError("a session needs a range that can hold a key")
        return cls(
            store, [key_range], settings, is_fencepost or _is_event_id_fencepost, _State.START
        )

    @classmethod
    def responder(
        cls,
        store: KeyStore,
        interests: Iterable[KeyRange],
        settings: SessionSettings = DEFAULT_SETTINGS,
        is_fencepost: Callable[[bytes], bool] | None = None,
    ) -> Session:
        """Make the side that answers, within its interests; begin with :meth:`receive`."""
        return cls(
            store, interests, settings, is_fencepost or _is_event_id_fencepost, _State.LISTENING
        )

    @property
    def done(self) -> bool:
        """Whether the session has ended in agreement: nothing more is sent or expected."""
        return self._state is _State.DONE

    @property
    def given_up(self) -> int:
        """Number of keys that the peer listed but that could not be had."""
        return len(self._view.given_up)

    def start(self) -> Message:
        """Return the initiator's first message: one hash for the whole range."""
        self._expect(_State.START, "start")
        assert self.key_range is not None
        return self._send(_single(self.key_range, self._view.summarize(self.key_range).hash))

    def receive(self, message: Message) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold, in order.

        Raises RemoteProtocolError when the message breaks the protocol or the peer makes no
        progress.
        """
        self._expect(_State.LISTENING, "receive")
        message.check()
        self.rounds += 1
        if message == self._agreement or self._is_refusal(message):
            self._state = _State.DONE
            return []
        self._settle_range(message)
        self._message = message
        self._state = _State.RESPONDING
        new = [key for key in self._keys_of(message) if not self._view.holds(key)]
        self._idle_rounds = 0 if new else self._idle_rounds + 1
        if self._idle_rounds > self._settings.max_idle_rounds:
            raise RemoteProtocolError(f"peer made no progress in {self._idle_rounds} rounds")
        return new

    def give_up(self, keys: Iterable[bytes]) -> None:
        """Leave these keys of the message out: their events could not be had, or were refused.

        Raises RemoteProtocolError when the peer has listed too many of them.
        """
        self._expect(_State.RESPONDING, "give_up")
        for key in keys:
            self._view.give_up(key)
        if self.given_up > self._settings.max_given_up:
            raise RemoteProtocolError(
                f"peer listed {self.given_up} keys for which it delivered no valid event"
            )

    def respond(self) -> Message | None:
        """Return the answer to the message received; None when there is nothing left to say."""
        if self.done:
            return None
        self._expect(_State.RESPONDING, "respond")
        assert self._message is not None
        message, self._message = self._message, None
        if self.key_range is None:
            refusal = _single(KeyRange(message.bounds[0], message.bounds[0]), ZERO)
            self._state = _State.DONE
            return refusal
        if message.key_range != self.key_range and self._was_trimmed(message):
            return self._send(_single(self.key_range, self._view.summarize(self.key_range).hash))
        reply = self._answer(message)
        if reply == message and reply.is_single:
            self._state = _State.DONE
            return reply
        return self._send(reply)

    def _expect(self, state: _State, call: str) -> None:
        if self._state is not state:
            raise LocalProtocolError(f"{call}() in state {self._state.name}, needs {state.name}")

    def _send(self, message: Message) -> Message:
        self._agreement = message if message.is_single else None
        self._state = _State.LISTENING
        return message

    def _is_refusal(self, message: Message) -> bool:
        """Tell whether this is the responder's "no interest in what you ask for"."""
        if not self._initiated or self.rounds > 1:
            return False
        assert self.asked is not None
        return message.key_range == KeyRange(self.asked.lower, self.asked.lower)

    def _settle_range(self, message: Message) -> None:
        """Fix or check the session's range by the bounds of a message."""
        theirs = message.key_range
        if theirs.is_empty:
            raise RemoteProtocolError("peer ended the range in the middle of the session")
        if self.asked is None:
            self.asked = theirs
            overlaps = (theirs.intersect(interest) for interest in self._interests)
            self.key_range = next((overlap for overlap in overlaps if overlap is not None), None)
            return
        assert self.key_range is not None
        ours = self.key_range
        may_trim = self._initiated and self.rounds == 1
        lower_ok = (
            theirs.lower == ours.lower
            or (theirs.lower < ours.lower and not self._is_fencepost(ours.lower))
            or (theirs.lower > ours.lower and may_trim)
        )
        upper_ok = (
            theirs.upper == ours.upper
            or (theirs.upper > ours.upper and not self._is_fencepost(ours.upper))
            or (theirs.upper < ours.upper and may_trim)
        )
        if not (lower_ok and upper_ok):
            raise RemoteProtocolError(
                f"peer answered for {_show(theirs)}, which is not within {_show(ours)}"
            )
        self.key_range = theirs
        if may_trim and theirs.upper < ours.upper:
            self.remaining = KeyRange(theirs.upper, ours.upper)

    def _was_trimmed(self, message: Message) -> bool:
        assert self.key_range is not None
        theirs = message.key_range
        return self.key_range.lower > theirs.lower or self.key_range.upper < theirs.upper

    def _keys_of(self, message: Message) -> Iterable[bytes]:
        """Yield the bounds of a message that are keys, and within the session's range."""
        if self.key_range is None:
            return
        lower, upper = self.key_range
        last = len(message.bounds) - 1
        for index, bound in enumerate(message.bounds):
            if lower <= bound <= upper and (0 < index < last or not self._is_fencepost(bound)):
                yield bound

    def _answer(self, message: Message) -> Message:
        """Answer every gap of a message (the table in the module's text)."""
        reply = Reply(self._view, self._first_bound(message), self._settings)
        if reply.last_bound < message.bounds[0]:
            reply.tell(message.bounds[0])
        for (lower, upper), theirs in zip(pairwise(message.bounds), message.hashes, strict=True):
            if reply.is_full:
                break
            self._answer_gap(reply, KeyRange(lower, upper), theirs)
        if reply.reach < message.bounds[-1]:
            reply.tell(message.bounds[-1])
        last = self._last_bound(message)
        if reply.reach < last:
            reply.tell(last)
        answer = reply.message()
        self.key_range = answer.key_range
        return answer

    def _answer_gap(self, reply: Reply, gap: KeyRange, theirs: Sha256a) -> None:
        ours = self._view.summarize(gap)
        if ours.hash == theirs:
            reply.match(gap.upper)
        elif ours.count == 0:
            reply.tell(gap.upper, ours.hash)
        elif not theirs:
            self._list(reply, gap, ours.count, peer_holds_none=True)
        elif ours.count <= self._settings.list_threshold:
            self._list(reply, gap, ours.count, peer_holds_none=False)
        else:
            for pivot in self._view.store.split(gap, self._settings.fan_out):
                reply.tell(pivot)
            reply.tell(gap.upper)

    def _list(self, reply: Reply, gap: KeyRange, count: int, *, peer_holds_none: bool) -> None:
        """List our keys of a gap, up to a page; gaps in which nobody holds a key are matches."""
        page = min(count, self._settings.page_keys, reply.room())
        self._listed += page
        if self._listed <= 2 * len(self._view.store):  # else the peer asks for the same keys again
            self._idle_rounds = 0
        for key in self._view.store.keys(gap, page):
            if peer_holds_none:
                reply.match(key)
                reply.close_match()
            else:
                reply.tell(key, self._view.given_up_hash(KeyRange(reply.reach, key)))
        if page < count:
            reply.tell(gap.upper)
        elif peer_holds_none:
            reply.match(gap.upper)
        else:
            reply.tell(gap.upper, self._view.given_up_hash(KeyRange(reply.reach, gap.upper)))

    def _first_bound(self, message: Message) -> bytes:
        """Return the message's lower bound, or our first key where that lies before a key."""
        bound = message.bounds[0]
        if self._initiated or self._is_fencepost(bound):
            return bound
        beyond = [each.lower for each in self._interests if each.lower < bound <= each.upper]
        return (beyond and self._view.store.first(KeyRange(beyond[0], bound))) or bound

    def _last_bound(self, message: Message) -> bytes:
        """Return the message's upper bound, or our last key where that lies behind a key."""
        bound = message.bounds[-1]
        if self._initiated or self._is_fencepost(bound):
            return bound
        beyond = [each.upper for each in self._interests if each.lower <= bound < each.upper]
        return (beyond and self._view.store.last(KeyRange(bound, beyond[0]))) or bound


def _single(key_range: KeyRange, ahash: Sha256a) -> Message:
    return Message((key_range.lower, key_range.upper), (ahash,))


def _is_event_id_fencepost(bound: bytes) -> bool:
    return EventId(bound).is_fencepost


def _show(key_range: KeyRange) -> str:
    return f"({key_range.lower.hex()}, {key_range.upper.hex()})"
