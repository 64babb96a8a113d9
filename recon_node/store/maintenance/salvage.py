"""Read what can still be read of a damaged log.

Everything is read from a copy. Where a page cannot be read, the walk over a table continues after
it. Positions are read from the table and from the index that has them as well, so they survive
damage to either. An EventId is in one place only, but follows from the event's history, as far as
that is here. A CAR is in one place only.

A damaged header or list of tables is rebuilt first, as far as it is known (`table_list`).
"""

import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from recon_node.ceramic import EventId, EventIdError, InvalidEventError, parse_event
from recon_node.ipld import CarError
from recon_node.store.db import log_schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.errors import StoreError
from recon_node.store.maintenance.table_list import repair_table_list

_UNREADABLE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)

_MAX_ROW_ID: Final = 2**48


class Salvaged(NamedTuple):
    """What could be read of an event; its position is that in the old feed."""

    event_id: EventId | None
    position: int | None
    car: bytes | None


class Salvage:
    """The readable part of a damaged log.

    Raises:
        StoreError: not even the list of its tables can be read.
    """

    def __init__(self, path: Path, directory: Path) -> None:
        copy = directory / "damaged.sqlite3"
        shutil.copyfile(path, copy)
        for suffix in ("-wal", "-journal"):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                shutil.copyfile(beside, copy.with_name(copy.name + suffix))
        repair_table_list(copy, directory)
        self._connection = sqlite3.connect(copy, isolation_level=None, check_same_thread=False)
        try:
            tables = self._connection.execute("SELECT name FROM sqlite_schema").fetchall()
            if not {("events",), ("cars",)} <= set(tables):
                raise sqlite3.DatabaseError("it has no table of events")
        except _UNREADABLE as error:
            self._connection.close()
            raise StoreError(
                f"the list of tables in the event log {path} is damaged ({error}), so nothing can "
                "be saved: restore a backup, or move it away to start over (peers will "
                "send their events again)"
            ) from error
        self._plan = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._blocks = BlockReader(self._connection, remember=True)
        self._make_plan()

    @property
    def epoch(self) -> str | None:
        """The epoch of the log."""
        return self._meta("epoch")

    @property
    def network_id(self) -> int | None:
        """The network of most events; if there are none, the one that the log states."""
        sample = self._plan.execute("SELECT event_id FROM plan WHERE event_id NOTNULL LIMIT 100")
        named = Counter(EventId(event_id).network_id for (event_id,) in sample)
        if named:
            return named.most_common(1)[0][0]
        stored = self._meta("network_id")
        return int(stored) if stored is not None and stored.isdecimal() else None

    @property
    def events(self) -> int:
        """The number of events, with or without a CAR."""
        return int(self._plan.execute("SELECT count(*) FROM plan").fetchone()[0])

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """The readable rows of a small table; empty if there is no such table."""
        try:
            (columns,) = self._connection.execute(
                "SELECT group_concat(name) FROM pragma_table_info(?)", (table,)
            ).fetchone()
        except _UNREADABLE:
            return []
        return list(_both_ways(self._connection, f"SELECT {columns} FROM {table} ORDER BY 1 {{}}"))

    def read(self) -> Iterator[Salvaged]:
        """Yield the events in the order of the old feed, then the others in order of arrival."""
        sql = "SELECT id, event_id, position FROM plan ORDER BY position IS NULL, position, id"
        for row, event_id, position in self._plan.execute(sql):
            name = None if event_id is None else EventId(event_id)
            yield Salvaged(name, position, self._car(row, name))

    def close(self) -> None:
        """Close the copy."""
        self._plan.close()
        self._connection.close()

    def _make_plan(self) -> None:
        self._plan.execute(
            "CREATE TABLE plan (id INTEGER PRIMARY KEY, event_id BLOB, position INTEGER)"
        )
        add = (
            "INSERT INTO plan (id, event_id, position) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET "
            "event_id = coalesce(event_id, excluded.event_id), "
            "position = coalesce(position, excluded.position)"
        )
        self._plan.execute("BEGIN")
        for rows in (self._by_table(), self._by_position(), self._by_car()):
            self._plan.executemany(add, rows)
        self._plan.execute("COMMIT")

    def _by_table(self) -> Iterator[tuple[int, bytes | None, int | None]]:
        sql = "SELECT id, event_id, position FROM events NOT INDEXED"
        for row, event_id, position in _walk(self._connection, sql):
            yield row, _event_id(event_id), position if isinstance(position, int) else None

    def _by_position(self) -> Iterator[tuple[int, bytes | None, int | None]]:
        sql = (
            "SELECT id, position FROM events INDEXED BY by_position "
            "WHERE position IS NOT NULL ORDER BY position {}"
        )
        for row, position in _both_ways(self._connection, sql):
            yield row, None, position

    def _by_car(self) -> Iterator[tuple[int, bytes | None, int | None]]:
        for (row,) in _walk(self._connection, "SELECT id FROM cars"):
            yield row, None, None

    def _car(self, row: int, event_id: EventId | None) -> bytes | None:
        """The CAR of an event, if it is intact and belongs to it."""
        try:
            stored = self._connection.execute(
                "SELECT car FROM cars WHERE id = ?", (row,)
            ).fetchone()
            if stored is None or not isinstance(stored[0], bytes):
                return None
            [car] = self._blocks.restore(stored)
            event = parse_event(car)
        except (*_UNREADABLE, CarError, InvalidEventError):
            return None
        return car if event_id is None or event.cid == event_id.event_cid else None

    def _meta(self, name: str) -> str | None:
        try:
            return log_schema.read_meta(self._connection, name)
        except _UNREADABLE:
            return None


def _event_id(value: Any) -> bytes | None:
    try:
        return EventId(value)
    except (EventIdError, TypeError):
        return None


def _walk(connection: sqlite3.Connection, select: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table by id, the first column, without unreadable pages."""
    at: int | None = -1
    sql = f"{select} WHERE id > ? ORDER BY id"
    while at is not None:
        try:
            with closing(connection.execute(sql, (at,))) as rows:
                for row in rows:
                    yield row
                    at = row[0]
            return
        except _UNREADABLE:
            at = _after_damage(connection, sql, at)


def _after_damage(connection: sqlite3.Connection, sql: str, at: int) -> int | None:
    """Return the least id after which the table can be read again; None if there is none."""

    def readable(after: int) -> bool:
        try:
            connection.execute(f"{sql} LIMIT 1", (after,)).fetchone()
        except _UNREADABLE:
            return False
        return True

    step = 1
    while not readable(at + step):
        if at + step > _MAX_ROW_ID:
            return None
        step *= 2
    low, high = at + step // 2, at + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if readable(middle) else (middle, high)
    return high


def _both_ways(connection: sqlite3.Connection, sql: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows from the start to the first unreadable page, then from the end back."""
    for order in ("ASC", "DESC"):
        try:
            with closing(connection.execute(sql.format(order))) as rows:
                yield from rows
            return
        except _UNREADABLE:
            continue
