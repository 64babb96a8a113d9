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
from datetime import UTC, datetime, timedelta
from typing import Final

from recon_node.store.errors import UnknownTimeError
from recon_node.store.values import FeedTime

MIGRATION: Final = """
    CREATE TABLE deliveries (
        position     INTEGER PRIMARY KEY,
        delivered_at INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX deliveries_by_time ON deliveries (delivered_at);
    """

_DELIVERIES: Final = "SELECT position, delivered_at FROM deliveries"

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


def find_time(connection: sqlite3.Connection, time: int, now: float, head: int) -> FeedTime:
    """Return the place of a time in the feed.

    Args:
        connection: of the log, while nobody writes: a commit under way has an earlier time.
        time: in Unix milliseconds.
        now: in Unix seconds.
        head: the last position.

    Raises:
        UnknownTimeError: events that have no time may have been delivered before it or after it.
    """
    first = connection.execute(f"{_DELIVERIES} ORDER BY position LIMIT 1").fetchone()
    timed_from, earliest = first or (head + 1, None)
    if timed_from > 1 and (earliest is None or time < earliest):
        raise UnknownTimeError(_unknown(timed_from, earliest))
    sql = f"{_DELIVERIES} WHERE delivered_at >= ? ORDER BY delivered_at LIMIT 1"
    found = connection.execute(sql, (time,)).fetchone()
    if found is not None:  # what comes later has a later time
        return FeedTime(found[0] - 1, is_final=True)
    return FeedTime(head, is_final=time <= int(now * 1000))


def _unknown(timed_from: int, earliest: int | None) -> str:
    events = f"the {timed_from - 1} events up to position {timed_from - 1}"
    if earliest is None:
        return f"this node did not note when it delivered {events}, which are all that it has"
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=earliest)
    return (
        f"this node did not note when it delivered {events}: name a time from "
        f"{since.isoformat(timespec='milliseconds')} on, or a position"
    )
