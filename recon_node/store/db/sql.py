"""What all SQL of this floor shares."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

_CHUNK = 500


def select_in(
    connection: sqlite3.Connection, sql: str, values: Sequence[object]
) -> Iterator[tuple[Any, ...]]:
    """Run a statement whose `(?)` stands for a list of values; long lists go in pieces."""
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        marks = ", ".join("?" * len(chunk))
        yield from connection.execute(sql.replace("(?)", f"({marks})"), chunk)
