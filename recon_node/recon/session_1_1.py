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

Fan-out: a split in f parts costs f fingerprints a level and saves levels. While few gaps differ,
bytes are cheap and rounds dear, so those are split more finely (``_FEW_GAPS``, ``_FINE``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recon_node.recon.errors import RemoteProtocolError
from recon_node.recon.key_range import KeyRange, separator
from recon_node.recon.messages_1_1 import (
    END,
    FINGERPRINT_SIZE,
    Flag,
    Gap,
    Message,
    Say,
)
from recon_node.recon.session import Session
from recon_node.recon.settings import SessionSettings
from recon_node.recon.view import View

_MAX_CLOSINGS = 4
_FEW_GAPS = 64
_FINE = 2
"""How many times finer than ``fan_out`` a gap is split while few gaps differ."""


class Session11(Session[Message]):
    """One side of a session on `/ceramic/recon/1.1.0`."""

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
            if self.rounds > 1:
                raise RemoteProtocolError("peer changed the range in the middle of the session")
            self._settle_range(message.key_range)
        elif self.asked is None:
            raise RemoteProtocolError("the first message does not say what range it is about")
        return self._keys_of(message)

    def _keys_of(self, message: Message) -> Iterator[bytes]:
        key_range = self.key_range
        if key_range is None:
            return
        for gap in message.gaps:
            if not (gap.upper == END or key_range.lower < gap.upper < key_range.upper):
                raise RemoteProtocolError(f"gap ends outside the range: {gap.upper.hex()}")
            for key in gap.keys:
                if not key_range.covers(key):
                    raise RemoteProtocolError(f"key outside the range: {key.hex()}")
                yield key

    def _refuse(self, message: Message) -> Message:
        return Message(verdict=Flag.REFUSED)

    def _answer(self, message: Message) -> Message:
        assert self.key_range is not None
        if message.key_range is not None and message.key_range != self.key_range:
            return self._open()  # trimmed
        if message.closing is not None:
            return self._answer_closing(message.closing)
        draft = _Draft(self._view, self.key_range, self._settings)
        fan_out = self._fan_out(len(message.gaps))
        for gap in message.gaps:
            if draft.is_full:
                draft.ask_for_rest()
                break
            self._answer_gap(draft, gap, fan_out)
        return self._send(draft)

    def _answer_closing(self, closing: bytes) -> Message:
        assert self.key_range is not None
        if self._closings > _MAX_CLOSINGS or closing == self._view.fingerprint(self.key_range):
            self._finish()
            return Message(verdict=Flag.AGREED)
        self._closings += 1
        draft = _Draft(self._view, self.key_range, self._settings)
        self._answer_gap(draft, Gap(END, Say.FINGERPRINT, closing), self._fan_out(1))
        return self._send(draft)

    def _send(self, draft: _Draft) -> Message:
        assert self.key_range is not None
        closing = None if draft.asks else self._view.fingerprint(self.key_range)
        return Message(gaps=tuple(draft.gaps), closing=closing)

    def _fan_out(self, gaps: int) -> int:
        return self._settings.fan_out * (_FINE if gaps <= _FEW_GAPS else 1)

    def _answer_gap(self, draft: _Draft, gap: Gap, fan_out: int) -> None:
        inside = draft.gap_to(gap.upper)
        if gap.say is Say.KEYS:
            self._tell_more(draft, gap, inside)
        elif gap.say is Say.FINGERPRINT and gap.fingerprint != self._view.fingerprint(inside):
            self._narrow_down(draft, gap.upper, inside, fan_out)
        else:
            draft.agree(gap.upper)

    def _narrow_down(self, draft: _Draft, upper: bytes, inside: KeyRange, fan_out: int) -> None:
        count = self._view.store.count(inside)
        if count <= max(1, self._settings.list_threshold):  # one key cannot be cut apart
            self._count_listed(count)
            keys = self._view.held(inside)
            draft.add(Gap(upper, Say.KEYS, keys=tuple(keys)))
            return
        for cut in (*self._view.store.cut(inside, fan_out), upper):
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
    """A message being written from the range's lower bound up; agreed gaps are held back."""

    def __init__(self, view: View, key_range: KeyRange, settings: SessionSettings) -> None:
        self._view = view
        self._end = key_range.upper
        self._at = key_range.lower
        self._agreed_from: bytes | None = None
        # In reserve: one more split, and the fingerprint of the rest.
        reserve = (_FINE * settings.fan_out + settings.list_threshold + 2) * _KEY_ESTIMATE
        self._budget = settings.message_bytes - reserve
        self.gaps: list[Gap] = []
        self.asks = False
        """Whether any gap needs an answer."""

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit. Never before something was said."""
        return self._budget <= 0 and bool(self.gaps)

    def room(self) -> int:
        """Return how many more keys can be listed, at least one."""
        return max(1, self._budget // _KEY_ESTIMATE)

    def gap_to(self, upper: bytes) -> KeyRange:
        """Return the keys from here up to a bound."""
        return KeyRange(self._at, self._end if upper == END else upper)

    def agree(self, upper: bytes) -> None:
        """Pass over a gap. It is written only if another one follows."""
        if self._agreed_from is None:
            self._agreed_from = self._at
        self._at = self._end if upper == END else upper

    def ask(self, upper: bytes) -> None:
        """Write the fingerprint of our keys up to a bound."""
        fingerprint = self._view.fingerprint(self.gap_to(upper))
        self.add(Gap(upper, Say.FINGERPRINT, fingerprint))

    def ask_for_rest(self) -> None:
        """Cover all that is left with one fingerprint."""
        self.ask(END)

    def add(self, gap: Gap) -> None:
        """Write a gap that starts where the last one ended."""
        if self._agreed_from is not None:
            self._write(Gap(self._at, Say.AGREED))
            self._agreed_from = None
        self._write(gap)
        self._at = self._end if gap.upper == END else gap.upper
        self.asks = self.asks or gap.say in (Say.FINGERPRINT, Say.KEYS)

    def _write(self, gap: Gap) -> None:
        self.gaps.append(gap)
        size = 3 + len(gap.upper) + (FINGERPRINT_SIZE if gap.say is Say.FINGERPRINT else 0)
        self._budget -= size + _KEY_ESTIMATE * len(gap.keys)


_KEY_ESTIMATE = 96
"""Bytes that a key or a bound takes at most, as good as always: a bound of the budget's error."""
