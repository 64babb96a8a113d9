"""What time events state, without their CARs.

Nobody signs a time event, and one transaction can prove the time of one event by any number of
them, of up to 1 MB each. So whatever is computed of a stream must not depend on how many there are,
or on how large they are. `anchors` has all that a stream needs of each: its `prev`, and its
`statement`, a hash of the transaction and of what that prev states (see
`recon_node.streams.statements`). Copies of one statement have the same one. Like the height, it is
known once the history is: until then it is null.

Nothing here begins or ends a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from recon_node.ceramic import EventId, EventKind, InvalidEventError, TimeProof, parse_event
from recon_node.ipld import CID, CarError
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.records import Record, State
from recon_node.store.db.sql import read_in_pieces, select_in
from recon_node.store.values import TimeRow

if TYPE_CHECKING:  # its module needs the migrations, and this one is one of them
    from recon_node.store.db.reader import Reader

_PIECE_ROWS: Final = 100
_COLUMNS: Final = (
    "SELECT event_id, cid, position, state, prev, chain_id, root, tx_hash, tx_type, block_time "
    "FROM events JOIN anchors ON anchors.event = events.id JOIN proofs USING (proof) "
)


def note_statements(connection: sqlite3.Connection, records: Iterable[Record]) -> None:
    """Note what those of some time events state whose history has just become known."""
    known = [
        record
        for record in records
        if record.kind is EventKind.TIME
        and record.state >= State.UNCOVERED
        and (record.logged_state is None or record.logged_state < State.UNCOVERED)
    ]
    for record in sorted(known, key=lambda each: each.height):
        _note(connection, record.row)


def read_time_statements(init: CID, upto: int, limit: int, reader: Reader) -> list[TimeRow]:
    """Return one delivered time event for each statement in a stream, of the positions up to
    `upto`: the one with the lowest CID."""
    first = dict(
        reader.connection.execute(
            "SELECT min(cid), min(position) FROM events INDEXED BY events_by_stream "
            "JOIN anchors ON anchors.event = events.id "
            "WHERE init_cid = ? AND position <= ? AND prev NOTNULL "
            "GROUP BY ifnull(statement, cid) LIMIT ?",
            (init, upto, limit),
        ).fetchall()
    )
    rows = select_in(reader.connection, f"{_COLUMNS} WHERE cid IN (?)", list(first))
    return [_time_row(row, first[row[1]]) for row in rows if row[2] is not None]


def read_time_events(cids: Iterable[CID], upto: int, reader: Reader) -> list[TimeRow]:
    """Return those of some events that are delivered time events, and those on which they build."""
    found: dict[CID, TimeRow] = {}
    wanted = set(cids)
    while wanted:
        rows = select_in(reader.connection, f"{_COLUMNS} WHERE cid IN (?)", list(wanted))
        new = [_time_row(row) for row in rows if row[2] is not None and row[2] <= upto]
        found.update((row.event_cid, row) for row in new)
        wanted = {row.prev for row in new} - found.keys()
    return list(found.values())


def read_copies(init: CID, upto: int, limit: int, reader: Reader) -> list[TimeRow]:
    """Return the first delivered time events of a stream, copies of statements included."""
    where = "WHERE init_cid = ? AND position <= ? AND prev NOTNULL ORDER BY position LIMIT ?"
    return _read(where, (init, upto, limit), reader)


def read_undelivered(init: CID, limit: int, reader: Reader) -> list[TimeRow]:
    """Return time events of a stream that are not delivered, those first that may be soonest."""
    where = (
        "WHERE init_cid = ? AND position IS NULL AND prev NOTNULL ORDER BY state DESC, id LIMIT ?"
    )
    return _read(where, (init, limit), reader)


def _read(where: str, values: Sequence[object], reader: Reader) -> list[TimeRow]:
    rows = reader.connection.execute(_COLUMNS + where, values)
    return [_time_row(row) for row in rows]


def _time_row(row: tuple[Any, ...], first: int | None = None) -> TimeRow:
    event_id, cid, position, state, prev, chain_id, root, tx_hash, tx_type, block_time = row
    return TimeRow(
        position,
        position if first is None else first,
        EventId(event_id),
        CID(cid),
        CID(prev),
        TimeProof(chain_id, CID(root), CID(tx_hash), tx_type),
        block_time,
        State(state) is State.PENDING,
    )


def _note(connection: sqlite3.Connection, row: int) -> None:
    found = connection.execute(
        "SELECT chain_id, tx_hash, prev, (SELECT statement FROM events "
        "JOIN anchors AS below ON below.event = events.id WHERE cid = anchors.prev "
        "AND statement NOTNULL) FROM anchors JOIN proofs USING (proof) WHERE event = ?",
        (row,),
    ).fetchone()
    if found is None or found[2] is None:  # damaged
        return
    chain_id, tx_hash, prev, below = found
    transaction = chain_id.encode() + CID(tx_hash).digest  # whatever the codec that its CID names
    statement = sha256(transaction + (below or prev)).digest()
    connection.execute("UPDATE anchors SET statement = ? WHERE event = ?", (statement, row))


def add_statements(connection: sqlite3.Connection) -> None:
    """Fill the new columns from the CARs of time events, except damaged ones: a migration."""
    for column in ("prev BLOB", "statement BLOB"):
        connection.execute(f"ALTER TABLE anchors ADD COLUMN {column}")
    connection.execute(
        "CREATE INDEX events_undelivered_by_stream ON events (init_cid) WHERE position IS NULL"
    )
    for rows in read_in_pieces(connection, _TIME_EVENTS, _PIECE_ROWS):
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
        _note(connection, row)


_TIME_EVENTS: Final = (
    "SELECT events.id, car FROM events JOIN cars USING (id) "
    "WHERE events.id > ? AND kind = 'time' ORDER BY events.id LIMIT ?"
)


def _prevs(car: bytes | CarError) -> Iterator[CID]:
    try:
        if isinstance(car, bytes):
            yield parse_event(car).prevs[0]
    except InvalidEventError:
        return
