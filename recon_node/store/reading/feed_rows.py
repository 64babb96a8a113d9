"""What readers ask of the feed and of single streams: rows in order of their positions.

When events were delivered is in `deliveries`: a row for each time at which a commit delivered
events, with the first position that it gave, and the time in Unix milliseconds. So an event was
delivered at the time in the row with the greatest position up to its own, and all events of one
commit share a row. Events before the first row were delivered by an earlier
version, at a time that is not known. Times ascend with positions, also when the clock is set back:
until it has caught up, events are given the last time, which adds no row. So the events that were
delivered before some time are those up to some position.

A stream is read so that what strangers add to it costs its readers nothing. It is what its
controller signed, and the times that transactions prove of that. Everybody can add more: any number
of time events for one transaction, time events whose transaction does not exist, and badly signed
events. Each has a share of its own here, whose limit does not count for the others, and the CARs of
time events are not read at all (`recon_node.store.db.statements`).

Every CAR is checked before it leaves, see `recon_node.store.damage`: if one is damaged, functions
that return events raise `DamagedEventError`. For bulk readers, see `columns`.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from recon_node.ceramic import EventId, EventKind, TimeProof
from recon_node.ipld import CID
from recon_node.store.admission.records import State
from recon_node.store.damage import (
    FORGOTTEN,
    Damage,
    DamagedEventError,
    check_stored,
    forgotten,
    name_damage,
)
from recon_node.store.db.rows import FAULT
from recon_node.store.db.sql import select_named, short
from recon_node.store.errors import UnknownTimeError
from recon_node.store.reading import Reader
from recon_node.store.reading.columns import (
    COLUMNS,
    DELIVERED_AT,
    OF_STREAM,
    ROWS,
    first_hole,
    select,
    sound_cars,
    with_anchors,
)
from recon_node.store.values import FeedRow, FeedTime, HeldRow, PositionRow, TimeRow

MOST: Final = 2**63 - 1
"""The greatest integer that SQLite has."""


def read_feed(
    reader: Reader, after: int, limit: int, upto: int | None = None, max_bytes: int | None = None
) -> list[FeedRow]:
    """Return at most `limit` delivered events of the positions (after, upto], in order, without
    CARs where they are forgotten.

    They end at the head, before a damaged event, or, with `max_bytes`, with the event that takes
    the CARs to `max_bytes`.

    Raises:
        DamagedEventError: the first of them is damaged.
    """
    sql = ROWS + "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?"
    values = (min(after, MOST), reader.within_head(upto), min(limit, MOST))
    rows, damage = read_rows(reader, sql, values, max_bytes)
    hole = first_hole([row.position for row in rows], after)
    if hole is not None and hole.position is not None:
        rows, damage = rows[: hole.position - after - 1], hole
    if damage is not None:
        if not rows:
            raise DamagedEventError(damage)
        reader.damaged.append(damage)  # repaired while the caller deals with what is before it
    return rows


def read_head(reader: Reader) -> int:
    """Return the last position of the feed."""
    [head] = reader.connection.execute("SELECT coalesce(max(position), 0) FROM events").fetchone()
    return int(head)


def read_positions(reader: Reader, after: int, upto: int) -> list[PositionRow]:
    """Return the rows of the positions (after, upto] of the feed, without their CARs."""
    sql = (
        f"SELECT position, event_id, block_time, chain_id, {DELIVERED_AT}, {FAULT} FROM events "
        "LEFT JOIN anchors ON anchors.event = events.id LEFT JOIN proofs USING (proof) "
        "WHERE position > ? AND position <= ? ORDER BY position"
    )
    return reader.connection.execute(sql, (after, reader.within_head(upto))).fetchall()


def read_keys(reader: Reader, lower: bytes, upper: bytes, upto: int, limit: int) -> list[bytes]:
    """Return at most `limit` EventIds between two bounds, ascending, up to a feed position."""
    sql = (
        "SELECT event_id FROM events WHERE event_id > ? AND event_id < ? AND position <= ? "
        "ORDER BY event_id LIMIT ?"
    )
    bounds = (lower, upper, reader.within_head(upto), limit)
    return [event_id for (event_id,) in reader.connection.execute(sql, bounds)]


def read_sort_key(
    reader: Reader, sort_key: str, marker: bytes, after: int, upto: int, limit: int, max_bytes: int
) -> list[FeedRow]:
    """Return at most `limit` init events whose header has that sort key, of the positions
    (after, upto] of the feed, in order; none that are forgotten.

    `marker` is of one block of their CARs, so that those without it are only searched. The CARs of
    other events are not touched. The last one is the event that takes the CARs to
    `max_bytes`.
    """
    sql = (
        f"SELECT {COLUMNS} FROM events "
        "CROSS JOIN streams USING (init_cid) LEFT JOIN cars USING (id) "
        "WHERE position > ? AND position <= ? AND kind = 'init' AND sep_key = ? "
        f"AND car IS NOT x'{FORGOTTEN.hex()}' AND ifnull(instr(car, ?), 1) "  # null: it is missing
        "ORDER BY position LIMIT ?"
    )
    values = (after, reader.within_head(upto), sort_key, marker, limit)
    return read_whole_rows(reader, sql, values, max_bytes)


def read_whole_rows(
    reader: Reader, sql: str, values: Sequence[object], max_bytes: int | None
) -> list[FeedRow]:
    """Return the events up to the one that takes the CARs to `max_bytes`."""
    rows, damage = read_rows(reader, sql, values, max_bytes)
    if damage is not None:
        raise DamagedEventError(damage)
    for row in rows:
        if not row.car:
            raise DamagedEventError(forgotten(row.event_id, row.event_cid, row.position))
    return rows


def read_rows(
    reader: Reader, sql: str, values: Sequence[object], max_bytes: int | None
) -> tuple[list[FeedRow], Damage | None]:
    """Return the rows before the first damaged one, and the damage."""
    columns = select(reader, sql, values, max_bytes)
    cars, damages = sound_cars(reader, columns)
    damage = next(filter(None, damages), None)
    if damage is not None:
        columns = [column[: damages.index(damage)] for column in columns]
    read = with_anchors(reader, columns, cars[: len(columns[0])])
    rows_read: list[FeedRow] = []
    for position, event_id, cid, init, kind, *others in zip(
        *(getattr(read, field.name) for field in fields(read)), strict=True
    ):
        try:
            key, init_cid = EventId(event_id), CID(init)
        except ValueError as error:
            return rows_read, name_damage(str(error), None, cid, position)
        rows_read.append(FeedRow(position, key, CID(cid), init_cid, EventKind(kind), *others))
    return rows_read, damage


def find_time(connection: sqlite3.Connection, time: int, now: float, head: int) -> FeedTime:
    """Return the feed position of a time.

    `time` is in Unix milliseconds, `now` in seconds. Nobody writes meanwhile: a commit under way
    has an earlier time.

    Raises:
        UnknownTimeError: events that have no time may have been delivered before it or after it.
    """
    sql = "SELECT position, delivered_at FROM deliveries ORDER BY position LIMIT 1"
    first = connection.execute(sql).fetchone()
    timed_from, earliest = first or (head + 1, None)
    if timed_from > 1 and (earliest is None or time < earliest):
        raise UnknownTimeError(_unknown(timed_from, earliest))
    timed = range(timed_from, head + 1)  # their times ascend
    before = bisect_left(timed, time, key=lambda position: delivered_at(connection, position) or 0)
    if before < len(timed):
        return FeedTime(timed[before] - 1, is_final=True)
    return FeedTime(head, is_final=time <= int(now * 1000))


def delivered_at(connection: sqlite3.Connection, position: int) -> int | None:
    """Return when a position was delivered, in Unix milliseconds; None if that is not known."""
    sql = "SELECT delivered_at FROM deliveries WHERE position <= ? ORDER BY position DESC LIMIT 1"
    row = connection.execute(sql, (position,)).fetchone()
    return None if row is None else row[0]


def _unknown(timed_from: int, earliest: int | None) -> str:
    events = f"the {timed_from - 1} events up to position {timed_from - 1}"
    if earliest is None:
        return f"this node did not note when it delivered {events}, which are all that it has"
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=earliest)
    return (
        f"this node did not note when it delivered {events}: name a time from "
        f"{since.isoformat(timespec='milliseconds')} on, or a position"
    )


_TIMES: Final = (
    "SELECT event_id, cid, position, state, prev, chain_id, root, tx_hash, tx_type, block_time "
    "FROM events JOIN anchors ON anchors.event = events.id JOIN proofs USING (proof) "
)


def read_signed(
    reader: Reader, init: CID, limit: int | None = None, max_bytes: int | None = None
) -> list[FeedRow]:
    """Return at most `limit` delivered events of the stream that the event `init` starts, in feed
    order, which is causal, without time events; none when the stream is not here.

    With `max_bytes`, the last one is the event that takes the CARs to `max_bytes`.
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
    """Return events of a stream that are not delivered, without time events, those in the latest
    state first.

    With `well_signed`, events that are known to be rightly signed; without it, the others.

    The last one is the event that takes the CARs to `max_bytes`.
    """
    rows = reader.connection.execute(
        f"SELECT id, event_id, cid, state, {FAULT} AS fault FROM events "
        "INDEXED BY undelivered_by_stream WHERE short_init = ? AND init_cid = ? "
        "AND position IS NULL AND kind != 'time' AND (fault IS NULL AND state >= 0) = ? "
        "ORDER BY state DESC, id LIMIT ?",
        (short(init), init, well_signed, limit),
    ).fetchall()
    held: list[HeldRow] = []
    left = max_bytes
    for row, event_id, cid, state, fault in rows:
        stored = reader.connection.execute("SELECT car FROM cars WHERE id = ?", (row,)).fetchone()
        [restored] = reader.blocks.restore_each([None if stored is None else stored[0]])
        car = check_stored(restored, event_id, cid, None)
        if isinstance(car, Damage):
            raise DamagedEventError(car)
        held.append(HeldRow(EventId(event_id), car, State(state) is State.PENDING, fault))
        left -= len(car)
        if left <= 0:
            break
    return held


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
    """Return the delivered time events among some events, and the time events below them."""
    times: dict[CID, TimeRow] = {}
    wanted = set(cids)
    while wanted:
        rows = _named_times(reader, list(wanted))
        new = [_time_row(row) for row in rows if row[2] is not None and row[2] <= reader.head]
        times.update((row.event_cid, row) for row in new)
        wanted = {row.prev for row in new} - times.keys()
    return list(times.values())


def read_time_copies(reader: Reader, init: CID, limit: int) -> list[TimeRow]:
    """Return the first delivered time events of a stream, copies of statements included."""
    where = f"WHERE {OF_STREAM} AND position <= ? AND prev NOTNULL ORDER BY position LIMIT ?"
    return _read_times(reader, where, (short(init), init, reader.head, limit))


def read_undelivered_times(reader: Reader, init: CID, limit: int) -> list[TimeRow]:
    """Return time events of a stream that are not delivered, those in the latest state first."""
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
