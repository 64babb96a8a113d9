"""Copy the log of a running node, or a stopped one, by SQLite's online backup.

The copy is the log as it was at one moment, with its epoch, its positions, its interests and the
results of chain lookups. The node goes on writing meanwhile: a read transaction holds on to that
moment, and what is written since gathers in the write-ahead log until the copy is complete.
"""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recon_node.store.db import schema
from recon_node.store.db.sql import explained_errors
from recon_node.store.maintenance.closed_log import Progress, find_log, no_progress

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

    Raises:
        StoreError: there is no log, it cannot be read or is damaged, or the copy cannot be written.
    """
    path = find_log(data_dir)
    with closing(schema.open_reader(data_dir)) as source:
        with explained_errors(path):
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the moment is now
        with explained_errors(target), closing(sqlite3.connect(target)) as copy:
            source.backup(
                copy,
                pages=_PAGES,
                progress=lambda status, left, total: progress("copying", total - left, total),
            )
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without companions
    return check_copy(target, progress)


def check_copy(path: Path, progress: Progress = no_progress) -> BackedUp:
    """Check a copy of a log.

    Raises:
        StoreError: it is not a log, or damaged, or cannot be read.
    """
    progress("checking the copy", 0, None)
    with explained_errors(path), closing(sqlite3.connect(path)) as copy:
        [first] = copy.execute("PRAGMA quick_check(1)").fetchone()
        if first != "ok":
            raise sqlite3.DatabaseError(f"malformed: {first}")
        events, head = copy.execute(
            "SELECT count(*), coalesce(max(position), 0) FROM events"
        ).fetchone()
        epoch = schema.read_meta(copy, "epoch") or ""
    return BackedUp(events, head, epoch, path.stat().st_size)


def begin_epoch(path: Path) -> None:
    """Begin a new epoch of the feed in a copy of a log, which tells readers to start over.

    Raises:
        StoreError: it cannot be written.
    """
    with explained_errors(path), closing(sqlite3.connect(path)) as copy, copy:
        copy.execute("UPDATE meta SET value = ? WHERE name = 'epoch'", (str(uuid.uuid4()),))
