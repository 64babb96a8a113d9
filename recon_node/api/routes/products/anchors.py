"""Anchoring: how it stands, the requests, and when an event was anchored; and for other nodes,
Ceramic's anchor service: POST /api/v0/requests, GET /api/v0/requests/{cid}.

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
from collections.abc import Collection, Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Body,
    Parameters,
    Whole,
    WholeParameter,
    parsed_by,
    read_small,
    reply,
    text_of,
)
from recon_node.api.routes.events import EventPath
from recon_node.api.routes.streams import STREAM_ID, StreamPath, compute, compute_named
from recon_node.ceramic import StreamId, StreamIdError, parse_event
from recon_node.ceramic.auth.did import public_key
from recon_node.ipld import CID, IpldError, car, dag_cbor
from recon_node.store import State
from recon_node.streams import Stream
from recon_node.streams.tip import earliest_times

if TYPE_CHECKING:
    from recon_node.anchoring.anchoring_service import Anchoring
    from recon_node.anchoring.journal import AnchorRequest, Tree

AnchorState = Literal["waiting", "in_tree", "anchored", "covered"]
_STATES: Final[dict[int, AnchorState]] = {0: "waiting", 1: "in_tree", 2: "anchored", 3: "covered"}
_MAX_LISTED: Final = 1000
_TREES: Final = 10
_ANCHORED: Final = 3
"""js-ceramic's AnchorStatus: 1 pending, 2 processing, 3 anchored."""


class AnchorTreeBody(Body, frozen=True):
    """A Merkle tree."""

    root: str
    """Its CID."""
    leaves: Whole
    """Events in it."""
    chain_id: str
    """Where its root is written (CAIP-2)."""
    made_at: float
    """When it was built, in Unix seconds."""
    tx_hash: str | None
    """Of the final transaction; null until there is one."""
    block_time: int | None
    """Of its block, in Unix seconds."""
    cost_wei: str | None
    """What it cost, in wei, as text."""
    is_done: bool
    """Whether all time events are made."""
    explorer: str | None
    """The page of the transaction."""


class AnchoringBody(Body, frozen=True):
    """How anchoring stands."""

    authority: str
    """`off`, `evm` or `development`."""
    chain_id: str | UnsetType = UNSET
    """Of the authority (CAIP-2). This and what follows is there unless it is off."""
    contract: str | UnsetType | None = UNSET
    """Whose function is called."""
    account: str | UnsetType | None = UNSET
    """That pays."""
    balance_wei: str | UnsetType | None = UNSET
    """What it has, as text; null while that is not known."""
    spent_wei: str | UnsetType = UNSET
    """What all trees cost, as text."""
    coin: str | UnsetType = UNSET
    """In which fees are paid; it has 10^18 wei."""
    trees: Whole | UnsetType = UNSET
    """Trees that were anchored."""
    requests: dict[str, Whole] | UnsetType = UNSET
    """Requests by state."""
    under_way: AnchorTreeBody | UnsetType | None = UNSET
    """The tree that is being anchored."""
    waits_for: str | UnsetType = UNSET
    """What it waits for."""
    alarm: str | UnsetType = UNSET
    """What somebody should do something about."""
    position: Whole | UnsetType = UNSET
    """Of the feed, up to which events were selected."""
    due_at: float | UnsetType | None = UNSET
    """When the next tree will be built, in Unix seconds; null if nothing waits."""
    latest: list[AnchorTreeBody] | UnsetType = UNSET
    """The latest ten trees."""


class AnchorRequestBody(Body, frozen=True):
    """A request for an anchor."""

    cid: str
    """The event; or the root of another node's tree."""
    stream: str | None
    """The init event of its stream; or what another node said that it belongs to."""
    state: AnchorState
    """`covered`: it needs no anchor any more."""
    made_at: float
    """In Unix seconds."""
    time_event: str | None
    """Its time event, if there is one."""


class AnchorRequestsBody(Body, frozen=True):
    """Requests, the latest first."""

    requests: list[AnchorRequestBody]


class RequestsQuery(Parameters, frozen=True):
    """Which requests."""

    state: AnchorState | None = None
    """Only those in a state."""
    limit: WholeParameter = 100
    """Maximum number of requests: 100 by default, at most 1,000."""


class EventAnchorBody(Body, frozen=True):
    """When an event was anchored."""

    cid: str
    """The event."""
    state: Literal["none", "waiting", "in_tree", "made", "anchored"]
    """`made`: it has a time event, whose transaction is still to be looked up."""
    time: int | None = None
    """The earliest proven time of the event, in Unix seconds."""
    time_event: str | None = None
    """The time event that proves it, or will."""
    anchored_event: str | None = None
    """The event that the time event names."""
    chain_id: str | None = None
    """Of the proof (CAIP-2)."""
    tx_hash: str | None = None
    """Of the proof."""
    root: str | None = None
    """Of the proof's Merkle tree."""
    explorer: str | None = None
    """The page of the transaction."""
    cost_wei: str | None = None
    """Its part of the transaction's cost, if this node paid."""


@endpoint("GET", "/ceramic/anchors", own=True)
async def get_anchors(call: Call[Parameters]) -> AnchoringBody:
    """Get the state of anchoring."""
    anchoring = call.services.anchoring
    if anchoring is None:
        return AnchoringBody(authority="off")
    from recon_node.anchoring.settings import chain_defaults

    status = await anchoring.status()
    settings, account, tree = anchoring.settings, anchoring.account, status.under_way
    return AnchoringBody(
        authority=settings.authority,
        chain_id=settings.chain_id,
        contract=settings.contract if settings.authority == "evm" else None,
        account=None if account is None else account.address,
        balance_wei=None if account is None else text_of(account.balance),
        spent_wei=str(status.spent),
        coin=chain_defaults(settings.chain_id).coin,
        trees=status.trees,
        requests={_STATES[state]: count for state, count in status.counts.items()},
        under_way=None if tree is None else _tree(anchoring, tree),
        waits_for=status.state,
        alarm=anchoring.alarm,
        position=status.position,
        due_at=status.due_at,
        latest=[_tree(anchoring, tree) for tree in await anchoring.latest_trees(_TREES)],
    )


@endpoint(
    "POST",
    "/ceramic/anchors/now",
    Answer("A tree will be built of the waiting events.", status=202),
    errors=(409,),
    own=True,
)
async def post_anchors_now(call: Call[Parameters]) -> Response:
    """Anchor the waiting events, once no other tree is under way."""
    anchoring_of(call.services).anchor_now()
    return Response(status_code=HTTPStatus.ACCEPTED)


@endpoint("GET", "/ceramic/anchors/requests", errors=(409,), own=True)
async def get_anchor_requests(call: Call[RequestsQuery]) -> AnchorRequestsBody:
    """List requests for anchors."""
    from recon_node.anchoring.journal import RequestState

    wanted, limit = call.parameters.state, min(call.parameters.limit, _MAX_LISTED)
    states = [state for state in RequestState if wanted in (None, _STATES[state])]
    requests = await anchoring_of(call.services).requests(states, limit)
    return AnchorRequestsBody(requests=list(map(_request, requests)))


@endpoint("GET", "/ceramic/anchors/events/{event_id}", errors=(404,), own=True)
async def get_event_anchor(call: Call[EventPath]) -> EventAnchorBody:
    """Find when an event was anchored: itself, or through a later event that covers it."""
    services, cid = call.services, call.parameters.event_id
    init = await services.store.reader.stream_of(cid)
    if init is None:
        raise ApiError(HTTPStatus.NOT_FOUND, f"Event not found : {cid}")
    states = await services.store.reader.progress([cid])
    anchor = None
    if any(state is State.DELIVERED for state, _ in states.values()):
        anchor = await compute(services, str(cid), init, None, partial(_anchor_of, cid))
    if anchor is None:
        return await _requested(services, cid)
    time, covering, event = anchor
    return EventAnchorBody(str(cid), "anchored", time, **await _proof(services, event, covering))


@endpoint(
    "POST",
    "/api/v0/streams/{stream_id}/anchor",
    Answer("The tip is requested to be anchored.", dict[str, Any]),
    errors=(404, 409, 503),
    own=True,
)
async def post_stream_anchor(call: Call[StreamPath]) -> Response:
    """Request that the tip of a stream is anchored, as with js-ceramic."""
    stream_id, anchoring = call.parameters.stream_id, anchoring_of(call.services)
    tip, is_anchored = await compute_named(call, _data_tip)
    status = _ANCHORED
    if not is_anchored:
        request = await request_anchor(anchoring, tip, stream_id)
        status = min(request.state + 1, _ANCHORED)
    return reply({"streamId": str(stream_id), "anchorStatus": status, "cid": str(tip)})


async def request_anchor(
    anchoring: Anchoring, cid: CID, stream_id: StreamId, headers: Mapping[str, str] | None = None
) -> AnchorRequest:
    """Request an anchor; raise `ApiError` 503, with these headers, if too many are requested."""
    from recon_node.anchoring.anchoring_service import FullError

    try:
        return await anchoring.request(cid, stream_id)
    except FullError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers) from None


def anchoring_of(services: Services) -> Anchoring:
    """Return the anchoring of a node; raise `ApiError` 409 if it anchors nothing."""
    if services.anchoring is None:
        raise ApiError(HTTPStatus.CONFLICT, "this node does not anchor: see the setting `anchor`")
    return services.anchoring


def _data_tip(stream: Stream) -> tuple[CID, bool]:
    """Return the last data event of the tip's branch, and whether its time is proven."""
    cid = stream.tip.data_tip[0]
    return cid, _anchor_of(cid, stream) is not None


def _anchor_of(cid: CID, stream: Stream) -> tuple[int, CID, CID] | None:
    """Return the earliest proven time of an event, of which event it is, and the time event, which
    may be the event itself."""
    shapes = stream.shapes
    time = earliest_times(reversed(shapes)).get(cid)
    covering = {cid}
    for shape in shapes:
        if shape.id == cid or covering.intersection(shape.prevs):
            if time is not None and shape.kind == "time" and shape.time == time:
                return time, shape.prevs[0], shape.id
            covering.add(shape.id)
    return None


async def _requested(services: Services, cid: CID) -> EventAnchorBody:
    """Say how far an event without a proven time has come."""
    request = None if services.anchoring is None else await services.anchoring.find(cid)
    if request is None or _STATES[request.state] == "covered":
        return EventAnchorBody(str(cid), "none")
    if request.event is None:
        return EventAnchorBody(str(cid), "in_tree" if request.tree else "waiting")
    return EventAnchorBody(str(cid), "made", **await _proof(services, request.event, cid))


async def _proof(services: Services, event: CID, anchored: CID) -> dict[str, Any]:
    """Say what a time event proves, by the names of the API."""
    described: dict[str, Any] = {"time_event": str(event), "anchored_event": str(anchored)}
    stored = await services.store.reader.car(event)
    proof = None if stored is None else parse_event(stored).proof
    if proof is None:
        return described
    from recon_node.anchoring.settings import AnchorSettings

    anchoring = services.anchoring
    settings = AnchorSettings() if anchoring is None else anchoring.settings
    described |= {
        "chain_id": proof.chain_id,
        "tx_hash": proof.transaction_hash,
        "root": str(proof.root),
        "explorer": settings.explorer_url(proof.chain_id, proof.tx_hash.digest),
    }
    request = None if anchoring is None else await anchoring.find(anchored)
    if anchoring is not None and request is not None and request.tree is not None:
        tree = await anchoring.tree(request.tree)
        if tree is not None and tree.root == proof.root and tree.cost is not None:
            described["cost_wei"] = str(tree.cost // tree.leaves)
    return described


def _request(request: AnchorRequest) -> AnchorRequestBody:
    return AnchorRequestBody(
        cid=str(request.cid),
        stream=text_of(request.init or request.stream),
        state=_STATES[request.state],
        made_at=request.made_at,
        time_event=text_of(request.event),
    )


def _tree(anchoring: Anchoring, tree: Tree) -> AnchorTreeBody:
    tx_hash, explorer = tree.tx_hash, None
    if tx_hash is not None:
        explorer = anchoring.settings.explorer_url(tree.chain_id, tx_hash)
    return AnchorTreeBody(
        root=str(tree.root),
        leaves=tree.leaves,
        chain_id=tree.chain_id,
        made_at=tree.made_at,
        tx_hash=None if tx_hash is None else "0x" + tx_hash.hex(),
        block_time=tree.block_time,
        cost_wei=text_of(tree.cost),
        is_done=tree.is_done,
        explorer=explorer,
    )


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
