"""What goes into the store and comes out of it: plain values."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field
from pydantic.dataclasses import dataclass as settings_dataclass

from recon_node.base.setting_types import SETTINGS, Bytes, Setting
from recon_node.ceramic import MAX_CAR_SIZE, EventId, EventKind, Shard, StreamId, TimeProof
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID
from recon_node.store.errors import InvalidInterestError
from recon_node.verification import Finding

MAX_VERIFIERS: Final = 64
"""Maximum processes that the setting `verifiers` can ask for."""

Cause = Literal["car", "event", "history", "waiting", "bounds", "policy", "unjudged", "node"]
"""What a refusal is about.

- "car": the CAR is not the expected event: it is unreadable, too large, or another one. This says
  nothing about the event: there is no point in asking its sender again, but others may have it.
- "event": the event, or the EventId that it came under, is permanently wrong.
- "history": an event without an EventId (a local one, or one from the model ring) depends on one
  that is missing.
- "waiting": a peer's event would have to wait, but no more events may wait now; perhaps later.
- "bounds": not for this node, or not now: another network, no interest, an expired capability.
- "policy": the write policy of this node refuses the stream.
- "unjudged": the stream could not be judged by the write policy; try again later.
- "node": this node failed over it.
"""


BatchOutcome = Literal["ok", "failed"]


@dataclass(slots=True)
class Submission:
    """An event submitted by a peer, under an EventId of either kind, or by a local client."""

    car: bytes
    event_id: EventId | None = None
    ring_key: HeightlessEventId | None = None
    """What a ceramic-one node sent the event under."""
    finding: Finding | None = None
    """What is known of the CAR; None until it is verified."""
    at_any_time: bool = False
    """Whether capabilities count that do not hold now: it is history that the operator brings."""


class Verdict(NamedTuple):
    """What became of one submitted event.

    "new" and "known" are given only after the commit: the event survives a crash. "known" may
    come without a look at the CAR, when that EventId is already held. "refused" left no trace in
    the log of events; `reason` says why, in plain English.
    """

    status: Literal["new", "known", "refused"]
    event_id: EventId | None
    position: int | None
    """The feed position, when the event is delivered."""
    reason: str | None = None
    cause: Cause | None = None
    """What a refusal is about; None unless refused."""


@dataclass(frozen=True, slots=True)
class FeedRow:
    """A delivered event at its feed position."""

    position: int
    """Dense, from 1."""
    event_id: EventId
    event_cid: CID
    stream_cid: CID
    """The CID of the stream's init event."""
    kind: EventKind
    car: bytes
    block_time: int | None = None
    """Of a time event: when its anchor's block was made, in Unix seconds."""
    chain_id: str | None = None
    """Of a time event: its anchor's chain (CAIP-2)."""
    delivered_at: int | None = None
    """When this node gave it the position, in Unix milliseconds; None if an earlier version did."""
    fault: str | None = None
    """Of a badly signed data event, which is never a tip (CIP-145): what is wrong with it."""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """An event of a stream that is not delivered, and is not a time event."""

    event_id: EventId
    car: bytes
    is_pending: bool
    """Whether only the lookup of an anchor below is missing."""
    fault: str | None
    """As in `FeedRow`."""


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A time event of a stream, without its CAR."""

    position: int | None
    """In the feed; None if it is not delivered."""
    first: int | None
    """The position of the first event that states the same."""
    event_id: EventId
    event_cid: CID
    prev: CID
    proof: TimeProof
    block_time: int | None
    """As in `FeedRow`."""
    is_pending: bool = False
    """Whether only the lookup of an anchor is missing, its own or one below."""


PositionRow = tuple[int, bytes, int | None, str | None, int | None, str | None]
"""Of `FeedRow`: `position`, `event_id`, `block_time`, `chain_id`, `delivered_at` and `fault`."""


@dataclass(frozen=True, slots=True)
class FeedColumns:
    """Delivered events column by column, in feed order, for bulk readers.

    They cannot afford an object for each value. The columns hold the fields of `FeedRow` as plain
    values.
    """

    positions: Sequence[int] = ()
    event_ids: Sequence[bytes] = ()
    event_cids: Sequence[bytes] = ()
    stream_cids: Sequence[bytes] = ()
    kinds: Sequence[str] = ()
    cars: Sequence[bytes] = ()
    block_times: Sequence[int | None] = ()
    chain_ids: Sequence[str | None] = ()
    delivered_at: Sequence[int | None] = ()
    faults: Sequence[str | None] = ()


@dataclass(frozen=True, slots=True)
class FeedFilter:
    """Which rows of the feed are wanted: those that match every field that is given.

    `sort_value` is the text in an init event's header; a StreamID is its base36 form.
    """

    sort_key: str | None = None
    sort_value: str | None = None
    controller: str | None = None
    stream_id: StreamId | None = None
    controllers: Shard | None = None

    def __bool__(self) -> bool:
        """Is anything filtered out?"""
        return any(getattr(self, field.name) is not None for field in fields(self))


@dataclass(frozen=True, slots=True)
class FeedTime:
    """The feed position of a time."""

    position: int
    """The events up to this position were delivered before the time, the others at it or later."""
    is_final: bool
    """Whether no further event will be delivered before the time."""


@dataclass(frozen=True, slots=True)
class PendingProof:
    """A proof of time events whose anchor was not looked up successfully yet."""

    cid: CID
    proof: TimeProof
    tries: int
    """Lookups that were not successful."""
    due: float
    """When it should be looked up (again), in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Interest:
    """A part of the network that this node wants: a sort value, a shard of it, a controller in it,
    a stream of it.

    Keys sort by sort value, controller and stream, in that order (CIP-124): a stream is a range of
    keys only together with its controller. `sort_value` is text; a StreamID is its base36 form.

    Raises:
        InvalidInterestError: it does not name a range of keys.
    """

    sort_key: str
    sort_value: str
    controller: str | None = None
    stream_id: StreamId | None = None
    controllers: Shard | None = None

    def __post_init__(self) -> None:
        if not self.sort_key:
            raise InvalidInterestError("an interest needs a sort key, such as `model`")
        if not self.sort_value:
            raise InvalidInterestError(
                f"an interest needs a sort value: which {self.sort_key} is wanted?"
            )
        if self.controller == "":
            raise InvalidInterestError("the controller of an interest must be a DID, or left out")
        if self.controllers is not None and self.controller is not None:
            raise InvalidInterestError(
                "an interest has one controller or a shard of all of them, not both"
            )
        if self.stream_id is not None and self.controller is None:
            raise InvalidInterestError(
                f"an interest in the stream {self.stream_id} must name its controller too: keys "
                "are ordered by controller before stream, so that a stream alone is not a range"
            )


def usable_cores() -> int:
    """Return how many cores this process may use, at most 4; 0 if there is only one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if cores in (None, 1) else min(4, cores)


@settings_dataclass(frozen=True, slots=True, config=SETTINGS)
class StoreSettings:
    """Event log: what it accepts, how it writes. Sizes are bytes, times are seconds."""

    max_event_bytes: Annotated[Bytes, Setting(), Field(le=MAX_CAR_SIZE)] = MAX_CAR_SIZE
    """Largest event (its CAR) to accept, in bytes; the default is the most that is possible."""
    synchronous: Annotated[Literal["full", "normal"], Setting()] = "full"
    """full: an acknowledged event survives a power cut. normal: faster, and an acknowledged event
    survives a crash of the node, but not of the machine."""
    max_batch_events: int = 2000
    """A transaction takes no further callers' events once it has this many. Each one writes most
    pages of the index by CID again; beyond this number, nothing is gained."""
    max_batch_bytes: int = 4 * 1024 * 1024
    """The same, by the size of their CARs."""
    queue_size: int = 1024
    """Maximum requests that wait for the writer; further callers wait to submit theirs."""
    readers: int = 4
    """Maximum reads at once."""
    drain_seconds: float = 3.0
    """On closing, events submitted before are written for up to this long; the rest are refused."""
    max_waiting: Annotated[int, Setting(), Field(ge=0)] = 1_000_000
    """Maximum events from peers to keep of each kind that costs its maker nothing: those whose
    init event is missing, with time events whose prev is missing, and time events whose anchor was
    not looked up.

    Beyond it, such an event is refused for now, or takes the place of a time event whose
    transaction the chain does not have, or whose chain this node does not ask; no valid event is
    lost by this (docs/admission.md). Without a limit, anyone could fill the disk.
    """
    max_waiting_bytes: Annotated[int, Setting(), Field(ge=0)] = 4 * 1024**3
    """The same limit by the size of these events, in bytes."""
    keep_free: Annotated[Literal["auto"] | Annotated[int, Field(ge=0)], Setting()] = "auto"
    """Bytes to keep free on the disk of the data directory.

    Below them nothing is taken from peers, until there is more room; the node's own clients can
    still write. auto: 1 GiB, or 5 % of a disk that is smaller than 20 GiB. 0: use the whole disk.
    """
    verifiers: Annotated[
        Literal["auto"] | Annotated[int, Field(ge=0, le=MAX_VERIFIERS)], Setting()
    ] = "auto"
    """Processes that check signatures beside the node's own, when many events come at once.

    auto: one for each core that the node may use, at most 4; none on a single core.
    """
    native: Annotated[Literal["auto", "off"], Setting()] = "auto"
    """auto: check signatures by the native core, if recon-node-native is installed. off: by Python
    alone, which comes to the same answers, slower.
    """
    ceramic_one: Annotated[bool, Setting()] = True
    """Reconcile with ceramic-one nodes, too (recon/0.1.0). Once one has come, this takes a second
    index of the keys: about 145 bytes of memory for each event.
    """
    max_refused: int = 65_536
    """How many refused EventIds are remembered."""

    @property
    def verifier_processes(self) -> int:
        """`verifiers` as a number."""
        return usable_cores() if self.verifiers == "auto" else self.verifiers
