"""Bring a log of an earlier version up to this version.

Each entry of `MIGRATIONS` takes a file from the version of its index to the next one (`PRAGMA
user_version` holds the version): SQL, or a function for what SQL cannot do. Each runs in one
transaction together with the change of the version, or says how it goes on: whatever ends the
process, the file has one version or the next, and the next start continues from there. There is no
way back, because an earlier program refuses a file of a later version. Hence the advice to copy the
file before an upgrade.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import Final

import structlog

from recon_node.ceramic import Event, InvalidEventError, parse_event
from recon_node.ceramic.event_id import SHORT_HASH_SIZE
from recon_node.ipld import DAG_JOSE, CarError
from recon_node.store.db import blocks, proofs, statements
from recon_node.store.db.blocks import is_packed, sections
from recon_node.store.db.event_table import (
    CONTROLLER_AT,
    REPORT_SECONDS,
    SORT_VALUE_AT,
    slim_events,
)
from recon_node.store.db.sql import MIGRATED_AT_ONCE

logger = structlog.get_logger(__name__)

Migration = str | Callable[[sqlite3.Connection], None]


def migrate(connection: sqlite3.Connection, migrations: tuple[Migration, ...]) -> None:
    """Bring a file to the last version; a new one has version 0."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if 0 < version < len(migrations):
        logger.info(
            "Bringing the event log up to date", from_version=version, to_version=len(migrations)
        )
    for number, migration in enumerate(migrations[version:], version + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE;{migration}" if isinstance(migration, str) else "BEGIN IMMEDIATE"
        )
        if not isinstance(migration, str):
            migration(connection)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")


def cut_out_shared_blocks(connection: sqlite3.Connection) -> None:
    """Give all CARs the form that `blocks` describes, except those that are damaged."""
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM cars").fetchone()
    row, reported = 0, time.monotonic()
    while rows := connection.execute(
        "SELECT id, car FROM cars WHERE id > ? ORDER BY id LIMIT ?", (row, MIGRATED_AT_ONCE)
    ).fetchall():
        candidates = [
            (row_id, event) for row_id, car in rows if (event := _sharing(car)) is not None
        ]
        stored = blocks.cut_out_shared(connection, [event for _, event in candidates])
        connection.executemany(
            "UPDATE cars SET car = ? WHERE id = ?",
            ((car, row_id) for car, (row_id, _) in zip(stored, candidates, strict=True)),
        )
        row = rows[-1][0]
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            logger.info("Storing shared blocks only once", done=row, of=last)


def _sharing(car: bytes) -> Event | None:
    """Return the event of a CAR that may share blocks: not of an envelope and its payload alone."""
    try:
        if is_packed(car):
            return None
        codecs = [cid.codec for cid, *_ in sections(car)]
        if len(codecs) < 2 or (len(codecs) == 2 and DAG_JOSE in codecs):
            return None
        return parse_event(car)
    except (CarError, InvalidEventError):
        return None


# As `event_table` has them, before the CID that ends an EventId.
_SORT_VALUE: Final = f"substr(event_id, -{SORT_VALUE_AT} - length(cid), {SHORT_HASH_SIZE})"
_CONTROLLER: Final = f"substr(event_id, -{CONTROLLER_AT} - length(cid), {SHORT_HASH_SIZE})"
_BOTH: Final = f"substr(event_id, -{SORT_VALUE_AT} - length(cid), {2 * SHORT_HASH_SIZE})"

# Never edit one that was released.
MIGRATIONS: Final[tuple[Migration, ...]] = (
    """
    CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE events (
        id       INTEGER PRIMARY KEY,  -- in order of arrival
        event_id BLOB NOT NULL UNIQUE,
        cid      BLOB NOT NULL,
        init_cid BLOB NOT NULL,
        kind     TEXT NOT NULL,
        state    INTEGER NOT NULL,
        signer   TEXT,
        position INTEGER
    ) STRICT;
    CREATE INDEX events_by_cid ON events (cid);
    CREATE UNIQUE INDEX events_by_position ON events (position) WHERE position IS NOT NULL;
    CREATE INDEX events_undelivered ON events (state) WHERE position IS NULL;
    CREATE TABLE cars (id INTEGER PRIMARY KEY, car BLOB NOT NULL) STRICT;
    CREATE TABLE waits (
        event INTEGER NOT NULL,
        cid   BLOB NOT NULL,
        PRIMARY KEY (event, cid)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX waits_by_cid ON waits (cid);
    CREATE TABLE streams (
        init_cid   BLOB PRIMARY KEY,
        controller TEXT NOT NULL,
        sep_key    TEXT NOT NULL,
        sep_value  TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE refused (
        id       INTEGER PRIMARY KEY,  -- in order of refusal
        event_id BLOB NOT NULL UNIQUE,
        cid      BLOB NOT NULL,
        inherent INTEGER NOT NULL,
        reason   TEXT NOT NULL
    ) STRICT;
    CREATE INDEX refused_inherently ON refused (cid) WHERE inherent;
    CREATE TABLE interests (
        id         INTEGER PRIMARY KEY,
        sort_key   TEXT NOT NULL,
        sort_value TEXT NOT NULL,
        controller TEXT,
        stream_id  TEXT
    ) STRICT;
    """,
    """
    CREATE INDEX events_by_stream ON events (init_cid, position) WHERE position IS NOT NULL;
    """,
    proofs.add_proofs,
    """
    CREATE TABLE blocks (
        id    INTEGER PRIMARY KEY,
        cid   BLOB NOT NULL UNIQUE,
        block BLOB NOT NULL
    ) STRICT;
    """,
    cut_out_shared_blocks,
    """
    CREATE TABLE not_found (
        proof BLOB PRIMARY KEY,
        times INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    """,
    f"""
    CREATE INDEX inits ON events (id) WHERE kind = 'init';
    CREATE INDEX inits_by_sort_value ON events ({_SORT_VALUE}) WHERE kind = 'init';
    CREATE INDEX inits_by_controller ON events ({_CONTROLLER}) WHERE kind = 'init';
    CREATE INDEX inits_by_both ON events ({_BOTH}) WHERE kind = 'init';
    """,
    """
    CREATE TABLE deliveries (
        position     INTEGER PRIMARY KEY,
        delivered_at INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX deliveries_by_time ON deliveries (delivered_at);
    """,
    """
    CREATE TABLE faults (id INTEGER PRIMARY KEY, reason TEXT NOT NULL) STRICT;
    -- The state UNCOVERED took the number of WAITING, and that took the number of ORPHAN.
    UPDATE events SET state = state - 1 WHERE position IS NULL AND state < 2;
    """,
    """
    CREATE TABLE releases (
        cid   BLOB PRIMARY KEY,  -- of an event, or of a proof
        after INTEGER NOT NULL   -- events.id of the last waiter that was looked at
    ) STRICT, WITHOUT ROWID;
    """,
    statements.add_statements,
    "CREATE TABLE own_streams (init_cid BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;",
    "ALTER TABLE interests ADD COLUMN controllers TEXT;",
    slim_events,
    "CREATE TABLE forgotten (init_cid BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;",
    "-- CARs may be trimmed from here on (see blocks.py), which earlier versions cannot read.",
    "ALTER TABLE waits ADD COLUMN watched INTEGER NOT NULL DEFAULT 1;",
    "ALTER TABLE anchors ADD COLUMN backed INTEGER NOT NULL DEFAULT 0;",
    "DROP INDEX deliveries_by_time;",  # times ascend with positions
)
