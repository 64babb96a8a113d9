"""Tangles over Ceramic documents: what a message is, and which tangle some documents form.

Theory of operation. A message is a document; its id is the document's StreamID. `tangles` in the
content of its *init event* names, for each tangle, the root and the previous messages (SIP
"Tangles"). Later events of the document change neither, so that a message keeps its place whatever
version of it is here. The messages of a tangle may be of different models and controllers, which is
what a stream with its single controller cannot be.

The SIP leaves open who may take part, and what a message needs to be valid. Here, anybody may, and
a message counts if its model accepts its content. The author asserts a time by `timestamp` in the
content, in milliseconds, as messages of Secure Scuttlebutt do.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from recon_node.ceramic import Event, StreamId, StreamIdError
from recon_node.streams.graph import Id
from recon_node.tangles.tangle import (
    Backlinks,
    Exclusion,
    Tangle,
    TangleError,
    TangleMessage,
    TangleRule,
    tangle_of,
)

Ties = Literal["asserted", "received"]
"""What orders messages that the links leave open: the time that their author asserts, the same for
all nodes; or, at one node, the earlier of that and the time at which the node received it."""

MAX_TANGLES: Final = 32
"""Maximum tangles of a message."""
MAX_NAME: Final = 256
"""Maximum characters of a tangle's name."""
MAX_PREVIOUS: Final = 256
"""Maximum previous messages that a message names in a tangle."""


@dataclass(frozen=True, slots=True)
class DocumentMessage:
    """A document as a message.

    Attributes:
        id: its StreamID.
        author: the DID of its controller.
        model: of the document; None: it is a tile.
        timestamp: the time that the author asserts, in Unix milliseconds; None: none.
        received: when this node delivered it, in Unix milliseconds; None: unknown.
        content: that of its init event.
        tangles: what it says about each tangle, by the tangle's name.
        errors: why its model rejects it; empty if it does not.
    """

    id: StreamId
    author: str
    model: StreamId | None
    timestamp: float | None
    content: Mapping[str, Any]
    tangles: Mapping[str, Backlinks[str]]
    received: int | None = None
    errors: tuple[str, ...] = ()


def message_of(init: Event) -> DocumentMessage | None:
    """Return the message of an init event; None if it takes part in no tangle."""
    if init.header is None:
        return None
    return as_message(init.stream_id(), init.header.controller, init.header.model, init.data)


def as_message(
    id: StreamId, author: str, model: StreamId | None, content: object
) -> DocumentMessage | None:
    """Return a document as a message; None if it takes part in no tangle."""
    if not isinstance(content, dict) or not (tangles := tangles_in(content, _canonical_id)):
        return None
    return DocumentMessage(id, author, model, asserted_time(content), content, tangles)


def tangles_in(content: object, parse: Callable[[str], Id]) -> dict[str, Backlinks[Id]]:
    """Return what `content.tangles` says about each tangle, without what has another shape.

    `parse` reads an id, or raises ValueError.
    """
    said = content.get("tangles") if isinstance(content, dict) else None
    if not isinstance(said, dict) or len(said) > MAX_TANGLES:
        return {}
    read = {
        name: _backlinks(links, parse)
        for name, links in said.items()
        if isinstance(name, str) and 0 < len(name) <= MAX_NAME
    }
    return {name: links for name, links in read.items() if links is not None}


def _backlinks(said: object, parse: Callable[[str], Id]) -> Backlinks[Id] | None:
    """Return what a message says about a tangle; None if it has another shape."""
    if not isinstance(said, dict):
        return None
    root, previous = said.get("root"), said.get("previous")
    if previous is not None and not (isinstance(previous, list) and len(previous) <= MAX_PREVIOUS):
        return None
    if not all(isinstance(id_, str) for id_ in previous or ()) or not isinstance(root, str | None):
        return None
    try:
        return Backlinks(
            None if root is None else parse(root),
            None if previous is None else tuple(map(parse, previous)),
        )
    except ValueError:
        return None


def _canonical_id(text: str) -> str:
    try:
        return str(StreamId.parse(text.removeprefix("ceramic://")))
    except StreamIdError as error:
        raise ValueError(str(error)) from None


def asserted_time(message: Mapping[str, Any]) -> float | None:
    """Return the `timestamp` of a message, or of a document's content; None if it has none."""
    time: Any = message.get("timestamp")
    is_time = type(time) in (int, float) and abs(time) <= sys.float_info.max  # not NaN
    return time if is_time else None


def tangle_of_documents(
    messages: Iterable[DocumentMessage], name: str, root: StreamId, ties: Ties = "asserted"
) -> Tangle[str]:
    """Return the tangle `name` with that root, by the StreamIDs of its messages.

    Messages that their models reject are excluded, and so is what builds on them.

    Raises:
        TangleError: the root is not here, is not a root, or is rejected by its model.
    """
    by_id = {str(message.id): message for message in messages}
    rejected = {id_ for id_, message in by_id.items() if message.errors and message.id != root}
    if (start := by_id.get(str(root))) is not None and start.errors:
        raise TangleError(f"the root {root} is rejected by its model: {'; '.join(start.errors)}")
    candidates = []
    for id_, message in by_id.items():
        links = message.tangles.get(name)
        if links is None:
            continue
        if id_ in rejected:
            links = replace(links, previous=())  # which keeps it out, and what builds on it
        candidates.append(TangleMessage(id_, _tie(message, ties), {name: links}))
    tangle = tangle_of(candidates, name, str(root))
    excluded = {
        id_: Exclusion(TangleRule.REJECTED) if id_ in rejected else exclusion
        for id_, exclusion in tangle.excluded.items()
    }
    return replace(tangle, excluded=excluded)


def _tie(message: DocumentMessage, ties: Ties) -> float:
    asserted = message.timestamp or 0
    if ties == "asserted" or message.received is None:
        return asserted
    return message.received if message.timestamp is None else min(asserted, message.received)
