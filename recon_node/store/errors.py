"""What goes wrong on this floor, told to people."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Final


class StoreError(Exception):
    """The event log cannot be opened, read or written. The message says why and what to do."""


class DiskFullError(StoreError):
    """The disk has no room: nothing is written, what is there can be read. It passes."""


class DamagedLogError(StoreError):
    """The event log is damaged; `recon-node store check --repair` saves what can be saved."""


class InvalidInterestError(ValueError):
    """An interest that names no range of keys."""


class DamagedRowError(Exception):
    """A row of the log says what the program never writes."""


REPAIR: Final = (
    "stop the node and run `recon-node store check --repair`, which saves what can be saved and "
    "keeps the damaged file; or put a backup in its place"
)

_SIGNS_OF_DAMAGE: Final = (
    "unsupported file format",  # of the header
    "no such ",  # table or column: the list of tables
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


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Make a `StoreError` for people out of what SQLite says about the file at `path`."""
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
    """Make a `StoreError` for people out of what the system says about the file at `path`."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"{path} cannot be written: {_FULL} ({error})")
    return StoreError(f"{path} cannot be used: {error}")


def damaged(path: Path, detail: str) -> DamagedLogError:
    """What to say of a damaged log."""
    return DamagedLogError(f"the event log {path} is damaged ({detail}): {REPAIR}")
