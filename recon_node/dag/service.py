"""The DAGs of a node: an index that follows the feed, and questions to it.

Theory of operation. Shards and operations come as events (`dag.events`), from this node's clients
or by Recon from peers, and are delivered to the feed like all events. `Dags` follows the feed, and
adds events with the sort key "dag" to its index (`dag.index`); it ignores all others. Each step is
one transaction with the position reached, so after a kill at any moment it continues where it was.
A question first waits until the index has reached the head that the feed had when it was asked.
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

from recon_node.dag import catalogue, containment, index, schema, state
from recon_node.dag.containment import Containment
from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.dag.events import SORT_KEY, Identifier, read_dag_event
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.state import DagState, Place, Publication
from recon_node.ipld import CID, IDENTITY, MAX_INLINE, car, varint
from recon_node.store import FeedRow, Store, StoreError

log = structlog.get_logger(__name__)

T = TypeVar("T")

_WINDOW: Final = 20_000
"""Positions of the feed in one step."""
_EVENTS: Final = 64
"""Events about DAGs in one step."""
_BYTES: Final = 4 * 1024 * 1024
"""Bytes of their CARs."""
_PAUSE: Final = 5.0
"""Seconds until the next attempt after a failed step."""
_GATHER: Final = 0.02
"""Seconds between two steps without events about DAGs, so that a busy node is not queried after
each of its batches."""
_PATIENCE: Final = 20.0
"""Seconds that a question waits for the index."""
_PLACES: Final = 256
"""Blocks that are located at once while a DAG is exported."""
_TOLD: Final = 10_000
"""Publishes for which the cache knows whether their origin contains their link."""
_SHARDS: Final = 4
"""Shards in memory while a DAG is exported: neighbouring blocks are usually in the same one."""
_THREADS: Final = 2
"""Questions and steps that run at once."""
_MAX_NAMED: Final = 3
"""Missing blocks that an error names."""


@asynccontextmanager
async def open_dags(
    store: Store, data_dir: Path, *, clock: Callable[[], float] = time.time
) -> AsyncIterator[Dags]:
    """Open the DAGs of a store; their index is a separate file in the data directory.

    `clock` returns Unix seconds.

    Raises:
        DagError: the index cannot be used.
    """
    connection = await trio.to_thread.run_sync(schema.open_index, data_dir, store.epoch, store.head)
    try:
        dags = Dags(store, data_dir, connection, clock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(dags._follow)
            yield dags
            nursery.cancel_scope.cancel()
    finally:
        connection.close()


class Dags:
    """What a node knows about DAGs. Made by `open_dags`; used from trio's thread only."""

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
        self._moved = trio.lowlevel.ParkingLot()
        self._limiter = trio.CapacityLimiter(_THREADS)
        self._told: dict[CID, bool] = {}

    async def state(self, root: CID) -> DagState:
        """Return how much of the DAG is here below `root`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(state.read_state, root=root))

    async def replicas(self, root: CID, max_bytes: int) -> dict[CID, Replica] | None:
        """Return the replicas held of a DAG; None if their blocks exceed `max_bytes`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(state.read_replicas, root=root, max_bytes=max_bytes))

    async def resolve(self, identifier: Identifier) -> Publication:
        """Resolve an identifier to the DAG published under it.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        if len(self._told) > _TOLD:
            self._told.clear()
        question = partial(state.read_publication, identifier=identifier, told=self._told)
        return await self._ask(question)

    async def dags(self, after: bytes, limit: int) -> list[catalogue.ListedDag]:
        """List DAGs of which something is here, in the order of their roots, from the one behind
        `after` (a CID, or no bytes).

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(catalogue.read_dags, after=after, limit=limit))

    async def identifiers(self, after: bytes, limit: int) -> list[catalogue.ListedIdentifier]:
        """List identifiers under which something was published, in the order of their keys, from
        the one behind `after` (a sort value's bytes, or none).

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(catalogue.read_identifiers, after=after, limit=limit))

    async def contains(self, origin: CID, link: CID) -> Containment:
        """Find out whether the DAG that the replica `origin` describes contains the block `link`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._ask(partial(containment.find, link=link, origin=origin))

    async def car(self, root: CID) -> AsyncIterator[bytes]:
        """Export the DAG below `root` as a CARv1, in pieces, its blocks depth first.

        Raises:
            IncompleteDagError: a block is missing; raised before the first piece.
            DagError: the index cannot be read.
            StoreError: the log cannot be read.
        """
        found = await self.state(root)
        if not found.complete:
            raise IncompleteDagError(
                f"the DAG {root} is incomplete, with {found.missing_blocks.count} or more missing "
                "blocks: " + ", ".join(map(str, found.missing_blocks.first[:_MAX_NAMED]))
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
        """The blocks of the shard in an event."""
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
                await self._moved.park()
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
        """Follow the feed, forever; try again after errors of the disk."""
        while True:
            await self._store.wait_for_feed(self._position)
            try:
                if not await self._step():
                    await trio.sleep(_GATHER)
            except (DagError, StoreError) as error:
                log.error("Cannot update the index of DAGs", reason=str(error))
                await trio.sleep(_PAUSE)

    async def _step(self) -> bool:
        """Read one step of the feed; return whether it had anything about DAGs.

        If not, the position is written once per `_WINDOW`: after a kill, at most that many are read
        again.
        """
        upto = min(self._store.head, self._position + _WINDOW)
        rows = await self._store.read_sort_key(SORT_KEY, self._position, upto, _EVENTS, _BYTES)
        if len(rows) == _EVENTS or sum(len(row.car) for row in rows) >= _BYTES:
            upto = rows[-1].position
        if rows or upto - self._noted >= _WINDOW:
            await self._take(rows, upto)
        self._position = upto
        self._moved.unpark_all()
        return bool(rows)

    async def _take(self, rows: list[FeedRow], upto: int) -> None:
        def take() -> int:
            with schema.translated_errors(self._data_dir / schema.FILE_NAME):
                return index.take(self._connection, rows, upto, int(self._clock()))

        ignored = await self._in_thread(take)
        if ignored:
            log.info("Ignored events about DAGs", count=ignored, upto=upto)
        self._noted = upto


def _next_places(order: Iterator[Place]) -> list[Place]:
    return list(islice(order, _PLACES))


def _blocks(event: bytes) -> dict[CID, bytes]:
    shard = read_dag_event(event).shard
    if shard is None:
        raise DagError("the index of DAGs names an event without a shard")
    return car.decode(shard, max_digest=MAX_INLINE).blocks
