"""POST /ceramic/interests and /ceramic/interests/{sortKey}/{sortValue}.

As for a ceramic-one node, `sepValue` and `streamId` are multibase text of any base and the bytes
behind them count: the sort value of a StreamID is its base36 form, however it was written.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from recon_node.api.errors import bad_request
from recon_node.api.query import json_object, optional_text_field, text_field
from recon_node.api.services import Services
from recon_node.ceramic import StreamId
from recon_node.ipld import IpldError, multibase
from recon_node.store import Interest


async def post_interest(request: Request) -> Response:
    """Register the interest that the JSON body describes: sep, sepValue, controller, streamId."""
    body = await json_object(request)
    interest = make_interest(
        text_field(body, "sep"),
        text_field(body, "sepValue"),
        optional_text_field(body, "controller"),
        optional_text_field(body, "streamId"),
    )
    return await _add(request, interest)


async def post_sort_value_interest(request: Request) -> Response:
    """Register the interest that the path and the query describe."""
    interest = make_interest(
        request.path_params["sort_key"],
        request.path_params["sort_value"],
        request.query_params.get("controller"),
        request.query_params.get("streamId"),
    )
    return await _add(request, interest)


def make_interest(
    sep: str, sep_value: str, controller: str | None, stream_id: str | None
) -> Interest:
    """An interest from what a client sent; raises `ApiError` 400 when it names no range."""
    if not sep:
        raise bad_request("'sep' cannot be empty")
    if controller == "":
        raise bad_request("'controller' cannot be empty if it's included")
    if stream_id is not None and controller is None:
        raise bad_request("controller is required if stream_id is specified")
    try:
        sort_value = multibase.encode(_decode("sepValue", sep_value), "base36")
        stream = None if stream_id is None else StreamId.from_bytes(_decode("streamId", stream_id))
        return Interest(sep, sort_value, controller, stream)
    except ValueError as error:
        raise bad_request(str(error)) from None


def _decode(name: str, text: str) -> bytes:
    try:
        data = multibase.decode(text)
    except IpldError as error:
        raise bad_request(f"'{name}': multibase error: {error}") from None
    if not data:
        raise bad_request(f"'{name}' cannot be empty. Expected multibase encoded value.")
    return data


async def _add(request: Request, interest: Interest) -> Response:
    services: Services = request.app.state.services
    await services.store.add_interest(interest)
    return Response(status_code=HTTPStatus.NO_CONTENT)
