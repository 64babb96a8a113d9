"""What stands for a key, and for a set of keys, in sessions of 1.2.0: an id, and an LtHash.

Both are made of the keys' sha2-256 digests, which the tree has (ordered_keys.py). A key's *id* is
the first 8 bytes of its digest, as a little-endian number. Two keys can have the same id, because
somebody has searched for them. No two sets have the same LtHash, so that is what ends a session.

All work on ids is numpy's, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from recon_node.ipld import encode_varint
from recon_node.recon.keys.sha256a import DIGEST_SIZE

ID_SIZE: Final = 8
"""Bytes of an id."""

Ids = NDArray[np.uint64]
NO_IDS: Final[Ids] = np.zeros(0, np.uint64)


def id_of(key: bytes) -> bytes:
    """Return the id of a key, as its bytes."""
    return sha256(key).digest()[:ID_SIZE]


def ids_of(digests: bytes) -> Ids:
    """Return the ids of some keys, given their sha2-256 digests end to end."""
    return np.frombuffer(digests, "<u8")[:: DIGEST_SIZE // ID_SIZE]


def distinct(ids: Ids) -> Ids:
    """Return some ids, each once, in the order in which they first come."""
    by_size = ids.argsort(kind="stable")  # np.unique builds a hash table, which takes longer
    ordered = ids[by_size]
    is_first = np.ones(len(ids), np.bool_)
    is_first[by_size[1:][ordered[1:] == ordered[:-1]]] = False
    return ids[is_first]


def among(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """Return for each of some ids whether it is among others."""
    return among_ordered(ids, np.sort(others))  # np.isin builds a hash table, which takes longer


def among_ordered(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """Return for each of some ids whether it is among others, which ascend."""
    if not len(others):
        return np.zeros(len(ids), np.bool_)
    # Methods, because numpy's functions of these names take twice as long for a few ids.
    return np.equal(others.take(others.searchsorted(ids), mode="clip"), ids)


LANES: Final = 1024
LANES_SIZE: Final = 2 * LANES
"""Bytes of the lanes, which are little-endian."""
_EXPANDED: Final = 64
"""Keys that are expanded at a time: their lanes fit into a processor's cache."""

Lanes = NDArray[np.uint16]


class LtHash:
    """A hash of a set of keys that cannot be steered; the set changes. It takes 2 KiB.

    The hash of a set is the sum of the hashes of its keys, each of 1,024 lanes of 16 bits, modulo
    2^16: Bellare and Micciancio, "A New Paradigm for Collision-free Hashing" (EUROCRYPT 1997); with
    these numbers Lewi, Kim, Maykov and Weis, "Securing Update Propagation with Homomorphic Hashing"
    (IACR ePrint 2019/227), who expand each element by BLAKE2X and reckon with at least 200 bits of
    security. Whoever finds two sets with one hash solves a short integer solution problem in that
    lattice. In the eight lanes of Sha256a it takes minutes (Wagner, "A Generalized Birthday
    Problem", CRYPTO 2002).

    The lanes of a key are 2,048 bytes of output of BLAKE3 over its sha2-256 digest, which the tree
    has: 0.7 microseconds a key, a batch at a time.
    """

    SIZE: Final = 8 + LANES_SIZE
    """Bytes when it is packed."""

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

    def packed(self) -> bytes:
        """Return it as `unpacked` takes it."""
        return self.count.to_bytes(8, "little") + self.lanes.astype("<u2", copy=False).tobytes()

    @classmethod
    def unpacked(cls, data: bytes) -> LtHash:
        """Return the hash that was packed.

        Raises:
            ValueError: the data does not have `SIZE` bytes.
        """
        if len(data) != cls.SIZE:
            raise ValueError(f"a packed LtHash has {cls.SIZE} bytes, not {len(data)}")
        made = cls()
        made.count = int.from_bytes(data[:8], "little")
        made.lanes += np.frombuffer(data, "<u2", offset=8)
        return made

    def digest(self) -> bytes:
        """Return the 32 bytes that are compared: sha256(lanes || varint(count))."""
        if self._digest is None:
            hashed = sha256(self.lanes.astype("<u2", copy=False).data)
            hashed.update(encode_varint(self.count))
            self._digest = hashed.digest()
        return self._digest


def _sums(digests: list[bytes]) -> Iterator[Lanes]:
    """Yield sums of the lanes of some keys, a batch at a time."""
    for start in range(0, len(digests), _EXPANDED):
        batch = digests[start : start + _EXPANDED]
        expanded = [blake3(digest).digest(length=LANES_SIZE) for digest in batch]
        if len(expanded) == 1:  # as when a key is new: its lanes need no copy
            yield np.frombuffer(expanded[0], "<u2")
        else:
            lanes = np.frombuffer(b"".join(expanded), "<u2").reshape(-1, LANES)
            yield np.add.reduce(lanes, axis=0, dtype=np.uint16)
