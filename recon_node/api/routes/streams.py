"""GET /ceramic/streams/{stream_id}: the state of a stream at its tip.

The state is computed from the stream's events on request, in another process
(`recon_node.api.evaluation`). The number and size of the events are limited, and so is the time,
which is checked after each event. See `recon_node.streams.state` for what a state is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import AsText, Body, Parameters, Text, reply
from recon_node.api.services import Services
from recon_node.ceramic import (
    Event,
    InitHeader,
    StreamId,
    StreamIdError,
    StreamType,
    bare_time_event,
    parse_event,
)
from recon_node.ipld import CID, multibase
from recon_node.store import FeedRow, TimeRow
from recon_node.streams import (
    Definitions,
    Statements,
    StreamEvent,
    StreamShapeError,
    StreamState,
    StreamStates,
    accepted_tip,
    definitions_of,
    named_versions,
    select_tip,
    shape_of,
    statements_of,
    stream_state,
)

T = TypeVar("T")


class Within:
    """Yields what is computed, until it takes too long.

    In another process, time begins anew.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return Within, (self._seconds,)

    def __call__(self, items: Iterable[T]) -> Iterable[T]:
        """The same items."""
        for item in items:
            if time.monotonic() > self._deadline:
                raise bad_request(
                    "the state of the stream takes too long to compute on request: it has too many "
                    "events, or its patches are too slow; read its events from the feed"
                )
            yield item


MAX_ERRORS = 100
"""Events with validation errors that an answer lists, the latest ones."""


def _stream_id(text: str) -> StreamId:
    try:
        return StreamId.parse(text)
    except StreamIdError as error:
        raise bad_request(f"Invalid stream ID: {error}") from None


class StreamPath(Parameters):
    """Which stream."""

    stream_id: Annotated[StreamId, AsText, BeforeValidator(_stream_id)]
    """A StreamID, as multibase text."""


class RejectedEventBody(Body):
    """An event that was rejected."""

    event_cid: Text
    """The event's CID."""
    errors: list[str]
    """The reason, in plain English."""


class StreamStateBody(Body):
    """The state of a stream."""

    id: Text
    """The StreamID."""
    event_cid: Text
    """The CID of the tip of the accepted events: what the next event names as its prev."""
    controller: str
    """The DID that the stream belongs to."""
    dimensions: dict[str, str]
    """model, controller, context and unique, each as multibase text."""
    data: str
    """Multibase text of the JSON {metadata, content}."""
    validation_errors: list[RejectedEventBody]
    """Events of the stream that were rejected and changed nothing; the latest 100."""


@endpoint("GET", "/ceramic/streams/{stream_id}", errors=(404,))
async def get_stream(call: Call[StreamPath]) -> Annotated[Response, StreamStateBody]:
    """Read the state of a stream at its tip."""
    text, stream_id = call.request.path_params["stream_id"], call.parameters.stream_id
    return await compute(call.services, text, stream_id.cid, stream_id, _answer)


def _answer(loaded: Loaded) -> Response:
    state = _state_of(loaded)
    if isinstance(state, Rejected):
        stream_id, reason = loaded.events[0].stream_id(), "; ".join(state.errors)
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"Stream not found : {stream_id} (its init event was rejected: {reason})",
        )
    return _render(state)


def not_found(text: str, other: StreamId | None) -> ApiError:
    """The 404 for a stream that is not here; another may start with the same init event."""
    hint = "" if other is None else f" (the stream that starts so is {other})"
    return ApiError(HTTPStatus.NOT_FOUND, f"Stream not found : {text}{hint}")


@dataclass(frozen=True, slots=True)
class Rejected:
    """A stream that has no state, because no event of it was accepted."""

    errors: tuple[str, ...]
    """Why its init event was rejected."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivered events of a stream: all that were signed, and one time event for each time that
    a transaction proves, or more if others build on them."""

    events: Sequence[Event]
    """In feed order. Time events have no CAR."""
    rows: Mapping[CID, FeedRow | TimeRow]
    statements: Statements

    @property
    def faults(self) -> dict[CID, str]:
        """What is wrong with the signatures of the badly signed ones."""
        signed = (row for row in self.rows.values() if isinstance(row, FeedRow))
        return {row.event_cid: row.fault for row in signed if row.fault is not None}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A stream, and what its model demands of it."""

    delivered: Delivered
    model: Delivered | None
    within: Within
    """Bounds the time of what is computed of them."""

    @property
    def events(self) -> Sequence[Event]:
        """One event for each statement, the init event first."""
        return self.delivered.statements.events

    def states(self, keep: Collection[CID] = ()) -> StreamStates:
        """The content after each event."""
        definitions = None
        if self.model is not None:
            definitions = _define(self.model, named_versions(self.events), self.within)
        return StreamStates(self.events, definitions, keep=keep, faults=self.delivered.faults)

    def shapes(self) -> list[StreamEvent[CID]]:
        """The events without their contents."""
        ranks, faults, rows = (
            self.delivered.statements.ranks,
            self.delivered.faults,
            self.delivered.rows,
        )
        return [
            shape_of(
                event,
                time=rows[event.cid].block_time,
                valid=event.cid not in faults,
                rank=ranks[event.cid],
            )
            for event in self.events
        ]


async def compute(
    services: Services,
    text: str,
    init: CID,
    stream_id: StreamId | None,
    function: Callable[[Loaded], T],
) -> T:
    """Compute something of a stream, in another process.

    Args:
        services: what reads, and computes.
        text: how the request names the stream.
        init: the CID of its init event.
        stream_id: its StreamID, if that is known.
        function: computes it; it can be sent to another process.

    Raises:
        ApiError: 404, the stream is not here; 400, it takes more to compute than `limits` allow;
            422, it is set aside.
    """
    async with services.reading_streams:
        loaded = await _load(services, init)
        found = None if loaded is None else loaded.events[0].stream_id()
        if loaded is None or stream_id not in (None, found):
            raise not_found(text, found)
        job = partial(function, loaded)
        return await services.evaluation.of_stream(init, len(loaded.events), job)


async def _load(services: Services, init: CID) -> Loaded | None:
    most, within = services.limits.stream_events, Within(services.limits.stream_seconds)
    delivered = await read_delivered(services, init, most, within)
    if delivered is None:
        return None
    header = _header(delivered.events[0])
    of_model = None
    if header.stream_type is not StreamType.MODEL and header.model is not None:
        of_model = await read_delivered(services, header.model.cid, most, within)
    return Loaded(delivered, of_model, within)


async def read_delivered(
    services: Services, init: CID, most: int, within: Within | None = None
) -> Delivered | None:
    """The delivered events of the stream that `init` starts; None when the stream is not here.

    Raises:
        ApiError: 400, they state more than `most` things, or more bytes than `limits` allow.
    """
    streams, limits = services.store.streams, services.limits
    within = within or Within(limits.stream_seconds)
    # Anybody can make a second event of each signature by ECDSA: hence twice as many.
    rows: list[FeedRow | TimeRow] = [
        *await streams.signed(init, 2 * most + 1, 2 * limits.stream_bytes)
    ]
    if not rows:
        return None
    rows += await streams.time_statements(init, most + 1)
    events = await services.in_long_thread(partial(_parse, init, rows, within))
    known = {event.cid for event in events}
    named = {prev for event in events for prev in event.prevs} - known
    if named:
        copies = [row for row in await streams.time_events(named) if row.event_cid not in known]
        rows += copies
        events += _parse(init, copies, within)
    by_cid = {row.event_cid: row for row in rows}
    events.sort(key=lambda event: _place(by_cid[event.cid]))
    delivered = Delivered(events, by_cid, statements_of(()))
    statements = await services.in_long_thread(partial(statements_of, events, delivered.faults))
    size = sum(len(event.car) for event in statements.events)
    if len(statements.events) > most or size >= limits.stream_bytes:
        raise bad_request(
            f"the stream has more than {most} events or {limits.stream_bytes} bytes, too many for "
            "one answer: read its events from the feed"
        )
    return replace(delivered, statements=statements)


def _parse(init: CID, rows: Sequence[FeedRow | TimeRow], within: Within) -> list[Event]:
    return list(within(event_of(init, row) for row in rows))


def _place(row: FeedRow | TimeRow) -> int:
    return (row.position if isinstance(row, FeedRow) else row.first) or 0


def event_of(init: CID, row: FeedRow | TimeRow) -> Event:
    """The event of a row of the stream that `init` starts."""
    if isinstance(row, FeedRow):
        return parse_event(row.car)
    return bare_time_event(row.event_cid, init, row.prev, row.proof)


def _header(init: Event) -> InitHeader:
    if init.header is None:
        raise RuntimeError(f"the stream {init.init} starts with an event that is not its init")
    return init.header


def _define(model: Delivered, versions: set[CID], within: Within) -> Definitions | None:
    events = model.statements.events
    if _header(events[0]).stream_type is not StreamType.MODEL:
        return None
    states = StreamStates(events, faults=model.faults)
    return definitions_of(within(states.all()), events[0].cid, versions)


def _state_of(loaded: Loaded) -> StreamState | Rejected:
    events, within, shapes = loaded.events, loaded.within, loaded.shapes()
    try:
        likely = select_tip(shapes).event
    except StreamShapeError:
        return Rejected(("its capability had expired when it was anchored",))
    states = loaded.states(keep=(likely,))
    deque(within(states.all()), maxlen=0)
    init = events[0].cid
    rejected = states.rejected
    try:
        tip = accepted_tip(shapes, rejected).event if rejected else likely
    except StreamShapeError:
        return Rejected(rejected[init])
    at_tip = states.at(tip) if tip == likely else deque(within(states.branch(tip)), maxlen=1).pop()
    return stream_state(_header(events[0]), init, at_tip, rejected)


def _render(state: StreamState) -> Response:
    errors = [
        RejectedEventBody(event_cid=str(cid), errors=list(messages))
        for cid, messages in list(state.validation_errors.items())[-MAX_ERRORS:]
    ]
    dimensions = state.dimensions.items()
    return reply(
        StreamStateBody(
            id=str(state.id),
            event_cid=str(state.event_cid),
            controller=state.controller,
            dimensions={name: multibase.encode(value, "base64url") for name, value in dimensions},
            data=multibase.encode(state.data.to_json(), "base64url"),
            validation_errors=errors,
        )
    )
