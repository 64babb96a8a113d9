"""What an interrupted sync has fetched and checked, so that the next one need not fetch it again.

Events that the node has admitted are not fetched again anyway. In between are the nodes of the tree
on the way to events that are still missing, and events that were fetched but not admitted yet. They
are in a file of SQLite in the data directory until they are no longer needed. What is in it is
checked like what a store sends, so it need not be right, and losing it costs only time: SQLite does
not wait for the disk, and a file that cannot be used is deleted. After `kill -9`, it has everything
that was put.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from recon_node.ipld import CID

log = structlog.get_logger(__name__)

FILE_NAME: Final = "snapshot-sync.sqlite3"
_NODE: Final = b"node "
_AT_ONCE: Final = 500
"""Names in one question."""


class Kept(Protocol):
    """Remembers what was read and checked, beyond the end of the process. Used by many threads."""

    def get(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return what it has of some names; the caller checks it again."""

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Remember data by their names."""


class NothingKept:
    """Remembers nothing."""

    def get(self, names: Sequence[bytes]) -> dict[bytes, bytes]:  # noqa: D102 - see Kept
        return {}

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:  # noqa: D102
        pass


def event_name(key: bytes) -> bytes:
    """Return the name under which an event is kept."""
    return b"event " + key


def node_name(root: CID, cid: bytes) -> bytes:
    """Return the name under which a node is kept: its locator is of one snapshot only."""
    return _NODE + root + cid


def is_node(name: bytes) -> bool:
    """Return whether this is the name of a node."""
    return name.startswith(_NODE)


class KeptFile:
    """A `Kept` in a data directory. Errors of the disk cost what it would have kept.

    Args:
        data_dir: of the node; the caller has its lock.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / FILE_NAME
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = self._open()
        except sqlite3.Error:
            self._delete()
            with suppress(sqlite3.Error):
                self._connection = self._open()

    def get(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return what it has of some names."""
        found: dict[bytes, bytes] = {}
        with self._lock:
            for start in range(0, len(names), _AT_ONCE):
                part = names[start : start + _AT_ONCE]
                marks = ",".join("?" * len(part))
                sql = f"SELECT name, data FROM kept WHERE name IN ({marks})"
                found.update(self._execute(sql, part))
        return found

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep data by their names; all are on their way to the disk when this returns."""
        with self._lock:
            self._run_many("INSERT OR REPLACE INTO kept VALUES (?, ?)", items)

    def drop(self, names: Iterable[bytes]) -> None:
        """Forget what is no longer needed."""
        with self._lock:
            self._run_many("DELETE FROM kept WHERE name = ?", [(name,) for name in names])

    def forget_other_roots(self, roots: Iterable[CID]) -> None:
        """Forget the nodes of snapshots other than these: they are not read any more."""
        with self._lock:
            names = [bytes(name) for (name,) in self._execute("SELECT name FROM kept", ())]
            heads = tuple(node_name(root, b"") for root in roots)
            old = [(name,) for name in names if is_node(name) and not name.startswith(heads)]
            self._run_many("DELETE FROM kept WHERE name = ?", old)

    def close(self, *, is_done: bool) -> None:
        """Close the file; delete it if nothing in it will be needed again."""
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None
            if is_done:
                self._delete()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE IF NOT EXISTS kept (name BLOB PRIMARY KEY, data BLOB)")
        return connection

    def _execute(self, sql: str, values: Sequence[bytes]) -> list[Any]:
        if self._connection is None:
            return []
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            self._give_up(error)
            return []

    def _run_many(self, sql: str, values: Sequence[tuple[bytes, ...]]) -> None:
        if self._connection is None:
            return
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany(sql, values)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: sqlite3.Error) -> None:
        log.warning(
            "An interrupted sync will fetch some objects again", file=str(self._path), reason=error
        )
        with suppress(sqlite3.Error):
            if self._connection is not None:
                self._connection.close()
        self._connection = None
        self._delete()

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(FILE_NAME + suffix).unlink(missing_ok=True)
