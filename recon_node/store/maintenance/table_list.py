"""The header and the list of tables of a damaged log, rebuilt as far as they are known.

The list of tables of a log is known in advance. It is a table itself, whose first page is the first
of the file. Where it has outgrown that, its rows are on pages below it, which may lie anywhere: new
ones are put at the end of the file.

Sources: https://www.sqlite.org/fileformat2.html, sections 1.3, 1.6 and 2.6;
https://www.sqlite.org/pragma.html#pragma_writable_schema, which allows reading a broken list.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from recon_node.store.db import log_schema
from recon_node.store.db.migrations import MIGRATIONS, migrate

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


def repair_table_list(path: Path, directory: Path) -> None:
    """Rewrite what differs from the files that this program writes."""
    _repair_header(path)  # without it nothing can be read
    _repair_list(path, directory / "fresh.sqlite3")


def _repair_list(path: Path, fresh: Path) -> None:
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
    _repair_header(path)
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


def _repair_header(path: Path) -> None:
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
