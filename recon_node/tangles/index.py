"""The index of tangles: which documents take part in which tangle, in `tangles.sqlite3`.

It has one row for each tangle that a document's init event names. All else about a message is in
its event, in the log.
"""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from recon_node.ceramic import CeramicError, StreamId, parse_event
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY
from recon_node.feed_index import FeedIndex, IndexFile, open_feed_index
from recon_node.ipld import CID
from recon_node.store import FeedRow, Store
from recon_node.tangles.documents import message_of

FILE: Final = IndexFile(
    subject="tangles",
    name="tangles.sqlite3",
    application_id=0x52454354,  # "RECT"
    version=2,
    tables="""
    CREATE TABLE candidates (
        root BLOB NOT NULL, name TEXT NOT NULL, message BLOB NOT NULL, received INTEGER,
        stream_id TEXT NOT NULL, author TEXT NOT NULL, model BLOB, size INTEGER NOT NULL,
        PRIMARY KEY (root, name, message)
    ) STRICT, WITHOUT ROWID
    """,
    of_the_log=("candidates",),
    sort_key=DEFAULT_SORT_KEY,
    marker=b"\x67tangles",  # the name of the field as DAG-CBOR has it
)


def take(connection: sqlite3.Connection, rows: Sequence[FeedRow]) -> int:
    """Add init events of documents to the index, within a transaction; none is ignored."""
    connection.executemany(
        "INSERT OR IGNORE INTO candidates VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [candidate for row in rows for candidate in _candidates(row)],
    )
    return 0


def _candidates(row: FeedRow) -> list[tuple[bytes | str | int | None, ...]]:
    try:
        message = message_of(parse_event(row.car))
    except CeramicError:  # of an earlier version, which took it
        return []
    if message is None:
        return []
    cid, model = message.id.cid, None if message.model is None else message.model.cid
    facts = (cid, row.delivered_at, str(message.id), message.author, model, len(row.car))
    return [
        (cid if links.root is None else StreamId.parse(links.root).cid, name, *facts)
        for name, links in message.tangles.items()
    ]


class Candidate(NamedTuple):
    """A document that names a tangle."""

    cid: CID
    """Of its init event."""
    received: int | None
    """When the node delivered it, in Unix milliseconds."""
    model: CID | None
    """Of the init event of its model; None: it names none."""
    size: int
    """Bytes of its init event."""


class Tangles:
    """What a node knows about tangles. Made by `open_tangles`; used from trio's thread only.

    Its methods raise `FeedIndexError` if the index cannot be read, or lags behind the feed.
    """

    def __init__(self, index: FeedIndex) -> None:
        self._index = index

    async def names(self, root: CID) -> dict[str, int]:
        """Return the tangles with a root, by name, and how many documents name each."""
        sql = "SELECT name, count(*) FROM candidates WHERE root = ? GROUP BY name ORDER BY name"
        return dict(await self._index.ask(lambda db: db.execute(sql, (root,)).fetchall()))

    async def all(
        self, after: tuple[bytes, str], limit: int
    ) -> list[tuple[CID, str, int, str | None]]:
        """Return the tangles in the order of their roots and names, how many documents name each,
        and the StreamID of the root if it is here; up to `limit` after a root and a name."""
        sql = (
            "SELECT root, name, count(*), max(CASE WHEN message = root THEN stream_id END) "
            "FROM candidates WHERE (root, name) > (?, ?) "
            "GROUP BY root, name ORDER BY root, name LIMIT ?"
        )
        rows = await self._index.ask(lambda db: db.execute(sql, (*after, limit)).fetchall())
        return [(CID(root), *facts) for root, *facts in rows]

    async def candidates(
        self, root: CID, name: str, limit: int, max_bytes: int
    ) -> tuple[list[Candidate], bool]:
        """Return the documents that name a tangle, and whether there are more.

        Anybody can name any tangle, so there may be any number of them, of any size. If not all
        find room, the root comes first, and what its author wrote. Of the others, half are those
        that came first; the other half is shared out among the authors. `max_bytes` is of their
        init events.
        """
        return await self._index.ask(partial(_read_candidates, root, name, limit, max_bytes))


@asynccontextmanager
async def open_tangles(store: Store, data_dir: Path) -> AsyncIterator[Tangles]:
    """Open the tangles of a store; their index is a separate file in the data directory.

    Raises:
        FeedIndexError: the index cannot be used.
    """
    async with open_feed_index(FILE, take, store, data_dir) as index:
        yield Tangles(index)


_BY_ARRIVAL: Final = """
    SELECT message, received, model, size FROM candidates WHERE root = ?1 AND name = ?2
    ORDER BY message <> ?1, author <> ?4, received, message LIMIT ?3
"""
_BY_AUTHORS: Final = """
    SELECT message, received, model, size FROM candidates WHERE root = ?1 AND name = ?2
    ORDER BY author <> ?4, row_number() OVER (PARTITION BY author ORDER BY received, message),
        received, message LIMIT ?3
"""


def _read_candidates(
    root: CID, name: str, limit: int, max_bytes: int, connection: sqlite3.Connection
) -> tuple[list[Candidate], bool]:
    sql = "SELECT count(*), sum(size), max(CASE WHEN message = ?1 THEN author END)"
    sql += " FROM candidates WHERE root = ?1 AND name = ?2"
    count, size, author = connection.execute(sql, (root, name)).fetchone()
    is_cut = count > limit or (size or 0) > max_bytes
    candidates: dict[CID, Candidate] = {}
    left = max_bytes
    for order, share in ((_BY_ARRIVAL, 2 if is_cut else 1), (_BY_AUTHORS, 1)):
        most, room = limit // share, max_bytes - max_bytes // share
        for row in connection.execute(order, (root, name, limit, author)):
            message, received, model, size = row
            of = None if model is None else CID(model)
            candidate = Candidate(CID(message), received, of, size)
            fits = len(candidates) < most and left - size >= room
            if fits and candidate.cid not in candidates:
                candidates[candidate.cid] = candidate
                left -= size
    return list(candidates.values()), is_cut
