"""The DAGs of a node: an index that follows the feed, and questions to it.

Shards and operations come as events (`dag.dag_events`), from this node's clients or by Recon from
peers, and are delivered to the feed like all events. The index (`dag.dag_index`) takes those with
the sort key "dag", and ignores all others.

To look into a DAG that the node has in part or whole, nothing is unpacked and little is read: of a
directory the names, of a file its beginning. The blocks may be anybody's, so what one answer reads
is bounded.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import trio

from recon_node.base.latest import Latest
from recon_node.dag import containment, dag_index, dag_state
from recon_node.dag.containment import Containment
from recon_node.dag.dag_events import Identifier, read_dag_event
from recon_node.dag.dag_index import FILE
from recon_node.dag.dag_state import (
    DagState,
    ListedDag,
    ListedIdentifier,
    LocatedBlock,
    Publication,
)
from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.unixfs import (
    DIRECTORIES,
    NodeType,
    Read,
    directory_entries,
    file_content,
    read_node,
)
from recon_node.feed_index import FeedIndex, FeedIndexError, open_feed_index
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_PB,
    IDENTITY,
    MAX_INLINE,
    RAW,
    car,
    dag_cbor,
    encode_varint,
)
from recon_node.store import FeedRow, Store

_BLOCKS_AT_ONCE: Final = 256
"""Blocks that are located at once while a DAG is exported."""
_MAX_KNOWN: Final = 10_000
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
        FeedIndexError: the index cannot be used.
    """

    def take(connection: sqlite3.Connection, rows: Sequence[FeedRow]) -> int:
        return dag_index.take(connection, rows, int(clock()))

    async with open_feed_index(FILE, take, store, data_dir) as feed_index:
        yield Dags(store, data_dir, feed_index)


class Dags:
    """What a node knows about DAGs. Made by `open_dags`; used from trio's thread only.

    Its methods raise `FeedIndexError` if the index cannot be read, or lags behind the feed.
    """

    def __init__(self, store: Store, data_dir: Path, index: FeedIndex) -> None:
        self._store = store
        self._data_dir = data_dir
        self._index = index
        self._contained: dict[CID, bool] = {}
        self._browsing = trio.CapacityLimiter(_BROWSERS)

    async def state(self, root: CID) -> DagState:
        """Return how much of the DAG is here below `root`."""
        return await self._index.ask(partial(dag_state.read_state, root=root))

    async def replicas(self, root: CID, max_bytes: int) -> dict[CID, Replica] | None:
        """Return the replicas held of a DAG; None if their blocks exceed `max_bytes`."""
        question = partial(dag_state.read_replicas, root=root, max_bytes=max_bytes)
        return await self._index.ask(question)

    async def resolve(self, identifier: Identifier) -> Publication:
        """Resolve an identifier to the DAG published under it."""
        if len(self._contained) > _MAX_KNOWN:
            self._contained.clear()
        question = partial(dag_state.read_publication, identifier=identifier, known=self._contained)
        return await self._index.ask(question)

    async def dags(self, after: bytes, limit: int) -> list[ListedDag]:
        """List DAGs of which something is here, in the order of their roots, from the one behind
        `after` (a CID, or no bytes)."""
        return await self._index.ask(partial(dag_state.read_dags, after=after, limit=limit))

    async def identifiers(self, after: bytes, limit: int) -> list[ListedIdentifier]:
        """List identifiers under which something was published, in the order of their keys, from
        the one behind `after` (a sort value's bytes, or none)."""
        return await self._index.ask(partial(dag_state.read_identifiers, after=after, limit=limit))

    async def contains(self, origin: CID, link: CID) -> Containment:
        """Find out whether the DAG that the replica `origin` describes contains a block."""
        return await self._index.ask(partial(containment.find, link=link, origin=origin))

    async def look(self, root: CID, path: tuple[str, ...]) -> DagEntry:
        """Return what a path in the DAG below `root` leads to: a directory, a file, or other data.

        Raises:
            DagError: a block of it is missing or malformed, or there is no such entry.
            IpldError: a block cannot be decoded.
            StoreError: the log cannot be read.
        """
        shards = Latest[CID, dict[CID, bytes]](_SHARDS)

        async def block(cid: CID) -> bytes:
            event = await self._index.ask(partial(dag_state.find_event, root=root, cid=cid))
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
            StoreError: the log cannot be read.
        """
        state = await self.state(root)
        if not state.complete:
            raise IncompleteDagError(
                f"the DAG {root} is incomplete, with {state.missing_blocks.count} or more missing "
                "blocks: " + ", ".join(map(str, state.missing_blocks.first[:_MAX_NAMED]))
            )
        return self._write(root)

    async def _write(self, root: CID) -> AsyncIterator[bytes]:
        yield car.encode([root], {})
        if root.hash_code == IDENTITY:
            return
        with FILE.reading(self._data_dir) as connection:
            order = dag_state.read_order(connection, root)
            shards = Latest[CID, dict[CID, bytes]](_SHARDS)

            def following() -> list[LocatedBlock]:
                return list(islice(order, _BLOCKS_AT_ONCE))

            while blocks := await self._index.in_thread(following):
                for located in blocks:
                    block = (await self._shard(located.event, shards))[located.cid]
                    size = len(located.cid) + len(block)
                    yield b"".join((encode_varint(size), located.cid, block))

    async def _shard(self, event: CID, shards: Latest[CID, dict[CID, bytes]]) -> dict[CID, bytes]:
        """The blocks of the shard in an event."""
        shard = shards.use(event)
        if shard is None:
            stored = await self._store.reader.car(event)
            if stored is None:
                text = f"the log lacks the event {event}, which the index of DAGs names"
                raise FeedIndexError(text)
            shard = shards[event] = await self._index.in_thread(partial(_blocks, stored))
        return shard


def _blocks(event: bytes) -> dict[CID, bytes]:
    shard = read_dag_event(event).shard
    if shard is None:
        raise FeedIndexError("the index of DAGs names an event without a shard")
    return car.decode(shard, max_digest=MAX_INLINE).blocks


MAX_ENTRIES: Final = 1_000
"""Entries of a directory in one answer."""
MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes that one answer reads: of blocks on the path, shards of a directory, leaves of a file."""
_LEAST: Final = 4096
"""Bytes that a small block counts as."""
MAX_TEXT: Final = 16_384
"""Bytes of a file that are shown."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A name in a directory."""

    name: str
    """Of the file or directory."""
    cid: CID
    """Of its block."""
    size: int
    """Bytes of all blocks below it, as the directory says."""


@dataclass(frozen=True, slots=True)
class DagEntry:
    """What a path in a DAG leads to.

    Attributes:
        kind: data is a block that is not part of a file or directory.
        cid: of its block.
        size: bytes of a file's content, where its node says it.
        text: the beginning of a file, or a symlink's target; None if it is not UTF-8.
        value: of a block of data, if it is DAG-CBOR.
        entries: of a directory, in its order; the first 1,000.
        is_cut: whether the directory, or the file, has more.
    """

    kind: Literal["directory", "file", "symlink", "data"]
    cid: CID
    size: int | None = None
    text: str | None = None
    value: Any = None
    entries: list[DirectoryEntry] = field(default_factory=list)
    is_cut: bool = False


class Browser:
    """Looks into one DAG, once.

    `block` returns a block of the DAG, or raises `DagError` if it is not here.
    """

    def __init__(self, block: Read) -> None:
        self._block = block
        self._left = MAX_BYTES

    def look(self, root: CID, path: tuple[str, ...]) -> DagEntry:
        """Return what a path from the root leads to.

        Raises:
            DagError: a block of it is missing or malformed, no such entry, or too much to read.
            IpldError: a block cannot be decoded.
        """
        cid = root
        for number, part in enumerate(path):
            for name, link in directory_entries(cid, self._read):
                if name == part:
                    cid = link.cid
                    break
            else:
                raise DagError(f"no entry {part!r} in /{'/'.join(path[:number])}")
        return self._entry(cid)

    def _entry(self, cid: CID) -> DagEntry:
        if cid.codec not in (DAG_PB, RAW):
            block = self._read(cid)
            value = dag_cbor.decode(block) if cid.codec == DAG_CBOR else None
            return DagEntry("data", cid, len(block), value=value)
        data, _ = read_node(cid, self._read)
        if data.type in DIRECTORIES:
            entries = [
                DirectoryEntry(_written(name), link.cid, link.size)
                for name, link in islice(directory_entries(cid, self._read), MAX_ENTRIES + 1)
            ]
            is_cut = len(entries) > MAX_ENTRIES
            return DagEntry("directory", cid, entries=entries[:MAX_ENTRIES], is_cut=is_cut)
        if data.type is NodeType.SYMLINK:
            return DagEntry("symlink", cid, len(data.data), _as_text(data.data, is_whole=True))
        size = len(data.data) if data.file_size is None else data.file_size
        start, is_cut = b"", False
        for piece in file_content(cid, self._read):
            start += piece[: MAX_TEXT + 1 - len(start)]
            if is_cut := len(start) > MAX_TEXT:
                break
        text = _as_text(start[:MAX_TEXT], is_whole=not is_cut)
        return DagEntry("file", cid, size, text, is_cut=is_cut)

    def _read(self, cid: CID) -> bytes:
        if cid.hash_code == IDENTITY:
            return cid.digest
        if self._left <= 0:
            raise DagError(f"more than {MAX_BYTES:,} bytes are to be read: pull the DAG to see it")
        block = self._block(cid)
        self._left -= max(len(block), _LEAST)
        return block


def _written(name: str) -> str:
    """A name as text: bytes that are not UTF-8 are replaced."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _as_text(content: bytes, *, is_whole: bool) -> str | None:
    """Return UTF-8 as text; of a beginning, the last character may be incomplete."""
    for cut in range(1 if is_whole else 4):
        try:
            text = content[: len(content) - cut].decode()
        except UnicodeDecodeError:
            continue
        return None if "\0" in text else text
    return None
