"""POST /ceramic/events, of one event or of many, and GET /ceramic/events/{cid}."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.query import as_json_object, json_object, text_field
from recon_node.api.services import Services
from recon_node.api.threads import in_thread
from recon_node.ceramic import EventId
from recon_node.ipld import CID, IpldError, multibase
from recon_node.store import Verdict

NDJSON: Final = "application/x-ndjson"
"""The content type of many events in one body: a JSON object a line (https://ndjson.com)."""
MAX_EVENTS: Final = 10_000
"""Lines of such a body; what it holds in bytes is bounded as for every body."""


async def post_event(request: Request) -> Response:
    """Admit one event: 204 once it is on disk, 400 with the reason when it is refused.

    A body of the type `NDJSON` holds many events, which ceramic-one does not have: see
    `_post_events`.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() == NDJSON:
        return await _post_events(request)
    car = _car_of(await json_object(request))
    services: Services = request.app.state.services
    [verdict] = await services.store.admit_local([car])
    if verdict.status == "refused":
        raise bad_request(verdict.reason or "the event was refused")
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _post_events(request: Request) -> Response:
    """Admit events in the order of their lines: 200 with a verdict on each, once all are on disk.

    Each line is what the body of a single event would be, and is refused alone. What it builds on
    may be in a line before it. A request costs more than an event: one at a time, a client gets a
    tenth of the events through.
    """
    lines = await in_thread(partial(_read_lines, await request.body()))
    cars = [line for line in lines if isinstance(line, bytes)]
    services: Services = request.app.state.services
    verdicts = iter(await services.store.admit_local(cars))
    found = [next(verdicts) if isinstance(line, bytes) else line for line in lines]
    return await in_thread(partial(_render_verdicts, found))


def _read_lines(body: bytes) -> list[bytes | str]:
    """The CAR of each line, or why it has none; blank lines do not count."""
    lines = body.split(b"\n", MAX_EVENTS)
    if len(lines) > MAX_EVENTS and lines[-1].strip():
        raise bad_request(f"the body has more than {MAX_EVENTS} lines")
    return [_read_line(line) for line in lines if line.strip()]


def _read_line(line: bytes) -> bytes | str:
    try:
        return _car_of(as_json_object(line, "the line"))
    except ApiError as error:
        return error.message


def _car_of(value: dict[str, Any]) -> bytes:
    try:
        return multibase.decode(text_field(value, "data"))
    except IpldError as error:
        raise bad_request(f"Invalid event data: multibase error: {error}") from None


def _render_verdicts(found: Sequence[Verdict | str]) -> Response:
    return JSONResponse([_describe(each) for each in found])


def _describe(verdict: Verdict | str) -> dict[str, str]:
    if isinstance(verdict, str):
        return {"status": "refused", "reason": verdict}
    described: dict[str, str] = {"status": verdict.status}
    if verdict.event_id is not None:
        described["id"] = str(verdict.event_id.event_cid)
    if verdict.reason is not None:
        described["reason"] = verdict.reason
    return described


async def get_event(request: Request) -> Response:
    """One event by its CID, or (as ceramic-one does) by its EventId in any multibase."""
    services: Services = request.app.state.services
    text = request.path_params["event_id"]
    cid = parse_event_cid(text)
    car = await services.store.get_event(cid)
    if car is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"Event not found : {text}")
    return JSONResponse({"id": str(cid), "data": multibase.encode(car)})


def parse_event_cid(text: str) -> CID:
    """The CID of an event, given as a CID or as an EventId; raises `ApiError` 400."""
    try:
        return CID.parse(text)
    except IpldError as error:
        not_a_cid = error
    try:
        return EventId(multibase.decode(text)).event_cid
    except ValueError:
        raise bad_request(f"Invalid Cid: {not_a_cid}") from None
