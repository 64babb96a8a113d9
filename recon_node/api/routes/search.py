"""GET /ceramic/search: events, streams, models and controllers, by what people have of them."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.models import Body, Parameters, Parsed, UnfitError, Whole, WholeParameter
from recon_node.api.routes.listings import (
    ListedModelBody,
    ListedStreamBody,
    describe_models,
    describe_streams,
)
from recon_node.ceramic import EventKind, StreamId, StreamIdError
from recon_node.ipld import CID, IpldError
from recon_node.store import FoundEvent, State, StreamFilter

_MAX_FOUND: Final = 100
_LONGEST: Final = 500
"""Characters of a query."""


def _query(text: str) -> str:
    query = text.strip()
    if not query:
        raise UnfitError("{name}: empty: give a CID, a StreamID, a DID or a name")
    if len(query) > _LONGEST:
        raise UnfitError("{name}: too long: nothing here has such a long name")
    return query


class SearchQuery(Parameters, frozen=True):
    """What to look for."""

    q: Annotated[str, Parsed(_query)]
    """A CID or a StreamID, or their first characters (at least 10); a DID; or a part of the name of
    a model."""
    limit: WholeParameter = 20
    """Maximum number of results of each kind: 20 by default, at most 100."""


class FoundEventBody(Body, frozen=True):
    """An event."""

    cid: str
    """Its CID."""
    kind: Literal["init", "data", "time"]
    state: Literal["delivered", "pending", "waiting"]
    stream: str | None
    """The StreamID; null while the stream's init event is missing."""


class FoundControllerBody(Body, frozen=True):
    """A controller of streams."""

    id: str
    """The DID."""
    streams: Whole
    """Its streams."""


class SearchBody(Body, frozen=True):
    """What was found."""

    events: list[FoundEventBody]
    """Events with that CID, or one that starts so."""
    streams: list[ListedStreamBody]
    """Streams with that StreamID or init event, or one that starts so."""
    models: list[ListedModelBody]
    """Models with such a name, of the latest 1,000."""
    controllers: list[FoundControllerBody]
    """The controller with that DID, if it has streams here."""


@endpoint("GET", "/ceramic/search", own=True)
async def get_search(call: Call[SearchQuery]) -> SearchBody:
    """Find events, streams, models and controllers.

    By a CID, a StreamID or a DID, or by the first 10 or more characters of an id; models also by a
    part of their name.
    """
    services, query = call.services, _normal(call.parameters.q)
    limit = min(call.parameters.limit, _MAX_FOUND)
    log = services.store.log
    events = await log.find_events(query, limit)
    streams = await log.find_streams(query, limit)
    inits = [event.cid for event in events if event.kind is EventKind.INIT]
    streams += await log.streams_of(inits)
    models = [] if query.startswith("did:") else await log.find_models(query, limit)
    controllers = []
    if query.startswith("did:"):
        owned = await log.streams(StreamFilter(controller=query), None, 0)
        if owned.total:
            controllers = [FoundControllerBody(id=query, streams=owned.total)]
    return SearchBody(
        events=[_describe(event) for event in events],
        streams=await describe_streams(services, streams),
        models=await describe_models(services, models),
        controllers=controllers,
    )


def _normal(query: str) -> str:
    """Write a CID or a StreamID of any base as they usually are; leave other text alone."""
    try:
        return str(StreamId.parse(query))
    except StreamIdError:
        pass
    try:
        return str(CID.parse(query))
    except IpldError:
        return query


def _describe(event: FoundEvent) -> FoundEventBody:
    return FoundEventBody(
        cid=str(event.cid),
        kind=event.kind.value,
        state=_STATES[event.state],
        stream=None if event.stream is None else str(event.stream),
    )


_STATES: Final[dict[State, Literal["delivered", "pending", "waiting"]]] = {
    State.ORPHAN: "waiting",
    State.WAITING: "waiting",
    State.UNCOVERED: "waiting",
    State.PENDING: "pending",
    State.DELIVERED: "delivered",
}
