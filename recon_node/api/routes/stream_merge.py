"""GET /ceramic/streams/{stream_id}/merge: the event that would merge a diverged stream (CIP-145).

The node proposes, and whoever has the controller's key signs. See `recon_node.streams.merging` for
how branches are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from msgspec import UNSET, Raw, UnsetType
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Body, Whole, as_raw, reply
from recon_node.api.routes.streams import StreamPath, compute
from recon_node.ceramic import StreamId
from recon_node.ipld import CID, dag_cbor, multibase
from recon_node.streams import Conflict, MergeProposal, Stream, StreamShapeError
from recon_node.streams.document_schema import as_dag_json


class BranchValueBody(Body, frozen=True):
    """A value on one branch."""

    prev: str
    """The CID of the branch's tip."""
    value: Raw | UnsetType = UNSET
    """The value there; left out if there is none."""


class ConflictBody(Body, frozen=True):
    """A part that branches changed in different ways."""

    path: str
    """A JSON Pointer into an object with the members `content` and `metadata`."""
    values: list[BranchValueBody]
    """In the order of `prev`."""


class ExpiredBody(Body, frozen=True):
    """A branch whose changes the merge leaves out: its data were anchored too late."""

    prev: str
    """The CID of the branch's last event, one of the prevs."""
    event: str
    """The CID of the event whose capability had expired."""
    expires: int
    """When that was, in Unix seconds."""
    time: int
    """When the event was anchored, in Unix seconds."""


class MergeBody(Body, frozen=True):
    """How a stream would be merged."""

    id: str
    """The StreamID."""
    diverged: bool
    """Whether there is something to merge or repair; if not, the other fields are empty."""
    prev: list[str]
    """The CIDs that the event would name: the tip, then the other open tips, ascending."""
    payload: str
    """Multibase text of the event's payload, which is to be signed, as DAG-CBOR."""
    content: Raw
    """The merged content; where there are conflicts, with the tip's values."""
    patch: list[Raw]
    """JSON Patch from the content at the tip to the merged one."""
    conflicts: list[ConflictBody]
    """What a person has to decide."""
    left: Whole
    """Open tips that do not fit into one event."""
    expired: list[ExpiredBody]
    """Prevs that repair the stream: what they cover had expired, and changes nothing."""


@endpoint("GET", "/ceramic/streams/{stream_id}/merge", errors=(404,), own=True)
async def get_stream_merge(call: Call[StreamPath]) -> Annotated[Response, MergeBody]:
    """Propose an event that merges a stream, not signed."""
    text, stream_id = call.request.path_params["stream_id"], call.parameters.stream_id
    return await compute(call.services, text, stream_id.cid, stream_id, _propose)


def _propose(stream: Stream) -> Response:
    try:
        proposal = stream.proposal()
    except StreamShapeError as error:
        raise ApiError(HTTPStatus.NOT_FOUND, f"Stream not found : {stream.id} ({error})") from None
    return reply(_describe(stream.id, proposal))


def _describe(stream_id: StreamId, proposal: MergeProposal | None) -> MergeBody:
    if proposal is None:
        return MergeBody(str(stream_id), False, [], "", as_raw(None), [], [], 0, [])
    return MergeBody(
        id=str(stream_id),
        diverged=True,
        prev=[str(prev) for prev in proposal.prevs],
        payload=multibase.encode(dag_cbor.encode(proposal.payload()), "base64url"),
        content=as_raw(as_dag_json(proposal.content)),
        patch=[as_raw(each) for each in as_dag_json(proposal.patch)],
        conflicts=[_describe_conflict(each, proposal.prevs) for each in proposal.conflicts],
        left=proposal.left,
        expired=[
            ExpiredBody(str(prev), str(each.event), each.expires, each.time)
            for prev, each in proposal.expired.items()
        ],
    )


def _describe_conflict(conflict: Conflict, prevs: Sequence[CID]) -> ConflictBody:
    values = {prev: as_raw(as_dag_json(value)) for prev, value in conflict.values.items()}
    return ConflictBody(
        conflict.path, [BranchValueBody(str(prev), values.get(prev, UNSET)) for prev in prevs]
    )
