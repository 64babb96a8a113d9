"""Interest gossip: each side tells the other its interests, and asks for nothing else."""

from types import SimpleNamespace

import pytest
import trio
import trio.lowlevel
from nacl.signing import SigningKey
from p2p_support import (
    LOOPBACK,
    NETWORK,
    connect,
    encode_frame,
    eventually,
    loopback_host,
    node,
    sessions,
)
from trio.testing import memory_stream_pair

from recon_node.ceramic import Network, StreamId, StreamType, sort_value_range
from recon_node.ceramic.builder import init_event, model_event
from recon_node.fairness.slots import TokenBuckets
from recon_node.p2p.context import Context, Counters
from recon_node.p2p.errors import MISBEHAVED
from recon_node.p2p.peers import interest_gossip
from recon_node.p2p.peers.book import INTEREST_LIFETIME, MAX_KEPT, PeerBook
from recon_node.p2p.peers.interest_gossip import (
    BASE_COST,
    BURST,
    RANGE_COST,
    RATE,
    STATEMENT_COST,
    STATEMENT_TIMEOUT,
    InterestGossip,
)
from recon_node.p2p.peers.interest_statement import INTERESTS_PROTOCOL, MAX_STATEMENT, state
from recon_node.p2p.sync.key_rate_limit import KeyRateLimit
from recon_node.p2p.transport.guarded_connection import unlimited
from recon_node.recon import KeyRange, merge_ranges
from recon_node.store import Interest

NEVER = {"sync_interval": 1e6, "discovery": False, "ceramic_one": False}
QUICK = {"sync_interval": 0.1, "push_delay": 0.02, "discovery": False, "ceramic_one": False}
KEY = SigningKey(bytes(32))
MODELS = [StreamId(StreamType.MODEL, model_event(KEY, {"name": str(n)}).cid) for n in range(3)]
BLOG, PHOTOS, MUSIC = (Interest("model", str(model)) for model in MODELS)


def range_of(interest: Interest) -> KeyRange:
    return KeyRange(*sort_value_range(NETWORK, interest.sort_value))


def event_in(interest: Interest, number: int = 0) -> bytes:
    model = StreamId.parse(interest.sort_value)
    return init_event(KEY, model, {"n": number}, unique=bytes([number])).car


# --- between real nodes -----------------------------------------------------------------------


async def test_both_sides_know_the_other_s_interests_at_once_and_after_each_change(tmp_path):
    async with node(tmp_path / "a", **NEVER) as a, node(tmp_path / "b", **NEVER) as b:

        def known() -> bool:
            known = a.p2p._book.interests(b.p2p.peer_id), b.p2p._book.interests(a.p2p.peer_id)
            return known == (b.store.wanted.ranges, a.store.wanted.ranges)

        await a.store.wanted.add(BLOG)
        await b.p2p.connect(a.address)
        await eventually(known)
        for change in (
            lambda: b.store.wanted.add(BLOG),
            lambda: a.store.wanted.add(PHOTOS),
            lambda: b.store.wanted.remove(BLOG),
        ):
            await change()
            await eventually(known)
        assert a.failures(b.p2p.peer_id) == b.failures(a.p2p.peer_id) == 0


async def test_a_peer_with_disjoint_interests_gets_no_recon_bytes(tmp_path, monkeypatch):
    """However often the node syncs and pushes; and once there is a common interest, it does."""
    monkeypatch.setattr(interest_gossip, "STATEMENT_TIMEOUT", 60.0)
    async with node(tmp_path / "a", **QUICK) as a, node(tmp_path / "b", **QUICK) as b:
        await a.store.wanted.add(BLOG)
        await b.store.wanted.add(PHOTOS)
        await b.p2p.connect(a.address)
        for side, other in ((a, b), (b, a)):
            await side.p2p._gossip.wait_for_interests(other.p2p.peer_id)
        for number in range(10):
            await a.store.admit_local([event_in(BLOG, number)])
            await b.store.admit_local([event_in(PHOTOS, number)])
            await trio.sleep(QUICK["sync_interval"])
        counters = a.p2p.counters, b.p2p.counters
        assert [counts.recon_bytes_sent + counts.recon_bytes_received for counts in counters] == [
            0,
            0,
        ]
        assert [sessions(counts, "initiator") for counts in counters] == [0, 0]
        await b.store.wanted.add(BLOG)
        await eventually(lambda: len(b.store.keys) == 20)
        assert len(a.store.keys) == 10
        await eventually(lambda: all(counts.recon_bytes_sent for counts in counters))


async def test_what_becomes_common_is_synced_at_once(tmp_path):
    """Whichever side has changed its mind, and if both did at once."""
    async with node(tmp_path / "a", **NEVER) as a, node(tmp_path / "b", **NEVER) as b:
        for side, own in ((a, MUSIC), (b, MUSIC)):
            await side.store.wanted.add(own)
        await b.p2p.connect(a.address)
        for side, other in ((a, b), (b, a)):
            await side.p2p._gossip.wait_for_interests(other.p2p.peer_id)
        await a.store.admit_local([event_in(BLOG), event_in(PHOTOS)])
        await a.store.wanted.add(BLOG)
        await eventually(
            lambda: (
                a.p2p._gossip.counters.statements_sent == 2
                and b.p2p._gossip.counters.statements_received == 2
            )
        )
        await b.store.wanted.add(BLOG)
        await eventually(lambda: len(b.store.keys) == 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.store.wanted.add, PHOTOS)
            nursery.start_soon(b.store.wanted.add, PHOTOS)
        await eventually(lambda: len(b.store.keys) == 2)


async def test_garbage_ends_its_stream_and_nothing_else(tmp_path):
    statement = state(NETWORK, [range_of(BLOG)]).encode()
    kinds = {
        "no statement": encode_frame(b"garbage"),
        "more than a statement": encode_frame(statement + b"\0"),
        "no frame": b"\xff" * 100,
        "too long a frame": encode_frame(bytes(MAX_STATEMENT + 1))[:10],
    }
    async with node(tmp_path / "a", **NEVER) as a, loopback_host() as peer:
        await connect(peer, a)
        ping = await peer.open_stream(a.p2p.peer_id, "/ipfs/ping/1.0.0")
        for garbage in kinds.values():
            before = a.failures(peer.peer_id)
            stream = await peer.open_stream(a.p2p.peer_id, INTERESTS_PROTOCOL)
            await stream.send_all(garbage)
            await eventually(lambda b=before: a.failures(peer.peer_id) > b + 1)  # MISBEHAVED
            await eventually(lambda s=stream: not s.is_open)
        await ping.send_all(bytes(32))
        assert len(await ping.receive_some(32)) == 32
        again = await peer.open_stream(a.p2p.peer_id, INTERESTS_PROTOCOL)
        await again.send_all(encode_frame(statement))
        await eventually(lambda: a.p2p._book.interests(peer.peer_id) == [range_of(BLOG)])


async def test_of_several_streams_of_a_peer_the_latest_counts(tmp_path):
    async with node(tmp_path / "a", **NEVER) as a, loopback_host() as peer:
        await connect(peer, a)
        streams = []
        for interest in (BLOG, PHOTOS):
            streams.append(await peer.open_stream(a.p2p.peer_id, INTERESTS_PROTOCOL))
            await streams[-1].send_all(encode_frame(state(NETWORK, [range_of(interest)]).encode()))
            await eventually(
                lambda it=interest: a.p2p._book.interests(peer.peer_id) == [range_of(it)]
            )
        await eventually(lambda: not streams[0].is_open)
        assert streams[1].is_open
        assert a.failures(peer.peer_id) == 0


# --- on virtual time --------------------------------------------------------------------------


class Wanted:
    """Stands for a store's interests."""

    def __init__(self, *interests: Interest) -> None:
        self.all: tuple[Interest, ...] = ()
        self._changed = trio.lowlevel.ParkingLot()
        self.want(*interests)

    def want(self, *interests: Interest) -> None:
        self.all = (*self.all, *interests)
        self.ranges = merge_ranges(map(range_of, self.all))
        self._changed.unpark_all()

    async def wait_for_change(self, known) -> None:
        while self.all == tuple(known):
            await self._changed.park()


class MemoryPeerStream:
    """One end of a stream in memory, with what a protocol sees of a peer's stream."""

    def __init__(self, stream: trio.StapledStream, peer_id: str) -> None:
        self._stream = stream
        self.peer_id = peer_id
        self.address = "192.0.2.1"
        self.account = unlimited().account(peer_id)
        self.receive_some = stream.receive_some
        self.send_all = stream.send_all
        self.aclose = self.reset = stream.aclose


class Side:
    """One of two nodes that are connected in memory; notes what it is to sync about."""

    def __init__(self, peer_id: str, nursery: trio.Nursery, *interests: Interest) -> None:
        self.peer_id = peer_id
        self.book = PeerBook(10)
        self.wanted = Wanted(*interests)
        self.about: list[list[KeyRange]] = []
        self.other: Side | None = None
        self.nursery = nursery
        self.connected = True
        self.opened = 0
        store = SimpleNamespace(network=NETWORK, wanted=self.wanted)
        context = Context(self, store, self.book, LOOPBACK, Counters())
        self.rate_limit = KeyRateLimit()
        self.gossip = InterestGossip(
            context, lambda _, ranges: self.about.append(ranges), nursery, self.rate_limit.pay
        )

    def is_connected(self, peer_id: str) -> bool:
        return self.connected

    def known_protocols(self, peer_id: str) -> frozenset[str]:
        return frozenset({INTERESTS_PROTOCOL})

    async def protocols_of(self, peer_id: str) -> frozenset[str]:
        return self.known_protocols(peer_id)

    async def open_stream(self, peer_id: str, protocol: str) -> MemoryPeerStream:
        near, far = memory_stream_pair()
        self.opened += 1
        self.nursery.start_soon(self.other.gossip.serve, MemoryPeerStream(far, self.peer_id))
        return MemoryPeerStream(near, peer_id)

    def end_stream_of(self, peer_id: str) -> None:
        """End the stream on which a peer states its interests."""
        self.gossip._listening[peer_id].cancel()


@pytest.fixture
def two(nursery):
    """Two connected nodes; the first has the smaller peer id."""
    one, other = (Side(name, nursery, MUSIC) for name in ("a", "b"))
    one.other, other.other = other, one
    return one, other


async def meet(*sides: Side) -> None:
    for side in sides:
        side.gossip.meet(side.other.peer_id)
    await trio.sleep(1)


def serve(side: Side) -> trio.StapledStream:
    """The other end of a stream on which a side receives interests."""
    near, far = memory_stream_pair()
    side.nursery.start_soon(side.gossip.serve, MemoryPeerStream(far, "a"))
    return near


async def test_the_side_that_changes_its_mind_syncs_about_what_is_newly_common(two, autojump_clock):
    for changing, waiting in (two, two[::-1]):
        await meet(*two)
        waiting.wanted.want(BLOG)
        await trio.sleep(1)
        assert (changing.about, waiting.about) == ([], [])
        changing.wanted.want(PHOTOS, BLOG)
        await trio.sleep(1)
        assert (changing.about, waiting.about) == ([[range_of(BLOG)]], [])
        waiting.wanted.want(PHOTOS)
        await trio.sleep(1)
        assert waiting.about == [[range_of(PHOTOS)]]
        for gossip in two:
            gossip.about.clear()
            gossip.wanted.all = ()
            gossip.wanted.want(MUSIC)
        await trio.sleep(1)
        assert (changing.about, waiting.about) == ([], [])


async def test_if_statements_cross_one_side_syncs(two, autojump_clock):
    await meet(*two)
    for gossip in two:
        gossip.wanted.want(BLOG)
    await trio.sleep(1)
    assert [gossip.about for gossip in two] == [[[range_of(BLOG)]], []]
    for gossip in two:
        assert gossip.book.interests(gossip.other.peer_id) == gossip.wanted.ranges


async def test_many_changes_make_few_statements(two, autojump_clock):
    await meet(*two)
    for number in range(100):
        two[0].wanted.want(Interest("family", str(number)))
        await trio.sleep(0.001)
    await trio.sleep(1)
    assert two[1].book.interests("a") == two[0].wanted.ranges
    assert two[0].gossip.counters.statements_sent <= 1 + 4


async def test_a_node_states_its_interests_again_when_the_stream_has_ended(two, autojump_clock):
    one, other = two
    await meet(one)
    two[1].end_stream_of("a")
    await trio.sleep(0.1)
    assert not other.gossip.counters.peers_stating
    one.wanted.want(BLOG)
    await trio.sleep(5)
    assert other.book.interests("a") == one.wanted.ranges
    assert other.gossip.counters.peers_stating == 1


async def test_a_peer_that_is_met_again_is_told_at_once(two, autojump_clock):
    one, _ = two
    await meet(one)
    two[1].end_stream_of("a")
    await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()
    one.gossip.meet("b")
    await trio.testing.wait_all_tasks_blocked()
    assert one.opened == 2
    one.connected = False
    two[1].end_stream_of("a")
    await trio.sleep(120)
    assert one.opened == 2
    assert not one.gossip._senders


async def test_interests_of_a_peer_that_has_left_count_for_a_while(two, autojump_clock):
    one, other = two
    await meet(one)
    one.connected = False
    two[1].end_stream_of("a")
    await trio.sleep(INTEREST_LIFETIME - 10)
    assert other.book.interests("a") == one.wanted.ranges
    await trio.sleep(20)
    assert other.book.interests("a") == []
    other.book.states("c", [range_of(Interest("family", str(n))) for n in range(MAX_KEPT + 1)])
    other.book.no_longer_states("c")
    assert other.book.interests("c") == []


async def test_a_sync_waits_for_a_statement_only_so_long(two, autojump_clock):
    one, _ = two
    await one.gossip.wait_for_interests("b")
    assert trio.current_time() == pytest.approx(STATEMENT_TIMEOUT)


async def test_statements_are_read_no_faster_than_the_allowance(two, autojump_clock):
    """A peer that sends more has to wait, which takes it a window of bytes, and us nothing."""
    _, other = two
    near = serve(other)
    frame = encode_frame(state(NETWORK, [range_of(BLOG)]).encode())
    await near.send_all(frame * 2500)
    for seconds in (0.0, 30.0, 30.0):
        await trio.sleep(seconds)
        await trio.testing.wait_all_tasks_blocked(0.0)
        cost = BASE_COST + len(frame) - 1
        assert other.gossip.counters.statements_received == pytest.approx(
            (BURST + trio.current_time() * RATE) / cost, abs=2
        )


async def test_statements_on_ever_new_streams_are_paid_by_their_address(two, autojump_clock):
    """Each stream had an allowance of its own, and any statement has our interests compared."""
    _, other = two
    most = 100
    cost = STATEMENT_COST + RANGE_COST * 2
    other.rate_limit._buckets = TokenBuckets(most * cost, 1e-6, 10)
    frame = encode_frame(state(NETWORK, [range_of(BLOG)]).encode())
    for _ in range(10):
        near = serve(other)
        await near.send_all(frame * (most // 2))
        await trio.sleep(1)
        await near.aclose()
    assert most - 1 <= other.gossip.counters.statements_received <= most


async def test_a_statement_about_another_network_says_nothing_about_this_one(two, autojump_clock):
    _, other = two
    near = serve(other)
    await near.send_all(encode_frame(state(Network.local(8), []).encode()))
    await other.gossip.wait_for_interests("a")
    assert trio.current_time() < STATEMENT_TIMEOUT
    assert not other.book.has_stated("a")


async def test_a_peer_that_opens_a_stream_has_to_use_it(two, autojump_clock):
    _, other = two
    serve(other)
    await trio.sleep(LOOPBACK.idle_timeout + 1)
    assert not other.gossip._listening
    near = serve(other)
    await near.send_all(encode_frame(state(NETWORK, []).encode())[:-1])
    await trio.sleep(LOOPBACK.idle_timeout + 1)
    assert other.book.get("a").failures == MISBEHAVED
