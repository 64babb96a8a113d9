"""The feed of a node: the events that it delivered, in the order in which it did.

A page comes with a resume token. Keep it once the page is dealt with, and give it to the node to go
on after this page: then each event is seen at least once, and once if the two are kept together.
Tokens are a node's own; another node's feed has another order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final

from recon_node.base.connection import Answer
from recon_node.ceramic import Event, EventKind, StreamId
from recon_node.client.operations import (
    ClientSession,
    Steps,
    decoding,
    get,
    member,
    parsed,
    read_event,
)
from recon_node.ipld import CID

PAGE_SIZE: Final = 1000
"""Events of a page."""
LONG_POLL: Final = 20.0
"""Seconds for which a node of this project holds back its answer until something is new."""
POLL_INTERVAL: Final = 1.0
"""Seconds between two questions to a ceramic-one node, which answers at once."""


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """An event of a feed."""

    cid: CID
    event: Event | None
    """None if only the CIDs were asked for."""
    position: int | None = None
    """In the feed. This and what follows is None with a ceramic-one node, but for `kind` and `init`
    if the events were asked for, and for what init events say of their streams."""
    delivered_at: datetime | None = None
    """When the node delivered it; None if an earlier version did."""
    fault: str | None = None
    """What is wrong with its signature; None if nothing is."""
    kind: EventKind | None = None
    init: CID | None = None
    """The init event of its stream."""
    stream: StreamId | None = None
    """Its stream."""
    model: StreamId | None = None
    """The model of its stream; None, too, if its stream has none."""
    controller: str | None = None
    """The DID that its stream belongs to."""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Some events of a feed, in its order; none if nothing is new."""

    entries: tuple[FeedEntry, ...]
    token: str
    """Where to go on."""

    def concerns(self, stream: StreamId) -> bool:
        """Return whether it may have events of a stream; a ceramic-one node may not say of which
        stream an event is."""
        return any(entry.init in (None, stream.cid) for entry in self.entries)


def feed_token(session: ClientSession) -> Steps[str]:
    """Return a resume token for the end of the node's feed: for what comes from now on."""
    answer = (yield get("/ceramic/feed/resumeToken")).check()
    with decoding():
        return _token(answer)


def feed(
    session: ClientSession,
    after: str | None = None,
    *,
    limit: int = PAGE_SIZE,
    with_events: bool = True,
    wait: float = 0.0,
) -> Steps[FeedPage]:
    """Read a page of the node's feed.

    Args:
        after: a resume token; by default, from the start.
        limit: events at most, up to 10,000.
        with_events: whether to fetch the events, or only their CIDs.
        wait: seconds to wait for a new event, if there is none. A ceramic-one node does not wait.

    Raises:
        NodeError: 400 or 410: the token is not one of this node's feed.
    """
    request = get(
        "/ceramic/feed/events",
        resumeAt=after,
        limit=limit,
        includeData="full" if with_events else "none",
        details="true",
        streams="true",
        wait=f"{wait:g}" if wait else None,
    )
    answer = (yield replace(request, wait=wait)).check()
    with decoding():
        return FeedPage(tuple(map(_entry, answer.json["events"])), _token(answer))


def _token(answer: Answer) -> str:
    return str(member(answer.json, "resumeToken", str, int))


def _entry(entry: dict[str, Any]) -> FeedEntry:
    cid = CID.parse(entry["id"])
    event = read_event(entry["data"]) if "data" in entry else None  # else it is forgotten
    millis = member(entry, "deliveredAt", int, NoneType)
    kind, init = parsed(entry, "kind", EventKind), parsed(entry, "init", CID.parse)
    stream, model = (parsed(entry, name, StreamId.parse) for name in ("stream", "model"))
    controller = member(entry, "controller", str, NoneType)
    if event is not None:
        kind, init = event.kind, event.init
        if event.header is not None:
            stream, model = event.stream_id(), event.header.model
            controller = event.header.controller
    return FeedEntry(
        cid=cid,
        event=event,
        position=member(entry, "position", int, NoneType),
        delivered_at=None if millis is None else datetime.fromtimestamp(millis / 1000, UTC),
        fault=member(entry, "fault", str, NoneType),
        kind=kind,
        init=init,
        stream=stream,
        model=model,
        controller=controller,
    )
