"""Interest gossip: both sides of a connection state their interests, at once and on change.

Every node opens a stream to every connected peer that speaks `INTERESTS_PROTOCOL`, and sends a
statement of its interests (`interest_statement`) on it, and another one whenever they change. The
peer does not answer. A statement counts as long as its stream is open, and so only from the peer at
the other end of a secured connection: it need not be signed.

Who syncs when interests change
-------------------------------
The side that has changed its mind starts the sync about what is newly common, because it lacks the
events. It does so when it sends its statement, provided that it knows the other's. If both changed
at once, their statements cross, and neither side knew that the range was common when it sent its
own. Each side sees this from the digest in the statement that arrives, which is not that of its own
latest one. Then the side with the smaller peer id starts the sync.

Limits: one stream and one statement of bounded size for each peer, and a token bucket of bytes: a
node reads no faster than that, so that flow control slows down a peer that sends more. A stream
has a bucket of its own, but what comparing ranges takes is counted by address.
"""

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from recon_node.base.errors import unwrapped
from recon_node.fairness.pacing import Backoff
from recon_node.fairness.slots import TokenBucket
from recon_node.p2p.context import Context
from recon_node.p2p.errors import (
    BROKEN_PROTOCOL,
    MISBEHAVED,
    PEER_FAILURES,
    PeerError,
    describe_error,
)
from recon_node.p2p.peers.interest_statement import (
    INTERESTS_PROTOCOL,
    MAX_STATEMENT,
    MEMORY_PER_PREFIX,
    NOTHING_KNOWN,
    InterestStatement,
    decode,
    state,
)
from recon_node.p2p.transport.framing import PeerFrames, PeerStream
from recon_node.recon import KeyRange, intersect_ranges, subtract_ranges

logger = structlog.get_logger(__name__)

GATHER: Final = 0.05
"""Seconds for which changes are gathered into one statement."""
BURST: Final = 3 * MAX_STATEMENT
"""Bytes of statements that a peer may send at once."""
RATE: Final = 4096.0
"""Bytes of statements that a peer may send each second in the long run."""
BASE_COST: Final = 256
"""Bytes that are added to the size of each statement."""
STATEMENT_COST: Final = 20_000
"""What it takes to read a statement, in looks at a key (`key_rate_limit`)."""
RANGE_COST: Final = 300
"""What it takes to compare a range of either side with those of the other."""
STATEMENT_TIMEOUT: Final = 5.0
"""Seconds for which a sync waits for the statement of a peer that speaks the protocol."""
REOPEN_BACKOFF: Final = Backoff(first=1.0, longest=60.0)
"""The waits before the stream to a connected peer is opened again."""
SETTLED: Final = 60.0
"""Seconds after which a stream that ends does not count as a failure."""


def _pause_after(bucket: TokenBucket, statement: bytes) -> float:
    """Take a statement's size from a bucket; return for how many seconds no other may pass."""
    now = trio.current_time()
    bucket.spend(BASE_COST + len(statement), now)
    return bucket.seconds_until(0, now)


@dataclass(slots=True)
class _Sender:
    """The task that sends a peer our interests."""

    again: trio.Event = field(default_factory=trio.Event)
    """Ends the wait before the next try."""
    statement: InterestStatement | None = None
    """The latest one that was sent, without what we knew then."""
    ranges: Sequence[KeyRange] = ()
    """What it was about."""


class InterestGossip:
    """Announces our interests to connected peers, and notes theirs in the book.

    Register `serve` with the host, and call `meet` with each peer that has identified itself.
    `on_common` is called with a peer and ranges that are now of common interest, when it is up to
    this node to start a sync about them. The tasks that send statements run in `nursery`.
    `pay` counts what is computed for an address, and waits until more may be.
    """

    def __init__(
        self,
        context: Context,
        on_common: Callable[[str, Sequence[KeyRange]], None],
        nursery: trio.Nursery,
        pay: Callable[[str, float], Awaitable[None]],
    ) -> None:
        self._host, self._book = context.host, context.book
        self._settings, self.counters = context.settings, context.counters
        self._network, self._wanted = context.store.network, context.store.wanted
        self._on_common = on_common
        self._nursery = nursery
        self._pay = pay
        self._senders: dict[str, _Sender] = {}
        self._listening: dict[str, trio.CancelScope] = {}
        self._digests: dict[str, bytes] = {}
        """The digests of the peers' latest statements, while their streams are open."""
        self._arrivals = trio.lowlevel.ParkingLot()

    def meet(self, peer_id: str) -> None:
        """Send a connected peer our interests from now on, if it speaks the protocol."""
        if INTERESTS_PROTOCOL not in self._host.known_protocols(peer_id):
            return
        if (sender := self._senders.get(peer_id)) is not None:
            sender.again.set()
            return
        self._senders[peer_id] = _Sender()
        self._nursery.start_soon(self._keep_sending, peer_id)

    async def wait_for_interests(self, peer_id: str) -> None:
        """Wait until the interests of a connected peer are known, or `STATEMENT_TIMEOUT` passes.

        Does not wait for a peer that does not speak the protocol.
        """
        with trio.move_on_after(STATEMENT_TIMEOUT):
            try:
                speaks = await self._host.protocols_of(peer_id)
            except PeerError:  # it does not say
                return
            while INTERESTS_PROTOCOL in speaks and peer_id not in self._digests:
                await self._arrivals.park()

    async def serve(self, stream: PeerStream) -> None:
        """Take the statements that a peer sends. Its latest stream replaces the one before it."""
        peer_id = stream.peer_id
        if (earlier := self._listening.get(peer_id)) is not None:
            earlier.cancel()
        with trio.CancelScope() as scope:
            self._listening[peer_id] = scope
            try:
                await self._listen(stream)
            except PEER_FAILURES as error:
                logger.info(
                    "Interests of a peer ended early", peer=peer_id, reason=describe_error(error)
                )
                if isinstance(error, BROKEN_PROTOCOL):
                    self._book.failed(peer_id, severity=MISBEHAVED)
                await stream.reset()
            finally:
                if self._listening.get(peer_id) is scope:
                    del self._listening[peer_id]
                    self._digests.pop(peer_id, None)
                    self.counters.peers_stating = len(self._digests)
                    self._book.no_longer_states(peer_id)
        if scope.cancelled_caught:
            await stream.reset()

    async def _listen(self, stream: PeerStream) -> None:
        frames = PeerFrames(stream, MAX_STATEMENT)
        bucket = TokenBucket(BURST, RATE, trio.current_time())
        patience = self._settings.idle_timeout
        until_begun = patience
        while await frames.wait_for_frame(until_begun):
            data = await frames.receive(patience)
            if data is None:
                return
            statement = decode(data)
            stream.account.hold("interests", MEMORY_PER_PREFIX * len(statement.prefixes))
            compared = len(statement.prefixes) + len(self._wanted.ranges)
            await self._pay(stream.address, STATEMENT_COST + RANGE_COST * compared)
            self._take(stream.peer_id, statement)
            await trio.sleep(_pause_after(bucket, data))
            until_begun = math.inf

    def _take(self, peer_id: str, statement: InterestStatement) -> None:
        """Note what a peer states; sync about what is new if that is up to us."""
        self.counters.statements_received += 1
        is_first = peer_id not in self._digests  # the dialler syncs about everything anyway
        self._digests[peer_id] = statement.digest
        self.counters.peers_stating = len(self._digests)
        if statement.network_id == self._network.id:  # else the first session says what is wrong
            before = self._book.interests(peer_id)
            ranges = statement.ranges(self._network)
            self._book.states(peer_id, ranges)
            if not is_first and self._crossed(peer_id, statement):
                self._sync_about(peer_id, subtract_ranges(ranges, before), self._wanted.ranges)
        self._arrivals.unpark_all()

    def _crossed(self, peer_id: str, statement: InterestStatement) -> bool:
        """Return whether statements crossed, and it is up to us to sync."""
        sender = self._senders.get(peer_id)
        if sender is None or sender.statement is None:
            return False
        return statement.known != sender.statement.digest and self._host.peer_id < peer_id

    def _sync_about(
        self, peer_id: str, new: Sequence[KeyRange], others: Sequence[KeyRange]
    ) -> None:
        if common := intersect_ranges(new, others):
            self._on_common(peer_id, common)

    async def _keep_sending(self, peer_id: str) -> None:
        sender = self._senders[peer_id]
        failures = 0
        try:
            while self._host.is_connected(peer_id):
                began = trio.current_time()
                try:
                    await self._send(peer_id, sender)
                except PEER_FAILURES as error:
                    logger.debug("Cannot send our interests", peer=peer_id, reason=str(error))
                failures = 1 if trio.current_time() - began > SETTLED else failures + 1
                with trio.move_on_after(REOPEN_BACKOFF.wait(failures, random.random())):
                    await sender.again.wait()
                sender.again = trio.Event()
        finally:
            del self._senders[peer_id]

    async def _send(self, peer_id: str, sender: _Sender) -> None:
        """Send statements until the peer ends the stream."""
        stream = await self._host.open_stream(peer_id, INTERESTS_PROTOCOL)
        try:
            with unwrapped(*PEER_FAILURES):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send_statements, peer_id, sender, stream)
                    await stream.receive_some(1)  # the peer sends nothing: this is the end
                    nursery.cancel_scope.cancel()
        finally:
            await stream.reset()

    async def _send_statements(self, peer_id: str, sender: _Sender, stream: PeerStream) -> None:
        frames = PeerFrames(stream, 0)
        bucket = TokenBucket(BURST, RATE, trio.current_time())
        has_sent = False
        while True:
            interests, ranges = self._wanted.all, self._wanted.ranges
            known = self._digests.get(peer_id, NOTHING_KNOWN)
            statement = state(self._network, ranges, known)
            pause = GATHER
            if not has_sent or ranges != sender.ranges:
                data = statement.encode()
                before, is_first = sender.ranges, sender.statement is None
                sender.statement, sender.ranges = statement, ranges
                await frames.send([data], self._settings.idle_timeout)
                has_sent = True
                self.counters.statements_sent += 1
                if not is_first:
                    new = subtract_ranges(ranges, before)
                    self._sync_about(peer_id, new, self._book.interests(peer_id))
                pause = max(pause, _pause_after(bucket, data))
            await trio.sleep(pause)
            await self._wanted.wait_for_change(interests)
            await trio.sleep(GATHER)
