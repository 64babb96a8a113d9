"""The index of tangles: which documents take part in which tangle, in `tangles.sqlite3`.

It has one row for each tangle that a document's init event names. All else about a message is in
its event, in the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from recon_node.ceramic import CeramicError, StreamId, parse_event
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.feed_index import FeedIndex, IndexFile, open_feed_index
from recon_node.ipld import CID
from recon_node.store import FeedRow, Store
from recon_node.tangles.documents import message_of

_FIELD: Final = b"\x67tangles"
"""The name of the field as DAG-CBOR has it: few init events need to be parsed."""


class TanglesError(Exception):
    """The index of tangles cannot be used. The message is one user-facing line."""


FILE: Final = IndexFile(
    subject="tangles",
    name="tangles.sqlite3",
    application_id=0x52454354,  # "RECT"
    version=1,
    tables="""
    CREATE TABLE candidates (
        root BLOB NOT NULL, name TEXT NOT NULL, message BLOB NOT NULL, received INTEGER,
        PRIMARY KEY (root, name, message)
    ) STRICT, WITHOUT ROWID
    """,
    of_the_log=("candidates",),
    sort_key=DEFAULT_SORT_KEY,
    error=TanglesError,
)


def take(connection: sqlite3.Connection, rows: Sequence[FeedRow]) -> int:
    """Add init events of documents to the index, within a transaction; none is ignored."""
    connection.executemany(
        "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?)",
        [candidate for row in rows if _FIELD in row.car for candidate in _candidates(row)],
    )
    return 0


def _candidates(row: FeedRow) -> list[tuple[bytes, str, bytes, int | None]]:
    try:
        message = message_of(parse_event(row.car))
    except CeramicError:  # of an earlier version, which took it
        return []
    if message is None:
        return []
    cid = message.id.cid
    return [
        (cid if links.root is None else StreamId.parse(links.root).cid, name, cid, row.delivered_at)
        for name, links in message.tangles.items()
    ]


class Tangles:
    """What a node knows about tangles. Made by `open_tangles`; used from trio's thread only."""

    def __init__(self, index: FeedIndex) -> None:
        self._index = index

    async def names(self, root: CID) -> dict[str, int]:
        """Return the tangles with a root, by name, and how many documents name each.

        Args:
            root: the CID of the root document's init event.

        Raises:
            TanglesError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(_read_names, root))

    async def all(self, after: tuple[bytes, str], limit: int) -> list[tuple[CID, str, int]]:
        """Return the tangles in the order of their roots and names, and how many documents name
        each; those after a root and a name, at most `limit` of them.

        Raises:
            TanglesError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(_read_all, after, limit))

    async def candidates(self, root: CID, name: str, limit: int) -> dict[CID, int | None]:
        """Return the documents that name a tangle, as CIDs of their init events, and when each was
        received, in Unix milliseconds; at most `limit` of them.

        Raises:
            TanglesError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(_read_candidates, root, name, limit))


@asynccontextmanager
async def open_tangles(store: Store, data_dir: Path) -> AsyncIterator[Tangles]:
    """Open the tangles of a store; their index is a separate file in the data directory.

    Raises:
        TanglesError: the index cannot be used.
    """
    async with open_feed_index(FILE, take, store, data_dir) as index:
        yield Tangles(index)


def _read_names(root: CID, connection: sqlite3.Connection) -> dict[str, int]:
    sql = "SELECT name, count(*) FROM candidates WHERE root = ? GROUP BY name ORDER BY name"
    return dict(connection.execute(sql, (root,)).fetchall())


def _read_all(
    after: tuple[bytes, str], limit: int, connection: sqlite3.Connection
) -> list[tuple[CID, str, int]]:
    sql = (
        "SELECT root, name, count(*) FROM candidates WHERE (root, name) > (?, ?) "
        "GROUP BY root, name ORDER BY root, name LIMIT ?"
    )
    rows = connection.execute(sql, (*after, limit))
    return [(CID(root), name, count) for root, name, count in rows]


def _read_candidates(
    root: CID, name: str, limit: int, connection: sqlite3.Connection
) -> dict[CID, int | None]:
    sql = "SELECT message, received FROM candidates WHERE root = ? AND name = ? LIMIT ?"
    return {
        CID(message): received for message, received in connection.execute(sql, (root, name, limit))
    }
