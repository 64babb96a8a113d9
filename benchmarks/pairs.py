"""Two sets of keys that differ in a known way: what the contestants have to reconcile."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import compress

from benchmarks.keys import event_ids
from benchmarks.negentropy import TIMESTAMP_SIZE

_EPOCH = 1_600_000_000


class Population:
    """All keys that either side holds, in order."""

    def __init__(self, keys: int) -> None:
        self.keys = sorted(event_ids(keys, seed=keys))

    @cached_property
    def items(self) -> list[bytes]:
        """The same for negentropy: an id for each key, timestamps in the order of the keys."""
        return [
            (_EPOCH + rank).to_bytes(TIMESTAMP_SIZE, "big") + sha256(key).digest()
            for rank, key in enumerate(self.keys)
        ]

    def pair(self, differences: int, placement: str) -> Pair:
        """Take so many keys, in turn, away from one side.

        `scattered` ones lie anywhere in the key order, `recent` ones beside each other.
        """
        size = len(self.keys)
        rng = random.Random(differences)
        if placement == "recent":
            start = rng.randrange(max(1, size - differences))
            chosen: Sequence[int] = range(start, start + differences)
        else:
            chosen = rng.sample(range(size), differences)
        return Pair(
            self, differences, placement, _all_but(size, chosen[1::2]), _all_but(size, chosen[::2])
        )


@dataclass(frozen=True, slots=True)
class Pair:
    """Two subsets of a population; each mask has a 1 for a key that this side holds."""

    population: Population
    differences: int
    placement: str
    _here: bytearray
    _there: bytearray

    def keys(self) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of the initiator and of the responder, in order."""
        keys = self.population.keys
        return list(compress(keys, self._here)), list(compress(keys, self._there))

    def items(self) -> tuple[list[bytes], list[bytes]]:
        """Return the same as items of negentropy."""
        items = self.population.items
        return list(compress(items, self._here)), list(compress(items, self._there))


def pairs(population: Population, differences: Sequence[int]) -> Iterator[Pair]:
    """Yield a pair for each number of differences and each placement."""
    for number in differences:
        for placement in ("scattered", "recent") if number else ("none",):
            yield population.pair(number, placement)


def _all_but(size: int, left_out: Sequence[int]) -> bytearray:
    mask = bytearray(b"\x01") * size
    for index in left_out:
        mask[index] = 0
    return mask
