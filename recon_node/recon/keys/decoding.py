"""Finding the difference of two sets from their symbols (sketch.py), by peeling.

A symbol with a single id left in it is pure, and is taken out of all symbols that have it, which
makes others pure. numpy does this for all pure symbols at once. For a handful of symbols, which is
what a session looks at first, its calls take ten times as long as plain Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from recon_node.recon.keys.sketch import (
    COUNTS,
    Ids,
    Signs,
    Symbols,
    mix,
    mix_one,
    places_of,
)

_FEW: Final = 16
"""Symbols up to which they are decoded without numpy."""
_U = np.uint64
_64_BITS: Final = (1 << 64) - 1
_32_BITS: Final = (1 << 32) - 1
_MAX_STEPS: Final = 256


class Difference(NamedTuple):
    """The ids that only one of two sets has."""

    ours: Ids
    theirs: Ids


def decode(symbols: Symbols) -> Iterator[Difference | None]:
    """Find the difference of two sets, given our symbols minus theirs, in steps.

    Yields None between steps of a few milliseconds, and the difference at the end; nothing at the
    end if the symbols do not decode. However many keys differ, a dozen steps are usual; symbols
    that somebody made up to be decoded one by one are given up after ``_MAX_STEPS``.
    """
    if len(symbols) <= _FEW:
        yield from _decode_few(symbols)
        return
    rest = symbols.copy()
    found: list[Ids] = []
    signs: list[Signs] = []
    seen: set[int] = set()
    while True:
        ids, counts = _pure(rest)
        new = [index for index, each in enumerate(ids.tolist()) if each not in seen]
        if len(new) < len(ids) or len(found) > _MAX_STEPS:
            return  # taken out before: these are not the symbols of a set
        if not len(ids):
            break
        seen.update(ids.tolist())
        rest.add(ids, -counts)
        found.append(ids)
        signs.append(counts)
        yield None
    if len(rest) and rest.are_empty:
        every, sign = np.concatenate([np.zeros(0, _U), *found]), np.concatenate([[0][:0], *signs])
        yield Difference(every[sign > 0], every[sign < 0])


def _pure(symbols: Symbols) -> tuple[Ids, Signs]:
    """Return the ids of the pure symbols, each once, and their counts."""
    sums, checks, counts = symbols
    single = np.flatnonzero((counts == 1) | (counts == COUNTS - 1))
    signs = np.where(counts[single] == 1, 1, -1).astype(np.int64)
    ids = sums[single] * signs.astype(_U)
    fit = mix(ids).astype(np.uint32) == checks[single] * signs.astype(np.uint32)
    ids, first = np.unique(ids[fit], return_index=True)
    return ids, signs[fit][first]


def _decode_few(symbols: Symbols) -> Iterator[Difference]:
    """Do the same with Python's integers, for a few symbols, and at once."""
    sums, checks, counts = (column.tolist() for column in symbols)
    size = len(sums)
    found: dict[int, int] = {}
    while True:
        pure: dict[int, int] = {}
        for total, check, count in zip(sums, checks, counts, strict=True):
            if count == 1 or count == COUNTS - 1:
                sign = 1 if count == 1 else -1
                each = sign * total & _64_BITS
                if mix_one(each) & _32_BITS == sign * check & _32_BITS:
                    pure.setdefault(each, sign)
        if not pure:
            break
        if len(found) > size or not found.keys().isdisjoint(pure):
            return  # these are not the symbols of a set
        for each, sign in sorted(pure.items()):
            found[each] = sign
            check = mix_one(each) & _32_BITS
            for place in places_of(each, size):
                sums[place] = sums[place] - sign * each & _64_BITS
                checks[place] = checks[place] - sign * check & _32_BITS
                counts[place] = (counts[place] - sign) % COUNTS
    if size and not (any(sums) or any(checks) or any(counts)):
        yield Difference(
            np.array([each for each, sign in found.items() if sign > 0], _U),
            np.array([each for each, sign in found.items() if sign < 0], _U),
        )
