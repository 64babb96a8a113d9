"""Pushing: every new key, to peers that want it, and to those who want it however few they are."""

from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from p2p_support import LOOPBACK, NETWORK, Node, eventually, node, two_nodes
from support.time_events import time_event
from sync_doubles import OURS, Connected, Recorded, Wanting, scheduler

from recon_node.ceramic import METAMODEL, EventId, StreamId, StreamType, rendezvous, streams_range
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ceramic.event_id import FIELDS_SIZE, SHORT_HASH_SIZE
from recon_node.p2p.context import Context, Counters
from recon_node.p2p.peers.book import PeerBook
from recon_node.p2p.settings import P2PSettings
from recon_node.p2p.sync import fetch_table
from recon_node.p2p.sync.push import (
    ALL_OF_FEW,
    MAX_AGAIN,
    MAX_APART,
    NEAR,
    NEXT_WAVE,
    TOGETHER,
    WAVES,
    PushedPart,
    choose_receivers,
    sort_news,
    wanted_of,
)
from recon_node.p2p.sync.reconciler import AGREED_FOR, MAX_AGREEMENTS, PeerMemory
from recon_node.p2p.sync.sync_scheduler import (
    MAX_DUE,
    NEWS_AT_ONCE,
    NEWS_TIME,
    NEWS_TURN,
    PEERS_TURN,
)
from recon_node.recon import VERSIONS, KeyRange, intersect_ranges, merge_ranges
from recon_node.store.store import LATEST_KEYS

PEERS = [f"peer {number}" for number in range(8)]
COPIES = LOOPBACK.sync_peers
NEVER = 1e6
LATER_WAVES = LOOPBACK.push_delay * NEXT_WAVE * 2**WAVES
"""Seconds in which they are over."""


def real_key(stream: int, height: int = 0) -> EventId:
    """A key of one of many streams that we want."""
    start = len(rendezvous(NETWORK)) + SHORT_HASH_SIZE
    place = stream.to_bytes(FIELDS_SIZE - SHORT_HASH_SIZE, "big")
    return EventId(OURS[0].lower[:start] + place + bytes([height]) + METAMODEL.cid)


SOME_KEYS = [real_key(number // 2, number % 2) for number in range(16)]
BETWEEN = sorted({bound for key in SOME_KEYS for bound in streams_range(key, key)})
"""Bounds of ranges that do not cut a stream in two, as no interest does."""


def key_in(key_range: KeyRange, number: int = 0) -> bytes:
    return key_range.lower + number.to_bytes(4, "big")


@pytest.fixture
async def pushing(nursery):
    """Eight connected peers of the same latency, and a syncer that does nothing but push."""
    settings = SimpleNamespace(sync_peers=COPIES, push_delay=LOOPBACK.push_delay,
                               sync_interval=NEVER, bootstrap=())  # fmt: skip
    host, store, book, sessions = Connected(), Wanting(), PeerBook(200), Recorded()
    syncer = scheduler(Context(host, store, book, settings, Counters()), sessions)
    sessions.syncer = syncer
    nursery.start_soon(syncer.run)
    await trio.testing.wait_all_tasks_blocked()
    host.near = list(PEERS)
    for peer in PEERS:
        book.note_peer(peer, ())
        book.synced(peer, 0.01, 0.0)
    return store, book, sessions


def says(book: PeerBook, peer: str, *ranges: KeyRange) -> None:
    """A peer is asked for all of ours, and has asked for some ranges itself."""
    book.get(peer).asked_for_all_at = trio.current_time()
    for key_range in ranges:
        book.asked_for(peer, key_range)


async def reached(store, sessions, *keys: bytes) -> dict[str, list[KeyRange]]:
    """Whom the first wave of pushes of these keys reaches, and what they are asked for."""
    sessions.asked.clear()
    store.arrivals.add(keys)
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    ranges: dict[str, list[KeyRange]] = {}
    for peer, key_range in sessions.asked:
        ranges.setdefault(peer, []).append(key_range)
    await trio.sleep(LATER_WAVES)
    return ranges


async def test_the_one_peer_of_eight_that_wants_an_event_is_always_reached(pushing, autojump_clock):
    store, book, sessions = pushing
    for number in range(16):
        wanting = PEERS[number % len(PEERS)]
        for peer in PEERS:
            book.get(peer).interests.clear()
            says(book, peer, OURS[0] if peer == wanting else OURS[1])
        assert await reached(store, sessions, key_in(OURS[0], number)) == {wanting: [OURS[0]]}


async def test_a_peer_with_an_interest_comes_before_those_whose_interests_are_not_known(
    pushing, autojump_clock
):
    store, book, sessions = pushing
    for peer in PEERS:
        says(book, peer)
    says(book, PEERS[5], OURS[0])
    for number in range(8):
        pushed = await reached(store, sessions, key_in(OURS[0], number))
        assert PEERS[5] in pushed
        assert len(pushed) == COPIES


async def test_the_first_key_is_pushed_at_once_and_what_follows_together(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS:
        says(book, peer, OURS[0] if peer == PEERS[3] else OURS[1])
    await trio.sleep(LOOPBACK.push_delay)
    store.arrivals.add([key_in(OURS[0])])
    await trio.sleep(2 * TOGETHER)
    assert [peer for peer, _ in sessions.asked] == [PEERS[3]]
    for number in range(1, 5):
        store.arrivals.add([key_in(OURS[0], number)])
        await trio.sleep(2 * TOGETHER)
    assert len(sessions.asked) == 1
    await trio.sleep(LOOPBACK.push_delay)
    assert [peer for peer, _ in sessions.asked] == [PEERS[3]] * 2


async def test_an_event_goes_to_nobody_where_nobody_wants_it(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS:
        says(book, peer, OURS[1])
    assert await reached(store, sessions, key_in(OURS[0])) == {}


async def test_each_of_many_keys_reaches_those_who_want_it_in_one_sync_each(
    pushing, autojump_clock
):
    store, book, sessions = pushing
    for peer in PEERS:
        says(book, peer, OURS[0])
    says(book, PEERS[3], OURS[1])
    pushed = await reached(store, sessions, key_in(OURS[0]), key_in(OURS[1]), key_in(OURS[0], 7))
    assert sorted(pushed[PEERS[3]]) == OURS
    assert COPIES <= len(pushed) <= COPIES + 1
    assert all(len(ranges) == 1 for peer, ranges in pushed.items() if peer != PEERS[3])


async def test_more_keys_than_are_remembered_reach_all_who_may_want_some(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS[1:]:
        says(book, peer, OURS[1])
    says(book, PEERS[0], OURS[0])
    keys = [key_in(OURS[0], 0), *(key_in(OURS[1], number) for number in range(LATEST_KEYS))]
    pushed = await reached(store, sessions, *keys)
    assert pushed[PEERS[0]] == [OURS[0]]
    assert len(pushed) == 1 + COPIES


async def test_a_push_does_not_wait_for_slow_syncs(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS:
        says(book, peer, OURS[1])
    says(book, PEERS[7], OURS[0])
    for peer in PEERS[:COPIES]:
        sessions.seconds[peer] = NEVER
        sessions.syncer.request(peer)
    await trio.testing.wait_all_tasks_blocked()
    assert PEERS[7] in await reached(store, sessions, key_in(OURS[0]))


async def test_a_peer_that_states_its_interests_is_asked_about_the_changed_streams_alone(
    pushing, autojump_clock
):
    store, book, sessions = pushing
    for peer in PEERS[1:]:
        book.states(peer, [OURS[1]])
    book.states(PEERS[0], OURS)
    ids = sorted(real_key(number) for number in range(5))
    streams = [KeyRange(*streams_range(id_, id_)) for id_ in ids]
    for filled in (OURS[:0], OURS[1:], OURS):  # while a snapshot fills these, too
        store.filling.begin(filled)
        assert await reached(store, sessions, ids[3]) == {PEERS[0]: [streams[3]]}
    store.filling.end()
    between = KeyRange(streams[1].lower, streams[3].upper)
    assert await reached(store, sessions, ids[3], ids[1]) == {PEERS[0]: [between]}
    book.no_longer_states(PEERS[0])
    book.get(PEERS[0]).stated = None
    says(book, PEERS[0], OURS[0])
    assert await reached(store, sessions, ids[3]) == {PEERS[0]: [OURS[0]]}


async def test_what_is_due_with_a_slow_peer_does_not_grow_without_end(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS[1:]:
        book.states(peer, [])
    book.states(PEERS[0], OURS)
    keys = sorted(real_key(number) for number in range(3 * MAX_DUE))[::2]
    sessions.seconds[PEERS[0]] = 1000
    for key in keys:
        await reached(store, sessions, key)
        assert all(len(due or ()) <= MAX_DUE for due in sessions.syncer._due.values())
    sessions.seconds.clear()
    await trio.sleep(2000)
    for key in keys[NEWS_AT_ONCE:]:
        assert any(range_asked.covers(key) for _, range_asked in sessions.asked)


async def test_a_key_does_not_wait_for_very_many_nor_for_keys_before_it(pushing, autojump_clock):
    store, book, sessions = pushing
    for peer in PEERS[1:]:
        book.states(peer, [])
    book.states(PEERS[0], OURS)
    sessions.seconds[PEERS[0]] = NEVER
    many = [real_key(number) for number in range(MAX_AGAIN + 1)]
    sessions.told = {key: ["a stranger"] for key in many}
    ours = [real_key(1000 + number) for number in range(NEWS_AT_ONCE)]
    for key, others in zip(ours, (many, [], []), strict=True):
        store.arrivals.add([*others, key])
        await trio.sleep(LOOPBACK.push_delay + NEWS_TURN + NEWS_TIME + TOGETHER)
        assert (PEERS[0], KeyRange(*streams_range(key, key))) in sessions.asked
    of_many = KeyRange(*streams_range(many[0], many[-1]))
    assert [range_asked for _, range_asked in sessions.asked if range_asked == of_many] == [of_many]
    assert len(sessions.asked) == 1 + NEWS_AT_ONCE


async def test_news_wait_a_moment_for_a_sync_that_may_bring_them(pushing, autojump_clock):
    _, book, sessions = pushing
    book.states(PEERS[0], OURS)
    key, elsewhere = (KeyRange(*streams_range(of, of)) for of in SOME_KEYS[:3:2])
    sessions.seconds_of_peers = NEVER
    sessions.syncer.request(PEERS[0], [elsewhere])
    sessions.syncer.request(PEERS[0], [key], of_news=True)
    await trio.sleep(NEWS_TURN - 0.01)
    assert not sessions.asked
    await trio.sleep(0.02)
    assert sessions.asked == [(PEERS[0], key)]
    await trio.sleep(PEERS_TURN)
    assert sessions.asked == [(PEERS[0], key), (PEERS[0], elsewhere)]


@given(st.sets(st.integers(0, 15)), st.data())
def test_new_keys_reach_exactly_the_peers_that_want_them_and_did_not_send_them(numbers, data):
    """Against the plain rule, key by key."""
    news = [SOME_KEYS[number] for number in numbers]
    bounds = st.sampled_from(BETWEEN)
    some_ranges = st.lists(st.builds(KeyRange, bounds, bounds), max_size=8).map(merge_ranges)
    common = data.draw(st.lists(some_ranges, min_size=1, max_size=4))
    known_by = {key: data.draw(st.sets(st.sampled_from("abcd"))) for key in news}
    sorted_news = sort_news(news, common, known_by.__getitem__)
    near, far = (lambda _: NEAR), (lambda _: NEAR + 1)
    for peer, ranges in zip("abcd", common, strict=False):
        wanted = {
            key
            for key in news
            if peer not in known_by[key] and any(key_range.covers(key) for key_range in ranges)
        }
        for count in (None, near, far):
            result = wanted_of(sorted_news, peer, ranges, count)
            assert bool(result.keys) == bool(wanted)
            assert all(any(key_range.covers(key) for key_range in result.ranges) for key in wanted)
            assert all(any(key_range.covers(key) for key in wanted) for key_range in result.ranges)
            assert intersect_ranges(result.ranges, ranges) == sorted(result.ranges)
            if count is not far:
                assert len(result.ranges) <= len(ranges)


def test_a_few_new_keys_that_are_far_apart_are_pushed_without_what_lies_between():
    keys = sorted(real_key(stream) for stream in range(MAX_APART + 1))
    for number, between, syncs in (
        (MAX_APART, NEAR, 1),
        (MAX_APART, NEAR + 1, MAX_APART),
        (MAX_APART + 1, NEAR + 1, 1),
    ):
        news = sort_news(keys[:number], [OURS], lambda _: ())
        ranges = wanted_of(news, "a peer", OURS, lambda _, between=between: between).ranges
        assert len(ranges) == syncs
        assert all(any(key_range.covers(key) for key_range in ranges) for key in keys[:number])


def test_new_keys_are_apart_only_while_they_are_few_in_all():
    """Otherwise a crowd of peers that each list others would have each key looked at alone."""
    keys = sorted(real_key(stream) for stream in range(8 * MAX_AGAIN))
    listed = {key: {f"peer {number // 2}"} for number, key in enumerate(keys)}
    news = sort_news(keys, [OURS], listed.__getitem__)
    assert sum(item.number for item in news) == len(keys)
    assert sum(item.number == 1 for item in news) <= MAX_AGAIN + MAX_APART


async def test_what_lies_between_new_keys_is_counted_once_for_all_peers(pushing, autojump_clock):
    store, book, _ = pushing
    counted = []
    store.keys = SimpleNamespace(count=lambda key_range: counted.append(key_range) or 0)
    for peer in PEERS:
        book.states(peer, OURS)
    near, far = real_key(1), real_key(2)
    store.arrivals.add([near, far])
    await trio.sleep(LOOPBACK.push_delay + 2 * TOGETHER)
    between = KeyRange(streams_range(near, near)[1], streams_range(far, far)[0])
    assert counted.count(between) == 1


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.id)
async def test_a_push_to_a_large_set_costs_little(tmp_path, sdk_cars, version):
    options = {"sync_interval": NEVER, "versions": [version], "ceramic_one": False}
    async with two_nodes(tmp_path, sdk_cars[:200], sdk_cars[:200], **options) as (a, b):
        await eventually(lambda: a.p2p.sync_reports and b.p2p.sync_reports)
        await eventually(lambda: a.p2p._book.has_stated(b.p2p.peer_id))
        key, model = SigningKey(bytes(32)), StreamId(StreamType.MODEL, METAMODEL.cid)
        await a.store.admit_local([init_event(key, model, {"n": 0}, unique=b"1").car])
        await eventually(lambda: len(b.store.keys) == 201)
        await eventually(lambda: a.p2p.transfers)
        [push] = a.p2p.transfers
        assert (push.role, push.events_sent) == ("initiator", 1)
        assert push.rounds <= 2
        assert push.bytes_sent + push.bytes_received < 1000


def test_a_key_is_pushed_to_all_of_few_peers_that_want_it_and_to_some_of_many():
    for many in range(20):
        wants = {f"peer {n}": PushedPart([b"key"], []) for n in range(many)}
        expected = many if many <= ALL_OF_FEW * COPIES else COPIES
        assert len(choose_receivers(wants, COPIES)) == expected
    wants = {"a": PushedPart([b"1"], []), "b": PushedPart([b"2"], []), "c": PushedPart([], [])}
    assert choose_receivers(wants, 1) == ["a", "b"]


async def test_pending_time_events_and_data_on_top_of_them_are_pushed(tmp_path):
    key = SigningKey(bytes(32))
    model = StreamId(StreamType.MODEL, METAMODEL.cid)
    init = init_event(key, model, {"n": 0}, unique=b"1")
    anchor = time_event(init, init.cid)
    data = data_event(key, init, [anchor.cid], [])
    async with (
        node(tmp_path / "a", sync_interval=NEVER) as a,
        node(tmp_path / "b", sync_interval=NEVER) as b,
        node(tmp_path / "c", sync_interval=NEVER) as c,
    ):
        await b.p2p.connect(a.address)
        await c.p2p.connect(b.address)
        await eventually(lambda: a.p2p.sync_reports and c.p2p.sync_reports)
        await a.store.admit_local([init.car])
        await eventually(lambda: len(c.store.keys) == 1)
        await a.store.admit_local([anchor.car])
        await eventually(lambda: len(c.store.keys) == 2)
        await a.store.admit_local([data.car])
        await eventually(lambda: len(c.store.keys) == 3)
        assert [side.store.head for side in (a, b, c)] == [1, 1, 1]


@pytest.mark.long
async def test_nodes_that_start_together_fetch_each_event_once(tmp_path, monkeypatch):
    """Each event is held by two of five nodes, which all connect with each other at once."""
    monkeypatch.setattr(fetch_table, "SILENT_AFTER", NEVER)  # all share one process, which may halt
    monkeypatch.setattr(fetch_table, "STALLED_AFTER", NEVER)
    key, model = SigningKey(bytes(32)), StreamId(StreamType.MODEL, METAMODEL.cid)
    cars = [init_event(key, model, {"n": n}, unique=bytes([n])).car for n in range(150)]
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for number in range(5):
            held = [car for n, car in enumerate(cars) if number in (n % 5, (n + 1) % 5)]
            opened = node(tmp_path / str(number), held, sync_interval=0.5, push_delay=0.05)
            nodes.append(await stack.enter_async_context(opened))
        async with trio.open_nursery() as nursery:
            for number, one in enumerate(nodes):
                for other in nodes[:number]:
                    nursery.start_soon(one.p2p.connect, other.address)
        await eventually(lambda: all(peer.holds_as_many_as(150) for peer in nodes))
        for peer in nodes:
            needed = sum(map(len, cars)) * 3 / 5
            assert peer.p2p.counters.event_bytes_received < 1.2 * needed


MANY = [f"peer {number}" for number in range(8, 30)]
KEY = key_in(OURS[0])


@pytest.fixture
def crowd(pushing):
    """Many more peers than are pushed to, all of which want everything."""
    store, book, sessions = pushing
    sessions.syncer._host.near += MANY
    for peer in sessions.syncer._host.near:
        book.note_peer(peer, ())
        book.synced(peer, 0.01, 0.0)
        says(book, peer, *OURS)
    return store, book, sessions


def asked(sessions) -> list[str]:
    return [peer for peer, _ in sessions.asked]


async def test_each_wave_goes_to_others(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    assert len(asked(sessions)) == COPIES
    await trio.sleep(LATER_WAVES)
    assert len(asked(sessions)) == len(set(asked(sessions))) == WAVES * COPIES


async def test_later_waves_leave_out_peers_that_sent_the_key_meanwhile(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    others = [peer for peer in sessions.syncer._host.near if peer not in asked(sessions)]
    sessions.told[KEY] = others[1:]
    await trio.sleep(LATER_WAVES)
    assert asked(sessions)[COPIES:] == others[:1]


async def test_later_waves_leave_out_who_agreed_with_us_since_the_key_came(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([KEY])
    await trio.sleep(LOOPBACK.push_delay + 0.1)
    now = trio.current_time()
    others = [peer for peer in sessions.syncer._host.near if peer not in asked(sessions)]
    early, elsewhere, *rest = others
    sessions.memory.note_agreement(early, OURS[0], now - 1)
    sessions.memory.note_agreement(elsewhere, OURS[1], now)
    for peer in rest:
        sessions.memory.note_agreement(peer, OURS[0], now)
    await trio.sleep(LATER_WAVES)
    assert sorted(asked(sessions)[COPIES:]) == sorted([early, elsewhere])


async def test_of_very_many_keys_there_is_one_wave(crowd, autojump_clock):
    store, _, sessions = crowd
    store.arrivals.add([key_in(OURS[0], number) for number in range(MAX_AGAIN + 1)])
    await trio.sleep(LOOPBACK.push_delay + LATER_WAVES)
    assert len(asked(sessions)) == COPIES


async def test_agreements_count_if_they_cover_the_key_and_began_after_it_came(autojump_clock):
    memory = PeerMemory()
    memory.note_agreement("before", OURS[0], 1.0)
    memory.note_agreement("after", OURS[0], 3.0)
    memory.note_agreement("elsewhere", OURS[1], 3.0)
    assert memory.holders(2.0)(KEY) == ["after"]
    assert memory.holders(0.0)(KEY) == ["before", "after"]
    assert memory.holders(0.0)(OURS[0].lower) == []


async def test_agreements_are_forgotten(autojump_clock):
    memory = PeerMemory()
    for number in range(2 * MAX_AGREEMENTS):
        memory.note_agreement(f"peer {number}", KeyRange(b"a", b"c"), trio.current_time())
    assert len(memory.holders(0.0)(b"b")) == MAX_AGREEMENTS
    await trio.sleep(AGREED_FOR + 1)
    memory.note_agreement("new", KeyRange(b"a", b"c"), trio.current_time())
    assert memory.holders(0.0)(b"b") == ["new"]


async def test_what_was_agreed_on_by_one_push_is_known_until_its_last_wave(autojump_clock):
    """Though pushes follow one another, to and from as many peers, with keys that are far apart."""
    memory = PeerMemory()
    settings = P2PSettings()
    pushes = NEXT_WAVE * (2 ** (WAVES - 1) - 1)
    for number in range(pushes * MAX_APART):
        key_range = streams_range(real_key(number), real_key(number))
        for peer in range(2 * settings.sync_peers):
            memory.note_agreement(f"peer {peer}", KeyRange(*key_range), 0.0)
    assert len(memory.holders(0.0)(real_key(0))) == 2 * settings.sync_peers
