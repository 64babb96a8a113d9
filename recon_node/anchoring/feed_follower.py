"""Follows the feed, and writes to the journal which events are to be anchored.

These are the tips of the chosen streams. An anchor of an event is one of everything that it covers
(CIP-145). So an event is wanted until a later one covers it, or a time event names it. Badly signed
events neither need anchors nor cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
import trio

from recon_node.anchoring.journal import Journal, JournalError, Selection
from recon_node.anchoring.settings import AnchorSettings
from recon_node.ceramic import EventKind, parse_event
from recon_node.ceramic.event_id import DAG_SORT_KEY
from recon_node.ipld import CID, DAG_CBOR
from recon_node.store import DamagedEventError, FeedColumns, Store, StoreError

T = TypeVar("T")

logger = structlog.get_logger(__name__)

_PAGE_EVENTS: Final = 2000
_PAGE_BYTES: Final = 4 * 1024 * 1024
_READ_AT_ONCE: Final = 64
"""Events in memory at once, each of up to 1 MiB."""
AFTER_FAULT: Final = 5.0
"""Seconds to wait after the disk failed."""
AFTER_BUG: Final = 600.0
"""Seconds to wait after a bug: the rest of the node goes on."""


class FeedFollower:
    """Follows the feed of a store.

    Attributes:
        position: of the feed, up to which it was read.
    """

    def __init__(
        self,
        settings: AnchorSettings,
        store: Store,
        journal: Journal,
        now: Callable[[], float],
        on_news: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._journal = journal
        self._now = now
        self._on_news = on_news
        self._chosen = frozenset(settings.streams)
        self.position = 0

    async def run(self) -> None:
        """Take over which events are to be anchored, as they are delivered, without end."""
        self.position = await in_thread(self._journal.position, self._store.epoch)
        while True:
            await self._store.wait_for_feed(self.position)
            try:
                await self._read_page()
                self._on_news()
            except DamagedEventError:
                await trio.sleep(AFTER_FAULT)  # until it is repaired
            except (StoreError, JournalError) as error:
                logger.error("Cannot select events to anchor", reason=str(error))
                await trio.sleep(AFTER_FAULT)
            except Exception:
                logger.exception("A bug keeps events from being anchored; trying again in a while")
                await trio.sleep(AFTER_BUG)

    async def _read_page(self) -> None:
        page = await self._store.reader.feed_columns(
            self.position, _PAGE_EVENTS, self._store.head, _PAGE_BYTES, cars=False
        )
        streams = await self._chosen_streams({CID(init) for init in page.stream_cids})
        events = await self._events(page, streams)
        epoch, position = self._store.epoch, page.positions[-1]
        selection = await in_thread(select, events)
        await in_thread(self._journal.note_feed, epoch, position, selection, self._now())
        self.position = position

    async def _chosen_streams(self, inits: set[CID]) -> set[CID]:
        """Return those of some streams that are to be anchored."""
        headers = await self._store.reader.stream_headers(list(inits))
        if not self._settings.dags:
            headers = [header for header in headers if header.sort_key != DAG_SORT_KEY]
        if "all" in self._chosen:
            return {header.init for header in headers}
        chosen = (h for h in headers if {h.controller, h.sort_value} & self._chosen)
        named = {header.init for header in chosen}
        if "own" in self._chosen:
            named |= await self._store.reader.own_streams([header.init for header in headers])
        return named

    async def _events(self, page: FeedColumns, streams: set[CID]) -> list[FeedEvent]:
        columns = (page.event_cids, page.stream_cids, page.kinds, page.faults)
        rows = [
            (CID(cid), CID(init), EventKind(kind))
            for cid, init, kind, fault in zip(*columns, strict=True)
            if init in streams and fault is None
        ]
        later = [cid for cid, _, kind in rows if kind is not EventKind.INIT]
        prevs: dict[CID, tuple[CID, ...]] = {}
        for start in range(0, len(later), _READ_AT_ONCE):
            part = later[start : start + _READ_AT_ONCE]
            cars = await self._store.reader.cars_by_cid(part)
            prevs |= await in_thread(_prevs, dict(zip(part, cars, strict=True)))
        unsigned = self._settings.unsigned

        def is_wanted(cid: CID, kind: EventKind) -> bool:
            return unsigned or kind is EventKind.DATA or cid.codec != DAG_CBOR

        return [
            FeedEvent(cid, init, kind, prevs.get(cid, ()), is_wanted(cid, kind))
            for cid, init, kind in rows
        ]


def _prevs(cars: Mapping[CID, bytes | None]) -> dict[CID, tuple[CID, ...]]:
    return {cid: parse_event(car).prevs for cid, car in cars.items() if car is not None}


async def in_thread(function: Callable[..., T], *arguments: object) -> T:
    """Call what blocks in a worker thread."""
    return await trio.to_thread.run_sync(function, *arguments)


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event of a chosen stream, as the selection needs it."""

    cid: CID
    init: CID
    kind: EventKind
    prevs: tuple[CID, ...]
    is_wanted: bool
    """Whether it may be anchored itself; it covers its prevs in any case."""


def select(events: Iterable[FeedEvent]) -> Selection:
    """Return what follows from events of the feed, in their order."""
    selection = Selection()
    for event in events:
        for prev in event.prevs:
            selection.added.pop(prev, None)
        if event.kind is EventKind.TIME:
            selection.timed += [(prev, event.cid) for prev in event.prevs]
        else:
            selection.covered += event.prevs
            if event.is_wanted:
                selection.added[event.cid] = event.init
    return selection
