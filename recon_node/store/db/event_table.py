"""The table `events` as it is since version 14, and how the rows of earlier ones come into it.

A row has each name once. The EventId is what precedes its CID (`name`), and the CID; an init event
does not repeat its CID as that of its stream (`init`); and who signed matters until the event is
delivered. The index by CID has the first 8 bytes of its digest, and an EventId is found by its CID:
at most a handful of EventIds have the same one (`recon_node.store.admission.ladder.MAX_EVENT_IDS`).
The index by stream has the row of its init event. That is a small number, and what was written to
streams lately is in the same few pages: only the index by CID is written all over.

Theory of the migration. Rows are copied to a table of another name, in transactions of
`_COPIED_AT_ONCE`, and so are the indexes built, one in each. Until the last transaction, which
exchanges the tables, everything else reads the log as it was: readers in other processes go on all
the time. A process that is killed leaves what it has copied, and the next one continues there. In
between, an earlier version may have run and changed the log: triggers take each row that it changes
out of the copy, and the last transaction copies whatever is missing.
"""

import sqlite3
import time
from typing import Final

import structlog

from recon_node.ceramic.event_id import SHORT_HASH_SIZE
from recon_node.store.db.sql import short_of
from recon_node.store.errors import DamagedRowError

logger = structlog.get_logger(__name__)

_COPIED_AT_ONCE: Final = 20_000
REPORT_SECONDS: Final = 5.0

# What an init event's `name` ends with: two hashes, 4 bytes of the stream, the height 0.
CONTROLLER_AT: Final = SHORT_HASH_SIZE + 4 + 1
SORT_VALUE_AT: Final = SHORT_HASH_SIZE + CONTROLLER_AT
SORT_VALUE: Final = f"substr(name, -{SORT_VALUE_AT}, {SHORT_HASH_SIZE})"
CONTROLLER: Final = f"substr(name, -{CONTROLLER_AT}, {SHORT_HASH_SIZE})"
BOTH: Final = f"substr(name, -{SORT_VALUE_AT}, {2 * SHORT_HASH_SIZE})"

_TABLE: Final = f"""
    CREATE TABLE IF NOT EXISTS slim (
        id       INTEGER PRIMARY KEY,  -- in order of arrival
        name     BLOB NOT NULL,        -- the EventId before its CID
        cid      BLOB NOT NULL,
        init     BLOB,                 -- of the stream; null: this is its init event
        kind     TEXT NOT NULL,
        state    INTEGER NOT NULL,
        signer   TEXT,                 -- null once it is delivered
        position INTEGER,
        stream   INTEGER,              -- the id of its init event; null until it is delivered
        event_id   BLOB AS (CAST(name || cid AS BLOB)),
        init_cid   BLOB AS (ifnull(init, cid)),
        short_cid  BLOB AS ({short_of("cid")}),
        short_init BLOB AS ({short_of("ifnull(init, cid)")})
    ) STRICT
    """
_CHANGES: Final = (
    "CREATE TRIGGER IF NOT EXISTS slim_{0} AFTER {0} ON events "
    "BEGIN DELETE FROM slim WHERE id = old.id; END"
)
_COPY: Final = """
    INSERT INTO slim (id, name, cid, init, kind, state, signer, position, stream)
    SELECT id, substr(event_id, 1, length(event_id) - length(cid)), cid, nullif(init_cid, cid),
        kind, state, iif(position IS NULL, signer, NULL), position, iif(position IS NULL, NULL, (
            SELECT id FROM events AS first WHERE cid = events.init_cid AND position NOTNULL
        ))
    FROM events WHERE
    """
_INDEXES: Final = {
    "by_cid": "(short_cid)",
    "by_position": "(position) WHERE position IS NOT NULL",
    "by_stream": "(stream, position) WHERE position IS NOT NULL",
    "undelivered": "(state) WHERE position IS NULL",
    "undelivered_by_stream": "(short_init) WHERE position IS NULL",
    "init_events": "(id) WHERE kind = 'init'",
    "by_sort_value": f"({SORT_VALUE}) WHERE kind = 'init'",
    "by_controller": f"({CONTROLLER}) WHERE kind = 'init'",
    "by_both": f"({BOTH}) WHERE kind = 'init'",
}


def slim_events(connection: sqlite3.Connection) -> None:
    """Exchange the table `events`: a migration. It commits what is done in between.

    Raises:
        DamagedRowError: a row has values that this program never writes.
    """
    try:
        _exchange(connection)
    except sqlite3.IntegrityError as error:
        raise DamagedRowError(f"the table events: {error}") from error


def _exchange(connection: sqlite3.Connection) -> None:
    connection.execute(_TABLE)
    for change in ("update", "delete"):
        connection.execute(_CHANGES.format(change))
    _copy(connection)
    for name, columns in _INDEXES.items():
        unique = "UNIQUE " if name == "by_position" else ""
        connection.execute(f"CREATE {unique}INDEX IF NOT EXISTS {name} ON slim {columns}")
        _commit(connection)
    connection.execute(f"{_COPY} id NOT IN (SELECT id FROM slim)")
    connection.execute("DROP TABLE events")
    connection.execute("ALTER TABLE slim RENAME TO events")


def _copy(connection: sqlite3.Connection) -> None:
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
    reported = time.monotonic()
    while True:
        (done,) = connection.execute("SELECT coalesce(max(id), 0) FROM slim").fetchone()
        copied = connection.execute(f"{_COPY} id > ? ORDER BY id LIMIT {_COPIED_AT_ONCE}", (done,))
        if not copied.rowcount:
            return
        _commit(connection)
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            logger.info("Making the rows of events smaller", done=done, of=last)


def _commit(connection: sqlite3.Connection) -> None:
    connection.execute("COMMIT")
    connection.execute("BEGIN IMMEDIATE")
