"""EventIds of peers are claims: what is held to them at once, and what only when history comes."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import KEYS, NETWORK, World, check_feed, check_tables, controller, feed_of
from support.time_events import time_event

from recon_node.ceramic import Event, EventId
from recon_node.ceramic.builder import data_event
from recon_node.store import Store, StoreSettings, open_store
from recon_node.store.db import log


@pytest.fixture
def world() -> World:
    """One stream of KEYS[0]: init, first, second."""
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    first = world.extend(init.cid, [init.cid], "first")
    world.extend(init.cid, [first.cid], "second")
    return world


async def check_delivered(store: Store, world: World) -> None:
    """All of the world is delivered, under its own EventIds, and nothing else is held."""
    rows = await feed_of(store)
    assert {row.event_id for row in rows} == {key for key, _ in world.offers()}
    assert list(store.keys) == sorted(key for key, _ in world.offers())
    assert store.waiting == 0


def wrong_claims(world: World, event: Event) -> list[tuple[EventId, bytes]]:
    """EventIds of that event that are not its own, in one respect each."""
    header, height = world.headers[event.init], world.heights[event.cid]
    other_height = world.random.choice([n for n in range(height + 3) if n != height])
    other_init = world.random.choice([cid for cid in world.events if cid != event.init])
    claims = [
        (header.sort_value, header.controller, event.init, other_height),
        (header.sort_value, header.controller, other_init, height),
        (header.sort_value, "did:x:y", event.init, height),
        ("other", header.controller, event.init, height),
    ]
    return [(EventId.build(NETWORK, *claim, event.cid), event.car) for claim in claims]


@settings(max_examples=settings().max_examples // 6, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), time_events=st.booleans())
async def test_wrong_claims_change_nothing_in_the_end(seed: int, time_events: bool) -> None:
    """The set that a node holds depends on the events that it got, not on lies or their order."""
    world = World(seed, events=15, time_events=time_events)
    right = world.offers()
    wrong = [claim for event in world.events.values() for claim in wrong_claims(world, event)]
    arrivals = right + wrong
    world.random.shuffle(arrivals)
    with tempfile.TemporaryDirectory() as directory:
        async with open_store(Path(directory), NETWORK) as store:
            for start in range(0, len(arrivals), 6):
                await store.admit_remote(arrivals[start : start + 6])
            assert list(store.keys) == sorted(event_id for event_id, _ in right)
            assert store.waiting == 0
            assert all(store.is_ruled_out(event_id) for event_id, _ in wrong)
            assert not any(store.is_ruled_out(event_id) for event_id, _ in right)
            rows = await feed_of(store)
            check_feed(rows, world.events)
            assert {row.event_cid for row in rows} == world.deliverable(world.events)
            check_tables(store)
        async with open_store(Path(directory), NETWORK) as store:
            assert list(store.keys) == sorted(event_id for event_id, _ in right)
            assert (await feed_of(store), store.waiting) == (rows, 0)


async def test_a_wrong_height_is_refused_late_and_the_right_claim_is_delivered(tmp_path, world):
    init, first, second = world.events.values()
    wrong = world.event_id(second, height=9)
    async with open_store(tmp_path, NETWORK) as store:
        verdicts = await store.admit_remote([(wrong, second.car), world.offer(second)])
        assert [v.status for v in verdicts] == ["new", "new"]
        assert (wrong in store.keys, store.waiting) == (True, 2)
        await store.admit_remote([world.offer(init)])
        assert (wrong in store.keys, store.waiting) == (True, 2)
        await store.admit_remote([world.offer(first)])
        await check_delivered(store, world)
        assert (store.is_ruled_out(wrong), store.totals["late refused"]) == (True, 1)
    async with open_store(tmp_path, NETWORK) as store:
        await check_delivered(store, world)
        assert store.is_ruled_out(wrong)
        [verdict] = await store.admit_remote([(wrong, second.car)])
        assert "has the height 9, not 2" in (verdict.reason or "")


async def test_an_orphan_is_held_to_what_its_event_id_claims(store: Store, world: World) -> None:
    init, first, _ = world.events.values()
    header = world.headers[init.cid]
    anchor = time_event(init, first.cid)
    other_stream = EventId.build(
        NETWORK, header.sort_value, header.controller, first.cid, 1, first.cid
    )
    anchor_elsewhere = EventId.build(
        NETWORK, header.sort_value, header.controller, first.cid, 1, anchor.cid
    )
    verdicts = await store.admit_remote(
        [
            (other_stream, first.car),
            (anchor_elsewhere, anchor.car),
            (world.event_id(first, height=0), first.car),
        ]
    )
    assert [v.status for v in verdicts] == ["refused"] * 3
    assert "another stream" in (verdicts[0].reason or "")
    assert "another stream" in (verdicts[1].reason or "")
    assert "height 0" in (verdicts[2].reason or "")
    assert (len(store.keys), store.waiting) == (0, 0)


async def test_what_crosses_streams_falls_with_all_that_builds_on_it(tmp_path, world):
    init, *_ = world.events.values()
    other = world.start(KEYS[0], b"other")
    header = world.headers[init.cid]

    def claim(event: Event, height: int) -> tuple[EventId, bytes]:
        return event.event_id(NETWORK, header, height), event.car

    crossing = data_event(KEYS[0], init, [init.cid, other.cid], "crossing")
    onto = data_event(KEYS[0], init, [crossing.cid], "on the crossing one")
    further = data_event(KEYS[0], init, [onto.cid], "further")
    late = data_event(KEYS[0], init, [further.cid], "late")
    claims = [claim(further, 3), claim(onto, 2), claim(crossing, 1)]
    async with open_store(tmp_path, NETWORK) as store:
        verdicts = await store.admit_remote(claims)
        assert ([v.status for v in verdicts], store.waiting) == (["new"] * 3, 3)
        await store.admit_remote([world.offer(init), world.offer(other)])
        assert (len(store.keys), store.waiting) == (2, 0)
        assert all(store.is_ruled_out(event_id) for event_id, _ in claims)
    async with open_store(tmp_path, NETWORK) as store:
        [verdict] = await store.admit_remote([claim(late, 4)])
        assert verdict.status == "refused"
        assert f"builds on {other.cid}" in (verdict.reason or "")
        [verdict] = await store.admit_local([late.car])
        assert verdict.status == "refused"
        assert {row.event_cid for row in await feed_of(store)} == {init.cid, other.cid}


async def test_a_prev_of_another_stream_is_refused(store: Store, world: World) -> None:
    init, first, _ = world.events.values()
    other = world.start(KEYS[0], b"other")
    crossing = data_event(KEYS[0], init, [init.cid, other.cid], "crossing")
    world.add(crossing)
    await store.admit_local([init.car, first.car, other.car])
    remote = await store.admit_remote([world.offer(crossing)])
    local = await store.admit_local([crossing.car])
    for verdict in remote + local:
        assert verdict.status == "refused"
        assert f"{other.cid}, which is of another stream" in (verdict.reason or "")


async def test_an_event_that_names_no_init_event_as_its_init_is_refused(tmp_path, world):
    init, first, _ = world.events.values()
    child = data_event(KEYS[0], first.cid, [first.cid], "child")
    claim = EventId.build(NETWORK, "any", controller(0), first.cid, 1, child.cid)
    async with open_store(tmp_path / "early", NETWORK) as store:
        await store.admit_remote([(claim, child.car)])
        assert store.waiting == 1
        await store.admit_remote([world.offer(init), world.offer(first)])
        assert (store.is_ruled_out(claim), store.waiting) == (True, 0)
    async with open_store(tmp_path / "late", NETWORK) as store:
        await store.admit_local([init.car, first.car])
        [verdict] = await store.admit_remote([(claim, child.car)])
        assert verdict.status == "refused"
        [verdict] = await store.admit_local([child.car])
        assert f"init event {first.cid}" in (verdict.reason or "")


async def test_refusals_are_forgotten_when_the_rules_change(tmp_path, world, monkeypatch):
    init, *_ = world.events.values()
    wrong = world.event_id(init, height=1)
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote([(wrong, init.car)])
        assert store.is_ruled_out(wrong)
    monkeypatch.setattr(log, "RULES", log.RULES + 1)
    async with open_store(tmp_path, NETWORK) as store:
        assert not store.is_ruled_out(wrong)


async def test_only_the_latest_refusals_are_remembered(tmp_path: Path, world: World) -> None:
    init, *_ = world.events.values()
    wrong = [world.event_id(init, height=height) for height in range(1, 11)]
    bounds = StoreSettings(max_refused=4)
    async with open_store(tmp_path, NETWORK, settings=bounds) as store:
        for event_id in wrong:
            await store.admit_remote([(event_id, init.car)])
        assert [store.is_ruled_out(event_id) for event_id in wrong] == [False] * 6 + [True] * 4
    async with open_store(tmp_path, NETWORK, settings=bounds) as store:
        assert [store.is_ruled_out(event_id) for event_id in wrong] == [False] * 6 + [True] * 4


async def test_events_without_history_are_kept_up_to_a_bound(tmp_path: Path) -> None:
    world = World(3, streams=1, events=8)
    init, *others = world.events.values()
    bounds = StoreSettings(max_waiting=5)
    async with open_store(tmp_path, NETWORK, settings=bounds) as store:
        verdicts = await store.admit_remote([world.offer(event) for event in others])
        assert [v.status for v in verdicts] == ["new"] * 5 + ["refused"] * 3
        assert "no room for more events whose history is missing" in (verdicts[-1].reason or "")
        assert not store.is_ruled_out(world.event_id(others[-1]))
        await store.admit_remote([world.offer(init)])
        await store.admit_remote(world.offers())
        await check_delivered(store, world)


async def test_an_event_waits_under_few_event_ids(store: Store, world: World) -> None:
    """Each batch that names an event looks at all of its claims: 20,000 held up all others."""
    init, first, second = world.events.values()
    wrong = [world.offer(second, height=height) for height in range(9, 109)]
    for start in range(0, 100, 20):
        await store.admit_remote(wrong[start : start + 20])
    assert (len(store.keys), store.waiting) == (8, 8)
    [verdict] = await store.admit_remote([world.offer(second)])
    assert (verdict.status, verdict.cause) == ("refused", "waiting")
    assert "8 other EventIds of this event wait for its history" in (verdict.reason or "")
    assert not store.is_ruled_out(world.event_id(second))
    # It is judged again when its history is here, in the same batch at the latest.
    await store.admit_remote([world.offer(second), world.offer(first), world.offer(init)])
    await check_delivered(store, world)
    assert not any(claim in store.keys for claim, _ in wrong)


async def test_a_local_event_builds_only_on_what_is_checked(store: Store, world: World) -> None:
    init, first, second = world.events.values()
    third = world.extend(init.cid, [second.cid], "third")
    await store.admit_local([init.car])
    await store.admit_remote([world.offer(second)])
    [verdict] = await store.admit_local([third.car])
    assert verdict.status == "refused"
    assert f"prev {second.cid} came from a peer and waits" in (verdict.reason or "")
    [verdict] = await store.admit_local([second.car])
    assert (verdict.status, verdict.event_id) == ("known", world.event_id(second))
    await store.admit_local([first.car, third.car])
    await check_delivered(store, world)
