"""Streams that have diverged (CIP-145): found, and merged by events that are built here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recon_node.ceramic import Event
from recon_node.ceramic.builder import signed_event
from recon_node.client.errors import InvalidArgumentError, MergeConflictError
from recon_node.client.feed import feed
from recon_node.client.given import CidRef, StreamRef, to_cid, to_object, to_stream_id
from recon_node.client.keys import Key
from recon_node.client.reading import Document, document_at, fetch_stream, not_accepted, whole
from recon_node.client.session import Session, Steps, fetch_matching, send
from recon_node.client.writing import check, explained
from recon_node.ipld import CID
from recon_node.streams import MergeProposal, Stream, StreamShapeError

_MAX_NAMED: Final = 10
"""Tips that an error names."""


def merge(
    session: Session,
    stream: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    prefer: CidRef | None = None,
    key: Key | None = None,
) -> Steps[Document]:
    """Merge a stream that has diverged; nothing is sent if it has not.

    Args:
        stream: which.
        content: what the merge leads to, by default what the branches lead to together.
        prefer: one of the open tips, whose values win where the branches conflict.
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
    loaded = yield from fetch_stream(session, stream)
    winner = _tip_of(loaded, prefer)
    events: list[Event] = []
    # Several times, if there are more tips than one event can merge; only then is any of it sent.
    while (proposal := _proposal(loaded, wanted, winner)) is not None:
        if proposal.conflicts:
            raise MergeConflictError(proposal)
        with explained():
            event = signed_event(signing.private, proposal.payload())
        loaded = loaded.with_event(event)
        check(loaded, event)
        events.append(event)
        winner = None if winner is None else event.cid  # it has the winner's values
    for event in events:
        yield from send(session, event)
    return document_at(loaded, events[-1].cid if events else None, events)


def propose_merge(
    session: Session,
    stream: StreamRef,
    content: Mapping[str, Any] | None = None,
    *,
    prefer: CidRef | None = None,
) -> Steps[MergeProposal | None]:
    """Say how `merge` would merge a diverged stream; None if it has not diverged.

    Arguments as for `merge`.

    Raises:
        InvalidArgumentError: `prefer` is not one of the tips.
        NotFoundError: the node does not have the stream.
    """
    wanted = None if content is None else to_object(content)
    loaded = yield from fetch_stream(session, stream)
    return _proposal(loaded, wanted, _tip_of(loaded, prefer))


def _proposal(
    stream: Stream, content: Mapping[str, Any] | None, winner: CID | None
) -> MergeProposal | None:
    """Propose a merge that leads to a content, or in which one of the tips wins."""
    try:
        proposal = stream.proposal(winner)
    except StreamShapeError as error:
        raise not_accepted(stream, error) from None
    if proposal is not None and winner is not None:
        proposal = proposal.preferring(winner)
    if proposal is not None and content is not None:
        proposal = proposal.leading_to(content)
    if proposal is not None:
        _ = proposal.patch  # raises `BudgetError` here, where callers expect it
    return proposal


def _tip_of(stream: Stream, prefer: CidRef | None) -> CID | None:
    """Return the tip that is to win; None if it does not matter, as the stream has none open."""
    if prefer is None:
        return None
    tip, tips = to_cid(prefer), document_at(stream).open_tips
    if not tips:
        return None
    if tip not in tips:
        some = ", ".join(map(str, tips[:_MAX_NAMED]))
        more = f" and {len(tips) - _MAX_NAMED} more" if len(tips) > _MAX_NAMED else ""
        raise InvalidArgumentError(f"{tip} is not one of the tips: {some}{more}")
    return tip


def diverged(session: Session, model: StreamRef | None = None) -> Steps[list[Document]]:
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
    found = []
    for listed in streams.values():
        held = whole(listed)
        prevs = {prev for event in held for prev in event.prevs}
        if held and len({event.cid for event in held} - prevs) > 1:
            document = document_at((yield from fetch_stream(session, held[0].stream_id())))
            if document.open_tips:
                found.append(document)
    return found


def _whole_feed(session: Session) -> Steps[list[Event]]:
    events: list[Event] = []
    token = None
    while True:
        page = yield from feed(session, token)
        if not page.entries:
            return events
        events += [entry.event for entry in page.entries if entry.event is not None]
        token = page.token
