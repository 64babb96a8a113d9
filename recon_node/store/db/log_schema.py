"""The file `events.sqlite3`: its tables, how it is created, opened, checked and replaced.

**What survives what.** SQLite runs in WAL mode. A commit has reached the operating system before
anyone learns of it, so it survives the death of this process (kill -9) with any setting. What
survives a power cut depends on the setting `synchronous`:

- "full" (default): each commit waits for the disk. Everything that was acknowledged survives.
  Commits are grouped (see `store.intake`), so that under load one wait serves up to 2,000 events.
- "normal": only checkpoints wait for the disk. A power cut takes back the latest commits. The file
  stays sound, and the feed gets a new epoch, see `recon_node.store.db.log`.

**Never a silent fresh start.** A new file is written under another name and renamed when it is
complete. So an `events.sqlite3` that is empty, foreign or damaged is never our own unfinished work:
it is refused with a message, and so is a missing one whose write-ahead log still exists.

**Tables.** `events` has one row for each EventId held (`event_table`); its CAR is in `cars` under
the same id, so that walks over events never touch CARs; blocks that several events share are in
`blocks` (see `store.db.blocks`). `waits` has a row for each event that an undelivered event builds
on, to find those that wait for an event that arrives; `watched` says of one of them that it has to
move first (in a log of an earlier version, of all). `streams` has what later events of a stream
are checked against. `refused` remembers EventIds that were proven wrong (`inherent`: the event
itself is wrong, under any EventId). `proofs` and `anchors` are about time events, see `proofs` and
`statements` in this package; `not_found` says which proofs the chain did not have (`doubts`).
`deliveries` says when positions were given, see `recon_node.store.reading.feed_rows`. `faults` says
which events are badly signed (`rows`), and `releases` whose waiters have not all been looked at
(`releases`). `forgotten` has the init events of the streams of which no CARs are stored, see
`recon_node.store.maintenance.closed_log`.
"""

import os
import sqlite3
import uuid
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final, Literal

from recon_node import __version__
from recon_node.base.files import (
    create_file,
    delete_scratch,
    move_into_place,
    open_locked,
    sync_directory,
)
from recon_node.ceramic import Network, network_name
from recon_node.store.db.migrations import MIGRATIONS, Migration, migrate
from recon_node.store.db.saved_keys import has_saved_keys
from recon_node.store.db.sql import damaged, explained_errors
from recon_node.store.errors import StoreError

FILE_NAME: Final = "events.sqlite3"
APPLICATION_ID: Final = 0x5245434E
""""RECN": distinguishes our files from other programs' SQLite files."""
PAGE_SIZE: Final = 4096
"""Bytes."""

_WRITTEN_BY: Final = "written_by"
"""The name of `meta` for the version of this program that opened the log last, for writing."""
_REPLACEMENT: Final = ".replacement"
_OLDEST_SQLITE: Final = (3, 37, 0)
"""The first version with STRICT tables."""


def open_database(
    data_dir: Path, network: Network, synchronous: Literal["full", "normal"]
) -> sqlite3.Connection:
    """Open the data directory's log for writing; create it if there is none.

    The caller holds the directory's lock. The connection is in autocommit mode and may be used
    from any thread, one at a time.

    Raises:
        StoreError: see the module's text; also another network, or a newer version's file.
    """
    path = data_dir / FILE_NAME
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(
            f"this Python comes with SQLite {sqlite3.sqlite_version}, which is too old: "
            f"{'.'.join(map(str, _OLDEST_SQLITE))} or later is needed"
        )
    with explained_errors(path):
        delete_scratch(data_dir)  # it may have the bytes of what is to be forgotten
        finish_replacement(path)
        if not path.exists():
            _create(path, network)
        elif path.stat().st_size == 0:
            raise StoreError(
                f"the event log {path} is empty, which this program never leaves behind: put a "
                "backup in its place, or delete the file to start with an empty log"
            )
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        try:
            _check_file(connection, path)
            _configure(connection, synchronous)
            _check_network(connection, path, network)
            migrate(connection, MIGRATIONS)
            # Pages that a statement changes are kept until it ends. After the migrations, which
            # sort all rows.
            connection.execute("PRAGMA temp_store = MEMORY")
            _sign(connection)
            if not has_saved_keys(connection):  # else nothing has changed since it was closed
                _check_positions(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(data_dir: Path) -> sqlite3.Connection:
    """Open the log for reading only; the connection may be used from any thread, one at a time."""
    path = data_dir / FILE_NAME
    with explained_errors(path):
        # SQLite would make files beside a log that was closed, and a read-only disk takes none.
        immutable = "&immutable=1" if is_closed_for_good(path) else ""
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro{immutable}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA cell_size_check = ON")
    return connection


def is_closed_for_good(path: Path) -> bool:
    """Return whether a log was closed, and its disk is mounted read-only."""
    is_open = path.with_name(f"{path.name}-wal").exists()
    return not is_open and bool(os.statvfs(path.parent).f_flag & os.ST_RDONLY)


def read_meta(connection: sqlite3.Connection, name: str) -> str | None:
    """Return a value of `meta`, None if it has none of that name."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _create(path: Path, network: Network) -> None:
    """Create a new log beside its place and move it there when it is complete and on the disk."""
    leftover = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    if leftover[0].exists():
        raise StoreError(
            f"the event log {path} is missing, but its write-ahead log {leftover[0]} exists: "
            "put the missing file back, or delete the other one to start with an empty log"
        )
    if path.is_symlink():
        raise StoreError(
            f"the event log {path} is a link to {path.readlink()}, where nothing is: mount its "
            "disk, or delete the link to start with an empty log"
        )
    unfinished = path.with_name(path.name + ".new")
    for old in (unfinished, unfinished.with_name(unfinished.name + "-journal"), *leftover):
        old.unlink(missing_ok=True)
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(_without_rows(MIGRATIONS))
        connection.executemany(
            "INSERT INTO meta (name, value) VALUES (?, ?)",
            [("network_id", str(network.id)), ("epoch", str(uuid.uuid4()))],
        )
        create_file(unfinished, connection.serialize())
    move_into_place(unfinished, path)


@cache
def _without_rows(migrations: tuple[Migration, ...]) -> bytes:
    """Return the file of an empty log. It is made in memory, since migrations commit often."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(connection, migrations)
        return connection.serialize()


def _configure(connection: sqlite3.Connection, synchronous: Literal["full", "normal"]) -> None:
    for pragma in (
        "journal_mode = WAL",
        f"synchronous = {synchronous.upper()}",
        "trusted_schema = OFF",
        "cell_size_check = ON",  # notice damaged pages when they are read
        "cache_size = -65536",  # 64 MiB: EventIds and CIDs land anywhere in their indexes
        "wal_autocheckpoint = 4096",  # 16 MiB: a page that changed often is written back once
        "journal_size_limit = 67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse files of other programs and of later versions of this one."""
    application_id = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if application_id != APPLICATION_ID or version < 1:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        if {"events", "cars", "waits", "streams"} <= tables:
            raise damaged(path, f"its header says {application_id} and {version}")
        raise StoreError(
            f"{path} is a SQLite file of another program: move it away, or choose another data "
            "directory"
        )
    if version > len(MIGRATIONS):
        writer = read_meta(connection, _WRITTEN_BY)
        raise StoreError(
            f"the event log {path} was written by a later version of recon-node"
            f"{'' if writer is None else f', {writer}'} (schema {version}; this is {__version__}, "
            f"which knows {len(MIGRATIONS)}): run that version or a later one"
        )


def _sign(connection: sqlite3.Connection) -> None:
    """Say which version writes, for the message of an earlier one that cannot read the log."""
    if read_meta(connection, _WRITTEN_BY) != __version__:
        connection.execute(
            "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (_WRITTEN_BY, __version__)
        )


def _check_network(connection: sqlite3.Connection, path: Path, network: Network) -> None:
    stored = read_meta(connection, "network_id")
    if stored != str(network.id):
        name = network_name(int(stored)) if stored and stored.isdecimal() else repr(stored)
        raise StoreError(
            f"the event log {path} belongs to the network {name}, but this node is set to "
            f"{network.name}: choose {name} (--network), or another data directory (--data-dir)"
        )


def _check_positions(connection: sqlite3.Connection, path: Path) -> None:
    """Positions are dense from 1; holes mean that the file was damaged or edited."""
    low, high, count = connection.execute(
        "SELECT min(position), max(position), count(*) FROM events WHERE position IS NOT NULL"
    ).fetchone()
    if count and (low, high) != (1, count):
        raise damaged(path, f"{count} events have feed positions from {low} to {high}")


def refuse_link(path: Path) -> None:
    """Refuse a log that is a link, before `replace_log`: the link would be replaced by a file.

    Raises:
        StoreError: it is one.
    """
    if path.is_symlink():
        raise StoreError(
            f"the event log {path} is a link to {path.readlink()}, and only a log in its own place "
            "can be replaced: move the file there, or link the whole data directory instead"
        )


def replace_log(path: Path, new: Path) -> None:
    """Replace the log `path` by the file `new`, whatever ends the process in between.

    A log is its file and the write-ahead log or journal beside it: two files, which no system
    replaces at once, and either of them beside the wrong file would destroy that one. So the new
    file is first renamed to `events.sqlite3.replacement`, when it is complete and on the disk. From
    then on it *is* the log, and the next to open it takes the remaining steps. Nobody has `path` or
    `new` open; they are on the same file system, and `new` has no write-ahead log.

    If root does this, the log still belongs to the node's user, who could not open it else.
    """
    if os.geteuid() == 0:
        owner = path.stat()
        os.chown(new, owner.st_uid, owner.st_gid)
    move_into_place(new, path.with_name(path.name + _REPLACEMENT))
    finish_replacement(path)


def finish_replacement(path: Path) -> None:
    """Take the remaining steps of a replacement that was interrupted, if there was one."""
    new = path.with_name(path.name + _REPLACEMENT)
    try:
        # A backup may meet one that is under way: what it deleted late would be of the new log.
        locked = open_locked(new, wait=True, create=False)
    except FileNotFoundError:
        return
    with locked:
        for suffix in ("-wal", "-shm", "-journal"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        sync_directory(path.parent)
        move_into_place(new, path)
