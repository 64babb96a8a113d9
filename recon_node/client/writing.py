"""Writing streams: models, documents, updates and merges, built and signed here.

Before an event is sent, the state of the stream after it is computed. An event that would be
rejected (content that breaks a rule of its model, a patch that does not apply) is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, Final

from recon_node.ceramic import METAMODEL, Event, InvalidEventError
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    signed_event,
)
from recon_node.client.definitions import ModelDefinition
from recon_node.client.errors import InvalidContentError, MergeConflictError
from recon_node.client.exchange import Steps, fetch_matching, send_event
from recon_node.client.feed import PAGE_SIZE, fetch_page
from recon_node.client.keys import Key
from recon_node.client.reading import (
    Document,
    History,
    ModelCache,
    StreamRef,
    fetch_history,
    stream_id,
    whole,
)
from recon_node.ipld import CID, DagCborError
from recon_node.streams import json_diff, unique_of

Patch = Sequence[Mapping[str, Any]]

_UNIQUE_SIZE: Final = 12
"""Random bytes that keep two documents of a `list` model apart, as the Ceramic SDK makes them."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an update does: leads to a content, or applies a patch; and metadata."""

    content: Mapping[str, Any] | None = None
    patch: Patch | None = None
    should_index: bool | None = None
    model_version: CID | None = None

    def __post_init__(self) -> None:
        if self.content is not None and self.patch is not None:
            raise ValueError("give the new content or a patch, not both")

    @property
    def changes_metadata(self) -> bool:
        """Whether it changes more than the content."""
        return self.should_index is not None or self.model_version is not None

    def patch_from(self, before: Any) -> list[Any]:
        """Return the JSON Patch, from the content before it."""
        if self.patch is not None:
            return [dict(operation) for operation in self.patch]
        if self.content is None:
            return []
        return json_diff({} if before is None else before, dict(self.content))


def create_model(key: Key, definition: ModelDefinition | Mapping[str, Any]) -> Steps[Document]:
    """Create a model.

    Raises:
        InvalidContentError: the definition breaks a rule.
    """
    if isinstance(definition, ModelDefinition):
        definition = definition.to_json()
    with _explained():
        event = init_event(key.private, METAMODEL, dict(definition))
    return (yield from _start(History((event,), {}, None)))


def create_document(
    key: Key,
    model: StreamRef,
    content: Mapping[str, Any] | None,
    models: ModelCache,
    *,
    unique: bytes | None = None,
    context: StreamRef | None = None,
    should_index: bool | None = None,
    model_version: CID | None = None,
) -> Steps[Document]:
    """Create a document of a model, as the model's account relation asks for it.

    Of `single` and `set` models, the controller has one document (for the fields of a `set`), whose
    StreamID follows from these. If it exists, it gets the new content.

    Raises:
        NotFoundError: the node does not have the model.
        InvalidContentError: the content breaks a rule of the model.
    """
    model = stream_id(model)
    versions = () if model_version is None else (model_version,)
    definitions = yield from models.load(model, versions)
    definition = definitions[model.cid]
    relation = (definition.get("accountRelation") or {}).get("type")
    if relation in ("single", "set"):
        if relation == "set":
            unique = unique_of(definition, content or {})
        event = deterministic_init_event(key.did, model, unique=unique)
        yield from send_event(event)
        change = Change(content, None, should_index, model_version)
        return (yield from update(key, event.stream_id(), change, models))
    with _explained():
        event = init_event(
            key.private,
            model,
            None if content is None else dict(content),
            unique=token_bytes(_UNIQUE_SIZE) if unique is None else unique,
            context=None if context is None else stream_id(context).to_bytes(),
            should_index=should_index,
            model_version=model_version,
        )
    return (yield from _start(History((event,), {}, definitions)))


def update(
    key: Key, stream: StreamRef, change: Change, models: ModelCache, *, at: CID | None = None
) -> Steps[Document]:
    """Change a document; nothing is sent if that changes nothing.

    Args:
        key: of the stream's controller.
        stream: which.
        change: what.
        models: those that are known.
        at: the event to build on, by default the tip. Another one makes the stream diverge.

    Raises:
        NotFoundError: the node does not have the stream, or the event `at`.
        InvalidContentError: the new content breaks a rule, or the patch does not apply.
    """
    history = yield from fetch_history(stream, models)
    before = history.document(at)
    patch = change.patch_from(before.content)
    if not patch and not change.changes_metadata:
        return before
    with _explained():
        event = data_event(
            key.private,
            history.events[0],
            [before.event],
            patch,
            should_index=change.should_index,
            model_version=change.model_version,
        )
    definitions = history.definitions
    if change.model_version is not None and before.model is not None and definitions is not None:
        definitions = yield from models.load(before.model, [change.model_version])
    after = history.with_event(event, definitions)
    return (yield from _send(after, event))


def merge(
    key: Key,
    stream: StreamRef,
    models: ModelCache,
    *,
    content: Mapping[str, Any] | None = None,
    prefer: CID | None = None,
) -> Steps[Document]:
    """Merge a stream that has diverged; nothing is sent if it has not.

    Args:
        key: of the stream's controller.
        stream: which.
        models: those that are known.
        content: what the merge leads to, by default what the branches lead to together.
        prefer: one of the open tips, whose values win where the branches conflict.

    Returns:
        The document at the merge, or at the tip if there was nothing to merge.

    Raises:
        MergeConflictError: the branches conflict, and neither `content` nor `prefer` decides.
        InvalidContentError: the merged content breaks a rule of the model.
        NotFoundError: the node does not have the stream.
    """
    history = yield from fetch_history(stream, models)
    document = history.document()
    while (proposal := history.proposal()) is not None:  # twice, if there are more than 256 tips
        if prefer is not None:
            proposal = proposal.preferring(prefer)
        if content is None and proposal.conflicts:
            raise MergeConflictError(proposal)
        with _explained():
            event = signed_event(key.private, proposal.payload(content))
        history = history.with_event(event)
        document = yield from _send(history, event)
    return document


def fetch_diverged(model: StreamRef | None, models: ModelCache) -> Steps[list[Document]]:
    """Find the streams that have diverged, at their tips.

    Args:
        model: whose documents to look at; None stands for all events in the node's feed.
        models: those that are known.
    """
    streams: dict[CID, list[Event]] = {}
    if model is None:
        events = yield from _whole_feed()
    else:
        events = yield from fetch_matching("model", str(stream_id(model)), None, None)
    for event in events:
        streams.setdefault(event.init, []).append(event)
    found = []
    for listed in streams.values():
        held = whole(listed)
        prevs = {prev for event in held for prev in event.prevs}
        if held and len({event.cid for event in held} - prevs) > 1:
            history = yield from fetch_history(held[0].stream_id(), models)
            document = history.document()
            if document.open_tips:
                found.append(document)
    return found


def _whole_feed() -> Steps[list[Event]]:
    events: list[Event] = []
    token = None
    while True:
        page = yield from fetch_page(token, PAGE_SIZE)
        if not page.entries:
            return events
        events += [entry.event for entry in page.entries if entry.event is not None]
        token = page.token


def _start(history: History) -> Steps[Document]:
    """Send an init event."""
    return (yield from _send(history, history.events[0]))


def _send(history: History, event: Event) -> Steps[Document]:
    """Send an event, unless it would be rejected; return the document at it."""
    state = history.state(event.cid)
    if state.validation_errors:
        raise InvalidContentError(state.validation_errors)
    yield from send_event(event)
    return history.document(event.cid)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what the builders refuse into an error of this package."""
    try:
        yield
    except (InvalidEventError, DagCborError) as error:
        raise InvalidContentError([str(error)]) from None
