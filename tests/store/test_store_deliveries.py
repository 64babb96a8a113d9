"""Events are given the time of their delivery, which ascends with their positions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from store_helpers import NETWORK, World, edit, feed_of

from recon_node.store import FeedTime, Store, UnknownTimeError, open_store
from recon_node.store.admission.shares import Marks
from recon_node.store.maintenance.repair import repair_log


class Clock:
    """A clock that is set by hand, in Unix seconds."""

    def __init__(self, store: Store, now: float) -> None:
        self.now = now
        store._writer.log.now = lambda: self.now


async def times_of(store: Store) -> list[int | None]:
    return [row.delivered_at for row in await feed_of(store)]


async def test_the_events_of_a_commit_have_its_time_which_stays(tmp_path: Path) -> None:
    offers = World(1, events=30).offers()
    async with open_store(tmp_path, NETWORK) as store:
        clock = Clock(store, 1_700_000_000.1234)
        await store.admit_remote(offers[:10])
        first = store.head
        clock.now += 60
        await store.admit_remote(offers[10:])
        expected = [1_700_000_000_123] * first + [1_700_000_060_123] * (store.head - first)
        assert 0 < first < store.head
        assert await times_of(store) == expected
    async with open_store(tmp_path, NETWORK) as store:
        assert await times_of(store) == expected


async def test_times_never_go_back_when_the_clock_is_set_back(store: Store) -> None:
    offers = World(2, events=40).offers()
    clock = Clock(store, 5_000.0)
    times = []
    for part, now in enumerate((5_000.0, 4_000.0, 4_999.0, 5_001.0)):
        clock.now = now
        before = store.head
        await store.admit_remote(offers[part * 10 : part * 10 + 10])
        assert store.head > before
        times += [max(5_000_000, int(now * 1000))] * (store.head - before)
    assert await times_of(store) == times


async def test_an_event_that_waits_has_the_time_of_its_delivery(store: Store) -> None:
    world = World(3)
    init = next(iter(world.events.values()))
    data = world.extend(init.cid, [init.cid], {"n": 1})
    clock = Clock(store, 1.0)
    await store.admit_remote([world.offer(data)])
    assert store.head == 0
    clock.now = 2.0
    await store.admit_remote([world.offer(init)])
    assert await times_of(store) == [2_000, 2_000]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_repair_keeps_the_times_if_it_keeps_the_positions(tmp_path, lost):
    async with open_store(tmp_path, NETWORK) as store:
        Clock(store, 9.0)
        await store.admit_remote(World(5, events=20).offers())
    if lost:
        edit(tmp_path, "DELETE FROM cars WHERE id = (SELECT max(id) FROM events)")
    repaired = await repair_log(tmp_path)
    async with open_store(tmp_path, NETWORK) as store:
        times = await times_of(store)
        assert repaired.epoch_kept is not lost
        assert (set(times) == {9_000}) is not lost
        assert None not in times


@pytest.mark.parametrize("seed", range(2))
async def test_the_place_of_a_time_is_between_the_events_before_and_after(store, seed):
    world = World(seed, events=60)
    offers = world.offers()
    assert await store.find_time(5) == FeedTime(0, is_final=True)
    clock = Clock(store, 100.0)
    while offers:
        size = world.random.randint(1, 9)
        await store.admit_remote(offers[:size])
        del offers[:size]
        clock.now = max(90.0, clock.now + world.random.choice([0, 0.001, 0.5, 3, -4]))
    times = [time or 0 for time in await times_of(store)]
    for time in {*times, *(time + 1 for time in times), times[0] - 1, 0}:
        before = sum(delivered_at < time for delivered_at in times)
        final = time <= max(times[-1], int(clock.now * 1000))
        assert await store.find_time(time) == FeedTime(before, final)
    future = int(clock.now * 1000) + 60_000
    assert await store.find_time(future) == FeedTime(store.head, is_final=False)


async def test_a_time_among_events_without_times_has_no_place(tmp_path: Path) -> None:
    """As events that an earlier version delivered."""
    offers = World(6, events=30).offers()
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(offers[:15])
        old = store.head
    edit(tmp_path, "DELETE FROM deliveries")
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(UnknownTimeError, match=f"the {old} events .* all that it has"):
            await store.find_time(10)
        Clock(store, 7.0)
        await store.admit_remote(offers[15:])
        with pytest.raises(UnknownTimeError, match=r"name a time from 1970-01-01T00:00:07\.000"):
            await store.find_time(6_999)
        assert await store.find_time(7_000) == FeedTime(old, is_final=True)
        assert await times_of(store) == [None] * old + [7_000] * (store.head - old)


async def test_a_question_during_a_commit_is_answered_with_its_events(store: Store) -> None:
    """A commit notes its time, and is seen a moment later."""
    Clock(store, 50.0)
    begun, may_end = threading.Event(), threading.Event()
    transaction = store._writer.log.transaction

    @contextmanager
    def slow() -> Iterator[Marks]:
        with transaction() as marks:
            yield marks
            begun.set()
            assert may_end.wait(60)

    store._writer.log.transaction = slow  # type: ignore[method-assign]
    places: list[FeedTime] = []

    async def ask() -> None:
        places.append(await store.find_time(50_001))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.admit_remote, World(7, events=20).offers())
        assert await trio.to_thread.run_sync(begun.wait, 60)
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        may_end.set()
    assert store.head > 0
    assert places == [FeedTime(store.head, is_final=False)]
