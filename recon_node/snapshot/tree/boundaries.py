"""Where a node of the tree ends: before an item whose rank is the smallest for some items around.

The rank of an item is the length of the bound between it and the item before, then its hash. So
boundaries look random, but they follow from the set alone, and they lie where bounds are short: at
the first event of a stream rather than between two of its events. They are *local minima* (Bjørner,
Blass and Gurevich, 2010): an item starts a node if no rank among the `WINDOW` items on either side
is smaller than its own. So

- a node has at least `WINDOW` + 1 items, except the last of a level, and about 2 `WINDOW` + 1 on
  average, with few far from it: half of what Merkle search trees waste by their uneven nodes;
- whether an item starts a node depends on its neighbours only: a change moves no boundary
  further away than `WINDOW` + 1 items (the bound below an item depends on the one before it).

The second property is what makes updates local: beside each changed node, one unchanged neighbour
on either side is enough context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

WINDOW: Final = 3
"""Items on either side with which an item is compared. Part of the format: it decides every CID."""

ALWAYS_SMALLER: Final = b""
"""Stands for the rank of an item that is known to start a node."""


def rank(item: bytes, bound: bytes) -> bytes:
    """Return the rank of an item: a key, or a node by its lower bound.

    Args:
        item: the key or bound.
        bound: the shortest string between the item and the one before it.
    """
    return bytes((min(len(bound), 255),)) + sha256(item).digest()


def starts(ranks: Sequence[bytes], first: int, end: int) -> Iterator[int]:
    """Yield the indices from `first` to before `end` that start a node.

    Index 0 is known to start one, and no other node starts within `WINDOW` items of it. So levels
    get smaller, up to a single node.
    """
    for at in range(max(WINDOW + 1, first), end):
        own = ranks[at]
        if own < ranks[at - 1] and own == min(ranks[at - WINDOW : at + WINDOW + 1]):
            yield at
