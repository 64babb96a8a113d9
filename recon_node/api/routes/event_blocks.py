"""GET /ceramic/events/{event_id}/blocks: an event for people to read, its blocks as DAG-JSON."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec import Raw
from starlette.responses import Response

from recon_node.api.endpoint import Call, endpoint
from recon_node.api.errors import ApiError
from recon_node.api.models import Body, Whole, as_raw, reply
from recon_node.api.routes.events import EventPath
from recon_node.ceramic import Event, parse_event
from recon_node.ipld import CID, car, dag_cbor
from recon_node.streams.document_schema import as_dag_json


class EventBlockBody(Body, frozen=True):
    """A block of an event."""

    cid: str
    """Its CID."""
    role: str
    """envelope, payload, capability, event (an unsigned one), proof, or path (from the proof's root
    to the event that it anchors)."""
    size: Whole
    """Bytes."""
    value: Raw
    """The block as DAG-JSON."""


class EventBlocksBody(Body, frozen=True):
    """An event and its blocks."""

    id: str
    """The event's CID."""
    kind: str
    """init, data or time."""
    init: str
    """The CID of the stream's init event."""
    prev: list[str]
    """The CIDs of the events that it builds on."""
    signer: str | None
    """The DID that signed it; null: it is not signed."""
    size: Whole
    """Bytes of its CAR."""
    blocks: list[EventBlockBody]
    """The root first."""


@endpoint("GET", "/ceramic/events/{event_id}/blocks", errors=(404,), own=True)
async def get_event_blocks(call: Call[EventPath]) -> Annotated[Response, EventBlocksBody]:
    """Read an event as DAG-JSON, delivered or not."""
    found = await call.services.store.log.car(call.parameters.event_id)
    if found is None:
        text = call.request.path_params["event_id"]
        raise ApiError(HTTPStatus.NOT_FOUND, f"Event not found : {text}")
    return await call.services.in_thread(lambda: reply(_describe(parse_event(found))))


def _describe(event: Event) -> EventBlocksBody:
    blocks = car.decode(event.car).blocks
    order = sorted(blocks, key=lambda cid: cid != event.cid)
    return EventBlocksBody(
        id=str(event.cid),
        kind=event.kind.value,
        init=str(event.init),
        prev=[str(prev) for prev in event.prevs],
        signer=None if event.envelope is None else event.envelope.signer,
        size=len(event.car),
        blocks=[
            EventBlockBody(
                cid=str(cid),
                role=_role(event, cid),
                size=len(blocks[cid]),
                value=as_raw(as_dag_json(dag_cbor.decode(blocks[cid]))),
            )
            for cid in order
        ],
    )


def _role(event: Event, cid: CID) -> str:
    envelope = event.envelope
    if cid == event.cid:
        return "event" if envelope is None else "envelope"
    if envelope is not None:
        return "payload" if cid == envelope.payload else "capability"
    return "proof" if cid == event.payload.get("proof") else "path"
