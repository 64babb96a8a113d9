"""What is asked of the log for readers, in SQL; each function runs in a thread.

Every CAR is checked before it is given out, see `recon_node.store.damage.detection`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from recon_node.ceramic import EventId, EventKind
from recon_node.ipld import CID, CarError
from recon_node.store.admission.records import Stream
from recon_node.store.damage.detection import (
    Damage,
    DamagedEventError,
    car_fault,
    name_damage,
    row_fault,
)
from recon_node.store.db.blocks import BlockReader
from recon_node.store.db.packing import full_size
from recon_node.store.db.proofs import pending_proofs
from recon_node.store.db.sql import select_in
from recon_node.store.values import FeedColumns, FeedRow, PendingProof

_LAST = 2**63 - 1  # the greatest integer that SQLite has


class Reader:
    """A read-only connection, and the shared blocks that were read by it."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.execute = raw.execute
        self.close = raw.close
        self.blocks = BlockReader(raw, remember=True)

    def select_in(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """See `sql.select_in`."""
        return select_in(self.raw, sql, values)


def read_car(cid: CID, connection: Reader) -> bytes | None:
    """The CAR of an event, by any of its rows; None when it has none."""
    rows = connection.execute(
        "SELECT event_id, position, car FROM events LEFT JOIN cars USING (id) WHERE cid = ?", (cid,)
    ).fetchall()
    damage = None
    for event_id, position, stored in rows:  # several, where peers claimed several EventIds
        [car] = connection.blocks.restore_each([stored])
        fault = str(car) if isinstance(car, CarError) else car_fault(car, cid)
        if fault is None and not isinstance(car, CarError):
            return car
        damage = name_damage(fault or "", event_id, cid, position)
    if damage is not None:
        raise DamagedEventError(damage)
    return None


def read_cars(
    event_ids: Sequence[EventId], connection: Reader
) -> tuple[list[bytes | None], Sequence[Damage]]:
    """The CARs of some EventIds, in their order, and which of them are damaged: None, too."""
    sql = (
        "SELECT event_id, cid, position, car FROM events LEFT JOIN cars USING (id) "
        "WHERE event_id IN (?)"
    )
    rows = list(connection.select_in(sql, event_ids))
    restored = connection.blocks.restore_each([stored for *_, stored in rows])
    cars: dict[bytes, bytes] = {}
    damaged: list[Damage] = []
    for (event_id, cid, position, _), car in zip(rows, restored, strict=True):
        fault = str(car) if isinstance(car, CarError) else car_fault(car, cid)
        if fault is None and not isinstance(car, CarError):
            cars[event_id] = car
        else:
            damaged.append(name_damage(fault or "", event_id, cid, position))
    return [cars.get(event_id) for event_id in event_ids], damaged


def read_pending_proofs(chain_id: str | None, limit: int, connection: Reader) -> list[PendingProof]:
    """The proofs that await their lookup: first those due first."""
    return pending_proofs(chain_id, limit, connection.raw)


_ROWS = (
    "SELECT position, event_id, cid, init_cid, kind, car, block_time, chain_id "
    "FROM events LEFT JOIN cars USING (id) "
    "LEFT JOIN anchors ON kind = 'time' AND anchors.event = events.id "
    "LEFT JOIN proofs USING (proof) "
)


_COLUMNS = (
    "SELECT position, event_id, cid, init_cid, kind, car FROM events LEFT JOIN cars USING (id) "
)
"""As `_ROWS`, without what most events do not have: to look for it costs them a quarter."""

_ANCHORS = (
    "SELECT position, block_time, chain_id FROM events "
    "CROSS JOIN anchors ON anchors.event = events.id CROSS JOIN proofs USING (proof) "
    "WHERE position IN (?)"
)


def read_feed(
    after: int,
    limit: int,
    upto: int,
    max_bytes: int | None,
    connection: Reader,
) -> list[FeedRow]:
    """Delivered events of the positions (after, upto]; the page ends before a damaged one."""
    rows = connection.execute(
        _ROWS + "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
        (min(after, _LAST), upto, min(limit, _LAST)),
    )
    found, damage = _collect(rows, max_bytes, connection.blocks)
    hole = _hole([row.position for row in found], after)
    if hole is not None and hole.position is not None:
        found, damage = found[: hole.position - after - 1], hole
    if damage is not None and not found:  # else it stands at the beginning of the next page
        raise DamagedEventError(damage)
    return found


def read_columns(
    after: int,
    limit: int,
    upto: int,
    max_bytes: int,
    where: tuple[str, list[object]],
    connection: Reader,
) -> FeedColumns:
    """As `read_feed`, in columns and of those that `where` says; no page has a damaged one."""
    terms, values = where
    rows = connection.execute(
        _COLUMNS + f"WHERE position > ? AND position <= ? {terms}ORDER BY position LIMIT ?",
        (after, upto, *values, limit),
    )
    values_of_rows: list[Any] = []  # not tuples: so many set off the garbage collector
    for row in _up_to(rows, max_bytes):
        values_of_rows += row
    positions, event_ids, cids, inits, kinds, cars = (values_of_rows[n::6] for n in range(6))
    hole = None if terms else _hole(positions, after)
    if hole is not None:
        raise DamagedEventError(hole)
    restored = _sound_cars(positions, event_ids, cids, inits, kinds, cars, connection.blocks)
    times, chains = _anchors(positions, kinds, connection)
    return FeedColumns(positions, event_ids, cids, inits, kinds, restored, times, chains)


def _anchors(
    positions: Sequence[int], kinds: Sequence[str], connection: Reader
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """The block times and the chains of these delivered events; both are settled for ever."""
    none = (None,) * len(positions)
    time_event = EventKind.TIME.value
    if time_event not in kinds:
        return none, none
    anchored = [at for at, kind in zip(positions, kinds, strict=True) if kind == time_event]
    found = {at: (time, chain) for at, time, chain in connection.select_in(_ANCHORS, anchored)}
    times, chains = zip(*(found.get(each, (None, None)) for each in positions), strict=True)
    return times, chains


def read_sort_key(
    sort_key: str, after: int, upto: int, limit: int, max_bytes: int, connection: Reader
) -> list[FeedRow]:
    """Init events with that sort key of the positions (after, upto]."""
    rows = connection.execute(
        "SELECT position, event_id, cid, init_cid, kind, car, NULL, NULL FROM events "
        "CROSS JOIN streams USING (init_cid) LEFT JOIN cars USING (id) "
        "WHERE position > ? AND position <= ? AND kind = 'init' AND sep_key = ? "
        "ORDER BY position LIMIT ?",
        (after, upto, sort_key, limit),
    )
    return _whole(*_collect(rows, max_bytes, connection.blocks))


def read_stream(
    init: CID, upto: int, limit: int | None, max_bytes: int | None, connection: Reader
) -> list[FeedRow]:
    """Events of the stream that `init` starts, of the positions up to `upto`."""
    rows = connection.execute(
        _ROWS + "WHERE init_cid = ? AND position <= ? ORDER BY position LIMIT ?",
        (init, upto, -1 if limit is None else min(limit, _LAST)),
    )
    return _whole(*_collect(rows, max_bytes, connection.blocks))


def read_stream_header(init: CID, connection: Reader) -> Stream | None:
    """What the init event of a stream says in its header; None when it is not here."""
    row = connection.execute(
        "SELECT controller, sep_key, sep_value FROM streams WHERE init_cid = ?", (init,)
    ).fetchone()
    return None if row is None else Stream(init, *row)


def _up_to(rows: sqlite3.Cursor, max_bytes: int | None) -> Iterator[tuple[Any, ...]]:
    """The rows up to the one that takes their CARs to `max_bytes`."""
    size = 0
    with closing(rows):  # a statement that is not at its end would hold on to its view of the log
        for row in rows:
            yield row
            car = row[5]
            if car is not None:  # else it is damaged
                size += len(car) if car[:1] != b"\0" else full_size(car)  # a call where it must
            if max_bytes is not None and size >= max_bytes:
                break


def _sound_cars(
    positions: Sequence[int],
    event_ids: Sequence[bytes],
    cids: Sequence[bytes],
    inits: Sequence[bytes],
    kinds: Sequence[str],
    stored: Sequence[bytes | None],
    blocks: BlockReader,
) -> list[bytes]:
    """The CARs of rows of the feed; raises `DamagedEventError` if any is damaged."""
    cars: list[bytes] = []
    found: list[Damage] = []
    rows = zip(positions, event_ids, cids, inits, kinds, blocks.restore_each(stored), strict=True)
    for position, event_id, cid, init, kind, car in rows:
        damage = _damage(position, event_id, cid, init, kind, car)
        if isinstance(car, bytes) and damage is None:
            cars.append(car)
        elif damage is not None:
            found.append(damage)
    if found:
        raise DamagedEventError(*found)
    return cars


def _damage(
    position: int | None,
    event_id: bytes,
    cid: bytes,
    init: bytes,
    kind: str,
    car: bytes | CarError,
) -> Damage | None:
    """What is wrong with an event as it was read, None when nothing is."""
    if isinstance(car, CarError):
        return name_damage(str(car), event_id, cid, position)
    fault = car_fault(car, cid)
    if fault is not None:
        return name_damage(fault, event_id, cid, position)
    fault = row_fault(event_id, cid, init, kind, car)
    return None if fault is None else name_damage(fault, event_id, cid, position, of_row=True)


def _collect(
    rows: sqlite3.Cursor, max_bytes: int | None, blocks: BlockReader
) -> tuple[list[FeedRow], Damage | None]:
    """The events up to the one that takes the CARs to `max_bytes`, or to the first damaged one."""
    raw = list(_up_to(rows, max_bytes))
    found: list[FeedRow] = []
    for row, car in zip(raw, blocks.restore_each([row[5] for row in raw]), strict=True):
        position, event_id, cid, init, kind, _, block_time, chain_id = row
        damage = _damage(position, event_id, cid, init, kind, car)
        if isinstance(car, CarError) or damage is not None:
            return found, damage
        try:
            key, init_cid = EventId(event_id), CID(init)
        except ValueError as error:
            return found, name_damage(str(error), None, cid, position)
        found.append(
            FeedRow(position, key, CID(cid), init_cid, EventKind(kind), car, block_time, chain_id)
        )
    return found, None


def _whole(rows: list[FeedRow], damage: Damage | None) -> list[FeedRow]:
    """Rows of which none may be left out."""
    if damage is not None:
        raise DamagedEventError(damage)
    return rows


def _hole(positions: Sequence[int], after: int) -> Damage | None:
    """The first hole in the positions behind `after`: a position without an event is damage."""
    if not positions or positions[-1] - after == len(positions):
        return None
    expected = next(at for at, found in enumerate(positions, after + 1) if at != found)
    return Damage("no event has this position", position=expected)
