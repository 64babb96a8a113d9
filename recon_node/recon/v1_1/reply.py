"""Writing an answer on `/ceramic/recon/1.1.0`: a turn, from the range's lower bound up.

A reply goes over the store once. It knows where the gap at hand starts: the bound, and the *place*
of that bound in the store (finger.py). The gap's upper bound is looked up next to it; the
difference of the two places is the hash and the number of the keys between, so one look-up answers
whether the peer's fingerprint is right. Where it is wrong, the cuts that part the gap come with
their places, and the fingerprints of the parts are differences again. The place where a gap ends is
the one where the next starts. When the store may have changed, places are forgotten.
"""

from __future__ import annotations

from recon_node.recon.keys.finger import Finger
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sha256a import COUNT_SHIFT, lanes_of
from recon_node.recon.settings import SessionSettings
from recon_node.recon.v1_1.codec import (
    FINGERPRINT_SIZE,
    MAX_TURN,
    LeftOut,
    Message,
    fingerprint,
    fingerprint_of,
)
from recon_node.recon.v1_1.gaps import AGREED, FINGERPRINT, Gaps, Say
from recon_node.recon.view import View

_KEY_ESTIMATE = 96
"""Bytes that a key or a bound takes in a message, generously."""


class Reply:
    """A turn being written from the range's lower bound up; agreed gaps are held back."""

    def __init__(self, view: View, key_range: KeyRange, settings: SessionSettings) -> None:
        self._view = view
        self._finger = Finger(view.store)
        self._range = key_range
        self._at = key_range.lower
        """Where the gap at hand starts: it holds the keys from here on, the range's bound left out.
        """
        self._place: int | None = None
        """The place of that bound, where it is known."""
        self._next: bytes | None = None
        self._next_place = 0
        """The bound that was looked up last, and its place."""
        self._has_agreed = False
        self._page = settings.page_keys
        # In reserve: one more split or list, and the fingerprint of the rest.
        reserve = (settings.fan_out + settings.list_threshold + 2) * _KEY_ESTIMATE
        self._message_budget = settings.message_bytes - reserve
        self._budget = self._message_budget
        self._messages_left = min(settings.turn_messages, MAX_TURN) - 1
        self._gaps = Gaps()
        self._finished: list[Message] = []
        self._asks = False

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit. Never before something was said."""
        return self._budget <= 0 and bool(self._gaps.uppers) and not self._messages_left

    def forget_place(self) -> None:
        """Look up anew where the gap at hand starts: the store may have changed."""
        self._place = self._next = None

    def fingerprint_to(self, upper: bytes) -> bytes:
        """Return the fingerprint of our keys from here up to a bound."""
        start = self._start()
        return fingerprint_of(self._place_of(upper) - start)

    def is_settled(self, upper: bytes, theirs: bytes) -> bool:
        """Tell whether the peer holds up to a bound just our keys and those that we left out."""
        if not self._view.given_up:
            return False
        left_out = self._view.left_out_from(self._at, upper or self._range.upper)
        lanes = self._place_of(upper) - self._start() + sum(map(lanes_of, left_out))
        return bool(left_out) and fingerprint_of(lanes) == theirs

    def count_to(self, upper: bytes) -> int:
        """Return the number of the store's keys from here up to a bound."""
        return self._place_of(upper) - self._start() >> COUNT_SHIFT

    def page_to(self, upper: bytes, known: tuple[bytes, ...]) -> tuple[list[bytes], bytes | None]:
        """Return the first of the keys from here up to a bound that are not known to the peer.

        They are as many as fit (at least one), beside the next one: None where these are all.
        """
        room = min(self._page, max(1, self._budget // _KEY_ESTIMATE))
        start, end = self._ranks(upper)
        peers = set(known)
        page: list[bytes] = []
        for run in self._finger.runs(start, end):
            page += [key for key in run if key not in peers]
            if len(page) > room:
                return page[:room], page[room]
        return page, None

    def agree(self, upper: bytes) -> None:
        """Pass over a gap. It is written only if another one follows."""
        self._has_agreed = True
        self._move_to(upper)

    def ask(self, upper: bytes) -> None:
        """Write the fingerprint of our keys up to a bound."""
        self._ask(upper, self._start(), self._place_of(upper))

    def ask_parts(self, upper: bytes, parts: int) -> None:
        """Write the fingerprints of about equal parts of what is up to a bound."""
        start, end = self._start(), self._place_of(upper)
        for cut, place in self._finger.cuts(start, end, parts):
            self._ask(cut, start, place)
            start = place
        self._ask(upper, start, end)

    def list_keys(self, upper: bytes) -> None:
        """Write all our keys up to a bound: tell me those that I lack."""
        start, end = self._ranks(upper)
        self._list(upper, Say.KEYS, self._finger.keys_at(start, end))
        self._asks = True

    def tell(self, upper: bytes, keys: list[bytes]) -> None:
        """Write keys up to a bound that the peer lacks: with these, the sides agree."""
        self._list(upper, Say.MORE, keys)

    def messages(self) -> list[Message]:
        """Finish the turn; close the session's range where nothing was asked."""
        if self._asks:
            return [*self._finished, Message(gaps=self._gaps)]
        closing = fingerprint(self._view.store.summarize(self._range))
        left_out = left_out_of(self._view, self._range)
        return [*self._finished, Message(gaps=self._gaps, closing=closing, left_out=left_out)]

    def _start(self) -> int:
        """Return the place where the gap at hand starts."""
        if self._place is None:
            at = self._at
            beyond = self._finger.up_to if at == self._range.lower else self._finger.left_of
            self._place = beyond(at)
        return self._place

    def _place_of(self, upper: bytes) -> int:
        """Return the place where the gap at hand ends."""
        if upper is not self._next:
            self._next_place = self._finger.left_of(upper or self._range.upper)
            self._next = upper
        return self._next_place

    def _ranks(self, upper: bytes) -> tuple[int, int]:
        """Return the ranks at which the gap at hand starts and ends."""
        if self._place is not None or self._at == self._range.lower:
            start = self._start() >> COUNT_SHIFT
        else:
            start = self._finger.rank_of(self._at)
        return start, self._finger.rank_of(upper or self._range.upper)

    def _ask(self, upper: bytes, start: int, end: int) -> None:
        if self._has_agreed or self._budget <= 0:
            self._make_room()
        self._gaps.append(upper, FINGERPRINT, fingerprint_of(end - start))
        self._budget -= 3 + len(upper) + FINGERPRINT_SIZE
        self._at, self._place = upper or self._range.upper, end
        self._asks = True

    def _list(self, upper: bytes, say: Say, keys: list[bytes]) -> None:
        self._make_room()
        self._gaps.append(upper, say, tuple(keys))
        self._budget -= 3 + len(upper) + sum(map(len, keys)) + 2 * len(keys)
        self._move_to(upper)

    def _make_room(self) -> None:
        """Begin another message where this one is full; write the agreed gap that is held back."""
        if self._budget <= 0 and self._gaps.uppers and self._messages_left:
            self._finished.append(Message(gaps=self._gaps, goes_on=True))
            self._gaps = Gaps()
            self._messages_left -= 1
            self._budget = self._message_budget
        if self._has_agreed:
            self._has_agreed = False
            self._gaps.append(self._at, AGREED)
            self._budget -= 3 + len(self._at)

    def _move_to(self, upper: bytes) -> None:
        """Start the next gap at a bound."""
        self._place = self._next_place if upper is self._next else None
        self._at = upper or self._range.upper


def left_out_of(view: View, gap: KeyRange) -> LeftOut | None:
    """Return what to tell of the keys left out of a gap; None where there are none."""
    union, number = view.union(gap)
    return LeftOut(number, fingerprint(union)) if number else None
