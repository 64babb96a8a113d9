"""GET /ceramic/streams/{stream_id}: the state of a stream at its tip.

The state is computed from the stream's events on request, in another process
(`recon_node.api.evaluation`). The number and size of the events are limited, and so is the time,
which is checked after each event. See `recon_node.streams.state` for what a state is.

GET /ceramic/streams/{stream_id}/merge has the event that would merge a diverged stream (CIP-145).
The node proposes, and the owner of the controller's key signs. See `recon_node.streams.merging` for
how branches are merged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from msgspec import UNSET, Raw, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.evaluation import Subject
from recon_node.api.models import Body, Parameters, Whole, as_raw, parsed_by, reply
from recon_node.ceramic import (
    Event,
    StreamId,
    StreamType,
    bare_time_event,
    parse_event,
)
from recon_node.ipld import CID, dag_cbor, dag_json, multibase
from recon_node.store import FeedRow, TimeRow
from recon_node.streams import (
    Conflict,
    Definitions,
    MergeProposal,
    Statements,
    Stream,
    StreamShapeError,
    StreamState,
    definitions_of,
    statements_of,
)

T = TypeVar("T")


class Deadline:
    """Raises `ApiError` when computing takes too long.

    In another process, it begins anew.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __reduce__(self) -> tuple[Any, ...]:
        return Deadline, (self._seconds,)

    def __call__(self) -> None:
        """Raise `ApiError` 400 if the time is over."""
        if time.monotonic() > self._deadline:
            raise bad_request(
                "the state of the stream takes too long to compute on request: it has too many "
                "events, or its patches are too slow; read its events from the feed"
            )


_PREVIEW = 100
"""Characters of content in a preview."""
MAX_DECODED = 1024 * 1024
"""Bytes of events whose payloads are kept decoded, here and where they are computed."""
MAX_ERRORS = 100
"""Events with validation errors that an answer lists, the latest ones."""


STREAM_ID: Final = parsed_by(StreamId.parse)


class StreamPath(Parameters, frozen=True):
    """Which stream."""

    stream_id: Annotated[StreamId, STREAM_ID]
    """A StreamID, as multibase text."""


class RejectedEventBody(Body, frozen=True):
    """An event that was rejected."""

    event_cid: str
    """The event's CID."""
    errors: list[str]
    """The reason, in plain English."""


class StreamStateBody(Body, frozen=True):
    """The state of a stream."""

    id: str
    """The StreamID."""
    event_cid: str
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
    """Read the state of a stream at its tip.

    404 if it is not here, or its init event was rejected.
    """
    return await compute_named(call, _answer)


class StreamPreviewBody(Body, frozen=True):
    """A stream in a line."""

    content: str | None
    """The beginning of its content at the tip, as JSON; null if its init event was rejected."""
    diverged: bool
    """Whether it has branches that no event merges."""


@endpoint("GET", "/ceramic/streams/{stream_id}/preview", errors=(404,), own=True)
async def get_stream_preview(call: Call[StreamPath]) -> StreamPreviewBody:
    """Read the beginning of a stream's content, for lists."""
    return await compute_named(call, _preview)


def _preview(stream: Stream) -> StreamPreviewBody:
    try:
        content = json.loads(stream.state().data.to_json())["content"]
    except StreamShapeError:
        return StreamPreviewBody(None, diverged=False)
    text = json.dumps(content, ensure_ascii=False)
    return StreamPreviewBody(text[:_PREVIEW], diverged=bool(stream.open_tips))


def _answer(stream: Stream) -> Response:
    try:
        return _render(stream.state())
    except StreamShapeError:
        expired = ("its capability had expired when it was anchored",)
        why = "; ".join(stream.rejected.get(stream.id.cid, expired))
        text = f"Stream not found : {stream.id} (its init event was rejected: {why})"
        raise ApiError(HTTPStatus.NOT_FOUND, text) from None


def not_found(text: str, other: StreamId | None) -> ApiError:
    """The 404 for a stream that is not here; another may start with the same init event."""
    hint = "" if other is None else f" (the stream that starts so is {other})"
    return ApiError(HTTPStatus.NOT_FOUND, f"Stream not found : {text}{hint}")


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

    @property
    def size(self) -> int:
        """Bytes of its statements."""
        return sum(len(event.car) for event in self.statements.events)

    def stream(self, deadline: Deadline, model: Delivered | None = None) -> Stream:
        """The stream, with what its model defines."""
        times = {cid: row.block_time for cid, row in self.rows.items()}
        known = {cid: time for cid, time in times.items() if time is not None}
        stream = Stream(self.statements, known, self.faults, on_event=deadline)
        if model is None:
            return stream
        return stream.with_definitions(define(model.stream(deadline), stream.versions))


async def compute_named(call: Call[StreamPath], function: Callable[[Stream], T]) -> T:
    """Compute something of the stream that a request names, as `compute` does."""
    text, stream_id = call.request.path_params["stream_id"], call.parameters.stream_id
    return await compute(call.services, text, stream_id.cid, stream_id, function)


async def compute(
    services: Services,
    text: str,
    init: CID,
    stream_id: StreamId | None,
    function: Callable[[Stream], T],
) -> T:
    """Compute something of a stream, in another process.

    `function` can be sent to another process.

    Raises:
        ApiError: 404, the stream is not here; 400, it takes more to compute than `limits` allow;
            422, it is set aside.
    """

    async def attempt() -> T:
        most, deadline = services.limits.stream_events, Deadline(services.limits.stream_seconds)
        delivered = await read_delivered(services, init, most)
        other = None if delivered is None else delivered.events[0].stream_id()
        if delivered is None or stream_id not in (None, other):
            raise not_found(text, other)
        header, of_model = delivered.events[0].header, None
        if header and header.model and header.stream_type is not StreamType.MODEL:
            of_model = await read_delivered(services, header.model.cid, most)
        job = partial(_run, function, delivered, of_model, deadline)
        size = delivered.size + (of_model.size if of_model else 0)
        events = len(delivered.statements.events)
        return await services.evaluation.of_stream(Subject(init), events, job, size)

    return await services.evaluation.in_turn(Subject(init), attempt)


def _run(
    function: Callable[[Stream], T],
    delivered: Delivered,
    model: Delivered | None,
    deadline: Deadline,
) -> T:
    return function(delivered.stream(deadline, model))


async def read_delivered(
    services: Services, init: CID, most: int, max_bytes: int | None = None
) -> Delivered | None:
    """The delivered events of the stream that `init` starts; None when the stream is not here.

    Raises:
        ApiError: 400, they state more than `most` things, or more bytes than that, or than `limits`
            allow; or it takes too long to read them.
    """
    reader, limits = services.store.reader, services.limits
    deadline = Deadline(limits.stream_seconds)
    max_bytes = limits.stream_bytes if max_bytes is None else max_bytes
    # Anybody can make a second event of each signature by ECDSA: hence twice as many.
    rows: list[FeedRow | TimeRow] = [*await reader.signed_events(init, 2 * most + 1, 2 * max_bytes)]
    if not rows:
        return None
    rows += await reader.time_statements(init, most + 1)
    events = await services.in_long_thread(partial(_parse, init, rows, deadline))
    known = {event.cid for event in events}
    named = {prev for event in events for prev in event.prevs} - known
    if named:
        copies = [row for row in await reader.time_events(named) if row.event_cid not in known]
        rows += copies
        events += _parse(init, copies, deadline)
    by_cid = {row.event_cid: row for row in rows}
    events.sort(key=lambda event: _position(by_cid[event.cid]))
    delivered = Delivered(events, by_cid, statements_of(()))
    statements = await services.in_long_thread(partial(statements_of, events, delivered.faults))
    delivered = replace(delivered, statements=statements)
    if len(statements.events) > most or delivered.size >= max_bytes:
        raise bad_request(
            f"the stream has more than {most} events or {max_bytes} bytes, too many for "
            "one answer: read its events from the feed"
        )
    return delivered


def _parse(init: CID, rows: Sequence[FeedRow | TimeRow], deadline: Deadline) -> list[Event]:
    size = sum(len(row.car) for row in rows if isinstance(row, FeedRow))
    events = []
    for row in rows:
        deadline()
        event = event_of(init, row)
        events.append(event if size <= MAX_DECODED else event.lazily())
    return events


def _position(row: FeedRow | TimeRow) -> int:
    return (row.position if isinstance(row, FeedRow) else row.first) or 0


def event_of(init: CID, row: FeedRow | TimeRow) -> Event:
    """The event of a row of the stream that `init` starts."""
    if isinstance(row, FeedRow):
        return parse_event(row.car)
    return bare_time_event(row.event_cid, init, row.prev, row.proof)


def define(model: Stream, versions: Collection[CID]) -> Definitions | None:
    """Return what a model defines for documents that name these versions; None: not a model."""
    if model.header.stream_type is not StreamType.MODEL:
        return None
    return definitions_of(model.states.all(), model.id.cid, versions)


def _render(state: StreamState) -> Response:
    errors = [
        RejectedEventBody(event_cid=str(cid), errors=list(messages))
        for cid, messages in list(state.validation_errors.items())[-MAX_ERRORS:]
    ]
    dimensions = {name: _base64(value) for name, value in state.dimensions.items()}
    ids, data = (str(state.id), str(state.event_cid)), _base64(state.data.to_json())
    return reply(StreamStateBody(*ids, state.controller, dimensions, data, errors))


def _base64(value: bytes) -> str:
    return multibase.encode(value, "base64url")


class BranchValueBody(Body, frozen=True):
    """A value on one branch."""

    prev: str
    """The CID of the branch's tip."""
    value: Raw | UnsetType = UNSET
    """The value there; left out if there is none."""


class ConflictBody(Body, frozen=True):
    """A part that branches changed in different ways."""

    path: str
    """A JSON Pointer into an object with the members `content` and `metadata`."""
    values: list[BranchValueBody]
    """In the order of `prev`."""


class ExpiredBody(Body, frozen=True):
    """A branch whose changes the merge leaves out: its data were anchored too late."""

    prev: str
    """The CID of the branch's last event, one of the prevs."""
    event: str
    """The CID of the event whose capability had expired."""
    expires: int
    """When that was, in Unix seconds."""
    time: int
    """When the event was anchored, in Unix seconds."""


class MergeBody(Body, frozen=True):
    """How a stream would be merged."""

    id: str
    """The StreamID."""
    diverged: bool
    """Whether there is something to merge or repair; if not, the other fields are empty."""
    prev: list[str]
    """The CIDs that the event would name: the tip, then the other open tips, ascending."""
    payload: str
    """Multibase text of the event's payload, which is to be signed, as DAG-CBOR."""
    content: Raw
    """The merged content; where there are conflicts, with the tip's values."""
    patch: list[Raw]
    """JSON Patch from the content at the tip to the merged one."""
    conflicts: list[ConflictBody]
    """What a person has to decide."""
    left: Whole
    """Open tips that do not fit into one event."""
    expired: list[ExpiredBody]
    """Prevs that repair the stream: what they cover had expired, and changes nothing."""


@endpoint("GET", "/ceramic/streams/{stream_id}/merge", errors=(404,), own=True)
async def get_stream_merge(call: Call[StreamPath]) -> Annotated[Response, MergeBody]:
    """Propose an event that merges a stream, not signed."""
    return await compute_named(call, _propose)


def _propose(stream: Stream) -> Response:
    try:
        proposal = stream.propose_merge()
    except StreamShapeError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, f"Stream not found : {stream.id} ({error})") from None
    return reply(_describe_proposal(stream.id, proposal))


def _describe_proposal(stream_id: StreamId, proposal: MergeProposal | None) -> MergeBody:
    if proposal is None:
        return MergeBody(str(stream_id), False, [], "", as_raw(None), [], [], 0, [])
    return MergeBody(
        id=str(stream_id),
        diverged=True,
        prev=[str(prev) for prev in proposal.prevs],
        payload=_base64(dag_cbor.encode(proposal.payload())),
        content=as_raw(dag_json.as_json(proposal.content)),
        patch=[as_raw(operation) for operation in dag_json.as_json(proposal.patch)],
        conflicts=[_describe_conflict(conflict, proposal.prevs) for conflict in proposal.conflicts],
        left=proposal.left,
        expired=[
            ExpiredBody(str(prev), str(expired.event), expired.expires, expired.time)
            for prev, expired in proposal.expired.items()
        ],
    )


def _describe_conflict(conflict: Conflict, prevs: Sequence[CID]) -> ConflictBody:
    values = {prev: as_raw(dag_json.as_json(value)) for prev, value in conflict.values.items()}
    branches = [BranchValueBody(str(prev), values.get(prev, UNSET)) for prev in prevs]
    return ConflictBody(conflict.path, branches)
