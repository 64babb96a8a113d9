"""DAGs: GET /ceramic/dag/{cid}, /ceramic/dag/{cid}.car and /ceramic/dag/publish/{did}.

Shards and operations are events (see `recon_node.dag.events`): they are sent to POST
/ceramic/events as all events are, and come from peers by interests with the sort key "dag".
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from recon_node.api.errors import ApiError, bad_request
from recon_node.api.services import Services
from recon_node.api.threads import in_thread
from recon_node.ceramic import DidError
from recon_node.dag import (
    DagError,
    Dags,
    DagState,
    Identifier,
    IncompleteDagError,
    Lacking,
    Publication,
)
from recon_node.ipld import CID, IpldError, multibase

CAR_TYPE = "application/vnd.ipld.car"


async def get_dag(request: Request) -> Response:
    """What of a DAG is here, and what is missing; also of one that nobody ever heard of."""
    root = root_of(request)
    try:
        state = await dags_of(request).state(root)
    except DagError as error:
        raise unavailable(error) from None
    return await in_thread(partial(_render_state, state))


async def get_car(request: Request) -> Response:
    """A DAG that is here in full, as a CARv1 in pieces; 404 says what is missing."""
    root = root_of(request)
    try:
        pieces = await dags_of(request).car(root)
    except IncompleteDagError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None
    except DagError as error:
        raise unavailable(error) from None
    headers = {
        "content-disposition": f'attachment; filename="{root}.car"',
        "x-content-type-options": "nosniff",
    }
    return StreamingResponse(pieces, media_type=CAR_TYPE, headers=headers)


async def get_contains(request: Request) -> Response:
    """Whether the DAG that a replica describes contains a block; null while it cannot be told."""
    origin, link = root_of(request, "replica"), root_of(request)
    try:
        found = await dags_of(request).contains(origin, link)
    except DagError as error:
        raise unavailable(error) from None
    return JSONResponse({"contains": found.holds, "waiting_for": _texts(found.waiting_for)})


async def get_publication(request: Request) -> Response:
    """What an identifier leads to; `link` is null where nothing was published."""
    try:
        identifier = Identifier.parse(request.path_params["did"])
    except DidError as error:
        raise bad_request(f"Invalid identifier: {error}") from None
    try:
        found = await dags_of(request).resolve(identifier)
    except DagError as error:
        raise unavailable(error) from None
    return await in_thread(partial(_render_publication, found))


def root_of(request: Request, name: str = "cid") -> CID:
    """The DAG that a path names; raises `ApiError` 400."""
    try:
        return CID.parse(request.path_params[name])
    except IpldError as error:
        raise bad_request(f"Invalid Cid: {error}") from None


def dags_of(request: Request) -> Dags:
    """The index of DAGs; raises `ApiError` 503 where there is none."""
    services: Services = request.app.state.services
    if services.dags is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node keeps no index of DAGs")
    return services.dags


def unavailable(error: DagError) -> ApiError:
    """What is answered when the index cannot be asked."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error))


def _render_state(state: DagState) -> Response:
    return JSONResponse(
        {
            "root": str(state.root),
            "complete": state.complete,
            "blocks": state.blocks,
            "bytes": state.size,
            "missing_blocks": _lacking(state.missing_blocks),
            "shards": _texts(state.shards),
            "unclaimed": _texts(state.unclaimed),
            "missing_shards": _lacking(state.missing_shards),
            "missing_replicas": _lacking(state.missing_replicas),
            "heads": _texts(state.heads),
            "head": None
            if state.head is None
            else {"cid": str(state.head.cid), "data": multibase.encode(state.head.block)},
            "ignored": state.ignored,
        }
    )


def _render_publication(found: Publication) -> Response:
    current, pending = found.current, found.pending
    return JSONResponse(
        {
            "id": str(found.identifier),
            "link": None if current is None else str(current.link),
            "origin": None if current is None else str(current.origin),
            "pending": None
            if pending is None
            else {"link": str(pending.link), "origin": str(pending.origin)},
            "order": _texts(found.order),
            "waiting_for": _texts(found.waiting_for),
            "refused": [
                {"cid": str(cid), "reason": reason} for cid, reason in found.faults.items()
            ],
            "ignored": found.ignored,
        }
    )


def _lacking(lacking: Lacking) -> dict[str, Any]:
    return {"count": lacking.count, "first": _texts(lacking.first)}


def _texts(cids: tuple[CID, ...]) -> list[str]:
    return [str(cid) for cid in cids]
