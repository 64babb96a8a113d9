"""How statements are run that are too large for one go or name events, and what SQLite reports.

EventIds and CIDs end with a sha2-256 digest. Indexes have its first bytes only (`short`): what is
found by these is then compared with the whole name.
"""

import errno
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

from recon_node.base.errors import reason_of
from recon_node.ceramic import EventIdError
from recon_node.ipld import IpldError
from recon_node.store.errors import (
    REPAIR,
    DamagedLogError,
    DamagedRowError,
    DiskFullError,
    StoreError,
)

_VALUES_PER_STATEMENT: Final = 500
"""Values of a list in one statement."""
CARS_AT_ONCE: Final = 500
"""Rows with CARs that are read at a time."""
MIGRATED_AT_ONCE: Final = 1000
"""Rows that a migration reads at a time."""
_ROWS_PER_STATEMENT: Final = 250
_LAST_ROWS: Final = 50
"""Rows that one statement inserts, and of the rest. Statements are remembered by their text, 128 of
them; one for another number of rows has to be compiled, which takes longer the more there are."""
MAX_REASON: Final = 500
"""Characters of a reason that are kept."""
_BUGS: Final = (
    sqlite3.IntegrityError,
    sqlite3.ProgrammingError,
    sqlite3.InterfaceError,
    sqlite3.DataError,
    sqlite3.NotSupportedError,
)
_SIGNS_OF_DAMAGE: Final = (
    "unsupported file format",  # of the header
    "no such ",  # table or column: the list of tables
    "unknown function",  # in the list of tables, too
    "malformed",
    "Could not decode to UTF-8",
)
_NO_ROOM: Final = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")
"""The second is about the file `-shm`, which the first to open a log makes."""
_FULL: Final = "the disk is full (or a quota is used up): free some space"
_ADVICE: Final = {
    "SQLITE_READONLY": "it cannot be written: check its permissions and the mount",
    "SQLITE_IOERR": "the disk answers with errors: check it and the system's log",
    "SQLITE_BUSY": "another program holds it locked: end that program",
    "SQLITE_LOCKED": "another program holds it locked: end that program",
    "SQLITE_CANTOPEN": "it cannot be opened: check who may write the file and its directory",
    "SQLITE_PERM": "it cannot be opened: check who may write the file and its directory",
}
_DIGEST: Final = 32
_SHORT: Final = 8
"""Bytes of a digest that indexes have."""


def short(name: bytes) -> bytes:
    """Return what indexes have of a CID, or of the CID in an EventId."""
    return name[-_DIGEST : _SHORT - _DIGEST]


def short_of(column: str) -> str:
    """Return the same of a column, in SQL."""
    return f"substr({column}, -{_DIGEST}, {_SHORT})"


blob: Final = bytearray
"""Makes a parameter of bytes. SQLite's module looks for an adapter of each one that is not of a few
types, bytearray among them: that takes 0.6 microseconds, and the copy 0.1. Of None it finds one."""
sqlite3.register_adapter(type(None), lambda none: none)


def insert_rows(
    connection: sqlite3.Connection, sql: str, rows: Iterable[tuple[object, ...]]
) -> None:
    """Run an `INSERT INTO ... VALUES` for many rows, some in one statement.

    A step of a statement opens its cursors anew, and gives up the interpreter's lock, which another
    thread may then keep for a while. So a statement for each row takes half as long again.
    """
    left = list(rows)
    while left:
        size = _ROWS_PER_STATEMENT if len(left) >= _ROWS_PER_STATEMENT else _LAST_ROWS
        part, left = left[:size], left[size:]
        marks = f"({', '.join('?' * len(part[0]))})"
        connection.execute(f"{sql} {', '.join([marks] * len(part))}", list(chain(*part)))


def select_in(
    connection: sqlite3.Connection, sql: str, values: Sequence[object], between: str = ", "
) -> Iterator[tuple[Any, ...]]:
    """Run a statement whose `(?)` stands for a list of values; long lists are split."""
    for start in range(0, len(values), _VALUES_PER_STATEMENT):
        chunk = values[start : start + _VALUES_PER_STATEMENT]
        marks = between.join("?" * len(chunk))
        yield from connection.execute(sql.replace("(?)", f"({marks})"), chunk)


def select_named(
    connection: sqlite3.Connection, sql: str, names: Sequence[bytes], column: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Run a statement whose `short_cid IN (?)` stands for a list of CIDs or EventIds.

    Args:
        connection: to the log.
        sql: may return rows of other events, too: they are dropped.
        names: the CIDs, or the EventIds.
        column: of the rows, in which their names are.
    """
    for start in range(0, len(names), _VALUES_PER_STATEMENT):
        chunk = names[start : start + _VALUES_PER_STATEMENT]
        wanted = set(chunk)
        for row in select_in(connection, sql, [*map(blob, {short(name) for name in chunk})]):
            if row[column] in wanted:
                yield row


def read_in_pieces(
    connection: sqlite3.Connection, sql: str, rows: int
) -> Iterator[list[tuple[Any, ...]]]:
    """Run `SELECT key, ... WHERE key > ? ... ORDER BY key LIMIT ?` until nothing is left.

    Yields at most `rows` rows at a time. Between two pieces no statement is open, so that the
    caller may write and memory stays bounded.
    """
    after = -(2**63)
    while piece := connection.execute(sql, (after, rows)).fetchall():
        yield piece
        after = piece[-1][0]


@contextmanager
def explained_errors(path: Path) -> Iterator[None]:
    """Raise what SQLite and the disk report about the file `path` as `StoreError`s.

    Misuse of SQLite (a broken constraint, say) is a bug of ours and is raised as it is.
    """
    try:
        yield
    except _BUGS:
        raise
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
            raise KeyboardInterrupt from None  # which a progress handler has met
        raise explain(error, path) from error
    except (DamagedRowError, EventIdError, IpldError, UnicodeDecodeError) as error:
        # Unicode: in the schema
        raise damaged(path, str(error)) from error
    except OSError as error:
        raise explain_os(error, path) from error


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return a `StoreError` that explains what SQLite reports about the file `path`."""
    name = getattr(error, "sqlite_errorname", None) or ""
    kind = "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
    detail = f"{error} [{name}]" if name else str(error)
    if name in _NO_ROOM:
        return DiskFullError(f"the event log {path}: {_FULL} ({detail})")
    if kind == "SQLITE_CORRUPT" or any(sign in str(error) for sign in _SIGNS_OF_DAMAGE):
        return damaged(path, detail)
    if kind == "SQLITE_NOTADB":
        return DamagedLogError(
            f"the event log {path} is not an SQLite database, or its header is damaged: if it is a "
            f"log, {REPAIR} ({detail})"
        )
    advice = _ADVICE.get(kind)
    if advice is None:
        return StoreError(f"the event log {path} failed: {detail}")
    return StoreError(f"the event log {path}: {advice} ({detail})")


def explain_os(error: OSError, path: Path) -> StoreError:
    """Return a `StoreError` that explains what the system reports about the file `path`."""
    path, reason = error.filename or path, reason_of(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path} cannot be written: {_FULL} ({reason})")
    return StoreError(f"{path} cannot be used: {reason}")


def damaged(path: Path, detail: str) -> DamagedLogError:
    """Return the error for a damaged log."""
    return DamagedLogError(f"the event log {path} is damaged ({detail}): {REPAIR}")
