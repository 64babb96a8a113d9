"""What may let others move: moved events whose waiters have not all been looked at yet.

Any number of events may wait for one that arrives, or for one anchor. A transaction looks at a
bounded number of them. What it leaves is in `releases`: a row for each event (or proof) with the
row of the last waiter that was looked at. Further transactions continue from there, one small step
at a time, between those that admit other events, and after a restart.

Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from typing import Final

from recon_node.ipld import CID

MIGRATION: Final = """
    CREATE TABLE releases (
        cid   BLOB PRIMARY KEY,  -- of an event, or of a proof
        after INTEGER NOT NULL   -- events.id of the last waiter that was looked at
    ) STRICT, WITHOUT ROWID;
    """

BEGINNING: Final = -1
"""Before the row of any waiter."""

_WAITERS: Final = "SELECT event FROM waits WHERE cid = ? AND event > ? ORDER BY event LIMIT ?"
_ANCHORED: Final = (
    "SELECT event FROM anchors JOIN events ON events.id = event "
    "WHERE proof = ? AND event > ? AND position IS NULL ORDER BY event LIMIT ?"
)


def select_waiters(connection: sqlite3.Connection, cid: CID, after: int, limit: int) -> list[int]:
    """Return the rows of undelivered events that wait for an event or for a proof, ascending."""
    for sql in (_WAITERS, _ANCHORED):  # a CID is either an event's or a proof's
        rows = [row for (row,) in connection.execute(sql, (cid, after, limit))]
        if rows:
            return rows
    return []


def read_releases(connection: sqlite3.Connection, limit: int) -> list[tuple[CID, int]]:
    """Return some that are left, and after which row to continue each."""
    rows = connection.execute("SELECT cid, after FROM releases LIMIT ?", (limit,))
    return [(CID(cid), after) for cid, after in rows]


def keep_releases(connection: sqlite3.Connection, left: Mapping[CID, int]) -> None:
    """Note what a transaction leaves; what is noted already continues from the lower row."""
    connection.executemany(
        "INSERT INTO releases (cid, after) VALUES (?, ?) "
        "ON CONFLICT (cid) DO UPDATE SET after = min(after, excluded.after)",
        left.items(),
    )


def end_releases(connection: sqlite3.Connection, cids: Iterable[CID]) -> None:
    """Forget those of which nothing is left."""
    connection.executemany("DELETE FROM releases WHERE cid = ?", ((cid,) for cid in cids))
