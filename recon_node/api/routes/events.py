"""POST /ceramic/events, of one event or of many, and GET /ceramic/events/{cid}.

GET /ceramic/events/{event_id}/blocks has an event's blocks as DAG-JSON, for people to read.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import NDJSON, Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters, Parsed, Whole, as_raw, reply
from recon_node.ceramic import Event, EventId, parse_event
from recon_node.ipld import CID, IpldError, car, dag_cbor, dag_json, multibase
from recon_node.store import Verdict

MAX_READ_AT_ONCE: Final = 16_384
"""Bytes of an event that are decoded without a thread: 5 ms in the slowest base."""
WARNING: Final = "recon-warning"
"""The header of an answer to what was done, but has consequences that a client may not expect."""
_TAKEN: Final = Response(status_code=HTTPStatus.NO_CONTENT)
MAX_EVENTS: Final = 10_000
"""Lines of an NDJSON body; its bytes are bounded as those of every body are."""


class EventDataBody(Body, frozen=True):
    """An event to add."""

    data: str
    """The event's CAR (version 1 or 2), as multibase text."""


_EVENT_DATA: Final = msgspec.json.Decoder(EventDataBody)


class EventVerdictBody(Body, frozen=True):
    """What became of one event of many."""

    status: Literal["new", "known", "refused"]
    id: str | UnsetType = UNSET
    """The CID of the event's root block, unless it was refused."""
    reason: str | UnsetType = UNSET
    """Why it was refused."""
    warning: str | UnsetType = UNSET
    """Why no peer gets it from this node: no interest covers it."""


@endpoint(
    "POST",
    "/ceramic/events",
    Answer(
        "The node has the event, on disk. The header `recon-warning` (+) says so if no interest of "
        "the node covers it, so that no peer gets it from here.",
        status=204,
    ),
    Answer(
        "Of many events (+): a verdict for each line, in order; all are on disk.",
        list[EventVerdictBody],
        own=True,
    ),
    body=EventDataBody,
    lines="One EventData per line, at most 10,000; each is refused on its own. Prevs come first.",
    errors=(403, 503, 507),
)
async def post_event(call: Call[Parameters]) -> Response:
    """Add an event, or many.

    One event is answered 204 once it is on disk. When it is refused, the reason comes with 400,
    with 403 if the write policy of the node refuses its stream, or with 503 if the stream could not
    be judged. Many are sent as NDJSON, which ceramic-one does not know.
    """
    content_type = call.request.headers.get("content-type", "")
    body = call.body
    if content_type.partition(";")[0].strip().lower() == NDJSON:
        return await _post_events(call, body)
    if len(body) > MAX_READ_AT_ONCE:
        event = await call.services.in_thread(partial(_car_of, body, "the body"))
    else:
        event = _car_of(body, "the body")
    [verdict] = await call.services.store.admit_local([event])
    if verdict.status == "refused":
        raise _refusal(verdict)
    for warning in (await _warnings(call.services, [verdict])).values():
        return Response(status_code=HTTPStatus.NO_CONTENT, headers={WARNING: warning})
    return _TAKEN


async def _warnings(services: Services, verdicts: Iterable[Verdict]) -> dict[EventId, str]:
    """Return what to say of those events that no peer gets from this node."""
    if not services.store.wanted.all:
        return {}  # it wants everything
    kept = (verdict.event_id for verdict in verdicts if verdict.status != "refused")
    outside = await services.store.wanted.outside(list(filter(None, kept)))
    return {
        event: f"this node has no interest that covers {name or 'the stream'}: it keeps the event, "
        "but no peer gets it from here"
        for event, name in outside.items()
    }


def _refusal(verdict: Verdict) -> ApiError:
    reason = verdict.reason or "the event was refused"
    if verdict.cause == "policy":
        return ApiError(HTTPStatus.FORBIDDEN, reason)
    if verdict.cause == "unjudged":
        return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, reason, {"Retry-After": "60"})
    return bad_request(reason)


async def _post_events(call: Call[Parameters], body: bytes) -> Response:
    """Admit events in the order of their lines: 200 with a verdict on each, once all are on disk.

    Each line is what the body of a single event would be, and is refused on its own. What it
    builds on may be in a line before it. A request costs more than an event: a client that sends
    them one at a time gets a tenth of the events through.
    """
    services = call.services
    lines = await services.in_thread(partial(_read_lines, body))
    cars = [line for line in lines if isinstance(line, bytes)]
    verdicts = await services.store.admit_local(cars)
    warnings = await _warnings(services, verdicts)
    remaining = iter(verdicts)
    outcomes = [next(remaining) if isinstance(line, bytes) else line for line in lines]

    def render() -> Response:
        return reply([_describe(outcome, warnings) for outcome in outcomes])

    return await services.in_thread(render)


def _read_lines(body: bytes) -> list[bytes | str]:
    """Return the CAR of each line, or what is wrong with it; blank lines do not count."""
    lines = body.split(b"\n", MAX_EVENTS)
    if len(lines) > MAX_EVENTS and lines[-1].strip():
        raise bad_request(f"the body has more than {MAX_EVENTS} lines")
    return [_read_line(line) for line in lines if line.strip()]


def _read_line(line: bytes) -> bytes | str:
    try:
        return _car_of(line, "the line")
    except ApiError as error:
        return error.message


def _car_of(text: bytes, name: str) -> bytes:
    try:
        try:
            data = _EVENT_DATA.decode(text).data
        except (msgspec.MsgspecError, ValueError, RecursionError):
            data = EventDataBody.read(text, name).data  # or says what is wrong
        event = multibase.decode(data, multibase.MAX_NUMBER)
    except IpldError as error:
        raise bad_request(f"Invalid event data: multibase error: {error}") from None
    try:
        return car.without_v2(event)
    except IpldError as error:
        raise bad_request(f"Invalid event data: {error}") from None


def _describe(verdict: Verdict | str, warnings: Mapping[EventId, str]) -> EventVerdictBody:
    if isinstance(verdict, str):
        return EventVerdictBody("refused", reason=verdict)
    return EventVerdictBody(
        verdict.status,
        UNSET if verdict.event_id is None else str(verdict.event_id.event_cid),
        UNSET if verdict.reason is None else verdict.reason,
        UNSET if verdict.event_id is None else warnings.get(verdict.event_id, UNSET),
    )


def _event_cid(text: str) -> CID:
    """The CID of an event, given as a CID or as an EventId; raises `ApiError` 400."""
    try:
        return CID.parse(text)
    except IpldError as error:
        not_a_cid = error
    try:
        return EventId(multibase.decode(text)).event_cid
    except ValueError:
        raise bad_request(str(not_a_cid)) from None


EventCid = Annotated[CID, Parsed(_event_cid)]


class EventPath(Parameters, frozen=True):
    """Which event."""

    event_id: EventCid
    """The event's CID; or its EventId, in any multibase."""


class EventBody(Body, frozen=True):
    """An event."""

    id: str
    """The CID of the event's root block."""
    data: str
    """The event's CAR, as multibase text."""


@endpoint("GET", "/ceramic/events/{event_id}", errors=(404,))
async def get_event(call: Call[EventPath]) -> EventBody:
    """Read an event."""
    return EventBody(str(call.parameters.event_id), multibase.encode(await _read_car(call)))


async def _read_car(call: Call[EventPath]) -> bytes:
    event = await call.services.store.reader.car(call.parameters.event_id)
    if event is None:
        text = call.request.path_params["event_id"]
        raise ApiError(HTTPStatus.NOT_FOUND, f"Event not found : {text}")
    return event


class EventBlockBody(Body, frozen=True):
    """A block of an event."""

    cid: str
    """Its CID."""
    role: str
    """envelope, payload, capability, event (an unsigned one), proof, or path (from the proof's root
    to the event that it anchors)."""
    size: Whole
    """Bytes."""
    value: Raw
    """The block as DAG-JSON."""


class EventBlocksBody(Body, frozen=True):
    """An event and its blocks."""

    id: str
    """The event's CID."""
    kind: str
    """init, data or time."""
    init: str
    """The CID of the stream's init event."""
    prev: list[str]
    """The CIDs of the events that it builds on."""
    signer: str | None
    """The DID that signed it; null: it is not signed."""
    size: Whole
    """Bytes of its CAR."""
    blocks: list[EventBlockBody]
    """The root first."""


@endpoint("GET", "/ceramic/events/{event_id}/blocks", errors=(404,), own=True)
async def get_event_blocks(call: Call[EventPath]) -> Annotated[Response, EventBlocksBody]:
    """Read an event as DAG-JSON, delivered or not."""
    data = await _read_car(call)
    return await call.services.in_thread(lambda: reply(_describe_blocks(parse_event(data))))


def _describe_blocks(event: Event) -> EventBlocksBody:
    blocks = car.decode(event.car).blocks
    order = sorted(blocks, key=lambda cid: cid != event.cid)
    return EventBlocksBody(
        id=str(event.cid),
        kind=event.kind.value,
        init=str(event.init),
        prev=[str(prev) for prev in event.prevs],
        signer=None if event.envelope is None else event.envelope.signer,
        size=len(event.car),
        blocks=[
            EventBlockBody(
                cid=str(cid),
                role=_role(event, cid),
                size=len(blocks[cid]),
                value=as_raw(dag_json.as_json(dag_cbor.decode(blocks[cid]))),
            )
            for cid in order
        ],
    )


def _role(event: Event, cid: CID) -> str:
    envelope = event.envelope
    if cid == event.cid:
        return "event" if envelope is None else "envelope"
    if envelope is not None:
        return "payload" if cid == envelope.payload else "capability"
    return "proof" if cid == event.payload.get("proof") else "path"
