"""Other designs of a sorted set with range hashes: what benchmarks/key_store.py measures against.

Both give the same answers as the project's key store, which a test compares.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sortedcontainers import SortedList

from recon_node.recon import KeyRange, KeyStore, Sha256a
from recon_node.recon.keys.lookups import KeyCursor

LANES = 8


class Design(Protocol):
    """What every contestant offers. Ranges are open at both ends."""

    def load(self, keys: Iterable[bytes]) -> None: ...
    def add(self, key: bytes) -> object: ...
    def hash(self, key_range: KeyRange) -> Sha256a: ...
    def split(self, key_range: KeyRange, parts: int) -> list[bytes]: ...


class ReconKeyStore(KeyStore):
    """This project's key store."""

    def hash(self, key_range: KeyRange) -> Sha256a:
        return self.summarize(key_range).hash

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        cursor = KeyCursor(self)
        ends = cursor.up_to(key_range.lower), cursor.left_of(key_range.upper)
        return [key for key, _ in cursor.pivots(*ends, parts)]


class SummingSortedList:
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

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        first = self._rows.bisect_left((key_range.lower, b"\xff" * 32))
        size = self._rows.bisect_left((key_range.upper,)) - first
        return [self._rows[first + i * size // parts][0] for i in range(1, parts)]


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

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        ((size,),) = self._sql.execute(f"SELECT COUNT(*) {self._RANGE}", key_range)
        query = f"SELECT key {self._RANGE} ORDER BY key LIMIT 1 OFFSET ?"
        places = [(*key_range, i * size // parts) for i in range(1, parts)]
        return [self._sql.execute(query, place).fetchone()[0] for place in places]


def _lanes(digests: bytes) -> Any:
    """Return some digests as rows of eight u32 lanes."""
    return np.frombuffer(digests, "<u4").reshape(-1, LANES)


def _to_hash(lanes: Any) -> Sha256a:
    return Sha256a(lanes.astype("<u4").tobytes())
