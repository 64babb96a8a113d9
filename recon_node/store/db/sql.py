"""Two ways to run a statement that is too large for one go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

_CHUNK = 500


def select_in(
    connection: sqlite3.Connection, sql: str, values: Sequence[object]
) -> Iterator[tuple[Any, ...]]:
    """Run a statement whose `(?)` stands for a list of values; long lists are split."""
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        marks = ", ".join("?" * len(chunk))
        yield from connection.execute(sql.replace("(?)", f"({marks})"), chunk)


def read_in_pieces(
    connection: sqlite3.Connection, sql: str, rows: int, after: int = -(2**63)
) -> Iterator[list[tuple[Any, ...]]]:
    """Run `SELECT key, ... WHERE key > ? ... ORDER BY key LIMIT ?` until nothing is left.

    Yields at most `rows` rows at a time, with keys beyond `after`. Between two pieces no statement
    is open, so that the caller may write and memory stays bounded.
    """
    while piece := connection.execute(sql, (after, rows)).fetchall():
        yield piece
        after = piece[-1][0]
