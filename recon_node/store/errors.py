"""What goes wrong on this floor, explained to people."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from recon_node.ipld import CarError


class StoreError(Exception):
    """The event log cannot be opened, read or written. The message says why and what to do."""


class DiskFullError(StoreError):
    """The disk has no room: the log can be read, but not written, until there is some."""


class DamagedLogError(StoreError):
    """The event log is damaged; `recon-node store check --repair` saves what can be saved."""


class InvalidInterestError(ValueError):
    """An interest that does not name a range of keys."""


class UnknownTimeError(ValueError):
    """An earlier version delivered events around a time, and did not note when."""


class DamagedRowError(Exception):
    """A row of the log has values that this program never writes."""


REPAIR: Final = (
    "stop the node and run `recon-node store check --repair`, which saves what can be saved and "
    "keeps the damaged file; or restore a backup"
)

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
_FULL: Final = "the disk is full (or a quota is used up): free some space"
_ADVICE: Final = {
    "SQLITE_READONLY": "it cannot be written: check its permissions and the mount",
    "SQLITE_IOERR": "the disk answers with errors: check it and the system's log",
    "SQLITE_BUSY": "another program holds it locked: end that program",
    "SQLITE_LOCKED": "another program holds it locked: end that program",
    "SQLITE_CANTOPEN": "it cannot be opened: check the permissions of the file and its directory",
    "SQLITE_PERM": "it cannot be opened: check the permissions of the file and its directory",
}


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
        raise explain(error, path) from error
    except (CarError, DamagedRowError, UnicodeDecodeError) as error:  # Unicode: in the schema
        raise damaged(path, str(error)) from error
    except OSError as error:
        raise explain_os(error, path) from error


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Return a `StoreError` that explains what SQLite reports about the file `path`."""
    name = getattr(error, "sqlite_errorname", None) or ""
    kind = "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
    detail = f"{error} [{name}]" if name else str(error)
    if kind == "SQLITE_FULL":
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
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path} cannot be written: {_FULL} ({error})")
    return StoreError(f"{path} cannot be used: {error}")


def damaged(path: Path, detail: str) -> DamagedLogError:
    """Return the error for a damaged log."""
    return DamagedLogError(f"the event log {path} is damaged ({detail}): {REPAIR}")
