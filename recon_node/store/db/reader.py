"""Reads beside the writer: WAL mode lets them see the latest commit and never wait for the next.

A few read-only connections, each used by one thread at a time; a limiter bounds both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from recon_node.ceramic import EventId, Network
from recon_node.ipld import CID
from recon_node.store.admission.records import Stream
from recon_node.store.damage.detection import Damage
from recon_node.store.db import questions, schema
from recon_node.store.db.feed_filter import FeedFilter
from recon_node.store.db.questions import Reader
from recon_node.store.errors import StoreError
from recon_node.store.values import FeedColumns, FeedRow, PendingProof

T = TypeVar("T")


class ReaderPool:
    """Answers questions about the log, in threads.

    Every method raises `StoreError` when the disk fails or the pool is closed, and all but `cars`
    raise `DamagedEventError` where an event that is asked for is damaged: every CAR is checked
    before it leaves the thread that has read it.
    """

    def __init__(self, data_dir: Path, size: int) -> None:
        self._data_dir = data_dir
        self._path = data_dir / schema.FILE_NAME
        self._limiter = trio.CapacityLimiter(size)
        # Pages of the feed are long work: one at a time, or many readers at full speed would keep
        # the event loop, and the events that peers ask for, waiting for their turn.
        self._pages = trio.Lock()
        self._idle: list[Reader] = []
        self._closed = False

    async def car(self, cid: CID) -> bytes | None:
        """The CAR of an event."""
        return await self._run(partial(questions.read_car, cid))

    async def cars(
        self, event_ids: Sequence[EventId]
    ) -> tuple[list[bytes | None], Sequence[Damage]]:
        """The CARs of some EventIds, in their order, and which of them are damaged: None, too."""
        return await self._run(partial(questions.read_cars, event_ids))

    async def feed(self, after: int, limit: int, upto: int, max_bytes: int | None) -> list[FeedRow]:
        """At most `limit` delivered events of the positions (after, upto], in order."""
        async with self._pages:
            return await self._run(partial(questions.read_feed, after, limit, upto, max_bytes))

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
            return await self._run(
                partial(questions.read_columns, after, limit, upto, max_bytes, where)
            )

    async def stream(
        self, init: CID, upto: int, limit: int | None, max_bytes: int | None
    ) -> list[FeedRow]:
        """At most `limit` events of the stream that `init` starts, of the positions up to `upto`,
        in feed order.
        """
        return await self._run(partial(questions.read_stream, init, upto, limit, max_bytes))

    async def stream_header(self, init: CID) -> Stream | None:
        """What the init event of a stream says in its header; None when it is not here."""
        return await self._run(partial(questions.read_stream_header, init))

    async def sort_key(
        self, sort_key: str, after: int, upto: int, limit: int, max_bytes: int
    ) -> list[FeedRow]:
        """At most `limit` init events with that sort key of the positions (after, upto]."""
        return await self._run(
            partial(questions.read_sort_key, sort_key, after, upto, limit, max_bytes)
        )

    async def pending_proofs(self, chain_id: str | None, limit: int) -> list[PendingProof]:
        """The proofs that await their lookup: first those due first."""
        return await self._run(partial(questions.read_pending_proofs, chain_id, limit))

    async def close(self) -> None:
        """Close what is open. Reads under way, or queued, end first."""
        self._closed = True
        for _ in range(int(self._limiter.total_tokens)):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().close()

    async def _run(self, question: Callable[[Reader], T]) -> T:
        if self._closed:
            raise StoreError("the store is closed")
        return await trio.to_thread.run_sync(self._ask, question, limiter=self._limiter)

    def _ask(self, question: Callable[[Reader], T]) -> T:
        with schema.told_to_people(self._path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = Reader(schema.open_reader(self._data_dir))
            try:
                answer = question(connection)
            except BaseException:
                connection.close()  # its state is unknown; the next question opens another
                raise
            self._idle.append(connection)
            return answer
