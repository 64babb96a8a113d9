"""Delivery: whatever the order of arrival, the feed is a linear extension of the streams' DAGs."""

import tempfile
from pathlib import Path

import trio
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import NETWORK, SLOW, World, check_feed, check_tables, feed_of

from recon_node.ipld import CID, DAG_CBOR
from recon_node.recon import KeyStore
from recon_node.store import Store, open_store
from recon_node.store.db import log_schema
from recon_node.store.reading.columns import OF_STREAM
from recon_node.store.store import Arrivals


@SLOW
@given(seed=st.integers(0, 2**32), time_events=st.booleans())
async def test_any_order_of_arrival_delivers_what_is_whole(seed: int, time_events: bool) -> None:
    world = World(seed, time_events=time_events)
    offers = world.offers()
    arrivals = offers + world.random.choices(offers, k=len(offers) // 3)
    world.random.shuffle(arrivals)
    here: set[CID] = set()
    with tempfile.TemporaryDirectory() as directory:
        async with open_store(Path(directory), NETWORK) as store:
            while arrivals:
                size = world.random.choice([1, 2, 5, 20])
                batch, arrivals = arrivals[:size], arrivals[size:]
                verdicts = await store.admit_remote(batch)
                for (event_id, _), verdict in zip(batch, verdicts, strict=True):
                    expected = "known" if event_id.event_cid in here else "new"
                    assert (verdict.status, verdict.event_id) == (expected, event_id)
                    here.add(event_id.event_cid)
                rows = await feed_of(store)
                check_feed(rows, world.events)
                positions = {row.event_id: row.position for row in rows}
                assert {row.event_cid for row in rows} == world.deliverable(here)
                assert [v.position for v in verdicts] == [positions.get(e) for e, _ in batch]
                assert store.head == len(rows)
                assert store.waiting == len(world.waiting(here))
                assert store.pending == len(here) - store.waiting - store.head
            check_tables(store)
            summary = store.keys.summarize()
            oracle = KeyStore()
            oracle.load(event_id for event_id, _ in offers)
            assert summary == oracle.summarize()
            before = (rows, summary, store.waiting, store.epoch, store.head)
        async with open_store(Path(directory), NETWORK) as store:
            rows = await feed_of(store)
            summary = store.keys.summarize()
            assert before == (rows, summary, store.waiting, store.epoch, store.head)
            again = await store.admit_remote(offers)
            assert {verdict.status for verdict in again} == {"known"}
            assert await feed_of(store) == rows


@SLOW
@given(seed=st.integers(0, 2**32), time_events=st.booleans())
async def test_local_and_remote_admission_agree(seed: int, time_events: bool) -> None:
    world = World(seed, time_events=time_events)
    with tempfile.TemporaryDirectory() as directory:
        async with open_store(Path(directory), NETWORK) as store:
            verdicts = await store.admit_local([event.car for event in world.events.values()])
            assert [verdict.event_id for verdict in verdicts] == [key for key, _ in world.offers()]
            assert {verdict.status for verdict in verdicts} == {"new"}
            rows = await feed_of(store)
            check_feed(rows, world.events)
            assert {row.event_cid for row in rows} == world.deliverable(world.events)
            assert store.waiting == 0


async def test_a_long_chain_that_comes_backwards_is_delivered(store: Store) -> None:
    world = World(0, streams=1, events=0)
    [init] = world.events
    tip = init
    for n in range(300):
        tip = world.extend(init, [tip], n).cid
    backwards = world.offers()[:0:-1]
    await store.admit_remote(backwards)
    assert (store.head, store.waiting) == (0, 300)
    [verdict] = await store.admit_remote([world.offer(world.events[init])])
    assert verdict.position == 1
    await store.wait_for_feed(300)
    assert (store.head, store.waiting) == (301, 0)
    assert [row.event_cid for row in await feed_of(store)] == list(world.events)


async def test_every_new_key_arrives_delivered_or_not(store):
    world = World(1)
    init = next(iter(world.events.values()))
    [data] = [world.extend(init.cid, [init.cid], {"n": 1})]
    later = world.extend(init.cid, [data.cid], {"n": 2})
    await store.admit_local([init.car])
    await store.admit_remote([world.offer(later)])  # waits for its prev
    assert store.waiting == 1
    await store.admit_remote([world.offer(data), world.offer(init)])
    expected = [world.event_id(event) for event in (init, later, data)]
    assert store.arrivals.total == 3
    assert store.arrivals.since(0) == expected
    assert store.arrivals.since(2) == expected[2:]
    assert store.arrivals.since(3) == []


async def test_a_reader_that_lags_too_far_behind_gets_none(nursery):
    arrivals = Arrivals(remembered=3)
    woken = []

    async def wait() -> None:
        await arrivals.wait(0)
        woken.append(arrivals.total)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    arrivals.add([])
    await trio.testing.wait_all_tasks_blocked()
    assert woken == []
    arrivals.add([b"a", b"b"])
    await trio.testing.wait_all_tasks_blocked()
    assert woken == [2]
    arrivals.add([b"c", b"d"])
    assert arrivals.since(0) is None
    assert arrivals.since(1) == [b"b", b"c", b"d"]


async def test_a_stream_is_the_feed_s_rows_of_that_stream(store: Store) -> None:
    world = World(3, streams=4, events=40)
    offers = world.offers()
    withheld = offers[len(offers) // 2]  # whatever builds on it is held back, and no stream has it
    await store.admit_remote([offer for offer in offers if offer != withheld])
    feed = await feed_of(store)
    for init in world.headers:
        assert await store.reader.signed_events(init) == [r for r in feed if r.stream_cid == init]
    longest = max([await store.reader.signed_events(init) for init in world.headers], key=len)
    init = longest[0].stream_cid
    assert await store.reader.signed_events(init, limit=2) == longest[:2]
    assert await store.reader.signed_events(init, max_bytes=len(longest[0].car) + 1) == longest[:2]
    assert await store.reader.signed_events(CID.of(DAG_CBOR, b"nothing")) == []


async def test_a_stream_is_found_by_an_index(tmp_path: Path) -> None:
    async with open_store(tmp_path, NETWORK):
        connection = log_schema.open_reader(tmp_path)
        plan = connection.execute(
            "EXPLAIN QUERY PLAN SELECT position FROM events CROSS JOIN cars USING (id) "
            f"WHERE {OF_STREAM} AND position IS NOT NULL ORDER BY position LIMIT ?",
            (b"", b"", 1),
        ).fetchall()
        connection.close()
    assert any("by_stream" in row[3] for row in plan)
    assert not any("TEMP B-TREE" in row[3] for row in plan)
