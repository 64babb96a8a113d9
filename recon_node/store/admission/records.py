"""What is held: an EventId and how far it has come, and how much there is of each kind.

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
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Final

from recon_node.ceramic import Event, EventId, EventKind, Network, StreamId
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import CID
from recon_node.store.values import StoreSettings
from recon_node.verification import Facts, Refusal

ProofVerdict = int | Refusal
"""The time of a proof's block in Unix seconds, or why its events are refused."""


class State(IntEnum):
    """How far an event has come. Each state needs the one before; none is taken back."""

    ORPHAN = -1
    """Its stream's init event is not here, so nobody can tell who may have signed it."""
    WAITING = 0
    """Its signature is checked. A prev is missing or waits itself: height unchecked."""
    UNCOVERED = 1
    """Fully checked. It or something it builds on is badly signed, and nothing valid covers it.

    Where a write policy decides in whose name streams are, also an unsigned init event that nothing
    valid covers, and a time event without a lookup (see `ladder`).
    """
    PENDING = 2
    """Fully checked. Not delivered: a time event whose anchor was not looked up, or after one."""
    DELIVERED = 3
    """It has a feed position, and so has everything it builds on."""


@dataclass(slots=True, eq=False)
class Record:
    """One EventId and its event, as far as admission needs them.

    Until its history is here, an event may be held under several EventIds, each the claim of some
    peer; the history decides which one is right.
    """

    row: int
    """Its `id` in the log."""
    event_id: EventId
    cid: CID
    init: CID
    kind: EventKind
    signer: str | None
    """The DID that signed in its own name. None: unsigned, or signed under a capability."""
    state: State
    builds_on: tuple[CID, ...] = ()
    """The init event and the prevs; empty for an init event, and once delivered."""
    position: int | None = None
    refusal: Refusal | None = None
    fault: str | None = None
    """What is wrong with the signature of a data event, see `recon_node.store.db.records`."""
    proof: CID | None = None
    """The CID of a time event's proof."""
    event: Facts | None = field(default=None, repr=False)
    """Set while the event is new."""
    size: int = 0
    """Bytes of its CAR; 0 once it is delivered."""
    logged_state: State | None = None
    """Its state in the log; None until it is written."""
    is_unproven: bool = False
    """Whether it is UNCOVERED only because its anchor was not looked up."""
    was_withheld: bool = False
    """Whether it was withheld when it was loaded from the log."""
    height: int = field(init=False)
    """As in the EventId; read often."""

    def __post_init__(self) -> None:
        self.height = self.event_id.height

    @property
    def is_withheld(self) -> bool:
        """Whether peers do not hear of it (CIP-124: a node validates an event before it relays
        it): it is badly signed and nothing valid covers it, or it is UNCOVERED."""
        if self.state is State.UNCOVERED:
            return True
        return self.fault is not None and self.state < State.PENDING


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What the init event of a stream requires of all events of the stream."""

    init: CID
    controller: str
    sep_key: str
    sep_value: str

    @property
    def model(self) -> StreamId | None:
        """The stream's model, None when its sort value is another field's."""
        return _model(self.sep_value) if self.sep_key == DEFAULT_SORT_KEY else None

    @classmethod
    def of(cls, init: Event | Facts) -> StreamRecord:
        """Read it from the header of the init event."""
        header = init.header
        assert header is not None, "an init event has a header"
        return cls(init.cid, header.controller, header.sep_key, header.sep_value)

    def event_id(self, network: Network, height: int, cid: CID) -> EventId:
        """Return the EventId of the stream's event `cid`.

        Raises:
            EventIdError: an EventId cannot have that height or CID.
        """
        return EventId.build(network, self.sep_value, self.controller, self.init, height, cid)


_model = lru_cache(maxsize=1024)(StreamId.parse)
"""Few models have very many streams."""


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
