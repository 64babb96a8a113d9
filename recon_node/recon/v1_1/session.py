"""A session on `/ceramic/recon/1.1.0`: the turns of 1.0.0 in fewer bytes and rounds.

===========================  ================================================================
what the peer says of a gap  the answer for that gap
===========================  ================================================================
AGREED                       agreed
FINGERPRINT, equal to ours   agreed; likewise one of our keys and those that we left out
FINGERPRINT, another         KEYS if we hold at most ``list_threshold``, else FINGERPRINTs of
                             equal parts, divided by the shortest strings that separate them
                             (after many wrong fingerprints in a row, longer lists: reply.py)
KEYS                         MORE: those of ours that the peer lacks; agreed if it lacks none
MORE                         agreed
===========================  ================================================================

Neighbouring gaps that are agreed on are merged, and cost nothing at the end of a message. A side
that has nothing left to ask closes with the fingerprint of the whole range, including all that it
has just told. The session opens in the same way, with a range and its fingerprint. If that is
right, the answer is AGREED, else it is treated like any other fingerprint. So two sides in sync say
85 bytes and 1 byte.

Every fingerprint is of the sender's own keys. Keys that the peer listed and that we could not get
are *left out*: gaps are agreed on without them, and their number, and the fingerprint of our keys
and them together, accompany the closing. A closing is right if that union and ours are equal:
then each side knows what the other holds, and they differ only in keys that one of them left out.
AGREED repeats how many its sender left out. So refused keys take no extra turn.

A closing can be wrong because a key arrived meanwhile, on either side. The sides then reconcile the
whole range again, ``_MAX_CLOSINGS`` times at most. What is new after that is left for the next
session, because a busy node would never end this one.
"""

from __future__ import annotations

from typing import Final

from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.session import GAPS_A_STEP, Session, Steps
from recon_node.recon.side import RemoteProtocolError, Side
from recon_node.recon.v1_1.codec import (
    END,
    FINGERPRINT,
    KEYS,
    MIB,
    Gaps,
    Message,
    MessageFlag,
    fingerprint,
    weight_of,
)
from recon_node.recon.v1_1.reply import MAX_TURN, Reply, columns_of, union

_MAX_CLOSINGS: Final = 4
"""Wrong closings of the peer that are reconciled, not counting the opening."""
_TURN_WEIGHT: Final = 96
"""Maximum memory for the bounds and keys of a turn (``weight_of``), as a multiple of a frame of a
MiB, or of our own messages if they may be larger: 1.5 times that of MAX_TURN honest frames."""


class Session11(Session[Message]):
    """One side of a session on `/ceramic/recon/1.1.0`."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._turn: list[Message] = []
        """What has been heard of the peer's turn."""
        self._turn_weight = 0
        """About how many bytes of memory its bounds and keys take."""
        self._closings = 0
        """The peer's closings that were wrong."""
        self.held = 0
        """The number of our keys in the range when it was last opened, or a closing compared."""

    def start(self) -> Message:
        """Return the initiator's first message."""
        self.side.start()
        return self._opening()

    def receive(self, message: Message) -> list[bytes]:
        """Take the peer's message; return the keys in it that we do not hold."""
        self.side.hear(goes_on=message.goes_on, max_turn=MAX_TURN)
        keys = self._read(message)
        self._turn.append(message)
        return self.side.learn(keys)

    def respond(self) -> Steps[Message]:
        """Answer the peer's turn."""
        turn = self.take_turn()
        if not turn:
            return []
        answer = self.end_or_trim(turn)
        if answer is not None:
            return [answer]
        assert self.side.key_range is not None
        reply = Reply(self.side, self.side.key_range)
        for index, (upper, say, body) in enumerate(columns_of(turn)):
            if reply.is_full:
                reply.ask(END)
                break
            if index % GAPS_A_STEP == 0:
                yield
                reply.forget_place()  # the store may have changed
            if say is KEYS and isinstance(body, tuple):
                reply.tell_lacking(upper, body)
            elif say is FINGERPRINT and isinstance(body, bytes) and reply.differs(upper, body):
                reply.narrow_down(upper)
            else:
                reply.agree(upper)
        return reply.messages()

    def take_turn(self) -> list[Message]:
        """Take our turn; return what the peer said in its own, or nothing after the end."""
        if not self.side.respond():
            return []
        turn, self._turn, self._turn_weight = self._turn, [], 0
        return turn

    def end_or_trim(self, turn: list[Message]) -> Message | None:
        """Answer an opening or closing that is right, refused or to be trimmed; None for others."""
        key_range = self.side.key_range
        if key_range is None:
            self.side.finish()
            return Message(verdict=MessageFlag.REFUSED)
        asked, closing = turn[0].key_range, turn[-1].closing
        if asked is not None and asked != key_range:
            return self._opening()  # trimmed
        if closing is None:
            return None
        ours, theirs = union(self.side, key_range, self._sum_up(key_range)), turn[-1].left_out
        is_right = ours.fingerprint == (theirs.fingerprint if theirs else closing)
        if is_right or self._closings > _MAX_CLOSINGS:
            self.side.finish()
            return Message(verdict=MessageFlag.AGREED, left_out=ours if ours.number else None)
        self._closings += 1
        return None

    def _opening(self) -> Message:
        key_range = self.side.key_range
        assert key_range is not None
        return Message(key_range, closing=fingerprint(self._sum_up(key_range)))

    def _sum_up(self, key_range: KeyRange) -> int:
        """Return the lanes of our keys in the range, and take note of their number."""
        lanes = self.side.keys.lanes(key_range)
        self.held = lanes >> COUNT_SHIFT
        return lanes

    def _read(self, message: Message) -> list[bytes]:
        """Check a message and settle the range by it; return the keys that it lists."""
        side = self.side
        if message.left_out is not None:
            side.left_out_by_peer = message.left_out.number
        if message.verdict is MessageFlag.AGREED and (side.initiates or side.rounds > 1):
            side.finish()
            return []
        if message.verdict is MessageFlag.REFUSED and side.initiates and side.rounds == 1:
            side.finish_refused()
            return []
        if message.verdict is not None:
            raise RemoteProtocolError(f"peer said {message.verdict.name} to nothing")
        if message.key_range is not None:
            if side.rounds > 1 or self._turn:
                raise RemoteProtocolError("peer changed the range in the middle of the session")
            side.settle_range(message.key_range)
        elif side.asked is None:
            raise RemoteProtocolError("the first message does not say what range it is about")
        return self._keys_of(message.gaps)

    def _keys_of(self, gaps: Gaps) -> list[bytes]:
        """Check that gaps lie in the range, above those before; return their keys.

        Decoding has checked that they ascend, and that no key lies above its gap.
        """
        keys, uppers, key_range = gaps.keys(), gaps.uppers, self.side.key_range
        self._turn_weight += weight_of(uppers) + weight_of(keys)
        if self._turn_weight > _TURN_WEIGHT * max(MIB, self.side.settings.message_bytes):
            raise RemoteProtocolError(f"a turn of {self._turn_weight:,} bytes, written out")
        if key_range is None or not uppers:
            return []
        reached = self._turn[-1].gaps.uppers[-1] if self._turn else key_range.lower
        for upper in (uppers[0], uppers[-1]):
            if upper != END and not reached < upper < key_range.upper:
                raise RemoteProtocolError(f"gap ends outside the range: {upper.hex()}")
        if keys and keys[0] < reached:
            raise RemoteProtocolError(f"key below its gap: {keys[0].hex()}")
        for key in (keys[0], keys[-1]) if keys else ():
            if not key_range.covers(key):
                raise RemoteProtocolError(f"key outside the range: {key.hex()}")
        return keys
