"""What goes wrong on this floor, told to people."""

from __future__ import annotations

import sqlite3
from pathlib import Path


class StoreError(Exception):
    """The event log cannot be opened, read or written. The message says why and what to do."""


class InvalidInterestError(ValueError):
    """An interest that names no range of keys."""


_ADVICE = {
    "SQLITE_FULL": "the disk is full (or a quota is used up): free some space",
    "SQLITE_READONLY": "it cannot be written: check its permissions and the mount",
    "SQLITE_IOERR": "the disk answers with errors: check it and the system's log",
    "SQLITE_CORRUPT": "it is damaged: put a backup in its place, or move it away to start anew "
    "(peers will send their events again; events that only this node had are lost)",
    "SQLITE_NOTADB": "it is no SQLite database: move it away, or choose another data directory",
    "SQLITE_BUSY": "another program holds it locked: end that program",
    "SQLITE_LOCKED": "another program holds it locked: end that program",
    "SQLITE_CANTOPEN": "it cannot be opened: check the permissions of the file and its directory",
    "SQLITE_PERM": "it cannot be opened: check the permissions of the file and its directory",
}


def explain(error: sqlite3.Error, path: Path) -> StoreError:
    """Make a `StoreError` for people out of what SQLite says about the file at `path`."""
    name = getattr(error, "sqlite_errorname", None) or ""
    kind = "_".join(name.split("_")[:2])  # SQLITE_IOERR_WRITE is a kind of SQLITE_IOERR
    advice = _ADVICE.get(kind)
    detail = f"{error} [{name}]" if name else str(error)
    if advice is None:
        return StoreError(f"the event log {path} failed: {detail}")
    return StoreError(f"the event log {path}: {advice} ({detail})")
