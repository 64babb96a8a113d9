"""A turn of 1.2.0 being written: a turn of 1.1.0 whose lists have ids in the place of keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from recon_node.recon.keys.ids import Group, groups
from recon_node.recon.keys.ranges import KeyRange, separator
from recon_node.recon.keys.sha256a import COUNT_SHIFT
from recon_node.recon.keys.sketch import ID_SIZE, NO_IDS, Ids, among_ordered
from recon_node.recon.side import Side
from recon_node.recon.v1_1.codec import END, KEYS, MORE, Body, Say
from recon_node.recon.v1_1.reply import Reply as Reply11
from recon_node.recon.v1_2.codec import NOTHING_LISTED, Listed, Message, lists_of
from recon_node.recon.v1_2.estimates import Part

FEW: Final = 4
"""How many times as many ids as keys are listed in place of splitting a gap."""
_DENSE_LIST: Final = 1024
"""The same, as a number of ids, where differences are known to lie close together."""
_DENSE_PARTS: Final = 15
"""Parts that a longer gap is split into there. With the 12 parts of an estimate, two such divisions
leave some 370 of a million keys, whose ids take fewer bytes than one more division."""


class Reply(Reply11):
    """A turn being written, from the range's lower bound up.

    Args:
        side: the session's.
        key_range: the session's.
        most_listed: keys of a gap that are listed rather than split, even if that is many.
        dense: whether the differences are known to lie close together.
        in_full: whether to list keys in full, as 1.1.0 does.
    """

    def __init__(
        self, side: Side, key_range: KeyRange, most_listed: int, *, dense: bool, in_full: bool
    ) -> None:
        super().__init__(side, key_range)
        self._dense = dense
        self._in_full = in_full
        few = _DENSE_LIST if dense else FEW * max(1, side.settings.list_threshold)
        self._most_listed = max(few, most_listed)
        self._listed: list[Listed] = []
        """For each list in the turn."""

    def narrow_down(self, upper: bytes) -> None:
        """Answer a wrong fingerprint: list our ids, or write the fingerprints of equal parts."""
        start, end = self._start(), self._place_of(upper)
        count = end - start >> COUNT_SHIFT
        if self._in_full:
            super().narrow_down(upper)
        elif count <= min(self._most_listed, max(1, self._budget // ID_SIZE)):
            self._side.count_listed(count)
            ids = [group.ids for group in self._groups_to(upper)]
            self._list_ids(upper, KEYS, Listed(np.concatenate([NO_IDS, *ids]), NO_IDS))
            self._asks = True
        else:
            parts = _DENSE_PARTS if self._dense else self._side.settings.parts(count)
            cuts = self._finger.cuts(start, end, parts, quick=self._dense)
            self._ask_each([*cuts, (upper, end)], start)

    def answer_hints(self, parts: Sequence[Part]) -> None:
        """Answer the hints of an estimate like the fingerprints of its parts.

        The store must be as it was when the parts were compared.
        """
        uppers = [*(part.upper for part in parts[:-1]), END]
        for part, upper in zip(parts, uppers, strict=True):
            if part.differs:
                self._place, self._next, self._next_place = part.start, upper, part.end
                self.narrow_down(upper)
            else:
                self.agree(upper)

    def answer_list(self, upper: bytes, keys: Body, listed: Listed, wanted: Ids) -> None:
        """Answer the peer's list: with what it lacks, and what we want to be told in full."""
        if self._in_full and isinstance(keys, tuple):
            self.tell_lacking(upper, keys)
            return
        room = min(self._side.settings.page_keys, max(1, self._budget // ID_SIZE))
        page, last, rest = _page(self._groups_to(upper), listed.ids, room)
        if rest is not None:
            self.exchange(separator(last, rest), page, wanted)
            self.ask(upper)
        else:
            self.exchange(upper, page, wanted)

    def exchange(
        self, upper: bytes, lacking: Ids, wanted: Ids, told: tuple[bytes, ...] = ()
    ) -> None:
        """Tell the peer what it lacks in a gap, by id or in full, and what we want in full."""
        if not (len(lacking) or len(wanted) or told):
            self.agree(upper)
            return
        self._side.count_listed(len(lacking) + len(told))
        self._list_ids(upper, MORE, Listed(lacking, wanted), told)
        self._asks = self._asks or bool(len(wanted))

    def finish(self) -> list[Message]:
        """Finish the turn; close the session's range if nothing was asked."""
        at, messages = 0, []
        for plain in self.messages():
            end = at + lists_of(plain.gaps)
            listed = self._listed[at:end]
            has_ids = any(each is not NOTHING_LISTED for each in listed)
            messages.append(Message(plain, listed=listed if has_ids else ()))
            at = end
        return messages

    def _list(self, upper: bytes, say: Say, keys: list[bytes]) -> None:
        self._listed.append(NOTHING_LISTED)
        super()._list(upper, say, keys)

    def _list_ids(
        self, upper: bytes, say: Say, listed: Listed, told: tuple[bytes, ...] = ()
    ) -> None:
        super()._list(upper, say, list(told))
        self._budget -= ID_SIZE * (len(listed.ids) + len(listed.wanted))
        self._listed.append(listed)

    def _groups_to(self, upper: bytes) -> Iterator[Group]:
        """Yield our keys in the current gap up to a bound."""
        gap = KeyRange(self._at, upper or self._range.upper)
        return groups(self._side.keys, gap, with_lower=self._at != self._range.lower)


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
