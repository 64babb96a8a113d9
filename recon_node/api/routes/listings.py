"""GET /ceramic/streams, /ceramic/models and /ceramic/search: lists of what the node has.

The latest come first: those whose init events arrived last. `next` is where the following page
begins; it stays right while streams arrive.

Documents are also listed by what their fields hold: those that refer to another one, for example.
What a document holds is computed from its events, and no index has it. So the log is asked for
documents in whose events the texts occur at all, and only these are computed
(`recon_node.api.evaluation`), to see whether the texts are in their fields at the tip. A page ends
after some documents, bytes or seconds, whatever was found; the following page goes on from there.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal, TypeVar

from recon_node.api.endpoint import Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Body,
    FlagParameter,
    Parameters,
    Parsed,
    UnfitError,
    Whole,
    WholeParameter,
    parsed_by,
    text_of,
)
from recon_node.api.routes.streams import compute
from recon_node.ceramic import EventKind, StreamId, StreamIdError, sort_value_range
from recon_node.ceramic.auth.did import is_did
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY
from recon_node.ipld import CID, IpldError
from recon_node.recon import KeyRange
from recon_node.store import FoundEvent, ListedStream, State, StreamFilter, StreamPage
from recon_node.store.damage import DamagedEventError
from recon_node.streams import Stream, StreamShapeError
from recon_node.streams.json_values import BudgetError

T = TypeVar("T")

MAX_PAGE: Final = 1000
"""Entries of a page, at most."""


class ListQuery(Parameters, frozen=True):
    """How long a page of a list is."""

    limit: WholeParameter = 100
    """Maximum number of entries: 100 by default, at most 1,000."""

    @property
    def size(self) -> int:
        """How many entries to return. One more is read, to know whether another page follows."""
        return min(self.limit, MAX_PAGE)

    def last(self, read: Sequence[T]) -> T | None:
        """Return the last entry of the page, of those that were read, if another page follows."""
        return read[self.size - 1] if 0 < self.size < len(read) else None


class PageQuery(ListQuery, frozen=True):
    """Which page of a list."""

    after: WholeParameter | None = None
    """The `next` of the page before; the first page without it."""


class PageBody(Body, frozen=True):
    """What all pages have."""

    next: Whole | None
    """What `after` is for the following page; null: this is the last one."""


def _read_filter(text: str) -> str:
    if not text:
        raise UnfitError("{name} cannot be empty: leave it out, to take them all")
    return text


def read_stream_filter(text: str) -> StreamId:
    """Read a filter by stream; raises `UnfitError` if it is empty."""
    return StreamId.parse(_read_filter(text))


def _read_did(text: str) -> str:
    if not is_did(_read_filter(text)):
        raise UnfitError("{name} should be a DID, such as did:key:z6Mk..., not {input!r}")
    return text


FilterText = Annotated[str, Parsed(_read_filter)]
"""A filter, which is not empty."""
FilterDid = Annotated[str, Parsed(_read_did)]
"""A filter by controller."""


class StreamsQuery(PageQuery, frozen=True, rename="camel"):
    """Which streams to list."""

    model: Annotated[StreamId, parsed_by(read_stream_filter, "model: ")] | None = None
    """Only documents of this model, a StreamID."""
    sort_key: FilterText | None = None
    """Only streams with this sort key; needs `sortValue`."""
    sort_value: FilterText | None = None
    """Only with this sort value: text; a StreamID in base36, `k...`. Needs `sortKey`."""
    controller: FilterDid | None = None
    """Only with this controller, a DID."""
    where: list[str] = []
    """Only documents in whose content at the tip a field holds just this text: `FIELD=TEXT`, such
    as a relation and the StreamID of a document. Needs `model`; up to 4."""
    indexed: FlagParameter = False
    """Only documents that indexers should show: not those whose `shouldIndex` is false. Needs
    `model`."""


class ListedStreamBody(Body, frozen=True):
    """A stream, as lists have it."""

    id: str
    """The StreamID."""
    init: str
    """The CID of its init event."""
    controller: str
    """The DID that the stream belongs to."""
    sort_key: str
    """Such as `model`; empty for a stream without one."""
    sort_value: str
    """Text; a StreamID in base36."""
    name: str | None
    """What a model calls itself in its init event; null for other streams."""
    model_name: str | None
    """The same of the model of a document, if the node has the model."""
    events: Whole
    """Delivered ones."""
    position: Whole
    """Of the latest of them, in the feed."""
    delivered_at: Whole | None
    """When this node delivered that one, in Unix milliseconds; null if an earlier version did."""


class StreamListBody(PageBody, frozen=True):
    """Streams, the latest first."""

    streams: list[ListedStreamBody]
    """A page of them."""
    total: Whole
    """How many the whole list has, without `where` and `indexed`."""


@endpoint("GET", "/ceramic/streams", own=True)
async def get_streams(call: Call[StreamsQuery]) -> StreamListBody:
    """List streams, the latest first."""
    services, query, wanted = call.services, call.parameters, _filter(call.parameters)
    place = (query.after, query.size)
    if (query.where or query.indexed) and query.size:
        page = await streams_where(services, wanted, query.where, query.indexed, *place)
    else:
        page = await services.store.reader.streams(wanted, *place)
    described = await describe_streams(services, page.streams)
    return StreamListBody(streams=described, total=page.total, next=page.next)


class ListedModelBody(Body, frozen=True):
    """A model, as lists have it."""

    id: str
    """The StreamID."""
    init: str
    """The CID of its init event."""
    name: str | None
    """What it calls itself in its init event."""
    controller: str
    """The DID that the model belongs to."""
    streams: Whole
    """Its documents that are here."""
    events: Whole
    """Their events, those that are not delivered included."""


class ModelListBody(PageBody, frozen=True):
    """Models, the latest first."""

    models: list[ListedModelBody]
    """A page of them."""
    total: Whole
    """How many the whole list has."""


@endpoint("GET", "/ceramic/models", own=True)
async def get_models(call: Call[PageQuery]) -> ModelListBody:
    """List models, the latest first, and how much there is of each."""
    services, query = call.services, call.parameters
    page = await services.store.reader.models(query.after, query.size)
    described = await describe_models(services, page.streams)
    return ModelListBody(models=described, total=page.total, next=page.next)


async def describe_streams(
    services: Services, streams: Sequence[ListedStream]
) -> list[ListedStreamBody]:
    """Describe streams by the names of the API."""
    models = [
        StreamId.parse(stream.sort_value) if stream.sort_key == DEFAULT_SORT_KEY else None
        for stream in streams
    ]
    names = await services.store.reader.names_of({*filter(None, models)})
    return [
        ListedStreamBody(
            id=str(stream.id),
            init=str(stream.id.cid),
            controller=stream.controller,
            sort_key=stream.sort_key,
            sort_value=stream.sort_value,
            name=stream.name,
            model_name=names.get(model) if model else None,
            events=stream.events,
            position=stream.position,
            delivered_at=stream.delivered_at,
        )
        for stream, model in zip(streams, models, strict=True)
    ]


async def describe_models(
    services: Services, models: Sequence[ListedStream]
) -> list[ListedModelBody]:
    """Describe models by the names of the API, with how much there is of each."""
    store = services.store
    counts = await store.reader.count_streams(str(model.id) for model in models)
    return [
        ListedModelBody(
            id=str(model.id),
            init=str(model.id.cid),
            name=model.name,
            controller=model.controller,
            streams=counts[str(model.id)],
            events=store.keys.count(KeyRange(*sort_value_range(store.network, str(model.id)))),
        )
        for model in models
    ]


def _filter(query: StreamsQuery) -> StreamFilter:
    if (query.where or query.indexed) and query.model is None:
        raise bad_request("`where` and `indexed` are about documents: give their `model`, too")
    if query.model is not None and (query.sort_key or query.sort_value):
        raise bad_request("give `model`, or `sortKey` and `sortValue`, not both")
    if (query.sort_key is None) is not (query.sort_value is None):
        raise bad_request("give `sortKey` and `sortValue` together")
    if query.sort_key is not None:
        return StreamFilter(query.sort_key, query.sort_value, query.controller)
    value = None if query.model is None else str(query.model)
    return StreamFilter(sort_value=value, controller=query.controller)


_MAX_FOUND: Final = 100
_MAX_QUERY: Final = 500
"""Characters of a query."""


def _query(text: str) -> str:
    query = text.strip()
    if not query:
        raise UnfitError("{name}: empty: give a CID, a StreamID, a DID or a name")
    if len(query) > _MAX_QUERY:
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

    By a CID or a StreamID, or the first 10 or more characters of one; by a whole DID; models also
    by a part of their name.
    """
    services, query = call.services, _normal(call.parameters.q)
    limit = min(call.parameters.limit, _MAX_FOUND)
    reader = services.store.reader
    events = await reader.find_events(query, limit)
    streams = await reader.find_streams(query, limit)
    inits = [event.cid for event in events if event.kind is EventKind.INIT]
    streams += await reader.streams_of(inits)
    models = [] if query.startswith("did:") else await reader.find_models(query, limit)
    controllers = []
    if query.startswith("did:"):
        owned = await reader.streams(StreamFilter(controller=query), None, 0)
        if owned.total:
            controllers = [FoundControllerBody(id=query, streams=owned.total)]
    return SearchBody(
        events=list(map(_describe, events)),
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
    states: dict[State, Literal["delivered", "pending", "waiting"]]
    states = {State.PENDING: "pending", State.DELIVERED: "delivered"}
    state, stream = states.get(event.state, "waiting"), text_of(event.stream)
    return FoundEventBody(str(event.cid), event.kind.value, state, stream)


_MAX_FIELDS: Final = 4
_MAX_FIELD: Final = 1000
"""Characters of a field's name and its text."""
_MAX_COMPUTED: Final = 100
"""Documents that are computed for a page, at most."""
_MAX_SECONDS: Final = 10.0
"""Time to compute them, but for the last one."""
_NOT_COMPUTED: Final = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.GONE,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY,
)
"""The answers for a document that is rejected, forgotten, too large, or set aside."""


async def streams_where(
    services: Services,
    wanted: StreamFilter,
    where: Sequence[str],
    indexed: bool,
    before: int | None,
    limit: int,
) -> StreamPage:
    """Return the latest documents that match a filter and in which fields hold these texts.

    `indexed` leaves out documents that indexers should not show.

    Raises:
        ApiError: 400, `where` is not of that form; 503, documents take long to compute, and others
            do, too.
    """
    fields = _read_fields(where)
    limit, max_bytes = min(limit, _MAX_COMPUTED), 2 * services.limits.stream_bytes
    page = await services.store.reader.streams_with(
        wanted, fields.values(), before, limit, max_bytes
    )
    deadline = time.monotonic() + _MAX_SECONDS
    matching: list[ListedStream] = []
    for stream in page.streams:
        if await _is_match(services, stream, partial(_holds, fields, indexed)):
            matching.append(stream)
        if time.monotonic() > deadline and stream is not page.streams[-1]:
            return replace(page, streams=matching, next=stream.row)
    return replace(page, streams=matching)


def _read_fields(where: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for condition in where:
        field, _, text = condition.partition("=")
        if not field or not text or len(condition) > _MAX_FIELD:
            raise bad_request(f"where: {condition[:100]!r} is not of the form FIELD=TEXT")
        fields[field] = text
    if len(where) > _MAX_FIELDS or len(fields) < len(where):
        raise bad_request(f"where: give up to {_MAX_FIELDS} fields, each once")
    return fields


async def _is_match(
    services: Services, listed: ListedStream, holds: Callable[[Stream], bool]
) -> bool:
    id_ = listed.id
    try:
        return await compute(services, str(id_), id_.cid, id_, holds)
    except ApiError as error:
        if error.status in _NOT_COMPUTED:
            return False
        raise
    except (BudgetError, DamagedEventError):
        return False


def _holds(fields: Mapping[str, str], indexed: bool, stream: Stream) -> bool:
    try:
        data = stream.state().data
    except StreamShapeError:
        return False
    if indexed and not data.metadata["shouldIndex"]:
        return False
    content = data.content if isinstance(data.content, dict) else {}
    return all(content.get(field) == text for field, text in fields.items())
