"""Writing the log anew without what it does not need: free pages, blocks that no event refers to.

The new file is written beside the old one, so that it needs as much room again, and takes its place
when it is whole: a process that is killed leaves the one or the other.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from recon_node.store.db import schema
from recon_node.store.db.packing import references
from recon_node.store.db.replacement import replace_log
from recon_node.store.maintenance.common import Progress, find_log, no_progress, opened_log

_PIECE = 10_000


@dataclass(frozen=True, slots=True)
class Compacted:
    """What became of the file; sizes in bytes."""

    before: int
    after: int
    blocks_removed: int


def compact_log(data_dir: Path, progress: Progress = no_progress) -> Compacted:
    """Compact the log of a directory.

    Raises:
        StoreError: there is none, it is damaged, or the disk does not take it.
    """
    path = find_log(data_dir)
    new = path.with_name(path.name + ".compact")
    with opened_log(data_dir) as connection:
        removed = _remove_unused_blocks(connection, progress)
        connection.execute("PRAGMA journal_mode = DELETE")  # brings the write-ahead log in
        before = path.stat().st_size
        for name in (new.name, f"{new.name}-journal"):
            path.with_name(name).unlink(missing_ok=True)
        progress("writing the new file", 0, None)
        connection.execute("VACUUM INTO ?", (str(new),))
    with schema.told_to_people(path):
        after = new.stat().st_size
        replace_log(path, new)
    return Compacted(before, after, removed)


def _remove_unused_blocks(connection: sqlite3.Connection, progress: Progress) -> int:
    used: set[int] = set()
    row = 0
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM cars").fetchone()
    packed = "SELECT id, car FROM cars WHERE id > ? AND substr(car, 1, 1) = x'00' ORDER BY id"
    while rows := connection.execute(f"{packed} LIMIT ?", (row, _PIECE)).fetchall():
        used.update(block for _, car in rows for block in references(car))
        row = rows[-1][0]
        progress("looking for blocks without events", row, last)
    unused = [
        (block,) for (block,) in connection.execute("SELECT id FROM blocks") if block not in used
    ]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM blocks WHERE id = ?", unused)
    connection.execute("COMMIT")
    return len(unused)
