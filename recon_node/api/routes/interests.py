"""POST and DELETE of /ceramic/interests and /ceramic/interests/{sortKey}/{sortValue}.

As for a ceramic-one node, `sepValue` and `streamId` are multibase text of any base and the bytes
behind them count: the sort value of a StreamID is its base36 form, however it was written. For a
sort key whose values are not bytes (all but `model`, `unique`, `context` and `dag`), `sepValue` is
the sort value itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.query import json_object, optional_text_field, text_field
from recon_node.api.services import Services
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ceramic.header import sort_value_of
from recon_node.ipld import IpldError, multibase
from recon_node.store import Interest, InvalidInterestError, format_interest


async def post_interest(request: Request) -> Response:
    """Register the interest that the JSON body describes: sep, sepValue, controller, streamId.

    `streamId` alone (+) is a stream that is here: its init event names the rest.
    """
    body = await json_object(request)
    stream_id = optional_text_field(body, "streamId")
    if stream_id is not None and not body.keys() & {"sep", "sepValue", "controller"}:
        return await _add(request, _stream_id(stream_id))
    interest = make_interest(
        text_field(body, "sep"),
        text_field(body, "sepValue"),
        optional_text_field(body, "controller"),
        stream_id,
    )
    return await _add(request, interest)


async def post_sort_value_interest(request: Request) -> Response:
    """Register the interest that the path and the query describe."""
    return await _add(request, _from_path(request))


async def delete_interest(request: Request) -> Response:
    """Remove all interests in the stream `streamId`, or all that the query describes otherwise."""
    query = request.query_params
    stream_id = query.get("streamId")
    if stream_id is not None and not query.keys() & {"sep", "sepValue", "controller"}:
        stream = _stream_id(stream_id)
        return await _remove(request, lambda each: each.stream_id == stream, stream_id)
    wanted = make_interest(
        _query_text(request, "sep"),
        _query_text(request, "sepValue"),
        query.get("controller"),
        stream_id,
    )
    return await _remove(request, lambda each: each == wanted, format_interest(wanted))


async def delete_sort_value_interest(request: Request) -> Response:
    """Remove the interest that the path and the query describe."""
    wanted = _from_path(request)
    return await _remove(request, lambda each: each == wanted, format_interest(wanted))


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
        sort_value = _sort_value(sep, sep_value)
        stream = None if stream_id is None else _stream_id(stream_id)
        return Interest(sep, sort_value, controller, stream)
    except ValueError as error:
        raise bad_request(str(error)) from None


def describe_interest(interest: Interest, configured: Collection[Interest]) -> dict[str, Any]:
    """An interest as clients see it: the names of the API, and whether the settings name it."""
    told: dict[str, Any] = {
        "sep": interest.sort_key,
        "sepValue": interest.sort_value,
        "configured": interest in configured,
    }
    if interest.controller is not None:
        told["controller"] = interest.controller
    if interest.stream_id is not None:
        told["streamId"] = str(interest.stream_id)
    return told


def _from_path(request: Request) -> Interest:
    return make_interest(
        request.path_params["sort_key"],
        request.path_params["sort_value"],
        request.query_params.get("controller"),
        request.query_params.get("streamId"),
    )


def _query_text(request: Request, name: str) -> str:
    value = request.query_params.get(name)
    if value is None:
        raise bad_request(f"'{name}' is missing")
    return value


def _stream_id(text: str) -> StreamId:
    try:
        return StreamId.from_bytes(_decode("streamId", text))
    except StreamIdError as error:
        raise bad_request(f"'streamId': {error}") from None


def _sort_value(sep: str, text: str) -> str:
    try:
        sort_value = sort_value_of(sep, text)
    except IpldError as error:
        raise bad_request(f"'sepValue': multibase error: {error}") from None
    if sort_value in ("", "k"):
        raise bad_request("'sepValue' cannot be empty. Expected multibase encoded value.")
    return sort_value


def _decode(name: str, text: str) -> bytes:
    try:
        data = multibase.decode(text)
    except IpldError as error:
        raise bad_request(f"'{name}': multibase error: {error}") from None
    if not data:
        raise bad_request(f"'{name}' cannot be empty. Expected multibase encoded value.")
    return data


async def _add(request: Request, wanted: Interest | StreamId) -> Response:
    services: Services = request.app.state.services
    try:
        interest = await services.store.wanted.complete(wanted)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    await services.store.wanted.add(interest)
    return Response(status_code=HTTPStatus.NO_CONTENT)


async def _remove(
    request: Request, is_meant: Callable[[Interest], bool], description: str
) -> Response:
    services: Services = request.app.state.services
    wanted = services.store.wanted
    meant = [each for each in wanted.all if is_meant(each)]
    if not meant:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"this node has no interest {description!r}: `recon-node interests list` (GET "
            "/ceramic/experimental/interests) shows those that it has",
        )
    try:
        for interest in meant:
            await wanted.remove(interest)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    return Response(status_code=HTTPStatus.NO_CONTENT)
