"""LtHash: a hash of a set of keys that cannot be steered.

The hash of a set is the sum of the hashes of its keys, each of 1,024 lanes of 16 bits, modulo 2^16:
Bellare and Micciancio, "A New Paradigm for Collision-free Hashing" (EUROCRYPT 1997); with these
numbers Lewi, Kim, Maykov and Weis, "Securing Update Propagation with Homomorphic Hashing" (IACR
ePrint 2019/227), who expand each element by BLAKE2X and reckon with at least 200 bits of security.
Whoever finds two sets with one hash solves a short integer solution problem in that lattice. In the
eight lanes of Sha256a it takes minutes (Wagner, "A Generalized Birthday Problem", CRYPTO 2002).

The lanes of a key are 2,048 bytes of output of BLAKE3 over its sha2-256 digest, which the tree has:
0.7 microseconds a key, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from recon_node.ipld import varint
from recon_node.recon.keys.sha256a import DIGEST_SIZE

LANES: Final = 1024
LANES_SIZE: Final = 2 * LANES
"""Bytes of the lanes, which are little-endian."""
_BATCH: Final = 64
"""Keys that are expanded at a time: their lanes fit into a processor's cache."""

Lanes = NDArray[np.uint16]


class LtHash:
    """The hash of a set of keys, which changes: 2 KiB."""

    __slots__ = ("_digest", "count", "lanes")

    def __init__(self) -> None:
        self.lanes: Lanes = np.zeros(LANES, np.uint16)
        self.count = 0
        self._digest: bytes | None = None

    @classmethod
    def of(cls, *keys: bytes) -> LtHash:
        """Return the hash of the set of these keys (each given once)."""
        made = cls()
        made.add(b"".join([sha256(key).digest() for key in keys]))
        return made

    def add(self, digests: bytes, signs: NDArray[np.int64] | None = None) -> None:
        """Add keys, given their sha2-256 digests end to end; a sign of -1 takes one out."""
        starts = range(0, len(digests), DIGEST_SIZE)
        added = [digests[at : at + DIGEST_SIZE] for at in starts]
        if signs is not None:
            signed = list(zip(added, signs.tolist(), strict=True))
            added = [digest for digest, sign in signed if sign > 0]
            taken = [digest for digest, sign in signed if sign < 0]
            for lanes in _sums(taken):
                self.lanes -= lanes
            self.count -= len(taken)
        for lanes in _sums(added):
            self.lanes += lanes
        self.count += len(added)
        self._digest = None

    def merge(self, other: LtHash) -> None:
        """Add the keys of another set, none of which this one has."""
        self._digest = None
        self.lanes += other.lanes
        self.count += other.count

    def copy(self) -> LtHash:
        """Return a copy, which stays as it is when this one changes."""
        made = LtHash()
        made.merge(self)
        return made

    def digest(self) -> bytes:
        """Return the 32 bytes that are compared: sha256(lanes || varint(count))."""
        if self._digest is None:
            lanes = self.lanes.astype("<u2", copy=False).tobytes()
            self._digest = sha256(lanes + varint.encode(self.count)).digest()
        return self._digest


def _sums(digests: list[bytes]) -> Iterator[Lanes]:
    """Yield sums of the lanes of some keys, a batch at a time."""
    for start in range(0, len(digests), _BATCH):
        batch = digests[start : start + _BATCH]
        lanes = _expand(batch)
        yield lanes[0] if len(batch) == 1 else np.add.reduce(lanes, axis=0, dtype=np.uint16)


def _expand(digests: list[bytes]) -> Lanes:
    """Return the lanes of some keys, one row each."""
    expanded = b"".join([blake3(digest).digest(length=LANES_SIZE) for digest in digests])
    return np.frombuffer(expanded, "<u2").reshape(-1, LANES)
