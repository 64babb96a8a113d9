"""A session on `/ceramic/recon/1.1.0`: the turns of 1.0.0 in fewer bytes and rounds.

===========================  ================================================================
what the peer says of a gap  the answer for that gap
===========================  ================================================================
AGREED                       agreed
FINGERPRINT, equal to ours   agreed; so is one of our keys and those that we left out
FINGERPRINT, another         KEYS where we hold at most ``list_threshold``, else FINGERPRINTs of
                             equal parts, cut by the shortest strings that separate them
KEYS                         MORE: those of ours that the peer lacks, or agreed where it lacks none
MORE                         agreed
===========================  ================================================================

Neighbouring gaps that are agreed on become one, and cost nothing at the end of a message. Whoever
has no question left closes with the fingerprint of the whole range, all that it has just told
included. The session opens with the same: a range and its fingerprint. It is answered with AGREED
where it is right, else like any fingerprint. So two sides in sync say 85 bytes and 1 byte.

Every fingerprint is of the sender's own keys. Keys that the peer listed and that could not be had
are *left out*: gaps are agreed on without them, and beside the closing stand their number, and the
fingerprint of our keys and them together. A closing is right if that union and ours are equal: then
each side knows what the other holds, and they differ in just the keys that one of them left out.
AGREED says again how many its sender left out. So refused keys cost no turn more.

A closing can be wrong because a key came in meanwhile, on either side. The sides then reconcile the
whole range again, ``_MAX_CLOSINGS`` times at most: what is new after that is left for the next
session, for a busy node would never end this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.keys.ranges import separator
from recon_node.recon.session import GAPS_A_STEP, Session, Steps
from recon_node.recon.v1_1.codec import MAX_TURN, Flag, Message, fingerprint
from recon_node.recon.v1_1.gaps import END, FINGERPRINT, KEYS
from recon_node.recon.v1_1.reply import Reply, left_out_of

_MAX_CLOSINGS = 4
_WEIGHT_OF_EACH: Final = 64
_TURN_WEIGHT: Final = 96
"""MiB that a turn weighs at most (`_weigh`): half more than any that MAX_TURN frames need."""


class Session11(Session[Message]):
    """One side of a session on `/ceramic/recon/1.1.0`."""

    max_turn = MAX_TURN
    _closings = 0
    """Closings that were wrong so far."""
    _weight = 0
    """Of the peer's turn so far."""

    def _open(self) -> Message:
        assert self.key_range is not None
        return Message(
            self.key_range, closing=fingerprint(self._view.store.summarize(self.key_range))
        )

    def _take(self, message: Message) -> Iterable[bytes]:
        if message.left_out is not None:
            self.left_out_by_peer = message.left_out.number
        if message.verdict is Flag.AGREED and (self.initiates or self.rounds > 1):
            self._finish()
            return ()
        if message.verdict is Flag.REFUSED and self.initiates and self.rounds == 1:
            self._end_refused()
            return ()
        if message.verdict is not None:
            raise RemoteProtocolError(f"peer said {message.verdict.name} to nothing")
        if message.key_range is not None:
            if self.rounds > 1 or self._turn:
                raise RemoteProtocolError("peer changed the range in the middle of the session")
            self._settle_range(message.key_range)
        elif self.asked is None:
            raise RemoteProtocolError("the first message does not say what range it is about")
        return self._keys_of(message)

    def _keys_of(self, message: Message) -> list[bytes]:
        """Check that a message's gaps lie in the range, above those before; return its keys.

        That they ascend, and that no key lies above its gap, is known since it was decoded.
        """
        key_range, gaps = self.key_range, message.gaps
        keys = gaps.keys()
        self._weigh(gaps.uppers, keys)
        if key_range is None or not gaps:
            return []
        reached = self._turn[-1].gaps[-1].upper if self._turn else key_range.lower
        for upper in (gaps[0].upper, gaps[-1].upper):
            if upper != END and not reached < upper < key_range.upper:
                raise RemoteProtocolError(f"gap ends outside the range: {upper.hex()}")
        if keys and keys[0] < reached:
            raise RemoteProtocolError(f"key below its gap: {keys[0].hex()}")
        for key in (keys[0], keys[-1]) if keys else ():
            if not key_range.covers(key):
                raise RemoteProtocolError(f"key outside the range: {key.hex()}")
        return keys

    def _weigh(self, bounds: list[bytes], keys: list[bytes]) -> None:
        """Bound the memory of a turn: a bound of 256 bytes may take three bytes of a message."""
        if not self._turn:
            self._weight = 0
        written_out = sum(map(len, bounds)) + sum(map(len, keys))
        self._weight += written_out + _WEIGHT_OF_EACH * (len(bounds) + len(keys))
        if self._weight > _TURN_WEIGHT * max(1 << 20, self._settings.message_bytes):
            raise RemoteProtocolError(f"a turn of {self._weight:,} bytes, written out")

    def _refuse(self, message: Message) -> Message:
        return Message(verdict=Flag.REFUSED)

    def _goes_on(self, message: Message) -> bool:
        return message.goes_on

    def _answer(self, turn: list[Message]) -> Steps[Message]:
        assert self.key_range is not None
        asked, closing = turn[0].key_range, turn[-1].closing
        if asked is not None and asked != self.key_range:
            return [self._open()]  # trimmed
        columns = chain.from_iterable(message.gaps.columns() for message in turn)
        if closing is not None:
            if self._closings > _MAX_CLOSINGS or self._is_right(turn[-1]):
                self._finish()
                left_out = left_out_of(self._view, self.key_range)
                return [Message(verdict=Flag.AGREED, left_out=left_out)]
            self._closings += 1
            columns = chain([(END, FINGERPRINT, closing)])
        reply = Reply(self._view, self.key_range, self._settings)
        for index, (upper, say, body) in enumerate(columns):
            if reply.is_full:
                reply.ask(END)
                break
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_place()  # the store may have changed
            if say is KEYS and isinstance(body, tuple):
                self._tell_more(reply, upper, body)
            elif (
                say is FINGERPRINT
                and isinstance(body, bytes)
                and body != reply.fingerprint_to(upper)
                and not reply.is_settled(upper, body)
            ):
                self._narrow_down(reply, upper)
            else:
                reply.agree(upper)
        return reply.messages()

    def _is_right(self, closing: Message) -> bool:
        """Tell whether a closing leaves nothing but keys that one of the sides left out."""
        assert self.key_range is not None
        ours = left_out_of(self._view, self.key_range)
        union = (
            ours.fingerprint if ours else fingerprint(self._view.store.summarize(self.key_range))
        )
        theirs = closing.left_out
        return union == (theirs.fingerprint if theirs else closing.closing)

    def _narrow_down(self, reply: Reply, upper: bytes) -> None:
        count = reply.count_to(upper)
        if count <= max(1, self._settings.list_threshold):  # one key cannot be cut apart
            self._count_listed(count)
            reply.list_keys(upper)
        else:
            reply.ask_parts(upper, self._settings.parts(count))

    def _tell_more(self, reply: Reply, upper: bytes, known: tuple[bytes, ...]) -> None:
        """Tell the peer what it lacks: a page of it, then a fingerprint of the rest."""
        page, rest = reply.page_to(upper, known)
        if rest is not None:
            reply.tell(separator(page[-1], rest), page)
            reply.ask(upper)
        elif page:
            reply.tell(upper, page)
        else:
            reply.agree(upper)
        self._count_listed(len(page))
