"""Reads the events of one stream, so that what strangers add to it costs those who read it nothing.

A stream is what its controller signed, and the times that transactions prove of that. Everybody can
add more: any number of time events for one transaction, time events whose transaction does not
exist, and badly signed events. Each has a share of its own here, whose limit does not count for the
others, and the CARs of time events are not read at all (`recon_node.store.db.time_statements`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from recon_node.ipld import CID
from recon_node.store.contents import Contents
from recon_node.store.db import questions, time_statements
from recon_node.store.db.own_streams import read_own_streams
from recon_node.store.db.reader import ReaderPool
from recon_node.store.db.records import StreamRecord
from recon_node.store.values import FeedRow, HeldRow, TimeRow


class StreamReads:
    """Answers questions about one stream, in threads.

    All methods raise `StoreError` if the disk failed.

    Args:
        readers: of the log.
        contents: of the store.
    """

    def __init__(self, readers: ReaderPool, contents: Contents) -> None:
        self._readers = readers
        self._contents = contents

    async def signed(
        self, init: CID, limit: int | None = None, max_bytes: int | None = None
    ) -> list[FeedRow]:
        """Return at most `limit` delivered events of the stream that the event `init` starts, in
        feed order, which is causal, without time events; none when the stream is not here.

        With `max_bytes`, the last one is the event that takes the CARs to so many bytes.

        Raises:
            DamagedEventError: one of them is damaged.
        """
        read = partial(questions.read_signed, init, self._contents.head, limit, max_bytes)
        return await self._contents.damage.noting(self._readers.ask(read))

    async def time_statements(self, init: CID, limit: int) -> list[TimeRow]:
        """Return one delivered time event for each of at most `limit` statements in a stream."""
        return await self._ask_times(time_statements.read_time_statements, init, limit)

    async def time_events(self, cids: Iterable[CID]) -> list[TimeRow]:
        """Return those of some events that are delivered time events, and the time events below."""
        read = partial(time_statements.read_time_events, cids, self._contents.head)
        return await self._readers.ask(read)

    async def all_time_events(self, init: CID, limit: int) -> list[TimeRow]:
        """Return the first delivered time events of a stream, copies of statements included."""
        return await self._ask_times(time_statements.read_copies, init, limit)

    async def undelivered_times(self, init: CID, limit: int) -> list[TimeRow]:
        """Return time events of a stream that are not delivered, by how soon they may be."""
        return await self._readers.ask(partial(time_statements.read_undelivered, init, limit))

    async def undelivered(
        self, init: CID, limit: int, max_bytes: int, *, well_signed: bool
    ) -> list[HeldRow]:
        """Return other events of a stream that are not delivered, those first that may be soonest:
        the rightly signed ones, or the others.

        The last one is the event that takes the CARs to `max_bytes`.

        Raises:
            DamagedEventError: one of them is damaged.
        """
        read = partial(questions.read_held, init, limit, max_bytes, well_signed)
        return await self._contents.damage.noting(self._readers.ask(read))

    async def own(self, inits: Sequence[CID]) -> set[CID]:
        """Return the init events of those of some streams to which clients of this node wrote."""
        return await self._readers.ask(partial(read_own_streams, inits))

    async def headers(self, inits: Sequence[CID]) -> list[StreamRecord]:
        """Return what the init events of some streams require; of those that are here."""
        return await self._readers.ask(partial(questions.read_stream_headers, inits))

    async def _ask_times(
        self, question: Callable[..., list[TimeRow]], init: CID, limit: int
    ) -> list[TimeRow]:
        return await self._readers.ask(partial(question, init, self._contents.head, limit))
