"""The questions about the log, and the threads that answer them beside the writer.

WAL mode lets readers see the latest commit and never wait for the next. There are a few read-only
connections, each used by one thread at a time; a limiter bounds both.

Whoever asks and is cancelled waits for the thread, whose connection nobody else may use meanwhile.
So the thread looks at times whether the question was given up: a shutdown does not wait until the
keys of a large log are read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Coroutine, Iterable
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import trio

from recon_node.ceramic import Network
from recon_node.ipld import CID
from recon_node.store.damage import Damage, DamagedEventError
from recon_node.store.db.log_schema import FILE_NAME
from recon_node.store.db.sql import explained_errors
from recon_node.store.errors import StoreError
from recon_node.store.reading import (
    Reader,
    backlog,
    columns,
    feed_rows,
    ring_index,
    single_events,
    stream_lists,
)
from recon_node.store.reading.block_index import BlockIndex, read_block

_STEPS: Final = 100_000
"""Steps of SQLite's machine, a few milliseconds, after which a read looks whether to go on."""

P = ParamSpec("P")
T = TypeVar("T")


def _asked(
    question: Callable[Concatenate[Reader, P], T], *, page: bool = False
) -> Callable[Concatenate[LogReader, P], Coroutine[Any, Any, T]]:
    """Return the method that has a question answered.

    A `page` of the feed or of a list takes long, and is read while no other is. Otherwise many
    readers at full speed would keep the event loop, and the events that peers ask for, waiting for
    their turn.
    """

    async def method(self: LogReader, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def answer(reader: Reader) -> T:
            return question(reader, *args, **kwargs)

        if not page:
            return await self.ask(answer)
        async with self._pages:
            return await self.ask(answer)

    return wraps(question)(method)


class LogReader:
    """Answers questions about the log in threads. Used from trio's thread.

    All questions raise `StoreError` if the disk failed or the store is closed. What they find
    damaged is noted, whether they raise `DamagedEventError` or answer without it. `size` is the
    most reads at once; `native` says whether the native core may look at events.

    Attributes:
        head: the last position of the feed that may be shown.
        on_damage: is called with the damaged events that questions meet.
    """

    car = _asked(single_events.read_car)
    cars = _asked(single_events.read_cars)
    cars_for_peers = _asked(single_events.read_cars_for_peers)
    cars_by_cid = _asked(single_events.read_cars_by_cid)
    event_ids = _asked(single_events.read_event_ids)
    stream_of = _asked(single_events.read_stream_of)
    stream_headers = _asked(single_events.read_stream_headers)
    own_streams = _asked(single_events.read_own_streams)
    pending_proofs = _asked(single_events.read_pending_proofs)

    feed = _asked(feed_rows.read_feed, page=True)
    feed_columns = _asked(columns.read_columns, page=True)
    columns_of = _asked(columns.read_columns_of, page=True)
    positions = _asked(feed_rows.read_positions, page=True)
    sort_key = _asked(feed_rows.read_sort_key)
    keys = _asked(feed_rows.read_keys, page=True)

    signed_events = _asked(feed_rows.read_signed)
    time_statements = _asked(feed_rows.read_time_statements)
    time_events = _asked(feed_rows.read_time_events)
    time_copies = _asked(feed_rows.read_time_copies)
    undelivered_times = _asked(feed_rows.read_undelivered_times)
    undelivered_events = _asked(feed_rows.read_undelivered)

    streams = _asked(stream_lists.read_streams, page=True)
    streams_with = _asked(stream_lists.read_streams_with, page=True)
    models = _asked(stream_lists.read_models, page=True)
    count_streams = _asked(stream_lists.count_streams)
    sort_values = _asked(stream_lists.read_sort_values)
    names_of = _asked(stream_lists.names_of)
    find_events = _asked(stream_lists.find_events)
    find_streams = _asked(stream_lists.find_streams, page=True)
    find_models = _asked(stream_lists.find_models, page=True)
    streams_of = _asked(stream_lists.streams_of, page=True)
    stream_ids = _asked(stream_lists.stream_ids)

    waiting = _asked(backlog.read_waiting)
    pending = _asked(backlog.read_pending)
    refused = _asked(backlog.read_refused)
    progress = _asked(backlog.read_progress)
    hindrances = _asked(backlog.count_hindrances)
    ring_keys = _asked(ring_index.read_ring_keys)

    def __init__(
        self,
        data_dir: Path,
        network: Network,
        epoch: str,
        head: int,
        size: int,
        *,
        native: bool = True,
    ) -> None:
        self.head = head
        self._native = native
        self.on_damage: Callable[[Iterable[Damage]], None] = lambda damage: None
        self._data_dir = data_dir
        self._network = network
        self._limiter = trio.CapacityLimiter(size)
        self._pages = trio.Lock()
        self._idle: list[Reader] = []
        self._closed = False
        self._blocks = BlockIndex(data_dir, epoch)
        self._blocks_turn = trio.Lock()

    async def block(self, cid: CID) -> bytes | None:
        """Return a block of an event, delivered or not; None when it is not here.

        The index of blocks is brought up to date if need be. Nothing is lost when the call is
        cancelled meanwhile: the next one continues.

        Raises:
            DamagedEventError: the event is damaged, or one that has to be read first.
        """
        block = await self.ask(partial(read_block, cid=cid))
        async with self._blocks_turn:
            if block is None:
                block = await self.ask(partial(self._blocks.find, cid=cid))
            if block is None:
                while not await self.ask(self._blocks.advance):
                    pass
                block = await self.ask(partial(self._blocks.find, cid=cid))
        return block

    async def ask(self, question: Callable[[Reader], T]) -> T:
        """Return the answer to a question.

        Raises:
            StoreError: the disk failed, or the store is closed; and whatever the question raises.
        """
        if self._closed:
            raise StoreError("the store is closed")
        try:
            answered: tuple[T, list[Damage]] = await trio.to_thread.run_sync(
                self._answer, question, self.head, limiter=self._limiter
            )
        except DamagedEventError as error:
            self.on_damage(error.found)
            raise
        answer, damaged = answered
        if damaged:
            self.on_damage(damaged)
        return answer

    async def close(self) -> None:
        """Close the connections. Reads that nobody gave up end first."""
        self._closed = True
        for _ in range(int(self._limiter.total_tokens)):
            await self._limiter.acquire_on_behalf_of(object())
        while self._idle:
            self._idle.pop().connection.close()
        self._blocks.close()

    def _answer(self, question: Callable[[Reader], T], head: int) -> tuple[T, list[Damage]]:
        with explained_errors(self._data_dir / FILE_NAME):
            try:
                reader = self._idle.pop()
            except IndexError:
                reader = Reader(self._data_dir, self._network, native=self._native)
                reader.connection.set_progress_handler(_is_given_up, _STEPS)
            reader.head, reader.damaged = head, []
            try:
                answer = question(reader)
            except BaseException as error:
                reader.connection.close()  # its state is unknown; the next question opens another
                if isinstance(error, sqlite3.OperationalError):
                    trio.from_thread.check_cancelled()  # this is why, if it was
                raise
            damaged = reader.damaged
            self._idle.append(reader)
            return answer, damaged


def _is_given_up() -> bool:
    """Whether the task that asked was cancelled; asked in the thread that reads."""
    try:
        trio.from_thread.check_cancelled()
    except trio.Cancelled:
        return True
    return False
