"""What time events state, in the table `anchors`.

Nobody signs a time event, and one transaction can prove the time of one event by any number of
them, of up to 1 MB each. So whatever is computed of a stream must not depend on how many there are,
or on how large they are. `anchors` has all that a stream needs of each: its `prev`, and its
`statement`, a hash of the transaction and of what that prev states (see
`recon_node.streams.graph`). Copies of one statement have the same one. Like the height, it is
known once the history is: until then it is null.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain
from typing import Final

from recon_node.ceramic import EventId, EventKind, InvalidEventError, parse_event
from recon_node.ipld import CID, CarError
from recon_node.store.admission.records import Record, State
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.sql import read_in_pieces, short_of

_TIME_EVENTS_AT_ONCE: Final = 100
"""Time events, with their CARs, that the migration reads at a time."""
_TIME_EVENTS: Final = (
    "SELECT events.id, car FROM events JOIN cars USING (id) "
    "WHERE events.id > ? AND kind = 'time' ORDER BY events.id LIMIT ?"
)
_BELOW: Final = f"short_cid = {short_of('anchors.prev')} AND cid = anchors.prev"
_BELOW_BEFORE: Final = "cid = anchors.prev"
"""The same in a log of an earlier version."""


def note_statements(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Note what those of some time events state whose history has just become known."""
    known = [
        record
        for record in records
        if record.kind is EventKind.TIME
        and record.state >= State.UNCOVERED
        and (record.logged_state is None or record.logged_state < State.UNCOVERED)
    ]
    for record in sorted(known, key=lambda record: record.height):
        _note(connection, record.row, _BELOW)


def _note(connection: sqlite3.Connection, row: int, below: str) -> None:
    rows = connection.execute(
        "SELECT chain_id, tx_hash, prev, (SELECT statement FROM events "
        f"JOIN anchors AS below ON below.event = events.id WHERE {below} "
        "AND statement NOTNULL) FROM anchors JOIN proofs USING (proof) WHERE event = ?",
        (row,),
    ).fetchone()
    if rows is None or rows[2] is None:  # damaged
        return
    chain_id, tx_hash, prev, stated = rows
    transaction = chain_id.encode() + CID(tx_hash).digest  # whatever the codec that its CID names
    statement = sha256(transaction + (stated or prev)).digest()
    connection.execute("UPDATE anchors SET statement = ? WHERE event = ?", (statement, row))


def add_statements(connection: sqlite3.Connection) -> None:
    """Fill the new columns from the CARs of time events, except damaged ones: a migration."""
    for column in ("prev BLOB", "statement BLOB"):
        connection.execute(f"ALTER TABLE anchors ADD COLUMN {column}")
    connection.execute(
        "CREATE INDEX events_undelivered_by_stream ON events (init_cid) WHERE position IS NULL"
    )
    for rows in read_in_pieces(connection, _TIME_EVENTS, _TIME_EVENTS_AT_ONCE):
        cars = BlockReader(connection).restore_each([car for *_, car in rows])
        connection.executemany(
            "UPDATE anchors SET prev = ? WHERE event = ?",
            ((prev, row[0]) for row, car in zip(rows, cars, strict=True) for prev in _prevs(car)),
        )
    delivered = connection.execute(
        "SELECT id FROM events WHERE kind = 'time' AND position NOTNULL ORDER BY position"
    ).fetchall()
    waiting = connection.execute(
        "SELECT event_id, id FROM events WHERE kind = 'time' AND position IS NULL AND state >= ?",
        (State.UNCOVERED,),
    ).fetchall()
    by_height = sorted((EventId(event_id).height, row) for event_id, row in waiting)
    for row in chain((row for (row,) in delivered), (row for _, row in by_height)):
        _note(connection, row, _BELOW_BEFORE)


def _prevs(car: bytes | CarError) -> Iterator[CID]:
    try:
        if isinstance(car, bytes):
            yield parse_event(car).prevs[0]
    except InvalidEventError:
        return
