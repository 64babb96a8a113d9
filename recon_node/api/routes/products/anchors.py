"""Anchoring: how it stands, the requests, and when an event was anchored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Body, Parameters, Whole, WholeParameter, reply, text_of
from recon_node.api.routes.events import EventPath
from recon_node.api.routes.streams import StreamPath, compute, compute_named
from recon_node.ceramic import StreamId, parse_event
from recon_node.ipld import CID
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
