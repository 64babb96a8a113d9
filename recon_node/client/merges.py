"""Merging streams that have diverged (CIP-145), by events that are built and signed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from recon_node.base.connection import ClientError, InvalidArgumentError
from recon_node.ceramic import Event
from recon_node.ceramic.builder import signed_event
from recon_node.client.arguments import CidRef, Document, StreamRef, to_cid, to_object, to_stream_id
from recon_node.client.feed_entries import feed
from recon_node.client.keys import Key
from recon_node.client.operations import (
    ClientSession,
    Steps,
    check_accepted,
    complete_events,
    document_at,
    explained,
    fetch_matching,
    fetch_stream,
    not_accepted,
    send,
)
from recon_node.ipld import CID
from recon_node.streams import MergeProposal, Stream, StreamShapeError


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
        proposal = stream.propose_merge(winner)
    except StreamShapeError as error:
        raise not_accepted(stream, error) from None
    if proposal is None:
        return None
    if winner is not None:
        if winner in proposal.expired:
            proposal = proposal.leading_to(stream.at(winner).data.content)
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
