"""The key store of the last run, in files beside the log: a start without sorting and hashing.

The log is the truth, and the files are used only if they are known to belong to the log. On a clean
close, and by a start that had to make many keys, they are written with a fresh token, and then the
token is written into the log, under two names. The first transaction that changes the log
afterwards removes the first one. So whatever happens (kill -9, a power cut, a restored backup, a
repair), a log has the first token if and only if nothing has changed since the files with that
token were written, and the second one if and only if it came out of that log by changes. Files end
with the sha2-256 of everything before, so that damage is noticed. In any doubt the key store is
built from the log, which only takes longer.

    keys.saved   "recon-node keys 1\\n" | token, 16 bytes | number of keys, u64 | the keys, packed
                 | feed's head, u64 | number of undelivered keys, u64
                 | the length of each, u16 | these keys | sha2-256 of all that
    sums.saved   "recon-node sums 1\\n" | token, 16 bytes | sums of the keys, packed | sha2-256

Integers are little-endian. What comes after the keys is missing in the file of the ring's keys.
Earlier versions neither write nor read it, nor the sums.

**After changes without a clean close** (kill -9), the keys are brought up to date. An event that is
delivered stays so, at the same position and under the same EventId, and is a key. So the keys of a
log are the EventIds at its positions, and those of undelivered events that are not withheld. Of the
saved ones, exactly those that were undelivered then may have ceased to be keys; what was delivered
since has a position above the head of then; and what is undelivered now is read from the log. In
the end there must be as many keys as the log has positions and such events. Sums follow the keys.

**Mapping.** The file of keys is mapped, and a key is read when it is needed
(recon_node/recon/keys/packed.py). So the keys take memory that the system can use otherwise when it
is short. The file is never changed: a later one takes its place, and a node that still uses it
keeps it until it ends. If the disk cannot read a part of the mapped file, the system ends the node
(SIGBUS), which loses nothing, but would happen again: then the file has to be deleted.
"""

from __future__ import annotations

import sqlite3
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from io import FileIO
from itertools import accumulate, chain, pairwise
from mmap import ACCESS_READ, MADV_DONTNEED, mmap
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

import structlog

from recon_node.base.files import draft_of, move_into_place
from recon_node.ceramic import EventId
from recon_node.recon import KeyStore, KeyView
from recon_node.store.db.rows import select_withheld

logger = structlog.get_logger(__name__)

KEYS: Final = "saved_keys"
"""The name, in the log, of the token of all keys."""
RING_KEYS: Final = "saved_ring_keys"
"""The same of the keys of the model ring."""
FILE_NAMES: Final = {KEYS: "keys.saved", RING_KEYS: "ring_keys.saved"}
SUMS_FILE: Final = "sums.saved"
EARLIER_KEYS: Final = "earlier_saved_keys"
"""The name of the token of all keys that stays when the log changes."""
FEWEST: Final = 10_000
"""Fewer keys are not saved: reading them from the log is fast enough."""

SAVING: Final = Event()
"""Set while keys are written, some 0.3 µs of CPU a key: a shutdown in order waits for it."""

_MAGIC: Final = b"recon-node keys 1\n"
_SUMS_MAGIC: Final = b"recon-node sums 1\n"
_TOKEN_SIZE: Final = 16
_HEAD_SIZE: Final = len(_MAGIC) + _TOKEN_SIZE + 8
_DIGEST_SIZE: Final = 32
_EXTENT: Final = struct.Struct("<QQ")
_READ_AT_ONCE: Final = 1 << 25
"""Bytes that are read and hashed together: each time, the interpreter has to be had again."""
_MANY_CHANGES: Final = 0.1
"""Changed keys for each saved one from which on a start saves them: they may grow further before
the next clean close."""
_MOST_CHANGES: Final = 0.33
"""Changed keys for each saved one from which on it is faster to read all from the log."""


class Extent(NamedTuple):
    """Which keys a log has: those at all positions up to the head, and some without a position."""

    head: int
    undelivered: Set[bytes]

    @classmethod
    def of(cls, connection: sqlite3.Connection, head: int, withheld: Iterable[bytes]) -> Extent:
        """Return that of a log as it is now, given the head of its feed and what is not a key."""
        return cls(head, _event_ids(connection, "position IS NULL").difference(withheld))


class _SavedFile(NamedTuple):
    """What is in a file."""

    keys: KeyStore
    packed_extent: bytes

    def extent(self) -> Extent | None:
        """Return that of the log when they were saved; None if the file does not say."""
        data = self.packed_extent
        if not data:
            return None
        try:
            head, number = _EXTENT.unpack_from(data)
            lengths = struct.unpack_from(f"<{number}H", data, _EXTENT.size)
        except struct.error:
            return None
        ends = accumulate(lengths, initial=_EXTENT.size + 2 * number)
        return Extent(head, {data[start:end] for start, end in pairwise(ends)})


class SavedKeys:
    """The keys of one log, and whether those that were saved are still the same.

    Args:
        data_dir: where the log is.
        connection: to the log.
        guarded: whether a write policy decides in whose name streams are: then events whose init
            event is missing are withheld, too.
    """

    def __init__(self, data_dir: Path, connection: sqlite3.Connection, *, guarded: bool) -> None:
        self._data_dir = data_dir
        self._connection = connection
        self._guarded = guarded
        self.are_current = has_saved_keys(connection)
        """Whether nothing has changed since keys were saved: the next change forgets them."""

    def load(self, head: int) -> KeyStore:
        """Return all keys of the log, given the head of its feed."""
        extent = partial(self._extent, head)
        latest = load_latest_keys(self._data_dir, self._connection, extent)
        if latest is None:
            withheld = set(self._withheld())
            rows = self._connection.execute("SELECT event_id FROM events")
            keys = KeyStore(event_id for (event_id,) in rows if event_id not in withheld)
            latest = keys, True
        keys, has_changed = latest
        if has_changed:
            self._save(head, keys)
            saved = load_latest_keys(self._data_dir, self._connection, extent)
            return keys if saved is None else saved[0]  # which takes a tenth of the memory
        if self.are_current:
            self._apply_guard(keys)
        return keys

    def save(self, head: int, keys: KeyView, ring_keys: KeyView | None) -> None:
        """Save all keys, unless some are missing because their events are damaged."""
        sql = "SELECT count(*) FROM events"
        count: int = self._connection.execute(sql).fetchone()[0]
        if len(keys) == count - len(self._withheld()):
            self._save(head, keys, ring_keys)

    def _save(self, head: int, keys: KeyView, ring_keys: KeyView | None = None) -> None:
        SAVING.set()
        self.are_current = True
        try:
            save_keys(self._data_dir, self._connection, KEYS, keys, partial(self._extent, head))
            save_sums(self._data_dir, self._connection, keys)
            if ring_keys is not None:
                save_keys(self._data_dir, self._connection, RING_KEYS, ring_keys)
        except (OSError, sqlite3.Error) as error:  # it only makes the next start slower
            logger.warning("The keys were not saved for the next start", reason=str(error))
        finally:
            SAVING.clear()

    def _apply_guard(self, keys: KeyStore) -> None:
        """Change saved keys if the log is guarded now and was not then, or the other way round."""
        count = len(keys)
        withheld = self._withheld()
        for event_id in withheld:
            keys.discard(event_id)
        if not self._guarded:
            orphans = select_withheld(self._connection, orphans=True)
            keys.load(set(orphans).difference(withheld))
        if len(keys) != count:
            with suppress(sqlite3.Error):  # on a full disk, the next start does the same
                forget_keys(self._connection)

    def _extent(self, head: int) -> Extent:
        return Extent.of(self._connection, head, self._withheld())

    def _withheld(self) -> list[EventId]:
        return select_withheld(self._connection, orphans=self._guarded)


def load_keys(
    data_dir: Path, connection: sqlite3.Connection, name: str, count: int | None = None
) -> KeyStore | None:
    """Return the saved key store, if it belongs to the log as it is now.

    `name` is `KEYS` or `RING_KEYS`. It must have `count` keys, if that is known.
    """
    saved = _load(data_dir / FILE_NAMES[name], _token(connection, name), count)
    return None if saved is None else saved.keys


def load_latest_keys(
    data_dir: Path, connection: sqlite3.Connection, extent: Callable[[], Extent]
) -> tuple[KeyStore, bool] | None:
    """Return all keys of the log, with their sums, if they follow from those that were saved.

    `extent` returns that of the log as it is now. With them comes whether so many have changed that
    they should be saved again.
    """
    token, earlier = _token(connection, KEYS), _token(connection, EARLIER_KEYS)
    path = data_dir / FILE_NAMES[KEYS]
    saved = _load(path, token or earlier)
    if saved is not None:
        _load_sums(data_dir / SUMS_FILE, token or earlier, saved.keys)
        if token is not None:
            return saved.keys, False
        before, number = saved.extent(), len(saved.keys)
        if before is not None:
            changes = _bring_up_to_date(saved.keys, before, extent(), connection)
            if changes is not None:
                return saved.keys, changes > number * _MANY_CHANGES
    if token is not None:  # so that another file is written
        with suppress(sqlite3.Error):  # on a full disk, the node starts without it
            connection.execute("DELETE FROM meta WHERE name = ?", (KEYS,))
    return None


def _bring_up_to_date(
    keys: KeyStore, saved: Extent, now: Extent, connection: sqlite3.Connection
) -> int | None:
    """Make saved keys those of the log as it is now, and return how many changed.

    None if that is not possible, or too many have changed.
    """
    came, went = now.undelivered - saved.undelivered, saved.undelivered - now.undelivered
    changes = now.head - saved.head + len(came) + len(went)
    if changes > len(keys) * _MOST_CHANGES:
        return None
    delivered = _event_ids(connection, "position > ?", saved.head)
    for event_id in went - delivered:
        keys.discard(event_id)
    added = came | (delivered - saved.undelivered)
    keys.load(added)
    count = now.head + len(now.undelivered)
    if len(keys) != count:
        reason = f"with all changes since, they are {len(keys)}, and the log has {count}"
        logger.warning("The saved keys are not used", reason=reason)
        return None
    if added:
        logger.info("The saved keys were brought up to date", keys=len(keys), added=len(added))
    return changes


def _event_ids(connection: sqlite3.Connection, where: str, *values: int) -> set[bytes]:
    rows = connection.execute(f"SELECT event_id FROM events WHERE {where}", values)
    return {event_id for (event_id,) in rows}


def has_saved_keys(connection: sqlite3.Connection) -> bool:
    """Return whether the log has a token, and so has not changed since it was closed."""
    return any(_token(connection, name) is not None for name in FILE_NAMES)


def forget_keys(connection: sqlite3.Connection) -> None:
    """Remove the tokens from the log, in the transaction that may change which keys it has."""
    connection.execute("DELETE FROM meta WHERE name IN (?, ?)", tuple(FILE_NAMES))


def save_keys(
    data_dir: Path,
    connection: sqlite3.Connection,
    name: str,
    keys: KeyView,
    extent: Callable[[], Extent] | None = None,
) -> None:
    """Write the file and its token, unless both exist.

    If `extent` returns that of the log, its later changes can be applied to the keys, see
    `load_latest_keys`.

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
    parts = keys.packed() if extent is None else chain(keys.packed(), _packed(extent()))
    with draft_of(path) as draft:
        _write(draft, chain([_MAGIC, token, len(keys).to_bytes(8, "little")], parts))
        move_into_place(draft, path)
    names = [name] if extent is None else [name, EARLIER_KEYS]
    connection.execute(  # in one statement, and so in one transaction
        f"INSERT OR REPLACE INTO meta (name, value) VALUES {', '.join(['(?, ?)'] * len(names))}",
        [*chain.from_iterable((key, token.hex()) for key in names)],
    )


def save_sums(data_dir: Path, connection: sqlite3.Connection, keys: KeyView) -> None:
    """Write the sums of keys that are saved.

    Raises:
        OSError: the disk does not take it.
    """
    path, token, sums = data_dir / SUMS_FILE, _token(connection, KEYS), keys.sums.packed()
    if token is None or not sums:
        path.unlink(missing_ok=True)
        return
    with draft_of(path) as draft:
        _write(draft, [_SUMS_MAGIC, token, sums])
        move_into_place(draft, path)


def _token(connection: sqlite3.Connection, name: str) -> bytes | None:
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes.fromhex(row[0])


def _packed(extent: Extent) -> Iterator[bytes]:
    """Yield what is saved with the keys so that changes can be applied to them."""
    head, undelivered = extent
    yield _EXTENT.pack(head, len(undelivered))
    yield struct.pack(f"<{len(undelivered)}H", *map(len, undelivered))
    yield from undelivered


def _write(path: Path, parts: Iterable[bytes]) -> None:
    checksum = sha256()
    with path.open("wb") as file:
        for part in parts:
            checksum.update(part)
            file.write(part)
        file.write(checksum.digest())


def _load(path: Path, token: bytes | None, count: int | None = None) -> _SavedFile | None:
    """Return what is in a file of keys with this token, if it is sound."""
    if token is None:
        return None
    try:
        saved = _read(path, token)
        if count not in (None, len(saved.keys)):
            raise ValueError(f"it has {len(saved.keys)} keys, the log {count}")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logger.warning("The saved keys are not used", file=str(path), reason=str(error))
        return None
    return saved


def _read(path: Path, token: bytes) -> _SavedFile:
    """Return what is in a file of keys.

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
            end = store.load_packed(data, _HEAD_SIZE, count)
            extent = data[end:-_DIGEST_SIZE]
        finally:
            if checksum.result() != data[-_DIGEST_SIZE:]:
                raise ValueError("it is damaged: its checksum is wrong")
    data.madvise(MADV_DONTNEED)  # what was read is needed no more
    return _SavedFile(store, extent)


def _load_sums(path: Path, token: bytes | None, keys: KeyStore) -> None:
    """Load the sums of keys that were saved with this token, if there are any."""
    try:
        data = path.read_bytes()
        head = _SUMS_MAGIC + (token or b"")
        if not data.startswith(head):
            raise ValueError("they are not those of the saved keys")
        if sha256(data[:-_DIGEST_SIZE]).digest() != data[-_DIGEST_SIZE:]:
            raise ValueError("the file is damaged: its checksum is wrong")
        keys.sums.load(data[len(head) : -_DIGEST_SIZE])
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        logger.warning("The saved sums are not used", file=str(path), reason=str(error))


def _checksum(file: FileIO, size: int) -> bytes:
    """Return the sha2-256 of the first bytes of a file."""
    checksum = sha256()
    buffer = memoryview(bytearray(min(size, _READ_AT_ONCE)))
    while size > 0 and (number := file.readinto(buffer[:size])):
        checksum.update(buffer[:number])
        size -= number
    return checksum.digest()
