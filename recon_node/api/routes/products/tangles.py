"""GET /ceramic/tangles/...: messages of many authors in one order (SIP "Tangles").

A message is a document; see `recon_node.tangles.documents`. What a tangle is follows from the
messages that are here: nodes that have the same ones answer alike, but for `ties=received`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from msgspec import UNSET, Raw, UnsetType
from pydantic_core import from_json
from starlette.responses import Response

from recon_node.api.endpoint import Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.evaluation import Subject
from recon_node.api.models import (
    Body,
    FlagParameter,
    Parameters,
    Parsed,
    Whole,
    as_raw,
    reply,
    text_of,
)
from recon_node.api.routes.listings import ListQuery
from recon_node.api.routes.streams import (
    STREAM_ID,
    Deadline,
    Delivered,
    define,
    read_delivered,
)
from recon_node.ceramic import Event, StreamId, parse_event
from recon_node.draw.layout import fold_runs, lay_out, short_name
from recon_node.draw.svg import draw_svg
from recon_node.ipld import CID, CidError
from recon_node.streams import Definitions, Stream, data_json, statements_of
from recon_node.tangles.documents import DocumentMessage, Ties, message_of, tangle_of_documents
from recon_node.tangles.index import Tangles
from recon_node.tangles.pictures import tangle_picture
from recon_node.tangles.tangle import Tangle, TangleError

MAX_MESSAGES: Final = 2_000
"""Candidates of a tangle that is computed, at most."""
MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of their init events, and of the streams of their models."""
_SECONDS: Final = 10.0
_SECONDS_EACH: Final = 1.0
"""For all messages, and for each and its model."""
_READ_AT_ONCE: Final = 100
"""Messages that are read at once."""
_ROWS: Final = 200
"""Rows of a drawing, at most."""


_NULL: Final = Raw(b"null")


def _read_after(text: str) -> tuple[bytes, str]:
    cid, _, name = text.partition(".")
    try:
        return bytes(CID.parse(cid)), name
    except CidError as error:
        raise bad_request(f"after: {error}: it is the `next` of another page") from None


class TanglePath(Parameters, frozen=True):
    """The tangles with which root."""

    root: Annotated[StreamId, STREAM_ID]
    """The StreamID of the message that starts them."""


class TangleQuery(TanglePath, frozen=True):
    """Which tangle, and how it is shown."""

    name: str
    """The tangle's name in `content.tangles`."""
    ties: Ties = "asserted"
    """What orders messages that the links leave open. asserted: the `timestamp` in their content,
    so that all nodes have one order. received: the earlier of that and of when this node got the
    message, so that nobody comes first by a wrong clock."""
    content: FlagParameter = True
    """Whether to include the contents."""
    drawn: FlagParameter = False
    """Whether to draw it, too."""


class TanglesQuery(ListQuery, frozen=True):
    """Which page of the list of tangles."""

    after: Annotated[tuple[bytes, str], Parsed(_read_after)] = (b"", "")
    """The `next` of the page before; the first page without it."""


class ListedTangleBody(Body, frozen=True):
    """A tangle, as lists have it."""

    root: str | None
    """The StreamID of the message that starts it; null if the node does not have the message."""
    init: CID
    """The CID of that message's init event."""
    name: str
    """The tangle's name."""
    candidates: Whole
    """Documents that name it; not all of them may belong to it."""


class TangleListBody(Body, frozen=True):
    """Tangles, in the order of their roots and names."""

    tangles: list[ListedTangleBody]
    """A page of them."""
    next: str | None
    """What `after` is for the following page; null: this is the last one."""


class NamedTangleBody(Body, frozen=True):
    """A tangle that documents name."""

    name: str
    """Its name."""
    candidates: Whole
    """Documents that name it, the root included; not all of them may belong to it."""


class TangleNamesBody(Body, frozen=True):
    """The tangles that a message starts."""

    root: str
    """The StreamID of the message."""
    tangles: list[NamedTangleBody]
    """By name."""


class TangleMessageBody(Body, frozen=True):
    """A message of a tangle."""

    id: str
    """The StreamID of the document."""
    author: str
    """The DID of its controller."""
    model: str | None
    """The StreamID of its model; null for a tile."""
    timestamp: float | None
    """When its author says to have written it, in Unix milliseconds."""
    received: int | None
    """When this node delivered it, in Unix milliseconds."""
    previous: list[str]
    """The messages on which it builds; none for the root."""
    content: Raw
    """The content of its init event, as DAG-JSON. Later events of the document do not count."""


class ExcludedMessageBody(Body, frozen=True):
    """A message that names the tangle, but does not belong to it."""

    id: str
    """The StreamID of the document."""
    author: str
    """The DID of its controller."""
    rule: str
    """The rule that it breaks, as a word."""
    reason: str
    """The rule, as a sentence, and what breaks it."""


class TangleBody(Body, frozen=True):
    """A tangle."""

    root: str
    """The StreamID of the message that starts it."""
    name: str
    """Its name."""
    tips: list[str]
    """The messages on which none builds: what the next message names as `previous`."""
    messages: list[TangleMessageBody]
    """The messages, each after all on which it builds."""
    excluded: list[ExcludedMessageBody]
    """Those that do not belong to it."""
    truncated: bool
    """Whether more documents name the tangle than were looked at: beyond 2,000, 16 MiB or 10 s,
    those that came first and few of each author are."""
    svg: str | UnsetType = UNSET
    """Its drawing, with `drawn`: the latest 200 messages, long runs without forks folded."""


@endpoint("GET", "/ceramic/tangles", errors=(404,), own=True)
async def get_tangles(call: Call[TanglesQuery]) -> TangleListBody:
    """List the tangles that documents name."""
    query = call.parameters
    rows = await _tangles(call.services).all(query.after, query.size + 1)
    tangles = [ListedTangleBody(id_, init, name, count) for init, name, count, id_ in rows]
    following = query.last([f"{tangle.init}.{tangle.name}" for tangle in tangles])
    return TangleListBody(tangles[: query.size], following)


@endpoint("GET", "/ceramic/tangles/{root}", errors=(404,), own=True)
async def get_tangle_names(call: Call[TanglePath]) -> TangleNamesBody:
    """List the tangles that a document starts."""
    root = call.parameters.root
    names = await _tangles(call.services).names(root.cid)
    if not names:
        raise ApiError(HTTPStatus.NOT_FOUND, f"no document names a tangle with the root {root}")
    tangles = [NamedTangleBody(name=name, candidates=count) for name, count in names.items()]
    return TangleNamesBody(root=str(root), tangles=tangles)


@endpoint("GET", "/ceramic/tangles/{name}/{root}", errors=(404,), own=True)
async def get_tangle(call: Call[TangleQuery]) -> Annotated[Response, TangleBody]:
    """Read a tangle: its messages in order, its tips, and what is excluded from it."""
    services, query = call.services, call.parameters
    subject = Subject(query.root.cid, query.name)

    async def attempt() -> Response:
        read = await _read(services, query.root, query.name)
        job = partial(_answer, query, read)
        size = sum(len(car) for car, _ in read.messages)
        return await services.evaluation.of_stream(subject, len(read.messages), job, size)

    return await services.evaluation.in_turn(subject, attempt)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a tangle is computed of."""

    messages: Sequence[tuple[bytes, int | None]]
    """The init events of its candidates, the most important ones first, and when they came."""
    models: Mapping[CID, Delivered | str]
    """Their models by init event, or why one is not read."""
    is_cut: bool


async def _read(services: Services, root: StreamId, name: str) -> _Read:
    reader = services.store.reader
    index = _tangles(services)
    candidates, is_cut = await index.candidates(root.cid, name, MAX_MESSAGES, MAX_BYTES)
    messages: list[tuple[bytes, int | None]] = []
    for start in range(0, len(candidates), _READ_AT_ONCE):
        batch = candidates[start : start + _READ_AT_ONCE]
        cars = await reader.cars_by_cid([candidate.cid for candidate in batch])
        pairs = zip(cars, batch, strict=True)
        messages += [(car, candidate.received) for car, candidate in pairs if car is not None]
    models: dict[CID, Delivered | str] = {}
    left = MAX_BYTES
    for cid in dict.fromkeys(candidate.model for candidate in candidates):
        if cid is None:
            continue
        try:
            model = await read_delivered(services, cid, services.limits.stream_events, left)
        except ApiError:
            models[cid] = "its model is too large, or there are too many"
        else:
            if model is not None:
                models[cid] = model
                left -= model.size
    return _Read(messages, models, is_cut)


def _answer(query: TangleQuery, read: _Read) -> Response:
    deadline, models = time.monotonic() + _SECONDS, _Models(read.models)
    messages: dict[str, DocumentMessage] = {}
    contents: dict[str, Raw] = {}
    for car, received in read.messages:
        if time.monotonic() > deadline:
            read = replace(read, is_cut=True)
            break
        event = parse_event(car)
        if (message := message_of(event)) is not None:
            id_, errors = str(message.id), models.errors(event)
            if query.content:
                contents[id_] = as_raw(from_json(data_json({}, message.content))["content"])
            # Without its content, which takes up to a hundred times its bytes.
            messages[id_] = replace(message, content={}, received=received, errors=errors)
    try:
        tangle = tangle_of_documents(messages.values(), query.name, query.root, query.ties)
    except TangleError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None
    body = TangleBody(
        root=str(query.root),
        name=query.name,
        tips=list(tangle.tips),
        messages=[
            _describe(messages[id_], tangle.previous[id_], contents.get(id_, _NULL))
            for id_ in tangle.order
        ],
        excluded=[
            ExcludedMessageBody(
                id=id_,
                author=messages[id_].author,
                rule=exclusion.rule.name.lower(),
                reason="; ".join(messages[id_].errors) or str(exclusion),
            )
            for id_, exclusion in tangle.excluded.items()
        ],
        truncated=read.is_cut,
        svg=_draw(query, tangle, messages) if query.drawn else UNSET,
    )
    return reply(body)


class _Models:
    """The models of messages; each is computed once."""

    def __init__(self, models: Mapping[CID, Delivered | str]) -> None:
        self._models = models
        self._streams: dict[CID, Stream | str] = {}
        self._definitions: dict[tuple[CID, frozenset[CID]], Definitions | None] = {}

    def errors(self, event: Event) -> tuple[str, ...]:
        """Why the model of a message rejects its init event, or cannot be asked."""
        assert event.header is not None
        deadline, model = Deadline(_SECONDS_EACH), event.header.model
        stream = Stream(statements_of([event]), {}, {}, on_event=deadline)
        try:
            if model is not None:
                stream = stream.with_definitions(self._define(model.cid, stream.versions))
            return stream.rejected.get(event.cid, ())
        except ApiError as error:
            return (str(error),)

    def _define(self, model: CID, versions: frozenset[CID]) -> Definitions | None:
        if (model, versions) not in self._definitions:
            self._definitions[model, versions] = self._definitions_of(model, versions)
        return self._definitions[model, versions]

    def _definitions_of(self, model: CID, versions: frozenset[CID]) -> Definitions | None:
        known = self._streams.get(model)
        if known is None:
            delivered = self._models.get(model)
            if delivered is None:
                return None
            try:
                if isinstance(delivered, str):
                    raise bad_request(delivered)
                known = delivered.stream(Deadline(_SECONDS_EACH))
                known.states.all()
            except ApiError as error:
                known = str(error)
            self._streams[model] = known
        if isinstance(known, str):
            raise bad_request(known)
        return define(known, versions)


def _draw(query: TangleQuery, tangle: Tangle[str], messages: Mapping[str, DocumentMessage]) -> str:
    authors = {id_: (short_name(message.author),) for id_, message in messages.items()}
    picture = tangle_picture(f"Tangle {query.name!r} of {query.root}", tangle, authors)
    return draw_svg(picture, lay_out(fold_runs(picture.nodes, picture.unit), _ROWS))


def _describe(message: DocumentMessage, previous: Sequence[str], content: Raw) -> TangleMessageBody:
    ids, times = (str(message.id), message.author), (message.timestamp, message.received)
    return TangleMessageBody(*ids, text_of(message.model), *times, list(previous), content)


def _tangles(services: Services) -> Tangles:
    if services.tangles is None:
        raise ApiError(HTTPStatus.NOT_FOUND, "this node keeps no index of tangles")
    return services.tangles
