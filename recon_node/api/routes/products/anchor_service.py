"""Ceramic's anchor service, for other nodes: POST /api/v0/requests, GET /api/v0/requests/{cid}.

js-ceramic requests anchors of events; ceramic-one those of the roots of its own trees, of which it
makes time events by itself. Both ask until the answer has a *witness*: a CAR with a time event, its
proof and the nodes of the tree on the way. Its `id` is the CID in the StreamID of the request.
Sources: ceramic-anchor-service (request-controller.ts), the codecs of js-ceramic (anchor.ts), and
ceramic-one's anchor-remote.

Other nodes show who they are by a JSON Web Token that is signed by the key of their did:key, as for
that service: `{url, nonce, digest}`, where `digest` is 0x and the sha2-256 of the request's body in
hexadecimal. A token that somebody repeats requests the same anchor again, which changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import Body, Parameters, parsed_by, read_small, reply
from recon_node.api.routes.products.anchors import anchoring_of, request_anchor
from recon_node.api.routes.streams import STREAM_ID
from recon_node.ceramic import StreamId, StreamIdError
from recon_node.ceramic.auth.did import public_key
from recon_node.ipld import CID, IpldError, car, dag_cbor

if TYPE_CHECKING:
    from recon_node.anchoring.anchoring_service import Anchoring
    from recon_node.anchoring.journal import AnchorRequest

_CAR: Final = "application/vnd.ipld.car"
_STATUS: Final = {0: "PENDING", 1: "PROCESSING", 2: "COMPLETED", 3: "REPLACED"}
_MESSAGES: Final = {
    "PENDING": "Request is pending.",
    "PROCESSING": "Request is processing.",
    "COMPLETED": "CID successfully anchored.",
    "REPLACED": "A later event, or another anchor, covers the CID.",
}


class AnchorServiceRequestBody(Body, frozen=True, rename="camel"):
    """What to anchor."""

    stream_id: str
    """The StreamID that it belongs to."""
    cid: str
    """The CID of the event."""


class AnchorServiceStatusBody(Body, frozen=True, rename="camel"):
    """How far a request has come, as the anchor service says it."""

    id: str
    """Of the request."""
    status: str
    """PENDING, PROCESSING, COMPLETED or REPLACED."""
    cid: str
    """As in the request."""
    stream_id: str
    """As in the request."""
    message: str
    """In plain English."""
    created_at: int
    """When it was made, in Unix milliseconds."""
    updated_at: int
    """The same."""
    anchor_commit: dict[str, str] | UnsetType = UNSET
    """COMPLETED: the `cid` of the time event."""
    witness_car: str | UnsetType = UNSET
    """COMPLETED: its CAR, in base64 without padding."""


class SupportedChainsBody(Body, frozen=True, rename="camel"):
    """Where requests are anchored."""

    supported_chains: list[str]
    """One chain (CAIP-2)."""


_CID: Final = parsed_by(CID.parse, "CID is empty or malformed: ")


class AnchorRequestPath(Parameters, frozen=True, rename="camel"):
    """Which request."""

    cid: Annotated[CID, _CID]
    """The CID of the event."""
    stream_id: Annotated[StreamId | None, STREAM_ID] = None
    """The StreamID of the request, if several were named for the CID; by default, what was
    requested from the same address."""


@endpoint(
    "POST",
    "/api/v0/requests",
    Answer("The request is new.", AnchorServiceStatusBody, status=201),
    Answer("It was made before.", AnchorServiceStatusBody, status=202),
    body=AnchorServiceRequestBody,
    errors=(401, 404, 409, 503),
    own=True,
    need="open",
)
async def post_request(call: Call[Parameters]) -> Response:
    """Request an anchor for another node, as with Ceramic's anchor service.

    The body is JSON; or a CAR whose root is DAG-CBOR with `streamId` (bytes) and `tip` (a link).
    """
    anchoring = _served(call)
    _check_access(call, anchoring, call.body)
    content_type = call.request.headers.get("content-type", "").partition(";")[0].strip()
    if content_type == _CAR:
        stream_id, cid = await call.services.in_long_thread(partial(_read_car, call.body))
    else:
        read = read_small(call.body, AnchorServiceRequestBody)
        stream_id, cid = STREAM_ID.read(read.stream_id), _CID.read(read.cid)
    before = await anchoring.find(cid, stream_id)
    request = await request_anchor(anchoring, cid, stream_id, {"Retry-After": "60"})
    status = HTTPStatus.CREATED if before is None else HTTPStatus.ACCEPTED
    return reply(await _describe(anchoring, request), status)


@endpoint("GET", "/api/v0/requests/{cid}", errors=(404, 409), own=True)
async def get_request(
    call: Call[AnchorRequestPath],
) -> Annotated[Response, AnchorServiceStatusBody]:
    """Get the state of a request for an anchor."""
    anchoring, cid = _served(call), call.parameters.cid
    request = await anchoring.find(cid, call.parameters.stream_id)
    if request is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"Request does not exist for cid {cid}")
    return reply(await _describe(anchoring, request))


@endpoint("GET", "/api/v0/service-info/supported_chains", errors=(404, 409), own=True)
async def get_supported_chains(call: Call[Parameters]) -> SupportedChainsBody:
    """Get the chain on which requests are anchored."""
    return SupportedChainsBody(supported_chains=[_served(call).settings.chain_id])


def _served(call: Call[Any]) -> Anchoring:
    anchoring = anchoring_of(call.services)
    if not anchoring.settings.serve:
        raise ApiError(HTTPStatus.NOT_FOUND, "this node does not anchor for others (anchor_serve)")
    return anchoring


def _check_access(call: Call[Any], anchoring: Anchoring, body: bytes) -> None:
    authorization = call.request.headers.get("authorization")
    access, clients = call.services.access, anchoring.settings.clients
    if access.token is not None and access.is_token(authorization):
        return
    if clients:
        _check_client(authorization, body, clients)
    elif access.asks_token("write"):
        raise _unauthorized("Unauthorized")


_MAX_ROOT: Final = 4096
"""Bytes of the block with the StreamID and the tip: megabytes take a second to decode."""


def _read_car(body: bytes) -> tuple[StreamId, CID]:
    try:
        request = car.decode(body)
        block = request.block(request.roots[0]) or b""
        if len(block) > _MAX_ROOT:
            raise bad_request(f"its root has more than {_MAX_ROOT} bytes: it is not a request")
        root = dag_cbor.decode(block)
        return StreamId.from_bytes(root["streamId"]), CID(root["tip"])
    except (IpldError, StreamIdError, LookupError, TypeError) as error:
        raise bad_request(f"Can not decode CAR file: {error}") from None


async def _describe(anchoring: Anchoring, request: AnchorRequest) -> AnchorServiceStatusBody:
    status, event = _STATUS[request.state], request.event
    witness = await anchoring.witness(request)
    has_witness = witness is not None and event is not None
    if has_witness:
        status = "COMPLETED"
    elif status == "COMPLETED":
        status = "PROCESSING"
    milliseconds = int(request.made_at * 1000)
    return AnchorServiceStatusBody(
        id=str(request.cid),
        status=status,
        cid=str(request.cid),
        stream_id=request.stream or "",
        message=_MESSAGES[status],
        created_at=milliseconds,
        updated_at=milliseconds,
        anchor_commit={"cid": str(event)} if has_witness else UNSET,
        witness_car=base64.b64encode(witness or b"").decode().rstrip("=") if has_witness else UNSET,
    )


_unauthorized: Final = partial(ApiError, HTTPStatus.UNAUTHORIZED)


def _check_client(authorization: str | None, body: bytes, clients: Collection[str]) -> None:
    """Raise `ApiError` 401 unless one of the clients has signed a request."""
    scheme, _, token = (authorization or "").partition(" ")
    parts = token.strip().split(".")
    if scheme.lower() != "bearer" or len(parts) != 3:
        raise _unauthorized("the request must be signed: `Authorization: Bearer` and a JWT")
    try:
        header, claims, signature = map(_decoded, parts)
        fields, said = _object(header), _object(claims)
        did = str(fields["kid"]).partition("#")[0]
        if did not in clients:
            raise _unauthorized(f"{did[:100]} is not among anchor_clients")
        if not public_key(did).verify(".".join(parts[:2]).encode(), signature):
            raise _unauthorized(f"the JWT is not signed by {did}")
    except ApiError:
        raise
    except Exception as error:  # what strangers send can be wrong in every way
        raise _unauthorized(f"the JWT of the request is not valid: {error!r:.200}") from None
    if said.get("digest") != "0x" + hashlib.sha256(body).hexdigest():
        raise _unauthorized("the JWT's digest is not that of the request's body")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _object(text: bytes) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise TypeError("not an object")
    return value
