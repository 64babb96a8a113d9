"""Badly signed events that are held: *invalid* data events in the sense of CIP-145.

`faults` has a row for each of them, under its `id` in `events`, and says what is wrong with its
signature. Such an event is never a tip, but it keeps covering what it covers. It is delivered once
a rightly signed data event covers it: somebody who may write to the stream stands for its place.

Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from recon_node.ceramic import EventKind
from recon_node.store.db.sql import select_in

MIGRATION: Final = """
    CREATE TABLE faults (id INTEGER PRIMARY KEY, reason TEXT NOT NULL) STRICT;
    -- The state UNCOVERED took the number of WAITING, and that took the number of ORPHAN.
    UPDATE events SET state = state - 1 WHERE position IS NULL AND state < 2;
    """

FAULT: Final = "(SELECT reason FROM faults WHERE faults.id = events.id)"
"""The fault of a row of `events` in a SELECT; null if there is none."""

_OF_POSITIONS: Final = (
    "SELECT position, reason FROM events CROSS JOIN faults USING (id) WHERE position IN (?)"
)


def insert_faults(connection: sqlite3.Connection, faults: Iterable[tuple[int, str]]) -> None:
    """Note what is wrong with some events, by their ids; no-op for those that it was noted of."""
    connection.executemany("INSERT OR IGNORE INTO faults (id, reason) VALUES (?, ?)", faults)


def has_faults(connection: sqlite3.Connection) -> bool:
    """Tell whether any badly signed event is held."""
    return connection.execute("SELECT 1 FROM faults LIMIT 1").fetchone() is not None


def faults_of(
    connection: sqlite3.Connection, positions: Sequence[int], kinds: Sequence[str]
) -> Sequence[str | None]:
    """Return the faults of delivered events, None for the valid ones."""
    none = (None,) * len(positions)
    if not has_faults(connection):  # as in nearly all logs
        return none
    signed = [at for at, kind in zip(positions, kinds, strict=True) if kind == EventKind.DATA.value]
    found = dict(select_in(connection, _OF_POSITIONS, signed))
    return [found.get(at) for at in positions] if found else none
