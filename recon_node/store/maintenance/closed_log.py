"""The log of a stopped node: opened, summarized, compacted.

Compacting writes a new file beside the old one, so it needs as much room again. The new file
replaces the old one when it is complete: a process that is killed leaves the one or the other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from recon_node.ceramic import Network, NetworkError
from recon_node.store.admission.records import State
from recon_node.store.db import schema
from recon_node.store.db.blocks import references
from recon_node.store.db.schema import finish_replacement, replace_log
from recon_node.store.db.sql import damaged, explained_errors, read_in_pieces
from recon_node.store.errors import StoreError

Progress = Callable[[str, int, int | None], None]
"""Called with the current step, how much of it is done, and of how much (None: unknown)."""

_PIECE_ROWS: Final = 10_000


def no_progress(step: str, done: int, total: int | None) -> None:
    """A `Progress` that nobody watches."""


class ClosedLog(NamedTuple):
    """The log of a stopped node, opened by a maintenance command."""

    path: Path
    network: Network
    connection: sqlite3.Connection


def find_log(data_dir: Path) -> Path:
    """Return the file of the directory's log.

    Raises:
        StoreError: there is none.
    """
    path = data_dir / schema.FILE_NAME
    with explained_errors(path):
        finish_replacement(path)
        if not path.exists():
            raise StoreError(
                f"there is no event log in {data_dir}: name a node's data directory with --data-dir"
            )
    return path


@contextmanager
def opened_log(data_dir: Path) -> Iterator[ClosedLog]:
    """Open the log of a directory for writing, migrated and checked as a node does.

    Raises:
        StoreError: there is none, or a node would not start on it either.
    """
    path = find_log(data_dir)
    network = network_of(path)
    connection = schema.open_database(data_dir, network, "full")
    with explained_errors(path), closing(connection):
        yield ClosedLog(path, network, connection)


def network_of(path: Path) -> Network:
    """Return the network of a log.

    Raises:
        StoreError: it cannot be read.
    """
    # For writing: whoever opens the file rolls back what a killed process left unfinished.
    with explained_errors(path), closing(sqlite3.connect(path)) as connection:
        try:
            stored = schema.read_meta(connection, "network_id")
            return Network.from_id(int(stored or ""))
        except (ValueError, NetworkError) as error:
            raise damaged(path, f"its network cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class LogInfo:
    """A log in a few numbers; sizes in bytes."""

    path: Path
    network: Network
    schema: int
    epoch: str
    events: int
    head: int
    waiting: int
    pending: int
    shared_blocks: int
    refused: int
    size: int
    free: int
    """The part of `size` that is free for new events; `compact` returns it to the disk."""


def read_info(data_dir: Path) -> LogInfo:
    """Summarize the log of a directory.

    Raises:
        StoreError: there is no log, or it cannot be opened.
    """
    with opened_log(data_dir) as log:

        def number(sql: str) -> int:
            return int(log.connection.execute(sql).fetchone()[0])

        undelivered = "SELECT count(*) FROM events WHERE position IS NULL AND state"
        page_size = number("PRAGMA page_size")
        return LogInfo(
            path=log.path,
            network=log.network,
            schema=number("PRAGMA user_version"),
            epoch=schema.read_meta(log.connection, "epoch") or "",
            events=number("SELECT count(*) FROM events"),
            head=number("SELECT coalesce(max(position), 0) FROM events WHERE position IS NOT NULL"),
            waiting=number(f"{undelivered} < {State.PENDING}"),
            pending=number(f"{undelivered} = {State.PENDING}"),
            shared_blocks=number("SELECT count(*) FROM blocks"),
            refused=number("SELECT count(*) FROM refused"),
            size=number("PRAGMA page_count") * page_size,
            free=number("PRAGMA freelist_count") * page_size,
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of `compact_log`; sizes of the file in bytes."""

    before: int
    after: int
    blocks_removed: int


def compact_log(data_dir: Path, progress: Progress = no_progress) -> Compacted:
    """Rewrite the log of a directory without free pages and blocks that no event refers to.

    Raises:
        StoreError: there is no log, it is damaged, or it cannot be written.
    """
    with opened_log(data_dir) as log:
        path = log.path
        new = path.with_name(f"{path.name}.compact")
        removed = remove_unused_blocks(log.connection, progress)
        log.connection.execute("PRAGMA journal_mode = DELETE")  # merges the write-ahead log
        before = path.stat().st_size
        for leftover in (new, path.with_name(f"{new.name}-journal")):
            leftover.unlink(missing_ok=True)
        progress("writing the new file", 0, None)
        log.connection.execute("VACUUM INTO ?", (str(new),))
    with explained_errors(path):
        after = new.stat().st_size
        replace_log(path, new)
    return Compacted(before, after, removed)


def remove_unused_blocks(connection: sqlite3.Connection, progress: Progress) -> int:
    """Delete the shared blocks that no event refers to; return how many."""
    used: set[int] = set()
    (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM cars").fetchone()
    packed = (
        "SELECT id, car FROM cars WHERE id > ? AND substr(car, 1, 1) = x'00' ORDER BY id LIMIT ?"
    )
    for rows in read_in_pieces(connection, packed, _PIECE_ROWS):
        used.update(block for _, car in rows for block in references(car))
        progress("looking for unused blocks", rows[-1][0], last)
    blocks = connection.execute("SELECT id FROM blocks")
    unused = [(block,) for (block,) in blocks if block not in used]
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM blocks WHERE id = ?", unused)
    connection.execute("COMMIT")
    return len(unused)
