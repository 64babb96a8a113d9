"""The arguments of operations: streams, events and content, as programs give them.

They are checked before anything is sent, and turned into what the layers below expect. Everything
that is wrong with one is an `InvalidArgumentError`, and with content an `InvalidContentError` that
says where in the content it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, TypeAlias

from recon_node.base.connection import ClientError, InvalidArgumentError
from recon_node.ceramic import StreamId
from recon_node.client.keys import checked_arguments
from recon_node.ipld import CID, IpldError
from recon_node.streams import Expired
from recon_node.streams.json_values import pointer


class InvalidContentError(ClientError):
    """Content that breaks a rule of its stream or its model. Nothing was sent.

    `reasons` has the rules that it breaks, in plain English.
    """

    def __init__(self, reasons: Sequence[str]) -> None:
        super().__init__(tuple(reasons))
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        return "; ".join(self.reasons)


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
_INTEGERS: Final = 2**64
"""DAG-CBOR has none from here on, nor below its negative."""


def to_stream_id(stream: object) -> StreamId:
    """Return a StreamID, given as such, as text, or by a document.

    Raises:
        InvalidArgumentError: it is not one of these.
    """
    id_ = getattr(stream, "id", stream)
    if isinstance(id_, StreamId):
        return id_
    if not isinstance(id_, str):
        raise InvalidArgumentError(f"{shown(stream)} is not a StreamID, nor a document")
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
        raise InvalidArgumentError(f"{shown(cid)} is not a CID")
    try:
        return CID.parse(cid)
    except IpldError as error:
        raise InvalidArgumentError(str(error)) from None


def to_object(content: object, what: str = "the content") -> dict[str, Any]:
    """Return a JSON object of plain dicts and lists; tuples count as lists.

    Raises:
        InvalidArgumentError: it is not a mapping.
        InvalidContentError: something in it is not JSON, or contains itself.
    """
    if not isinstance(content, Mapping):
        raise InvalidArgumentError(f"{what} is a JSON object, not {shown(content)}")
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
        raise InvalidArgumentError(f"a JSON Patch is a list of operations, not {shown(patch)}")
    return [to_object(operation, "an operation of a JSON Patch") for operation in patch]


def _plain(value: Any, path: tuple[str | int, ...], inside: tuple[int, ...]) -> Any:
    """Copy a value at a path; `inside` has the identities of the values around it."""
    if isinstance(value, Mapping | list | tuple):
        if id(value) in inside:
            raise InvalidContentError([f"{_path_text(path)} contains itself"])
        inside = (*inside, id(value))
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str) or not _is_text(name):
                raise InvalidContentError(
                    [f"{_path_text(path)} has the key {name!r}, which is not text"]
                )
        return {name: _plain(member, (*path, name), inside) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, (*path, number), inside) for number, item in enumerate(value)]
    if isinstance(value, str) and not _is_text(value):
        raise InvalidContentError([f"{_path_text(path)} has half a surrogate pair: not text"])
    if isinstance(value, int) and not -_INTEGERS <= value < _INTEGERS:
        raise InvalidContentError([f"{_path_text(path)} is an integer of more than 64 bits"])
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidContentError([f"{_path_text(path)} is {value}, which JSON does not have"])
    if not isinstance(value, (*_SCALARS, float, CID)):
        raise InvalidContentError(
            [f"{_path_text(path)} is of the type {type(value).__name__}: not JSON"]
        )
    return value


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= each <= "\udfff" for each in value)


def _path_text(path: tuple[str | int, ...]) -> str:
    return f"what is at {reduce(pointer, map(str, path), '')}" if path else "the content"


def shown(value: object) -> str:
    """Return a value for a message, as Python shows it, but not at any length."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
