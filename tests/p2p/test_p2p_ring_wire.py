"""Sessions of `/ceramic/recon/0.1.0` over memory streams: two sides, and peers that misbehave."""

import math
from collections.abc import AsyncGenerator

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from recon_node.base.errors import unwrapped
from recon_node.p2p.errors import PeerGoneError, PeerProtocolError
from recon_node.p2p.sync.ring_events import MAX_QUEUED, READ_SIZE, RingWire
from recon_node.p2p.sync.sessions import Tally, converse
from recon_node.recon import RemoteProtocolError
from recon_node.recon.actions import Admit, Value
from recon_node.recon.keys.key_store import KeyStore
from recon_node.recon.keys.ordered_keys import KeyRange
from recon_node.recon.ring.ring import Ring
from recon_node.recon.ring.ring_codec import (
    Finished,
    InterestRequest,
    InterestResponse,
    KeyForm,
    RangeRequest,
    encode,
)
from recon_node.recon.ring.ring_session import BATCH_VALUES, Initiator, Responder

EVERYTHING = KeyRange(b"", b"\xff")
IDLE = 5.0


class Node:
    """A set of events and what the session of a stream needs of it."""

    def __init__(self, values: dict[bytes, bytes]) -> None:
        self.values = dict(values)
        self.store = KeyStore(values)
        self.ring = Ring(self.store, lambda bound: bound in (b"", b"\xff"))
        self.tally = Tally()
        self.wires: list[RingWire] = []
        self.batches: list[int] = []
        self.loaded = 0
        self.held: list[int] = []

    async def load(self, first: bytes, last: bytes) -> AsyncGenerator[Value, None]:
        for number, key in enumerate(list(self.ring.keys(first, last))):
            if number % 32 == 0:
                await trio.sleep(0.01)
            self.loaded += 1
            yield Value(key, self.values[key])

    async def perform(self, action: Admit) -> None:
        self.batches.append(len(action.values))
        await trio.sleep(0.01)
        for value in action.values:
            if value.value == b"invalid":
                raise PeerProtocolError("an invalid event")
            self.values[value.key] = value.value
            self.store.add(value.key)

    async def run(self, stream, role: type, sync_id: str | None = None, idle: float = IDLE) -> None:
        session = role(self.ring, [EVERYTHING])
        wire = RingWire(stream, session, KeyForm.BYTES, self.load, self.held.append, idle, sync_id)
        self.wires.append(wire)
        await converse(session, wire, self)


async def reconcile(one: Node, two: Node, pair=memory_stream_pair, idle: float = IDLE) -> None:
    ours, theirs = pair()

    async def run(node: Node, end, role: type, sync_id: str | None) -> None:
        await node.run(end, role, sync_id, idle)
        await end.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, one, ours, Initiator, "an id")
        nursery.start_soon(run, two, theirs, Responder, None)


async def test_two_nodes_become_equal(autojump_clock):
    one = Node({b"%04d" % n: b"v%d" % n for n in range(0, 2000, 2)})
    two = Node({b"%04d" % n: b"v%d" % n for n in range(0, 2000, 3)})
    await reconcile(one, two)
    assert one.values == two.values
    assert len(one.values) == len({*range(0, 2000, 2), *range(0, 2000, 3)})
    [here], [there] = one.wires, two.wires
    assert here.traffic() == there.traffic()[::-1]
    assert min(here.traffic()) > 0


class LostWhileWriting:
    """A stream that the peer resets while a write, which is shielded, takes its time."""

    async def send_all(self, data: bytes) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2)
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int) -> bytes:
        await trio.sleep(0.5)
        raise trio.BrokenResourceError("the peer reset the stream")


async def test_a_stream_that_is_lost_as_the_node_stops_is_only_lost(autojump_clock):
    with trio.move_on_after(1) as node_runs:
        with pytest.raises(trio.BrokenResourceError):  # in no group: sessions report it
            await Node({b"key": b"value"}).run(LostWhileWriting(), Initiator, "an id")
        await trio.lowlevel.checkpoint()
    assert node_runs.cancelled_caught


async def test_a_whole_set_passes_in_pages_and_batches(autojump_clock):
    one, two = Node({b"%05d" % n: bytes(1000) for n in range(1000)}), Node({})
    await reconcile(one, two)
    assert two.values == one.values
    assert max(two.batches) <= BATCH_VALUES
    assert 10_000 < max(two.held) < 1000 * BATCH_VALUES + 4 * READ_SIZE, "it is charged for"
    assert two.held[-1] < 4000, "the interests"


async def test_both_sides_may_send_more_than_the_stream_holds(autojump_clock):
    # A send on such a stream waits until all of it is read.
    one = Node({b"a%04d" % n: bytes(500) for n in range(500)})
    two = Node({b"b%04d" % n: bytes(500) for n in range(500)})
    await reconcile(one, two, lockstep_stream_pair)
    assert one.values == two.values


async def test_the_session_id_is_echoed(autojump_clock):
    ours, theirs = memory_stream_pair()
    node = Node({})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run, theirs, Responder)
        await ours.send_all(encode(InterestRequest((EVERYTHING,)), KeyForm.BYTES, "some id"))
        answer = bytes(await ours.receive_some(1000))
        await ours.send_all(encode(Finished(), KeyForm.BYTES))
    assert answer == encode(InterestResponse((EVERYTHING,)), KeyForm.BYTES, "some id")


async def respond_to(node: Node, *sent: bytes, close: bool = True) -> None:
    """Run a responder on a stream on which a peer sends some bytes, and takes all answers."""
    ours, theirs = memory_stream_pair()
    with trio.fail_after(1000), unwrapped():
        async with trio.open_nursery() as nursery:

            async def take() -> None:
                async for _ in ours:
                    pass

            nursery.start_soon(take)
            for data in sent:
                await ours.send_all(data)
            if close:
                await ours.send_eof()
            try:
                await node.run(theirs, Responder)
            finally:
                await theirs.aclose()


INTERESTS = encode(InterestRequest((EVERYTHING,)), KeyForm.BYTES)


@pytest.mark.parametrize(
    ("sent", "error", "text"),
    [
        (INTERESTS, PeerGoneError, "before the session was over"),
        (INTERESTS[:-1], PeerGoneError, "within a message"),
        (b"\xff" * 100, RemoteProtocolError, "indefinite length"),
    ],
    ids=["ends too early", "ends within a message", "garbage"],
)
async def test_what_is_not_a_session_ends_it(autojump_clock, sent, error, text):
    with pytest.raises(error, match=text):
        await respond_to(Node({}), sent)


async def test_an_invalid_value_ends_the_session_and_keeps_the_valid_ones_before_it(autojump_clock):
    node = Node({})
    values = [Value(b"%03d" % n, b"valid") for n in range(BATCH_VALUES)]
    values.append(Value(b"x", b"invalid"))
    sent = [encode(value, KeyForm.BYTES) for value in values]
    request = RangeRequest(node.ring.state(*EVERYTHING))
    with pytest.raises(PeerProtocolError, match="invalid event"):
        await respond_to(node, INTERESTS, *sent, encode(request, KeyForm.BYTES))
    assert len(node.values) == BATCH_VALUES


async def test_a_silent_peer_is_given_up(autojump_clock):
    started = trio.current_time()
    with pytest.raises(PeerProtocolError, match="neither sent nor took anything"):
        await respond_to(Node({}), INTERESTS, close=False)
    assert math.isclose(trio.current_time() - started, IDLE, abs_tol=0.1)


async def test_a_peer_that_takes_nothing_is_given_up_and_little_waits_for_it(autojump_clock):
    """It asks for all values again and again: its requests are left unread when the queue is full,
    and no more values are loaded than the stream has taken."""
    node = Node({b"%04d" % n: bytes(1000) for n in range(100)})
    ours, theirs = lockstep_stream_pair()
    empty = Ring(KeyStore(), lambda bound: True).state(*EVERYTHING)
    request = encode(RangeRequest(empty), KeyForm.BYTES)
    asked = 0

    async def ask() -> None:
        nonlocal asked
        await ours.send_all(INTERESTS)
        await ours.receive_some(1)
        for _ in range(10 * MAX_QUEUED):
            await ours.send_all(request)  # returns once it is read
            asked += 1

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        with pytest.raises(PeerProtocolError, match="neither sent nor took anything"):
            await node.run(theirs, Responder)
        nursery.cancel_scope.cancel()
    assert math.isclose(trio.current_time() - started, IDLE, abs_tol=0.1)
    answers_to_each = 2  # its values, and the message after them
    assert asked <= MAX_QUEUED / answers_to_each + 2
    assert node.loaded <= 32


async def test_a_slow_store_is_not_held_against_the_peer(autojump_clock):
    one, two = Node({b"%04d" % n: b"v" for n in range(300)}), Node({})
    perform = two.perform

    async def slowly(action: Admit) -> None:
        await trio.sleep(IDLE * 2)
        await perform(action)

    two.perform = slowly  # type: ignore[method-assign]
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.run, ours, Initiator, None, math.inf)
        await two.run(theirs, Responder)
        await theirs.aclose()
    assert two.values == one.values
