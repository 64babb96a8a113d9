"""Forget streams: remove the bytes of their events from the data directory, and keep their keys.

Theory of operation (decision 21). Nodes compare their sets by hashes of keys, so a key that was
deleted would be fetched again with each sync. Therefore the rows of the events stay, with their
feed positions, and only the CARs are replaced by a mark. The init events of the streams are in the
table `forgotten`: of events that come later, nothing but the names is stored either. Both are one
transaction. What is deleted is overwritten, and blocks that no other event refers to are deleted,
too. Then come the files beside the log that can have content of events: all of them can be made
again from the log. Wherever this is interrupted, the next call does all of it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recon_node.ceramic import StreamId
from recon_node.ceramic.auth.did import did_spellings
from recon_node.ipld import CID
from recon_node.store.damage import FORGOTTEN
from recon_node.store.db.sql import short
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.closed_log import (
    Progress,
    no_progress,
    opened_log,
    remove_unused_blocks,
)

_COPIES: Final = ("blocks.sqlite3", "dags.sqlite3", "tangles.sqlite3", "snapshot-sync.sqlite3")
"""Files that have parts of events and can be made again."""
_PARTS: Final = ("", "-wal", "-shm", "-journal")


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

    Args:
        data_dir: of a stopped node.
        names: StreamIDs, and DIDs of controllers for all streams of theirs.

    Raises:
        StreamIdError: a name is neither.
        StoreError: a stream is not in the log, or there is no log.
    """
    controllers = [name for name in names if name.startswith("did:")]
    found = {StreamId.parse(name).cid: name for name in names if name not in controllers}
    with opened_log(data_dir) as log:
        for init, name in found.items():
            sql = "SELECT 1 FROM streams WHERE init_cid = ?"
            if log.connection.execute(sql, (init,)).fetchone() is None:
                raise StoreError(f"there is no stream {name} in {log.path}")
        streams = set(found)
        for did in controllers:
            for spelling in did_spellings(did):
                sql = "SELECT init_cid FROM streams WHERE controller = ?"
                streams |= {CID(init) for (init,) in log.connection.execute(sql, (spelling,))}
    return streams


def forget_streams(
    data_dir: Path, streams: Collection[CID], progress: Progress = no_progress
) -> Forgotten:
    """Forget streams, by their init events, in the data directory of a stopped node.

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
        for part in _PARTS:
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
