"""The key store of the last run, in a file beside the log: a start without sorting and hashing.

The log is the truth, and the file is trusted only if it is known to belong to the log: on a clean
close, the file is written with a fresh token, and then the token is written into the log. The first
transaction that changes the log afterwards removes the token. So whatever happens (kill -9, a power
cut, a restored backup, a repair), a log has a token if and only if nothing has changed since the
file with that token was written. The file ends with the sha2-256 of everything before, so that
damage is noticed. In any doubt the key store is built from the log, which only takes longer.

    "recon-node keys 1\\n" | token, 16 bytes | number of keys, u64 | the keys, packed
    | sha2-256 of all of that

Integers are little-endian. The file is mapped, and a key is read when it is needed
(recon_node/recon/keys/packed.py). So the keys take memory that the system can use otherwise when it
is short. The file is never changed: a later one takes its place, and a node that still uses it
keeps it until it ends. If the disk cannot read a part of the mapped file, the system ends the node
(SIGBUS), which loses nothing, but would happen again: then the file has to be deleted.
"""

from __future__ import annotations

import sqlite3
import uuid
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from io import FileIO
from itertools import chain
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from threading import Event
from typing import Final

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
_READ_AT_ONCE: Final = 1 << 25
"""Bytes that are read and hashed together: each time, the interpreter has to be had again."""


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
        head = _MAGIC + token + len(keys).to_bytes(8, "little")
        for part in chain([head], keys.packed()):
            checksum.update(part)
            file.write(part)
        file.write(checksum.digest())


def _read(path: Path, token: bytes) -> KeyStore:
    """Return the keys in a file.

    Raises:
        ValueError: the file belongs to another log, or is damaged.
    """
    with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1, "checksum") as pool:
        data = mmap(file.fileno(), 0, access=ACCESS_READ)
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : _HEAD_SIZE - 8] != token:
            raise ValueError("it does not belong to this state of the log")
        # Beside the rest: it takes about as long, and hardly needs the interpreter.
        checksum = pool.submit(_checksum, file, len(data) - _DIGEST_SIZE)
        store = KeyStore()
        try:
            count = int.from_bytes(data[_HEAD_SIZE - 8 : _HEAD_SIZE], "little")
            store.load_packed(data, _HEAD_SIZE, count)
        finally:
            if checksum.result() != data[-_DIGEST_SIZE:]:
                raise ValueError("it is damaged: its checksum is wrong")
    data.madvise(MADV_DONTNEED)  # what was read is needed no more
    return store


def _checksum(file: FileIO, size: int) -> bytes:
    """Return the sha2-256 of the first bytes of a file."""
    checksum = sha256()
    buffer = memoryview(bytearray(min(size, _READ_AT_ONCE)))
    while size > 0 and (number := file.readinto(buffer[:size])):
        checksum.update(buffer[:number])
        size -= number
    return checksum.digest()
