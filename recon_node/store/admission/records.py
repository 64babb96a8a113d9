"""What admission works on: records of events, and what is known around a batch.

A `Record` is one EventId and its event, a `StreamRecord` what the stream's init event requires of
all its events. The log has a row for each.

*What is known.* `Known` has what is known of the events around one batch: loaded in bulk, kept
current as the batch is judged. There is one `Record` object for each EventId, so that what one
event of the batch changes is what the next one sees. The rules and the ladder are pure: what they
have to know they yield as a `Want`, and their runner (`recon_node.store.db.rows.BatchLoader`) adds
it to `Known` from the log before they go on.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from recon_node.ceramic import Event, EventId, EventKind, Network, StreamId
from recon_node.ceramic.event import INIT, TIME
from recon_node.ceramic.event_id import DEFAULT_SORT_KEY, stream_prefix
from recon_node.ipld import CID
from recon_node.store.damage import Damage, DamagedEventError
from recon_node.verification import Facts, Refusal

ProofVerdict = int | Refusal
"""The time of a proof's block in Unix seconds, or why its events are refused."""


class State(IntEnum):
    """How far an event has come. Each state needs the one before; none is taken back."""

    ORPHAN = -1
    """Its stream's init event is not here, so nobody knows who may have signed it."""
    WAITING = 0
    """Its signature is checked. A prev is missing or waits itself: height unchecked."""
    UNCOVERED = 1
    """Fully checked, which every valid event is before it moves on (`Known.checked`). It stays here
    if it or something it builds on is badly signed, and nothing valid covers that.

    Where a write policy decides in whose name streams are, also an unsigned init event that nothing
    valid covers, and a time event without a lookup (see `ladder`).
    """
    PENDING = 2
    """Fully checked. Not delivered: a time event whose anchor was not looked up, or after one."""
    DELIVERED = 3
    """It has a feed position, and so has everything it builds on."""


ORPHAN, WAITING, UNCOVERED, PENDING, DELIVERED = State
"""By their names alone, because an attribute of an Enum takes Python 3.11 0.15 microseconds."""


@dataclass(slots=True, eq=False)
class Record:
    """One EventId and its event, as far as admission needs them.

    Until its history is here, an event may be held under several EventIds, as peers sent
    it; the history decides which one is right.
    """

    row: int
    """Its `id` in the log."""
    event_id: EventId
    height: int
    """As in the EventId."""
    cid: CID
    init: CID
    kind: EventKind
    signer: str | None
    """The DID that signed in its own name. None: unsigned, or signed under a capability."""
    state: State
    builds_on: tuple[CID, ...] = ()
    """The init event and the prevs; empty for an init event, once delivered, and as long as it is
    only known as what others build on."""
    watch: CID | None = None
    """Of what it builds on, what has to move before it can. None: a log of an earlier version does
    not say, or it builds on nothing."""
    position: int | None = None
    refusal: Refusal | None = None
    fault: str | None = None
    """What is wrong with the signature of a data event, see `recon_node.store.db.rows`."""
    proof: CID | None = None
    """The CID of a time event's proof."""
    event: Facts | None = field(default=None, repr=False)
    """Set while the event is new."""
    size: int = 0
    """Bytes of its CAR; 0 once it is delivered."""
    logged_state: State | None = None
    """Its state in the log; None until it is written."""
    logged_watch: CID | None = None
    is_unproven: bool = False
    """Whether it is UNCOVERED only because its anchor was not looked up."""
    is_backed: bool = False
    """Whether it is a time event that was found to have a signed event above it."""
    was_withheld: bool = False
    """Whether it was withheld when it was loaded from the log."""

    @property
    def is_withheld(self) -> bool:
        """Whether it is not offered to peers (CIP-124: a node validates an event before it relays
        it): it is badly signed and nothing valid covers it, or it is UNCOVERED."""
        if self.state is UNCOVERED:
            return True
        return self.fault is not None and self.state < PENDING

    @property
    def is_unsigned_init(self) -> bool:
        """Whether it is of a deterministic init event; one of the log is UNCOVERED."""
        if self.kind is not INIT:
            return False
        return self.event is None or self.event.envelope is None


class Completed(NamedTuple):
    """A key whose history is complete now."""

    event_id: EventId
    model: StreamId
    """Of its stream."""
    builds_on: tuple[CID, ...]
    """The init event and the prevs; none once it is delivered."""
    doubted: bool
    """Whether it is a time event whose transaction the chain does not have."""


class StreamRecord(NamedTuple):
    """What the init event of a stream requires of all events of the stream."""

    init: CID
    controller: str
    sort_key: str
    sort_value: str

    @property
    def model(self) -> StreamId | None:
        """The stream's model, None when its sort value is another field's."""
        return _model(self.sort_value) if self.sort_key == DEFAULT_SORT_KEY else None

    @classmethod
    def of(cls, init: Event | Facts) -> StreamRecord:
        """Read it from the header of the init event."""
        header = init.header
        assert header is not None, "an init event has a header"
        return cls(init.cid, header.controller, header.sort_key, header.sort_value)

    def prefix(self, network: Network) -> bytes:
        """Return what precedes the height in the EventIds of the stream's events.

        Raises:
            EventIdError: they cannot have EventIds.
        """
        return stream_prefix(network, self.sort_value, self.controller, self.init)

    def event_id(self, network: Network, height: int, cid: CID) -> EventId:
        """Return the EventId of the stream's event `cid`.

        Raises:
            EventIdError: an EventId cannot have that height or CID.
        """
        return EventId.build(network, self.sort_value, self.controller, self.init, height, cid)


_model = lru_cache(maxsize=1024)(StreamId.parse)
"""Few models have very many streams."""


def builds_on(event: Event | Facts) -> tuple[CID, ...]:
    """Return the init event and the prevs of an event, each once; none of an init event."""
    if event.kind is INIT:
        return ()
    links = event.init, *event.prevs
    return tuple(dict.fromkeys(links)) if event.init in event.prevs else links


T = TypeVar("T")

MAX_RECENT: Final = 4096
"""Delivered events that are remembered between batches, of about 600 bytes each."""
MAX_KEPT: Final = 256
"""Of these, the events of one batch: a long one brings most of what it builds on."""

Moved = tuple[CID, bytes | None]
"""An event that others may build on, and why these are looked at: the init event of its stream, if
it has moved there; `REFUSED`, if it is wrong under any EventId; None, if all are wanted."""

REFUSED: Final = b""


class Want(NamedTuple):
    """What has to be known next."""

    event_ids: Sequence[EventId] = ()
    """Which of these were refused before."""
    events: Collection[CID] = ()
    """Records of these events, what their streams require, and whether they were refused."""
    unwaited: Sequence[CID] = ()
    """On which of these events no undelivered record of the log builds."""
    waiters: Collection[Moved] = ()
    """Undelivered records that `Known.waiters` returns for these, and what else those build on."""
    proofs: Collection[CID] = ()
    """What the lookups of these led to. Those of records are known with the records."""
    moving: Collection[Record] = ()
    """What these build on."""
    cars: Collection[Record] = ()
    """The CARs of these records."""
    evictable: bool = False
    """Records that may make room for time events."""


Inquiry = Generator[Want, None, T]
"""A computation that yields what it has to know, and goes on once that is in `Known`."""


@dataclass(slots=True)
class Known:
    """The records, streams and refusals that matter to one batch."""

    streams: dict[CID, StreamRecord] = field(default_factory=dict)
    """What the init events that are here require, by their CIDs."""
    refused_event_ids: dict[EventId, str] = field(default_factory=dict)
    """EventIds that were refused before, and why."""
    refused: dict[CID, str] = field(default_factory=dict)
    """Events that are wrong under any EventId, and why."""
    touched: dict[EventId, Record] = field(default_factory=dict)
    """All records of this batch, also those that were refused meanwhile."""
    verdicts: dict[CID, ProofVerdict | None] = field(default_factory=dict)
    """What lookups of proofs led to, None until they were looked up."""
    doubted: set[CID] = field(default_factory=set)
    """Proofs whose transactions the chain did not have when they were looked up."""
    cars: dict[Record, bytes | Damage] = field(default_factory=dict)
    """CARs that were asked for."""
    evictable: list[tuple[Record, bool]] | None = None
    """What may make room for time events, and whether by being backed; None until asked for."""
    events: set[CID] = field(default_factory=set)
    """Events of which all is known."""
    forgotten: frozenset[bytes] = frozenset()
    """The init events of forgotten streams, of whose events nothing is stored but the names."""
    unwaited: set[CID] = field(default_factory=set)
    """Events on which no undelivered record of the log builds, as far as that was asked."""
    waited_for: set[Moved] = field(default_factory=set)
    """Those whose waiters are known."""
    _by_cid: dict[CID, list[Record]] = field(default_factory=dict)
    _waiters: dict[CID, dict[Record, None]] = field(default_factory=dict)  # ordered sets

    def adopt(self, records: Iterable[Record]) -> None:
        """Hold records of the log, but those that are held or were refused here: of these, what
        they build on may not have been known."""
        for record in records:
            held = self.touched.get(record.event_id)
            if held is None:
                self.add(record)
            elif not held.builds_on and held.refusal is None and held.state is not DELIVERED:
                held.builds_on = record.builds_on
                held.watch = held.logged_watch = record.watch
                self._note_waiter(held)

    def add(self, record: Record) -> None:
        """Hold a record that is new here."""
        self.touched[record.event_id] = record
        self._by_cid.setdefault(record.cid, []).append(record)
        if record.state is not DELIVERED:
            self._note_waiter(record)

    def _note_waiter(self, record: Record) -> None:
        for cid in record.builds_on:
            self._waiters.setdefault(cid, {})[record] = None

    def remove(self, record: Record) -> None:
        """Forget a record that was refused; no-op when it is not held."""
        if self.touched.get(record.event_id) is not record:
            return
        self._by_cid[record.cid].remove(record)
        for cid in record.builds_on:
            self._waiters.get(cid, {}).pop(record, None)

    def held(self, event_id: EventId) -> Record | None:
        """Return the record held under that EventId."""
        record = self.touched.get(event_id)
        return None if record is None or record.refusal is not None else record

    def records_of(self, cid: CID) -> Sequence[Record]:
        """Return every record of that event."""
        return self._by_cid.get(cid, ())

    def checked(self, cid: CID) -> Record | None:
        """Return the record of that event whose EventId is known to be right."""
        for record in self._by_cid.get(cid, ()):
            if record.state >= UNCOVERED:
                return record
        return None

    def may_be_waited_for(self, cid: CID) -> bool:
        """Return whether an undelivered record may build on that event."""
        return cid not in self.unwaited or bool(self._waiters.get(cid))

    def is_built_on(self, cid: CID) -> bool:
        """Return whether a record of a stream that is known builds on that event, of those here."""
        return any(record.state > ORPHAN for record in self._waiters.get(cid, ()))

    def moved(self, cid: CID) -> Moved:
        """Return that event as one that has moved, or that was refused."""
        record = None if cid in self.refused else self.checked(cid)
        return cid, REFUSED if record is None else record.init

    def waiters(self, moved: Iterable[Moved]) -> list[Record]:
        """Return the undelivered records that build on one of these events and may move now, each
        once: those that watch it, and those that are wrong because it is refused, or is of another
        stream. An orphan is not: it needs its init event first."""
        waiters: dict[Record, None] = {}
        for cid, stream in moved:
            for record in self._waiters.get(cid, ()):
                if record.state is DELIVERED:
                    continue
                is_wrong = record.state is not ORPHAN and record.init != stream
                if stream is None or record.watch in (None, cid) or is_wrong:
                    waiters[record] = None
        return list(waiters)

    def car(self, record: Record) -> bytes:
        """Return the CAR of a record.

        Raises:
            DamagedEventError: it is not what was written.
        """
        car = self.cars[record] if record.event is None else record.event.car
        if not isinstance(car, bytes):
            raise DamagedEventError(car)
        return car


class Recent:
    """The latest delivered events that batches knew: what comes next mostly builds on these.

    Their records do not change any more, and no other EventId of theirs is taken.
    """

    def __init__(self) -> None:
        self._events: dict[CID, tuple[Record, StreamRecord | None]] = {}

    def keep(self, known: Known) -> None:
        """Remember the latest of a batch that is committed."""
        if len(self._events) >= MAX_RECENT:
            self._events.clear()
        for record in islice(reversed(known.touched.values()), MAX_KEPT):
            if record.state is not DELIVERED or record.kind is TIME or record.cid in known.refused:
                continue
            if len(known.records_of(record.cid)) == 1:
                record.logged_state, record.event, record.builds_on = DELIVERED, None, ()
                self._events[record.cid] = record, known.streams.get(record.cid)

    def recall(self, cids: Collection[CID], known: Known) -> list[CID]:
        """Tell what is remembered of some events; return the others."""
        found = self._events.keys() & cids
        if not found:
            return list(cids)
        for cid in found:
            record, stream = self._events[cid]
            known.adopt([record])
            if stream is not None:
                known.streams[cid] = stream
        return [cid for cid in cids if cid not in found]
