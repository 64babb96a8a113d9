"""What a node of this project lists: models, documents, interests, anchors, and threads.

A thread is a tangle of many authors: it is read, and replied to at its tips (docs/tangles.md). A
ceramic-one node has none of this and answers 404, and does not say which interests it has in a form
that can be read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any, Final, Generic, TypeVar

from recon_node.base.connection import Answer, InvalidArgumentError, NotANodeError, Request, segment
from recon_node.ceramic import StreamId
from recon_node.client.arguments import (
    CidRef,
    Document,
    StreamRef,
    shown,
    to_cid,
    to_object,
    to_stream_id,
)
from recon_node.client.keys import Key
from recon_node.client.operations import ClientSession, Steps, decoding, get, member, parsed
from recon_node.client.writing import create
from recon_node.ipld import CID

T_co = TypeVar("T_co", covariant=True)

LIST_SIZE: Final = 100
"""Entries of a page of a list."""
POLL_INTERVAL: Final = 2.0
"""Seconds between two questions whether an event is anchored by now."""
ANCHOR_TIMEOUT: Final = 3 * 3600.0
"""Seconds: anchoring takes as long as the node's interval, and until the block is final."""


@dataclass(frozen=True, slots=True)
class ListedDocument:
    """A stream, as lists have it; `read` reads its content."""

    id: StreamId
    controller: str
    model: StreamId | None
    events: int
    """Delivered ones."""


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model, as lists have it."""

    id: StreamId
    controller: str
    name: str | None
    documents: int
    """Its documents that the node has."""
    events: int
    """Their events, those that are not delivered included."""


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T_co]):
    """A page of a list, the latest first."""

    entries: tuple[T_co, ...]
    total: int
    """Entries of the whole list; with `where`, all documents of the model."""
    next: int | None
    """What `after` is for the following page; None: this is the last one."""


@dataclass(frozen=True, slots=True)
class Interest:
    """An interest of a node: it fetches what this covers from its peers."""

    sort_key: str
    sort_value: str
    controller: str | None = None
    stream: StreamId | None = None
    controllers: str | None = None
    """A shard, as `00..3f`: controllers whose hashes begin so."""
    configured: bool = False
    """Whether it comes from the node's settings, and cannot be removed."""

    @property
    def model(self) -> StreamId | None:
        """The model, if it is about the documents of one."""
        return StreamId.parse(self.sort_value) if self.sort_key == "model" else None


@dataclass(frozen=True, slots=True)
class Anchor:
    """When an event was anchored, or how far that has come."""

    state: str
    """`none`, `waiting`, `in_tree`, `made` (its transaction is to be looked up) or `anchored`."""
    time: int | None
    """The earliest proven time, in Unix seconds; None unless anchored."""
    time_event: CID | None
    """What proves it."""
    chain_id: str | None
    """CAIP-2."""
    tx_hash: str | None
    """0x and 64 digits."""
    explorer: str | None
    """The page of the transaction."""


def documents(
    session: ClientSession,
    model: StreamRef,
    *,
    controller: str | None = None,
    where: Mapping[str, StreamRef] | None = None,
    indexed: bool = False,
    after: int | None = None,
    limit: int = LIST_SIZE,
) -> Steps[ListPage[ListedDocument]]:
    """List the documents of a model, those that came last first.

    Args:
        model: of which.
        controller: a DID, whose documents only.
        where: fields of the content, and what each holds: a document to which it relates, or just
            this text. The node looks for it in the model's documents, and may return fewer entries
            than `limit` though there is a next page.
        indexed: leave out documents that were written with `should_index=False`. The node has to
            compute each document to see that.
        after: the `next` of the page before; by default, the first page.
        limit: entries at most, up to 1,000, or 100 with `where` or `indexed`.

    Raises:
        NotFoundError: a ceramic-one node, which has no lists.
        InvalidArgumentError: a field is to hold something else than a document or text.
    """
    of = str(to_stream_id(model))
    request = get(
        "/ceramic/streams",
        model=of,
        controller=controller,
        where=_conditions({} if where is None else where),
        indexed="true" if indexed else None,
        limit=limit,
    )
    while True:
        since = {} if after is None else {"after": after}
        answer = yield replace(request, params={**request.params, **since})
        page = _page(answer, "streams", _document)
        if page.entries or page.next is None or not limit:
            return page
        if page.next == after:
            raise NotANodeError  # it would never end
        after = page.next


def _conditions(where: object) -> list[str]:
    """Return fields of the content, and what each is to hold, as the node takes them."""
    if not isinstance(where, Mapping):
        raise InvalidArgumentError(
            f"`where` names fields and what each holds, {{'post': post.id}}: not {shown(where)}"
        )
    return [_condition(name, held) for name, held in where.items()]


def _condition(name: object, held: object) -> str:
    if not isinstance(name, str) or "=" in name:
        raise InvalidArgumentError(f"`where`: {shown(name)} is not the name of a field without =")
    if not isinstance(held, str):
        try:
            held = to_stream_id(held)
        except InvalidArgumentError:
            raise InvalidArgumentError(
                f"`where`: {name!r} cannot be {shown(held)}: fields are compared with text, or "
                "with a document or StreamID to which they relate"
            ) from None
    return f"{name}={held}"


def models(
    session: ClientSession, *, after: int | None = None, limit: int = LIST_SIZE
) -> Steps[ListPage[ListedModel]]:
    """List the models that the node has, those that came last first; arguments as `documents`.

    Raises:
        NotFoundError: a ceramic-one node, which has no lists.
    """
    answer = yield get("/ceramic/models", after=after, limit=limit)
    return _page(answer, "models", _model)


def interests(session: ClientSession) -> Steps[tuple[Interest, ...]]:
    """List the interests of the node; without any, it fetches everything on its network.

    Raises:
        NotANodeError: a ceramic-one node that has interests: it lists them in another form.
    """
    (entries,) = (yield get("/ceramic/experimental/interests")).fields("interests")
    with decoding():
        return tuple(map(_interest, entries))


class FirstInterestWarning(UserWarning):
    """The node had no interests and fetched everything on its network: its first interest ends
    that."""


def register_interest(
    session: ClientSession,
    model: StreamRef | None = None,
    *,
    sort_key: str = "model",
    sort_value: str | None = None,
    controller: str | None = None,
    stream: StreamRef | None = None,
    controllers: str | None = None,
) -> Steps[None]:
    """Make the node fetch, from its peers, the events of a model, or of any sort value.

    Args:
        model: whose documents; None if `sort_value` says it.
        sort_key: the field of the events' headers that sorts them.
        sort_value: its value.
        controller: a DID, whose streams only.
        stream: which one only; needs `controller`.
        controllers: a shard only: `1/4`, the first of four, or `00..3f`.

    Warns:
        FirstInterestWarning: from now on, the node fetches nothing else.

    Raises:
        InvalidArgumentError: neither `model` nor `sort_value` is given, or both are.
        NodeError: the node does not accept the interest.
    """
    body = _fields(model, sort_key, sort_value, controller, stream, controllers)
    answer = (yield Request("POST", "/ceramic/interests", json=body)).check()
    if answer.text and not isinstance(answer.json, dict):
        raise NotANodeError(answer.status)
    if answer.warning:
        # as of the line that calls the method of a client: `_perform` and that method lie between
        warnings.warn(answer.warning, FirstInterestWarning, stacklevel=4)


def remove_interest(
    session: ClientSession,
    model: StreamRef | None = None,
    *,
    sort_key: str = "model",
    sort_value: str | None = None,
    controller: str | None = None,
    stream: StreamRef | None = None,
    controllers: str | None = None,
) -> Steps[None]:
    """Remove an interest, given as for `register_interest`. The node keeps the events that it has.

    Raises:
        InvalidArgumentError: neither `model` nor `sort_value` is given, or both are.
        NotFoundError: the node has no such interest, or is a ceramic-one node.
        NodeError: it comes from the node's settings.
    """
    fields = _fields(model, sort_key, sort_value, controller, stream, controllers)
    (yield Request("DELETE", "/ceramic/interests", fields)).check()


def anchor(session: ClientSession, event: CidRef) -> Steps[Anchor]:
    """Ask when an event was anchored: itself, or through a later event that covers it.

    Raises:
        NotFoundError: the node does not have it.
    """
    answer = yield get(f"/ceramic/anchors/events/{to_cid(event)}")
    answer.check()
    with decoding():
        return Anchor(
            state=member(answer.json, "state", str),
            time=member(answer.json, "time", int, NoneType),
            time_event=parsed(answer.json, "time_event", CID.parse),
            chain_id=member(answer.json, "chain_id", str, NoneType),
            tx_hash=member(answer.json, "tx_hash", str, NoneType),
            explorer=member(answer.json, "explorer", str, NoneType),
        )


def request_anchor(session: ClientSession, stream: StreamRef) -> Steps[CID]:
    """Have the node anchor the tip of a stream; return the event that it will anchor.

    Raises:
        NotFoundError: the node does not have the stream.
        NodeError: the node does not anchor.
    """
    path = f"/api/v0/streams/{segment(to_stream_id(stream))}/anchor"
    (cid,) = (yield Request("POST", path)).fields("cid")
    with decoding():
        return CID.parse(cid)


def _fields(
    model: StreamRef | None,
    sort_key: str,
    sort_value: str | None,
    controller: str | None,
    stream: StreamRef | None,
    controllers: str | None,
) -> dict[str, str]:
    """Return an interest by the names of the API."""
    if (model is None) is (sort_value is None):
        raise InvalidArgumentError("an interest needs either a model or a sort value")
    value = str(sort_value) if model is None else str(to_stream_id(model))
    fields = {
        "sep": sort_key,
        "sepValue": value,
        "controller": controller,
        "controllers": controllers,
        "streamId": None if stream is None else str(to_stream_id(stream)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _page(answer: Answer, name: str, read: Callable[[Any], T_co]) -> ListPage[T_co]:
    (entries,) = answer.fields(name)
    with decoding():
        return ListPage(
            entries=tuple(map(read, entries)),
            total=member(answer.json, "total", int),
            next=member(answer.json, "next", int, NoneType),
        )


def _document(entry: Any) -> ListedDocument:
    has_model = entry["sort_key"] == "model"
    return ListedDocument(
        id=StreamId.parse(entry["id"]),
        controller=member(entry, "controller", str),
        model=StreamId.parse(entry["sort_value"]) if has_model else None,
        events=member(entry, "events", int),
    )


def _model(entry: Any) -> ListedModel:
    return ListedModel(
        id=StreamId.parse(entry["id"]),
        controller=member(entry, "controller", str),
        name=member(entry, "name", str, NoneType),
        documents=member(entry, "streams", int),
        events=member(entry, "events", int),
    )


def _interest(entry: Any) -> Interest:
    return Interest(
        sort_key=member(entry, "sep", str),
        sort_value=member(entry, "sepValue", str),
        controller=member(entry, "controller", str, NoneType),
        stream=parsed(entry, "streamId", StreamId.parse),
        controllers=member(entry, "controllers", str, NoneType),
        configured=member(entry, "configured", bool),
    )


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
        return {member(entry, "name", str): member(entry, "candidates", int) for entry in named}


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
            excluded={
                StreamId.parse(entry["id"]): member(entry, "reason", str) for entry in excluded
            },
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
    return ThreadMessage(
        id=StreamId.parse(message["id"]),
        author=member(message, "author", str),
        model=parsed(message, "model", StreamId.parse),
        timestamp=member(message, "timestamp", int, float, NoneType),
        previous=tuple(map(StreamId.parse, message["previous"])),
        content=message["content"],
    )
