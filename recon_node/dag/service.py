"""The DAGs of a node: an index that follows the feed, and questions to it.

Shards and operations come as events (`dag.events`), from this node's clients or by Recon from
peers, and are delivered to the feed like all events. The index (`dag.index`) takes those with the
sort key "dag", and ignores all others.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from recon_node.dag import containment, index, state
from recon_node.dag.browsing import Browser, DagEntry
from recon_node.dag.containment import Containment
from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.dag.events import Identifier, read_dag_event
from recon_node.dag.index import FILE
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.state import BlockPlace, DagState, ListedDag, ListedIdentifier, Publication
from recon_node.feed_index import FeedIndex, open_feed_index
from recon_node.ipld import CID, IDENTITY, MAX_INLINE, car, varint
from recon_node.latest import Latest
from recon_node.store import FeedRow, Store

_PLACES: Final = 256
"""Blocks that are located at once while a DAG is exported."""
_TOLD: Final = 10_000
"""Publishes for which the cache knows whether their origin contains their link."""
_SHARDS: Final = 4
"""Shards in memory while a DAG is exported: neighbouring blocks are usually in the same one."""
_BROWSERS: Final = 2
"""DAGs that are looked into at once."""
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

    def take(connection: sqlite3.Connection, rows: Sequence[FeedRow]) -> int:
        return index.take(connection, rows, int(clock()))

    async with open_feed_index(FILE, take, store, data_dir) as feed_index:
        yield Dags(store, data_dir, feed_index)


class Dags:
    """What a node knows about DAGs. Made by `open_dags`; used from trio's thread only."""

    def __init__(self, store: Store, data_dir: Path, index: FeedIndex) -> None:
        self._store = store
        self._data_dir = data_dir
        self._index = index
        self._told: dict[CID, bool] = {}
        self._browsing = trio.CapacityLimiter(_BROWSERS)

    async def state(self, root: CID) -> DagState:
        """Return how much of the DAG is here below `root`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(state.read_state, root=root))

    async def replicas(self, root: CID, max_bytes: int) -> dict[CID, Replica] | None:
        """Return the replicas held of a DAG; None if their blocks exceed `max_bytes`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(state.read_replicas, root=root, max_bytes=max_bytes))

    async def resolve(self, identifier: Identifier) -> Publication:
        """Resolve an identifier to the DAG published under it.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        if len(self._told) > _TOLD:
            self._told.clear()
        question = partial(state.read_publication, identifier=identifier, told=self._told)
        return await self._index.ask(question)

    async def dags(self, after: bytes, limit: int) -> list[ListedDag]:
        """List DAGs of which something is here, in the order of their roots, from the one behind
        `after` (a CID, or no bytes).

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(state.read_dags, after=after, limit=limit))

    async def identifiers(self, after: bytes, limit: int) -> list[ListedIdentifier]:
        """List identifiers under which something was published, in the order of their keys, from
        the one behind `after` (a sort value's bytes, or none).

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(state.read_identifiers, after=after, limit=limit))

    async def contains(self, origin: CID, link: CID) -> Containment:
        """Find out whether the DAG that the replica `origin` describes contains the block `link`.

        Raises:
            DagError: the index cannot be read, or does not keep up with the feed.
        """
        return await self._index.ask(partial(containment.find, link=link, origin=origin))

    async def look(self, root: CID, path: tuple[str, ...]) -> DagEntry:
        """Return what a path in the DAG below `root` leads to: a directory, a file, or other data.

        Raises:
            DagError: a block of it is missing or malformed, there is no such entry, or the index
                cannot be read.
            IpldError: a block cannot be decoded.
            StoreError: the log cannot be read.
        """
        shards = Latest[CID, dict[CID, bytes]](_SHARDS)

        async def block(cid: CID) -> bytes:
            event = await self._index.ask(partial(state.read_place, root=root, cid=cid))
            if event is None:
                raise DagError(f"the block {cid} is not here")
            return (await self._shard(event, shards))[cid]

        def look() -> DagEntry:
            return Browser(partial(trio.from_thread.run, block)).look(root, path)

        return await trio.to_thread.run_sync(look, limiter=self._browsing)

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
        with FILE.reading(self._data_dir) as connection:
            order = state.read_order(connection, root)
            shards = Latest[CID, dict[CID, bytes]](_SHARDS)
            while places := await self._index.in_thread(partial(_next_places, order)):
                for place in places:
                    block = (await self._shard(place.event, shards))[place.cid]
                    size = len(place.cid) + len(block)
                    yield b"".join((varint.encode(size), place.cid, block))

    async def _shard(self, event: CID, shards: Latest[CID, dict[CID, bytes]]) -> dict[CID, bytes]:
        """The blocks of the shard in an event."""
        shard = shards.use(event)
        if shard is None:
            stored = await self._store.log.car(event)
            if stored is None:
                raise DagError(f"the log lacks the event {event}, which the index of DAGs names")
            shard = shards[event] = await self._index.in_thread(partial(_blocks, stored))
        return shard


def _next_places(order: Iterator[BlockPlace]) -> list[BlockPlace]:
    return list(islice(order, _PLACES))


def _blocks(event: bytes) -> dict[CID, bytes]:
    shard = read_dag_event(event).shard
    if shard is None:
        raise DagError("the index of DAGs names an event without a shard")
    return car.decode(shard, max_digest=MAX_INLINE).blocks
