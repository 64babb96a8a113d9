"""How an event climbs from its arrival to the feed.

    ORPHAN   --init event here, signed by the controller, EventId of that stream--> WAITING
    WAITING  --all it builds on is wholly checked, the height is right-----------> PENDING
    PENDING  --all it builds on is delivered; a time event's anchor is looked up-> DELIVERED

One step at a time. An event that climbed may let those climb that build on it, and so on until
nothing moves: an event is delivered as soon as its history is whole, in whichever order its parts
came.

A step that fails refuses the EventId for good. Most faults lie in the EventId (a wrong height, say)
and leave the event free to come under the right one: what builds on it keeps waiting. Some lie in
the event itself (*inherent*): then all that builds on it is refused, too.

Nodes that got the same events must end with the same keys, in whichever order they came. An event
may have several faults, and whether an inherent one is among those that are found must not depend
on what came first. So each fault is looked for on one step, in one order there: what the event and
its EventId alone can tell, then its init event, then the rest of what it builds on, of which only
that counts which is wholly checked or refused for good.

A time event is checked offline (hashes, and the path from the proof's root) and then stays PENDING,
held and handed to peers, until its anchor was looked up (`store.db.proofs`): with the time
of its block it goes on, and what builds on it; if the transaction turns out to say something else,
both are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from recon_node.ceramic import EventIdError, EventKind, Network, StreamId, parse_event
from recon_node.ipld import CID
from recon_node.store.admission.authority import unauthorised
from recon_node.store.admission.history import History
from recon_node.store.admission.records import Record, Refusal, State, Stream
from recon_node.store.damage.detection import Damage, DamagedEventError


@dataclass(slots=True)
class Marks:
    """Where the log stands; each batch moves it on."""

    head: int
    """The last feed position given."""
    row: int
    """The last row id given."""
    waiting: int
    """Records below PENDING."""
    waiting_bytes: int
    """The size of their CARs."""


@dataclass(frozen=True, slots=True)
class WaitingRoom:
    """How much may be below PENDING."""

    events: int
    size: int
    """Bytes of CARs."""


class _FaultError(Exception):
    """A step that failed."""

    def __init__(self, reason: str, *, inherent: bool = False) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason, inherent)


class Ladder:
    """The records of one batch, and of what waits for it, on their way up.

    Args:
        history: what is known around the batch.
        marks: where the log stands; moved on here.
        network: of the node.
        room: how much may be below PENDING.
    """

    def __init__(self, history: History, marks: Marks, network: Network, room: WaitingRoom) -> None:
        self._history = history
        self._marks = marks
        self._network = network
        self._room = room
        self.refused: list[Record] = []
        """What was proven wrong, new or held before, in order."""
        self.damaged: list[Damage] = []
        """What could not be read: records that need it stay where they are until it is mended."""

    def enter(self, record: Record, fault: Refusal | None = None) -> None:
        """Let a new record climb, then all that waits for it; or refuse it for `fault`."""
        if fault is not None:
            self._refuse(record, fault)
        moved = self._climb(record)
        if record.refusal is None:
            if record.state < State.PENDING:
                record.refusal = self._no_room(record)
                if record.refusal is not None:
                    return
                self._marks.waiting += 1
                self._marks.waiting_bytes += self._history.size(record)
            self._history.add(record)
        if moved:
            self._settle([record.cid])

    def resume(self, records: Iterable[Record]) -> None:
        """Let held records climb for which something else than an event was missing."""
        self._settle([record.cid for record in records if self._climb_on(record)])

    def _settle(self, moved: list[CID]) -> None:
        """Let everything climb that waits for these events, until nothing moves."""
        while moved:
            self._history.load_waiters(moved)
            waiters = self._history.waiters(moved)
            moved = [record.cid for record in waiters if self._climb_on(record)]

    def _climb_on(self, record: Record) -> bool:
        """Let a held record climb; return whether what builds on it may now move."""
        waited = record.state < State.PENDING
        moved = self._climb(record)
        if waited and (record.refusal is not None or record.state >= State.PENDING):
            self._marks.waiting -= 1
            self._marks.waiting_bytes -= self._history.size(record)
        return moved

    def _no_room(self, record: Record) -> Refusal | None:
        waiting, size = self._marks.waiting, self._marks.waiting_bytes
        if waiting < self._room.events and size + self._history.size(record) <= self._room.size:
            return None
        return Refusal(
            f"{waiting} events of {size} bytes wait for their history already, and this one would, "
            "too: offer it again when its prevs are here",
            passing=True,
        )

    def _climb(self, record: Record) -> bool:
        """Climb as far as it goes; return whether what builds on the record may now move."""
        start = record.state
        if record.refusal is not None:
            return record.refusal.inherent
        try:
            while (step := _STEPS.get(record.state)) is not None and step(self, record):
                record.state = State(record.state + 1)
        except _FaultError as fault:
            self._refuse(record, fault.refusal)
            return fault.refusal.inherent
        except DamagedEventError as error:
            self.damaged += error.found
        return record.state > start and record.state >= State.PENDING

    def _refuse(self, record: Record, refusal: Refusal) -> None:
        record.refusal = refusal
        self._history.remove(record)
        if refusal.inherent:
            self._history.refused[record.cid] = refusal.reason
        self.refused.append(record)

    # The steps: True when the record may stand on the next state, False when it must wait.

    def _meet_stream(self, record: Record) -> bool:
        """ORPHAN to WAITING."""
        height = record.height
        if (height == 0) is not (record.kind is EventKind.INIT):
            raise _FaultError(
                f"its EventId has the height {height}: 0 is the init event's, and only its"
            )
        if record.event_id.stream != record.init[-4:]:
            raise _FaultError(f"its EventId is of another stream than its init event {record.init}")
        stream = self._stream_of(record)
        if stream is None:
            self._check_base(record, record.init)
            return False
        self._check_signer(record, stream)
        self._check_event_id(record, stream, height)
        self._history.add_stream(stream)
        return True

    def _meet_history(self, record: Record) -> bool:
        """WAITING to PENDING."""
        self._check_history(record)
        height = 0
        whole = True
        for cid in record.builds_on:
            base = self._history.checked(cid)
            if base is None:
                whole = False
            else:
                height = max(height, base.height + 1)
        if whole and record.height != height:
            raise _FaultError(f"its EventId has the height {record.height}, not {height}")
        return whole

    def _deliver(self, record: Record) -> bool:
        """PENDING to DELIVERED: the record takes its place in the feed."""
        self._check_history(record)
        if record.proof is not None and self._history.verdict(record.proof) is None:
            return False
        for cid in record.builds_on:
            base = self._history.checked(cid)
            if base is None or base.state is not State.DELIVERED:
                return False
        self._marks.head += 1
        record.position = self._marks.head
        return True

    # The checks of the steps.

    def _stream_of(self, record: Record) -> Stream | None:
        if record.kind is not EventKind.INIT:
            return self._history.stream(record.init)
        assert record.event is not None, "an init event waits for nothing"
        return Stream.of(record.event)

    def _check_signer(self, record: Record, stream: Stream) -> None:
        # Its signature was checked against its signer's key before it came here, and that of an
        # init event against its controller.
        if record.kind is not EventKind.DATA or record.signer == stream.controller:
            return
        event = parse_event(self._history.car(record))
        fault = unauthorised(event, stream.controller, stream.model or self._model(stream))
        if fault is not None:
            raise _FaultError(fault.reason, inherent=fault.inherent)

    def _model(self, stream: Stream) -> StreamId | None:
        init = self._history.checked(stream.init)
        assert init is not None, "a stream is known by its init event"
        header = parse_event(self._history.car(init)).header
        assert header is not None, "an init event has a header"
        return header.model

    def _check_event_id(self, record: Record, stream: Stream, height: int) -> None:
        try:
            right = stream.event_id(self._network, height, record.cid)
        except EventIdError as error:
            raise _FaultError(str(error)) from None
        if right != record.event_id:
            raise _FaultError(
                f"its EventId is {record.event_id}; by the stream's sort value and controller it "
                f"would be {right}"
            )

    def _check_base(self, record: Record, cid: CID) -> None:
        """Refuse an event for what one of those that it builds on is."""
        reason = self._history.refused.get(cid)
        if reason is not None:
            raise _FaultError(_inherited(cid, reason), inherent=True)
        base = self._history.checked(cid)
        if base is not None and base.init != record.init:
            raise _FaultError(f"it builds on {cid}, which is of another stream", inherent=True)

    def _check_history(self, record: Record) -> None:
        """Refuse an event for what it builds on, and a time event for what its transaction says."""
        for cid in record.builds_on:
            self._check_base(record, cid)
        if record.proof is not None:
            verdict = self._history.verdict(record.proof)
            if isinstance(verdict, Refusal):
                raise _FaultError(verdict.reason, inherent=True)


def _inherited(cid: CID, reason: str) -> str:
    """The reason for refusing what builds on `cid`; it does not grow along a chain of events."""
    if reason.startswith("it builds on "):
        return reason
    return f"it builds on {cid}, which was refused: {reason}"


_STEPS: dict[State, Callable[[Ladder, Record], bool]] = {
    State.ORPHAN: Ladder._meet_stream,
    State.WAITING: Ladder._meet_history,
    State.PENDING: Ladder._deliver,
}
