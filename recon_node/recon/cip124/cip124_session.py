"""A session on `/ceramic/recon/1.0.0`: the messages of CIP-124.

===================================  =========================================================
our keys and the peer's hash         the answer for that gap
===================================  =========================================================
hashes are equal                     a match; neighbouring matches are merged into one hash
nothing is left to say (*settled*)   our hash, not merged with its neighbours
we hold none                         0: "send me yours"
the peer holds none (its hash is 0)  all our keys: a page of them, then the hash of the rest
we hold at most `list_threshold`     all our keys
else                                 equal parts: pivot keys with the hashes between them
===================================  =========================================================

When everything matched, the merged answer is a single hash for the whole range; when both sides
have said that, the session is done. A side that gets back the very hash that it sent has reached
agreement about that, whatever arrived since.

Keys left out
-------------
Every Ahash is of the sender's own keys, and every bound except the first and the last is a key that
the sender holds. So a side that left out keys of the peer's states other hashes than the peer, and
the two can never state the same one. What ends the session then is that each side knows when it has
nothing left to learn or to send:

- A bound of the peer's that we do not hold cannot be a bound of our answer. The two gaps beside it
  are answered as one; the peer's hash of that is the sum of its two hashes and of the key.
- Keys that we sent are *open* until the peer shows that it holds them, by a bound or a match.
- A gap is *settled* when the peer's hash is that of our keys and those that we gave up, less none
  or all of our open keys in it: the peer has what we have, apart from keys that one side refused.
- A side for which every gap of a message matches or is settled states its hashes once more and
  ends the stream. So does one that was sent the same four times and answers the same.
- The other finds its gaps settled too, or reads the end of the stream. Then the two agree on all
  but the open keys and those given up, provided that there are any and that the peer's last message
  has neither sent a key nor asked for one.

Why that ends: in each turn a key is learned, a key is sent for the first time, a differing gap
becomes smaller, or the turn repeats itself. Open keys do not get in the way of the others: where
the peer says that it holds none, where a list is longer than a page, and where pivots were sent
twice in vain, a page of the keys that are not open is listed. (What was sent in the last gap of a
message that brought new keys does not count: the peer may have had no room for it.) The side that
gave keys up finds their gaps settled in the peer's next message, so that refused keys take two more
messages rather than `max_idle_rounds`.

The refusal of a range is the empty range of its lower bound. A bound that is a key (as in CIP-124's
example, where a range goes from the initiator's first key to its last) is extended to the
responder's own first or last key.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from recon_node.base.steps import Steps
from recon_node.ceramic import EventId
from recon_node.recon.actions import Actions, Send
from recon_node.recon.cip124.cip124_codec import Cip124Message
from recon_node.recon.cip124.cip124_reply import Cip124Reply, OpenKeys
from recon_node.recon.keys.ordered_keys import KeyRange, intersect_ranges
from recon_node.recon.keys.sha256a import COUNT_SHIFT, ZERO, Sha256a, fold, lanes_of, spread
from recon_node.recon.session import GAPS_PER_STEP, Side, TurnSession, fetch, lanes_in_steps


def is_fencepost(bound: bytes) -> bool:
    """Return whether a bound, an EventId, is not a key."""
    return EventId(bound).is_fencepost


class _Gap(Enum):
    """How the sides stand in a gap."""

    MATCHES = auto()
    SETTLED = auto()
    ASKED_FOR = auto()
    """They differ, and the peer says that it holds no key in it."""
    DIFFERS = auto()


_ENDS: Final = frozenset({_Gap.MATCHES, _Gap.SETTLED})

_REPEATS: Final = 3
"""Repetitions of a round in a row after which it would repeat itself for ever: by then other keys
were listed. A peer whose pivots we refused repeats its message three times before it lists other
keys: keys that it sent while it was still learning do not count, and later ones must go unanswered
twice."""


_MAX_NEWS: Final = 16
"""New keys in the first message, as in 1.2.0."""


class Cip124Session(TurnSession[Cip124Message]):
    """One side of a session on `/ceramic/recon/1.0.0`."""

    def __init__(self, side: Side, is_fencepost: Callable[[bytes], bool] = is_fencepost) -> None:
        self.side = side
        self._is_fencepost = is_fencepost
        self._agreement: Cip124Message | None = None
        """The single hash that we sent last, if we did."""
        self._open = OpenKeys()
        self._open_before = 0
        """Keys that were open when the peer's last message arrived."""
        self._last_round: int | None = None
        """The hash() of the peer's last message and our answer, if keys are open or given up."""
        self._repeated = 0
        self._may_be_last = False
        """Whether the peer's last message may be its last word."""

    def start(self) -> Actions[Cip124Message]:
        """Send the initiator's first message: the hash of the range, or those around new keys."""
        self.side.start()
        news = self._news()
        if not news:
            yield self._send(self._whole())
            return
        assert self.side.key_range is not None
        lower, upper = self.side.key_range
        bounds = (lower, *news, upper)
        gaps = map(KeyRange, bounds, bounds[1:])
        hashes = [Sha256a.from_lanes(self.side.keys.lanes(gap)) for gap in gaps]
        self._open.replace((), news)
        yield self._send(Cip124Message(bounds, tuple(hashes)))

    def _news(self) -> Sequence[bytes]:
        """Return some new keys: the last one of each stream with any (CIP-124, "Abstract")."""
        assert self.side.key_range is not None
        ranges = intersect_ranges([self.side.key_range], self.side.news)[:_MAX_NEWS]
        last_keys = map(self.side.keys.last, ranges)
        return [key for key in last_keys if key is not None]

    def receive(self, message: Cip124Message) -> Actions[Cip124Message]:
        """Take the peer's message, and answer it."""
        self.side.receive()
        yield from fetch(self.side, self.side.learn(self._read(message)))
        if self.side.respond():
            answer = yield from self._respond(message)
            del message  # its memory does not count from now on
            yield self._send(answer)

    def _respond(self, message: Cip124Message) -> Steps[Cip124Message]:
        """Answer the peer's message."""
        side = self.side
        if side.key_range is None:
            side.finish()
            lower = message.key_range.lower
            return Cip124Message((lower, lower), (ZERO,))
        theirs = message.key_range
        if side.key_range.lower > theirs.lower or side.key_range.upper < theirs.upper:
            return self._whole()  # trimmed
        side.left_out_by_peer = 0
        answer, gaps = yield from self._answer_gaps(message)
        has_ended = gaps <= _ENDS and _Gap.SETTLED in gaps
        if (answer == message and answer.is_single) or has_ended or self._repeats(message, answer):
            side.finish()
        return answer

    def end_of_stream(self) -> bool:
        """Take the end of the peer's side of the stream: a good end, if keys were left out."""
        if self._may_be_last and not self.side.done:
            self.side.left_out_by_peer = self._open_before
            self.side.finish()
        return self.side.done

    def _read(self, message: Cip124Message) -> Sequence[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""
        side = self.side
        if message == self._agreement:
            side.finish()
            return ()
        if side.initiates and side.rounds == 1:
            assert side.asked is not None
            if message.key_range == KeyRange(side.asked.lower, side.asked.lower):
                side.finish_refused()
                return ()
        side.settle_range(message.key_range, lambda bound: not self._is_fencepost(bound))
        return self._keys_of(message)

    def _repeats(self, message: Cip124Message, answer: Cip124Message) -> bool:
        """Return whether both sides say the same again, because of keys left out."""
        if self.side.learned or not (self._open or self.side.left_out_keys):
            self._last_round = None
            return False
        last, self._last_round = self._last_round, hash((message, answer))
        self._repeated = self._repeated + 1 if last == self._last_round else 0
        return self._repeated >= _REPEATS

    def _send(self, message: Cip124Message) -> Send[Cip124Message]:
        self._agreement = message if message.is_single else None
        return Send([message])

    def _whole(self) -> Cip124Message:
        key_range = self.side.key_range
        assert key_range is not None
        return Cip124Message(
            tuple(key_range), (Sha256a.from_lanes(self.side.keys.lanes(key_range)),)
        )

    def _keys_of(self, message: Cip124Message) -> Sequence[bytes]:
        """Return the bounds of a message that are keys within the session's range."""
        if self.side.key_range is None:
            return ()
        bounds = message.bounds
        lower, upper = self.side.key_range
        start, end = bisect_left(bounds, lower), bisect_right(bounds, upper)
        if start == 0 and self._is_fencepost(bounds[0]):
            start = 1
        if end == len(bounds) and self._is_fencepost(bounds[-1]):
            end -= 1
        return bounds[start:end]

    def _answer_gaps(self, message: Cip124Message) -> Steps[tuple[Cip124Message, set[_Gap]]]:
        """Answer every gap of a message (the table in the module's text).

        Returns the answer, and how the sides stand in the gaps. A key of ours beyond the outer
        bounds counts as a gap that DIFFERS.
        """
        first = self._outer_bound(message.bounds[0], is_lower=True)
        reply = Cip124Reply(self.side.keys, first, self.side.settings)
        bounds, end = message.bounds, message.bounds[-1]
        gaps: set[_Gap] = set()
        if reply.last_bound < bounds[0]:
            reply.sent.append(reply.last_bound)
            reply.write_hash(bounds[0])
            gaps.add(_Gap.DIFFERS)
        passed = 0  # lanes of the peer's keys up to a bound that we do not hold
        lower = reply.reach
        for index, (upper, theirs) in enumerate(zip(bounds[1:], message.hashes, strict=True)):
            if index % GAPS_PER_STEP == 0:
                yield
                reply.forget_positions()  # the store may have changed
            if upper is not end and not reply.holds(upper):
                passed += spread(theirs) + lanes_of(upper)
                continue
            if passed:
                theirs, passed = fold(passed + spread(theirs)), 0
            gap, lower = KeyRange(lower, upper), upper
            lanes = reply.lanes_between(*gap)
            stands = _Gap.MATCHES
            if fold(lanes) != theirs:
                stands = yield from self._compare(reply, gap, lanes, theirs)
                lanes = reply.lanes_between(*gap)  # the store may have changed
            gaps.add(stands)
            if upper is end and self.side.learned:  # the peer may have had no room for ours
                self._open.reset_times(*gap)
            if not reply.is_full:
                self._answer_gap(reply, upper, lanes, stands)
            elif stands not in _ENDS:
                break
        if reply.reach < end:
            reply.still_open += self._open.between(lower, end)
            reply.write_hash(end)
        last = self._outer_bound(end, is_lower=False)
        if reply.reach < last:
            reply.write_key(last)
            gaps.add(_Gap.DIFFERS)
        answer = reply.message()
        self.side.key_range = answer.key_range
        self._note_open(reply, asked_for=_Gap.ASKED_FOR in gaps)
        return answer, gaps

    def _note_open(self, reply: Cip124Reply, *, asked_for: bool) -> None:
        """Note which keys are open from now on, and whether the peer's message may be its last."""
        self._open_before = len(reply.still_open)
        has_left_out = bool(reply.still_open) or bool(self.side.left_out)
        self._may_be_last = has_left_out and not self.side.learned and not asked_for
        self._open.replace(reply.still_open, reply.sent)

    def _compare(self, reply: Cip124Reply, gap: KeyRange, lanes: int, theirs: bytes) -> Steps[_Gap]:
        """Return how the sides stand in a gap that does not match, given the lanes of our keys and
        the peer's hash. The store may change meanwhile."""
        still_open = self._open.between(*gap)
        reply.still_open += still_open
        refused = None
        if still_open or self.side.left_out_keys:
            refused = yield from self._refused_in(gap, lanes, theirs, still_open)
            reply.forget_positions()
        if refused is not None:
            self.side.left_out_by_peer += refused
            return _Gap.SETTLED
        return _Gap.ASKED_FOR if theirs == ZERO else _Gap.DIFFERS

    def _answer_gap(self, reply: Cip124Reply, upper: bytes, lanes: int, stands: _Gap) -> None:
        """Answer the gap from where the reply is up to a bound."""
        count = lanes >> COUNT_SHIFT
        if stands is _Gap.MATCHES:
            reply.match(upper)
        elif stands is _Gap.SETTLED:
            reply.settle(upper, fold(lanes))
        elif count == 0:
            reply.write_hash(upper, ZERO)
        elif stands is _Gap.ASKED_FOR:
            self._list(reply, upper, count, peer_holds_none=True)
        elif count <= self.side.settings.list_threshold:
            self._list(reply, upper, count, peer_holds_none=False)
        elif self._pivots_are_in_vain(still_open := self._open.between(reply.reach, upper), count):
            self._go_on_listing(reply, upper, count, still_open)
        else:
            reply.split(upper, self.side.settings.parts(count))

    def _pivots_are_in_vain(self, still_open: list[bytes], count: int) -> bool:
        """Return whether a gap of this many keys was split before by keys that the peer refused."""
        return len(still_open) < count and self._open.any_twice(still_open)

    def _refused_in(
        self, gap: KeyRange, lanes: int, theirs: bytes, still_open: list[bytes]
    ) -> Steps[int | None]:
        """Return how many of our keys the peer left out of a settled gap; None for another gap."""
        left_out = yield from self.side.left_out_lanes(gap)
        if left_out and fold(lanes + left_out) == theirs:
            return 0
        open_lanes = yield from lanes_in_steps(self.side.keys, still_open)
        if still_open and fold(lanes + left_out - open_lanes) == theirs:
            return len(still_open)
        return None

    def _list(self, reply: Cip124Reply, upper: bytes, count: int, *, peer_holds_none: bool) -> None:
        """List our keys of a gap, up to a page; gaps in which nobody holds a key are matches."""
        page = min(count, self.side.settings.page_keys, reply.room())
        still_open = self._open.between(reply.reach, upper)
        if 0 < len(still_open) < count and (peer_holds_none or page < count):
            self._go_on_listing(reply, upper, count, still_open)
            return
        self.side.count_listed(page)
        for key in reply.keys_to(upper, page):
            if peer_holds_none:
                reply.match(key)
                reply.close_match()
                reply.sent.append(key)
            else:
                reply.write_key(key, ZERO)
        if page < count:
            reply.write_hash(upper)
        elif peer_holds_none:
            reply.match(upper)
        else:
            reply.write_hash(upper, ZERO)

    def _go_on_listing(
        self, reply: Cip124Reply, upper: bytes, count: int, still_open: list[bytes]
    ) -> None:
        """List keys of a gap of which some were sent in vain: the others, up to a page."""
        page = min(count, self.side.settings.page_keys, reply.room())
        passed = set(still_open)
        keys = [key for key in reply.keys_to(upper, page + len(passed)) if key not in passed]
        self.side.count_listed(len(keys[:page]))
        for key in keys[:page]:
            reply.write_key(key)
        reply.write_hash(upper)

    def _outer_bound(self, bound: bytes, *, is_lower: bool) -> bytes:
        """Return a bound of the message; if it is a key, our first or last key beyond it."""
        keys = self.side.keys
        if self.side.initiates or self._is_fencepost(bound) or bound not in keys:
            return bound
        interests = self.side.interests
        if is_lower:
            below = (KeyRange(start, bound) for start, end in interests if start < bound <= end)
            return next(map(keys.first, below), None) or bound
        above = (KeyRange(bound, end) for start, end in interests if start <= bound < end)
        return next(map(keys.last, above), None) or bound
