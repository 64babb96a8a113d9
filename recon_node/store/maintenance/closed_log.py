"""The log of a stopped node: opened, summarized, compacted, copied, and streams in it forgotten.

Compacting writes a new file beside the old one, so it needs as much room again. The new file
replaces the old one when it is complete: a process that is killed leaves the one or the other.
"""

import sqlite3
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from recon_node.base.files import create_file, scratch_folder
from recon_node.ceramic import Network, NetworkError, StreamId
from recon_node.ceramic.auth.did import did_spellings
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.damage import FORGOTTEN
from recon_node.store.db import log_schema
from recon_node.store.db.blocks import references, trim
from recon_node.store.db.log_schema import finish_replacement, refuse_link, replace_log
from recon_node.store.db.sql import damaged, explained_errors, read_in_pieces, short
from recon_node.store.errors import StoreError

Progress = Callable[[str, int, int | None], None]
"""Called with the current step, how much of it is done, and of how much (None: unknown)."""

_CARS_AT_ONCE: Final = 10_000
_INTERRUPTIBLE: Final = (lambda: None, 1_000_000)
"""With this progress handler, Ctrl-C ends a statement, too: one may take an hour."""


def no_progress(step: str, done: int, total: int | None) -> None:
    """A `Progress` that nobody watches."""


class ClosedLog(NamedTuple):
    """The log of a stopped node, opened by a maintenance command."""

    path: Path
    network: Network
    connection: sqlite3.Connection


def find_log(data_dir: Path) -> Path:
    """Return the file of the directory's log.

    Raises:
        StoreError: there is none.
    """
    path = data_dir / log_schema.FILE_NAME
    with explained_errors(path):
        finish_replacement(path)
        if not path.is_file():
            raise StoreError(
                f"there is no event log in {data_dir}: name a node's data directory with --data-dir"
            )
    return path


@contextmanager
def opened_log(data_dir: Path) -> Iterator[ClosedLog]:
    """Open the log of a directory for writing, migrated and checked as a node does.

    Raises:
        StoreError: there is none, or a node would not start on it either.
    """
    path = find_log(data_dir)
    network = network_of(path)
    connection = log_schema.open_database(data_dir, network, "full")
    connection.set_progress_handler(*_INTERRUPTIBLE)
    with explained_errors(path), closing(connection):
        yield ClosedLog(path, network, connection)


def network_of(path: Path) -> Network:
    """Return the network of a log.

    Raises:
        StoreError: it cannot be read.
    """
    # For writing: the first to open the file rolls back what a killed process left unfinished.
    with explained_errors(path), closing(sqlite3.connect(path)) as connection:
        try:
            stored = log_schema.read_meta(connection, "network_id")
            return Network.from_id(int(stored or ""))
        except (ValueError, NetworkError) as error:
            raise damaged(path, f"its network cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log in a few numbers; sizes in bytes."""

    path: Path
    network: Network
    schema: int
    epoch: str
    events: int
    head: int
    waiting: int
    pending: int
    shared_blocks: int
    refused: int
    size: int
    free: int
    """The part of `size` that is free for new events; `compact` returns it to the disk."""


def read_info(data_dir: Path) -> LogInfo:
    """Summarize the log of a directory.

    Raises:
        StoreError: there is no log, or it cannot be opened.
    """
    with opened_log(data_dir) as log:

        def number(sql: str) -> int:
            return int(log.connection.execute(sql).fetchone()[0])

        undelivered = "SELECT count(*) FROM events WHERE position IS NULL AND state"
        page_size = number("PRAGMA page_size")
        return LogInfo(
            path=log.path,
            network=log.network,
            schema=number("PRAGMA user_version"),
            epoch=log_schema.read_meta(log.connection, "epoch") or "",
            events=number("SELECT count(*) FROM events"),
            head=number("SELECT coalesce(max(position), 0) FROM events WHERE position IS NOT NULL"),
            waiting=number(f"{undelivered} < {State.PENDING}"),
            pending=number(f"{undelivered} = {State.PENDING}"),
            shared_blocks=number("SELECT count(*) FROM blocks"),
            refused=number("SELECT count(*) FROM refused"),
            size=number("PRAGMA page_count") * page_size,
            free=number("PRAGMA freelist_count") * page_size,
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of `compact_log`; sizes of the file in bytes."""

    before: int
    after: int
    blocks_removed: int


def compact_log(data_dir: Path, progress: Progress = no_progress) -> Compacted:
    """Rewrite the log of a directory without free pages and blocks that no event refers to.

    Raises:
        StoreError: there is no log, it is damaged, or it cannot be written.
    """
    with opened_log(data_dir) as log, scratch_folder(data_dir) as folder:
        refuse_link(log.path)
        new = folder / log.path.name
        removed = remove_unused_blocks(log.connection, progress)
        trim_plain_cars(log.connection, progress)
        log.connection.execute("PRAGMA journal_mode = DELETE")  # merges the write-ahead log
        progress("writing the new file", 0, None)
        create_file(new, b"")  # for its owner alone, as the log is
        log.connection.execute("VACUUM INTO ?", (str(new),))
        log.connection.close()
        before, after = log.path.stat().st_size, new.stat().st_size
        replace_log(log.path, new)
    return Compacted(before, after, removed)


def remove_unused_blocks(connection: sqlite3.Connection, progress: Progress) -> int:
    """Delete the shared blocks that no event refers to; return how many."""
    used: set[int] = set()
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM cars").fetchone()
    packed = (
        "SELECT id, car FROM cars WHERE id > ? AND substr(car, 1, 1) = x'00' ORDER BY id LIMIT ?"
    )
    for rows in read_in_pieces(connection, packed, _CARS_AT_ONCE):
        used.update(block for _, car in rows for block in references(car))
        progress("looking for unused blocks", rows[-1][0], last)
    blocks = connection.execute("SELECT id FROM blocks")
    unused = [(block,) for (block,) in blocks if block not in used]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM blocks WHERE id = ?", unused)
    connection.execute("COMMIT")
    return len(unused)


def trim_plain_cars(connection: sqlite3.Connection, progress: Progress) -> None:
    """Store CARs that an earlier version wrote as this one does."""
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM cars").fetchone()
    plain = (
        "SELECT id, car FROM cars WHERE id > ? AND substr(car, 1, 1) > x'02' ORDER BY id LIMIT ?"
    )
    for rows in read_in_pieces(connection, plain, _CARS_AT_ONCE):
        trimmed = [(trimmed, row) for row, car in rows if (trimmed := trim(car)) is not car]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("UPDATE cars SET car = ? WHERE id = ?", trimmed)
        connection.execute("COMMIT")
        progress("shortening events", rows[-1][0], last)


_COPIES: Final = ("blocks.sqlite3", "dags.sqlite3", "tangles.sqlite3", "snapshot-sync.sqlite3")
"""Files that have parts of events and can be made again."""
SQLITE_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget_streams` did."""

    streams: int
    events: int
    """Events whose bytes were here."""
    still_there: list[str]
    """Files in the data directory that may have the bytes, and that only the operator may delete:
    damaged logs that a repair has kept."""


def streams_in(data_dir: Path, names: Collection[str]) -> set[CID]:
    """Return the init events of streams in the log of a directory.

    `names` are StreamIDs, and DIDs of controllers for all streams of theirs.

    Raises:
        StreamIdError: a name is neither.
        StoreError: a stream is not in the log, or there is no log.
    """
    controllers = [name for name in names if name.startswith("did:")]
    names_by_init = {StreamId.parse(name).cid: name for name in names if name not in controllers}
    with opened_log(data_dir) as log:
        for init, name in names_by_init.items():
            sql = "SELECT 1 FROM streams WHERE init_cid = ?"
            if log.connection.execute(sql, (init,)).fetchone() is None:
                raise StoreError(f"there is no stream {name} in {log.path}")
        streams = set(names_by_init)
        for did in controllers:
            for spelling in did_spellings(did):
                sql = "SELECT init_cid FROM streams WHERE controller = ?"
                streams |= {CID(init) for (init,) in log.connection.execute(sql, (spelling,))}
    return streams


def forget_streams(
    data_dir: Path, streams: Collection[CID], progress: Progress = no_progress
) -> Forgotten:
    """Forget streams, by their init events, in the data directory of a stopped node.

    Theory of operation (decision 21). Nodes compare their sets by hashes of keys, so a key that was
    deleted would be fetched again with each sync. Therefore the rows of the events stay, with their
    feed positions, and only the CARs are replaced by a mark. The init events of the streams are in
    the table `forgotten`: of events that come later, nothing but the names is stored either. Both
    are one transaction. What is deleted is overwritten, and blocks that no other event refers to
    are deleted, too. Then come the files beside the log that can have content of events: all of
    them can be made again from the log. Wherever this is interrupted, the next call does all of it
    again.

    Raises:
        StoreError: the log cannot be opened or written. The next call does all of it again.
    """
    with opened_log(data_dir) as log:
        connection = log.connection
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN IMMEDIATE")
        events = 0
        for done, init in enumerate(sorted(streams), 1):
            events += _forget(connection, init)
            progress("forgetting streams", done, len(streams))
        connection.execute("COMMIT")
        remove_unused_blocks(connection, progress)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for name in _COPIES:
        for part in SQLITE_SUFFIXES:
            (data_dir / f"{name}{part}").unlink(missing_ok=True)
    kept = sorted(file.name for file in data_dir.glob(f"{log.path.name}.damaged-*"))
    return Forgotten(len(streams), events, kept)


def _forget(connection: sqlite3.Connection, init: CID) -> int:
    connection.execute("INSERT OR IGNORE INTO forgotten VALUES (?)", (init,))
    changed = connection.execute(
        "UPDATE cars SET car = ?1 WHERE car != ?1 AND id IN ("
        "SELECT id FROM events WHERE stream = "
        "(SELECT id FROM events WHERE short_cid = ?2 AND cid = ?3 AND position NOTNULL) "
        "UNION ALL SELECT id FROM events WHERE short_init = ?2 AND init_cid = ?3 "
        "AND position IS NULL)",
        (FORGOTTEN, short(init), init),
    )
    return changed.rowcount


_PAGES: Final = 1024
"""Pages copied between two reports."""


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A copy in a few numbers."""

    events: int
    head: int
    """The last feed position."""
    epoch: str
    size: int
    """Bytes."""


def backup_log(data_dir: Path, target: Path, progress: Progress = no_progress) -> BackedUp:
    """Write a copy of a directory's log to `target`, a file that does not exist.

    The copy is the log as it was at one moment, with its epoch, its positions, its interests and
    the results of chain lookups. A running node goes on writing meanwhile: a read transaction holds
    on to that moment, and what is written since gathers in the write-ahead log until the copy is
    complete.

    Raises:
        StoreError: there is no log, it cannot be read or is damaged, or the copy cannot be written.
    """
    path = find_log(data_dir)
    was_closed = log_schema.is_closed_for_good(path)
    with (
        closing(_hold(data_dir, path)) as source,
        explained_errors(target),
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(
            copy,
            pages=_PAGES,
            progress=lambda status, left, total: progress("copying", total - left, total),
        )
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without companions
    if was_closed and not log_schema.is_closed_for_good(path):
        raise StoreError(f"{path} was opened elsewhere while it was copied: run this again")
    return check_copy(target, progress)


def _hold(data_dir: Path, path: Path) -> sqlite3.Connection:
    """Open a log for reading, and hold on to this moment."""
    while True:
        file, source = path.stat().st_ino, log_schema.open_reader(data_dir)
        try:
            with explained_errors(path):
                source.execute("BEGIN")
                source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                if path.stat().st_ino == file:
                    return source
        except StoreError:
            if path.stat().st_ino == file:
                raise
        source.close()  # another file is the log now, and what is beside it is not that one's


def check_copy(path: Path, progress: Progress = no_progress) -> BackedUp:
    """Check a copy of a log.

    Raises:
        StoreError: it is not a log, or damaged, or cannot be read.
    """
    progress("checking the copy", 0, None)
    with explained_errors(path), closing(sqlite3.connect(path)) as copy:
        copy.set_progress_handler(*_INTERRUPTIBLE)
        [first] = copy.execute("PRAGMA quick_check(1)").fetchone()
        if first != "ok":
            raise sqlite3.DatabaseError(f"malformed: {first}")
        events, head = copy.execute(
            "SELECT count(*), coalesce(max(position), 0) FROM events"
        ).fetchone()
        epoch = log_schema.read_meta(copy, "epoch") or ""
    return BackedUp(events, head, epoch, path.stat().st_size)


def begin_epoch(path: Path) -> None:
    """Begin a new epoch of the feed in a copy of a log, with which readers start over.

    Raises:
        StoreError: it cannot be written.
    """
    with explained_errors(path), closing(sqlite3.connect(path)) as copy, copy:
        copy.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (str(uuid.uuid4()),))
