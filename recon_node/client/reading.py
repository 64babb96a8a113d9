"""Reading streams: from the events that a node has to the content at one of them.

Theory of operation. A node of either kind lists the events of a stream by its sort value and
controller, which are in the header of the init event, whose CID is in the StreamID. The state of
the stream is computed here (`recon_node.streams`), in the same way for both kinds of nodes, and for
any event of the stream. Events whose history the node does not have yet do not count.

The block times of anchors decide between branches (CIP-145), but are not in the events. A node of
this project tells them; with a ceramic-one node, only the lowest CID decides between branches.

Signatures are checked here, too. A badly signed event is never the tip and changes nothing, but it
keeps covering what it covers once a valid one is on top of it (CIP-145); before, no node lists it.

Definitions of models are kept: that of a version never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType, NoneType

from recon_node.base.connection import NodeError, NotFoundError
from recon_node.ceramic import (
    Event,
    EventKind,
    InitHeader,
    InvalidSignatureError,
    StreamId,
    StreamType,
    UnsupportedSignatureError,
    check_authority,
    verify_signature,
)
from recon_node.client import operations
from recon_node.client.operations import (
    CidRef,
    ClientSession,
    Document,
    Steps,
    StreamRef,
    decoding,
    fetch_matching,
    get,
    member,
    to_cid_or_none,
    to_stream_id,
)
from recon_node.ipld import CID
from recon_node.streams import Definitions, Expired, Stream, StreamShapeError, definitions_of


def document_at(
    stream: Stream,
    at: CID | None = None,
    sent: Iterable[Event] = (),
    repaired: Mapping[CID, Expired] = MappingProxyType({}),
) -> Document:
    """Return the document at an event of a stream, by default at the tip.

    Raises:
        NotFoundError: there is no such event, or no event of the stream was accepted.
    """
    try:
        state = stream.at(stream.accepted_tip.event if at is None else at)
        open_tips = stream.open_tips
    except StreamShapeError as error:
        raise not_accepted(stream, error) from None
    return Document(
        id=stream.id,
        event=state.event_cid,
        content=state.data.content,
        metadata=state.data.metadata,
        controller=stream.header.controller,
        model=stream.header.model,
        open_tips=open_tips,
        rejected=stream.rejected,
        expired=stream.expired,
        errors=state.validation_errors,
        repaired=repaired,
        sent=tuple(event.cid for event in sent),
    )


def not_accepted(stream: Stream, error: StreamShapeError) -> NotFoundError:
    """Return the error for a stream that has no tip, or not the event that was asked for."""
    reasons = stream.rejected.get(stream.id.cid)
    why = str(error) if reasons is None else f"its init event was rejected: {reasons[0]}"
    return NotFoundError(404, f"the stream {stream.id}: {why}")


def load_model(
    session: ClientSession, model: StreamId, versions: Iterable[CID] = ()
) -> Steps[Definitions]:
    """Return a model's definitions: its first one, and those of versions that the node has.

    Raises:
        NotFoundError: the node does not have the model.
    """
    wanted = set(versions) | {model.cid}
    known = session.models.setdefault(model.cid, {})
    if not wanted <= known.keys():
        stream = yield from fetch_events(session, model)
        if stream.header.stream_type is not StreamType.MODEL:
            raise NotFoundError(404, f"{model} is not a model, but a document")
        known.update(definitions_of(stream.states.all(), model.cid, wanted))
    return known


def fetch_stream(session: ClientSession, ref: StreamRef) -> Steps[Stream]:
    """Fetch the events of a stream, and the definitions that its documents name.

    A document whose model the node does not have is not checked against it.

    Raises:
        NotFoundError: the node does not have the stream.
    """
    stream = yield from fetch_events(session, to_stream_id(ref))
    model = stream.header.model
    if model is None or stream.header.stream_type is StreamType.MODEL:
        return stream
    try:
        definitions = yield from load_model(session, model, stream.versions)
    except NotFoundError:
        return stream
    return stream.with_definitions(definitions)


def read(session: ClientSession, stream: StreamRef, *, at: CidRef | None = None) -> Steps[Document]:
    """Read a stream at its tip, or at any of its events.

    Raises:
        NotFoundError: the node does not have the stream, or it has no such event.
    """
    cid = to_cid_or_none(at)
    return document_at((yield from fetch_stream(session, stream)), cid)


def events(session: ClientSession, stream: StreamRef) -> Steps[tuple[Event, ...]]:
    """Read the events of a stream, in causal order: every event after its prevs.

    Raises:
        NotFoundError: the node does not have the stream.
    """
    return (yield from fetch_stream(session, stream)).events


def fetch_events(session: ClientSession, stream: StreamId) -> Steps[Stream]:
    """Fetch the events of a stream, without its model.

    Raises:
        NotFoundError: the node does not have the stream.
    """
    try:
        init = yield from operations.event(session, stream.cid)
    except NotFoundError:
        raise NotFoundError(
            404,
            f"the node does not have the stream {stream}: compare the id, or wait until it has "
            "arrived; a node with interests gets a stream by an interest in it or its model, and "
            "models by one in METAMODEL",
        ) from None
    header = init.header
    if header is None or init.stream_id() != stream:
        actual = f"the stream is {init.stream_id()}" if header else "it is not an init event"
        raise NotFoundError(404, f"the event {init.cid} does not start {stream}: {actual}")
    if not header.sep_key:
        raise NodeError(
            400, f"the stream {stream} has no sort key: it can only be read from the feed"
        )
    listed = yield from fetch_matching(header.sep_key, header.sep_value, header.controller, stream)
    held = [init, *(event for event in listed if event.init == init.cid)]
    times: dict[CID, int] = {}
    if any(event.kind is EventKind.TIME for event in held):
        times, delivered = yield from _fetch_times(stream)
        if delivered is not None:
            held = [event for event in held if event.cid in delivered]
    faults = _check_signatures(held, header)
    return Stream.of(with_whole_history(held), times, faults)


def with_whole_history(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return those events whose history is among them, in causal order, each once."""
    left = {event.cid: event for event in events}
    ordered: dict[CID, Event] = {}
    ready = [event for event in left.values() if not event.prevs]
    waiting: dict[CID, list[Event]] = {}
    for event in left.values():
        for prev in event.prevs:
            waiting.setdefault(prev, []).append(event)
    for event in ready:  # grows while it is walked
        ordered[event.cid] = event
        for later in waiting.get(event.cid, ()):
            if later.cid not in ordered and ordered.keys() >= set(later.prevs):
                ready.append(later)
    return tuple(ordered.values())


def _check_signatures(events: Iterable[Event], header: InitHeader) -> dict[CID, str]:
    """What is wrong with the signatures of some data events."""
    data = (event for event in events if event.kind is EventKind.DATA)
    faults = {event.cid: _signature_fault(event, header) for event in data}
    return {cid: fault for cid, fault in faults.items() if fault is not None}


def _signature_fault(event: Event, header: InitHeader) -> str | None:
    """What is wrong with the signature of a data event.

    For kinds of signatures that this client cannot check, it trusts the node. The order of the
    checks is a node's: an event whose own signature is wrong is refused, whether or not the kind of
    its capability is known.
    """
    try:
        verify_signature(event, None)
        check_authority(event, header.controller, header.model)
    except UnsupportedSignatureError:
        return None
    except InvalidSignatureError as error:
        return str(error)
    return None


def _fetch_times(stream: StreamId) -> Steps[tuple[dict[CID, int], set[CID] | None]]:
    """The block times of a stream's time events, and which events are delivered: all of these are
    listed, while of the others there may be too many. Of a ceramic-one node, neither."""
    answer = yield get(f"/ceramic/streams/{stream}/events")
    if answer.status == 404:
        return {}, None
    (entries,) = answer.fields("events")
    with decoding():
        times = {CID.parse(entry["cid"]): member(entry, "time", int, NoneType) for entry in entries}
        delivered = {CID.parse(each["cid"]) for each in entries if each["state"] == "delivered"}
    return {cid: time for cid, time in times.items() if time is not None}, delivered
