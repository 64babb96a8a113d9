"""How an event moves from its arrival to the feed.

    ORPHAN     --init event here, signature checked, EventId of that stream---------> WAITING
    WAITING    --all it builds on is fully checked, the height is right-------------> UNCOVERED
    UNCOVERED  --neither it nor what it builds on is badly signed and uncovered-----> PENDING
    PENDING    --all it builds on is delivered; a time event's anchor is looked up--> DELIVERED

One step at a time. An event that moved may let those move that build on it, and so on until nothing
moves: an event is delivered as soon as its history is complete, in whatever order its parts came.
Of the events that it has to wait for, an event *watches* one, and is looked at when that one moves;
then it watches another one. So those that build on the same many events are looked at a few times,
not whenever one of these arrives.

A data event may be *badly signed* (CIP-145: invalid); its `fault` says in what way. Nothing is
delivered on top of it until a valid data event covers it, however far above. Then all that this one
covers moves on, because it is signed by somebody who may write to the stream, and stands for its
history. Before that, the badly signed event and the time events on it stay UNCOVERED: they wait
like events that lack a prev. UNCOVERED and badly signed events are *withheld*: kept, but not
offered to peers.

Nobody signs a deterministic init event, nor a time event. Where a write policy decides in whose
name streams are (the log is *guarded*), these prove nothing, either: such an init event stays
UNCOVERED as well, until a valid data event covers it, and such a time event until it is covered or
its anchor was looked up. What comes from the node's own clients needs no cover: they answer for it.

An event that costs its maker nothing needs room in a share (`shares`). Without room it is refused
for now, unless a valid event waits for it, or others give way. Only a time event whose chain is
asked makes others give way. What refuses an event for good is in `checks`.

A time event is checked offline (hashes, and the path from the proof's root) and then stays PENDING,
held and served to peers, until its anchor was looked up (`store.db.proofs`). With the time of its
block it moves on, and so does what builds on it. If the transaction turns out to say something
else, both are refused.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from recon_node.ceramic import EventId, EventIdError, Network
from recon_node.ceramic.event import DATA, INIT
from recon_node.ipld import CID
from recon_node.store.admission.checks import (
    FaultError,
    check_event_id,
    check_history,
    check_signer,
    has_whole_history,
    stream_of,
)
from recon_node.store.admission.records import (
    DELIVERED,
    ORPHAN,
    PENDING,
    UNCOVERED,
    WAITING,
    Completed,
    Inquiry,
    Known,
    Moved,
    Record,
    StreamRecord,
    Want,
)
from recon_node.store.admission.shares import Amount, Marks, Share, no_room, share_of_record
from recon_node.store.damage import Damage, DamagedEventError
from recon_node.verification import Facts, Refusal

MAX_EVENT_IDS: Final = 8
"""EventIds under which one event waits for its history: one is right, its history shows which."""


class Ladder:
    """Moves the records of one batch, and those that wait for them.

    Args:
        known: what is known around the batch.
        marks: where the log stands; moved on here.
        network: of all events.
        limits: how large each share may be.
        guarded: whether a write policy decides in whose name streams are.
        chains: those that are asked about anchors (CAIP-2); None: it is not known which.
    """

    def __init__(
        self,
        known: Known,
        marks: Marks,
        network: Network,
        limits: Mapping[Share, Amount],
        *,
        guarded: bool,
        chains: Collection[str] | None = None,
    ) -> None:
        self._known = known
        self._marks = marks
        self._network = network
        self._limits = limits
        self._guarded = guarded
        self._chains = chains
        self._covered: set[CID] = set()
        """Events that a valid data event covers, or for which a client of this node answers."""
        self._moved_by_cover: list[CID] = []
        """Events that moved when they were covered, until what waits for them is looked at."""
        self.refused: list[Record] = []
        """What was proven wrong, new or held before, in order."""
        self._completed: list[tuple[Record, StreamRecord, bool]] = []
        self.damaged: list[Damage] = []
        """What could not be read: records that need it stay where they are until it is repaired."""

    def completed(self) -> Iterator[Completed]:
        """Yield the keys whose history is complete now, those with a place in the model ring.

        Badly signed events have none: a ceramic-one node ends a session over one.
        """
        return (
            Completed(
                record.event_id,
                model,
                () if record.state is DELIVERED else record.builds_on,
                doubted,
            )
            for record, stream, doubted in self._completed
            if record.refusal is None and record.fault is None
            if (model := stream.model) is not None
        )

    @property
    def sort_keys(self) -> set[str]:
        """Those of the streams whose init event has its place in the feed now."""
        return {
            stream.sort_key
            for record, stream, _ in self._completed
            if record.kind is INIT and record.state is DELIVERED
        }

    def enter(
        self,
        record: Record,
        refusal: Refusal | None = None,
        *,
        must_be_valid: bool = False,
        is_own: bool = False,
    ) -> Inquiry[None]:
        """Move a new record, then everything that waits for it; or refuse it.

        Args:
            record: is not held yet.
            refusal: why it is refused, if it is.
            must_be_valid: whether it is refused if it is badly signed. That is not remembered.
            is_own: whether it is of this node's own clients.
        """
        if refusal is not None:
            self._refuse(record, refusal)
        elif (
            record.event is not None
            and record.fault is None
            and self.deliver(record.event, record.builds_on, record.event_id, lambda *_: record)
        ):
            return
        if is_own and record.kind is not DATA:
            self._covered.add(record.cid)
        moved = yield from self._climb(record)
        if must_be_valid and record.fault is not None and record.refusal is None:
            record.refusal = Refusal(record.fault, inherent=True)
            return
        if record.state is not DELIVERED:
            if (reason := (yield from self._why_not_kept(record, is_own=is_own))) is not None:
                record.refusal = reason
                return
            self._marks.count(record)
        if record.refusal is None:
            self._known.add(record)
        if self._moved_by_cover or (moved and self._known.may_be_waited_for(record.cid)):
            yield from self._settle([record.cid] if moved else [])

    def deliver(
        self,
        event: Facts,
        builds_on: tuple[CID, ...],
        named: EventId | None,
        record: Callable[[Facts, tuple[CID, ...], EventId, int], Record],
    ) -> Record | None:
        """Deliver a new event at once, or do nothing; return its record if it is delivered.

        This is the short way, which most events take: a valid event, signed by the controller of
        its stream, on top of delivered events, and nothing waits for it. It passes all steps, so
        they need not be taken one by one.

        Args:
            event: is not badly signed.
            builds_on: its init event and its prevs; none of an init event.
            named: the EventId that it came under; None: it has none yet.
            record: makes its record, given the event, `builds_on`, its EventId and its height.
        """
        known = self._known
        is_init = event.kind is INIT
        stream = StreamRecord.of(event) if is_init else known.streams.get(event.init)
        if stream is None or event.signer != stream.controller:  # None: an expired session, perhaps
            return None
        if self._moved_by_cover or known.may_be_waited_for(event.cid):
            return None
        height = 0
        for cid in builds_on:
            base = known.checked(cid)
            if base is None or base.state is not DELIVERED or base.init != event.init:
                return None
            if cid in known.refused:
                return None
            height = max(height, base.height + 1)
        try:
            if named is None:
                named = stream.event_id(self._network, height, event.cid)
            elif named.height != height or not named.startswith(stream.prefix(self._network)):
                return None
        except EventIdError:  # which the long way finds as well
            return None
        made = record(event, builds_on, named, height)
        known.streams[stream.init] = stream
        self._completed.append((made, stream, False))
        self._give_position(made)
        known.add(made)
        return made

    def move(self, records: Iterable[Record]) -> Inquiry[None]:
        """Move held records, for which something other than an event was missing until now, then
        everything that waits for them."""
        moved = []
        for record in records:
            if (yield from self._move_held(record)):
                moved.append(record.cid)
        yield from self._settle(moved)

    def drop_orphans(self, init: CID, reason: str) -> Inquiry[None]:
        """Take out what waits for an init event that the write policy refuses.

        It is not remembered as refused, since nothing is wrong with it.
        """
        for record in (yield from self._waiters([(init, init)])):
            if record.state is ORPHAN and record.refusal is None:
                self._drop(record, Refusal(reason, temporary=True))

    def _settle(self, moved: list[CID]) -> Inquiry[None]:
        """Move everything that waits for these events, until nothing moves."""
        while below := [*moved, *self._moved_by_cover]:
            self._moved_by_cover.clear()
            moved = []
            for record in (yield from self._waiters([*map(self._known.moved, below)])):
                if (yield from self._move_held(record)):
                    moved.append(record.cid)

    def _waiters(self, moved: list[Moved]) -> Inquiry[list[Record]]:
        """Return the undelivered records that may move now, see `Known.waiters`."""
        moved = [pair for pair in moved if self._known.may_be_waited_for(pair[0])]
        if not self._known.waited_for.issuperset(moved):
            yield Want(waiters=moved)
        return self._known.waiters(moved)

    def _move_held(self, record: Record) -> Inquiry[bool]:
        """Move a held record; return whether what builds on it may now move."""
        if record.refusal is not None:
            return record.refusal.inherent
        share = share_of_record(record)
        self._marks.count(record, -1)
        moved = yield from self._climb(record)
        self._marks.count(record)
        now = share_of_record(record)
        if now is None or now is share or self._marks.taken(now).fits(self._limits[now]):
            return moved
        if not (yield from self._has_valid_waiter(record)):
            self._drop(record, no_room(now, self._limits[now]))  # it had seemed to be another kind
            return False
        return moved

    def _why_not_kept(self, record: Record, *, is_own: bool) -> Inquiry[Refusal | None]:
        """Return why a new record cannot wait for its delivery; None if there is room for it."""
        lacks_history = record.refusal is None and record.state < UNCOVERED
        if lacks_history and len(self._known.records_of(record.cid)) >= MAX_EVENT_IDS:
            return _TOO_MANY_EVENT_IDS
        share = share_of_record(record)
        if share is None or is_own or (yield from self._make_room(record, share)):
            return None
        return no_room(share, self._limits[share])

    def _make_room(self, record: Record, share: Share) -> Inquiry[bool]:
        """Return whether there is room for a new record in its share, or it needs none."""
        limit = self._limits[share]
        while not (self._marks.taken(share) + Amount(1, record.size)).fits(limit):
            if (yield from self._has_valid_waiter(record)):
                return True
            if share is not Share.UNPROVEN or not self._is_asked(record):
                return False
            if self._known.evictable is None:
                yield Want(evictable=True)
            if not self._known.evictable:
                return False
            loser, is_backed = self._known.evictable.pop()
            if loser.refusal is not None or loser.state is DELIVERED:
                continue
            if is_backed:
                self._marks.count(loser, -1)
                loser.is_backed = True
                self._marks.count(loser)
            elif not self._known.is_built_on(loser.cid):  # as by an event of this batch
                self._drop(loser, no_room(share, limit))
        return True

    def _is_asked(self, record: Record) -> bool:
        """Return whether the chain of a new time event is asked about its anchor."""
        proof = None if record.event is None else record.event.proof
        return proof is not None and (self._chains is None or proof.chain_id in self._chains)

    def _has_valid_waiter(self, record: Record) -> Inquiry[bool]:
        """Return whether a valid data event waits for a record, directly or through others."""
        stream = self._known.streams.get(record.init)
        seen: set[CID] = set()
        above = [record.cid]
        while above and stream is not None:
            waiters = yield from self._waiters([(cid, None) for cid in above])
            new = [waiter for waiter in waiters if waiter.cid not in seen]
            for waiter in new:
                is_valid = waiter.kind is DATA and waiter.fault is None
                is_own = waiter.state > ORPHAN or waiter.signer == stream.controller
                if is_valid and is_own:
                    return True
            above = [waiter.cid for waiter in new]
            seen.update(above)
        return False

    def _drop(self, record: Record, refusal: Refusal) -> None:
        """Take out a held record, without remembering it as refused."""
        self._marks.count(record, -1)
        record.refusal = refusal
        self._known.remove(record)

    def _climb(self, record: Record) -> Inquiry[bool]:
        """Take all steps that a record can; return whether what builds on it may now move."""
        start = record.state
        if record.refusal is not None:
            return record.refusal.inherent
        try:
            if record.state is ORPHAN and (stream := stream_of(self._known, record)) is not None:
                yield from check_signer(self._known, record, stream)
                check_event_id(record, stream, self._network)
                self._known.streams[stream.init] = stream
                record.state = WAITING
            if record.state is WAITING and has_whole_history(self._known, record):
                record.state = UNCOVERED
            if record.state is UNCOVERED and (yield from self._meet_cover(record)):
                record.state = PENDING
            if record.state is PENDING and self._is_deliverable(record):
                self._give_position(record)
        except FaultError as fault:
            self._refuse(record, fault.refusal)
            return fault.refusal.inherent
        except DamagedEventError as error:
            self.damaged += error.found
        if record.state is not DELIVERED:
            self._watch(record)
        return record.state > start and record.state >= UNCOVERED

    def _watch(self, record: Record) -> None:
        """Choose what a record watches: one of those that it has to wait for.

        If its author knew which one that is, they could send that one next, each time. They do not:
        `hash` is another function in each process.
        """
        if not self._known.events.issuperset(record.builds_on):
            return  # it was loaded because others build on it: a release comes back to it
        lacking = [
            cid
            for cid in record.builds_on
            if (base := self._known.checked(cid)) is None or base.state <= record.state
        ]
        if record.state is ORPHAN:
            lacking = [cid for cid in lacking if cid == record.init]
        record.watch = min(lacking or record.builds_on, key=hash, default=None)

    def _refuse(self, record: Record, refusal: Refusal) -> None:
        record.refusal = refusal
        self._known.remove(record)
        if refusal.inherent:
            self._known.refused[record.cid] = refusal.reason
        self.refused.append(record)

    def _meet_cover(self, record: Record) -> Inquiry[bool]:
        """Return whether an UNCOVERED record may be PENDING."""
        check_history(self._known, record)
        uncovered = self._uncovered_below(record)
        is_covered = record.cid in self._covered
        record.is_unproven = False
        if record.fault is not None or (self._guarded and record.is_unsigned_init):
            if not is_covered:
                return False
        elif record.kind is DATA:
            yield from self._cover(uncovered)
        elif uncovered:
            return False
        elif self._guarded and record.proof is not None and not is_covered:
            record.is_unproven = self._known.verdicts[record.proof] is None
            if record.is_unproven:
                return False
        if (stream := self._known.streams.get(record.init)) is not None:
            doubted = record.proof is not None and record.proof in self._known.doubted
            self._completed.append((record, stream, doubted))
        return True

    def _is_deliverable(self, record: Record) -> bool:
        """Return whether a PENDING record may be DELIVERED."""
        check_history(self._known, record)
        if record.proof is not None and self._known.verdicts[record.proof] is None:
            return False
        for cid in record.builds_on:
            base = self._known.checked(cid)
            if base is None or base.state is not DELIVERED:
                return False
        return True

    def _give_position(self, record: Record) -> None:
        """Give a record its feed position: the next one. It is on disk once the batch commits."""
        self._marks.head += 1
        record.position = self._marks.head
        record.state = DELIVERED

    def _uncovered_below(self, record: Record) -> list[Record]:
        bases = map(self._known.checked, record.builds_on)
        return [base for base in bases if base is not None and base.state is UNCOVERED]

    def _cover(self, uncovered: list[Record]) -> Inquiry[None]:
        """Move what a valid data event covers, from the bottom up."""
        reached: dict[CID, Record] = {}
        while uncovered:
            record = uncovered.pop()
            if record.cid not in reached:
                reached[record.cid] = record
                yield Want(events=record.builds_on)
                uncovered += self._uncovered_below(record)
        self._covered.update(reached)
        for record in sorted(reached.values(), key=lambda record: record.height):
            if (yield from self._move_held(record)):
                self._moved_by_cover.append(record.cid)


_TOO_MANY_EVENT_IDS: Final = Refusal(
    f"{MAX_EVENT_IDS} other EventIds of this event wait for its history, and at most one is right; "
    "offer it again when its history is here",
    temporary=True,
)
