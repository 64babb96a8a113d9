"""The file `events.sqlite3`: its tables, how it is made, and what is checked when it is opened.

**What survives what.** SQLite runs in WAL mode. A commit is in the operating system's hands before
anyone is told of it, so that it survives the death of this process (kill -9) with any setting.
What survives a power cut is the setting `synchronous`:

- "full" (default): each commit waits for the disk. All that was acknowledged survives. Commits are
  grouped (see `admission.pipeline`), so that under load one wait serves up to 1,000 events.
- "normal": the disk is waited for only at checkpoints. A power cut takes back the latest commits;
  the file stays sound, but feed positions that readers have seen are then given to other events,
  and no reader can tell. For logs that can be thrown away.

**Never a silent fresh start.** A new file is made under another name and renamed when it is whole.
Hence an `events.sqlite3` that is empty, foreign or damaged is never our own unfinished work: it is
refused with a message, and so is a missing one whose WAL is still there.

**Tables.** `events` has one row for each EventId held (`state`: see `records.State`); its CAR is in
`cars` under the same id, so that walks over events never touch CARs; blocks that several events
share are in `blocks` (see `packing`). `waits` has a row for each
event that an undelivered event builds on; it finds the waiters of what has just come. `streams` has
what later events of a stream are checked against. `refused` remembers EventIds that were proven
wrong (`inherent`: the event itself is wrong, under whichever EventId). `proofs` and `anchors` are
about time events, see `recon_node.store.db.proofs`.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from recon_node.ceramic import Network, network_name
from recon_node.ipld import CarError
from recon_node.store.db.files import sync_directory
from recon_node.store.db.migrations import MIGRATIONS, migrate
from recon_node.store.db.replacement import finish_replacement
from recon_node.store.errors import DamagedRowError, StoreError, damaged, explain, explain_os

FILE_NAME = "events.sqlite3"

APPLICATION_ID = 0x5245434E  # "RECN": tells our files from other programs' SQLite files

PAGE_SIZE = 4096

_OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables

_BUGS = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    sqlite3.NotSupportedError,
)


def open_database(
    data_dir: Path, network: Network, synchronous: Literal["full", "normal"]
) -> sqlite3.Connection:
    """Open the data directory's log for writing; make it when there is none.

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
    with told_to_people(path):
        finish_replacement(path)
        if not path.exists():
            _create(path, network)
        elif path.stat().st_size == 0:
            raise StoreError(
                f"the event log {path} is empty, which this program never leaves behind: put a "
                "backup in its place, or delete the file to start anew"
            )
        connection = _connect(path)
        try:
            _check_file(connection, path)
            _configure(connection, synchronous)
            _check_network(connection, path, network)
            migrate(connection, MIGRATIONS)
            _check_positions(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(data_dir: Path) -> sqlite3.Connection:
    """Open the log for reading only; the connection may be used from any thread, one at a time."""
    path = data_dir / FILE_NAME
    with told_to_people(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.execute("PRAGMA cell_size_check = ON")
    return connection


@contextmanager
def told_to_people(path: Path) -> Iterator[None]:
    """Turn what SQLite and the disk complain of into `StoreError`s about the file `path`.

    Misuse of SQLite (a broken constraint, say) is a bug of ours and goes through as it is.
    """
    try:
        yield
    except _BUGS:
        raise
    except sqlite3.Error as error:
        raise explain(error, path) from error
    except (CarError, DamagedRowError, UnicodeDecodeError) as error:  # Unicode: in the schema
        raise damaged(path, str(error)) from error
    except OSError as error:
        raise explain_os(error, path) from error


def read_meta(connection: sqlite3.Connection, name: str) -> str | None:
    """Read a value from `meta`, None where there is none."""
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else str(row[0])


def _create(path: Path, network: Network) -> None:
    """Make a new log beside its place and move it there when it is whole and on the disk."""
    leftover = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")]
    if leftover[0].exists():
        raise StoreError(
            f"the event log {path} is missing, but its write-ahead log {leftover[0]} is there: "
            "put the missing file back, or delete the other one to start anew"
        )
    unfinished = path.with_name(path.name + ".new")
    for old in (unfinished, unfinished.with_name(unfinished.name + "-journal"), *leftover):
        old.unlink(missing_ok=True)
    connection = sqlite3.connect(unfinished, isolation_level=None)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        migrate(connection, MIGRATIONS)
        connection.executemany(
            "INSERT INTO meta (name, value) VALUES (?, ?)",
            [("network_id", str(network.id)), ("epoch", str(uuid.uuid4()))],
        )
    finally:
        connection.close()
    unfinished.rename(path)
    sync_directory(path.parent)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)


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
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        if {"events", "cars", "waits", "streams"} <= found:
            raise damaged(path, f"its header says {application_id} and {version}")
        raise StoreError(
            f"{path} is a SQLite file of another program: move it away, or choose another data "
            "directory"
        )
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the event log {path} was written by a later version of recon-node (schema "
            f"{version}; this one knows {len(MIGRATIONS)}): run that version or a later one"
        )


def _check_network(connection: sqlite3.Connection, path: Path, network: Network) -> None:
    stored = read_meta(connection, "network_id")
    if stored != str(network.id):
        name = network_name(int(stored)) if stored and stored.isdecimal() else repr(stored)
        raise StoreError(
            f"the event log {path} holds events of the network {name}, but this node is set to "
            f"{network.name}: choose {name} (--network), or another data directory (--data-dir)"
        )


def _check_positions(connection: sqlite3.Connection, path: Path) -> None:
    """Positions are dense from 1; holes mean that the file was damaged or edited."""
    low, high, count = connection.execute(
        "SELECT min(position), max(position), count(*) FROM events WHERE position IS NOT NULL"
    ).fetchone()
    if count and (low, high) != (1, count):
        raise damaged(path, f"{count} events have feed positions from {low} to {high}")
