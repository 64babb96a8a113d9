"""Writing streams: models, documents and updates, built and signed here.

Before an event is sent, the state of the stream after it is computed. An event that would be
rejected (content that breaks a rule of its model, a patch that does not apply) is not sent.

Streams that have diverged (CIP-145) are merged by events that are built here, too.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any, Final, Self

from recon_node.base.connection import ClientError, InvalidArgumentError, NotFoundError
from recon_node.ceramic import METAMODEL, Event, InvalidEventError, StreamId, check_authority
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    signed_event,
)
from recon_node.client.definitions import ModelDefinition
from recon_node.client.feed_entries import feed
from recon_node.client.keys import Key, checked_arguments
from recon_node.client.operations import (
    CidRef,
    ClientSession,
    Document,
    InvalidContentError,
    Steps,
    StreamRef,
    complete_events,
    document_at,
    fetch_matching,
    fetch_stream,
    load_model,
    not_accepted,
    send,
    to_cid,
    to_object,
    to_patch,
    to_stream_id,
)
from recon_node.ipld import CID, DagCborError, dag_cbor
from recon_node.streams import (
    Definitions,
    MergeProposal,
    Stream,
    StreamShapeError,
    account_relation,
    json_diff,
    unique_of,
    why_unusable,
)
from recon_node.streams.json_values import MERGE, Budget

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
        budget = Budget("the update", MERGE)
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
        NotFoundError: the node does not have the stream, or the event `at`.
        InvalidContentError: the content breaks a rule, or the patch does not apply.
    """
    change = Change.given(content, patch, should_index, model_version)
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


class MergeConflictError(ClientError):
    """The branches of a stream changed the same parts in different ways. Nothing was sent.

    `proposal` has the conflicts, with the value on each branch.
    """

    def __init__(self, proposal: MergeProposal) -> None:
        super().__init__(proposal)
        self.proposal = proposal

    def __str__(self) -> str:
        paths = ", ".join(conflict.path for conflict in self.proposal.conflicts)
        return (
            f"the branches of the stream differ at {paths}: decide, and merge with `content=...`, "
            "or with `prefer=...`, the event whose values shall win"
        )


_MAX_NAMED: Final = 10
"""Tips that an error names."""


def merge(
    session: ClientSession,
    stream: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    prefer: CidRef | None = None,
    key: Key | None = None,
) -> Steps[Document]:
    """Merge a stream that has diverged, or repair one whose events expired; nothing is sent if
    there is nothing to merge.

    Args:
        stream: which.
        content: what the merge leads to, by default what the branches lead to together.
        prefer: one of the open tips, whose values win where the branches conflict; if its branch
            has expired, its content. `content`, if given, has the last word.
        key: of the stream's controller.

    Returns:
        The document at the merge, or at the tip if there was nothing to merge.

    Raises:
        MergeConflictError: the branches conflict, and neither `content` nor `prefer` decides.
        InvalidArgumentError: `prefer` is not one of the tips.
        InvalidContentError: the merged content breaks a rule of the model.
        NotFoundError: the node does not have the stream.
        RefusedEventError: the node does not know CIP-145, as ceramic-one does not.
    """
    signing = session.key_or(key)
    wanted = None if content is None else to_object(content)
    loaded = before = yield from fetch_stream(session, stream)
    winner = _preferred_tip(loaded, prefer)
    events: list[Event] = []
    # One event merges at most 256 tips, so this may take several. Nothing is sent before all are
    # built and checked.
    while (proposal := _proposal(loaded, wanted, winner)) is not None:
        if proposal.conflicts:
            raise MergeConflictError(proposal)
        with explained():
            event = signed_event(
                signing.private, proposal.payload(), capability=signing.capability_block
            )
        loaded = loaded.with_event(event)
        check_accepted(loaded, event)
        events.append(event)
        winner = None if winner is None else event.cid  # it has the winner's values
    for event in events:
        yield from send(session, event)
    return document_at(loaded, events[-1].cid if events else None, events, before.expired)


def propose_merge(
    session: ClientSession,
    stream: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    prefer: CidRef | None = None,
) -> Steps[MergeProposal | None]:
    """Say how `merge` would merge a stream; None if there is nothing to merge.

    Arguments as for `merge`.

    Raises:
        InvalidArgumentError: `prefer` is not one of the tips.
        NotFoundError: the node does not have the stream.
    """
    wanted = None if content is None else to_object(content)
    loaded = yield from fetch_stream(session, stream)
    return _proposal(loaded, wanted, _preferred_tip(loaded, prefer))


def _proposal(
    stream: Stream, content: Mapping[str, Any] | None, winner: CID | None
) -> MergeProposal | None:
    """Propose a merge that leads to a content, or in which one of the tips wins."""
    try:
        proposal = stream.proposal(winner)
    except StreamShapeError as error:
        raise not_accepted(stream, error) from None
    if proposal is None:
        return None
    if winner is not None:
        if winner in proposal.expired:
            proposal = proposal.leading_to(stream.at(winner).data.content or {})
        proposal = proposal.preferring(winner)
    if content is not None:
        proposal = proposal.leading_to(content)
    _ = proposal.patch  # raises `BudgetError` here, where callers expect it
    return proposal


def _preferred_tip(stream: Stream, prefer: CidRef | None) -> CID | None:
    """Return the tip that is to win; None if it does not matter, as the stream has none open."""
    if prefer is None:
        return None
    tip, tips = to_cid(prefer), document_at(stream).open_tips
    if not tips:
        return None
    if tip not in tips:
        shown = ", ".join(map(str, tips[:_MAX_NAMED]))
        more = f" and {len(tips) - _MAX_NAMED} more" if len(tips) > _MAX_NAMED else ""
        raise InvalidArgumentError(f"{tip} is not one of the tips: {shown}{more}")
    return tip


def diverged(session: ClientSession, model: StreamRef | None = None) -> Steps[list[Document]]:
    """Find the streams that have diverged: those of a model, or all in the node's feed.

    Their `open_tips` are what a merge would cover.
    """
    streams: dict[CID, list[Event]] = {}
    if model is None:
        events = yield from _whole_feed(session)
    else:
        events = yield from fetch_matching("model", str(to_stream_id(model)), None, None)
    for event in events:
        streams.setdefault(event.init, []).append(event)
    documents = []
    for listed in streams.values():
        held = complete_events(listed)
        prevs = {prev for event in held for prev in event.prevs}
        if held and len({event.cid for event in held} - prevs) > 1:
            document = document_at((yield from fetch_stream(session, held[0].stream_id())))
            if document.open_tips:
                documents.append(document)
    return documents


def _whole_feed(session: ClientSession) -> Steps[list[Event]]:
    events: list[Event] = []
    token = None
    while True:
        page = yield from feed(session, token)
        if not page.entries:
            return events
        events += [entry.event for entry in page.entries if entry.event is not None]
        token = page.token
