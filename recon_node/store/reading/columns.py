"""What bulk readers ask of the feed: its rows, in columns.

Rows with their CARs are checked before they leave, see `recon_node.store.damage`. Rows without
them, which take a third of the time, are not: a reader who gets the CARs elsewhere can compare them
with the CIDs.

The EventId of a row says which sort value and controller its stream has (CIP-124: the last 8 bytes
of the hash of each), and `init_cid` which stream it is. So a filter skips a row without a look at
its CAR; only the sort key, which no EventId has, is looked up with the stream.
"""

from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from itertools import compress
from typing import Any, Final, TypeVar, cast

from recon_node.ceramic import EventKind, Network, network_range, sort_value_range
from recon_node.ceramic.auth.did import did_spellings
from recon_node.ceramic.event_id import short_hash
from recon_node.ipld import CID, CarError
from recon_node.store.damage import (
    FORGOTTEN,
    Damage,
    DamagedEventError,
    check_stored,
    name_damage,
    row_fault,
)
from recon_node.store.db.blocks import full_size
from recon_node.store.db.rows import faults_of, forgotten_streams
from recon_node.store.db.sql import select_in, short, short_of
from recon_node.store.reading import Reader
from recon_node.store.values import FeedColumns, FeedFilter

T = TypeVar("T")

DELIVERED_AT: Final = (
    "(SELECT delivered_at FROM deliveries WHERE deliveries.position <= events.position "
    "ORDER BY deliveries.position DESC LIMIT 1)"
)
"""The time of a row of `events` in a SELECT; null if it is not known, or not delivered."""

COLUMNS: Final = f"position, event_id, cid, init_cid, kind, car, {DELIVERED_AT}"
ROWS: Final = f"SELECT {COLUMNS} FROM events LEFT JOIN cars USING (id) "
_BARE_ROWS: Final = f"SELECT {COLUMNS.replace('car', 'NULL')} FROM events "
OF_STREAM: Final = (
    "stream = (SELECT id FROM events WHERE short_cid = ? AND cid = ? AND position NOTNULL)"
)
"""Those of the stream of a CID, named by its `short` and itself."""
_WIDTH: Final = 7
_ANCHORS: Final = (
    "SELECT position, block_time, chain_id FROM events "
    "CROSS JOIN anchors ON anchors.event = events.id CROSS JOIN proofs USING (proof) "
    "WHERE position IN (?)"
)


def read_columns(
    reader: Reader,
    after: int,
    limit: int,
    upto: int,
    max_bytes: int,
    wanted: FeedFilter = FeedFilter(),  # noqa: B008 - a value, and immutable
    *,
    cars: bool = True,
) -> FeedColumns:
    """Return at most `limit` delivered events of the positions (after, upto] that match a filter,
    in order.

    The CARs of others are not touched. One thread is busy until as many are found or `upto` is
    reached: keep the range bounded. The last one is the event that takes the CARs to `max_bytes`.
    Without `cars`, they are not read, and the rows are not checked.

    Raises:
        DamagedEventError: one of them is damaged.
    """
    terms, values = _where(wanted, reader.network)
    sql = (
        ROWS if cars else _BARE_ROWS
    ) + f"WHERE position > ? AND position <= ? {terms}ORDER BY position LIMIT ?"
    columns = select(reader, sql, (after, reader.within_head(upto), *values, limit), max_bytes)
    hole = None if terms else first_hole(columns[0], after)
    if hole is not None:
        raise DamagedEventError(hole)
    if not cars:
        return with_anchors(reader, columns, ())
    sound, damaged = sound_cars(reader, columns)
    if any(damaged):
        raise DamagedEventError(*filter(None, damaged))
    return with_anchors(reader, columns, sound)


def read_columns_of(reader: Reader, cids: Sequence[CID], max_bytes: int) -> tuple[FeedColumns, int]:
    """Return those of some events that are delivered, in the order of their CIDs, and how many of
    the CIDs were dealt with: the last event is the one that takes the CARs to `max_bytes`.

    Damaged events are not here.
    """
    sql, values = _rows_of(len(cids)), (*cids, reader.head)
    *columns, places = select(reader, sql, values, max_bytes, _WIDTH + 1)
    sound, damaged = sound_cars(reader, columns)
    done = places[-1] + 1 if places else len(cids)
    if any(damaged):
        whole = [damage is None for damage in damaged]
        columns = [list(compress(column, whole)) for column in columns]
    reader.damaged += filter(None, damaged)
    return with_anchors(reader, columns, sound), done


@lru_cache(maxsize=8)
def _rows_of(count: int) -> str:
    """Return a SELECT of the rows of some CIDs, each with its place among them.

    `CROSS JOIN` keeps SQLite to that order without sorting, so that no more is read than is taken.
    """
    wanted = ", ".join(f"({place}, ?)" for place in range(count))
    return (
        f"WITH wanted (place, wanted_cid) AS (VALUES {wanted}) SELECT {COLUMNS}, place FROM wanted "
        f"CROSS JOIN events ON short_cid = {short_of('wanted_cid')} "
        "AND cid = wanted_cid LEFT JOIN cars USING (id) WHERE position <= ?"
    )


def sound_cars(
    reader: Reader, columns: Sequence[list[Any]]
) -> tuple[Sequence[bytes], Sequence[Damage | None]]:
    """Return the CARs of the sound rows, empty for forgotten ones, and the damage of each row; no
    damages if all rows are sound."""
    *names, stored, _ = columns
    cars = reader.blocks.restore_each(stored)
    fits = reader.fit(*names[1:], cars)
    if all(fits):
        return cast("list[bytes]", cars), ()
    damaged = [
        None if is_sound else damage_of(*row)
        for is_sound, row in zip(fits, zip(*names, cars, strict=True), strict=True)
    ]
    sound = zip(cars, damaged, strict=True)
    return [
        b"" if car == FORGOTTEN else car
        for car, fault in sound
        if isinstance(car, bytes) and fault is None
    ], damaged


def with_anchors(
    reader: Reader, columns: Sequence[list[Any]], cars: Sequence[bytes]
) -> FeedColumns:
    """Return rows with what is known of anchors and signatures, unless they are forgotten."""
    positions, event_ids, cids, inits, kinds, _, delivered = columns
    times, chains = anchors(reader, positions, kinds)
    faults = faults_of(reader.connection, positions, kinds)
    forgotten = forgotten_streams(reader.connection)
    if not forgotten.isdisjoint(inits):
        gone = [init in forgotten for init in inits]
        times, chains = _blanked(times, gone), _blanked(chains, gone)
        faults = _blanked(faults, gone)
    return FeedColumns(
        positions, event_ids, cids, inits, kinds, cars, times, chains, delivered, faults
    )


def _blanked(column: Sequence[T | None], gone: Sequence[bool]) -> Sequence[T | None]:
    return [None if is_gone else value for is_gone, value in zip(gone, column, strict=True)]


def _where(wanted: FeedFilter, network: Network) -> tuple[str, list[object]]:
    """Return further terms of a WHERE over `events`, and their parameters."""
    terms, values = "", list[object]()
    # SQL counts from 1. After the controller's 8 bytes come 4 of the stream.
    controller_at = len(network_range(network)[0].prefix) - 11
    if wanted.sort_value is not None:
        terms += "AND event_id > ? AND event_id < ? "
        values += sort_value_range(network, wanted.sort_value)
    if wanted.controller is not None:
        names = did_spellings(wanted.controller)
        terms += f"AND substr(event_id, ?, 8) IN ({', '.join('?' * len(names))}) "
        values += (controller_at, *map(short_hash, names))
    if wanted.controllers is not None:
        first, last = wanted.controllers
        terms += "AND substr(event_id, ?, ?) BETWEEN ? AND ? "
        values += (controller_at, len(first), first, last)
    if wanted.stream_id is not None:
        terms += f"AND {OF_STREAM} "
        values += (short(wanted.stream_id.cid), wanted.stream_id.cid)
    if wanted.sort_key is not None:
        terms += "AND (SELECT sep_key FROM streams WHERE init_cid = events.init_cid) = ? "
        values.append(wanted.sort_key)
    return terms, values


def select(
    reader: Reader, sql: str, values: Sequence[object], max_bytes: int | None, width: int = _WIDTH
) -> Sequence[list[Any]]:
    """Return the columns of the rows up to the one that takes their CARs to `max_bytes`."""
    flat: list[Any] = []  # no tuples are kept: so many set off the garbage collector
    size = 0
    # A statement that is not at its end would hold on to its view of the log.
    with closing(reader.connection.execute(sql, values)) as rows:
        for row in rows:
            flat += row
            size += full_size(row[5])  # without one, it is damaged
            if max_bytes is not None and size >= max_bytes:
                break
    return [flat[n::width] for n in range(width)]


def anchors(
    reader: Reader, positions: Sequence[int], kinds: Sequence[str]
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """Return the block times and the chains of delivered events; both are final."""
    none = (None,) * len(positions)
    time_event = EventKind.TIME.value
    if time_event not in kinds:
        return none, none
    anchored = [at for at, kind in zip(positions, kinds, strict=True) if kind == time_event]
    anchored_at = {
        at: (time, chain) for at, time, chain in select_in(reader.connection, _ANCHORS, anchored)
    }
    times, chains = zip(
        *(anchored_at.get(position, (None, None)) for position in positions), strict=True
    )
    return times, chains


def damage_of(
    position: int | None, event_id: bytes, cid: bytes, init: bytes, kind: str, car: bytes | CarError
) -> Damage | None:
    """Return what is wrong with an event as it was read; None if nothing is, or it is forgotten."""
    if car == FORGOTTEN:
        return None
    sound = check_stored(car, event_id, cid, position)
    if isinstance(sound, Damage):
        return sound
    fault = row_fault(event_id, cid, init, kind, sound)
    return None if fault is None else name_damage(fault, event_id, cid, position, of_row=True)


def first_hole(positions: Sequence[int], after: int) -> Damage | None:
    """Return the first hole in the positions behind `after`: each must have an event."""
    if not positions or positions[-1] - after == len(positions):
        return None
    expected = next(at for at, actual in enumerate(positions, after + 1) if at != actual)
    return Damage("no event has this position", position=expected)
