"""Other designs of a sorted set with range hashes: what benchmarks/key_store.py measures against.

Each is small and honest: the same answers as the project's key store (a test compares them), and
what its idea can give in Python without tricks of its own.
"""

from __future__ import annotations

import sqlite3
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sortedcontainers import SortedList

from recon_node.recon import KeyRange, KeyStore, Sha256a

LANES = 8


class Design(Protocol):
    """What every contestant offers. Ranges are open at both ends."""

    def load(self, keys: Iterable[bytes]) -> None: ...
    def add(self, key: bytes) -> object: ...
    def hash(self, key_range: KeyRange) -> Sha256a: ...
    def middle(self, key_range: KeyRange) -> object: ...
    def split(self, key_range: KeyRange, parts: int) -> list[bytes]: ...


class ReconKeyStore(KeyStore):
    """This project's key store."""

    def hash(self, key_range: KeyRange) -> Sha256a:
        return self.summarize(key_range).hash


class RankedDesign(ABC):
    """Middle and split by ranks, for designs that know rank and select."""

    @abstractmethod
    def rank(self, bound: bytes, *, after: bool) -> int:
        """Return the number of keys below a bound, with the bound itself when `after`."""

    @abstractmethod
    def select(self, rank: int) -> bytes:
        """Return the key of a rank."""

    def middle(self, key_range: KeyRange) -> bytes:
        return self.split(key_range, 2)[0]

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        first = self.rank(key_range.lower, after=True)
        size = self.rank(key_range.upper, after=False) - first
        return [self.select(first + i * size // parts) for i in range(1, parts)]


class SummingSortedList(RankedDesign):
    """sortedcontainers.SortedList of keys with their digests, added up for each range."""

    def __init__(self) -> None:
        self._rows: Any = SortedList()

    def load(self, keys: Iterable[bytes]) -> None:
        self._rows.update((key, sha256(key).digest()) for key in keys)

    def add(self, key: bytes) -> None:
        self._rows.add((key, sha256(key).digest()))

    def hash(self, key_range: KeyRange) -> Sha256a:
        ends = (key_range.lower, b"\xff" * 32), (key_range.upper,)
        digests = b"".join(digest for _, digest in self._rows.irange(*ends, (False, False)))
        return _to_hash(np.add.reduce(_lanes(digests), dtype=np.uint32))

    def rank(self, bound: bytes, *, after: bool) -> int:
        rank: int = self._rows.bisect_left((bound, b"\xff" * 32) if after else (bound,))
        return rank

    def select(self, rank: int) -> bytes:
        key: bytes = self._rows[rank][0]
        return key


class Blocks(RankedDesign):
    """Blocks of about a thousand keys; running sums inside each block, and over the blocks.

    An insert adds to all sums right of it, in its block and over the blocks: numpy does both at
    once. uint32 wraps by itself.
    """

    SIZE = 1024

    def __init__(self) -> None:
        self._fill([])

    def _fill(self, ordered: list[bytes]) -> None:
        starts = range(0, len(ordered), self.SIZE) or range(1)
        self._keys = [ordered[start : start + self.SIZE] for start in starts]
        self._sums = [_running_sums(_digests(keys)) for keys in self._keys]
        self._count_blocks()

    def _count_blocks(self) -> None:
        self._firsts = [keys[0] if keys else b"" for keys in self._keys]
        self._ranks = np.cumsum([0, *map(len, self._keys)])
        self._before = _running_sums(np.array([sums[-1] for sums in self._sums]))

    def load(self, keys: Iterable[bytes]) -> None:
        self._fill(sorted(keys))

    def _find(self, bound: bytes, *, after: bool) -> tuple[int, int]:
        block = max(0, bisect_right(self._firsts, bound) - 1)
        return block, (bisect_right if after else bisect_left)(self._keys[block], bound)

    def add(self, key: bytes) -> None:
        block, at = self._find(key, after=False)
        lanes = _lanes(sha256(key).digest())[0]
        self._keys[block].insert(at, key)
        sums = self._sums[block]
        grown = np.empty((len(sums) + 1, LANES), np.uint32)
        grown[: at + 1] = sums[: at + 1]
        np.add(sums[at:], lanes, out=grown[at + 1 :])
        self._sums[block] = grown
        self._before[block + 1 :] += lanes
        self._ranks[block + 1 :] += 1
        if len(grown) > 2 * self.SIZE:
            self._split(block)

    def _split(self, block: int) -> None:
        keys, sums = self._keys[block], self._sums[block]
        self._keys[block : block + 1] = keys[: self.SIZE], keys[self.SIZE :]
        right = sums[self.SIZE :] - sums[self.SIZE]
        self._sums[block : block + 1] = sums[: self.SIZE + 1].copy(), right
        self._count_blocks()

    def hash(self, key_range: KeyRange) -> Sha256a:
        left, i = self._find(key_range.lower, after=True)
        right, j = self._find(key_range.upper, after=False)
        upper = self._before[right] + self._sums[right][j]
        return _to_hash(upper - self._before[left] - self._sums[left][i])

    def rank(self, bound: bytes, *, after: bool) -> int:
        block, at = self._find(bound, after=after)
        return int(self._ranks[block]) + at

    def select(self, rank: int) -> bytes:
        block = int(self._ranks.searchsorted(rank, "right")) - 1
        return self._keys[block][rank - int(self._ranks[block])]


class SortedListAndDelta(RankedDesign):
    """One sorted list with running sums; what is new goes to a small one, merged now and then."""

    DELTA = 16_384

    def __init__(self) -> None:
        self.load([])

    def load(self, keys: Iterable[bytes]) -> None:
        self._keys = sorted(keys)
        self._sums = _running_sums(_digests(self._keys))
        self._forget_delta()

    def _forget_delta(self) -> None:
        self._new: list[bytes] = []
        self._new_at: list[int] = []  # the place of each in the large list
        self._new_sums: Any = None

    def add(self, key: bytes) -> None:
        at = bisect_left(self._new, key)
        self._new.insert(at, key)
        self._new_at.insert(at, bisect_left(self._keys, key))
        self._new_sums = None
        if len(self._new) > self.DELTA:
            digests = np.insert(np.diff(self._sums, axis=0), self._new_at, _digests(self._new), 0)
            self._keys = sorted(self._keys + self._new)
            self._sums = _running_sums(digests)
            self._forget_delta()

    def _find(self, bound: bytes, *, after: bool) -> tuple[int, int]:
        bisect = bisect_right if after else bisect_left
        return bisect(self._keys, bound), bisect(self._new, bound)

    def hash(self, key_range: KeyRange) -> Sha256a:
        if self._new_sums is None:
            self._new_sums = _running_sums(_digests(self._new))
        i, new_i = self._find(key_range.lower, after=True)
        j, new_j = self._find(key_range.upper, after=False)
        old = self._sums[j] - self._sums[i]
        return _to_hash(old + self._new_sums[new_j] - self._new_sums[new_i])

    def rank(self, bound: bytes, *, after: bool) -> int:
        return sum(self._find(bound, after=after))

    def select(self, rank: int) -> bytes:
        places = range(len(self._new))
        new = bisect_left(places, rank, key=lambda at: self._new_at[at] + at)
        if new < len(self._new) and self._new_at[new] + new == rank:
            return self._new[new]
        return self._keys[rank - new]


class SqliteSums:
    """A table of keys and lanes on disk; SUM() over integers is exact, TOTAL() is not."""

    _RANGE = "FROM keys WHERE key > ? AND key < ?"

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.file = Path(self._folder.name) / "keys.sqlite"
        self._sql = sqlite3.connect(self.file)
        lanes = ", ".join(f"l{lane} INTEGER" for lane in range(LANES))
        self._sql.execute(f"CREATE TABLE keys (key BLOB PRIMARY KEY, {lanes}) WITHOUT ROWID")

    @staticmethod
    def _row(key: bytes) -> tuple[bytes | int, ...]:
        return key, *_lanes(sha256(key).digest())[0].tolist()

    def load(self, keys: Iterable[bytes]) -> None:
        with self._sql:
            row = f"INSERT INTO keys VALUES (?{', ?' * LANES})"
            self._sql.executemany(row, map(self._row, sorted(keys)))

    def add(self, key: bytes) -> None:
        self._sql.execute(f"INSERT INTO keys VALUES (?{', ?' * LANES})", self._row(key))

    def hash(self, key_range: KeyRange) -> Sha256a:
        sums = ", ".join(f"SUM(l{lane})" for lane in range(LANES))
        (row,) = self._sql.execute(f"SELECT {sums} {self._RANGE}", key_range)
        return _to_hash(np.array([lane or 0 for lane in row], np.int64).astype(np.uint32))

    def middle(self, key_range: KeyRange) -> bytes:
        return self.split(key_range, 2)[0]

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        ((size,),) = self._sql.execute(f"SELECT COUNT(*) {self._RANGE}", key_range)
        query = f"SELECT key {self._RANGE} ORDER BY key LIMIT 1 OFFSET ?"
        places = [(*key_range, i * size // parts) for i in range(1, parts)]
        return [self._sql.execute(query, place).fetchone()[0] for place in places]


def _lanes(digests: bytes) -> Any:
    """Return some digests as rows of eight u32 lanes."""
    return np.frombuffer(digests, "<u4").reshape(-1, LANES)


def _digests(keys: list[bytes]) -> Any:
    return _lanes(b"".join([sha256(key).digest() for key in keys]))


def _running_sums(rows: Any) -> Any:
    """Return the sums of the first n rows, by n, modulo 2^32."""
    sums = np.zeros((len(rows) + 1, LANES), np.uint32)
    np.cumsum(rows, axis=0, dtype=np.uint32, out=sums[1:])
    return sums


def _to_hash(lanes: Any) -> Sha256a:
    return Sha256a(lanes.astype("<u4").tobytes())
