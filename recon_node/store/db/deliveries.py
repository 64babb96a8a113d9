"""When events were delivered: got their positions in the feed.

`deliveries` has a row for each time at which a commit delivered events: the first position that it
gave, and the time in Unix milliseconds. So an event was delivered at the time in the row with the
greatest position up to its own, and a thousand events that one commit delivered share a row. Events
before the first row were delivered by an earlier version, at a time that is not known.

Times ascend with positions, also when the clock is set back: until it has caught up, events are
given the last time, which adds no row. So the events that were delivered before some time are those
up to some position.

Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from typing import Final

MIGRATION: Final = """
    CREATE TABLE deliveries (
        position     INTEGER PRIMARY KEY,
        delivered_at INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX deliveries_by_time ON deliveries (delivered_at);
    """

DELIVERED_AT: Final = (
    "(SELECT delivered_at FROM deliveries WHERE deliveries.position <= events.position "
    "ORDER BY deliveries.position DESC LIMIT 1)"
)
"""The time of a row of `events` in a SELECT; null if it is not known, or not delivered."""


def note_delivery(connection: sqlite3.Connection, position: int, now: float) -> None:
    """Note that positions from this one on are given now, in Unix seconds."""
    connection.execute(
        "INSERT INTO deliveries (position, delivered_at) SELECT ?1, ?2 "
        "WHERE ?2 > ifnull((SELECT max(delivered_at) FROM deliveries), ?2 - 1)",
        (position, int(now * 1000)),
    )
