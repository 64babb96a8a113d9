"""Writing streams: models, documents and updates, built and signed here.

Before an event is sent, the state of the stream after it is computed. An event that would be
rejected (content that breaks a rule of its model, a patch that does not apply) is not sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, Final, Self

from recon_node.ceramic import METAMODEL, Event, InvalidEventError, StreamId
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
)
from recon_node.client.definitions import ModelDefinition
from recon_node.client.errors import (
    InvalidArgumentError,
    InvalidContentError,
    NotFoundError,
)
from recon_node.client.exchange import Steps, send_event
from recon_node.client.given import to_cid_or_none, to_object, to_patch, to_stream_id
from recon_node.client.keys import Key
from recon_node.client.reading import (
    CidRef,
    Document,
    ModelCache,
    StreamRef,
    document_at,
    fetch_stream,
)
from recon_node.ipld import CID, DagCborError
from recon_node.streams import Definitions, Stream, json_diff, unique_of, why_unusable
from recon_node.streams.budget import MERGE, Budget

Patch = Sequence[Mapping[str, Any]]

_UNIQUE_SIZE: Final = 12
"""Random bytes that keep two documents of a `list` model apart, as the Ceramic SDK makes them."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an update does: leads to a content, or applies a patch; and metadata."""

    content: dict[str, Any] | None = None
    patch: list[dict[str, Any]] | None = None
    should_index: bool | None = None
    model_version: CID | None = None

    @classmethod
    def given(
        cls,
        content: Mapping[str, Any] | None,
        patch: Patch | None,
        should_index: bool | None,
        model_version: CidRef | None,
    ) -> Self:
        """Check what a caller gives.

        Raises:
            InvalidArgumentError: something is of a wrong type, or both content and patch are given.
            InvalidContentError: something in the content is not JSON.
        """
        if content is not None and patch is not None:
            raise InvalidArgumentError("give the new content or a patch, not both")
        return cls(
            None if content is None else to_object(content),
            None if patch is None else to_patch(patch),
            should_index,
            to_cid_or_none(model_version),
        )

    @property
    def changes_metadata(self) -> bool:
        """Whether it changes more than the content."""
        return self.should_index is not None or self.model_version is not None

    def patch_from(self, before: Any) -> list[Any]:
        """Return the JSON Patch, from the content before it."""
        if self.patch is not None:
            return self.patch
        if self.content is None:
            return []
        before = {} if before is None else before
        return json_diff(before, self.content, Budget("the update", MERGE))


def create_model(key: Key, definition: ModelDefinition | Mapping[str, Any]) -> Steps[Document]:
    """Create a model.

    Raises:
        InvalidContentError: the definition breaks a rule, or no document could conform to it.
    """
    if isinstance(definition, ModelDefinition):
        definition = definition.to_json()
    with explained():
        event = init_event(key.private, METAMODEL, to_object(definition, "a definition"))
    stream = Stream.of([event])
    check(stream, event)
    if (reason := why_unusable(event.data)) is not None:
        raise InvalidContentError([reason])
    return (yield from _send(stream, event))


def create_document(
    key: Key,
    model: StreamRef,
    content: Mapping[str, Any] | None,
    models: ModelCache,
    *,
    unique: bytes | None = None,
    context: StreamRef | None = None,
    should_index: bool | None = None,
    model_version: CidRef | None = None,
) -> Steps[Document]:
    """Create a document of a model, as the model's account relation asks for it.

    Of `single` and `set` models, the controller has one document (for the fields of a `set`), whose
    StreamID follows from these. If it exists, it gets the new content.

    Raises:
        NotFoundError: the node does not have the model.
        InvalidArgumentError: an argument that documents of such a model do not have.
        InvalidContentError: the content breaks a rule of the model.
    """
    model = to_stream_id(model)
    change = Change.given(content, None, should_index, model_version)
    versions = () if change.model_version is None else (change.model_version,)
    definitions = yield from models.load(model, versions)
    definition = definitions[model.cid]
    relation = (definition.get("accountRelation") or {}).get("type")
    if relation in ("single", "set"):
        if unique is not None or context is not None:
            raise InvalidArgumentError(
                f"`unique` and `context` are not for models of the account relation {relation!r}: "
                "the StreamID of such a document follows from the model, the controller and, of "
                "'set', the content"
            )
        event = _place_of(key, model, definition, change.content or {})
        return (yield from _create_in_place(key, event, change, definitions, models))
    with explained():
        event = init_event(
            key.private,
            model,
            change.content,
            unique=token_bytes(_UNIQUE_SIZE) if unique is None else unique,
            context=None if context is None else to_stream_id(context).to_bytes(),
            should_index=should_index,
            model_version=change.model_version,
        )
    return (yield from _send(Stream.of([event], definitions=definitions), event))


def _place_of(
    key: Key, model: StreamId, definition: Mapping[str, Any], content: Mapping[str, Any]
) -> Event:
    """Return the init event of the one document of a controller, for some fields of a `set`."""
    relation = definition["accountRelation"]
    if relation["type"] == "single":
        return deterministic_init_event(key.did, model)
    missing = [name for name in relation.get("fields", ()) if name not in content]
    if missing:
        raise InvalidContentError(
            [
                f"the field {name!r} is missing: it says which document of the set"
                for name in missing
            ]
        )
    return deterministic_init_event(key.did, model, unique=unique_of(definition, content))


def _create_in_place(
    key: Key, init: Event, change: Change, definitions: Definitions, models: ModelCache
) -> Steps[Document]:
    """Change the document that an init event starts, which may not exist yet."""
    try:
        stream = yield from fetch_stream(init.stream_id(), models)
        is_new = False
    except NotFoundError:
        stream, is_new = Stream.of([init], definitions=definitions), True
    if is_new:
        check(stream, init)
    after, event = yield from _changed(key, stream, change, models)
    if event is not None:
        check(after, event)
    if is_new:
        yield from send_event(init)
    if event is not None:
        yield from send_event(event)
    return document_at(after, None if event is None else event.cid)


def update(
    key: Key, ref: StreamRef, change: Change, models: ModelCache, *, at: CidRef | None = None
) -> Steps[Document]:
    """Change a document; nothing is sent if that changes nothing.

    Args:
        key: of the stream's controller.
        ref: the stream.
        change: what.
        models: those that are known.
        at: the event to build on, by default the tip. Another one makes the stream diverge.

    Raises:
        NotFoundError: the node does not have the stream, or the event `at`.
        InvalidContentError: the new content breaks a rule, or the patch does not apply.
    """
    at = to_cid_or_none(at)
    stream = yield from fetch_stream(ref, models)
    after, event = yield from _changed(key, stream, change, models, at)
    if event is None:
        return document_at(stream, at)
    return (yield from _send(after, event))


def _changed(
    key: Key, stream: Stream, change: Change, models: ModelCache, at: CID | None = None
) -> Steps[tuple[Stream, Event | None]]:
    """Return the stream with a change, and its event; None if it changes nothing."""
    before = document_at(stream, at)
    patch = change.patch_from(before.content)
    if not patch and not change.changes_metadata:
        return stream, None
    with explained():
        event = data_event(
            key.private,
            stream.events[0],
            [before.event],
            patch,
            should_index=change.should_index,
            model_version=change.model_version,
        )
    definitions = stream.definitions
    if change.model_version is not None and before.model is not None and definitions is not None:
        definitions = yield from models.load(before.model, [change.model_version])
    return stream.with_event(event, definitions), event


def _send(stream: Stream, event: Event) -> Steps[Document]:
    """Send an event, unless it would be rejected; return the document at it."""
    check(stream, event)
    yield from send_event(event)
    return document_at(stream, event.cid)


def check(stream: Stream, event: Event) -> None:
    """Check that an event would not be rejected."""
    state = stream.at(event.cid)
    if state.validation_errors:
        raise InvalidContentError(state.validation_errors)


@contextmanager
def explained() -> Iterator[None]:
    """Turn what the builders refuse into an error of this package."""
    try:
        yield
    except (InvalidEventError, DagCborError) as error:
        raise InvalidContentError([str(error)]) from None
