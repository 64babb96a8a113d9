"""Fetching between two turns: each key once, whoever else is at it; and events in an order in which
none has to wait for what it builds on.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
import trio
from p2p_support import LOOPBACK, NETWORK, PATIENCE, Node, eventually, node
from trio.testing import memory_stream_pair

from recon_node.ceramic import network_range, parse_event
from recon_node.p2p.context import Counters
from recon_node.p2p.errors import PeerProtocolError, StaleStreamError
from recon_node.p2p.sync import event_stream, fetch
from recon_node.p2p.sync.event_server import serve_events
from recon_node.p2p.sync.event_stream import CAR, END, EVENTS_BY_ID_PROTOCOL, parse_request
from recon_node.p2p.sync.fetch import Fetcher
from recon_node.p2p.sync.fetch_table import (
    CLAIM_TIME,
    MAX_SOURCES,
    MIN_BYTES,
    SILENT_AFTER,
    SMALL_CLAIM,
    STALL_CHECK_INTERVAL,
    STALLED_AFTER,
    FetchTable,
)
from recon_node.p2p.transport.framing import FrameStream
from recon_node.p2p.transport.guarded_connection import unlimited
from recon_node.recon import RECON_1_2, FetchById, KeyRange, SoughtIds, id_of
from recon_node.store import open_store


@pytest.fixture
async def store(tmp_path):
    async with open_store(tmp_path, NETWORK) as opened:
        yield opened


class Source:
    """A peer over memory streams that holds some events, and counts what it is asked for."""

    def __init__(self, held) -> None:
        self.held = dict(held)
        self.asked = []

    async def read_cars(self, keys):
        self.asked += keys
        return [self.held.get(key) for key in keys]

    async def search(self, wanted):
        return {key: id_of(key) for key in self.held if id_of(key) in wanted.ids}

    @asynccontextmanager
    async def open(self, protocol):
        left, right = memory_stream_pair()
        theirs = FrameStream(right, LOOPBACK.max_frame)
        serve = partial(serve_events, theirs, self.read_cars, NETWORK, LOOPBACK)
        if protocol == EVENTS_BY_ID_PROTOCOL:
            serve = partial(serve, self.search)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            yield FrameStream(left, LOOPBACK.max_frame)
            await left.send_eof()


WHOLE = KeyRange(*network_range(NETWORK))
MANY = [b"%d" % number for number in range(SMALL_CLAIM)]
"""Keys enough for a claim to be one of many."""


def fetcher(store, source, table=None, peer="peer", settings=LOOPBACK) -> Fetcher:
    account = unlimited().account(peer)
    return Fetcher(peer, store, table or FetchTable(), source.open, settings, Counters(), account)


def by_hand(store, stream, **changes) -> Fetcher:
    """A fetcher whose peer is at the other end of a stream."""

    @asynccontextmanager
    async def open_stream(protocol):
        yield FrameStream(stream, LOOPBACK.max_frame)

    account, settings = unlimited().account("peer"), replace(LOOPBACK, **changes)
    return Fetcher("peer", store, FetchTable(), open_stream, settings, Counters(), account)


async def test_a_peer_that_delivers_a_key_by_its_id_is_its_source_before_the_key_is_pushed(
    store, sdk_events, monkeypatch
):
    """Else it would be pushed back."""
    table, sources = FetchTable(), {}
    admit = store.admit_remote

    async def admit_remote(events):
        sources.update((key, table.sources_of(key)) for key, _ in events)
        return await admit(events)

    monkeypatch.setattr(store, "admit_remote", admit_remote)
    ids = [id_of(key) for key, _ in sdk_events]
    sought = SoughtIds(WHOLE, ids, in_order=False)
    source = Source(sdk_events)
    await fetcher(store, source, table).perform(FetchById(sought))
    assert sources == {key: ("peer",) for key, _ in sdk_events}


async def test_what_comes_is_admitted_and_what_does_not_is_reported(store, sdk_events):
    keys = [key for key, _ in sdk_events]
    source = Source(sdk_events[:600])
    fetched = fetcher(store, source)
    assert await fetched.fetch_by_key(keys) == keys[600:]
    assert set(store.keys.keys(store.wanted.ranges[0])) == set(keys[:600])
    assert (fetched.tally.keys_received, fetched.tally.events_received) == (930, 600)


async def test_events_that_are_refused_are_reported_and_not_asked_for_again(store, sdk_events):
    good, forged = sdk_events[:3], sdk_events[3]
    key, block = forged
    broken = bytearray(block)
    broken[-1] ^= 1
    source = Source([*good, (key, bytes(broken))])
    keys = [key for key, _ in sdk_events[:4]]
    assert await fetcher(store, source).fetch_by_key(keys) == [key]
    source.asked.clear()
    assert await fetcher(store, source).fetch_by_key(keys) == [key]
    assert source.asked in ([], [key])  # a CAR that does not parse may be another's fault


async def test_a_kept_stream_that_had_ended_is_replaced(store, sdk_events):
    class Stale(Source):
        """The first stream has ended before it is used."""

        opened = 0

        @asynccontextmanager
        async def open(self, protocol):
            self.opened += 1
            if self.opened == 1:
                raise StaleStreamError("it was reset")
            async with super().open(protocol) as frames:
                yield frames

    keys, source = [key for key, _ in sdk_events[:5]], Stale(sdk_events)
    assert await fetcher(store, source).fetch_by_key(keys) == []
    assert source.opened == 2
    assert len(store.keys) == 5


class Stalled(Source):
    """Reads what it is asked for, and does not answer."""

    async def read_cars(self, keys):
        self.asked += keys
        await trio.sleep_forever()


async def until(condition) -> None:
    """Wait for what threads have a part in, on a clock that stands still."""
    while not condition():
        await trio.lowlevel.checkpoint()


async def test_a_session_waits_for_a_stalled_one_for_some_seconds_only(
    store, sdk_events, nursery, mock_clock
):
    keys = [key for key, _ in sdk_events[: 2 * SMALL_CLAIM]]
    table, liar, honest = FetchTable(), Stalled([]), Source(sdk_events)
    ended = []

    async def fetch_from(peer, source) -> None:
        fetched = fetcher(store, source, table, peer)
        ended.append((peer, await fetched.fetch_by_key(keys), fetched.tally.not_supplied))

    nursery.start_soon(fetch_from, "liar", liar)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(fetch_from, "honest", honest)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(STALLED_AFTER - 0.1)
    await trio.testing.wait_all_tasks_blocked()
    assert honest.asked == []
    mock_clock.jump(0.1 + STALL_CHECK_INTERVAL)
    await until(lambda: len(ended) == 2)
    assert sorted(ended) == [("honest", [], 0), ("liar", [], 2 * SMALL_CLAIM)]
    # For a while, nobody waits for the liar at all.
    more = [key for key, _ in sdk_events[2 * SMALL_CLAIM : 4 * SMALL_CLAIM]]
    nursery.start_soon(fetcher(store, liar, table, "liar").fetch_by_key, more)
    await trio.testing.wait_all_tasks_blocked()
    assert await fetcher(store, honest, table, "honest").fetch_by_key(more) == []


async def test_keys_that_a_session_failed_to_get_are_fetched_by_one_other(store, sdk_events):
    keys = [key for key, _ in sdk_events[:300]]
    table, good = FetchTable(), Source(sdk_events)

    class Breaks(Source):
        @asynccontextmanager
        async def open(self, protocol):
            await trio.testing.wait_all_tasks_blocked()  # the others wait by now
            async with super().open(protocol) as frames:
                yield frames

        async def read_cars(self, keys):
            raise trio.BrokenResourceError

    async def lose() -> None:
        with pytest.raises(BaseExceptionGroup):
            await fetcher(store, Breaks([]), table, "lost").fetch_by_key(keys)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lose)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            nursery.start_soon(fetcher(store, good, table, f"peer {number}").fetch_by_key, keys)
    assert len(store.keys) == 300
    assert len(good.asked) == len(set(good.asked)) == 300


async def test_many_sessions_fetch_each_key_once_and_share_the_work(store, sdk_events):
    keys = [key for key, _ in sdk_events]
    table, sources = FetchTable(), [Source(sdk_events) for _ in range(7)]
    settings = replace(LOOPBACK, events_per_request=50)
    async with trio.open_nursery() as nursery:
        for number, source in enumerate(sources):
            one = fetcher(store, source, table, f"peer {number}", settings)
            nursery.start_soon(one.fetch_by_key, keys)
    asked = [key for source in sources for key in source.asked]
    assert sorted(asked) == sorted(keys)
    assert sum(bool(source.asked) for source in sources) > 1


async def test_the_next_request_is_at_the_peer_while_it_answers_one(store, sdk_events):
    """Of all requests of a fetch, but the last."""
    keys, cars = [key for key, _ in sdk_events], dict(sdk_events)
    left, right = memory_stream_pair()
    theirs = FrameStream(right, LOOPBACK.max_frame)

    async def answer() -> None:
        came = [await theirs.receive(PATIENCE)]
        for number in range(10):
            if number < 9:
                came.append(await theirs.receive(PATIENCE))
            wanted = parse_request(came.pop(0), NETWORK)
            await theirs.send([CAR + cars[key] for key in wanted] + [END], PATIENCE)

    one = by_hand(store, left, events_per_request=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with trio.fail_after(PATIENCE):
            assert await one.fetch_by_key(keys[:50]) == []


async def test_who_supplies_nothing_is_not_asked_for_all_that_it_lists(store):
    wanted = SoughtIds(WHOLE, [id_of(b"%d" % number) for number in range(5000)])
    left, right = memory_stream_pair()
    theirs = FrameStream(right, LOOPBACK.max_frame)
    one = by_hand(store, left)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve_events, theirs, None, NETWORK, LOOPBACK, Source([]).search)
        with pytest.raises(PeerProtocolError, match="1500 keys for which it delivered no event"):
            await one.perform(FetchById(wanted))
        await left.send_eof()
    assert one.tally.not_supplied == 1500
    assert one._account._held["fetches"] == 0


async def test_a_slow_store_makes_no_peer_a_slow_one(mock_clock):
    table = FetchTable()
    with table.claim("a") as claim:
        claim.watch(lambda: 0)
        assert claim.take([b"key", *MANY]) == ([b"key", *MANY], [])
        with claim.peers_turn():
            mock_clock.jump(STALLED_AFTER / 2)
            with claim.stores_turn():
                mock_clock.jump(100 * STALLED_AFTER)
                assert table.claimed([b"key"], "b") == [b"key"]
            assert table.claimed([b"key"], "b") == [b"key"]
            mock_clock.jump(STALLED_AFTER)
            assert table.claimed([b"key"], "b") == []
            assert table.claimed([b"key"], "a") == [b"key"]  # no use in asking it twice


async def test_who_trickles_loses_its_claim_in_the_end(mock_clock):
    received = 0
    with (table := FetchTable()).claim("a") as claim:
        claim.watch(lambda: received)
        claim.take([b"key", *MANY])
        with claim.peers_turn():
            waited = 0.0
            while table.claimed([b"key"], "b"):
                mock_clock.jump(STALLED_AFTER)
                waited += STALLED_AFTER
                received += MIN_BYTES
    assert waited == CLAIM_TIME


async def test_a_peer_that_is_silent_about_few_keys_loses_them_soon(mock_clock):
    """And then no other peer at its address keeps any."""
    table = FetchTable()
    with table.claim("a", "192.0.2.1") as claim:
        claim.watch(lambda: 0)
        claim.take([b"key"])
        with claim.peers_turn():
            mock_clock.jump(SILENT_AFTER / 2)
            assert table.claimed([b"key"], "b") == [b"key"]
            mock_clock.jump(SILENT_AFTER / 2)
            assert table.claimed([b"key"], "b") == []
    with table.claim("also a", "192.0.2.1") as claim:
        claim.take([b"other"])
        assert table.claimed([b"other"], "b") == []
    with table.claim("c", "192.0.2.2") as claim:
        claim.take([b"other"])
        assert table.claimed([b"other"], "b") == [b"other"]


async def test_a_few_keys_of_a_peer_that_sends_stay_its_own(mock_clock):
    received = 0
    with (table := FetchTable()).claim("a") as claim:
        claim.watch(lambda: received)
        claim.take([b"key"])
        with claim.peers_turn():
            received = 1
            mock_clock.jump(2 * SILENT_AFTER)
            assert table.claimed([b"key"], "b") == [b"key"]


def test_it_is_remembered_who_listed_a_key():
    table = FetchTable()
    table.note_source([b"a", b"b"], "x")
    table.note_source([b"b"], "y")
    assert [table.sources_of(key) for key in (b"a", b"b", b"c")] == [("x",), ("x", "y"), ()]
    table.note_source([number.to_bytes(4, "big") for number in range(MAX_SOURCES)], "z")
    assert table.sources_of(b"a") == ()


SMALL_REQUESTS = {"events_per_request": 25, "versions": [RECON_1_2], "ceramic_one": False}


@asynccontextmanager
async def counted(path, cars: list[bytes], monkeypatch) -> AsyncIterator[tuple[Node, list[int]]]:
    """A node with some events, and how many wait after each batch of others."""
    monkeypatch.setattr(event_stream, "BATCH_EVENTS", 50)
    monkeypatch.setattr(fetch, "BATCH_EVENTS", 50)
    async with node(path, cars, **SMALL_REQUESTS) as one:
        waiting: list[int] = []
        admit = one.store.admit_remote

        async def admit_remote(events):
            verdicts = await admit(events)
            waiting.append(one.store.waiting)
            return verdicts

        monkeypatch.setattr(one.store, "admit_remote", admit_remote)
        yield one, waiting


@pytest.mark.parametrize("starts", ["full", "empty"])
async def test_no_event_of_a_sync_waits_for_its_prev(tmp_path, sdk_cars, monkeypatch, starts):
    cars = sdk_cars[:400]
    async with (
        node(tmp_path / "full", cars, **SMALL_REQUESTS) as full,
        counted(tmp_path / "empty", [], monkeypatch) as (empty, waiting),
    ):
        first, other = (full, empty) if starts == "full" else (empty, full)
        await first.p2p.connect(other.address)
        await eventually(lambda: empty.holds_as_many_as(len(cars)))
        assert len(waiting) > 1  # a slow machine commits more at once
        assert not any(waiting)


async def test_nor_where_the_receiver_decodes_what_it_lacks(tmp_path, sdk_cars, monkeypatch):
    """Symbols tell ids in no order, and each request is for few of them."""
    cars = sdk_cars[:400]
    held = [car for car in cars if parse_event(car).init[-1] % 2]
    async with (
        node(tmp_path / "full", cars, **SMALL_REQUESTS) as full,
        counted(tmp_path / "half", held, monkeypatch) as (half, waiting),
    ):
        await full.p2p.connect(half.address)
        await eventually(lambda: half.holds_as_many_as(len(cars)) and half.p2p.transfers)
        assert half.p2p.transfers[0].role == "responder"
        assert not any(waiting)


async def test_events_are_put_in_order_as_far_as_they_fit(monkeypatch):
    monkeypatch.setattr(fetch, "SORTED_BYTES", 1000)
    came: list[list[int]] = []
    account = unlimited().account("peer")

    async def deliver(events) -> None:
        came.append([key for key, _ in events])

    with pytest.raises(trio.BrokenResourceError):  # noqa: PT012 - what came before is delivered
        async with fetch._in_key_order(deliver, account) as take:
            for start in range(0, 24, 2):
                await take([(-start, bytes(50)), (-start - 1, bytes(50))])
                assert account._held["events in order"] <= 1000
            raise trio.BrokenResourceError
    assert came == [[*range(-19, 1)], [*range(-23, -19)]]
    assert account._held["events in order"] == 0
