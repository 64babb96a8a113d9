"""Which events of the feed are to be anchored: the tips of the chosen streams.

An anchor of an event is one of everything that it covers (CIP-145). So an event is wanted until a
later one covers it, or a time event names it. Badly signed events neither need anchors nor cover.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from recon_node.ceramic import EventKind
from recon_node.ipld import CID


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event of a chosen stream, as the selection needs it."""

    cid: CID
    init: CID
    kind: EventKind
    prevs: tuple[CID, ...]
    is_wanted: bool
    """Whether it may be anchored itself; it covers its prevs in any case."""


@dataclass(slots=True)
class Selection:
    """What follows from a part of the feed."""

    added: dict[CID, CID] = field(default_factory=dict)
    """Events to anchor, and the init events of their streams."""
    covered: list[CID] = field(default_factory=list)
    """Events that need no anchor any more."""
    timed: list[tuple[CID, CID]] = field(default_factory=list)
    """Events that are anchored, each with its time event."""


def select(events: Iterable[FeedEvent]) -> Selection:
    """Return what follows from events of the feed, in their order."""
    found = Selection()
    for event in events:
        for prev in event.prevs:
            found.added.pop(prev, None)
        if event.kind is EventKind.TIME:
            found.timed += [(prev, event.cid) for prev in event.prevs]
        else:
            found.covered += event.prevs
            if event.is_wanted:
                found.added[event.cid] = event.init
    return found
