"""What callers pass: checked, and turned into what the layers below expect.

Everything that is wrong with an argument is an `InvalidArgumentError`, and with content an
`InvalidContentError` that says where in the content it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from recon_node.ceramic import StreamId, StreamIdError
from recon_node.client.errors import InvalidArgumentError, InvalidContentError
from recon_node.ipld import CID, IpldError
from recon_node.streams.json_values import pointer

if TYPE_CHECKING:
    from recon_node.client.reading import Document

StreamRef: TypeAlias = "StreamId | str | Document"
"""A stream: its StreamID, or the document that was read or written."""
CidRef: TypeAlias = CID | str
"""An event: its CID, which may be text."""

_SCALARS: Final = (str, int, bytes, type(None))
_MAX_SHOWN: Final = 100


def to_stream_id(stream: object) -> StreamId:
    """Return a StreamID, given as such, as text, or by a document.

    Raises:
        InvalidArgumentError: it is none of these.
    """
    found = getattr(stream, "id", stream)
    if isinstance(found, StreamId):
        return found
    if not isinstance(found, str):
        raise InvalidArgumentError(f"{_shown(stream)} is not a StreamID, nor a document")
    try:
        return StreamId.parse(found.removeprefix("ceramic://"))
    except StreamIdError as error:
        raise InvalidArgumentError(str(error)) from None


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
        found: dict[str, Any] = _plain(content, (), ())
    except RecursionError:
        raise InvalidContentError([f"{what} is nested too deeply"]) from None
    return found


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
            raise InvalidContentError([f"{_place(path)} contains itself"])
        inside = (*inside, id(value))
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise InvalidContentError(
                    [f"{_place(path)} has the key {name!r}, which is not text"]
                )
        return {name: _plain(each, (*path, name), inside) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, (*path, number), inside) for number, each in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidContentError([f"{_place(path)} is {value}, which JSON does not have"])
    if not isinstance(value, (*_SCALARS, float, CID)):
        raise InvalidContentError(
            [f"{_place(path)} is of the type {type(value).__name__}: not JSON"]
        )
    return value


def _place(path: tuple[str | int, ...]) -> str:
    return f"what is at {reduce(pointer, map(str, path), '')}" if path else "the content"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
