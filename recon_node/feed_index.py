"""A product's index of the feed: a SQLite file beside the log, which follows the feed.

Theory of operation. An index has what a product needs of the events, and never the events
themselves. It follows the feed in steps; each is one transaction with the position reached, so
after a kill at any moment it goes on where it was. A question first waits until the index has
reached the head that the feed had when it was asked. An index can be rebuilt from the log, and is
if the log is another one, as its epoch says.
"""

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from recon_node.fairness.turns import Turns
from recon_node.store import FeedRow, Store, StoreError

logger = structlog.get_logger(__name__)

T = TypeVar("T")

_LOCK_TIMEOUT: Final = 5.0
"""Seconds to wait for a lock of the file."""
_POSITIONS_PER_STEP: Final = 2_000
"""Positions of the feed in one step: each may have an init event of a megabyte to be searched."""
_EVENTS_PER_STEP: Final = 64
"""Events in one step."""
_BYTES: Final = 4 * 1024 * 1024
"""Bytes of their CARs."""
_RETRY_AFTER: Final = 5.0
"""Seconds until the next attempt after a failed step."""
_GATHER: Final = 0.02
"""Seconds between two steps, unless the first one left events, so that a busy node is not queried
after each of its batches."""
_PATIENCE: Final = 10.0
"""Seconds without an event for the index after which its position moves on."""
_INDEXING_TIMEOUT: Final = 20.0
"""Seconds that a question waits for the index."""
_QUERY_TIMEOUT: Final = 10.0
"""Seconds that a question may take: what it reads is what strangers have written."""
_STEPS: Final = 100_000
"""SQLite's steps between two looks at the clock, a few milliseconds."""
_MAX_REASON: Final = 200
"""Characters of an error in the log."""
_THREADS: Final = 2
"""Questions that run at once; steps have a thread of their own."""
_MARKS: Final = """
    CREATE TABLE marks (
        one INTEGER PRIMARY KEY CHECK (one = 1), epoch TEXT NOT NULL, position INTEGER NOT NULL
    ) STRICT
"""


class FeedIndexError(Exception):
    """An index cannot be used, or does not keep up. The message is one user-facing line."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """What the file of an index is.

    Attributes:
        subject: what it is an index of, in messages: "DAGs".
        name: of the file in the data directory.
        application_id: SQLite's mark for files of this kind.
        version: of its tables. The tables of an older version are dropped, and made again.
        tables: SQL that creates them; tables that are kept need `IF NOT EXISTS`.
        of_the_log: the tables that can be rebuilt from the log.
        sort_key: that of the streams whose init events it takes.
        marker: bytes that the CARs of all these have.
    """

    subject: str
    name: str
    application_id: int
    version: int
    tables: str
    of_the_log: tuple[str, ...]
    sort_key: str
    marker: bytes = b""

    def open(self, data_dir: Path, epoch: str, head: int) -> sqlite3.Connection:
        """Open the index for writing; create it, or empty it if the log is another one.

        Args:
            data_dir: with the file.
            epoch: of the log.
            head: the log's last feed position. If it is below what the index has read, the log is
                another one, too (a backup, for example).

        Returns:
            A connection in autocommit mode, to be used from any thread, but one at a time.

        Raises:
            FeedIndexError: the file is damaged, foreign, of a later version, or not accessible.
        """
        path = data_dir / self.name
        with self.translated_errors(data_dir):
            connection = _connect(str(path))
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")  # what it loses is read again
                connection.execute("PRAGMA cache_size = -16384")
                connection.execute("BEGIN IMMEDIATE")
                with connection:
                    self._prepare(connection, path, epoch, head)
            except BaseException:
                connection.close()
                raise
        return connection

    @contextmanager
    def reading(self, data_dir: Path) -> Iterator[sqlite3.Connection]:
        """Open a connection with one snapshot, for one question.

        Raises:
            FeedIndexError: the file cannot be read.
        """
        address = f"{(data_dir / self.name).absolute().as_uri()}?mode=ro"
        with self.translated_errors(data_dir), closing(_connect(address, uri=True)) as connection:
            connection.execute("BEGIN")
            yield connection

    @contextmanager
    def translated_errors(self, data_dir: Path) -> Iterator[None]:
        """Turn errors of SQLite into `FeedIndexError`."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise  # a bug here
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                raise FeedIndexError(
                    f"the index of {self.subject} has too much about this for one answer"
                ) from error
            raise FeedIndexError(
                f"the index of {self.subject} {data_dir / self.name} failed: {error}; if the disk "
                "is healthy and not full, stop the node and delete the file: the node rebuilds it "
                "from its log"
            ) from error

    def _prepare(self, connection: sqlite3.Connection, path: Path, epoch: str, head: int) -> None:
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if application_id == self.application_id and version < self.version:
            for table in ("marks", *self.of_the_log):
                connection.execute(f"DROP TABLE IF EXISTS {table}")
            tables = 0
        if not tables:
            for statement in filter(str.strip, (_MARKS, *self.tables.split(";"))):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {self.application_id}")
            connection.execute(f"PRAGMA user_version = {self.version}")
        elif (application_id, version) != (self.application_id, self.version):
            raise FeedIndexError(
                f"{path} is not an index of {self.subject} that this version of recon-node knows "
                f"(its header says {application_id:#x} and {version}): move it away, and the node "
                "rebuilds it"
            )
        row = connection.execute("SELECT epoch, position FROM marks").fetchone()
        if row is None or row[0] != epoch or row[1] > head:
            for table in self.of_the_log:
                connection.execute(f"DELETE FROM {table}")
            connection.execute("INSERT OR REPLACE INTO marks VALUES (1, ?, 0)", (epoch,))


Take = Callable[[sqlite3.Connection, Sequence[FeedRow]], int]
"""Adds events to an index, within a transaction; returns how many of them were ignored."""


class FeedIndex:
    """An index while the node runs. Made by `open_feed_index`; used from trio's thread only."""

    def __init__(
        self,
        file: IndexFile,
        take: Take,
        store: Store,
        data_dir: Path,
        connection: sqlite3.Connection,
    ) -> None:
        self._file = file
        self._take = take
        self._store = store
        self._data_dir = data_dir
        self._connection = connection
        self._position = position(connection)
        store.inits_upto.setdefault(file.sort_key, store.head)
        self._noted = self._position
        self._moved = trio.lowlevel.ParkingLot()
        self._turns = Turns(_THREADS)
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._writing = trio.CapacityLimiter(1)

    async def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Answer a question, in a thread, once the index has read all that is in the feed now.

        Raises:
            FeedIndexError: the file cannot be read, does not keep up with the feed, or the question
                takes too long.
        """
        upto = self._store.inits_upto[self._file.sort_key]
        with trio.move_on_after(_INDEXING_TIMEOUT):
            while self._position < upto:
                await self._moved.park()
        if self._position < upto:
            raise FeedIndexError(
                f"the index of {self._file.subject} is at position {self._position} of the feed, "
                f"which has {self._store.head}: try again later, or see the node's log"
            )

        def answer() -> T:
            deadline = time.monotonic() + _QUERY_TIMEOUT
            with self._file.reading(self._data_dir) as connection:
                connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
                return question(connection)

        return await self.in_thread(answer)

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in a thread, when it is this asker's turn."""
        async with self._turns.taken():
            return await trio.to_thread.run_sync(function, limiter=self._limiter)

    async def follow(self) -> None:
        """Follow the feed, forever; try again after errors of the disk."""
        while True:
            with trio.move_on_after(_PATIENCE):
                await self._store.wait_for_init(self._file.sort_key, self._position)
            try:
                if not await self._step():
                    await trio.sleep(_GATHER)
            except (FeedIndexError, StoreError) as error:
                logger.error("Cannot update an index", of=self._file.subject, reason=str(error))
                await trio.sleep(_RETRY_AFTER)

    async def _step(self) -> bool:
        """Read one step of the feed; return whether there are more events than one takes.

        If it had nothing for the index, the position is written once per `_POSITIONS_PER_STEP`.
        """
        upto, key = self._store.head, self._file.sort_key
        rows: list[FeedRow] = []
        if self._store.inits_upto[key] > self._position:  # else there is nothing to look for
            upto = min(upto, self._position + _POSITIONS_PER_STEP)
            rows = await self._store.reader.sort_key(
                key, self._file.marker, self._position, upto, _EVENTS_PER_STEP, _BYTES
            )
        is_full = len(rows) == _EVENTS_PER_STEP or sum(len(row.car) for row in rows) >= _BYTES
        if is_full:
            upto = rows[-1].position
        if rows or upto - self._noted >= _POSITIONS_PER_STEP:
            await self._write(rows, upto)
        self._position = upto
        self._moved.unpark_all()
        return is_full

    async def _write(self, rows: list[FeedRow], upto: int) -> None:
        def write() -> int:
            with self._file.translated_errors(self._data_dir):
                return take_step(self._connection, self._take, rows, upto)

        if ignored := await trio.to_thread.run_sync(write, limiter=self._writing):
            logger.info("Ignored events", about=self._file.subject, count=ignored, upto=upto)
        self._noted = upto


@asynccontextmanager
async def open_feed_index(
    file: IndexFile, take: Take, store: Store, data_dir: Path
) -> AsyncIterator[FeedIndex]:
    """Open the index of a store, and have it follow the feed.

    Raises:
        FeedIndexError: the file cannot be used.
    """
    connection = await trio.to_thread.run_sync(
        partial(file.open, data_dir, store.epoch, store.head)
    )
    try:
        index = FeedIndex(file, take, store, data_dir, connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(index.follow)
            yield index
            nursery.cancel_scope.cancel()
    finally:
        connection.close()


def position(connection: sqlite3.Connection) -> int:
    """Return the feed position up to which the log was read."""
    return int(connection.execute("SELECT position FROM marks").fetchone()[0])


def take_step(
    connection: sqlite3.Connection, take: Take, rows: Sequence[FeedRow], upto: int
) -> int:
    """Add events in one transaction, and note how far the feed was read.

    Events are of strangers. If one of them raises an error that nobody foresaw, it is ignored and
    logged, and the index goes on without it.

    Returns:
        The number of ignored events.

    Raises:
        sqlite3.DatabaseError: the file cannot be written.
    """
    try:
        return _take_all(connection, take, rows, upto)
    except Exception as error:
        if _is_of_the_file(error):
            raise
    ignored = 0
    for row in rows:
        try:
            ignored += _take_all(connection, take, [row], row.position)
        except Exception as error:
            if _is_of_the_file(error):
                raise
            ignored += 1
            reason = repr(error)[:_MAX_REASON]
            logger.error("An event is left out of an index", cid=str(row.event_cid), reason=reason)
    return ignored + _take_all(connection, take, [], upto)


def _take_all(
    connection: sqlite3.Connection, take: Take, rows: Sequence[FeedRow], upto: int
) -> int:
    connection.execute("BEGIN IMMEDIATE")
    with connection:  # commits, or takes everything back
        ignored = take(connection, rows)
        connection.execute("UPDATE marks SET position = ?", (upto,))
    return ignored


def _is_of_the_file(error: Exception) -> bool:
    """Whether an error is about the index's file, and not about what was to be written."""
    kinds = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(error, kinds)


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path, uri=uri, isolation_level=None, check_same_thread=False, timeout=_LOCK_TIMEOUT
    )
