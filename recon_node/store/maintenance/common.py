"""What the upkeep commands share: opening a log that must be there, and telling of progress."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from recon_node.ceramic import Network, NetworkError
from recon_node.store.db import schema
from recon_node.store.db.replacement import finish_replacement
from recon_node.store.errors import DamagedLogError, StoreError, damaged

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and of how much (None: not known)."""


def no_progress(step: str, done: int, total: int | None) -> None:
    """Tell nobody."""


def find_log(data_dir: Path) -> Path:
    """The file of the directory's log.

    Raises:
        StoreError: there is none.
    """
    path = data_dir / schema.FILE_NAME
    with schema.told_to_people(path):
        finish_replacement(path)
        if not path.exists():
            raise StoreError(
                f"there is no event log in {data_dir}: name the data directory of a node by "
                "--data-dir"
            )
    return path


def network_of(path: Path) -> Network:
    """The network whose events a log holds.

    Raises:
        DamagedLogError: the log cannot say it.
        StoreError: the file cannot be read.
    """
    # For writing: what a killed process left half-done is taken back by whoever opens the file.
    with schema.told_to_people(path), closing(sqlite3.connect(path)) as connection:
        try:
            stored = schema.read_meta(connection, "network_id")
            return Network.from_id(int(stored or ""))
        except (ValueError, NetworkError) as error:
            raise damaged(path, f"its network is not to be read: {error}") from error


@contextmanager
def opened_log(data_dir: Path) -> Iterator[sqlite3.Connection]:
    """The log of a directory, for writing, brought to this version and checked as a node does.

    Raises:
        StoreError: there is none, or a node would not start on it either.
    """
    path = find_log(data_dir)
    connection = schema.open_database(data_dir, network_of(path), "full")
    with schema.told_to_people(path), closing(connection):
        yield connection


__all__ = ["DamagedLogError", "Progress", "find_log", "network_of", "no_progress", "opened_log"]
