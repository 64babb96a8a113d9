"""Releases: events that have moved, and proofs that were settled, as long as not all events that
wait for them have been looked at.

Any number may wait for one, and a transaction looks at `MAX_WAITERS` of them. If there are more,
the table `releases` keeps the CID of the event or proof, and the row of the last waiter that was
looked at. Further transactions (`commit_releases` in `settling`) continue there, between those that
admit other events, and after a restart.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final

from recon_node.ipld import CID
from recon_node.store.admission.records import UNCOVERED, Moved
from recon_node.store.db.sql import short_of

MAX_WAITERS: Final = 256
"""Waiting events that one transaction loads from the log, some 0.3 ms each."""

_WAITERS: Final = (
    "SELECT event FROM waits CROSS JOIN events ON events.id = event WHERE waits.cid = ?1 "
    "AND (watched OR ?2 IS NULL OR state > -1 AND init_cid != ?2) "  # as in `Known.waiters`
    "AND event > ?3 ORDER BY event LIMIT ?4"
)
_ANCHORED: Final = (
    "SELECT event FROM anchors JOIN events ON events.id = event "
    "WHERE proof = ?1 AND event > ?3 AND position IS NULL ORDER BY event LIMIT ?4"
)
_GUARDED: Final = (
    f"SELECT id FROM events WHERE position IS NULL AND state = {UNCOVERED.value} "
    "AND kind != 'data' AND id > ? AND NOT EXISTS (SELECT 1 FROM waits CROSS JOIN events AS base "
    f"ON base.short_cid = {short_of('waits.cid')} AND base.cid = waits.cid "
    f"WHERE waits.event = events.id AND base.state = {UNCOVERED.value}) ORDER BY id LIMIT ?"
)


def select_waiters(
    connection: sqlite3.Connection, moved: Moved, after: int, limit: int
) -> list[int]:
    """Return the rows of undelivered events that wait for an event or for a proof, ascending."""
    for sql in (_WAITERS, _ANCHORED):  # a CID is either an event's or a proof's
        rows = [row for (row,) in connection.execute(sql, (*moved, after, limit))]
        if rows:
            return rows
    return []


def has_releases(connection: sqlite3.Connection) -> bool:
    """Return whether there is a release."""
    return bool(connection.execute("SELECT EXISTS (SELECT 1 FROM releases)").fetchone()[0])


def select_releases(connection: sqlite3.Connection, last: bytes) -> list[tuple[bytes, int]]:
    """Return up to `MAX_WAITERS` releases, each with the row of the last waiter that was looked at.

    They come in a circle, from the one after `last`: so one with any number of waiters, or any
    number of them, does not keep the others from having their turn; nor does a damaged one, whose
    CID is therefore not looked at yet.
    """
    sql = "SELECT cid, after FROM releases WHERE cid {} ? ORDER BY cid LIMIT ?"
    rows = connection.execute(sql.format(">"), (last, MAX_WAITERS)).fetchall()
    rows += connection.execute(sql.format("<="), (last, MAX_WAITERS - len(rows))).fetchall()
    return rows


def keep_releases(connection: sqlite3.Connection, releases: Mapping[CID, int]) -> None:
    """Write releases; one that is there already continues from the lower row."""
    connection.executemany(
        "INSERT INTO releases (cid, after) VALUES (?, ?) "
        "ON CONFLICT (cid) DO UPDATE SET after = min(after, excluded.after)",
        releases.items(),
    )


def delete_release(connection: sqlite3.Connection, cid: bytes) -> None:
    """Remove a release."""
    connection.execute("DELETE FROM releases WHERE cid = ?", (cid,))


def select_guarded(connection: sqlite3.Connection, after: int) -> list[int]:
    """Return the next UNCOVERED rows beyond one that only a guarded log keeps so: they are not
    badly signed, and build on nothing that is UNCOVERED."""
    rows = connection.execute(_GUARDED, (after, MAX_WAITERS))
    return [row for (row,) in rows]
