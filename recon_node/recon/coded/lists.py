"""What the lists of a turn tell about ids, and which keys they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from recon_node.recon.coded.estimates import Part
from recon_node.recon.coded.messages import KEYS, MORE, NO_KEYS, Message
from recon_node.recon.keys.decoding import Difference
from recon_node.recon.keys.ids import find, not_held
from recon_node.recon.keys.ordered_keys import OrderedKeys
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sketch import NO_IDS, Ids, among, distinct, id_of
from recon_node.recon.session import GAPS_A_STEP, Steps

_HASHES_A_STEP: Final = 2000
"""Keys that are hashed between two yields."""


@dataclass(slots=True)
class Found:
    """What a turn of the peer's tells about ids."""

    where: KeyRange = KeyRange(b"", b"")  # noqa: RUF009
    """Where what differs lies, as far as the peer's turn tells."""
    difference: Difference | None = None
    """What the symbols told, if they did."""
    parts: list[Part] = field(default_factory=list)
    """What the hints told."""
    compared_at: int = -1
    """The lanes of all our keys when they were compared."""
    lacking: list[Ids] = field(default_factory=list)
    """What we lack, for each list; or, of the whole range, what the symbols told. Each id once."""
    told: list[tuple[bytes, ...]] = field(default_factory=list)
    """The keys that the peer wants in full, for each list."""
    failed: Ids = field(default_factory=lambda: NO_IDS)
    """What we lack and could not fetch by its id."""

    def wanted(self, index: int) -> Ids:
        """Return what we lack of a list, by its index, and could not fetch."""
        if not len(self.failed):  # the usual case
            return NO_IDS
        return self.lacking[index][among(self.lacking[index], self.failed)]

    def leave_out(self, ids: Ids) -> None:
        """Do not lack what we leave out."""
        if len(ids):
            self.lacking = [each[~among(each, ids)] for each in self.lacking]


def look_up_lists(
    found: Found, keys: OrderedKeys, turn: Iterable[Message], *, unchanged: bool
) -> Iterator[None]:
    """Find which ids of the peer's lists we lack, and the keys that it wants in full.

    Args:
        found: takes note of it; ``where`` is the session's range before.
        keys: ours.
        turn: the peer's.
        unchanged: whether our keys are those of our last turn.
    """
    key_range = found.where
    lower, with_lower, first = key_range.lower, False, key_range.lower
    for message in turn:
        lists = iter(message.lists())
        for index, (upper, say, _) in enumerate(message.gaps.columns()):
            if index % GAPS_A_STEP == 0:
                yield
            upper = upper or key_range.upper
            if say is KEYS or say is MORE:
                gap, listed = KeyRange(lower, upper), next(lists)
                if say is KEYS:
                    lacking = yield from not_held(keys, gap, listed.ids, with_lower=with_lower)
                    told = NO_KEYS
                else:
                    # If nothing has come, we lack what we lacked in our last turn.
                    check = NO_IDS if unchanged else listed.ids
                    held = yield from find(
                        keys, gap, np.concatenate([check, listed.wanted]), with_lower=with_lower
                    )
                    lacking, told = _split(held, distinct(listed.ids), listed.wanted)
                found.lacking.append(lacking)
                found.told.append(told)
                if len(found.told) == 1:  # the first list
                    # A gap has its lower bound, and a range has not. A prefix is less.
                    first = lower[:-1] if with_lower else lower
                found.where = KeyRange(max(first, key_range.lower), upper)
            lower, with_lower = upper, True


def _split(held: list[tuple[int, bytes]], ids: Ids, wanted: Ids) -> tuple[Ids, tuple[bytes, ...]]:
    """Return the ids that we lack of those told, and the keys that the peer wants in full."""
    if not held:
        return ids, NO_KEYS
    sought = set(wanted.tolist())
    told = tuple(key for each, key in held if each in sought)
    return ids[~among(ids, np.array([each for each, _ in held], np.uint64))], told


def ids_of_keys(keys: Sequence[bytes]) -> Steps[Ids]:
    """Return the ids of some keys, in steps."""
    if not keys:  # the usual case
        return NO_IDS
    ids = []
    for number, key in enumerate(keys):
        if number % _HASHES_A_STEP == _HASHES_A_STEP - 1:
            yield
        ids.append(id_of(key))
    return np.frombuffer(b"".join(ids), "<u8").astype(np.uint64)
