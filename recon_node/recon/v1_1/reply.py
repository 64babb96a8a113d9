"""Writing a turn of `/ceramic/recon/1.1.0`, from the range's lower bound up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from recon_node.recon.keys.finger import Finger
from recon_node.recon.keys.ranges import KeyRange, separator
from recon_node.recon.keys.sha256a import COUNT_SHIFT, lanes_of
from recon_node.recon.side import Side
from recon_node.recon.v1_1.codec import (
    AGREED,
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    KEYS,
    MORE,
    Body,
    Gaps,
    LeftOut,
    Message,
    Say,
    fingerprint,
)

MAX_TURN: Final = 16
"""Maximum messages of a turn."""
_DENSE_RUN: Final = 16
"""Wrong fingerprints in a row after which differences are taken to lie close together."""
_DENSE_LISTS: Final = 8
"""How many times as many keys are then listed in place of splitting a gap. Nearly all parts of
these gaps would differ as well, so that their fingerprints would take time and a round in vain."""
_KEY_SIZE: Final = 96
"""Bytes that a key or a bound takes in a message, estimated generously."""
_GAP_OVERHEAD: Final = 3
"""Bytes of a gap in addition to its bound and body: the lengths, and the number of its keys."""
_KEY_OVERHEAD: Final = 2
"""Bytes of a key in addition to its own: the two lengths of its front-coding."""


def columns_of(turn: list[Message]) -> Iterator[tuple[bytes, Say, Body]]:
    """Iterate over the gaps of a turn; a closing is a fingerprint of the whole range."""
    closing = turn[-1].closing
    if closing is not None:
        return iter([(END, FINGERPRINT, closing)])
    return chain.from_iterable(message.gaps.columns() for message in turn)


class Reply:
    """A turn being written, from the range's lower bound up, in one walk over the store.

    It knows where the current gap starts: the bound, and the *place* of that bound in the store
    (finger.py). The difference between that and the place of the gap's upper bound is the hash and
    the number of the keys between them, so one lookup tells whether the peer's fingerprint is
    right. The cuts that divide a gap come with their places, so the fingerprints of the parts are
    differences, too. When the store may have changed, places are forgotten.

    Gaps that are agreed on are held back, to be merged.
    """

    def __init__(self, side: Side, key_range: KeyRange) -> None:
        self._side = side
        self._finger = Finger(side.keys)
        self._range = key_range
        self._at = key_range.lower
        """Where the current gap starts, inclusive unless it is the range's lower bound."""
        self._place: int | None = None
        """The place of that bound, if it is known."""
        self._next: bytes | None = None
        """The bound that was looked up last."""
        self._next_place = 0
        self._has_agreed = False
        self._wrong_run = 0
        """Gaps whose fingerprints were wrong since the last one that was agreed on."""
        settings = side.settings
        # In reserve: one more split or list, and the fingerprint of the rest.
        reserve = (settings.fan_out + settings.list_threshold + 2) * _KEY_SIZE
        self._message_budget = settings.message_bytes - reserve
        self._budget = self._message_budget
        """Bytes left in the current message, with the reserve taken off."""
        self._messages_left = min(settings.turn_messages, MAX_TURN) - 1
        self._gaps = Gaps()
        self._finished: list[Message] = []
        self._asks = False

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit. Never before something was said."""
        return self._budget <= 0 and bool(self._gaps.uppers) and not self._messages_left

    def forget_place(self) -> None:
        """Look up again where the current gap starts: the store may have changed."""
        self._place = self._next = None

    def differs(self, upper: bytes, theirs: bytes) -> bool:
        """Return whether a gap is to be answered, given the peer's fingerprint of it."""
        return theirs != self.fingerprint_to(upper) and not self.is_settled(upper, theirs)

    def fingerprint_to(self, upper: bytes) -> bytes:
        """Return the fingerprint of our keys from here up to a bound."""
        start = self._place
        if start is None:
            start = self._start()
        return fingerprint(self._place_of(upper) - start)

    def is_settled(self, upper: bytes, theirs: bytes) -> bool:
        """Return whether the peer holds up to a bound just our keys and those that we left out."""
        if not self._side.given_up:
            return False
        gap = KeyRange(self._at, upper or self._range.upper)
        left_out = self._side.left_out_in(gap, with_lower=True)
        lanes = self._place_of(upper) - self._start() + sum(map(lanes_of, left_out))
        return bool(left_out) and fingerprint(lanes) == theirs

    def agree(self, upper: bytes) -> None:
        """Pass over a gap. It is written only if another one follows."""
        self._has_agreed = True
        self._wrong_run = 0
        self._move_to(upper)

    def ask(self, upper: bytes) -> None:
        """Write the fingerprint of our keys up to a bound."""
        start = self._start()
        self._ask_each([(upper, self._place_of(upper))], start)

    def narrow_down(self, upper: bytes) -> None:
        """Answer a wrong fingerprint: list our keys, or write the fingerprints of equal parts."""
        settings, start, end = self._side.settings, self._start(), self._place_of(upper)
        count = end - start >> COUNT_SHIFT
        self._wrong_run += 1
        if count <= self._list_limit():
            self._side.count_listed(count)
            self._list(upper, KEYS, self._finger.keys_at(*self._ranks(upper)))
            self._asks = True
            return
        cuts = self._finger.cuts(start, end, settings.parts(count))
        self._ask_each([*cuts, (upper, end)], start)

    def _list_limit(self) -> int:
        """Return up to how many keys of a wrong gap are listed rather than divided."""
        threshold = self._side.settings.list_threshold
        few = max(1, threshold)  # a single key cannot be divided
        if self._wrong_run <= _DENSE_RUN:
            return few
        return max(few, min(_DENSE_LISTS * threshold, self._budget // _KEY_SIZE))

    def tell_lacking(self, upper: bytes, known: tuple[bytes, ...]) -> None:
        """Answer the peer's list: a page of the keys it lacks, and a fingerprint of the rest."""
        page, rest = self._page_to(upper, set(known))
        if rest is not None:
            self._list(separator(page[-1], rest), MORE, page)
            self.ask(upper)
        elif page:
            self._list(upper, MORE, page)
        else:
            self.agree(upper)
        self._side.count_listed(len(page))

    def messages(self) -> list[Message]:
        """Finish the turn; close the session's range if nothing was asked."""
        if self._asks:
            return [*self._finished, Message(gaps=self._gaps)]
        lanes = self._side.keys.lanes(self._range)
        with_left_out = union(self._side, self._range, lanes)
        left_out = with_left_out if with_left_out.number else None
        closing = fingerprint(lanes) if left_out else with_left_out.fingerprint
        return [*self._finished, Message(gaps=self._gaps, closing=closing, left_out=left_out)]

    def _page_to(self, upper: bytes, known: set[bytes]) -> tuple[list[bytes], bytes | None]:
        """Return the first keys from here up to a bound that the peer does not know.

        They are as many as fit, at least one; the next such key comes with them, if there is one.
        """
        room = min(self._side.settings.page_keys, max(1, self._budget // _KEY_SIZE))
        page: list[bytes] = []
        for run in self._finger.runs(*self._ranks(upper)):
            page += [key for key in run if key not in known]
            if len(page) > room:
                return page[:room], page[room]
        return page, None

    def _start(self) -> int:
        """Return the place where the current gap starts."""
        if self._place is None:
            at = self._at
            beyond = self._finger.up_to if at == self._range.lower else self._finger.left_of
            self._place = beyond(at)
        return self._place

    def _place_of(self, upper: bytes) -> int:
        """Return the place where the current gap ends."""
        if upper is not self._next:
            self._next_place = self._finger.left_of(upper or self._range.upper)
            self._next = upper
        return self._next_place

    def _ranks(self, upper: bytes) -> tuple[int, int]:
        """Return the ranks at which the current gap starts and ends."""
        if self._place is not None or self._at == self._range.lower:
            start = self._start() >> COUNT_SHIFT
        else:
            start = self._finger.rank_of(self._at)
        return start, self._finger.rank_of(upper or self._range.upper)

    def _ask_each(self, parts: Iterable[tuple[bytes, int]], start: int) -> None:
        """Write the fingerprints of neighbouring parts: the upper bound and place of each."""
        gaps, upper = self._gaps, END
        for upper, end in parts:
            if self._has_agreed or self._budget <= 0:
                self._make_room()
                gaps = self._gaps
            gaps.append(upper, FINGERPRINT, fingerprint(end - start))
            self._budget -= _GAP_OVERHEAD + len(upper) + FINGERPRINT_SIZE
            start = end
        self._at, self._place = upper or self._range.upper, start
        self._asks = True

    def _list(self, upper: bytes, say: Say, keys: list[bytes]) -> None:
        self._make_room()
        self._gaps.append(upper, say, tuple(keys))
        size = sum(map(len, keys)) + _KEY_OVERHEAD * len(keys)
        self._budget -= _GAP_OVERHEAD + len(upper) + size
        self._move_to(upper)

    def _make_room(self) -> None:
        """Begin another message if this one is full; write the agreed gap that is held back."""
        if self._budget <= 0 and self._gaps.uppers and self._messages_left:
            self._finished.append(Message(gaps=self._gaps, goes_on=True))
            self._gaps = Gaps()
            self._messages_left -= 1
            self._budget = self._message_budget
        if self._has_agreed:
            self._has_agreed = False
            self._gaps.append(self._at, AGREED)
            self._budget -= _GAP_OVERHEAD + len(self._at)

    def _move_to(self, upper: bytes) -> None:
        """Start the next gap at a bound."""
        self._place = self._next_place if upper is self._next else None
        self._at = upper or self._range.upper


def union(side: Side, key_range: KeyRange, lanes: int) -> LeftOut:
    """Return the number of the keys left out of the range, and the fingerprint with all of ours.

    ``lanes`` are those of all our keys in the range.
    """
    keys = side.left_out_in(key_range)
    return LeftOut(len(keys), fingerprint(lanes + sum(map(lanes_of, keys))))
