"""Writing streams: models, documents and updates, built and signed here.

Before an event is sent, the state of the stream after it is computed. An event that would be
rejected (content that breaks a rule of its model, a patch that does not apply) is not sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, Final, Self

from recon_node.base.connection import InvalidArgumentError, NotFoundError
from recon_node.ceramic import METAMODEL, Event, StreamId
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from recon_node.client.arguments import (
    CidRef,
    Document,
    InvalidContentError,
    StreamRef,
    to_cid,
    to_object,
    to_patch,
    to_stream_id,
)
from recon_node.client.definitions import ModelDefinition
from recon_node.client.keys import Key
from recon_node.client.operations import (
    ClientSession,
    Steps,
    check_accepted,
    document_at,
    explained,
    fetch_stream,
    load_model,
    send,
)
from recon_node.ipld import CID, dag_cbor
from recon_node.streams import (
    Definitions,
    Stream,
    account_relation,
    json_diff,
    unique_of,
    why_unusable,
)
from recon_node.streams.json_values import MERGE_STEPS, Budget

Patch = Sequence[Mapping[str, Any]]

_UNIQUE_SIZE: Final = 12
"""Random bytes that keep two documents of a `list` model apart, as the Ceramic SDK makes them."""
_LONG_PATCH: Final = 1024
"""Bytes of a patch up to which it is sent even if the content is shorter: a merge with another
branch can keep what both changed apart from each other, but not beside a whole content."""


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
            None if model_version is None else to_cid(model_version),
        )

    @property
    def changes_metadata(self) -> bool:
        """Whether it changes more than the content."""
        return self.should_index is not None or self.model_version is not None

    def patch_from(self, before: Any) -> list[Any]:
        """Return the JSON Patch, from the content before it: what differs, or the whole content if
        that is shorter than a long patch."""
        if self.patch is not None:
            return self.patch
        if self.content is None:
            return []
        budget = Budget("the update", MERGE_STEPS)
        patch = json_diff({} if before is None else before, self.content, budget)
        if before is None:
            return patch
        whole = [{"op": "replace", "path": "", "value": self.content}]
        size = len(dag_cbor.encode(patch))
        return whole if size > max(_LONG_PATCH, len(dag_cbor.encode(whole))) else patch


def create_model(
    session: ClientSession,
    definition: ModelDefinition | Mapping[str, Any],
    *,
    key: Key | None = None,
) -> Steps[Document]:
    """Create a model.

    Raises:
        InvalidContentError: the definition breaks a rule, or no document could conform to it.
    """
    signing = session.key_or(key)
    if isinstance(definition, ModelDefinition):
        definition = definition.to_json()
    with explained():
        event = init_event(
            signing.private,
            METAMODEL,
            to_object(definition, "a definition"),
            capability=signing.capability_block,
        )
    stream = Stream.of([event])
    check_accepted(stream, event)
    if (reason := why_unusable(event.data)) is not None:
        raise InvalidContentError([reason])
    return (yield from _send(session, stream, event))


def create(
    session: ClientSession,
    model: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    key: Key | None = None,
    unique: bytes | None = None,
    context: StreamRef | None = None,
    should_index: bool | None = None,
    model_version: CidRef | None = None,
) -> Steps[Document]:
    """Create a document.

    Of a `single` or `set` model, the key's controller has one document (for the fields of a
    `set`), whose StreamID follows from these. If it exists, its content becomes `content`.

    Args:
        model: of which.
        content: a JSON object.
        key: the document belongs to its did:key.
        unique: of a `list` model, keeps two documents apart; random by default.
        context: a stream that the document belongs to, for applications.
        should_index: whether indexers should show the document; by default they do.
        model_version: which of the model's events to check the content by; by default its
            first one.

    Raises:
        NotFoundError: the node does not have the model.
        InvalidArgumentError: an argument that documents of such a model do not have.
        InvalidContentError: the content breaks a rule of the model.
    """
    signing, of = session.key_or(key), to_stream_id(model)
    change = Change.given(content, None, should_index, model_version)
    versions = () if change.model_version is None else (change.model_version,)
    definitions = yield from load_model(session, of, versions)
    definition = definitions[of.cid]
    relation, _ = account_relation(definition)
    if relation in ("single", "set"):
        if unique is not None or context is not None:
            raise InvalidArgumentError(
                f"`unique` and `context` are not for models of the account relation {relation!r}: "
                "the StreamID of such a document follows from the model, the controller and, of "
                "'set', the content"
            )
        event = _deterministic_init(signing, of, definition, change.content or {})
        return (yield from _create_or_update(session, signing, event, change, definitions))
    with explained():
        event = init_event(
            signing.private,
            of,
            change.content,
            unique=token_bytes(_UNIQUE_SIZE) if unique is None else unique,
            context=None if context is None else to_stream_id(context).to_bytes(),
            should_index=should_index,
            model_version=change.model_version,
            capability=signing.capability_block,
        )
    return (yield from _send(session, Stream.of([event], definitions=definitions), event))


def _deterministic_init(
    key: Key, model: StreamId, definition: Mapping[str, Any], content: Mapping[str, Any]
) -> Event:
    """Return the init event of the one document of a controller, for some fields of a `set`."""
    relation, fields = account_relation(definition)
    if relation == "single":
        return deterministic_init_event(key.did, model)
    missing = [name for name in fields if name not in content]
    if missing:
        raise InvalidContentError(
            [
                f"the field {name!r} is missing: it says which document of the set"
                for name in missing
            ]
        )
    return deterministic_init_event(key.did, model, unique=unique_of(definition, content))


def _create_or_update(
    session: ClientSession, key: Key, init: Event, change: Change, definitions: Definitions
) -> Steps[Document]:
    """Change the document that an init event starts, which may not exist yet."""
    sent: list[Event] = []
    try:
        stream = yield from fetch_stream(session, init.stream_id())
    except NotFoundError:
        stream = Stream.of([init], definitions=definitions)
        check_accepted(stream, init)
        sent = [init]
    after, event = yield from _changed(session, key, stream, change)
    if event is not None:
        check_accepted(after, event)
        sent.append(event)
    for signed in sent:
        yield from send(session, signed)
    return document_at(after, None if event is None else event.cid, sent)


def update(
    session: ClientSession,
    stream: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    patch: Patch | None = None,
    at: CidRef | None = None,
    key: Key | None = None,
    should_index: bool | None = None,
    model_version: CidRef | None = None,
) -> Steps[Document]:
    """Change a document, or the definition of a model; return it as it is then.

    Nothing is sent if nothing changes.

    Args:
        stream: which.
        content: what the whole content becomes.
        patch: or the change alone, as JSON Patch (RFC 6902).
        at: the event to build on, by default the tip. Another one makes the stream diverge.
        key: of the stream's controller.
        should_index: whether indexers should show the document.
        model_version: which of the model's events to check the content by from now on.

    Raises:
        InvalidArgumentError: nothing is given that changes.
        NotFoundError: the node does not have the stream, or the event `at`.
        InvalidContentError: the content breaks a rule, or the patch does not apply.
    """
    change = Change.given(content, patch, should_index, model_version)
    if change == Change():
        raise InvalidArgumentError("give what changes: content, patch, should_index, model_version")
    signing, cid = session.key_or(key), None if at is None else to_cid(at)
    before = yield from fetch_stream(session, stream)
    after, event = yield from _changed(session, signing, before, change, cid)
    if event is None:
        return document_at(before, cid)
    return (yield from _send(session, after, event))


def _changed(
    session: ClientSession, key: Key, stream: Stream, change: Change, at: CID | None = None
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
            capability=key.capability_block,
        )
    definitions = stream.definitions
    if change.model_version is not None and before.model is not None and definitions is not None:
        definitions = yield from load_model(session, before.model, [change.model_version])
    return stream.with_event(event, definitions), event


def _send(session: ClientSession, stream: Stream, event: Event) -> Steps[Document]:
    """Send an event, unless it would be rejected; return the document at it."""
    check_accepted(stream, event)
    yield from send(session, event)
    return document_at(stream, event.cid, [event])
