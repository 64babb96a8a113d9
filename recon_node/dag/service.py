"""The DAGs of a node: the index follows the feed, and answers questions about them.

Theory of operation. Shards and operations come as events (`dag.events`), by this node's clients or
by Recon from peers, and are delivered to the feed as all events are. `Dags` reads the feed on, and
takes into its index (`dag.index`) what has the sort key "dag"; nothing else is touched. Each step
is one transaction together with the position reached, so that after a kill at any moment it goes on
where it was. A question first waits until the index is where the feed was when it was asked.
"""

from __future__ import annotations

import sqlite3
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from recon_node.dag import containment, index, schema, state
from recon_node.dag.containment import Containment
from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.dag.events import SORT_KEY, Identifier, read_dag_event
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.state import DagState, Place, Publication
from recon_node.ipld import CID, IDENTITY, car, varint
from recon_node.store import FeedRow, Store, StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_WINDOW: Final = 20_000
"""Positions of the feed that are looked through in one step."""
_EVENTS: Final = 64
_BYTES: Final = 4 * 1024 * 1024
_PAUSE: Final = 5.0
"""Seconds until the next try, when the disk did not take a step."""
_GATHER: Final = 0.02
"""Seconds between two looks at a feed that has nothing about DAGs, so that a node under load is not
asked after each of its batches."""
_PATIENCE: Final = 20.0
"""Seconds that a question waits for the index."""
_PLACES: Final = 256
_TOLD: Final = 10_000
"""Publishes of which it is remembered whether their link is contained by their origin."""
_SHARDS: Final = 4
"""Shards in memory while a DAG is written out: its blocks lie near to each other, as a rule."""


@asynccontextmanager
async def open_dags(
    store: Store, data_dir: Path, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[Dags]:
    """The DAGs of a store; their index is a file of its own in the data directory.

    `clock` gives Unix seconds.

    Raises:
        DagError: the index cannot be used.
    """
    connection = await trio.to_thread.run_sync(
        schema.open_database, data_dir, store.epoch, store.head
    )
    try:
        dags = Dags(store, data_dir, connection, clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dags._follow)
            yield dags
            nursery.cancel_scope.cancel()
    finally:
        connection.close()


class Dags:
    """What a node knows of DAGs. Made by `open_dags`; used from trio's thread only."""

    def __init__(
        self,
        store: Store,
        data_dir: Path,
        connection: sqlite3.Connection,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._data_dir = data_dir
        self._connection = connection
        self._clock = clock
        self._position = index.position(connection)
        self._noted = self._position
        self._moved = trio.Event()
        self._limiter = trio.CapacityLimiter(2)
        self._told: dict[CID, bool] = {}

    async def state(self, root: CID) -> DagState:
        """What of the DAG below `root` is here.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(state.read_state, root=root))

    async def replicas(self, root: CID, max_bytes: int) -> dict[CID, Replica] | None:
        """The replicas of a DAG that are here; None where their blocks have more bytes.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(state.read_replicas, root=root, max_bytes=max_bytes))

    async def resolve(self, identifier: Identifier) -> Publication:
        """What an identifier leads to, and by which publishes.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        if len(self._told) > _TOLD:
            self._told.clear()
        question = partial(state.read_publication, identifier=identifier, told=self._told)
        return await self._ask(question)

    async def contains(self, origin: CID, link: CID) -> Containment:
        """Whether the DAG that the replica `origin` describes contains the block `link`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(containment.find, link=link, origin=origin))

    async def car(self, root: CID) -> AsyncIterator[bytes]:
        """The DAG below `root` as a CARv1, in pieces: its blocks depth first, whatever its shards.

        Raises:
            IncompleteDagError: a block is not here. Nothing was given then.
            DagError, StoreError: the index or the log cannot be read.
        """
        found = await self.state(root)
        if not found.complete:
            raise IncompleteDagError(
                f"{found.missing_blocks.count} or more blocks of {root} are not here: "
                + ", ".join(map(str, found.missing_blocks.first[:3]))
            )
        return self._write(root)

    async def _write(self, root: CID) -> AsyncIterator[bytes]:
        yield car.encode([root], {})
        if root.hash_code == IDENTITY:
            return
        with schema.reading(self._data_dir) as connection:
            order = state.read_order(connection, root)
            shards: OrderedDict[CID, dict[CID, bytes]] = OrderedDict()
            while places := await self._in_thread(partial(_next_places, order)):
                for place in places:
                    block = (await self._shard(place.event, shards))[place.cid]
                    size = len(place.cid) + len(block)
                    yield b"".join((varint.encode(size), place.cid, block))

    async def _shard(
        self, event: CID, shards: OrderedDict[CID, dict[CID, bytes]]
    ) -> dict[CID, bytes]:
        """The blocks of the shard that an event brought."""
        if event not in shards:
            stored = await self._store.get_event(event)
            if stored is None:
                raise DagError(f"the log lacks the event {event}, which the index of DAGs names")
            while len(shards) >= _SHARDS:
                shards.popitem(last=False)
            shards[event] = await self._in_thread(partial(_blocks, stored))
        shards.move_to_end(event)
        return shards[event]

    async def _ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        head = self._store.head
        with trio.move_on_after(_PATIENCE):
            while self._position < head:
                await self._moved.wait()
        if self._position < head:
            raise DagError(
                f"the index of DAGs is at position {self._position} of the feed, which has {head}: "
                "try again later, or see the node's log"
            )

        def answer() -> T:
            with schema.reading(self._data_dir) as connection:
                return question(connection)

        return await self._in_thread(answer)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, limiter=self._limiter)

    async def _follow(self) -> None:
        """Read the feed on, for ever. A disk that does not take it now is tried again."""
        while True:
            await self._store.wait_for_feed(self._position)
            try:
                if not await self._step():
                    await trio.sleep(_GATHER)
            except (DagError, StoreError) as error:
                log.error("The index of DAGs is not kept up", reason=str(error))
                await trio.sleep(_PAUSE)

    async def _step(self) -> bool:
        """Read the feed on a bit; was there anything about DAGs?

        Where there was nothing, the position is written now and then only: after a kill so many
        positions are looked through once more.
        """
        upto = min(self._store.head, self._position + _WINDOW)
        rows = await self._store.read_sort_key(SORT_KEY, self._position, upto, _EVENTS, _BYTES)
        if len(rows) == _EVENTS or sum(len(row.car) for row in rows) >= _BYTES:
            upto = rows[-1].position
        if rows or upto - self._noted >= _WINDOW:
            await self._take(rows, upto)
        self._position = upto
        self._moved.set()
        self._moved = trio.Event()
        return bool(rows)

    async def _take(self, rows: list[FeedRow], upto: int) -> None:
        def take() -> int:
            with schema.told_to_people(self._data_dir / schema.FILE_NAME):
                return index.take(self._connection, rows, upto, int(self._clock()))

        ignored = await self._in_thread(take)
        if ignored:
            log.info("Events about DAGs that bring nothing", count=ignored, upto=upto)
        self._noted = upto


def _next_places(order: Iterator[Place]) -> list[Place]:
    return list(islice(order, _PLACES))


def _blocks(event: bytes) -> dict[CID, bytes]:
    shard = read_dag_event(event).shard
    if shard is None:
        raise DagError("the index of DAGs names an event that brings no shard")
    return car.decode(shard).blocks
