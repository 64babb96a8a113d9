"""Connections and streams between simulated nodes: a `PeerHost` without libp2p.

Dialling, opening a stream and identifying take the round trips that libp2p takes for TCP, Noise,
Yamux and multistream-select, and about its bytes. A dead connection is noticed as there: at once if
the peer's machine answers, by its pings if nothing comes through.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Final

import trio

from benchmarks.simulate.wire import Lane, Place, Wire, round_trip
from recon_node.p2p import P2PSettings, PeerError
from recon_node.p2p.transport.addresses import host_of
from recon_node.p2p.transport.framing import PeerStream
from recon_node.p2p.transport.guarded_connection import MemoryBudget, OverBudgetError
from recon_node.p2p.transport.host import Host, StreamHandler

DIAL_ROUND_TRIPS: Final = 6
"""TCP, then multistream-select and Noise, then multistream-select for Yamux."""
IDENTIFY_ROUND_TRIPS: Final = 3
DIAL_BYTES: Final = 1500
"""What each side sends for that, about; also for identify."""
NEGOTIATION_BYTES: Final = 24
"""What each side sends to open a stream, beside the protocol id."""
PING_BYTES: Final = 60
"""What each side sends in a ping interval, for its own ping and to answer the peer's."""
DIALS: Final = "dial"
PINGS: Final = "ping"
DHT_TRAFFIC: Final = "dht"
RESERVED: Final = 4
"""One of so many connections is reserved for those that a node opens itself."""
OVERHEAD: Final = 30
"""Bytes that Yamux and Noise add to a write."""
AHEAD: Final = 0.05
"""Seconds for which data may wait in the line's buffer before a writer has to wait."""

_numbers: Final = count()


class ConnectionEnd:
    """A connection, as one of the two nodes has it."""

    def __init__(self, host: SimulatedHost, peer: SimulatedHost, *, dialled: bool) -> None:
        self.host = host
        self.peer = peer
        self.dialled = dialled
        self.lane = Lane(host.place, peer.place)
        self.other: ConnectionEnd
        self.is_open = True
        self.since = trio.current_time()
        self.streams: dict[int, SimulatedStream] = {}
        self.identified = trio.Event()
        self.account = host.budget.account(peer.peer_id, peer.ip, self.close)
        self.unread = 0

    def carry(self, kind: str, size: int, action: Callable[[], None]) -> float:
        """Send bytes to the other end; they count as that kind of traffic."""
        self.host.traffic[kind] += size
        return self.host.wire.carry(self.lane, size, action)

    def hold_unread(self, more: int) -> None:
        """Note that more or fewer bytes wait to be read; cut the connection if it is too much."""
        self.unread += more
        try:
            self.account.hold("unread", self.unread)
        except OverBudgetError:
            self.close()

    def close(self) -> None:
        """Close the connection; the other end notices as soon as it can."""
        if self.is_open:
            self.is_open = False
            self.host.forget(self)
            self.account.close()
            for stream in list(self.streams.values()):
                stream.lose()
            self.carry("close", 0, self.other.close)


class SimulatedHost:
    """The connections of one node.

    Args:
        wire: carries everything.
        place: where this node is.
        peer_id: its peer id.
        others: all hosts by their IP address.
        settings: limits and timeouts.
        rng: draws when a node notices a partition.
    """

    def __init__(
        self,
        wire: Wire,
        place: Place,
        peer_id: str,
        others: dict[str, SimulatedHost],
        settings: P2PSettings,
        rng: random.Random,
    ) -> None:
        self.wire = wire
        self.place = place
        self.peer_id = peer_id
        number = place.number
        self.ip = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.addresses = [f"/ip4/{self.ip}/tcp/4101/p2p/{peer_id}"]
        self.traffic = Counter[str]()
        """Bytes sent, by protocol id, with libp2p's overhead."""
        self.settings = settings
        self.budget = MemoryBudget(settings.max_peer_memory)
        self._random = rng
        self._others = others
        self._ends: dict[str, ConnectionEnd] = {}
        self._handlers: dict[str, StreamHandler] = {}
        self._on_identified: list[Callable[[str, list[str]], None]] = []
        self._dials: dict[str, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        others[self.ip] = self

    def start(self, nursery: trio.Nursery) -> None:
        """Accept connections; streams are served in the nursery."""
        self._nursery = nursery

    def stop(self) -> None:
        """End as a process does whose machine goes on: peers notice at once."""
        self._nursery = None
        for end in list(self._ends.values()):
            end.close()
        self._handlers.clear()
        self._on_identified.clear()

    @property
    def own_protocols(self) -> frozenset[str]:
        return frozenset(self._handlers)

    def connected_peers(self) -> list[str]:
        return list(self._ends)

    def is_connected(self, peer_id: str) -> bool:
        return peer_id in self._ends

    def is_on_this_machine(self, peer_id: str) -> bool:
        return False

    elsewhere = Host.elsewhere

    def address_block(self, peer_id: str) -> str:
        """Return that of its address: each has its own."""
        return peer_id

    def has_dialled(self, peer_id: str) -> bool:
        end = self._ends.get(peer_id)
        return end is not None and end.dialled

    def has_streams(self, peer_id: str) -> bool:
        end = self._ends.get(peer_id)
        return end is not None and bool(end.streams)

    def note_supply(self, peer_id: str) -> None:
        """Do nothing: the places are not limited here."""

    def latency(self, peer_id: str) -> float | None:
        end = self._ends.get(peer_id)
        return None if end is None else 2 * end.lane.latency

    def known_protocols(self, peer_id: str) -> frozenset[str]:
        end = self._ends.get(peer_id)
        known = end is not None and end.identified.is_set()
        return end.peer.own_protocols if known and end is not None else frozenset()

    def known_agent(self, peer_id: str) -> tuple[str, str]:
        return "", ""

    async def protocols_of(self, peer_id: str) -> frozenset[str]:
        if (end := self._ends.get(peer_id)) is not None:
            with trio.move_on_after(self.settings.dial_timeout):
                await end.identified.wait()
                return end.peer.own_protocols
        raise PeerError(f"peer {peer_id} did not answer an identify request with its protocols")

    def on_identified(self, callback: Callable[[str, list[str]], None]) -> None:
        self._on_identified.append(callback)

    def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def connect(self, address: str, *, anew: bool = False) -> str:
        place, _, peer_id = address.partition("/p2p/")
        if peer_id == self.peer_id:
            raise PeerError(f"{address} is this node's own address")
        while (dial := self._dials.get(peer_id)) is not None:
            await dial.wait()
        if peer_id in self._ends:
            return peer_id
        self._dials[peer_id] = trio.Event()
        try:
            await self._dial(self._others.get(host_of(place) or ""), peer_id)
        finally:
            self._dials.pop(peer_id).set()
        return peer_id

    async def disconnect(self, peer_id: str) -> None:
        if (end := self._ends.get(peer_id)) is not None:
            end.close()

    async def open_stream(self, peer_id: str, *protocols: str) -> SimulatedStream:
        end = self._ends.get(peer_id)
        if end is None:
            raise PeerError(f"this node is not connected to peer {peer_id}")
        protocol = next(
            (protocol for protocol in protocols if protocol in end.peer._handlers), None
        )
        opened = trio.Event()
        asked = protocols if protocol is None else protocols[: protocols.index(protocol) + 1]
        ours = SimulatedStream(end, protocol or "", self.budget)
        size = NEGOTIATION_BYTES + sum(map(len, asked))
        end.carry(ours.protocol, size, partial(end.peer.accept_stream, ours, size, opened.set))
        with trio.move_on_after(self.settings.dial_timeout):
            await opened.wait()
        if not opened.is_set() or protocol is None or not end.is_open:
            await ours.reset()
            raise PeerError(f"cannot open a {' or '.join(protocols)} stream to peer {peer_id}")
        return ours

    def accept_stream(self, theirs: SimulatedStream, size: int, opened: Callable[[], None]) -> None:
        """Take a stream that a peer opens, one round trip before it knows."""
        handler = self._handlers.get(theirs.protocol)
        end = theirs.end.other
        if not end.is_open or self._nursery is None:
            return
        # Both sides take two turns; the last one to speak is the one that accepts.
        answer = partial(end.carry, theirs.protocol, size, opened)
        self.wire.after(2 * end.lane.latency, answer)
        if handler is not None and self._nursery is not None:
            ours = SimulatedStream(end, theirs.protocol, self.budget)
            ours.join(theirs)
            self._nursery.start_soon(self._serve, handler, ours)

    async def _serve(self, handler: StreamHandler, stream: SimulatedStream) -> None:
        try:
            await handler(stream)
        except BaseException:
            await stream.reset()
            raise
        await stream.aclose()

    async def _dial(self, target: SimulatedHost | None, peer_id: str) -> None:
        unanswered = target is None or self.wire.is_cut(self.place, target.place)
        if unanswered or target is None:
            await trio.sleep(self.settings.dial_timeout)
            raise PeerError(f"peer {peer_id} did not answer")
        trip = round_trip(self.place, target.place)
        await trio.sleep(trip)
        if not target.has_room():
            raise PeerError(f"peer {peer_id} refused the connection")
        await trio.sleep((DIAL_ROUND_TRIPS - 1) * trip)
        if peer_id in self._ends:  # it has dialled us meanwhile
            return
        if not target.has_room() or self.wire.is_cut(self.place, target.place):
            raise PeerError(f"peer {peer_id} did not answer")
        ours = ConnectionEnd(self, target, dialled=True)
        theirs = ConnectionEnd(target, self, dialled=False)
        ours.other, theirs.other = theirs, ours
        for end in (ours, theirs):
            end.host._ends[end.peer.peer_id] = end
            end.carry(DIALS, DIAL_BYTES, lambda: None)
            self.wire.after(IDENTIFY_ROUND_TRIPS * trip, partial(end.host._identify, end))

    def has_room(self) -> bool:
        """Return whether this node takes another inbound connection."""
        limit = self.settings.max_connections
        return self._nursery is not None and len(self._ends) < limit - limit // RESERVED

    def forget(self, end: ConnectionEnd) -> None:
        """Take a connection out that was closed."""
        self._count_pings(end)
        if self._ends.get(end.peer.peer_id) is end:
            del self._ends[end.peer.peer_id]

    def count(self, kind: str, size: int) -> None:
        """Count bytes that are not sent on the simulated wire."""
        self.place.sent += size
        self.traffic[kind] += size

    def count_pings(self) -> None:
        """Count the pings of all connections until now."""
        for end in self._ends.values():
            self._count_pings(end)

    def _count_pings(self, end: ConnectionEnd) -> None:
        seconds, end.since = trio.current_time() - end.since, trio.current_time()
        self.count(PINGS, round(PING_BYTES * seconds / self.settings.connection.ping_interval))

    def notice_partition(self) -> None:
        """Close, in time, the connections that a partition has cut."""
        limits = self.settings.connection
        for end in list(self._ends.values()):
            if self.wire.is_cut(self.place, end.peer.place):
                wait = limits.ping_timeout + self._random.uniform(0.0, limits.ping_interval)
                self.wire.after(wait, partial(self._close_if_cut, end))

    def _close_if_cut(self, end: ConnectionEnd) -> None:
        if self.wire.is_cut(self.place, end.peer.place):
            end.close()

    def _identify(self, end: ConnectionEnd) -> None:
        if end.is_open:
            end.identified.set()
            for callback in self._on_identified:
                callback(end.peer.peer_id, list(end.peer.addresses))


class SimulatedStream(PeerStream):
    """One end of a stream, with all that is seen of a `PeerStream`.

    Args:
        end: the connection that it is on.
        protocol: its protocol id.
        budget: charged for what is held because of it.
    """

    def __init__(self, end: ConnectionEnd, protocol: str, budget: MemoryBudget) -> None:
        self.end = end
        self.protocol = protocol
        self.peer_id = end.peer.peer_id
        self.address = end.peer.ip
        self.account = budget.account(self.peer_id)
        self.other: SimulatedStream | None = None
        self._number = next(_numbers)
        self._buffer = bytearray()
        self._ended = False
        self._at_end = False
        self._was_reset = False
        self._under_way = 0
        """Bytes that we sent and the peer has not read."""
        self._moved = trio.lowlevel.ParkingLot()
        end.streams[self._number] = self

    def join(self, other: SimulatedStream) -> None:
        """Make this and another one the two ends of a stream."""
        self.other, other.other = other, self

    @property
    def is_open(self) -> bool:
        return not (self._ended or self._at_end or self._was_reset)

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer:
            if self._was_reset:
                raise trio.BrokenResourceError("the peer reset the stream")
            if self._at_end or self._ended:
                return b""
            await self._moved.park()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self.end.hold_unread(-len(data))
        if self.other is not None:
            self.other._note_read(len(data))
        return data

    async def send_all(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        window = self.end.host.settings.connection.max_window
        while self._under_way and self._under_way + len(data) > window:
            self._check_open()
            await self._moved.park()
        self._check_open()
        self._under_way += len(data)
        sent_at = self._carry(len(data) + OVERHEAD, lambda other: other._take(data))
        if sent_at > trio.current_time() + AHEAD:
            await trio.sleep_until(sent_at - AHEAD)

    async def aclose(self) -> None:
        if not self._ended:
            self._leave()
            self._carry(OVERHEAD, SimulatedStream._take_end)

    async def reset(self) -> None:
        if not self._ended:
            self._leave()
            self._carry(OVERHEAD, SimulatedStream._take_reset)

    def lose(self) -> None:
        """The connection is gone, which looks like the end of the stream."""
        self._at_end = True
        self._moved.unpark_all()

    def _check_open(self) -> None:
        if self._ended or self._was_reset or not self.end.is_open:
            raise trio.BrokenResourceError("the peer reset the stream")

    def _leave(self) -> None:
        self._ended = True
        self.end.streams.pop(self._number, None)
        if self._buffer and self.end.is_open:
            self.end.hold_unread(-len(self._buffer))
        self._buffer.clear()
        self.account.close()
        self._moved.unpark_all()

    def _carry(self, size: int, act: Callable[[SimulatedStream], None]) -> float:
        if not self.end.is_open:
            return 0.0
        return self.end.carry(self.protocol, size, partial(self._to_other, act))

    def _to_other(self, act: Callable[[SimulatedStream], None]) -> None:
        if self.other is not None:  # else the peer has not taken the stream
            act(self.other)

    def _take(self, data: bytes) -> None:
        if not self._ended and self.end.is_open:
            self._buffer += data
            self.end.hold_unread(len(data))
            self._moved.unpark_all()
        elif self.other is not None:
            self.other._note_read(len(data))

    def _take_end(self) -> None:
        self._at_end = True
        self._moved.unpark_all()

    def _take_reset(self) -> None:
        self._was_reset = True
        self._moved.unpark_all()

    def _note_read(self, size: int) -> None:
        self._under_way -= size
        self._moved.unpark_all()
