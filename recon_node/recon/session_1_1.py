"""A session on `/ceramic/recon/1.1.0`: the turns of 1.0.0 in fewer bytes and rounds.

==========================  =================================================================
what the peer says of a gap  the answer for that gap
==========================  =================================================================
AGREED                      agreed
FINGERPRINT, equal to ours  agreed
FINGERPRINT, another        KEYS where we hold at most ``list_threshold``, else FINGERPRINTs of
                            equal parts, cut by the shortest strings that separate them
KEYS                        MORE: those of ours that the peer lacks, or agreed where it lacks none
MORE                        agreed
==========================  =================================================================

Neighbouring gaps that are agreed on become one, and cost nothing at the end of a message. Whoever
has no question left closes with the fingerprint of the whole range, all that it has just told
included. The session opens with the same: a range and its fingerprint. It is answered with AGREED
where it is right, else like any fingerprint. So two sides in sync say 85 bytes and 1 byte.

A closing can be wrong because a key came in meanwhile, on either side. The sides then reconcile the
whole range again, ``_MAX_CLOSINGS`` times at most: what is new after that is left for the next
session, for a busy node would never end this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.key_range import KeyRange, just_below, separator
from recon_node.recon.messages_1_1 import (
    END,
    FINGERPRINT_SIZE,
    MAX_TURN,
    Flag,
    Gap,
    Message,
    Say,
)
from recon_node.recon.session import GAPS_A_STEP, Session, Steps
from recon_node.recon.settings import SessionSettings
from recon_node.recon.view import View

_MAX_CLOSINGS = 4


class Session11(Session[Message]):
    """One side of a session on `/ceramic/recon/1.1.0`."""

    max_turn = MAX_TURN
    _closings = 0
    """Closings that were wrong so far."""

    def _open(self) -> Message:
        assert self.key_range is not None
        return Message(self.key_range, closing=self._view.fingerprint(self.key_range))

    def _take(self, message: Message) -> Iterable[bytes]:
        if message.verdict is Flag.AGREED and (self._initiates or self.rounds > 1):
            self._finish()
            return ()
        if message.verdict is Flag.REFUSED and self._initiates and self.rounds == 1:
            self._finish()
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

    def _keys_of(self, message: Message) -> Iterator[bytes]:
        key_range = self.key_range
        if key_range is None:
            return
        reached = self._turn[-1].gaps[-1].upper if self._turn else key_range.lower
        for gap in message.gaps:
            if gap.upper != END and not reached < gap.upper < key_range.upper:
                raise RemoteProtocolError(f"gap ends outside the range: {gap.upper.hex()}")
            if gap.keys and gap.keys[0] < reached:
                raise RemoteProtocolError(f"key below its gap: {gap.keys[0].hex()}")
            reached = gap.upper
            for key in gap.keys:
                if not key_range.covers(key):
                    raise RemoteProtocolError(f"key outside the range: {key.hex()}")
                yield key

    def _refuse(self, message: Message) -> Message:
        return Message(verdict=Flag.REFUSED)

    def _goes_on(self, message: Message) -> bool:
        return message.goes_on

    def _answer(self, turn: list[Message]) -> Steps[Message]:
        assert self.key_range is not None
        asked, closing = turn[0].key_range, turn[-1].closing
        if asked is not None and asked != self.key_range:
            return [self._open()]  # trimmed
        gaps = [gap for message in turn for gap in message.gaps]
        if closing is not None:
            if self._closings > _MAX_CLOSINGS or closing == self._view.fingerprint(self.key_range):
                self._finish()
                return [Message(verdict=Flag.AGREED)]
            self._closings += 1
            gaps = [Gap(END, Say.FINGERPRINT, closing)]
        draft = _Draft(self._view, self.key_range, self._settings)
        for index, gap in enumerate(gaps):
            if draft.is_full:
                draft.ask(END)
                break
            if index % GAPS_A_STEP == 0:
                yield
            self._answer_gap(draft, gap)
        return draft.messages()

    def _answer_gap(self, draft: _Draft, gap: Gap) -> None:
        inside = draft.gap_to(gap.upper)
        if gap.say is Say.KEYS:
            self._tell_more(draft, gap, inside)
        elif gap.say is Say.FINGERPRINT and gap.fingerprint != self._view.fingerprint(inside):
            self._narrow_down(draft, gap.upper, inside)
        else:
            draft.agree(gap.upper)

    def _narrow_down(self, draft: _Draft, upper: bytes, inside: KeyRange) -> None:
        count = self._view.count(inside)
        if count <= max(1, self._settings.list_threshold):  # one key cannot be cut apart
            self._count_listed(count)
            keys = self._view.held(inside)
            draft.add(Gap(upper, Say.KEYS, keys=tuple(keys)))
            return
        for cut in (*self._view.cut(inside, self._settings.parts(count)), upper):
            draft.ask(cut)

    def _tell_more(self, draft: _Draft, gap: Gap, inside: KeyRange) -> None:
        """Tell the peer what it lacks: a page of it, then a fingerprint of the rest."""
        known = set(gap.keys)
        page: list[bytes] = []
        room = min(self._settings.page_keys, draft.room())
        for key in self._view.store.keys(inside):
            if key in known:
                continue
            if len(page) == room:
                cut = separator(page[-1], key)
                draft.add(Gap(cut, Say.MORE, keys=tuple(page)))
                draft.ask(gap.upper)
                break
            page.append(key)
        else:
            if page:
                draft.add(Gap(gap.upper, Say.MORE, keys=tuple(page)))
            else:
                draft.agree(gap.upper)
        self._count_listed(len(page))


class _Draft:
    """A turn being written from the range's lower bound up; agreed gaps are held back."""

    def __init__(self, view: View, key_range: KeyRange, settings: SessionSettings) -> None:
        self._view = view.fork()
        self._range = key_range
        self._at = self._after = key_range.lower
        self._has_agreed = False
        # In reserve: one more split or list, and the fingerprint of the rest.
        reserve = (settings.fan_out + settings.list_threshold + 2) * _KEY_ESTIMATE
        self._message_budget = settings.message_bytes - reserve
        self._budget = self._message_budget
        self._messages_left = min(settings.turn_messages, MAX_TURN) - 1
        self._gaps: list[Gap] = []
        self._finished: list[Message] = []
        self._asks = False

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit. Never before something was said."""
        return self._budget <= 0 and bool(self._gaps) and not self._messages_left

    def room(self) -> int:
        """Return how many more keys can be listed, at least one."""
        return max(1, self._budget // _KEY_ESTIMATE)

    def gap_to(self, upper: bytes) -> KeyRange:
        """Return the keys from here up to a bound."""
        return KeyRange(self._after, self._range.upper if upper == END else upper)

    def agree(self, upper: bytes) -> None:
        """Pass over a gap. It is written only if another one follows."""
        self._has_agreed = True
        self._move_to(upper)

    def ask(self, upper: bytes) -> None:
        """Write the fingerprint of our keys up to a bound."""
        self.add(Gap(upper, Say.FINGERPRINT, self._view.fingerprint(self.gap_to(upper))))

    def add(self, gap: Gap) -> None:
        """Write a gap that starts where the last one ended."""
        if self._budget <= 0 and self._gaps and self._messages_left:
            self._break_off()
        if self._has_agreed:
            self._write(Gap(self._at, Say.AGREED))
            self._has_agreed = False
        self._write(gap)

    def messages(self) -> list[Message]:
        """Finish the turn; close the session's range where nothing was asked."""
        closing = None if self._asks else self._view.fingerprint(self._range)
        return [*self._finished, Message(gaps=tuple(self._gaps), closing=closing)]

    def _break_off(self) -> None:
        self._finished.append(Message(gaps=tuple(self._gaps), goes_on=True))
        self._gaps = []
        self._messages_left -= 1
        self._budget = self._message_budget

    def _write(self, gap: Gap) -> None:
        self._gaps.append(gap)
        self._move_to(gap.upper)
        self._asks = self._asks or gap.say in (Say.FINGERPRINT, Say.KEYS)
        size = 3 + len(gap.upper) + (FINGERPRINT_SIZE if gap.say is Say.FINGERPRINT else 0)
        self._budget -= size + sum(len(key) + 2 for key in gap.keys)

    def _move_to(self, upper: bytes) -> None:
        """Start the next gap at a bound. Where that is a key of ours, the gap holds it."""
        self._at = self._after = self._range.upper if upper == END else upper
        if upper != END and self._view.holds(upper):
            self._after = just_below(upper)


_KEY_ESTIMATE = 96
"""Bytes that a key or a bound takes in a message, generously."""
