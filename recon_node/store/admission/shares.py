"""Shares of the room for events that cost their maker nothing, and how much of each is taken.

Whoever signs an event may write to its stream; what they sign takes as much room as it
needs. Other events need no key that matters, so anybody can make any number of them:

- `ORPHAN`: its stream's init event is not here, so nobody knows who may have signed it; or it is a
  time event whose prev is not here;
- `UNCOVERED`: a badly signed event, or an unsigned init event where a write policy decides in whose
  name streams are: it waits for a valid data event of the stream's controller;
- `UNPROVEN`: a time event whose transaction was not looked up. Once a signed event builds on it,
  it is *backed*, and takes no more room than what is signed.

Each kind has a share, and those beyond it are refused *for now*, or take the place of others of
their kind. So they never take room from each other, nor from what is signed. No valid event is
lost: an event whose history is here leaves its share at once, and one for which a valid event waits
needs no room in it. Only time events have to wait for a lookup: there, those whose transaction the
chain does not have, or whose chain this node does not ask, make room for others. Nothing that costs
its maker nothing keeps them from that (`recon_node.store.db.evictable`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from recon_node.ceramic import EventKind
from recon_node.ceramic.event import TIME
from recon_node.store.admission.records import (
    DELIVERED,
    ORPHAN,
    PENDING,
    UNCOVERED,
    WAITING,
    Record,
    State,
)
from recon_node.store.values import StoreSettings
from recon_node.verification import Refusal


class Share(Enum):
    """A kind of events that cost their maker nothing."""

    ORPHAN = "events whose history is missing"
    UNCOVERED = "events that no valid event covers"
    UNPROVEN = "time events that no lookup has proven"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of events, and the bytes of their CARs."""

    events: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.events + other.events, self.bytes + other.bytes)

    def fits(self, limit: Amount) -> bool:
        """Return whether it is within a limit."""
        return self.events <= limit.events and self.bytes <= limit.bytes


_MOST_UNCOVERED: Final = Amount(4096, 64 * 1024 * 1024)
_WITHHELD: Final = 16_384
"""The other shares, where these events are withheld from peers: their EventIds are in memory."""


def share_of(kind: EventKind, state: State, *, badly_signed: bool, is_backed: bool) -> Share | None:
    """Return the share that an event is in; None if it needs none."""
    if badly_signed:
        return Share.UNCOVERED if state < PENDING else None
    if state is ORPHAN or (kind is TIME and state is WAITING):
        return Share.ORPHAN
    if kind is TIME:
        return None if is_backed or state is DELIVERED else Share.UNPROVEN
    return Share.UNCOVERED if state is UNCOVERED else None


def share_of_record(record: Record) -> Share | None:
    """Return the share that a record is in; None if it needs none, or was refused."""
    if record.refusal is not None or record.state is DELIVERED:
        return None
    badly_signed = record.fault is not None
    return share_of(
        record.kind, record.state, badly_signed=badly_signed, is_backed=record.is_backed
    )


def no_room(share: Share, limit: Amount) -> Refusal:
    """Return why an event that needs room in a full share is refused for now."""
    reason = (
        f"there is no room for more {share.value}: this node keeps at most {limit.events:,} of "
        f"them, and {limit.bytes:,} bytes; offer it again later, or with what builds on it"
    )
    return Refusal(reason, temporary=True)


@dataclass(slots=True)
class Marks:
    """Where the log stands; each batch moves it on."""

    head: int
    """The last feed position given."""
    row: int
    """The last row id given."""
    waiting: int
    """Records below PENDING."""
    shares: dict[Share, Amount] = field(default_factory=dict)
    """How much of each share is taken."""
    has_releases: bool = False
    """Whether there are events that have moved, or proofs that were settled, whose waiters have
    not all been looked at (`recon_node.store.db.releases`)."""

    def count(self, record: Record, times: int = 1) -> None:
        """Count a record, which takes nothing if it was refused; with -1, count it no longer."""
        share = share_of_record(record)
        if share is not None:
            self.shares[share] = self.taken(share) + Amount(times, times * record.size)
        self.waiting += times * (record.refusal is None and record.state < PENDING)

    def taken(self, share: Share) -> Amount:
        """Return how much of a share is taken."""
        return self.shares.get(share, Amount())


def share_limits(settings: StoreSettings, *, guarded: bool) -> Mapping[Share, Amount]:
    """Return how large each share may be.

    Args:
        settings: of the store.
        guarded: whether a write policy decides in whose name streams are.
    """
    events = settings.max_waiting
    most = Amount(min(events, _WITHHELD) if guarded else events, settings.max_waiting_bytes)
    return {
        Share.ORPHAN: most,
        Share.UNCOVERED: Amount(
            min(_MOST_UNCOVERED.events, most.events), min(_MOST_UNCOVERED.bytes, most.bytes)
        ),
        Share.UNPROVEN: most,
    }
