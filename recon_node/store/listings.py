"""Lists of what the store holds: streams, models, and what is not delivered, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from recon_node.ceramic import METAMODEL, EventKind, StreamId
from recon_node.ipld import CID
from recon_node.store.db import catalogue, undelivered
from recon_node.store.db.name_prefixes import MIN_PREFIX, cid_ranges, init_ranges
from recon_node.store.db.reader import Reader, ReaderPool
from recon_node.store.db.records import State

_MAX_SORT_VALUES: Final = 2000
_SEARCHED_INITS: Final = 1000
"""Init events looked at for the StreamIDs that begin with a prefix."""


class Listings:
    """Answers questions about many streams or events, a page at a time, in threads.

    A page begins after the `row` of the last entry of the page before. All methods raise
    `StoreError` if the disk failed.

    Args:
        readers: of the log.
    """

    def __init__(self, readers: ReaderPool) -> None:
        self._readers = readers

    async def streams(
        self, wanted: catalogue.StreamFilter, after: int | None, limit: int
    ) -> catalogue.StreamPage:
        """Return streams that match a filter, the latest first."""
        return await self._readers.ask(partial(catalogue.read_streams, wanted, after, limit))

    async def models(self, after: int | None, limit: int) -> catalogue.StreamPage:
        """Return models, the latest first."""
        return await self.streams(catalogue.StreamFilter(sort_value=str(METAMODEL)), after, limit)

    async def count_streams(self, sort_values: Iterable[str]) -> dict[str, int]:
        """Return how many streams have each of some sort values."""
        return await self._readers.ask(partial(catalogue.count_streams, list(sort_values)))

    async def sort_values(self) -> set[tuple[str, str]]:
        """Return the sort keys and values that streams have, at most 2,000 of them."""
        return await self._readers.ask(partial(catalogue.read_sort_values, _MAX_SORT_VALUES))

    async def names_of(self, models: Iterable[StreamId]) -> dict[StreamId, str]:
        """Return what models call themselves, of those that are here."""
        return await self._readers.ask(partial(catalogue.names_of, list(models)))

    async def waiting(self, after: int | None, limit: int) -> list[undelivered.Undelivered]:
        """Return events that may not be delivered yet, the latest first: see `read_waiting`."""
        return await self._readers.ask(partial(undelivered.read_waiting, after, limit))

    async def pending(self, after: int | None, limit: int) -> list[undelivered.Undelivered]:
        """Return events that lack the lookup of an anchor, or build on one, the latest first."""
        return await self._readers.ask(partial(undelivered.read_pending, after, limit))

    async def progress(self, cids: Sequence[CID]) -> dict[CID, tuple[State, str | None]]:
        """Return how far events have come, and what is wrong with their signatures, if anything."""
        return await self._readers.ask(partial(undelivered.read_progress, cids))

    async def refused(self, after: int | None, limit: int) -> list[undelivered.RefusedEvent]:
        """Return EventIds that were refused and are remembered as such, the latest first."""
        return await self._readers.ask(partial(undelivered.read_refused, after, limit))

    async def hindrances(self) -> undelivered.Hindrances:
        """Return how much is not delivered."""
        return await self._readers.ask(undelivered.count_hindrances)

    async def find_events(self, prefix: str, limit: int) -> list[catalogue.FoundEvent]:
        """Return events whose CIDs start with some characters, at least 10, in base32."""
        return await self._readers.ask(partial(_find_events, prefix, limit))

    async def find_streams(self, prefix: str, limit: int) -> list[catalogue.ListedStream]:
        """Return streams whose StreamIDs start with some characters, at least 10, in base36."""
        return await self._readers.ask(partial(_find_streams, prefix, limit))

    async def streams_of(self, inits: Sequence[CID]) -> list[catalogue.ListedStream]:
        """Return those of some streams that are here, by their init events."""
        return await self._readers.ask(partial(catalogue.find_streams, inits))

    async def find_models(self, part: str, limit: int) -> list[catalogue.ListedStream]:
        """Return models whose names contain a text, in any case."""
        return await self._readers.ask(partial(catalogue.find_models, part, limit))


def _find_events(prefix: str, limit: int, reader: Reader) -> list[catalogue.FoundEvent]:
    if len(prefix) < MIN_PREFIX:
        return []
    found: list[catalogue.FoundEvent] = []
    for first, last in cid_ranges(prefix):
        found += catalogue.find_by_cid(first, last, limit - len(found), reader)
    return found


def _find_streams(prefix: str, limit: int, reader: Reader) -> list[catalogue.ListedStream]:
    if len(prefix) < MIN_PREFIX:
        return []
    inits: list[CID] = []
    for first, last in init_ranges(prefix):
        # A range has the init events of streams of every type; few prefixes are so short that it
        # has more than these.
        found = catalogue.find_by_cid(first, last, _SEARCHED_INITS, reader, kind=EventKind.INIT)
        inits += [each.cid for each in found if str(each.stream).startswith(prefix)]
    return catalogue.find_streams(inits[:limit], reader)
