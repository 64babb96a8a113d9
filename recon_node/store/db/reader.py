"""Reads beside the writer: WAL mode lets them see the latest commit and never wait for the next.

A few read-only connections, each used by one thread at a time; a limiter bounds both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import trio

from recon_node.store.db import schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.errors import StoreError, explained_errors

T = TypeVar("T")


class Reader:
    """A read-only connection, and the shared blocks that were read by it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.blocks = BlockReader(connection, remember=True)


class ReaderPool:
    """Answers questions about the log (`recon_node.store.db.questions`) in threads.

    Args:
        data_dir: where the log is.
        size: reads at once, at most.
    """

    def __init__(self, data_dir: Path, size: int) -> None:
        self._data_dir = data_dir
        self._path = data_dir / schema.FILE_NAME
        self._limiter = trio.CapacityLimiter(size)
        self._pages = trio.Lock()
        self._idle: list[Reader] = []
        self._closed = False

    async def ask(self, question: Callable[[Reader], T]) -> T:
        """Return the answer to a question.

        Raises:
            StoreError: the disk failed, or the pool is closed; and whatever the question raises.
        """
        if self._closed:
            raise StoreError("the store is closed")
        return await trio.to_thread.run_sync(self._ask, question, limiter=self._limiter)

    async def ask_for_page(self, question: Callable[[Reader], T]) -> T:
        """Do the same for a page of the feed, which takes long: one at a time.

        Otherwise many readers at full speed would keep the event loop, and the events that peers
        ask for, waiting for their turn.
        """
        async with self._pages:
            return await self.ask(question)

    async def close(self) -> None:
        """Close the connections. Reads under way, or queued, end first."""
        self._closed = True
        for _ in range(int(self._limiter.total_tokens)):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().connection.close()

    def _ask(self, question: Callable[[Reader], T]) -> T:
        with explained_errors(self._path):
            try:
                reader = self._idle.pop()
            except IndexError:
                reader = Reader(schema.open_reader(self._data_dir))
            try:
                answer = question(reader)
            except BaseException:
                reader.connection.close()  # its state is unknown; the next question opens another
                raise
            self._idle.append(reader)
            return answer
