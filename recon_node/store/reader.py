"""Reads beside the writer: WAL mode lets them see the latest commit and never wait for the next.

A few read-only connections, each used by one thread at a time; a limiter bounds both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from recon_node.ceramic import EventId, EventKind, Network
from recon_node.ipld import CID
from recon_node.store import schema
from recon_node.store.anchors import pending_proofs
from recon_node.store.blocks import BlockReader
from recon_node.store.errors import StoreError
from recon_node.store.feed_filter import FeedFilter
from recon_node.store.model import FeedColumns, FeedRow, PendingProof
from recon_node.store.packing import full_size
from recon_node.store.records import Stream
from recon_node.store.sql import select_in

T = TypeVar("T")

_LAST = 2**63 - 1  # the greatest integer that SQLite has


class _Connection:
    """A read-only connection, and the shared blocks that were read by it."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self.raw = raw
        self.execute = raw.execute
        self.close = raw.close
        self.blocks = BlockReader(raw, remember=True)

    def select_in(self, sql: str, values: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """See `sql.select_in`."""
        return select_in(self.raw, sql, values)


class ReaderPool:
    """Answers questions about the log, in threads.

    Every method raises `StoreError` when the disk fails or the pool is closed.
    """

    def __init__(self, data_dir: Path, size: int) -> None:
        self._data_dir = data_dir
        self._path = data_dir / schema.FILE_NAME
        self._limiter = trio.CapacityLimiter(size)
        # Pages of the feed are long work: one at a time, or many readers at full speed would keep
        # the event loop, and the events that peers ask for, waiting for their turn.
        self._pages = trio.Lock()
        self._idle: list[_Connection] = []
        self._closed = False

    async def car(self, cid: CID) -> bytes | None:
        """The CAR of an event."""
        return await self._run(partial(_car, cid))

    async def cars(self, event_ids: Sequence[EventId]) -> list[bytes | None]:
        """The CARs of some EventIds, in their order."""
        return await self._run(partial(_cars, event_ids))

    async def feed(self, after: int, limit: int, upto: int, max_bytes: int | None) -> list[FeedRow]:
        """At most `limit` delivered events of the positions (after, upto], in order."""
        async with self._pages:
            return await self._run(partial(_feed, after, limit, upto, max_bytes))

    async def columns(
        self,
        after: int,
        limit: int,
        upto: int,
        max_bytes: int,
        wanted: FeedFilter,
        network: Network,
    ) -> FeedColumns:
        """At most `limit` delivered events of the positions (after, upto] that are wanted."""
        where = wanted.where(network)
        async with self._pages:
            return await self._run(partial(_columns, after, limit, upto, max_bytes, where))

    async def stream(
        self, init: CID, upto: int, limit: int | None, max_bytes: int | None
    ) -> list[FeedRow]:
        """At most `limit` events of the stream that `init` starts, of the positions up to `upto`,
        in feed order.
        """
        return await self._run(partial(_stream, init, upto, limit, max_bytes))

    async def stream_header(self, init: CID) -> Stream | None:
        """What the init event of a stream says in its header; None when it is not here."""
        return await self._run(partial(_stream_header, init))

    async def sort_key(
        self, sort_key: str, after: int, upto: int, limit: int, max_bytes: int
    ) -> list[FeedRow]:
        """At most `limit` init events with that sort key of the positions (after, upto]."""
        return await self._run(partial(_sort_key, sort_key, after, upto, limit, max_bytes))

    async def pending_proofs(self, chain_id: str | None, limit: int) -> list[PendingProof]:
        """The proofs that await their lookup: first those due first."""
        return await self._run(partial(_pending_proofs, chain_id, limit))

    async def close(self) -> None:
        """Close what is open. Reads under way, or queued, end first."""
        self._closed = True
        for _ in range(int(self._limiter.total_tokens)):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().close()

    async def _run(self, question: Callable[[_Connection], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await trio.to_thread.run_sync(self._ask, question, limiter=self._limiter)

    def _ask(self, question: Callable[[_Connection], T]) -> T:
        with schema.told_to_people(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = _Connection(schema.open_reader(self._data_dir))
            try:
                answer = question(connection)
            except BaseException:
                connection.close()  # its state is unknown; the next question opens another
                raise
            self._idle.append(connection)
            return answer


def _car(cid: CID, connection: _Connection) -> bytes | None:
    row = connection.execute(
        "SELECT car FROM events JOIN cars USING (id) WHERE cid = ? LIMIT 1", (cid,)
    ).fetchone()
    return None if row is None else connection.blocks.restore(row)[0]


def _cars(event_ids: Sequence[EventId], connection: _Connection) -> list[bytes | None]:
    sql = "SELECT event_id, car FROM events JOIN cars USING (id) WHERE event_id IN (?)"
    stored = dict(connection.select_in(sql, event_ids))
    found = dict(zip(stored, connection.blocks.restore(list(stored.values())), strict=True))
    return [found.get(event_id) for event_id in event_ids]


def _pending_proofs(
    chain_id: str | None, limit: int, connection: _Connection
) -> list[PendingProof]:
    return pending_proofs(chain_id, limit, connection.raw)


_ROWS = (
    "SELECT position, event_id, cid, init_cid, kind, car, block_time, chain_id "
    "FROM events CROSS JOIN cars USING (id) "
    "LEFT JOIN anchors ON kind = 'time' AND anchors.event = events.id "
    "LEFT JOIN proofs USING (proof) "
)


_COLUMNS = (
    "SELECT position, event_id, cid, init_cid, kind, car FROM events CROSS JOIN cars USING (id) "
)
"""As `_ROWS`, without what most events do not have: to look for it costs them a quarter."""

_ANCHORS = (
    "SELECT position, block_time, chain_id FROM events "
    "CROSS JOIN anchors ON anchors.event = events.id CROSS JOIN proofs USING (proof) "
    "WHERE position IN (?)"
)


def _feed(
    after: int,
    limit: int,
    upto: int,
    max_bytes: int | None,
    connection: _Connection,
) -> list[FeedRow]:
    rows = connection.execute(
        _ROWS + "WHERE position > ? AND position <= ? ORDER BY position LIMIT ?",
        (min(after, _LAST), upto, min(limit, _LAST)),
    )
    return _collect(rows, max_bytes, connection.blocks)


def _columns(
    after: int,
    limit: int,
    upto: int,
    max_bytes: int,
    where: tuple[str, list[object]],
    connection: _Connection,
) -> FeedColumns:
    terms, values = where
    rows = connection.execute(
        _COLUMNS + f"WHERE position > ? AND position <= ? {terms}ORDER BY position LIMIT ?",
        (after, upto, *values, limit),
    )
    values_of_rows: list[Any] = []  # not tuples: so many set off the garbage collector
    for row in _up_to(rows, max_bytes):
        values_of_rows += row
    positions, event_ids, cids, inits, kinds, cars = (values_of_rows[n::6] for n in range(6))
    restored = connection.blocks.restore(cars)
    times, chains = _anchors(positions, kinds, connection)
    return FeedColumns(positions, event_ids, cids, inits, kinds, restored, times, chains)


def _anchors(
    positions: Sequence[int], kinds: Sequence[str], connection: _Connection
) -> tuple[Sequence[int | None], Sequence[str | None]]:
    """The block times and the chains of these delivered events; both are settled for ever."""
    none = (None,) * len(positions)
    time_event = EventKind.TIME.value
    if time_event not in kinds:
        return none, none
    anchored = [at for at, kind in zip(positions, kinds, strict=True) if kind == time_event]
    found = {at: (time, chain) for at, time, chain in connection.select_in(_ANCHORS, anchored)}
    times, chains = zip(*(found.get(each, (None, None)) for each in positions), strict=True)
    return times, chains


def _sort_key(
    sort_key: str, after: int, upto: int, limit: int, max_bytes: int, connection: _Connection
) -> list[FeedRow]:
    rows = connection.execute(
        "SELECT position, event_id, cid, init_cid, kind, car, NULL, NULL FROM events "
        "CROSS JOIN streams USING (init_cid) CROSS JOIN cars USING (id) "
        "WHERE position > ? AND position <= ? AND kind = 'init' AND sep_key = ? "
        "ORDER BY position LIMIT ?",
        (after, upto, sort_key, limit),
    )
    return _collect(rows, max_bytes, connection.blocks)


def _stream(
    init: CID, upto: int, limit: int | None, max_bytes: int | None, connection: _Connection
) -> list[FeedRow]:
    rows = connection.execute(
        _ROWS + "WHERE init_cid = ? AND position <= ? ORDER BY position LIMIT ?",
        (init, upto, -1 if limit is None else min(limit, _LAST)),
    )
    return _collect(rows, max_bytes, connection.blocks)


def _stream_header(init: CID, connection: _Connection) -> Stream | None:
    row = connection.execute(
        "SELECT controller, sep_key, sep_value FROM streams WHERE init_cid = ?", (init,)
    ).fetchone()
    return None if row is None else Stream(init, *row)


def _up_to(rows: sqlite3.Cursor, max_bytes: int | None) -> Iterator[tuple[Any, ...]]:
    """The rows up to the one that takes their CARs to `max_bytes`."""
    size = 0
    with closing(rows):  # a statement that is not at its end would hold on to its view of the log
        for row in rows:
            yield row
            car = row[5]
            size += len(car) if car[:1] != b"\0" else full_size(car)  # a call only where it must
            if max_bytes is not None and size >= max_bytes:
                break


def _collect(rows: sqlite3.Cursor, max_bytes: int | None, blocks: BlockReader) -> list[FeedRow]:
    """The events up to the one that takes the CARs to `max_bytes`."""
    found = list(_up_to(rows, max_bytes))
    cars = blocks.restore([row[5] for row in found])
    return [
        FeedRow(
            position,
            EventId(event_id),
            CID(cid),
            CID(init),
            EventKind(kind),
            car,
            block_time,
            chain_id,
        )
        for (position, event_id, cid, init, kind, _, block_time, chain_id), car in zip(
            found, cars, strict=True
        )
    ]
