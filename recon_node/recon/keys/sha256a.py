"""Sha256a, the associative hash of a set of keys (CIP-124, appendix A).

The hash of a set is the sum of the sha2-256 hashes of its keys. For the addition, a hash is read as
eight little-endian unsigned 32-bit lanes, and each lane is added modulo 2^32. The order of the
additions does not matter, so the hash of a range is the sum of the hashes of its parts.

Lanes as one integer
--------------------
Adding eight lanes one by one is slow in Python. Instead, we spread them over one integer, each lane
in a 64-bit slot of its own. One integer addition then adds all eight, and carries stay inside their
slots for 2^32 additions. A digest is read as one 256-bit integer; its even lanes are 64 bits apart
already, and its odd lanes are too once shifted down by 32. The layout, from the low bits up, is

    even lanes (256 bits) | odd lanes (256 bits) | number of keys

with the number of keys on top, where it can grow without touching the lanes: one addition updates
both hash and count, and the count of a range comes with its hash for free. Masking folds the slots
back modulo 2^32.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Self

import numpy as np

DIGEST_SIZE = 32
"""Bytes of a sha2-256 digest."""
MULTICODEC = 0x7012
"""Multihash code of Sha256a (CIP-124, appendix A)."""

_EVEN = int.from_bytes(bytes((255, 255, 255, 255, 0, 0, 0, 0)) * 4, "little")
DIGEST_BITS = 8 * DIGEST_SIZE
COUNT_SHIFT = 512
"""Where the number of keys starts in a lanes integer."""

_ONE_KEY = 1 << COUNT_SHIFT
_64_BITS = (1 << 64) - 1
LANES_MASK = _ONE_KEY - 1
"""Covers all lanes, but not the number of keys."""

# How to add up a run of n digests, by n: the mask of its even lanes, and the shift and mask of each
# step that adds the upper part to the lower part. Grown on demand.
_RUN_MASKS: list[tuple[int, tuple[tuple[int, int], ...]]] = [(0, ())]


def _grow_run_masks(number: int) -> None:
    while len(_RUN_MASKS) <= number:
        even, halvings = _RUN_MASKS[-1]
        size = len(_RUN_MASKS) - 1
        if size.bit_count() == 1:  # beyond a power of two it takes one more step
            shift = size * DIGEST_BITS
            halvings = ((shift, (1 << shift) - 1), *halvings)
        _RUN_MASKS.append((even << DIGEST_BITS | _EVEN, halvings))


_from_bytes = int.from_bytes


def spread(digest: bytes) -> int:
    """Spread one 32-byte digest over a lanes integer that counts one key."""
    lanes = int.from_bytes(digest, "little")
    return lanes & _EVEN | (lanes >> 32 & _EVEN) << DIGEST_BITS | _ONE_KEY


def lanes_of(key: bytes) -> int:
    """Return the lanes of one key."""
    return spread(sha256(key).digest())


def spread_run(digests: bytes | memoryview) -> int:
    """Add up a run of digests (n * 32 bytes) into a lanes integer that counts n keys.

    The whole run is one integer, whose upper part is added to its lower part until one digest is
    left: a handful of additions for any run, instead of one for each digest.
    """
    number = len(digests) // DIGEST_SIZE
    try:
        mask, halvings = _RUN_MASKS[number]
    except IndexError:
        _grow_run_masks(number)
        mask, halvings = _RUN_MASKS[number]
    lanes = _from_bytes(digests, "little")
    even, odd = lanes & mask, lanes >> 32 & mask
    for shift, lower in halvings:
        even = (even & lower) + (even >> shift)
        odd = (odd & lower) + (odd >> shift)
    return number << COUNT_SHIFT | odd << DIGEST_BITS | even


_SLOTS = (0, 2, 4, 6, 1, 3, 5, 7)
"""The lanes of a digest in the order in which a lanes integer has them."""
_SLOT_BYTES = COUNT_SHIFT // 8
_DIGESTS_PER_STEP = 100_000
"""Digests that `spread_runs` adds up at once."""


def spread_runs(digests: bytes | memoryview, size: int) -> list[int]:
    """Return what `spread_run` does of each `size` digests, in a quarter of the time."""
    runs: list[int] = []
    step = _DIGESTS_PER_STEP // size * size
    for start in range(0, len(digests) // DIGEST_SIZE, step):
        number = min(len(digests) // DIGEST_SIZE - start, step) // size
        lanes = np.frombuffer(digests, "<u4", number * size * 8, start * DIGEST_SIZE)
        sums = lanes.reshape(number, size, 8).sum(1, np.uint64)[:, _SLOTS].astype("<u8").tobytes()
        runs += [
            size << COUNT_SHIFT | _from_bytes(sums[at : at + _SLOT_BYTES], "little")
            for at in range(0, len(sums), _SLOT_BYTES)
        ]
    rest = digests[len(runs) * size * DIGEST_SIZE :]
    return [*runs, spread_run(rest)] if rest else runs


def id_sum(lanes: int) -> int:
    """Return the sum, modulo 2^64, of the first 8 bytes of the digests as little-endian numbers."""
    return (lanes + (lanes >> DIGEST_BITS << 32)) & _64_BITS


def fold(lanes: int) -> bytes:
    """Fold a lanes integer back, each lane modulo 2^32: the 32 bytes of the Sha256a."""
    return (lanes & _EVEN | (lanes >> DIGEST_BITS & _EVEN) << 32).to_bytes(DIGEST_SIZE, "little")


class Sha256a(bytes):
    """The associative hash of a set of keys: eight u32 lanes, as their 32 bytes.

    Equal sets have equal hashes. `a + b` is the hash of the union of two disjoint sets.

    Raises:
        ValueError: the digest does not have 32 bytes.
    """

    __slots__ = ()

    def __new__(cls, digest: bytes) -> Self:
        """Make a hash of its 32 bytes."""
        if len(digest) != DIGEST_SIZE:
            raise ValueError(f"a Sha256a digest has {DIGEST_SIZE} bytes, not {len(digest)}")
        return bytes.__new__(cls, digest)

    @classmethod
    def of(cls, *keys: bytes) -> Self:
        """Return the hash of the set of these keys (each given once)."""
        return cls.from_lanes(sum(map(lanes_of, keys)))

    @classmethod
    def from_lanes(cls, lanes: int) -> Self:
        """Fold a lanes integer (see the module docstring) back, each lane modulo 2^32."""
        return bytes.__new__(cls, fold(lanes))

    @property
    def digest(self) -> bytes:
        """The 32 bytes, as plain bytes."""
        return bytes(self)

    def __add__(self, other: Sha256a) -> Sha256a:  # type: ignore[override]
        return Sha256a.from_lanes(spread(self) + spread(other))

    def __bool__(self) -> bool:
        return self != ZERO

    def __repr__(self) -> str:
        return f"Sha256a({self})"

    def __str__(self) -> str:
        """Return the 32 bytes in upper-case hex, as CIP-124 implementations print them."""
        return self.digest.hex().upper()

    def hex(self) -> str:  # type: ignore[override]
        """Return the 32 bytes in upper-case hex, as `str` does."""
        return str(self)


ZERO = Sha256a(bytes(DIGEST_SIZE))
"""The hash of no keys."""
