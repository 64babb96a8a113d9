"""What admission works on: an EventId that is held (a record), and what its stream asks of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from recon_node.ceramic import Event, EventId, EventKind, Network, StreamId
from recon_node.ceramic.header import DEFAULT_SORT_KEY
from recon_node.ipld import CID
from recon_node.verification import Facts, Refusal

__all__ = ["Record", "Refusal", "State", "Stream"]


class State(IntEnum):
    """How far an event has come. Each step needs the one before; none is taken back."""

    ORPHAN = 0
    """Its stream's init event is not here: rightly signed, by whoever it was, no more."""
    WAITING = 1
    """Signed by its stream's controller; a prev is not here or waits itself: height unchecked."""
    PENDING = 2
    """Wholly checked. Not delivered: a time event whose anchor was not looked up, or after one."""
    DELIVERED = 3
    """It has a feed position, and so has all it builds on."""


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
    proof: CID | None = None
    """The CID of a time event's proof."""
    event: Facts | None = field(default=None, repr=False)
    """Set while the event is new."""
    logged_state: State | None = None
    """Its state in the log, None while it is not there."""
    height: int = field(init=False)
    """As in the EventId; asked for often."""

    def __post_init__(self) -> None:
        self.height = self.event_id.height


@dataclass(frozen=True, slots=True)
class Stream:
    """What the init event of a stream asks of all events of the stream."""

    init: CID
    controller: str
    sep_key: str
    sep_value: str

    @property
    def model(self) -> StreamId | None:
        """The stream's model, None when its sort value is another field's."""
        return StreamId.parse(self.sep_value) if self.sep_key == DEFAULT_SORT_KEY else None

    @classmethod
    def of(cls, init: Event | Facts) -> Stream:
        """What the init event says in its header."""
        header = init.header
        assert header is not None, "an init event has a header"
        return cls(init.cid, header.controller, header.sep_key, header.sep_value)

    def event_id(self, network: Network, height: int, cid: CID) -> EventId:
        """The EventId of the stream's event `cid`.

        Raises:
            EventIdError: the height or the CID cannot stand in one.
        """
        return EventId.build(network, self.sep_value, self.controller, self.init, height, cid)
