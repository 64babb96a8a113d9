"""POST and DELETE of /ceramic/interests and /ceramic/interests/{sortKey}/{sortValue}.

As for a ceramic-one node, `sepValue` and `streamId` are multibase text of any base and the bytes
behind them count: the sort value of a StreamID is its base36 form, however it was written. For a
sort key whose values are not bytes (all but `model`, `unique`, `context` and `dag`), `sepValue` is
the sort value itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import Final

from msgspec import UNSET, UnsetType, field
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters, read_small
from recon_node.api.routes.events import WARNING
from recon_node.ceramic import Shard, StreamId, StreamIdError
from recon_node.ceramic.header import sort_value_of
from recon_node.ipld import IpldError, multibase
from recon_node.store import Interest, InvalidInterestError, format_interest


class InterestQuery(Parameters, frozen=True):
    """The optional parts of an interest."""

    controller: str | None = None
    """A DID: its streams only."""
    stream_id: str | None = field(default=None, name="streamId")
    """A stream, as multibase text: its events only. Needs `controller`."""
    controllers: str | None = None
    """(+) A shard: `1/4`, or the controllers' hashes from one beginning to another, `00..3f`."""


class InterestPath(InterestQuery, frozen=True, kw_only=True):
    """An interest in the path and the query."""

    sort_key: str
    """A field of the events' headers, such as `model`."""
    sort_value: str
    """Its value: multibase text for `model`, `unique`, `context` and `dag`."""


class InterestBody(Parameters, frozen=True, rename="camel"):
    """An interest, in a body or in the query."""

    sep: str | UnsetType = UNSET
    """The sort key: a field of the events' headers, such as `model`."""
    sep_value: str | UnsetType = UNSET
    """Its value: multibase text for `model`, `unique`, `context` and `dag`, else text as it is."""
    controller: str | UnsetType | None = UNSET
    """A DID: its streams only."""
    stream_id: str | UnsetType | None = UNSET
    """A stream, as multibase text: its events only. Needs the other fields; or (+) stands alone, if
    the node has the stream."""
    controllers: str | UnsetType | None = UNSET
    """(+) A shard: `1/4`, or the controllers' hashes from one beginning to another, `00..3f`."""


class NodeInterestBody(Body, frozen=True, kw_only=True, rename="camel"):
    """An interest of this node."""

    sep: str
    """The sort key."""
    sep_value: str
    """The sort value; a StreamID as its base36 form."""
    controller: str | UnsetType = UNSET
    """A DID."""
    stream_id: str | UnsetType = UNSET
    """A StreamID."""
    controllers: str | UnsetType = UNSET
    """(+) A shard, as `00..3f`."""
    configured: bool
    """(+) Whether it comes from the node's settings, and cannot be removed."""


_KEPT: Final = Answer(
    "The interest is kept. The header `recon-warning` (+) says so if it is the first one, so that "
    "the node no longer syncs everything.",
    status=204,
)
_NARROWED: Final = (
    "this node had no interests and synced everything on its network until now; from now on it "
    "syncs nothing else. What it has stays, and removing the interest undoes this"
)
_GONE: Final = Answer("The interest is removed. The node keeps the events that it has.", status=204)


@endpoint("POST", "/ceramic/interests", _KEPT, body=InterestBody, errors=(507,))
async def post_interest(call: Call[Parameters]) -> Response:
    """Register an interest."""
    body = read_small(call.body, InterestBody)
    return await _add(call.services, _stream_alone(body) or _from_fields(body))


@endpoint("POST", "/ceramic/interests/{sort_key}/{sort_value}", _KEPT, errors=(507,))
async def post_sort_value_interest(call: Call[InterestPath]) -> Response:
    """Register an interest."""
    return await _add(call.services, _from_path(call.parameters))


@endpoint("DELETE", "/ceramic/interests", _GONE, errors=(404, 507), own=True)
async def delete_interest(call: Call[InterestBody]) -> Response:
    """Remove an interest, or (`streamId` alone) all in one stream.

    400 for one from the settings.
    """
    stream = _stream_alone(call.parameters)
    if stream is not None:
        meant = [known for known in call.services.store.wanted.all if known.stream_id == stream]
        return await _remove(call.services, meant, call.parameters.stream_id or "")
    return await _remove_one(call.services, _from_fields(call.parameters))


@endpoint(
    "DELETE", "/ceramic/interests/{sort_key}/{sort_value}", _GONE, errors=(404, 507), own=True
)
async def delete_sort_value_interest(call: Call[InterestPath]) -> Response:
    """Remove an interest."""
    return await _remove_one(call.services, _from_path(call.parameters))


def make_interest(
    sep: str,
    sep_value: str,
    controller: str | None,
    stream_id: str | None,
    controllers: str | None = None,
) -> Interest:
    """Make an interest of what a client sent; raises `ApiError` 400 if it is not one."""
    if not sep:
        raise bad_request("'sep' cannot be empty")
    if controller == "":
        raise bad_request("'controller' cannot be empty if it's included")
    if stream_id is not None and controller is None:
        raise bad_request("controller is required if stream_id is specified")
    try:
        sort_value = _sort_value(sep, sep_value)
        stream = None if stream_id is None else _stream_id(stream_id)
        shard = None if controllers is None else Shard.parse(controllers)
        return Interest(sep, sort_value, controller, stream, shard)
    except ValueError as error:
        raise bad_request(str(error)) from None


def describe_interest(interest: Interest, configured: Collection[Interest]) -> NodeInterestBody:
    """Describe an interest, and tell whether it comes from the settings."""
    stream_id = interest.stream_id
    return NodeInterestBody(
        sep=interest.sort_key,
        sep_value=interest.sort_value,
        configured=interest in configured,
        controller=UNSET if interest.controller is None else interest.controller,
        stream_id=UNSET if stream_id is None else str(stream_id),
        controllers=UNSET if interest.controllers is None else str(interest.controllers),
    )


def _from_path(path: InterestPath) -> Interest:
    return make_interest(
        path.sort_key, path.sort_value, path.controller, path.stream_id, path.controllers
    )


def _from_fields(body: InterestBody) -> Interest:
    if body.sep is UNSET:
        raise bad_request("'sep' is missing")
    if body.sep_value is UNSET:
        raise bad_request("'sepValue' is missing")
    fields = (body.controller, body.stream_id, body.controllers)
    named = (None if field is UNSET else field for field in fields)
    return make_interest(body.sep, body.sep_value, *named)


def _stream_alone(body: InterestBody) -> StreamId | None:
    """The stream, if nothing else is given: its init event names the rest."""
    others = (body.sep, body.sep_value, body.controller)
    if not isinstance(body.stream_id, str) or any(other is not UNSET for other in others):
        return None
    return _stream_id(body.stream_id)


def _stream_id(text: str) -> StreamId:
    try:
        data = multibase.decode(text)
        if not data:
            raise bad_request("'streamId' cannot be empty. Expected multibase encoded value.")
        return StreamId.from_bytes(data)
    except IpldError as error:
        raise bad_request(f"'streamId': multibase error: {error}") from None
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


async def _add(services: Services, wanted: Interest | StreamId) -> Response:
    try:
        interest = await services.store.wanted.complete(wanted)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    is_new = await services.store.wanted.add(interest)
    is_first = is_new and services.store.wanted.all == (interest,)
    headers = {WARNING: _NARROWED} if is_first else {}
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=headers)


async def _remove_one(services: Services, interest: Interest) -> Response:
    meant = [interest] if interest in services.store.wanted.all else []
    return await _remove(services, meant, format_interest(interest))


async def _remove(services: Services, meant: Sequence[Interest], description: str) -> Response:
    if not meant:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"this node has no interest {description!r}: `recon-node interests list` (GET "
            "/ceramic/experimental/interests) shows those that it has",
        )
    try:
        for interest in meant:
            await services.store.wanted.remove(interest)
    except InvalidInterestError as error:
        raise bad_request(str(error)) from None
    return Response(status_code=HTTPStatus.NO_CONTENT)
