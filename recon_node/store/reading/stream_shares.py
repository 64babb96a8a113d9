"""The events of one stream, read so that what strangers add to it costs its readers nothing.

A stream is what its controller signed, and the times that transactions prove of that. Everybody can
add more: any number of time events for one transaction, time events whose transaction does not
exist, and badly signed events. Each has a share of its own here, whose limit does not count for the
others, and the CARs of time events are not read at all (`recon_node.store.db.proofs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from recon_node.ceramic import EventId, TimeProof
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.damage import Damage, DamagedEventError, check_stored
from recon_node.store.db.rows import FAULT
from recon_node.store.db.sql import select_named, short
from recon_node.store.reading import Reader
from recon_node.store.reading.columns import OF_STREAM, ROWS
from recon_node.store.reading.feed_rows import MOST, read_whole_rows
from recon_node.store.values import FeedRow, HeldRow, TimeRow

_TIMES: Final = (
    "SELECT event_id, cid, position, state, prev, chain_id, root, tx_hash, tx_type, block_time "
    "FROM events JOIN anchors ON anchors.event = events.id JOIN proofs USING (proof) "
)


def read_signed(
    reader: Reader, init: CID, limit: int | None = None, max_bytes: int | None = None
) -> list[FeedRow]:
    """Return at most `limit` delivered events of the stream that the event `init` starts, in feed
    order, which is causal, without time events; none when the stream is not here.

    With `max_bytes`, the last one is the event that takes the CARs to so many bytes.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    sql = (
        f"{ROWS} LEFT JOIN anchors ON anchors.event = events.id "
        f"WHERE {OF_STREAM} AND position <= ? AND prev IS NULL ORDER BY position LIMIT ?"
    )
    values = (short(init), init, reader.head, -1 if limit is None else min(limit, MOST))
    return read_whole_rows(reader, sql, values, max_bytes)


def read_undelivered(
    reader: Reader, init: CID, limit: int, max_bytes: int, *, well_signed: bool
) -> list[HeldRow]:
    """Return events of a stream that are not delivered, without time events, those first that may
    be soonest: the rightly signed ones, or the others.

    The last one is the event that takes the CARs to `max_bytes`.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    rows = reader.connection.execute(
        f"SELECT id, event_id, cid, state, {FAULT} AS fault FROM events "
        "INDEXED BY undelivered_by_stream WHERE short_init = ? AND init_cid = ? "
        "AND position IS NULL AND kind != 'time' AND (fault IS NULL AND state >= 0) = ? "
        "ORDER BY state DESC, id LIMIT ?",
        (short(init), init, well_signed, limit),
    ).fetchall()
    found: list[HeldRow] = []
    left = max_bytes
    for row, event_id, cid, state, fault in rows:
        stored = reader.connection.execute("SELECT car FROM cars WHERE id = ?", (row,)).fetchone()
        [restored] = reader.blocks.restore_each([None if stored is None else stored[0]])
        car = check_stored(restored, event_id, cid, None)
        if isinstance(car, Damage):
            raise DamagedEventError(car)
        found.append(HeldRow(EventId(event_id), car, State(state) is State.PENDING, fault))
        left -= len(car)
        if left <= 0:
            break
    return found


def read_time_statements(reader: Reader, init: CID, limit: int) -> list[TimeRow]:
    """Return one delivered time event for each of at most `limit` statements in a stream: the one
    with the lowest CID."""
    first = dict(
        reader.connection.execute(
            "SELECT min(cid), min(position) FROM events INDEXED BY by_stream "
            "JOIN anchors ON anchors.event = events.id "
            f"WHERE {OF_STREAM} AND position <= ? AND prev NOTNULL "
            "GROUP BY ifnull(statement, cid) LIMIT ?",
            (short(init), init, reader.head, limit),
        ).fetchall()
    )
    rows = _named_times(reader, list(first))
    return [_time_row(row, first[row[1]]) for row in rows if row[2] is not None]


def read_time_events(reader: Reader, cids: Iterable[CID]) -> list[TimeRow]:
    """Return those of some events that are delivered time events, and those on which they build."""
    found: dict[CID, TimeRow] = {}
    wanted = set(cids)
    while wanted:
        rows = _named_times(reader, list(wanted))
        new = [_time_row(row) for row in rows if row[2] is not None and row[2] <= reader.head]
        found.update((row.event_cid, row) for row in new)
        wanted = {row.prev for row in new} - found.keys()
    return list(found.values())


def read_time_copies(reader: Reader, init: CID, limit: int) -> list[TimeRow]:
    """Return the first delivered time events of a stream, copies of statements included."""
    where = f"WHERE {OF_STREAM} AND position <= ? AND prev NOTNULL ORDER BY position LIMIT ?"
    return _read_times(reader, where, (short(init), init, reader.head, limit))


def read_undelivered_times(reader: Reader, init: CID, limit: int) -> list[TimeRow]:
    """Return time events of a stream that are not delivered, those first that may be soonest."""
    where = (
        "WHERE short_init = ? AND init_cid = ? AND position IS NULL AND prev NOTNULL "
        "ORDER BY state DESC, id LIMIT ?"
    )
    return _read_times(reader, where, (short(init), init, limit))


def _named_times(reader: Reader, cids: Sequence[bytes]) -> Iterator[tuple[Any, ...]]:
    return select_named(reader.connection, f"{_TIMES} WHERE short_cid IN (?)", cids, 1)


def _read_times(reader: Reader, where: str, values: Sequence[object]) -> list[TimeRow]:
    return [_time_row(row) for row in reader.connection.execute(_TIMES + where, values)]


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
