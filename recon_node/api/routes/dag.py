"""DAGs: what the node has of them, their CARs and logs, and the publishes of an identifier.

Shards and operations are events (see `recon_node.dag.events`): they are sent to POST
/ceramic/events as all events are, and come from peers by interests with the sort key "dag".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Final

from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Binary,
    Body,
    Parameters,
    Parsed,
    StreamedAnswer,
    Whole,
    reply,
)
from recon_node.api.services import Services
from recon_node.ceramic import DidError
from recon_node.dag import DagError, Dags, Identifier, IncompleteDagError, Publication, parse_root
from recon_node.ipld import CID, IpldError, multibase

if TYPE_CHECKING:
    from recon_node.dag import DagState, Lacking
    from recon_node.dag.protocol.replica import Replica

CAR_TYPE: Final = "application/vnd.ipld.car"
MAX_REPLICA_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the blocks of a DAG's replicas; a client gets those of a longer log as events."""


def _cid(text: str) -> CID:
    try:
        return parse_root(text)
    except IpldError as error:
        raise bad_request(f"Invalid Cid: {error}") from None


def _identifier(text: str) -> Identifier:
    try:
        return Identifier.parse(text)
    except DidError as error:
        raise bad_request(f"Invalid identifier: {error}") from None


def _texts(cids: Iterable[CID]) -> list[str]:
    return list(map(str, cids))


Cid = Annotated[CID, Parsed(_cid)]


class RootPath(Parameters, frozen=True):
    """Which DAG."""

    cid: Cid
    """The root."""


class ReplicaPath(Parameters, frozen=True):
    """A block, and the replica that may contain it."""

    cid: Cid
    """The block."""
    replica: Cid
    """The replica."""


class IdentifierPath(Parameters, frozen=True):
    """Which identifier."""

    did: Annotated[Identifier, Parsed(_identifier)]
    """The identifier: a did:key of an Ed25519 key."""


class LackingBody(Body, frozen=True):
    """What is missing."""

    count: Whole
    """How many."""
    first: list[str]
    """The CIDs of at most 100 of them."""


class DagReplicaBody(Body, frozen=True):
    """A replica: an append or a join."""

    cid: str
    """Its CID."""
    data: str
    """Its block, as multibase text."""


class DagStateBody(Body, frozen=True):
    """How much of a DAG the node has."""

    root: str
    """The CID of its root."""
    complete: bool
    """Whether the node has everything that it links to."""
    blocks: Whole
    """How many of the blocks below the root the node has."""
    bytes: Whole
    """The size of these blocks."""
    missing_blocks: LackingBody
    shards: list[str]
    """The CIDs of those that the node has and a replica names."""
    unclaimed: list[str]
    """The CIDs of those that the node has and no replica names."""
    missing_shards: LackingBody
    missing_replicas: LackingBody
    heads: list[str]
    """The CIDs of the replicas that no other replica continues."""
    head: DagReplicaBody | None
    """The replica that has the shards of all heads: their join, which the node need not have. null:
    the node has no replica with its whole history."""
    ignored: Whole
    """Events about the DAG that contain nothing valid."""


@endpoint("GET", "/ceramic/dag/{cid}", own=True)
async def get_dag(call: Call[RootPath]) -> Annotated[Response, DagStateBody]:
    """Ask how much of a DAG the node has."""
    with answered_503():
        state = await dag_side(call.services).state(call.parameters.cid)
    return await call.services.in_thread(partial(_render_state, state))


def _render_state(state: DagState) -> Response:
    return reply(
        DagStateBody(
            root=str(state.root),
            complete=state.complete,
            blocks=state.blocks,
            bytes=state.size,
            missing_blocks=_lacking(state.missing_blocks),
            shards=_texts(state.shards),
            unclaimed=_texts(state.unclaimed),
            missing_shards=_lacking(state.missing_shards),
            missing_replicas=_lacking(state.missing_replicas),
            heads=_texts(state.heads),
            head=None if state.head is None else _describe_replica(state.head),
            ignored=state.ignored,
        )
    )


def _lacking(lacking: Lacking) -> LackingBody:
    return LackingBody(lacking.count, _texts(lacking.first))


def _describe_replica(replica: Replica) -> DagReplicaBody:
    return DagReplicaBody(str(replica.cid), multibase.encode(replica.block))


@endpoint(
    "GET",
    "/ceramic/dag/{cid}.car",
    Answer("The DAG.", Binary, media_type=CAR_TYPE),
    errors=(404,),
    own=True,
)
async def get_car(call: Call[RootPath]) -> Response:
    """Read a DAG as a CARv1, its blocks depth first."""
    root = call.parameters.cid
    with answered_503():
        try:
            pieces = await dag_side(call.services).car(root)
        except IncompleteDagError as error:
            raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None
    headers = {
        "content-disposition": f'attachment; filename="{root}.car"',
        "x-content-type-options": "nosniff",
    }
    return StreamedAnswer(pieces, media_type=CAR_TYPE, headers=headers)


class DagReplicasBody(Body, frozen=True):
    """The log of a DAG."""

    root: str
    """The CID of its root."""
    replicas: list[DagReplicaBody]
    """In the order of their binary CIDs."""


@endpoint("GET", "/ceramic/dag/{cid}/replicas", own=True)
async def get_replicas(call: Call[RootPath]) -> Annotated[Response, DagReplicasBody]:
    """Read the log of a DAG: its appends and joins.

    Whoever can write events can add to them. 400 beyond 4 MiB.
    """
    root = call.parameters.cid
    with answered_503():
        replicas = await dag_side(call.services).replicas(root, MAX_REPLICA_BYTES)
    if replicas is None:
        raise bad_request(
            f"the replicas of the DAG have more than {MAX_REPLICA_BYTES} bytes, too many for one "
            "answer: read them as events, with the sort key dag"
        )
    found = replicas.values()
    return await call.services.in_thread(
        lambda: reply(DagReplicasBody(str(root), list(map(_describe_replica, found))))
    )


class DagContainsBody(Body, frozen=True):
    """Whether a replica contains a block."""

    contains: bool | None
    """null: unknown, because something is missing."""
    waiting_for: list[str]
    """The CIDs of missing replicas and shards."""
    shard: str | None
    """The CID of the shard that has the block; null if none does, or the block is in its CID."""


@endpoint("GET", "/ceramic/dag/{cid}/contained/{replica}", own=True)
async def get_contains(call: Call[ReplicaPath]) -> DagContainsBody:
    """Ask whether the DAG that a replica describes contains a block."""
    with answered_503():
        found = await dag_side(call.services).contains(call.parameters.replica, call.parameters.cid)
    shard = None if found.shard is None else str(found.shard)
    return DagContainsBody(found.holds, _texts(found.waiting_for), shard)


class DagPendingBody(Body, frozen=True):
    """A publish of which it is not known whether its origin contains its link."""

    link: str
    """The CID of the DAG's root."""
    origin: str
    """The replica."""


class RefusedPublishBody(Body, frozen=True):
    """A publish that is not permitted, or whose origin does not contain its link."""

    cid: str
    """Its CID."""
    reason: str
    """The reason, in plain English."""


class DagPublicationBody(Body, frozen=True):
    """What is published under an identifier."""

    id: str
    """The identifier."""
    link: str | None
    """The CID of the DAG's root. null: nothing was published, or it is not yet known to be
    contained by its origin."""
    origin: str | None
    """The replica that describes it."""
    pending: DagPendingBody | None
    """A later publish than that of `link`, which counts as soon as it is known that its origin
    contains its link."""
    order: list[str]
    """The CIDs of the permitted publishes in their order. The last one whose origin contains its
    link counts."""
    waiting_for: list[str]
    """The CIDs of what is missing: publishes that others continue, and replicas and shards of
    the pending one's origin."""
    refused: list[RefusedPublishBody]
    """At most 100 of them."""
    ignored: Whole
    """Events about the identifier that bring no publish of it."""


@endpoint("GET", "/ceramic/dag/publish/{did}", own=True)
async def get_publication(call: Call[IdentifierPath]) -> Annotated[Response, DagPublicationBody]:
    """Ask what is published under an identifier."""
    with answered_503():
        found = await dag_side(call.services).resolve(call.parameters.did)
    return await call.services.in_thread(partial(_render_publication, found))


def _render_publication(found: Publication) -> Response:
    current, pending = found.current, found.pending
    return reply(
        DagPublicationBody(
            id=str(found.identifier),
            link=None if current is None else str(current.link),
            origin=None if current is None else str(current.origin),
            pending=None
            if pending is None
            else DagPendingBody(str(pending.link), str(pending.origin)),
            order=_texts(found.order),
            waiting_for=_texts(found.waiting_for),
            refused=[RefusedPublishBody(str(cid), why) for cid, why in found.faults.items()],
            ignored=found.ignored,
        )
    )


def dag_side(services: Services) -> Dags:
    """Return the index of DAGs; raises `ApiError` 503 if the node has no index."""
    if services.dags is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node keeps no index of DAGs")
    return services.dags


@contextmanager
def answered_503() -> Iterator[None]:
    """Answer 503 when the index cannot be asked."""
    try:
        yield
    except DagError as error:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
