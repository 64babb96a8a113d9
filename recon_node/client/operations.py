"""What every operation of the client needs: who signs, the models that are known, and events.

Theory of operation. An operation is a generator: it yields a `Request`, is sent the `Answer`, and
returns its result. So each one is written once, as a function of a `ClientSession`, and knows
neither httpx nor an event loop; the two clients (`clients`) only carry requests and answers back
and forth. Operations are composed with `yield from`.

The requests are those that a ceramic-one node has, too. What only this project's nodes have is
used where it helps, and missed without harm.

Arguments are checked here, too, and turned into what the layers below expect. Everything that is
wrong with one is an `InvalidArgumentError`, and with content an
`InvalidContentError` that says where in the content it is.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import reduce
from http import HTTPStatus
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote

from recon_node.base.connection import Answer, NodeError, NotANodeError, Request
from recon_node.ceramic import CeramicError, Event, InvalidEventError, StreamId, parse_event
from recon_node.ceramic.auth.signature import CLOCK_SKEW
from recon_node.client.errors import (
    CapabilityExpiredError,
    InvalidArgumentError,
    InvalidContentError,
    NoKeyError,
    OutsideInterestsWarning,
    RefusedEventError,
    checked_arguments,
)
from recon_node.client.keys import Key
from recon_node.ipld import CID, IpldError, multibase
from recon_node.streams import Expired
from recon_node.streams.json_values import pointer


@dataclass(frozen=True, slots=True)
class Document:
    """A stream at one of its events. A model is one, too: its content is the definition."""

    id: StreamId
    event: CID
    """The event at which this is the content: the tip, unless another one was asked for."""
    content: Any
    """A JSON object; None for a document that has no content yet. Do not change it."""
    metadata: Mapping[str, Any]
    """`shouldIndex` and `modelVersion`."""
    controller: str
    """A DID."""
    model: StreamId | None
    open_tips: tuple[CID, ...]
    """If the stream has diverged, or has branches that expired, the events that a merge would
    cover, the tip first; else none."""
    rejected: Mapping[CID, tuple[str, ...]]
    """Events that changed nothing, and why: a patch that does not apply, content that breaks a rule
    of the model, or a signature that is wrong."""
    expired: Mapping[CID, Expired] = field(default_factory=dict[CID, Expired])
    """Those of `open_tips` whose branch an expired capability keeps from becoming the tip."""
    errors: tuple[str, ...] = ()
    """Why `event` itself was rejected, if it was asked for."""
    repaired: Mapping[CID, Expired] = field(default_factory=dict[CID, Expired], compare=False)
    """The open tips whose branches had expired before the merge that returned this document."""
    sent: tuple[CID, ...] = field(default=(), compare=False)
    """Events sent by the call that returned this document; none if nothing had to change."""

    def __repr__(self) -> str:
        return f"Document({str(self.id)!r}, event={str(self.event)!r}, content={self.content!r})"


StreamRef: TypeAlias = StreamId | str | Document
"""A stream: its StreamID, or the document that was read or written."""
CidRef: TypeAlias = CID | str
"""An event: its CID, which may be text."""

_SCALARS: Final = (str, int, bytes, type(None))
_MAX_SHOWN: Final = 100


def to_stream_id(stream: object) -> StreamId:
    """Return a StreamID, given as such, as text, or by a document.

    Raises:
        InvalidArgumentError: it is not one of these.
    """
    id_ = getattr(stream, "id", stream)
    if isinstance(id_, StreamId):
        return id_
    if not isinstance(id_, str):
        raise InvalidArgumentError(f"{_shown(stream)} is not a StreamID, nor a document")
    with checked_arguments():
        return StreamId.parse(id_.removeprefix("ceramic://"))


def to_cid(cid: object) -> CID:
    """Return the CID of an event, given as such or as text.

    Raises:
        InvalidArgumentError: it is not a CID.
    """
    if isinstance(cid, CID):
        return cid
    if not isinstance(cid, str):
        raise InvalidArgumentError(f"{_shown(cid)} is not a CID")
    try:
        return CID.parse(cid)
    except IpldError as error:
        raise InvalidArgumentError(f"{_shown(cid)} is not a CID: {error}") from None


def to_cid_or_none(cid: object) -> CID | None:
    """Return the CID of an event that may be left out.

    Raises:
        InvalidArgumentError: as `to_cid`.
    """
    return None if cid is None else to_cid(cid)


def to_object(content: object, what: str = "the content") -> dict[str, Any]:
    """Return a JSON object of plain dicts and lists; tuples count as lists.

    Raises:
        InvalidArgumentError: it is not a mapping.
        InvalidContentError: something in it is not JSON, or contains itself.
    """
    if not isinstance(content, Mapping):
        raise InvalidArgumentError(f"{what} is a JSON object, not {_shown(content)}")
    try:
        copied: dict[str, Any] = _plain(content, (), ())
    except RecursionError:
        raise InvalidContentError([f"{what} is nested too deeply"]) from None
    return copied


def to_patch(patch: object) -> list[dict[str, Any]]:
    """Return a JSON Patch (RFC 6902) of plain dicts and lists.

    Raises:
        InvalidArgumentError: it is not a sequence of mappings.
        InvalidContentError: as `to_object`.
    """
    if isinstance(patch, str) or not isinstance(patch, Sequence):
        raise InvalidArgumentError(f"a JSON Patch is a list of operations, not {_shown(patch)}")
    return [to_object(operation, "an operation of a JSON Patch") for operation in patch]


def _plain(value: Any, path: tuple[str | int, ...], inside: tuple[int, ...]) -> Any:
    """Copy a value at a path; `inside` has the identities of the values around it."""
    if isinstance(value, Mapping | list | tuple):
        if id(value) in inside:
            raise InvalidContentError([f"{_path_text(path)} contains itself"])
        inside = (*inside, id(value))
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidContentError(
                    [f"{_path_text(path)} has the key {name!r}, which is not text"]
                )
        return {name: _plain(member, (*path, name), inside) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, number), inside) for number, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidContentError([f"{_path_text(path)} is {value}, which JSON does not have"])
    if not isinstance(value, (*_SCALARS, float, CID)):
        raise InvalidContentError(
            [f"{_path_text(path)} is of the type {type(value).__name__}: not JSON"]
        )
    return value


def _path_text(path: tuple[str | int, ...]) -> str:
    return f"what is at {reduce(pointer, map(str, path), '')}" if path else "the content"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


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


def segment(text: object) -> str:
    """Return text as one segment of a path."""
    return quote(str(text), safe="")


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
        raise TypeError(f"{name} is {_shown(value)}")
    return value


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
