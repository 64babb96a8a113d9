"""Threads of many authors: reading a tangle, and replying to its tips (docs/tangles.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from recon_node.ceramic import StreamId
from recon_node.client.errors import InvalidArgumentError
from recon_node.client.keys import Key
from recon_node.client.operations import (
    ClientSession,
    Document,
    Steps,
    StreamRef,
    decoding,
    get,
    member,
    segment,
    to_object,
    to_stream_id,
)
from recon_node.client.writing import create


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    """A message of a tangle: a document, as its author wrote it first."""

    id: StreamId
    author: str
    """The DID of its controller."""
    model: StreamId | None
    timestamp: float | None
    """When its author says to have written it, in Unix milliseconds."""
    previous: tuple[StreamId, ...]
    """The messages on which it builds; none for the root."""
    content: Any
    """The content of its init event."""


@dataclass(frozen=True, slots=True)
class Thread:
    """A tangle: its messages, each after all on which it builds."""

    root: StreamId
    name: str
    messages: tuple[ThreadMessage, ...]
    tips: tuple[StreamId, ...]
    """The messages on which none builds."""
    excluded: Mapping[StreamId, str]
    """Documents that name the tangle but do not belong to it, and why."""


def tangles(session: ClientSession, root: StreamRef) -> Steps[dict[str, int]]:
    """Return the names of the tangles that a document starts, and how many documents name each.

    Raises:
        NotFoundError: no document names one.
    """
    (named,) = (yield get(f"/ceramic/tangles/{to_stream_id(root)}")).fields("tangles")
    with decoding():
        return {member(each, "name", str): member(each, "candidates", int) for each in named}


def tangle(session: ClientSession, root: StreamRef, name: str) -> Steps[Thread]:
    """Read a tangle: a thread, for example, in the order on which all nodes agree.

    Args:
        root: the message that starts it.
        name: of the tangle in `content.tangles`.

    Raises:
        NotFoundError: the node does not have the root, or it starts no such tangle.
    """
    of = to_stream_id(root)
    answer = yield get(f"/ceramic/tangles/{segment(name)}/{of}")
    messages, tips, excluded = answer.fields("messages", "tips", "excluded")
    with decoding():
        thread = Thread(
            root=of,
            name=name,
            messages=tuple(map(_read_message, messages)),
            tips=tuple(map(StreamId.parse, tips)),
            excluded={StreamId.parse(each["id"]): member(each, "reason", str) for each in excluded},
        )
        known = {thread.messages[0].id}
        for message in thread.messages[1:]:
            if not known.issuperset(message.previous):
                raise ValueError("a message comes before one on which it builds")
            known.add(message.id)
        return thread


def reply(
    session: ClientSession,
    root: StreamRef,
    name: str,
    content: Mapping[str, Any],
    *,
    model: StreamRef | None = None,
    key: Key | None = None,
) -> Steps[Document]:
    """Write the next message of a tangle, on top of the messages that the node has.

    Args:
        root: the message that starts the tangle.
        name: of the tangle.
        content: of the message; its `tangles` get the root and the tips.
        model: of the message, by default that of the root.
        key: of the author.

    Raises:
        NotFoundError: the node does not have the root, or it starts no such tangle.
        InvalidArgumentError: the content says something about the tangle already.
        InvalidContentError: the content breaks a rule of the model.
    """
    links = to_object(content).get("tangles", {})
    if not isinstance(links, dict) or name in links:
        raise InvalidArgumentError(
            f"the content has `tangles` of its own: leave {name!r} out, it is filled in"
        )
    thread = yield from tangle(session, root, name)
    link = {"root": str(thread.root), "previous": [str(tip) for tip in thread.tips]}
    of = thread.messages[0].model if model is None else model
    if of is None:
        raise InvalidArgumentError("the root has no model: say of which model the reply is")
    filled = {**content, "tangles": {**links, name: link}}
    return (yield from create(session, of, filled, key=key))


def _read_message(message: Any) -> ThreadMessage:
    model = member(message, "model", str, NoneType)
    return ThreadMessage(
        id=StreamId.parse(message["id"]),
        author=member(message, "author", str),
        model=None if model is None else StreamId.parse(model),
        timestamp=member(message, "timestamp", int, float, NoneType),
        previous=tuple(map(StreamId.parse, message["previous"])),
        content=message["content"],
    )
