"""What was acknowledged is there again: after kill -9, or a closing in the middle."""

import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from store_helpers import NETWORK, World, check_feed, contents, feed_of
from support import forking

from recon_node.ceramic import EventId, parse_event
from recon_node.store import FeedRow, Store, StoreError, StoreSettings, open_store

CHILD = Path(__file__).with_name("store_child.py")


def write_until_killed(directory: Path, seed: int, lines: int) -> dict[EventId, int | None]:
    """Let a process write, kill it after so many acknowledgements; return all that it gave."""
    with forking.Popen(
        [sys.executable, str(CHILD), str(directory), str(seed)], stdout=subprocess.PIPE, text=True
    ) as child:
        read = [child.stdout.readline() for _ in range(lines)]
        child.kill()
        read += child.stdout.readlines()
    assert child.returncode == -9
    acknowledged: dict[EventId, int | None] = {}
    for line in read:
        event_id, _, position = line.partition(" ")
        if position.endswith("\n"):  # the last line may be cut
            number = None if position == "-\n" else int(position)
            acknowledged[EventId(bytes.fromhex(event_id))] = number
    return acknowledged


async def check_all_there(store: Store, acknowledged: dict[EventId, int | None]) -> list[FeedRow]:
    rows = await feed_of(store)
    positions = {row.event_id: row.position for row in rows}
    cars = await store.reader.cars(list(acknowledged))
    for (event_id, position), car in zip(acknowledged.items(), cars, strict=True):
        assert event_id in store.keys
        assert car is not None
        assert parse_event(car).cid == event_id.event_cid
        assert position is None or positions[event_id] == position
    check_feed(rows, {row.event_cid: parse_event(row.car) for row in rows})
    return rows


async def test_what_was_acknowledged_survives_kill_9_at_any_time(tmp_path, rng):
    acknowledged: dict[EventId, int | None] = {}
    before: list[FeedRow] = []
    for _ in range(2):
        seed, lines = rng.randrange(2**32), rng.choice([1, 5, 50, 200])
        print("seed", seed, "lines", lines)
        acknowledged |= write_until_killed(tmp_path, seed, lines)
        async with open_store(tmp_path, NETWORK) as store:
            rows = await check_all_there(store, acknowledged)
            assert rows[: len(before)] == before
            before = rows
    assert len(acknowledged) > 1


async def test_a_log_that_cannot_be_written_is_still_read(store: Store) -> None:
    world = World(1)
    [first, *_] = world.events.values()
    await store.admit_local([first.car])
    store._writer.log.connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreError, match="cannot be written"):
        await store.admit_remote(world.offers())
    assert [row.event_cid for row in await feed_of(store)] == [first.cid]
    assert await store.reader.car(first.cid) == first.car
    store._writer.log.connection.execute("PRAGMA query_only = OFF")
    await store.admit_remote(world.offers())
    assert store.head == len(world.events)


@pytest.mark.parametrize("takes_its_place", ["nothing", "another log"])
async def test_nothing_is_acknowledged_that_the_next_start_does_not_find(tmp_path, takes_its_place):
    """The directory of a running node is deleted, or a restored one is moved into its place."""
    world = World(1)
    data_dir, moved = tmp_path / "data", tmp_path / "moved"
    [first, second, *_] = world.events.values()
    async with open_store(data_dir, NETWORK) as store:
        await store.admit_local([first.car])
        data_dir.rename(moved)
        if takes_its_place == "another log":
            async with open_store(data_dir, NETWORK):
                pass
        with pytest.raises(StoreError, match="was deleted, moved or replaced while"):
            await store.admit_local([second.car])
    if takes_its_place == "another log":
        async with open_store(data_dir, NETWORK) as store:
            assert await feed_of(store) == []
    async with open_store(moved, NETWORK) as store:
        assert [row.event_cid for row in await feed_of(store)] == [first.cid]


async def test_closing_writes_what_was_handed_in(tmp_path: Path) -> None:
    world = World(4, streams=10, events=200)
    events = list(world.events.values())

    async def submit(store: Store) -> None:
        await store.admit_local([event.car for event in events])

    async with open_store(tmp_path, NETWORK) as store, trio.open_nursery() as nursery:
        nursery.start_soon(submit, store)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert list(contents(tmp_path)) == ["events.sqlite3"]
    async with open_store(tmp_path, NETWORK) as store:
        check_feed(await feed_of(store), world.events)
        assert store.head == len(events)


async def test_closing_takes_no_longer_than_drain_seconds(tmp_path: Path) -> None:
    world = World(4, streams=10, events=300)
    cars = [event.car for event in world.events.values()]
    settings = StoreSettings(drain_seconds=0, max_batch_events=20)
    outcomes: list[str] = []

    async def submit(store: Store) -> None:
        try:
            await store.admit_local(cars)
        except StoreError as error:
            outcomes.append(str(error))

    async with trio.open_nursery() as nursery:
        async with open_store(tmp_path, NETWORK, settings=settings) as store:
            nursery.start_soon(submit, store)
            await store.wait_for_feed(19)
        assert 20 <= store.head < len(cars)
    [outcome] = outcomes
    assert "closed" in outcome
    with pytest.raises(StoreError, match="closed"):
        await store.admit_local(cars)
    with pytest.raises(StoreError, match="closed"):
        await store.reader.feed(0, 1)
    async with open_store(tmp_path, NETWORK) as again:
        check_feed(await feed_of(again), world.events)
        assert again.head == store.head


@pytest.mark.parametrize(
    ("settings", "pragma"),
    [(StoreSettings(), 2), (StoreSettings(synchronous="normal"), 1)],
    ids=["default", "normal"],
)
async def test_commits_wait_for_the_disk_as_set(tmp_path, settings, pragma):
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        connection = store._writer.log.connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (pragma,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
