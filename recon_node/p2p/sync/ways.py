"""The two ways to fetch events from a peer: by their EventIDs, or by the ids of these.

A *name* is what an event is asked for by. Sessions share the work by claims on names (claims.py).
"""

from __future__ import annotations

from typing import Final, TypeAlias

from recon_node.ceramic import EventId
from recon_node.p2p.interfaces import EventStore
from recon_node.p2p.sync.claims import FetchTable
from recon_node.p2p.sync.event_stream import Deliver, fetch_events
from recon_node.p2p.sync.events_by_id import fetch_events_by_id
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.streams import EVENTS_BY_ID_PROTOCOL, EVENTS_PROTOCOL
from recon_node.recon import Missing, id_of


class ByKey:
    """By their EventIDs."""

    protocol: Final = EVENTS_PROTOCOL
    in_order: Final = True

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def untried(self, names: list[bytes]) -> list[bytes]:
        """Return the EventIDs that are neither held nor refused."""
        store = self._store
        wanted = map(EventId, names)
        return [each for each in wanted if each not in store.keys and not store.is_refused(each)]

    def name_of(self, event_id: EventId) -> bytes:
        """Return the EventID itself."""
        return event_id

    def note(self, event_id: EventId) -> None:
        """Do nothing: the store knows."""

    async def fetch(
        self,
        frames: FrameStream,
        names: list[bytes],
        deliver: Deliver,
        patience: float,
        per_request: int,
    ) -> list[bytes]:
        """Fetch events; return the EventIDs of those that the peer does not hold."""
        wanted = [EventId(each) for each in names]
        return [*await fetch_events(frames, wanted, deliver, patience, per_request)]


class ById:
    """By the ids of their EventIDs, which are not known before the events are here."""

    protocol: Final = EVENTS_BY_ID_PROTOCOL

    def __init__(self, store: EventStore, table: FetchTable, missing: Missing) -> None:
        self._store = store
        self._table = table
        self._range = missing.key_range
        self.in_order = missing.in_order
        """Whether events come in the order of their EventIDs."""
        self.fetched: dict[bytes, EventId] = {}
        """The EventIDs that have come, by their ids."""

    def untried(self, names: list[bytes]) -> list[bytes]:
        """Return the ids of events that have not come, to this session or lately to another."""
        return [each for each in names if self.find(each) is None]

    def find(self, name: bytes) -> EventId | None:
        """Return the EventID of an id, if its event has come, or need not come."""
        if (found := self.fetched.get(name) or self._store.find_refused(name)) is not None:
            return found
        found = self._table.find_fetched(name)
        return found if found in self._store.keys else None  # it may have been damaged since

    def name_of(self, event_id: EventId) -> bytes:
        """Return the id of an EventID."""
        return id_of(event_id)

    def note(self, event_id: EventId) -> None:
        """Take note that an event has come."""
        name = id_of(event_id)
        self.fetched[name] = event_id
        if event_id in self._store.keys:
            self._table.note_fetched(name, event_id)

    async def fetch(
        self,
        frames: FrameStream,
        names: list[bytes],
        deliver: Deliver,
        patience: float,
        per_request: int,
    ) -> list[bytes]:
        """Fetch events; return the ids of those that the peer does not hold."""
        wanted = Missing(self._range, names)
        return await fetch_events_by_id(frames, wanted, deliver, patience, per_request)


Way: TypeAlias = ByKey | ById
"""How to fetch some events."""
