"""The file `blocks.sqlite3`: which delivered event holds which block.

The log finds an event by its CID, and a block that events share by its own (see `blocks`). The
others, above all the payloads of signed events, are only inside CARs. Clients that ask for them one
by one (the API of kubo, `/api/v0`) need an index; nobody else does. So it is a file of its own that
is only made, and continued, when such a block is asked for, and that costs nothing until then. All
of it can be read from the feed again: whatever is wrong with the file, it is made anew.

    marks    the log's epoch, and the feed position up to which it was read
    places   the first 8 bytes of a block's digest, and the feed position of an event with it

Measured: 18 bytes for each block in the file, and 48,000 events a second.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from recon_node.ceramic import EventKind
from recon_node.ipld import CID
from recon_node.store.damage import check_stored
from recon_node.store.db.blocks import SMALLEST, sections
from recon_node.store.errors import StoreError
from recon_node.store.reading import Reader
from recon_node.store.reading.feed_rows import read_feed
from recon_node.store.reading.single_events import read_car
from recon_node.store.values import FeedRow

FILE_NAME: Final = "blocks.sqlite3"
PAGE_EVENTS: Final = 2_000
"""Events of the feed that are read in one step."""
PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of their CARs."""
MAX_UNDELIVERED: Final = 1_000
"""Events without a feed position in which a block is looked for, the latest ones."""

_VERSION: Final = 1
_PREFIX: Final = 8
"""Bytes of a digest that are kept. What is found is compared with the whole CID."""
_TABLES: Final = """
    DROP TABLE IF EXISTS marks;
    DROP TABLE IF EXISTS places;
    CREATE TABLE marks (epoch TEXT NOT NULL, position INTEGER NOT NULL) STRICT;
    CREATE TABLE places (
        digest BLOB NOT NULL, position INTEGER NOT NULL, PRIMARY KEY (digest, position)
    ) STRICT, WITHOUT ROWID;
"""


class BlockIndex:
    """The index of one log; opened by its first use, and used in one thread at a time."""

    def __init__(self, data_dir: Path, epoch: str) -> None:
        self._path = data_dir / FILE_NAME
        self._epoch = epoch
        self._connection: sqlite3.Connection | None = None

    def find(self, reader: Reader, cid: CID) -> bytes | None:
        """Return a block of an event in the index."""
        with self._own_errors():
            positions = self._open().execute(
                "SELECT position FROM places WHERE digest = ?", (cid.digest[:_PREFIX],)
            )
            candidates = [position for (position,) in positions]
        for position in candidates:
            for row in read_feed(reader, position - 1, 1, upto=position):
                if row.car and (block := block_of(row.car, cid)) is not None:
                    return block
        return None

    def advance(self, reader: Reader) -> bool:
        """Read another page of the feed; return whether its head is reached."""
        with self._own_errors():
            (after,) = self._open().execute("SELECT position FROM marks").fetchone()
        if after >= reader.head:
            return True
        rows = read_feed(reader, after, PAGE_EVENTS, max_bytes=PAGE_BYTES)
        with self._own_errors(), self._open() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT OR IGNORE INTO places VALUES (?, ?)",
                ((digest, row.position) for row in rows for digest in _digests(row)),
            )
            connection.execute("UPDATE marks SET position = ?", (rows[-1].position,))
        return rows[-1].position == reader.head

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise errors of this file as its own, not the log's, and start over with the next use."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            self.close()
            with suppress(OSError):
                self._delete()
            raise StoreError(
                f"the index of blocks {self._path} failed and is rebuilt: {error}"
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open_file()
        return self._connection

    def _open_file(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")  # what it loses is read again
            if not self._is_ours(connection):
                connection.executescript(_TABLES)
                connection.execute("INSERT INTO marks VALUES (?, 0)", (self._epoch,))
                connection.execute(f"PRAGMA user_version = {_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is complete, of this version, and of this log."""
        if connection.execute("PRAGMA user_version").fetchone() != (_VERSION,):
            return False
        return connection.execute("SELECT epoch FROM marks").fetchall() == [(self._epoch,)]

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)


def read_block(reader: Reader, cid: CID) -> bytes | None:
    """Return a block that the log finds without the index; None if there is none.

    The log finds the first block of an event, blocks that events share, and the blocks of the
    latest events that are not delivered.

    Raises:
        DamagedEventError: it is the first block of an event that is damaged.
    """
    car = read_car(reader, cid)
    if car is not None:
        return block_of(car, cid)
    shared = reader.connection.execute("SELECT block FROM blocks WHERE cid = ?", (cid,)).fetchone()
    if shared is not None and cid.matches(shared[0]):
        return bytes(shared[0])
    undelivered = reader.connection.execute(
        "SELECT event_id, cid, car FROM events JOIN cars USING (id) WHERE position IS NULL "
        "ORDER BY id DESC LIMIT ?",
        (MAX_UNDELIVERED,),
    ).fetchall()
    restored = reader.blocks.restore_each([stored for *_, stored in undelivered])
    for (event_id, event_cid, _), stored in zip(undelivered, restored, strict=True):
        checked = check_stored(stored, event_id, event_cid, None)
        if isinstance(checked, bytes) and (block := block_of(checked, cid)) is not None:
            return block
    return None


def block_of(car: bytes, cid: CID) -> bytes | None:
    """Return a block of a sound CAR; None if it is not in it."""
    for section_cid, _, start, end in sections(car):
        if section_cid == cid:
            return car[start:end]
    return None


def _digests(row: FeedRow) -> list[bytes]:
    """Return the digests, as they are kept, of the blocks that `read_block` does not find."""
    if not row.car:
        return []
    is_time = row.kind is EventKind.TIME
    return [
        cid.digest[:_PREFIX]
        for cid, start, _, end in sections(row.car)
        if cid != row.event_cid and not (is_time and end - start >= SMALLEST)
    ]
