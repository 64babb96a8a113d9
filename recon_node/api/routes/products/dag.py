"""DAGs: what the node has of them, their CARs and logs, and the publishes of an identifier.

Shards and operations are events (see `recon_node.dag.dag_events`): they are sent to POST
/ceramic/events as all events are, and come from peers by interests with the sort key "dag".

GET /ceramic/dag and /ceramic/dag/publish list the DAGs and the publishes here.
"""

from functools import partial
from http import HTTPStatus
from typing import Annotated, Final, Literal

from msgspec import Raw, field
from starlette.responses import Response

from recon_node.api.endpoint import Answer, Call, Services, endpoint
from recon_node.api.errors import ApiError, bad_request
from recon_node.api.models import (
    Binary,
    Body,
    Multibase,
    Parameters,
    StreamedAnswer,
    Whole,
    parsed_by,
    reply,
)
from recon_node.api.routes.listings import ListQuery
from recon_node.dag.dag_events import Identifier, parse_root, sort_bytes
from recon_node.dag.dag_service import Dags, DirectoryEntry
from recon_node.dag.dag_state import Lacking, ListedDag, Publication
from recon_node.dag.errors import DagError, IncompleteDagError
from recon_node.ipld import CID, IpldError, dag_json

CAR_TYPE: Final = "application/vnd.ipld.car"
MAX_PATH_PARTS: Final = 64
"""Parts of a path in a DAG."""
MAX_REPLICA_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the blocks of a DAG's replicas; a client gets those of a longer log as events."""


Cid = Annotated[CID, parsed_by(parse_root)]


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

    did: Annotated[Identifier, parsed_by(Identifier.parse, "Invalid identifier: ")]
    """The identifier: a did:key of an Ed25519 key."""


class DagReplicaBody(Body, frozen=True):
    """A replica: an append or a join."""

    cid: CID
    """Its CID."""
    block: Multibase = field(name="data")
    """Its block, as multibase text."""


class DagStateBody(Body, frozen=True):
    """How much of a DAG the node has."""

    root: CID
    """The CID of its root."""
    complete: bool
    """Whether the node has everything that it links to."""
    blocks: Whole
    """How many of the blocks below the root the node has."""
    size: Whole = field(name="bytes")
    """The size of these blocks."""
    missing_blocks: Lacking
    shards: list[CID]
    """The CIDs of those that the node has and a replica names."""
    unclaimed: list[CID]
    """The CIDs of those that the node has and no replica names."""
    missing_shards: Lacking
    missing_replicas: Lacking
    heads: list[CID]
    """The CIDs of the replicas that no other replica continues; of more than 100, those with the
    most shards that are here."""
    head: DagReplicaBody | None
    """The replica that has the shards of all heads: their join, which the node need not have. null:
    the node has no replica with its whole history."""
    ignored: Whole
    """Events about the DAG that contain nothing valid."""


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
    try:
        pieces = await dag_side(call.services).car(root)
    except IncompleteDagError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None
    headers = {
        "content-disposition": f'attachment; filename="{root}.car"',
        "x-content-type-options": "nosniff",
    }
    return StreamedAnswer(pieces, media_type=CAR_TYPE, headers=headers)


@endpoint("GET", "/ceramic/dag/{cid}", own=True)  # behind the CAR, whose paths it matches, too
async def get_dag(call: Call[RootPath]) -> Annotated[Response, DagStateBody]:
    """Get how complete a DAG is at this node."""
    state = await dag_side(call.services).state(call.parameters.cid)
    return await call.services.in_thread(lambda: reply(DagStateBody.of_object(state)))


class EntryQuery(RootPath, frozen=True):
    """A place in a DAG."""

    path: str = ""
    """From the root: names of directories and a file, with `/` between them."""


class DagEntryBody(Body, frozen=True):
    """What is at a place in a DAG."""

    kind: Literal["directory", "file", "symlink", "data"]
    """data: a block that is not part of a file or directory."""
    cid: CID
    """Of its block."""
    size: Whole | None
    """Bytes of content; null for a directory."""
    text: str | None
    """The first 16 KiB of a file, or a symlink's target; null if it is not UTF-8."""
    value: Raw
    """A DAG-CBOR block, as DAG-JSON."""
    entries: list[DirectoryEntry]
    """Of a directory, the first 1,000."""
    is_cut: bool
    """Whether the directory, or the file, has more."""


@endpoint("GET", "/ceramic/dag/{cid}/entry", errors=(404,), own=True)
async def get_entry(call: Call[EntryQuery]) -> Annotated[Response, DagEntryBody]:
    """Look into a DAG: list a directory, or read the beginning of a file."""
    query = call.parameters
    path = tuple(part for part in query.path.split("/") if part)
    if len(path) > MAX_PATH_PARTS:
        raise bad_request(f"the path has more than {MAX_PATH_PARTS} parts")
    try:
        entry = await dag_side(call.services).look(query.cid, path)
    except (DagError, IpldError) as error:
        raise ApiError(HTTPStatus.NOT_FOUND, str(error)) from None

    def render() -> Response:
        facts = (entry.kind, entry.cid, entry.size, entry.text, Raw(dag_json.encode(entry.value)))
        return reply(DagEntryBody(*facts, entry.entries, entry.is_cut))

    return await call.services.in_thread(render)


class DagReplicasBody(Body, frozen=True):
    """The log of a DAG."""

    root: CID
    """The CID of its root."""
    replicas: list[DagReplicaBody]
    """In the order of their binary CIDs."""


@endpoint("GET", "/ceramic/dag/{cid}/replicas", own=True)
async def get_replicas(call: Call[RootPath]) -> Annotated[Response, DagReplicasBody]:
    """Read the log of a DAG: its appends and joins.

    Whoever can write events can add to them. 400 beyond 4 MiB.
    """
    root = call.parameters.cid
    replicas = await dag_side(call.services).replicas(root, MAX_REPLICA_BYTES)
    if replicas is None:
        raise bad_request(
            f"the replicas of the DAG have more than {MAX_REPLICA_BYTES} bytes, too many for one "
            "answer: read them as events, with the sort key dag"
        )
    listed = replicas.values()

    def render() -> Response:
        return reply(DagReplicasBody(root, DagReplicaBody.of_objects(listed)))

    return await call.services.in_thread(render)


class DagContainsBody(Body, frozen=True):
    """Whether a replica contains a block."""

    holds: bool | None = field(name="contains")
    """null: unknown, because something is missing."""
    waiting_for: list[CID]
    """The CIDs of missing replicas and shards."""
    shard: CID | None
    """The CID of the shard that has the block; null if none does, or the block is in its CID."""


@endpoint("GET", "/ceramic/dag/{cid}/contained/{replica}", own=True)
async def get_contains(call: Call[ReplicaPath]) -> DagContainsBody:
    """Check whether the DAG that a replica describes contains a block."""
    replica, cid = call.parameters.replica, call.parameters.cid
    return DagContainsBody.of_object(await dag_side(call.services).contains(replica, cid))


class DagPendingBody(Body, frozen=True):
    """A publish of which it is not known whether its origin contains its link."""

    link: CID
    """The CID of the DAG's root."""
    origin: CID
    """The replica."""


class RefusedPublishBody(Body, frozen=True):
    """A publish that is not permitted, or whose origin does not contain its link."""

    cid: CID
    """Its CID."""
    reason: str
    """The reason, in plain English."""


class DagPublicationBody(Body, frozen=True):
    """What is published under an identifier."""

    id: str
    """The identifier."""
    link: CID | None
    """The CID of the DAG's root. null: nothing was published, or it is not yet known to be
    contained by its origin."""
    origin: CID | None
    """The replica that describes it."""
    pending: DagPendingBody | None
    """A later publish than that of `link`, which counts as soon as it is known that its origin
    contains its link."""
    order: list[CID]
    """The CIDs of the permitted publishes in their order. The last one whose origin contains its
    link counts."""
    waiting_for: list[CID]
    """The CIDs of what is missing: publishes that others continue, and replicas and shards of
    the pending one's origin."""
    refused: list[RefusedPublishBody]
    """At most 100 of them."""
    ignored: Whole
    """Events about the identifier that bring no publish of it."""


@endpoint("GET", "/ceramic/dag/publish/{did}", own=True)
async def get_publication(call: Call[IdentifierPath]) -> Annotated[Response, DagPublicationBody]:
    """Get what is published under an identifier."""
    publication = await dag_side(call.services).resolve(call.parameters.did)
    return await call.services.in_thread(partial(_render_publication, publication))


def _render_publication(publication: Publication) -> Response:
    current, pending = publication.current, publication.pending
    return reply(
        DagPublicationBody(
            id=str(publication.identifier),
            link=None if current is None else current.link,
            origin=None if current is None else current.origin,
            pending=None if pending is None else DagPendingBody.of_object(pending),
            order=list(publication.order),
            waiting_for=list(publication.waiting_for),
            refused=[RefusedPublishBody(cid, reason) for cid, reason in publication.faults.items()],
            ignored=publication.ignored,
        )
    )


def dag_side(services: Services) -> Dags:
    """Return the index of DAGs; raises `ApiError` 503 if the node has no index."""
    if services.dags is None:
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "this node keeps no index of DAGs")
    return services.dags


def _subject(text: str) -> bytes:
    """What a page ended with, as the index has it."""
    if text.startswith("did:"):
        return sort_bytes(Identifier.parse(text))
    return bytes(CID.parse(text)) if text else b""


class SubjectsQuery(ListQuery, frozen=True):
    """Which page of a list."""

    after: Annotated[bytes, parsed_by(_subject, "after: ")] = b""
    """The `next` of the page before; the first page without it."""


class DagListBody(Body, frozen=True):
    """DAGs, in the order of their roots."""

    dags: list[ListedDag]
    """A page of them."""
    next: str | None
    """What `after` is for the following page; null: this is the last one."""


@endpoint("GET", "/ceramic/dag", own=True)
async def get_dags(call: Call[SubjectsQuery]) -> DagListBody:
    """List the DAGs that the node has, in part or as a whole."""
    query = call.parameters
    listed = await dag_side(call.services).dags(query.after, query.size + 1)
    return DagListBody(listed[: query.size], query.last([str(dag.root) for dag in listed]))


class ListedIdentifierBody(Body, frozen=True):
    """An identifier under which something was published."""

    id: str
    """The did:key."""
    publishes: Whole
    """Publishes that are here."""
    refused: Whole
    """Those of them that their capability did not permit."""
    judged: Whole
    """When the latest was read by this node, in Unix seconds."""


class PublishListBody(Body, frozen=True):
    """Identifiers, in the order of their keys."""

    identifiers: list[ListedIdentifierBody]
    """A page of them."""
    next: str | None
    """What `after` is for the following page; null: this is the last one."""


@endpoint("GET", "/ceramic/dag/publish", own=True)
async def get_publishes(call: Call[SubjectsQuery]) -> PublishListBody:
    """List the identifiers under which something was published."""
    query = call.parameters
    identifiers = await dag_side(call.services).identifiers(query.after, query.size + 1)
    listed = [
        ListedIdentifierBody(str(entry.identifier), entry.publishes, entry.refused, entry.judged)
        for entry in identifiers
    ]
    return PublishListBody(listed[: query.size], query.last([body.id for body in listed]))
