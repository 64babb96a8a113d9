"""POST /ceramic/events and GET /ceramic/events/{cid}."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.query import json_object, text_field
from recon_node.api.services import Services
from recon_node.ceramic import EventId
from recon_node.ipld import CID, IpldError, multibase


async def post_event(request: Request) -> Response:
    """Admit one event: 204 once it is on disk, 400 with the reason when it is refused."""
    body = await json_object(request)
    try:
        car = multibase.decode(text_field(body, "data"))
    except IpldError as error:
        raise bad_request(f"Invalid event data: multibase error: {error}") from None
    services: Services = request.app.state.services
    [verdict] = await services.store.admit_local([car])
    if verdict.status == "refused":
        raise bad_request(verdict.reason or "the event was refused")
    return Response(status_code=HTTPStatus.NO_CONTENT)


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
