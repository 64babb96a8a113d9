"""What costs its maker nothing has a share of its own.

Theory of operation. Whoever signs an event may write to its stream; what they sign takes as much
room as it needs. Other events need no key that matters, so anybody can make any number of them:

- `ORPHAN`: its stream's init event is not here, so nobody can tell who may have signed it;
- `UNVOUCHED`: a badly signed event, or an unsigned init event where a write policy decides in whose
  name streams are: it waits for a valid data event of the stream's controller;
- `UNPROVEN`: a time event whose transaction was not looked up.

Each kind has a share, and those beyond it are refused *for now*, or take the place of others of
their kind. So they never take room from each other, nor from what is signed. No valid event is
lost: an event whose history is here leaves its share at once, and one for which a valid event waits
needs no room in it. Only time events have to wait for a lookup: there, those whose transaction the
chain does not have make room for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from recon_node.ceramic import EventKind
from recon_node.store.admission.records import Record, State
from recon_node.store.values import StoreSettings


class Share(Enum):
    """A kind of events that cost their maker nothing."""

    ORPHAN = "events whose init event is missing"
    UNVOUCHED = "events that no valid event covers"
    UNPROVEN = "time events that no lookup has proven"


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of events, and the bytes of their CARs."""

    events: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.events + other.events, self.bytes + other.bytes)

    def __sub__(self, other: Amount) -> Amount:
        """Without the other."""
        return Amount(self.events - other.events, self.bytes - other.bytes)

    def fits(self, limit: Amount) -> bool:
        """Tell whether it is within a limit."""
        return self.events <= limit.events and self.bytes <= limit.bytes


_UNVOUCHED: Final = Amount(4096, 64 * 1024 * 1024)
_WITHHELD: Final = 16_384
"""The other shares, where these events are withheld from peers: their EventIds are in memory."""


def share_of(kind: EventKind, state: State, *, badly_signed: bool) -> Share | None:
    """Return the share that an event is in; None if it needs none."""
    if badly_signed:
        return Share.UNVOUCHED if state < State.PENDING else None
    if state is State.ORPHAN:
        return Share.ORPHAN
    if kind is EventKind.TIME:
        return Share.UNPROVEN if state < State.DELIVERED else None
    return Share.UNVOUCHED if state is State.UNCOVERED else None


def share_of_record(record: Record) -> Share | None:
    """Return the same of a record; None, too, if it was refused."""
    if record.refusal is not None:
        return None
    return share_of(record.kind, record.state, badly_signed=record.fault is not None)


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
    is_releasing: bool = False
    """Whether events that may move have not been looked at yet, see `releases`."""

    def copy(self) -> Marks:
        """Return marks of their own, to be moved on."""
        return replace(self, shares=dict(self.shares))

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
        Share.UNVOUCHED: Amount(
            min(_UNVOUCHED.events, most.events), min(_UNVOUCHED.bytes, most.bytes)
        ),
        Share.UNPROVEN: most,
    }
