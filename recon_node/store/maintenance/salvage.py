"""Read what can still be read of a damaged log.

Everything is read from a copy. Where a page cannot be read, the walk over a table continues after
it. Positions are read from the table and from the index that has them as well, so they survive
damage to either. An EventId is in one place only, but follows from the event's history, as far as
that is here. A CAR is in one place only.

A damaged header or list of tables is rebuilt as far as it is known.

The list of tables of a log is known in advance. It is a table itself, whose first page is the first
of the file. Where it has outgrown that, its rows are on pages below it, which may lie anywhere: new
ones are put at the end of the file.

Sources: https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.6;
https://www.sqlite.org/pragma.html#pragma_writable_schema, which allows reading a broken list.
"""

from __future__ import annotations

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
from recon_node.store.db.migrations import MIGRATIONS, migrate
from recon_node.store.errors import StoreError

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
        mend_table_list(copy, directory)
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


_HEADER_SIZE: Final = 100
_USER_VERSION: Final = slice(60, 64)
_KIND: Final = _HEADER_SIZE
"""Where the first page says of what kind it is, in a table's tree."""
_INTERIOR: Final = 5
"""It has other pages below it. Any other kind has the rows themselves."""
_CELLS: Final = slice(_KIND + 3, _KIND + 5)
_LAST_CHILD: Final = _KIND + 8
_CELL_POINTERS: Final = _KIND + 12
_MAX_LOST_ROOTS: Final = 2
"""With more roots elsewhere than these, the log was compacted rather than damaged."""

_List = dict[bytes, tuple[object, ...]]
"""Rows of the list by the name of the table or index: type, name, table, SQL, root page."""


def mend_table_list(path: Path, directory: Path) -> None:
    """Rewrite what differs from the files that this program writes."""
    _mend_header(path)  # without it nothing can be read
    _mend_list(path, directory / "fresh.sqlite3")


def _mend_list(path: Path, fresh: Path) -> None:
    """Give the file the list of tables of a fresh log, with its own root pages.

    A log that was never compacted has its roots where a fresh one has them. A compacted one has
    them elsewhere: a lost root can be inferred only if it is the only one.
    """
    with path.open("rb") as file:
        version = file.read(_HEADER_SIZE)[_USER_VERSION]
    if version != len(MIGRATIONS).to_bytes(4, "big"):
        return
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {log_schema.PAGE_SIZE}")
        connection.execute(f"PRAGMA application_id = {log_schema.APPLICATION_ID}")
        migrate(connection, MIGRATIONS)
    right, actual = _read_list(fresh), _read_list(path)
    roots = {name: row[-1] for name, row in right.items()}
    if len(actual) == len(right) and _sql_of(actual) == _sql_of(right):
        others = [name for name in roots if actual[name][-1] != roots[name]]
        if len(others) != 1:
            return  # the list is sound, or the log was compacted and no root can be judged alone
    else:
        same = sum(actual[name][-1] == roots[name] for name in roots if name in actual)
        if same < len(roots) - _MAX_LOST_ROOTS:
            roots = _own_roots(actual, roots) or roots
    _set_roots(fresh, roots)
    with path.open("rb") as file:
        before = file.read(log_schema.PAGE_SIZE)
    _put_list(path, fresh.read_bytes())
    _mend_header(path)
    if not _has_events(path):  # a wrong guess: no list is better than one that loses everything
        with path.open("r+b") as file:
            file.write(before)


def _put_list(path: Path, fresh: bytes) -> None:
    """Give the file the first page of a fresh log, and at its end the pages below that."""
    size = log_schema.PAGE_SIZE
    first, pages = bytearray(fresh[:size]), path.stat().st_size // size
    with path.open("r+b") as file:
        file.seek(pages * size)
        for at in _child_pointers(first):
            child = int.from_bytes(first[at : at + 4], "big")
            file.write(fresh[(child - 1) * size : child * size])
            pages += 1
            first[at : at + 4] = pages.to_bytes(4, "big")
        file.seek(0)
        file.write(first)


def _child_pointers(first: bytearray) -> list[int]:
    """Return where the first page names the pages right below it."""
    if first[_KIND] != _INTERIOR:
        return []
    end = _CELL_POINTERS + 2 * int.from_bytes(first[_CELLS], "big")
    cells = [int.from_bytes(first[at : at + 2], "big") for at in range(_CELL_POINTERS, end, 2)]
    return [*cells, _LAST_CHILD]


def _own_roots(actual: _List, right: dict[bytes, object]) -> dict[bytes, object]:
    """The roots that a broken list names; empty if they are ambiguous."""
    lost, strange = right.keys() - actual.keys(), actual.keys() - right.keys()
    if len(lost) != len(strange) or len(lost) > 1:
        return {}
    roots = {name: row[-1] for name, row in actual.items() if name in right}
    return roots | {name: actual[other][-1] for name, other in zip(lost, strange, strict=True)}


def _has_events(path: Path) -> bool:
    """Can events and their CARs be read by this list?"""
    with closing(sqlite3.connect(path)) as connection:
        try:
            first = connection.execute(
                "SELECT event_id, car FROM events NOT INDEXED JOIN cars USING (id) LIMIT 1"
            ).fetchone()
        except (sqlite3.Error, UnicodeDecodeError):
            return False
    return first is not None and all(isinstance(value, bytes) for value in first)


def _sql_of(rows: _List) -> dict[bytes, tuple[object, ...]]:
    return {name: row[:-1] for name, row in rows.items()}


def _read_list(path: Path) -> _List:
    """The list of tables as the file has it, even if broken; empty if it cannot be read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        try:
            connection.execute("PRAGMA writable_schema = ON")
            rows = connection.execute(
                "SELECT type, name, tbl_name, sql, rootpage FROM sqlite_schema"
            ).fetchall()
        except sqlite3.Error:
            return {}
    return {bytes(row[1]) if isinstance(row[1], bytes) else b"": row for row in rows}


def _set_roots(fresh: Path, roots: dict[bytes, object]) -> None:
    with closing(sqlite3.connect(fresh, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.executemany(
            "UPDATE sqlite_schema SET rootpage = ? WHERE name = ?",
            ((root, name.decode()) for name, root in roots.items()),
        )


def _mend_header(path: Path) -> None:
    """Rewrite the header as this program's files have it."""
    with path.open("r+b") as file:
        header = bytearray(file.read(_HEADER_SIZE))
        if len(header) < _HEADER_SIZE:
            return
        pages = path.stat().st_size // log_schema.PAGE_SIZE
        header[:16] = b"SQLite format 3\0"
        header[16:18] = log_schema.PAGE_SIZE.to_bytes(2, "big")
        header[18:20] = b"\2\2"  # WAL
        header[20:24] = bytes((0, 64, 32, 32))  # reserved bytes, and fixed payload fractions
        header[28:32] = pages.to_bytes(4, "big")
        header[32:40] = bytes(8)  # forget the free pages: nothing is written here
        header[44:48] = (4).to_bytes(4, "big")  # schema format
        header[52:56] = bytes(4)  # no auto-vacuum
        header[56:60] = (1).to_bytes(4, "big")  # UTF-8
        header[64:68] = bytes(4)  # no incremental vacuum
        header[72:92] = bytes(20)  # reserved
        header[92:96] = header[24:28]  # the page count is of the present version
        file.seek(0)
        file.write(header)
