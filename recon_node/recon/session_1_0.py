"""A session on `/ceramic/recon/1.0.0`: the messages of CIP-124.

===================================  =========================================================
our keys and the peer's hash         the answer for that gap
===================================  =========================================================
hashes are equal                     a match; neighbouring matches are merged into one hash
we hold none                         0: "send me yours"
the peer holds none (its hash is 0)  all our keys: a page of them, then the hash of the rest
we hold at most ``list_threshold``   all our keys
else                                 equal parts: pivot keys with the hashes between them
===================================  =========================================================

When everything matched, the merged answer is a single hash for the whole range; when both sides
have said that, the session is done. A side that gets back the very hash it sent has reached
agreement about that, whatever came in since.

The refusal of a range is the empty range of its lower bound. A bound that is a key (as in CIP-124's
example, where a range goes from the initiator's first key to its last) is extended to the
responder's own first or last key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence

from recon_node.ceramic import EventId
from recon_node.recon.key_range import KeyRange
from recon_node.recon.messages_1_0 import Message
from recon_node.recon.reply_1_0 import Reply
from recon_node.recon.session import GAPS_A_STEP, Session, Steps
from recon_node.recon.sha256a import COUNT_SHIFT, ZERO


def is_fencepost(bound: bytes) -> bool:
    """Tell whether a bound, an EventId, is no key."""
    return EventId(bound).is_fencepost


class Session10(Session[Message]):
    """One side of a session on `/ceramic/recon/1.0.0`."""

    is_fencepost: Callable[[bytes], bool] = staticmethod(is_fencepost)
    _agreement: Message | None = None
    """The single hash that we sent last, if we did."""

    def _open(self) -> Message:
        return self._send(self._whole())

    def _take(self, message: Message) -> Iterable[bytes]:
        message.check()
        if message == self._agreement:
            self._finish()
            return ()
        if self._is_refusal(message):
            self._end_refused()
            return ()
        self._settle_range(message.key_range)
        return self._keys_of(message)

    def _refuse(self, message: Message) -> Message:
        lower = message.key_range.lower
        return Message((lower, lower), (ZERO,))

    def _answer(self, turn: list[Message]) -> Steps[Message]:
        (message,) = turn
        if self._was_trimmed(message):
            return [self._send(self._whole())]
        reply = yield from self._answer_gaps(message)
        if reply == message and reply.is_single:
            self._finish()
        return [self._send(reply)]

    def _send(self, message: Message) -> Message:
        self._agreement = message if message.is_single else None
        return message

    def _whole(self) -> Message:
        assert self.key_range is not None
        return Message(tuple(self.key_range), (self._view.hash(self.key_range),))

    def _is_refusal(self, message: Message) -> bool:
        if not self.initiates or self.rounds > 1:
            return False
        assert self.asked is not None
        return message.key_range == KeyRange(self.asked.lower, self.asked.lower)

    def _may_extend(self, bound: bytes) -> bool:
        return not self.is_fencepost(bound)

    def _was_trimmed(self, message: Message) -> bool:
        assert self.key_range is not None
        theirs = message.key_range
        return self.key_range.lower > theirs.lower or self.key_range.upper < theirs.upper

    def _keys_of(self, message: Message) -> Sequence[bytes]:
        """Return the bounds of a message that are keys, and within the session's range."""
        if self.key_range is None:
            return ()
        bounds = message.bounds
        lower, upper = self.key_range
        start, end = bisect_left(bounds, lower), bisect_right(bounds, upper)
        if start == 0 and self.is_fencepost(bounds[0]):
            start = 1
        if end == len(bounds) and self.is_fencepost(bounds[-1]):
            end -= 1
        return bounds[start:end]

    def _answer_gaps(self, message: Message) -> Generator[None, None, Message]:
        """Answer every gap of a message (the table in the module's text)."""
        reply = Reply(self._view, self._first_bound(message), self._settings)
        if reply.last_bound < message.bounds[0]:
            reply.tell(message.bounds[0])
        for index, (upper, theirs) in enumerate(
            zip(message.bounds[1:], message.hashes, strict=True)
        ):
            if reply.is_full:
                break
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_places()  # the store may have changed
            self._answer_gap(reply, upper, theirs)
        if reply.reach < message.bounds[-1]:
            reply.tell(message.bounds[-1])
        last = self._last_bound(message)
        if reply.reach < last:
            reply.tell(last)
        answer = reply.message()
        self.key_range = answer.key_range
        return answer

    def _answer_gap(self, reply: Reply, upper: bytes, theirs: bytes) -> None:
        """Answer the gap from where the reply is up to a bound."""
        lanes = reply.lanes_to(upper)
        count, ours = lanes >> COUNT_SHIFT, reply.hash_of(lanes, upper)
        if ours == theirs:
            reply.match(upper)
        elif count == 0:
            reply.tell(upper, ours)
        elif theirs == ZERO:
            self._list(reply, upper, count, peer_holds_none=True)
        elif count <= self._settings.list_threshold:
            self._list(reply, upper, count, peer_holds_none=False)
        else:
            reply.split(upper, self._settings.parts(count))

    def _list(self, reply: Reply, upper: bytes, count: int, *, peer_holds_none: bool) -> None:
        """List our keys of a gap, up to a page; gaps in which nobody holds a key are matches."""
        page = min(count, self._settings.page_keys, reply.room())
        self._count_listed(page)
        for key in reply.keys_to(upper, page):
            if peer_holds_none:
                reply.match(key)
                reply.close_match()
            else:
                reply.tell(key, reply.hash_of(0, key))
        if page < count:
            reply.tell(upper)
        elif peer_holds_none:
            reply.match(upper)
        else:
            reply.tell(upper, reply.hash_of(0, upper))

    def _first_bound(self, message: Message) -> bytes:
        """Return the message's lower bound, or our first key where that lies before a key."""
        bound = message.bounds[0]
        if self.initiates or self.is_fencepost(bound):
            return bound
        beyond = [each.lower for each in self._interests if each.lower < bound <= each.upper]
        return (beyond and self._view.store.first(KeyRange(beyond[0], bound))) or bound

    def _last_bound(self, message: Message) -> bytes:
        """Return the message's upper bound, or our last key where that lies behind a key."""
        bound = message.bounds[-1]
        if self.initiates or self.is_fencepost(bound):
            return bound
        beyond = [each.upper for each in self._interests if each.lower <= bound < each.upper]
        return (beyond and self._view.store.last(KeyRange(bound, beyond[0]))) or bound
