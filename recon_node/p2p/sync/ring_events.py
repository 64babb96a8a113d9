"""The events of a session of the model ring: those that come, and those that the peer lacks.

Events come in whatever order. An EventId without a height says nothing of where an event stands in
its stream, so the store takes an event only when its history is here. A ceramic-one node sends a
stream's events in the order of their CIDs, which is random. So those that depend on an event that
has not come are set aside, in bounded memory, and admitted once it has.

What is still aside when a session that brought nothing new has ended is refused. An event that is
refused, for whatever reason, does not end the session: its key counts as one that the peer alone
holds (recon/ring/differences.py).

What the peer lacks is sent so that each event comes after those of its stream that it builds on. A
ceramic-one node takes events in any order, but of several with the same prev that come before it,
its feed gets only one until the node starts again.
"""

import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final, TypeAlias

import structlog
import trio

from recon_node.base.errors import unwrapped
from recon_node.ceramic import Event, EventIdError, EventKind, InvalidEventError, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, dag_cbor
from recon_node.ipld import car as car_files
from recon_node.p2p.errors import PEER_FAILURES, PeerGoneError, PeerProtocolError
from recon_node.p2p.sync.fetch import NOBODYS_FAULT, check_invalid
from recon_node.p2p.sync.sessions import Tally
from recon_node.p2p.transport.framing import ByteStream
from recon_node.p2p.transport.guarded_connection import MemoryAccount
from recon_node.recon import Failed, Fetch, FetchById, Send
from recon_node.recon.actions import Admit, SendValues, Value
from recon_node.recon.ring.differences import Exchange
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import Decoder, KeyForm, Message, encode
from recon_node.recon.ring.ring_session import Responder, RingSession
from recon_node.store import Store
from recon_node.verification.facts import Broken, Finding, Unreadable
from recon_node.verification.verifiers import MAX_BYTES_HERE

logger = structlog.get_logger(__name__)

READ_SIZE: Final = 64 * 1024
"""Bytes taken from the stream at once."""
MAX_QUEUED: Final = 1024
"""Messages and ranges that wait to be written; then reading waits as well."""

MAX_ASIDE: Final = 32 << 20
"""Bytes of events that are set aside at most; more are forgotten until the next session."""
OVERHEAD: Final = 1024
"""Bytes that such an event takes in memory beside its CAR, about."""
DEPENDENCY: Final = 600
"""The same for each event that it depends on: a CID, its places in two sets, and one of them."""
MAX_TRIES: Final = 16
"""How often an event that is set aside is tried again in the average of all that have come; if a
peer sends them in random order, it is about the logarithm of their number."""
MAX_REPEATED: Final = 1000
"""Events that a peer may send again while they are set aside."""
_PAGE: Final = 32
"""Events that are loaded at once."""
_RUN: Final = 256
"""Keys that are put in order at once; more to end with the last event of a stream."""
_MAX_RUN: Final = 4096
"""Keys of a run at most, however long a stream is."""
_CID_SIZE: Final = 36
"""Bytes of an event's CID, at the end of the keys."""


Values: TypeAlias = Callable[[bytes, bytes], AsyncGenerator[Value, None]]
"""Yields the values of our keys in a half-open range."""


@dataclass(frozen=True, slots=True)
class _Event:
    key: HeightlessEventId
    car: bytes
    depends_on: frozenset[CID]

    @property
    def size(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self.car) + OVERHEAD + DEPENDENCY * len(self.depends_on)


class RingEvents:
    """Takes and gives the events of one session."""

    def __init__(
        self, peer_id: str, store: Store, account: MemoryAccount, exchange: Exchange, ring: Ring
    ) -> None:
        self._peer_id = peer_id
        self._store = store
        self._account = account
        self._exchange = exchange
        self._ring = ring
        self._aside: dict[CID, _Event] = {}
        self._dependents: dict[CID, set[CID]] = {}
        """The events that are set aside, by what each depends on."""
        self._size = 0
        self._repeated = 0
        self._tried_again = 0
        self._invalid = 0
        self.tally = Tally()

    async def perform(self, action: Fetch | FetchById | Admit) -> Failed | None:
        """Admit some events, and those set aside that depend on them.

        Raises:
            PeerProtocolError: one of them is of another event than its key names, or set aside
                already.
            CutShortError: so many were invalid that the session ends.
            StoreError: the disk did not take them.
        """
        assert isinstance(action, Admit)  # the rings send values unasked
        events: dict[CID, _Event] = {}
        for value in action.values:
            self.tally.keys_received += 1
            self.tally.event_bytes_received += len(value.value)
            event = None if self._is_unwanted(value) else await self._read(value)
            if event is not None:
                self._repeated += event.key.event_cid in events
                events[event.key.event_cid] = event
            await trio.lowlevel.checkpoint()  # parsing an event takes up to milliseconds
        self._repeated += len(events.keys() & self._aside.keys())
        if self._repeated > MAX_REPEATED:
            raise PeerProtocolError(f"the peer sent {self._repeated} events more than once")
        events |= {event.key.event_cid: event for event in self._take_dependents(events)}
        order = TopologicalSorter({cid: event.depends_on for cid, event in events.items()})
        ordered = [events[cid] for cid in order.static_order() if cid in events]
        verdicts = await self._store.admit_from_ring([(event.key, event.car) for event in ordered])
        for event, verdict in zip(ordered, verdicts, strict=True):
            if verdict.status == "refused" and verdict.cause == "history":
                self._set_aside(event)
                continue
            if verdict.status == "new":
                self.tally.events_received += 1
            elif verdict.status == "refused":
                self._note_refused(event.key, verdict.reason, verdict.cause)
            self._exchange.note_received(event.key)
        check_invalid(self._invalid, self.tally.events_received)
        return None

    async def values(self, first: bytes, last: bytes) -> AsyncGenerator[Value, None]:
        """Yield the events of a half-open range, but those that the peer refuses or would lose."""
        for run in _runs(self._ring.keys(first, last)):
            keys = await self._in_order(self._exchange.to_send(run))
            for start in range(0, len(keys), _PAGE):
                page = keys[start : start + _PAGE]
                cids = [HeightlessEventId(key).event_cid for key in page]
                for key, car in zip(page, await self._store.reader.cars_by_cid(cids), strict=True):
                    if car is not None and _loses_fields(car):
                        self._exchange.leave_out(key)
                    elif car is not None:
                        self._exchange.note_sent(key)
                        yield Value(key, car)
                        self.tally.events_sent += 1
                        self.tally.event_bytes_sent += len(car)

    async def _in_order(self, keys: list[bytes]) -> list[bytes]:
        """Sort events so that each comes after those of its stream that it builds on."""
        cids = {key: HeightlessEventId(key).event_cid for key in keys}
        event_ids = await self._store.reader.event_ids(list(cids.values()))
        return sorted(cids, key=lambda key: (*event_ids.get(cids[key], (b"",))[:1], key))

    def end(self) -> None:
        """Refuse what is still set aside: the peer does not hold its history either.

        If others were new, it may just be getting them: then they are sent again at the next sync.
        """
        if self.tally.events_received:
            return
        for event in self._aside.values():
            self._exchange.note_received(event.key)

    def _note_refused(self, key: bytes, reason: str | None, cause: str | None) -> None:
        self._invalid += cause not in NOBODYS_FAULT
        (logger.debug if cause in NOBODYS_FAULT else logger.info)(
            "Refused an event of a peer", peer=self._peer_id, key=key.hex(), reason=reason
        )

    async def _read(self, value: Value) -> _Event | None:
        """Read an event, or refuse it."""
        try:
            key = HeightlessEventId(value.key)
            event: Event | Finding
            if len(value.value) <= MAX_BYTES_HERE:
                event = parse_event(value.value)
            else:  # a megabyte may be a million lists
                event = await self._store.read_event(value.value)
            if isinstance(event, Unreadable | Broken):
                raise InvalidEventError(event.reason)
        except (EventIdError, InvalidEventError) as error:
            self._note_refused(value.key, str(error), None)
            self._exchange.note_received(value.key)
            return None
        if event.cid != key.event_cid:
            if event.cid.digest == key.event_cid.digest:  # it is named by another codec there
                self._note_refused(value.key, f"here it is the event {event.cid}", None)
                self._exchange.note_received(value.key)
                return None
            raise PeerProtocolError(f"the peer sent {event.cid} under the key of {key.event_cid}")
        return _Event(key, value.value, frozenset((event.init, *event.prevs)) - {key.event_cid})

    def _is_unwanted(self, value: Value) -> bool:
        """Return whether the write policy refuses a value by its key. It is not read then."""
        try:
            refusal = self._store.policy.refusal(HeightlessEventId(value.key))
        except EventIdError:
            return False  # reading it says what is wrong
        if refusal is None:
            return False
        self._note_refused(value.key, refusal.reason, "policy")
        self._exchange.note_received(value.key)
        return True

    def _take_dependents(self, events: dict[CID, _Event]) -> list[_Event]:
        """Take back what is set aside and depends on some events, directly or not.

        Each is checked again, so that one with many missing events would cost time without end.
        """
        taken: list[_Event] = []
        if self._tried_again > MAX_TRIES * self.tally.keys_received:
            return taken
        left = list(events)
        while left:
            for cid in self._dependents.pop(left.pop(), ()):
                event = self._aside.pop(cid, None)
                if event is not None:
                    taken.append(event)
                    left.append(cid)
                    self._change_size(-event.size)
        self._tried_again += len(taken)
        return taken

    def _set_aside(self, event: _Event) -> None:
        if self._size + event.size > MAX_ASIDE:
            return
        self._aside[event.key.event_cid] = event
        for cid in event.depends_on:
            self._dependents.setdefault(cid, set()).add(event.key.event_cid)
        self._change_size(event.size)

    def _change_size(self, change: int) -> None:
        self._size += change
        self._account.hold("events aside", self._size)


def _runs(keys: Iterator[bytes]) -> Iterator[list[bytes]]:
    """Cut keys into runs that end with a stream: its keys are alike up to the event's CID."""
    run: list[bytes] = []
    for key in keys:
        has_ended = len(run) >= _RUN and key[:-_CID_SIZE] != run[-1][:-_CID_SIZE]
        if has_ended or len(run) >= _MAX_RUN:
            yield run
            run = []
        run.append(key)
    if run:
        yield run


class RingWire:
    """The messages of 0.1.0 on a stream, one after the other.

    Args:
        stream: the bytes.
        session: what the peer makes us hold is charged to it.
        keys: how the ring writes keys.
        values: yields the values of keys that the peer lacks.
        hold: charges the peer with the bytes that it makes us hold, or raises one of
            `PEER_FAILURES` if they are too many.
        idle_timeout: seconds in which the peer must send or take something.
        sync_id: the session's id, which the initiator chooses; the responder echoes the peer's.
    """

    def __init__(
        self,
        stream: ByteStream,
        session: RingSession,
        keys: KeyForm,
        values: Values,
        hold: Callable[[int], None],
        idle_timeout: float,
        sync_id: str | None = None,
    ) -> None:
        self._stream = stream
        self._session = session
        self._keys = keys
        self._values = values
        self._hold = hold
        self._idle_timeout = idle_timeout
        self._sync_id = sync_id
        self._decoder = Decoder(keys, from_initiator=isinstance(session, Responder))
        self._arrived: Iterator[Message] = iter(())
        self._queue, self._queued = trio.open_memory_channel[Send[Message] | SendValues](MAX_QUEUED)
        self._idle = trio.CancelScope()
        """Ends the session when the peer has neither sent nor taken anything for a while."""
        self._waits_for_peer = False
        """Whether it is the peer that takes its time, not this node."""
        self._sent = self._received = 0
        """Bytes of the session."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Carry messages while the block runs; wait until what was sent is written."""
        # The stream may be lost as the node stops: then one task fails and the other is cancelled.
        with unwrapped(*PEER_FAILURES, trio.Cancelled), self._idle:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                async with self._queue:
                    yield
                    self._charge()
                    self._waits_for_peer = True
                    self._note_progress()
        if self._idle.cancelled_caught:
            raise PeerProtocolError(
                f"the peer neither sent nor took anything for {self._idle_timeout:g} s"
            )

    def traffic(self) -> tuple[int, int]:
        """Return how many bytes the session has sent, and how many it has received."""
        return self._sent, self._received

    async def receive(self) -> Message | None:
        """Return the peer's next message; None at the end of the stream."""
        while (message := next(self._arrived, None)) is None:
            self._charge()
            with self._peers_turn():
                data = await self._stream.receive_some(READ_SIZE)
            if not data:
                if self._decoder.buffered:
                    raise PeerGoneError("the peer ended the stream within a message")
                return None
            self._received += len(data)
            self._arrived = self._decoder.feed(data)
        return message

    async def send(self, action: Send[Message] | SendValues) -> None:
        """Have messages, or the values of a range, sent after what is queued already."""
        with self._peers_turn():
            await self._queue.send(action)

    @contextmanager
    def _peers_turn(self) -> Iterator[None]:
        """Hold the time that the block takes against the peer."""
        self._waits_for_peer = True
        self._note_progress()
        yield
        self._waits_for_peer = False
        self._note_progress()

    async def _write(self) -> None:
        async with self._queued:
            async for action in self._queued:
                if isinstance(action, Send):
                    for message in action.messages:
                        await self._send(message)
                else:
                    async with aclosing(self._values(action.first, action.last)) as values:
                        async for value in values:
                            await self._send(value)

    async def _send(self, message: Message) -> None:
        data = encode(message, self._keys, self._sync_id or self._decoder.sync_id)
        await self._stream.send_all(data)
        self._sent += len(data)
        self._note_progress()

    def _charge(self) -> None:
        self._hold(self._decoder.buffered + self._session.held)

    def _note_progress(self) -> None:
        patience = self._idle_timeout if self._waits_for_peer else math.inf
        self._idle.deadline = trio.current_time() + patience


_OLD_PROOF: Final = frozenset({"blockNumber", "blockTimestamp"})
_NULLABLE: Final = ("nbf", "exp", "statement", "requestId", "m")
_SIGNS: Final = re.compile(
    b"|".join(
        re.escape(sign)
        for sign in (
            *map(dag_cbor.encode, sorted(_OLD_PROOF)),
            *(dag_cbor.encode(name) + dag_cbor.encode(None) for name in _NULLABLE),
        )
    )
)
"""What such an event has in its bytes; hardly any other has it."""


def _loses_fields(car: bytes) -> bool:
    """Whether a ceramic-one node would read the event, but drop some of it before it stores it.

    It stores the blocks of an event as it encodes them again, without fields that it does not know
    or that are null. A block without such a field does not match its CID. Then all values of its
    batch are lost, not this one alone, and the session ends; the next one would send the same
    batch. So valid events would never arrive. Nodes of our own kind take two sorts of such events:
    anchors whose proof has the fields of proofs of before 2023 beside a `txType`, and events under
    a capability in which a field is null.
    """
    if _SIGNS.search(car) is None:
        return False
    try:
        event = parse_event(car)
    except InvalidEventError:  # damaged on disk: the peer refuses it by itself
        return False
    return _in_proof(event) if event.kind is EventKind.TIME else _in_capability(event)


def _in_proof(event: Event) -> bool:
    proof = dag_cbor.decode(car_files.decode(event.car).blocks[event.payload["proof"]])
    return "txType" in proof and not _OLD_PROOF.isdisjoint(proof)


def _in_capability(event: Event) -> bool:
    if event.capability is None:
        return False
    capability = dag_cbor.decode(event.capability)
    parts = [part for part in capability.values() if type(part) is dict]
    return any(value is None for part in parts for value in part.values())
