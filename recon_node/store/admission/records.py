"""An EventId that is held and how far it has come, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from recon_node.ceramic import Event, EventId, EventKind, Network, StreamId
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import CID
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
    """What is wrong with the signature of a data event, see `recon_node.store.db.faults`."""
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
