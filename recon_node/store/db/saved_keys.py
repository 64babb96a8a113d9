"""The key store of the last run, in a file beside the log: a start without sorting and hashing.

The log is the truth, and the file is trusted only if it is known to be the log's own: on a clean
close the file is written under a fresh token, and then the token into the log. The transaction that
first changes the log afterwards takes the token out. So whatever happens (kill -9, a power cut, a
backup that was put back, a repair), a log has a token if and only if nothing changed since the file
of that token was written. The file's last bytes are the sha2-256 of all before, so that a damaged
one is noticed. In all doubt the key store is built from the log, which takes longer, and no more.

    "recon-node keys 1\\n" | token, 16 bytes | number of keys, u64 | the length of each, u16
    | the keys, ascending | their sha2-256 digests | sha2-256 of all of that

Integers are little-endian. A million keys, on two cores: 3.0 s from the log, 1.1 s from the file;
to save them takes 0.7 s (`python -m benchmarks.start_up`).
"""

from __future__ import annotations

import os
import sqlite3
import struct
import uuid
from collections.abc import Iterator
from hashlib import sha256
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import structlog

from recon_node.recon import KeyStore
from recon_node.store.db.files import sync_directory

logger = structlog.get_logger(__name__)

FILE_NAME: Final = "keys.saved"
FEWEST: Final = 10_000
"""Fewer keys are not saved: they are read from the log in no time."""
MOST: Final = 5_000_000
"""More keys are not saved: to write them takes longer than an orderly end may."""

_MAGIC: Final = b"recon-node keys 1\n"
_HEAD_SIZE: Final = len(_MAGIC) + 16 + 8
_DIGEST_SIZE: Final = 32
_META: Final = "saved_keys"


class SavedKeys:
    """The file and its token.

    Args:
        data_dir: where the file is.
        connection: to the log, for writing.
    """

    def __init__(self, data_dir: Path, connection: sqlite3.Connection) -> None:
        self._path = data_dir / FILE_NAME
        self._connection = connection
        row = connection.execute("SELECT value FROM meta WHERE name = ?", (_META,)).fetchone()
        self.current = row is not None
        """The log has the token of a file."""
        self._token = b"" if row is None else bytes.fromhex(row[0])

    def load(self, count: int) -> KeyStore | None:
        """The key store that was saved, if it is that of the log as it is now, of `count` keys."""
        if not self.current:
            return None
        try:
            keys, digests = _decode(self._path.read_bytes(), self._token)
            if len(keys) != count:
                raise ValueError(f"it has {len(keys)} keys, the log {count}")
            store = KeyStore()
            store.load_digested(keys, digests)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("The saved keys are not used", file=str(self._path), reason=str(error))
            return None
        return store

    def forget(self) -> None:
        """Take the token out of the log; in the transaction that changes which keys it has."""
        self._connection.execute("DELETE FROM meta WHERE name = ?", (_META,))

    def save(self, keys: KeyStore) -> None:
        """Write the file and its token, unless both are there. `keys` are those of the log.

        Raises:
            OSError: the disk does not take it.
        """
        if self.current:
            return
        if not FEWEST <= len(keys) <= MOST:
            self._path.unlink(missing_ok=True)
            return
        token = uuid.uuid4().bytes
        unfinished = self._path.with_name(self._path.name + ".new")
        try:
            _write(unfinished, token, keys)
            unfinished.replace(self._path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        sync_directory(self._path.parent)
        sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
        self._connection.execute(sql, (_META, token.hex()))


def _write(path: Path, token: bytes, keys: KeyStore) -> None:
    checksum = sha256()
    with path.open("wb") as file:
        for part in _encode(token, keys):
            checksum.update(part)
            file.write(part)
        file.write(checksum.digest())
        file.flush()
        os.fsync(file.fileno())


def _encode(token: bytes, keys: KeyStore) -> Iterator[bytes]:
    yield _MAGIC + token + len(keys).to_bytes(8, "little")
    for page, _ in keys.leaves():
        yield struct.pack(f"<{len(page)}H", *map(len, page))
    for page, _ in keys.leaves():
        yield b"".join(page)
    for _, digests in keys.leaves():
        yield digests


def _decode(data: bytes, token: bytes) -> tuple[list[bytes], bytes]:
    """The keys and their digests.

    Raises:
        ValueError: the file is another's, or damaged.
    """
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 16] != token:
        raise ValueError("it does not belong to this state of the log")
    body = memoryview(data)[:-_DIGEST_SIZE]
    if sha256(body).digest() != data[-_DIGEST_SIZE:]:
        raise ValueError("it is damaged: its checksum is wrong")
    count = int.from_bytes(data[_HEAD_SIZE - 8 : _HEAD_SIZE], "little")
    start = _HEAD_SIZE + 2 * count
    lengths = struct.unpack_from(f"<{count}H", data, _HEAD_SIZE)
    end = len(data) - _DIGEST_SIZE * (count + 1)
    if start + sum(lengths) != end:
        raise ValueError("it is damaged: its parts do not fit together")
    keys = [data[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
    return keys, data[end : len(data) - _DIGEST_SIZE]
