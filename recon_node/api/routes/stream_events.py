"""GET /ceramic/streams/{stream_id}/events: the events of a stream, and the state of each.

Besides the delivered ones there are those that wait for an event that they build on, or for the
lookup of an anchor. The answer has what a client needs to draw the stream and to compute its tip.
What strangers add to the stream fills up the room that is left, and is cut off where that ends.

GET /ceramic/streams/{stream_id}/picture has the stream as a drawing, and why its tip is its tip.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Raw, field
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
    WholeParameter,
    as_raw,
    reply,
    text_of,
)
from recon_node.api.routes.events import EventCid
from recon_node.api.routes.streams import Delivered, compute, event_of, not_found, read_delivered
from recon_node.ceramic import Event, EventId, StreamId, StreamIdError, parse_event, validity_of
from recon_node.draw.layout import fold_runs, lay_out
from recon_node.draw.svg import draw_svg
from recon_node.ipld import CID, IpldError
from recon_node.store import HeldRow
from recon_node.streams import Statements, Stream, StreamShapeError, shape_of, statements_of
from recon_node.streams.picture import HeldEvent, Progress, stream_picture

T = TypeVar("T")

_STRANGERS_SHARE: Final = 16
"""Badly signed events that are listed have at most this part of the bytes of a stream."""


@dataclass(frozen=True, slots=True)
class _Listed:
    """An event of the answer."""

    event: Event
    event_id: EventId
    state: Progress
    fault: str | None
    position: int | None = None
    time: int | None = None


def _parse(text: str) -> tuple[CID, StreamId | None]:
    """The CID of a stream's init event, given as such or in a StreamID; raises `ApiError` 400."""
    try:
        stream_id = StreamId.parse(text)
    except StreamIdError as error:
        try:
            return CID.parse(text), None
        except IpldError:
            raise bad_request(str(error)) from None
    return stream_id.cid, stream_id


class StreamOrInitPath(Parameters, frozen=True):
    """Which stream."""

    stream_id: Annotated[tuple[CID, StreamId | None], Parsed(_parse)]
    """A StreamID, as multibase text; or its init event's CID."""


class StreamEventBody(Body, frozen=True):
    """An event of a stream."""

    cid: str
    """The event's CID."""
    kind: Literal["init", "data", "time"]
    prev: list[str]
    """The CIDs of the events that it builds on."""
    height: Whole
    """As in its EventId: 0 for the init event."""
    state: Literal["delivered", "pending", "waiting"]
    """pending: an anchor has not been looked up yet, its own or that of an event it builds on;
    waiting: an event that it builds on is missing; or it is badly signed or builds on such an
    event, and no valid data event covers that."""
    position: int | None
    """In the feed."""
    time: int | None
    """Of a time event: Unix seconds of its anchor's block."""
    chain_id: str | None
    """Of a time event: its anchor's chain (CAIP-2)."""
    expires: int | None
    """When the capability that it is signed by expires, in Unix seconds."""
    fault: str | None
    """What is wrong with its signature; null if it is valid. Such an event is never the tip."""
    copy_of: str | None
    """The CID of the event that is shown in its place, if this is a copy of the same statement."""
    rank: str
    """Decides between events of the same time: the lowest wins (base16)."""


class StreamEventsBody(Body, frozen=True):
    """The events of a stream."""

    id: str
    """The StreamID."""
    init: str
    """The CID of its init event."""
    events: list[StreamEventBody]
    """The delivered ones in feed order, then the others."""


@endpoint("GET", "/ceramic/streams/{stream_id}/events", errors=(404,), own=True)
async def get_stream_events(call: Call[StreamOrInitPath]) -> Annotated[Response, StreamEventsBody]:
    """List the events of a stream, delivered or not.

    400 beyond the limits of a stream's state.
    """
    return await compute_held(call.services, *call.parameters.stream_id, _render)


@dataclass(frozen=True, slots=True)
class Held:
    """The events of a stream: delivered ones, and others."""

    stream_id: StreamId
    delivered: Delivered
    others: Sequence[_Listed]

    def to_draw(self) -> list[HeldEvent]:
        """The events as they are drawn."""
        listed, statements = _listed(self.delivered, self.others)
        by_cid = {entry.event.cid: entry for entry in listed}
        return [_drawn(event, by_cid[event.cid], statements) for event in statements.events]


async def compute_held(
    services: Services, init: CID, stream_id: StreamId | None, function: Callable[[Held], T]
) -> T:
    """Compute something of the events of a stream, in another process.

    Raises:
        ApiError: 404, the stream is not here; 400, it has too many events; 422, it is set aside.
    """

    async def attempt() -> T:
        held = await _read(services, init, stream_id)
        events = len(held.delivered.events) + len(held.others)
        size = held.delivered.size + sum(len(other.event.car) for other in held.others)
        job = partial(function, held)
        return await services.evaluation.of_stream(Subject(init), events, job, size)

    return await services.evaluation.in_turn(Subject(init), attempt)


async def _read(services: Services, init: CID, stream_id: StreamId | None) -> Held:
    delivered = await read_delivered(services, init, services.limits.stream_listed)
    actual = None if delivered is None else delivered.events[0].stream_id()
    if delivered is None or actual is None or stream_id not in (None, actual):
        raise not_found(str(stream_id or init), actual)
    room = max(0, services.limits.stream_listed - len(delivered.events))
    copies = await services.store.reader.time_copies(init, services.limits.stream_listed)
    rows = {row.event_cid: row for row in copies if row.event_cid not in delivered.rows}
    rows = dict(islice(rows.items(), room))
    events = [*delivered.events, *(event_of(init, row) for row in rows.values())]
    delivered = replace(delivered, events=events, rows={**delivered.rows, **rows})
    return Held(actual, delivered, await _undelivered(services, init, room - len(rows)))


async def _undelivered(services: Services, init: CID, room: int) -> list[_Listed]:
    """The events of a stream that are not delivered: first the controller's own."""
    reader, most = services.store.reader, services.limits.stream_bytes
    listed: dict[CID, _Listed] = {}  # one with an unknown height may have several EventIds
    for well_signed in (True, False):
        max_bytes = most if well_signed else most // _STRANGERS_SHARE
        rows = await reader.undelivered_events(init, room, max_bytes, well_signed=well_signed)
        parsed = await services.in_long_thread(partial(_parse_held, rows))
        listed |= {item.event.cid: item for item in parsed[: room - len(listed)]}
        if well_signed:
            times = await reader.undelivered_times(init, room)
            for row in times[: room - len(listed)]:
                state: Progress = "pending" if row.is_pending else "waiting"
                listed[row.event_cid] = _Listed(event_of(init, row), row.event_id, state, None)
    return sorted(listed.values(), key=lambda item: item.event_id.height)


def _parse_held(rows: Sequence[HeldRow]) -> list[_Listed]:
    states: tuple[Progress, Progress] = ("waiting", "pending")
    return [
        _Listed(parse_event(row.car).lazily(), row.event_id, states[row.is_pending], row.fault)
        for row in rows
    ]


def _render(held: Held) -> Response:
    listed, statements = _listed(held.delivered, held.others)
    described = [_describe(entry, statements) for entry in listed]
    init = str(held.delivered.events[0].cid)
    return reply(StreamEventsBody(str(held.stream_id), init, described))


def _listed(delivered: Delivered, others: Sequence[_Listed]) -> tuple[list[_Listed], Statements]:
    """The delivered events, then the others; and what they state. A delivered copy is shown rather
    than one that is not delivered."""
    faults, listed = delivered.faults, []
    for event in delivered.events:
        row, fault = delivered.rows[event.cid], faults.get(event.cid)
        listed.append(
            _Listed(event, row.event_id, "delivered", fault, row.position, row.block_time)
        )
    listed.sort(key=lambda entry: entry.position or 0)
    faulty = faults.keys() | {entry.event.cid for entry in others if entry.fault is not None}
    first = statements_of((entry.event for entry in listed), faulty)
    every = (*first.events, *(entry.event for entry in others))
    statements = statements_of(every, faulty, keep_first=True)
    copies = {cid: statements.shown(shown) for cid, shown in first.copies.items()}
    return [*listed, *others], replace(statements, copies={**copies, **statements.copies})


def _drawn(event: Event, entry: _Listed, statements: Statements) -> HeldEvent:
    chain_id = None if event.proof is None else event.proof.chain_id
    rank = statements.ranks[event.cid]
    shape = shape_of(event, time=entry.time, valid=entry.fault is None, rank=rank)
    return HeldEvent(shape, entry.event_id.height, entry.state, chain_id)


def _describe(entry: _Listed, statements: Statements) -> StreamEventBody:
    event = entry.event
    return StreamEventBody(
        cid=str(event.cid),
        kind=event.kind.value,
        prev=[str(prev) for prev in event.prevs],
        height=entry.event_id.height,
        state=entry.state,
        position=entry.position,
        time=entry.time,
        chain_id=None if event.proof is None else event.proof.chain_id,
        expires=None if entry.fault is not None else validity_of(event).expires,
        fault=entry.fault,
        copy_of=text_of(statements.copies.get(event.cid)),
        rank=statements.ranks[statements.shown(event.cid)].hex(),
    )


class StreamEventPath(StreamOrInitPath, frozen=True):
    """Which event of which stream."""

    event_id: EventCid
    """The event's CID; or its EventId, in any multibase."""


class EventStateBody(Body, frozen=True):
    """A stream after one of its events."""

    event_cid: str
    """The event's CID."""
    height: Whole
    """The longest distance from the init event."""
    content: Raw
    """The content, as DAG-JSON; null: the stream has none."""
    metadata: Raw
    """`shouldIndex` and `modelVersion`."""
    errors: list[str]
    """Why the event was rejected: the content is then that before it. Empty if it was accepted."""


@endpoint("GET", "/ceramic/streams/{stream_id}/events/{event_id}", errors=(404,), own=True)
async def get_event_state(call: Call[StreamEventPath]) -> Annotated[Response, EventStateBody]:
    """Read the content of a stream after one of its delivered events.

    It says why that event was rejected, if it was.
    """
    render = partial(_render_state, call.parameters.event_id)
    text = call.request.path_params["stream_id"]
    return await compute(call.services, text, *call.parameters.stream_id, render)


def _render_state(cid: CID, stream: Stream) -> Response:
    try:
        state = stream.at(cid)
    except StreamShapeError:
        raise ApiError(HTTPStatus.NOT_FOUND, f"the stream has no delivered event {cid}") from None
    data = from_json(state.data.to_json())
    content, metadata = as_raw(data.get("content")), as_raw(data.get("metadata"))
    errors = list(state.validation_errors)
    return reply(EventStateBody(str(cid), state.height, content, metadata, errors))


class PictureParameters(StreamOrInitPath, frozen=True):
    """Which stream, and how to draw it."""

    everything: FlagParameter = field(default=False, name="all")
    """Whether to draw long runs without forks in full; they are folded by default."""
    limit: WholeParameter = 200
    """Maximum number of rows, from the newest event: 200 by default, at most 2,000."""


class TipDecisionBody(Body, frozen=True):
    """How a fork was decided."""

    rule: str
    """earliest time (rule 4 of CIP-145), lowest CID (rule 5), only data, or earliest anchor."""
    winner: str
    """The CID of the event that won."""
    rivals: list[str]
    """Those of the events that lost."""


class StreamPictureBody(Body, frozen=True):
    """A stream as a drawing."""

    id: str
    """The StreamID."""
    summary: str
    """How many events there are, and whether the stream has diverged."""
    notes: list[str]
    """Why the tip is the tip, in sentences."""
    tip: str | None
    """The CID of the tip, null if there is none."""
    candidates: list[str]
    """The CIDs of the events that could have become the tip."""
    pruned: list[str]
    """Those of the events that the tip does not cover; the first 1,000."""
    diverged: bool
    """Whether there is a fork that no event has merged."""
    decisions: list[TipDecisionBody]
    """How the forks were decided, in this order."""
    merge: list[str]
    """What an event would name as its prevs to merge the stream; empty unless it has diverged."""
    svg: str
    """The drawing. Each event is a group of the class `node` whose title is the event's CID."""


MAX_ROWS = 2000
MAX_PRUNED = 1000


@endpoint("GET", "/ceramic/streams/{stream_id}/picture", errors=(404,), own=True)
async def get_stream_picture(
    call: Call[PictureParameters],
) -> Annotated[Response, StreamPictureBody]:
    """Draw a stream, and explain its tip."""
    draw = partial(_draw, call.parameters.everything, min(call.parameters.limit, MAX_ROWS))
    return await compute_held(call.services, *call.parameters.stream_id, draw)


def _draw(everything: bool, rows: int, held: Held) -> Response:
    stream_id, events = held.stream_id, held.to_draw()
    try:
        drawn = stream_picture(f"Stream {stream_id}", events, int(time.time()))
    except (StreamShapeError, ValueError) as error:
        raise ApiError(HTTPStatus.NOT_FOUND, f"the events here are not a stream: {error}") from None
    picture, tip = drawn.picture, drawn.tip
    nodes = picture.nodes if everything else fold_runs(picture.nodes, picture.unit)
    described = StreamPictureBody(
        id=str(stream_id),
        svg=draw_svg(picture, lay_out(nodes, rows)),
        summary=picture.summary,
        notes=list(picture.notes),
        tip=None if tip is None else str(tip.event),
        candidates=_texts(tip.candidates if tip else ()),
        pruned=_texts(tip.pruned[:MAX_PRUNED] if tip else ()),
        diverged=tip is not None and tip.diverged,
        decisions=[
            TipDecisionBody(decision.rule.value, str(decision.winner), _texts(decision.rivals))
            for decision in (tip.reasons if tip else ())
        ],
        merge=_texts(drawn.merge),
    )
    return reply(described)


def _texts(ids: Iterable[object]) -> list[str]:
    return list(map(str, ids))
