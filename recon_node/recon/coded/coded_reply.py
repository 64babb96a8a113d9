"""Writing a turn of `/ceramic/recon/1.2.0`, from the range's lower bound up."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from recon_node.base.steps import Steps
from recon_node.recon.coded.estimates import Part
from recon_node.recon.coded.messages import (
    END,
    FINGERPRINT,
    FINGERPRINT_SIZE,
    KEYS,
    LACKING,
    NO_KEYS,
    NOTHING_LISTED,
    SKIP,
    Body,
    Gaps,
    Listed,
    Message,
    Mode,
    fingerprint,
)
from recon_node.recon.keys.key_hashes import ID_SIZE, NO_IDS, Ids, among_ordered
from recon_node.recon.keys.lookups import Group, KeyCursor, groups
from recon_node.recon.keys.ordered_keys import KeyRange, separator
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.session import Side

MAX_TURN: Final = 16
"""Maximum messages of a turn."""
IDS_PER_LISTED_KEY: Final = 4
"""A gap with up to this many times `list_threshold` keys is listed by ids instead of split: an id
takes fewer bytes than a key."""
_DENSE_LIST: Final = 1024
"""Ids that a gap may have to be listed where differences are known to lie close together."""
_DENSE_PARTS: Final = 15
"""Parts that a longer gap is split into there. With the 12 parts of an estimate, two such divisions
leave some 370 of a million keys, whose ids take fewer bytes than one more division."""
_KEY_SIZE: Final = 96
"""Bytes that a key or a bound takes in a message, estimated generously."""
_GAP_OVERHEAD: Final = 3
"""Bytes of a gap in addition to its bound and body: the lengths, and the number of its keys."""
_KEY_OVERHEAD: Final = 2
"""Bytes of a key in addition to its own: the two lengths of its front-coding."""
_UNKNOWN: Final = bytes(FINGERPRINT_SIZE)
"""A fingerprint that no set has, so that the peer answers it as a wrong one."""


class CodedReply:
    """A turn being written, from the range's lower bound up, in one walk over the store.

    It knows where the current gap starts: the bound, and the *position* of that bound in the store
    (lookups.py). The difference between that and the position of the gap's upper bound is the hash
    and the number of the keys between them, so one lookup shows whether the peer's fingerprint is
    right. The cuts that divide a gap come with their positions, so the fingerprints of the parts
    are differences, too. When the store may have changed, positions are forgotten.

    Skipped gaps are held back, to be merged. A gap with up to `most_listed` of our keys is listed
    rather than split, `in_full` rather than by ids. `dense` says whether the differences are known
    to lie close together.
    """

    def __init__(
        self,
        side: Side,
        key_range: KeyRange,
        most_listed: int,
        *,
        dense: bool,
        in_full: bool,
        salt: bytes | None,
    ) -> None:
        self._side = side
        self._cursor = KeyCursor(side.keys)
        self._range = key_range
        self._dense = dense
        self._in_full = in_full
        self._salt = salt
        few = _DENSE_LIST if dense else IDS_PER_LISTED_KEY * max(1, side.settings.list_threshold)
        self._most_listed = max(few, most_listed)
        self._at = key_range.lower
        """Where the current gap starts, inclusive unless it is the range's lower bound."""
        self._position: int | None = None
        """The position of that bound, if it is known."""
        self._next: bytes | None = None
        """The bound that was looked up last."""
        self._next_position = 0
        self._has_skipped = False
        """Whether the gap below the current one is skipped, and not written yet."""
        settings = side.settings
        # In reserve: one more split or list, and the fingerprint of the rest.
        reserve = (settings.fan_out + settings.list_threshold + 2) * _KEY_SIZE
        self._message_budget = settings.message_bytes - reserve
        self._budget = self._message_budget
        """Bytes left in the current message, with the reserve taken off."""
        self._messages_left = MAX_TURN - 1
        self._gaps = Gaps()
        self._listed: list[Listed] = []
        """For each list in the current message."""
        self._finished: list[Message] = []
        self.asks = False
        """Whether the turn asks for an answer. A turn that asks for none closes the session."""

    @property
    def is_full(self) -> bool:
        """Whether another split may not fit. Never while the message has no gap."""
        return self._budget <= 0 and bool(self._gaps.uppers) and not self._messages_left

    def forget_position(self) -> None:
        """Look up again where the current gap starts: the store may have changed."""
        self._position = self._next = None

    def differs(self, upper: bytes, theirs: bytes) -> bool:
        """Return whether the peer's fingerprint of a gap is not that of our keys."""
        start = self._position
        if start is None:
            start = self._start()
        return theirs != fingerprint(self._position_of(upper) - start)

    def counts_left_out(
        self, upper: bytes, theirs: bytes, lanes: int | None = None, salt: bytes = b""
    ) -> Steps[bool]:
        """Return whether the peer's fingerprint of a gap is that of our keys and those that we left
        out of it: those that only the peer holds. The store may change meanwhile.

        `lanes` are those of our keys, with the salt; None: without one.
        """
        if not self._side.left_out_keys:
            return False
        if lanes is None:
            lanes = self._position_of(upper) - self._start()
        left_out = yield from self._side.left_out_lanes(
            self.gap_to(upper), with_lower=self.has_lower, salt=salt
        )
        self.forget_position()
        return left_out > 0 and theirs == fingerprint(lanes + left_out)

    def gap_to(self, upper: bytes) -> KeyRange:
        """Return the range of the current gap; it has its lower bound if `has_lower`."""
        return KeyRange(self._at, upper or self._range.upper)

    @property
    def has_lower(self) -> bool:
        """Whether the lower bound of the current gap belongs to it."""
        return self._at != self._range.lower

    def skip(self, upper: bytes) -> None:
        """Skip a gap, on which the sides agree. It is written only if another one follows."""
        self._has_skipped = True
        self._move_to(upper)

    def ask(self, upper: bytes) -> None:
        """Write the fingerprint of our keys up to a bound."""
        if self._salt is not None:
            self.ask_by_fingerprints([(upper, _UNKNOWN)])
        else:
            self._ask_by_positions([(upper, self._position_of(upper))])

    def narrow_down(self, upper: bytes) -> None:
        """Answer a wrong fingerprint: list our ids, or write the fingerprints of equal parts."""
        if self._in_full:
            if cuts := self.list_or_cut(upper):
                self._ask_by_positions(cuts)
            return
        start, end = self._start(), self._position_of(upper)
        count = end - start >> COUNT_SHIFT
        if count <= min(self._most_listed, max(1, self._budget // ID_SIZE)):
            self._side.count_listed(count)
            ids = [group.ids for group in self._groups_to(upper)]
            self._list(upper, KEYS, listed=Listed(np.concatenate([NO_IDS, *ids]), NO_IDS))
            self.asks = True
        else:
            parts = _DENSE_PARTS if self._dense else self._side.settings.parts(count)
            of_parts = self._cursor.cuts(start, end, parts, quick=self._dense)
            self._ask_by_positions([*of_parts, (upper, end)])

    def list_or_cut(self, upper: bytes) -> list[tuple[bytes, int]]:
        """List the keys of a gap in full if they are few, else return the bounds that divide it.

        The last bound is the gap's own. Each comes with its position.
        """
        start, end = self._start(), self._position_of(upper)
        count = end - start >> COUNT_SHIFT
        if count > max(1, self._side.settings.list_threshold):
            cuts = self._cursor.cuts(start, end, self._side.settings.parts(count))
            return [*cuts, (upper, end)]
        self._side.count_listed(count)
        first = start >> COUNT_SHIFT
        self._list(upper, KEYS, tuple(self._cursor.keys_at(first, first + count)))
        self.asks = True
        return []

    def answer_hints(self, parts: Sequence[Part]) -> None:
        """Answer the hints of an estimate like the fingerprints of its parts.

        The store must be as it was when the parts were compared.
        """
        uppers = [*(part.upper for part in parts[:-1]), END]
        for part, upper in zip(parts, uppers, strict=True):
            if part.differs:
                self._position, self._next, self._next_position = part.start, upper, part.end
                self.narrow_down(upper)
            else:
                self.skip(upper)

    def answer_list(self, upper: bytes, keys: Body, listed: Listed, still_lacking: Ids) -> None:
        """Answer the peer's list: with what it lacks; and ask for what we lack in full."""
        if self._in_full and isinstance(keys, tuple):
            self._list_lacking(upper, keys)
            return
        room = min(self._side.settings.page_ids, max(1, self._budget // ID_SIZE))
        page, last, rest = _page(self._groups_to(upper), listed.ids, room)
        if rest is not None:
            self.exchange(separator(last, rest), page, still_lacking)
            self.ask(upper)
        else:
            self.exchange(upper, page, still_lacking)

    def exchange(
        self,
        upper: bytes,
        peer_lacks: Ids,
        still_lacking: Ids,
        asked_in_full: tuple[bytes, ...] = NO_KEYS,
    ) -> None:
        """List what the peer lacks in a gap, by id and in full; ask for what we still lack."""
        if not (len(peer_lacks) or len(still_lacking) or asked_in_full):
            self.skip(upper)
            return
        self._side.count_listed(len(peer_lacks) + len(asked_in_full))
        self._list(upper, LACKING, asked_in_full, Listed(peer_lacks, still_lacking))
        self.asks = self.asks or bool(len(still_lacking))

    def _list_lacking(self, upper: bytes, known: tuple[bytes, ...]) -> None:
        """Answer a list in full: a page of the keys it lacks, and a fingerprint of the rest."""
        page, rest = self._page_to(upper, set(known))
        if rest is not None:
            self._list(separator(page[-1], rest), LACKING, tuple(page))
            self.ask(upper)
        elif page:
            self._list(upper, LACKING, tuple(page))
        else:
            self.skip(upper)
        self._side.count_listed(len(page))

    def finish(self) -> list[Message]:
        """Return the messages of the turn; if nothing was asked, the caller has to close."""
        self._end_message(continues=False)
        return self._finished

    def ask_by_fingerprints(self, parts: Iterable[tuple[bytes, bytes]]) -> None:
        """Write the fingerprints of neighbouring parts: the upper bound and fingerprint of each."""
        gaps, upper = self._gaps, END
        for upper, of_part in parts:
            if self._has_skipped or self._budget <= 0:
                self._make_room()
                gaps = self._gaps
            gaps.append(upper, FINGERPRINT, of_part)
            self._budget -= _GAP_OVERHEAD + len(upper) + FINGERPRINT_SIZE
        self._move_to(upper)
        self.asks = True

    def _ask_by_positions(self, parts: Iterable[tuple[bytes, int]]) -> None:
        """Write the fingerprints of neighbouring parts: the upper bound and position of each."""
        start = self._start()
        written, upper = list[tuple[bytes, bytes]](), END
        for upper, end in parts:
            written.append((upper, fingerprint(end - start)))
            start = end
        self.ask_by_fingerprints(written)
        self._position = start

    def _page_to(self, upper: bytes, known: set[bytes]) -> tuple[list[bytes], bytes | None]:
        """Return the first keys from here up to a bound that the peer does not know.

        They are as many as fit, at least one; the next such key comes with them, if there is one.
        """
        room = min(self._side.settings.page_keys, max(1, self._budget // _KEY_SIZE))
        page: list[bytes] = []
        start, end = self._start(), self._position_of(upper)
        for run in self._cursor.runs(start >> COUNT_SHIFT, end >> COUNT_SHIFT):
            page += [key for key in run if key not in known]
            if len(page) > room:
                return page[:room], page[room]
        return page, None

    def _start(self) -> int:
        """Return the position where the current gap starts."""
        if self._position is None:
            beyond = self._cursor.left_of if self.has_lower else self._cursor.up_to
            self._position = beyond(self._at)
        return self._position

    def _position_of(self, upper: bytes) -> int:
        """Return the position where the current gap ends."""
        if upper is not self._next:
            self._next_position = self._cursor.left_of(upper or self._range.upper)
            self._next = upper
        return self._next_position

    def _list(
        self,
        upper: bytes,
        mode: Mode,
        keys: tuple[bytes, ...] = NO_KEYS,
        listed: Listed = NOTHING_LISTED,
    ) -> None:
        self._make_room()
        self._gaps.append(upper, mode, keys)
        self._listed.append(listed)
        size = sum(map(len, keys)) + _KEY_OVERHEAD * len(keys)
        size += ID_SIZE * (len(listed.ids) + len(listed.wanted))
        self._budget -= _GAP_OVERHEAD + len(upper) + size
        self._move_to(upper)

    def _make_room(self) -> None:
        """Begin another message if this one is full; write the skipped gap that is held back."""
        if self._budget <= 0 and self._gaps.uppers and self._messages_left:
            self._end_message(continues=True)
            self._messages_left -= 1
            self._budget = self._message_budget
        if self._has_skipped:
            self._has_skipped = False
            self._gaps.append(self._at, SKIP)
            self._budget -= _GAP_OVERHEAD + len(self._at)

    def _end_message(self, *, continues: bool) -> None:
        has_ids = any(listed is not NOTHING_LISTED for listed in self._listed)
        listed = self._listed if has_ids else ()
        salt = self._salt if FINGERPRINT in self._gaps.modes else None
        self._finished.append(
            Message(gaps=self._gaps, continues=continues, listed=listed, salt=salt)
        )
        self._gaps, self._listed = Gaps(), []

    def _move_to(self, upper: bytes) -> None:
        """Start the next gap at a bound."""
        self._position = self._next_position if upper is self._next else None
        self._at = upper or self._range.upper

    def _groups_to(self, upper: bytes) -> Iterator[Group]:
        """Yield our keys in the current gap up to a bound."""
        return groups(self._side.keys, self.gap_to(upper), with_lower=self.has_lower)


def _page(held: Iterable[Group], known: Ids, room: int) -> tuple[Ids, bytes, bytes | None]:
    """Return the ids of the first keys that are not known, as many as there is room for.

    If there are more, the last of these keys and the next one come with them.
    """
    page, known, before = [NO_IDS], np.sort(known), b""
    for group in held:
        (new,) = (~among_ordered(group.ids, known)).nonzero()
        page.append(group.ids[new[:room]])
        if len(new) > room:
            *taken, rest = group.keys(new[max(0, room - 1) : room + 1])
            return np.concatenate(page), taken[0] if taken else before, rest
        room -= len(new)
        if len(new) and not room:
            (before,) = group.keys(new[-1:])
    return np.concatenate(page), b"", None
