"""GET /ceramic/dag and /ceramic/dag/publish: lists of the DAGs and the publishes here."""

from __future__ import annotations

from typing import Annotated

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import bad_request
from recon_node.api.models import Body, Parameters, Parsed, Whole, WholeParameter
from recon_node.api.routes.dag import answered_503, dag_side
from recon_node.api.routes.listings import MAX_PAGE
from recon_node.ceramic import DidError
from recon_node.dag import Identifier
from recon_node.dag.events import sort_bytes
from recon_node.ipld import CID, IpldError


def _subject(text: str) -> bytes:
    """What a page ended with, as the index has it."""
    try:
        if text.startswith("did:"):
            return sort_bytes(Identifier.parse(text))
        return bytes(CID.parse(text)) if text else b""
    except (DidError, IpldError) as error:
        raise bad_request(f"after: {error}") from None


class SubjectsQuery(Parameters, frozen=True):
    """Which page of a list."""

    after: Annotated[bytes, Parsed(_subject)] = b""
    """The `next` of the page before; the first page without it."""
    limit: WholeParameter = 100
    """Maximum number of entries: 100 by default, at most 1,000."""


class ListedDagBody(Body, frozen=True):
    """A DAG of which something is here."""

    root: CID
    """The CID of its root."""
    shards: Whole
    """Its shards that are here."""
    replicas: Whole
    """The operations on it that are here."""


class DagListBody(Body, frozen=True):
    """DAGs, in the order of their roots."""

    dags: list[ListedDagBody]
    """A page of them."""
    next: str | None
    """What `after` is for the following page; null: this is the last one."""


@endpoint("GET", "/ceramic/dag", own=True)
async def get_dags(call: Call[SubjectsQuery]) -> DagListBody:
    """List the DAGs of which something is here."""
    given = call.parameters
    size = min(given.limit, MAX_PAGE)
    with answered_503():
        found = await dag_side(call.services).dags(given.after, size + 1)
    dags = ListedDagBody.of_objects(found[:size])
    return DagListBody(dags, str(dags[-1].root) if dags and len(found) > size else None)


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
    given = call.parameters
    size = min(given.limit, MAX_PAGE)
    with answered_503():
        found = await dag_side(call.services).identifiers(given.after, size + 1)
    listed = [
        ListedIdentifierBody(
            id=str(each.identifier),
            publishes=each.publishes,
            refused=each.refused,
            judged=each.judged,
        )
        for each in found[:size]
    ]
    following = listed[-1].id if listed and len(found) > size else None
    return PublishListBody(identifiers=listed, next=following)
