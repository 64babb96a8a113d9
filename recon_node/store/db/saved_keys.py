"""The key store of the last run, in a file beside the log: a start without sorting and hashing.

The log is the truth, and the file is trusted only if it is known to belong to the log: on a clean
close, the file is written with a fresh token, and then the token is written into the log. The first
transaction that changes the log afterwards removes the token. So whatever happens (kill -9, a power
cut, a restored backup, a repair), a log has a token if and only if nothing has changed since the
file with that token was written. The file ends with the sha2-256 of everything before, so that
damage is noticed. In any doubt the key store is built from the log, which only takes longer.

    "recon-node keys 1\\n" | token, 16 bytes | number of keys, u64 | the length of each, u16
    | the keys, ascending | their sha2-256 digests | sha2-256 of all of that

Integers are little-endian. The file is mapped, so that it is in memory once, and not beside the
keys. A million keys take 0.25 s of CPU, and 0.35 to save them.
"""

from __future__ import annotations

import sqlite3
import struct
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Event
from typing import Final

import numpy as np
import structlog

from recon_node.files import draft_of, move_into_place
from recon_node.recon import KeyStore, KeyView

logger = structlog.get_logger(__name__)

KEYS: Final = "saved_keys"
"""The name, in the log, of the token of all keys."""
RING_KEYS: Final = "saved_ring_keys"
"""The same of the keys of the model ring."""
FILE_NAMES: Final = {KEYS: "keys.saved", RING_KEYS: "ring_keys.saved"}
FEWEST: Final = 10_000
"""Fewer keys are not saved: reading them from the log is fast enough."""

SAVING: Final = Event()
"""Set while keys are written, some 0.3 µs of CPU a key: a shutdown in order waits for it."""

_MAGIC: Final = b"recon-node keys 1\n"
_HEAD_SIZE: Final = len(_MAGIC) + 16 + 8
_DIGEST_SIZE: Final = 32


def load_keys(
    data_dir: Path, connection: sqlite3.Connection, name: str, count: int | None = None
) -> KeyStore | None:
    """Return the saved key store, if it belongs to the log as it is now.

    `name` is `KEYS` or `RING_KEYS`. It must have `count` keys, if that is known.
    """
    token = _token(connection, name)
    path = data_dir / FILE_NAMES[name]
    if token is None:
        return None
    try:
        store = _read(path, token)
        if count not in (None, len(store)):
            raise ValueError(f"it has {len(store)} keys, the log {count}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("The saved keys are not used", file=str(path), reason=str(error))
        return None
    return store


def has_saved_keys(connection: sqlite3.Connection) -> bool:
    """Return whether the log has a token."""
    return any(_token(connection, name) is not None for name in FILE_NAMES)


def forget_keys(connection: sqlite3.Connection) -> None:
    """Remove the tokens from the log, in the transaction that may change which keys it has."""
    connection.execute("DELETE FROM meta WHERE name IN (?, ?)", tuple(FILE_NAMES))


def save_keys(data_dir: Path, connection: sqlite3.Connection, name: str, keys: KeyView) -> None:
    """Write the file and its token, unless both exist.

    Raises:
        OSError: the disk does not take it.
    """
    if _token(connection, name) is not None:
        return
    path = data_dir / FILE_NAMES[name]
    if len(keys) < FEWEST:
        path.unlink(missing_ok=True)
        return
    token = uuid.uuid4().bytes
    with draft_of(path) as draft:
        _write(draft, token, keys)
        move_into_place(draft, path)
    sql = "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)"
    connection.execute(sql, (name, token.hex()))


def _token(connection: sqlite3.Connection, name: str) -> bytes | None:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes.fromhex(row[0])


def _write(path: Path, token: bytes, keys: KeyView) -> None:
    checksum = sha256()
    with path.open("wb") as file:
        for part in _encode(token, keys):
            checksum.update(part)
            file.write(part)
        file.write(checksum.digest())


def _encode(token: bytes, keys: KeyView) -> Iterator[bytes]:
    yield _MAGIC + token + len(keys).to_bytes(8, "little")
    for page, _ in keys.leaves():
        yield struct.pack(f"<{len(page)}H", *map(len, page))
    for page, _ in keys.leaves():
        yield b"".join(page)
    for _, digests in keys.leaves():
        yield digests


def _read(path: Path, token: bytes) -> KeyStore:
    """Return the keys in a file.

    Raises:
        ValueError: the file belongs to another log, or is damaged.
    """
    store = KeyStore()
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : len(_MAGIC) + 16] != token:
            raise ValueError("it does not belong to this state of the log")
        # Beside the checksum, which takes half as long and needs no interpreter.
        with ThreadPoolExecutor(1, "checksum") as pool:
            checksum = pool.submit(_checksum, data)
            try:
                store.load_digested(partial(_pages, data))
            finally:
                if checksum.result() != data[-_DIGEST_SIZE:]:
                    raise ValueError("it is damaged: its checksum is wrong")
    return store


def _checksum(data: mmap) -> bytes:
    with memoryview(data) as whole, whole[:-_DIGEST_SIZE] as hashed:
        return sha256(hashed).digest()


def _pages(data: mmap, size: int) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield so many keys at a time, with their digests.

    Raises:
        ValueError: the file is damaged.
    """
    count = int.from_bytes(data[_HEAD_SIZE - 8 : _HEAD_SIZE], "little")
    at = _HEAD_SIZE + 2 * count
    lengths = data[_HEAD_SIZE:at]
    digests = len(data) - _DIGEST_SIZE * (count + 1)
    if at + int(np.frombuffer(lengths, "<u2").sum()) != digests:
        raise ValueError("it is damaged: its parts do not fit together")
    for start in range(0, count, size):
        part = lengths[2 * start : 2 * (start + size)]
        number = len(part) // 2
        keys, at = _keys(data, at, part, number)
        yield keys, data[digests : digests + number * _DIGEST_SIZE]
        digests += number * _DIGEST_SIZE


def _keys(data: mmap, at: int, lengths: bytes, number: int) -> tuple[list[bytes], int]:
    """Return keys of these lengths, u16 each, from an offset on, and the offset after them."""
    if lengths == lengths[:2] * number:  # as nearly all are: five times as fast
        same = _same_lengths(int.from_bytes(lengths[:2], "little"), number)
        return [*same.unpack_from(data, at)], at + same.size
    data.seek(at)
    keys = [data.read(length) for length in struct.unpack(f"<{number}H", lengths)]
    return keys, data.tell()


@lru_cache(maxsize=64)
def _same_lengths(length: int, number: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * number)
