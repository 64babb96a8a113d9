"""What the store takes and gives: plain values, no behaviour."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from recon_node.ceramic import MAX_CAR_SIZE, EventId, EventKind, StreamId, TimeProof
from recon_node.ipld import CID
from recon_node.store.errors import InvalidInterestError

Cause = Literal["car", "event", "history", "waiting", "bounds", "node"]
"""What a refusal is about.

- "car": what came is not the event that it was to be: unreadable, too large, or another one. It
  says nothing about the event; whoever sent it need not be asked for it again, others may have it.
- "event": the event, or the EventId that it came under, is wrong for good.
- "history": a local event that builds on what is not here.
- "waiting": a peer's event that would have to wait, where no more events can: later, perhaps.
- "bounds": not for this node, or not now: another network, no interest, a capability run out.
- "node": this node failed over it.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one event that was handed in.

    "new" and "known" are given only after the commit: the event survives a crash. "known" may
    come without a look at the CAR, when that EventId is already held. "refused" left no trace in
    the log of events; `reason` says why, for people.
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
    """A delivered event at its place in the feed."""

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


@dataclass(frozen=True, slots=True)
class FeedColumns:
    """Delivered events column by column, in the order of the feed: for bulk readers, to whom an
    object for each value is too dear. What the columns hold is what `FeedRow` says of its fields,
    as plain values.
    """

    positions: Sequence[int] = ()
    event_ids: Sequence[bytes] = ()
    event_cids: Sequence[bytes] = ()
    stream_cids: Sequence[bytes] = ()
    kinds: Sequence[str] = ()
    cars: Sequence[bytes] = ()
    block_times: Sequence[int | None] = ()
    chain_ids: Sequence[str | None] = ()


@dataclass(frozen=True, slots=True)
class PendingProof:
    """A proof of time events whose anchor was not looked up with success yet."""

    cid: CID
    proof: TimeProof
    tries: int
    """How often it was looked up in vain."""
    due: float
    """When it should be looked up (again), in Unix seconds."""


@dataclass(frozen=True, slots=True)
class Interest:
    """A part of the network that this node wants: a sort value, a controller in it, a stream of it.

    Keys sort by sort value, controller and stream, in that order (CIP-124): a stream is a range of
    keys only together with its controller. `sort_value` is text; a StreamID is its base36 form.

    Raises:
        InvalidInterestError: no range of keys is named.
    """

    sort_key: str
    sort_value: str
    controller: str | None = None
    stream_id: StreamId | None = None

    def __post_init__(self) -> None:
        if not self.sort_key:
            raise InvalidInterestError("an interest needs a sort key, such as `model`")
        if not self.sort_value:
            raise InvalidInterestError(
                f"an interest needs a sort value: which {self.sort_key} is wanted?"
            )
        if self.controller == "":
            raise InvalidInterestError("the controller of an interest must be a DID, or left out")
        if self.stream_id is not None and self.controller is None:
            raise InvalidInterestError(
                f"an interest in the stream {self.stream_id} must name its controller too: keys "
                "are ordered by controller before stream, so that a stream alone is not a range"
            )


def usable_cores() -> int:
    """The processor's cores that this process may use, at most 4; 0 where there is but one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 0 if cores in (None, 1) else min(4, cores)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Bounds and choices of a store. Sizes are bytes, times are seconds."""

    max_event_bytes: int = MAX_CAR_SIZE
    """A larger CAR is refused; above `MAX_CAR_SIZE` it has no effect."""
    synchronous: Literal["full", "normal"] = "full"
    """When a commit is on the disk itself; see `recon_node.store.db.schema`."""
    max_batch_events: int = 1000
    """A transaction takes no further callers' events once it has so many."""
    max_batch_bytes: int = 16 * 1024 * 1024
    """The same, by the size of their CARs."""
    queue_size: int = 1024
    """Most requests that wait for the writer; more callers wait to hand theirs in."""
    readers: int = 4
    """Most reads at once."""
    drain_seconds: float = 3.0
    """On closing, what was handed in before is written for so long; the rest is refused."""
    max_waiting: int = 1_000_000
    """Most events kept without their history; further ones are refused until some of it comes."""
    max_waiting_bytes: int = 4 * 1024**3
    """The same, by the size of their CARs."""
    verifiers: int = field(default_factory=usable_cores)
    """Processes that check events, beside the node's own; 0: none. At most 4 by default."""
    max_refused: int = 65_536
    """How many refused EventIds are remembered."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What the store holds, and what it did since it was opened."""

    events: int
    """Keys held."""
    delivered: int
    """The feed's head."""
    waiting: int
    """Events of which a prev or the init event is not here, or waits itself."""
    pending: int
    """Time events whose anchor was not looked up, and events that build on them."""
    pending_proofs: int
    """Distinct proofs of those time events: lookups that are to be made."""
    admitted_total: int
    known_total: int
    refused_total: int
    late_refused_total: int
    """Waiting events that turned out wrong when their history came."""
    batches_total: int
    failed_batches_total: int
    """Batches that the disk did not take."""
