"""What the operations of the client have in common: requests, and streams as they are.

Theory of operation. An operation is a generator: it yields a `Request`, is sent the `Answer`, and
returns its result. So each one is written once, as a function of a `ClientSession`, and knows
neither httpx nor an event loop; the two clients (`clients`) only carry requests and answers back
and forth. Operations are composed with `yield from`.

The requests are those that a ceramic-one node has, too. What only this project's nodes have is
used where it helps, and missed without harm.

A stream is read from the events that a node has. A node of either kind lists them by the sort value
and controller in the header of the init event, whose CID is in the StreamID. The state of the
stream is computed here (`recon_node.streams`), in the same way for both kinds of nodes, and for any
event of the stream. Events whose history the node does not have yet do not count.

The block times of anchors decide between branches (CIP-145), but are not in the events. A node of
this project sends them; with a ceramic-one node, only the lowest CID decides between branches.

Signatures are checked here, too. A badly signed event is never the tip and changes nothing, but it
keeps covering what it covers once a valid one is on top of it (CIP-145); before, no node lists it.

Definitions of models are kept: that of a version never changes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType, NoneType
from typing import Any, Final, TypeAlias, TypeVar

from recon_node.base.connection import (
    Answer,
    InvalidArgumentError,
    NodeError,
    NotANodeError,
    NotFoundError,
    Request,
    segment,
)
from recon_node.ceramic import (
    METAMODEL,
    CeramicError,
    Event,
    EventKind,
    InitHeader,
    InvalidEventError,
    InvalidSignatureError,
    StreamId,
    StreamType,
    UnsupportedSignatureError,
    check_authority,
    parse_event,
    verify_signature,
)
from recon_node.ceramic.auth.capability import CLOCK_SKEW
from recon_node.client.arguments import (
    CidRef,
    Document,
    InvalidContentError,
    StreamRef,
    shown,
    to_cid,
    to_stream_id,
)
from recon_node.client.keys import CapabilityExpiredError, Key, NoKeyError, checked_arguments
from recon_node.ipld import CID, DagCborError, IpldError, multibase
from recon_node.streams import Definitions, Expired, Stream, StreamShapeError, definitions_of
from recon_node.streams.graph import with_whole_history

T = TypeVar("T")
Steps: TypeAlias = Generator[Request, Answer, T]
"""An operation; see the module's text."""


@dataclass(slots=True)
class ClientSession:
    """A client's key, and the models that it knows."""

    key: Key | None = None
    models: dict[CID, dict[CID, Any]] = field(default_factory=dict)
    """Definitions of models, by the CID of the model's init event, then by version."""

    def key_or(self, key: Key | None) -> Key:
        """Return the key of a call, or else the client's.

        Raises:
            NoKeyError: there is neither.
            InvalidArgumentError: it is something else.
            CapabilityExpiredError: its account has to sign again.
        """
        chosen = key or self.key
        if chosen is None:
            raise NoKeyError
        if not isinstance(chosen, Key):
            raise InvalidArgumentError("`key` is a Key: Key.load(FILE) reads one from a file")
        capability, now = chosen.capability, int(time.time())
        if capability is not None and not capability.cacao.validity.covers(now, CLOCK_SKEW):
            raise CapabilityExpiredError(capability.issuer, capability.expires)
        return chosen


def get(path: str, **params: str | int | list[str] | None) -> Request:
    """Make a GET request; parameters that are None are left out, and lists are repeated."""
    return Request(
        "GET", path, {name: value for name, value in params.items() if value is not None}
    )


@contextmanager
def decoding() -> Generator[None]:
    """Raise `NotANodeError` where an answer has something else than a node answers.

    For what takes an answer apart, and nothing else: a mistake of ours must not look like one of
    the node's.
    """
    try:
        yield
    except _MISREAD:
        raise NotANodeError from None


_MISREAD: Final = (
    *(CeramicError, IpldError),  # ids
    *(LookupError, TypeError, AttributeError),  # objects and arrays
    *(ValueError, ArithmeticError, OSError),  # names of kinds; times beyond those of the calendar
)


def member(entry: Any, name: str, *kinds: type) -> Any:
    """Return a member of an object in an answer, which is null where it is missing.

    Raises:
        TypeError: it is of none of these types, or not the member of an object; for `decoding`.
    """
    value = entry.get(name)
    if type(value) not in kinds:  # true is not 1
        raise TypeError(f"{name} is {shown(value)}")
    return value


def parsed(entry: Any, name: str, parse: Callable[[str], T]) -> T | None:
    """Return what a text in an object of an answer says; None where it is null or missing."""
    text = member(entry, name, str, NoneType)
    return None if text is None else parse(text)


def version(session: ClientSession) -> Steps[str]:
    """Return the version of the node."""
    answer = (yield get("/ceramic/version")).check()
    with decoding():
        return str(member(answer.json, "version", str))


def event(session: ClientSession, cid: CidRef) -> Steps[Event]:
    """Fetch an event.

    Raises:
        NotFoundError: the node does not have it.
    """
    (data,) = (yield get(f"/ceramic/events/{to_cid(cid)}")).fields("data")
    return read_event(data)


class RefusedEventError(NodeError):
    """The node does not accept an event: the message is its reason."""


class OutsideInterestsWarning(UserWarning):
    """The node has interests, and none of them covers what was written: it keeps the event, but no
    peer gets it from there. Python shows it once for each model; see `warnings`."""


def send(session: ClientSession, event: Event) -> Steps[None]:
    """Send an event that was made elsewhere. Sending it again does no harm.

    Warns:
        OutsideInterestsWarning: the node keeps the event for itself.

    Raises:
        RefusedEventError: the node does not accept it.
    """
    body = {"data": multibase.encode(event.car)}
    answer = yield Request("POST", "/ceramic/events", json=body)
    if answer.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN):
        raise RefusedEventError(answer.status, answer.message)
    answer.check()
    if answer.warning:
        warnings.warn(answer.warning, OutsideInterestsWarning, stacklevel=1)


def check_accepted(stream: Stream, event: Event) -> None:
    """Check that an event would not be rejected, and that its capability covers the stream."""
    if event.capability is not None:
        with checked_arguments():
            check_authority(event, stream.header.controller, stream.header.model)
    state = stream.at(event.cid)
    if state.validation_errors:
        raise InvalidContentError(state.validation_errors)


@contextmanager
def explained() -> Generator[None]:
    """Turn what the builders refuse into an error of this package."""
    try:
        yield
    except (InvalidEventError, DagCborError) as error:
        raise InvalidContentError([str(error)]) from None


def fetch_matching(
    sort_key: str, sort_value: str, controller: str | None, stream: StreamId | None
) -> Steps[list[Event]]:
    """Fetch the events of an interest that the node has, waiting ones among them."""
    path = f"/ceramic/experimental/events/{segment(sort_key)}/{segment(sort_value)}"
    events: list[Event] = []
    offset, is_complete = 0, False
    while not is_complete:
        stream_id = None if stream is None else str(stream)
        answer = yield get(path, controller=controller, streamId=stream_id, offset=offset)
        (entries,) = answer.fields("events")
        with decoding():
            before, offset = offset, member(answer.json, "resumeOffset", int)
            is_complete = member(answer.json, "isComplete", bool)
            if not is_complete and offset <= before:
                raise ValueError("it would never end")
            events += [read_event(entry["data"]) for entry in entries]
    return events


def read_event(data: object) -> Event:
    """Read an event of an answer, multibase text of its CAR.

    Raises:
        NodeError: it is not an event.
    """
    try:
        return parse_event(multibase.decode(str(data)))
    except (InvalidEventError, IpldError) as error:
        raise NodeError(
            HTTPStatus.OK, f"the node sent something that is not an event: {error}"
        ) from None


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
    session: ClientSession, model: StreamId, versions: Iterable[CID]
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
    cid = None if at is None else to_cid(at)
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
        init = yield from event(session, stream.cid)
    except NotFoundError:
        raise NotFoundError(
            404,
            f"the node does not have the stream {stream}: compare the id, or wait until it has "
            "arrived; a node with interests gets a stream by an interest in it or its model, and "
            f"models by one in {METAMODEL}",
        ) from None
    header = init.header
    if header is None or init.stream_id() != stream:
        actual = f"the stream is {init.stream_id()}" if header else "it is not an init event"
        raise NotFoundError(404, f"the event {init.cid} does not start {stream}: {actual}")
    if not header.sort_key:
        raise NodeError(
            400, f"the stream {stream} has no sort key: it can only be read from the feed"
        )
    listed = yield from fetch_matching(
        header.sort_key, header.sort_value, header.controller, stream
    )
    held = [init, *(event for event in listed if event.init == init.cid)]
    times: dict[CID, int] = {}
    if any(event.kind is EventKind.TIME for event in held):
        times, delivered = yield from _fetch_times(stream)
        if delivered is not None:
            held = [event for event in held if event.cid in delivered]
    faults = {
        event.cid: fault
        for event in held
        if event.kind is EventKind.DATA and (fault := _signature_fault(event, header)) is not None
    }
    return Stream.of(complete_events(held), times, faults)


def complete_events(events: Iterable[Event]) -> list[Event]:
    """Return those events whose history is among them, in causal order, each once."""
    by_cid = {event.cid: event for event in events}
    prevs = {cid: event.prevs for cid, event in by_cid.items()}
    return [by_cid[cid] for cid in with_whole_history(prevs)]


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
    """Fetch the block times of a stream's time events, and the CIDs of its delivered events.

    A node lists every delivered event, but not every waiting one. A ceramic-one node does not know
    the question (404): then there are no times, and what is delivered is unknown (None).
    """
    answer = yield get(f"/ceramic/streams/{stream}/events")
    if answer.status == 404:
        return {}, None
    (entries,) = answer.fields("events")
    with decoding():
        times = {CID.parse(entry["cid"]): member(entry, "time", int, NoneType) for entry in entries}
        delivered = {CID.parse(entry["cid"]) for entry in entries if entry["state"] == "delivered"}
    return {cid: time for cid, time in times.items() if time is not None}, delivered
