"""Damaged events are never served, and replaced by a copy that arrives."""

import io
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from capabilities import ACCOUNT, change, init_of
from store_helpers import KEYS, MODEL, NETWORK, SETTINGS, World, check_feed, edit, feed_of, offer
from structlog.testing import capture_logs
from support import sdk_sample, vectors

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.store import DamagedEventError, Store, StoreError, open_store
from recon_node.store.damage import car_fault, is_plainly_sound
from recon_node.store.maintenance import check_log, export_events


def flip(directory: Path, event: Event, at: int = 200) -> None:
    """Flip a bit of the stored CAR of an event, none of whose blocks is shared."""
    spoilt = bytearray(event.car)
    spoilt[at] ^= 1
    sql = "UPDATE cars SET car = ? WHERE id IN (SELECT id FROM events WHERE cid = ?)"
    assert edit(directory, sql, bytes(spoilt), event.cid) == 1


def test_any_change_of_a_car_is_noticed() -> None:
    """By the quick check, or by parsing: the quick one tells most sound CARs without it."""
    random = Random(5)
    world, session = World(3, time_events=True), init_of(ACCOUNT)
    of_the_sdk = [*map(parse_event, random.sample(sdk_sample.cars(), 20))]
    first, *_ = events = [*world.events.values(), session, change(session), *of_the_sdk]
    assert sum(is_plainly_sound(event.car, event.cid) for event in events) > len(events) / 2
    foreign = CID.of(DAG_CBOR, b"\xa0")
    for event in events:
        assert car_fault(event.car, event.cid) is None
        assert car_fault(event.car, first.cid) is not None or event is first
        for at in random.sample(range(len(event.car)), 20):
            for change_of in (1 << random.randrange(8), random.randrange(1, 256)):
                spoilt = bytearray(event.car)
                spoilt[at] ^= change_of
                assert car_fault(bytes(spoilt), event.cid) is not None, (event.kind, at)
        for size in (0, 1, 50, len(event.car) - 1):
            assert car_fault(event.car[:size], event.cid) is not None
        assert car_fault(event.car + b"\0", event.cid) is not None
        blocks = dict(car.decode(event.car).blocks)
        for other in (
            car.encode([event.cid], {**blocks, foreign: b"\xa0"}),
            car.encode([event.cid, foreign], blocks),
            car.encode([event.cid], {cid: blocks[cid] for cid in blocks if cid != event.cid}),
            car.encode([event.cid], {}),
        ):
            assert not is_plainly_sound(other, event.cid)


@pytest.mark.parametrize("size", [100, 16_000, 16_300, 16_400, 900_000])
def test_large_events_are_recognized_without_parsing(size: int) -> None:
    """To parse one of 480 kB took 0.3 s, each time that somebody read it."""
    event = init_event(KEYS[0], MODEL, {"a": "x" * size}, unique=b"u")
    assert is_plainly_sound(event.car, event.cid)
    head = len(event.car) - size
    for at in [*range(0, head, 3), -1, -size // 2]:
        broken = bytearray(event.car)
        broken[at] ^= 0x80
        assert not is_plainly_sound(bytes(broken), event.cid)


@pytest.mark.parametrize("how", ["peer", "client"])
async def test_a_damaged_event_is_not_served_until_it_comes_again(tmp_path: Path, how: str) -> None:
    world = World(1)
    cars = [event.car for event in world.events.values()]
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local(cars)
        before = await feed_of(store)
        row = before[10]
        hash_before, pending = store.keys.summarize(), store.pending
        flip(tmp_path, world.events[row.event_cid])

        for read in reads_of(store, row.event_cid, row.stream_cid):
            with pytest.raises(DamagedEventError, match=rf"{row.event_cid} .*damaged.*--repair"):
                await read()
        assert await store.reader.feed(0, 1000) == before[:10], "up to the damaged one"
        assert await store.reader.cars_for_peers([before[9].event_id, row.event_id]) == [
            before[9].car,
            None,
        ]
        assert (store.damage.count, store.damage.repaired_total) == (1, 0)
        assert row.event_id not in store.keys, "Recon fetches what is not here"
        assert store.pending == pending

        if how == "peer":
            [verdict] = await store.admit_remote([(row.event_id, row.car)])
        else:
            [verdict] = await store.admit_local([row.car])
        assert (verdict.status, verdict.position) == ("known", row.position)
        assert await feed_of(store) == before
        for read in reads_of(store, row.event_cid, row.stream_cid):
            await read()
        assert (store.damage.count, store.damage.repaired_total) == (0, 1)
        assert (store.keys.summarize(), store.pending) == (hash_before, pending)
    assert check_log(tmp_path).clean


def reads_of(store: Store, cid: CID, init: CID) -> list[Callable[[], object]]:
    return [
        lambda: store.reader.car(cid),
        lambda: store.reader.feed(10, 1000),
        lambda: store.reader.feed(10, 1),
        lambda: store.reader.feed_columns(0, 1000, 1000, 1 << 30),
        lambda: store.reader.signed_events(init),
        lambda: store.damage.check_range(0, 1000),
    ]


async def test_another_event_does_not_repair(tmp_path: Path) -> None:
    world = World(1)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers())
        first, second, *_ = await feed_of(store)
        flip(tmp_path, world.events[first.event_cid])
        assert await store.reader.cars_for_peers([first.event_id]) == [None]
        for wrong in (second.car, first.car[:-1], b""):
            await store.admit_remote([(first.event_id, wrong)])
            assert store.damage.count == 1
        assert await store.reader.cars_for_peers([first.event_id]) == [None]


@pytest.mark.parametrize(
    "sql", ["UPDATE blocks SET block = zeroblob(length(block))", "DELETE FROM blocks"]
)
async def test_a_damaged_shared_block_is_repaired_for_all_events_with_it(tmp_path, sql):
    world = World(3, time_events=True)
    times = [event for event in world.events.values() if event.proof is not None]
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers())
        edit(tmp_path, sql)
        for event in times:
            assert await is_damaged(store, event)
        assert store.damage.count == len(times)
        for event in times:
            await store.admit_remote([world.offer(event)])
        assert [await store.reader.car(event.cid) for event in times] == [e.car for e in times]
        assert store.damage.count == 0
    assert check_log(tmp_path).clean


@pytest.mark.parametrize("both", [True, False], ids=["again", "new"])
async def test_one_copy_mends_what_another_event_shares(tmp_path: Path, both: bool) -> None:
    """One session signs both: whichever comes again, or is new, brings the capability for both."""
    init = init_of(ACCOUNT)
    second = change(init)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([init.car, second.car][: 1 + both])
        assert edit(tmp_path, "UPDATE blocks SET block = zeroblob(length(block))") == 1
        assert await is_damaged(store, init)
        assert not both or await is_damaged(store, second)
        await store.admit_local([init.car if both else second.car])
        for event in (init, second):
            assert await store.reader.car(event.cid) == event.car
        await store.damage.check_range(0, 2)
        assert store.damage.count == 0, "each was whole when it was looked at again"
        assert len(store.keys) == 2
    assert check_log(tmp_path).clean


async def is_damaged(store: Store, event: Event) -> bool:
    try:
        await store.reader.car(event.cid)
    except DamagedEventError:
        return True
    return False


async def test_a_waiting_event_that_is_damaged_goes_on_when_it_is_repaired(tmp_path: Path) -> None:
    """Whether a session may write is seen in its event, when the init event comes."""
    init = init_of(ACCOUNT)
    second = change(init)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote([offer(second, init, 1)])
        flip(tmp_path, second)
        [verdict] = await store.admit_remote([offer(init)])
        assert (verdict.status, verdict.position, store.head) == ("new", 1, 1)
        assert (store.damage.count, store.waiting) == (1, 1)
        await store.admit_remote([offer(second, init, 1)])
        assert (store.damage.count, store.waiting, store.head) == (0, 0, 2)
        assert [row.car for row in await feed_of(store)] == [init.car, second.car]
    assert check_log(tmp_path).clean


async def test_what_waits_for_a_damaged_name_is_not_passed_over(tmp_path: Path) -> None:
    world = World(1, streams=1, events=2)
    init, *events = world.events.values()
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote([world.offer(event) for event in events])
        assert edit(tmp_path, "UPDATE waits SET cid = x'ff' WHERE cid != ?", init.cid) > 0
        with pytest.raises(StoreError, match=r"damaged .*recon-node store check --repair"):
            await store.reader.waiting(None, 9)
        await store.admit_remote([world.offer(init)])  # what the others wait for, their CARs say
        assert store.head == 3


async def test_a_damaged_row_fails_only_the_event_that_needs_it(tmp_path: Path) -> None:
    world = World(1, streams=2, events=0)
    first, second = world.events.values()
    above, beside = (world.extend(init.cid, [init.cid], 1) for init in (first, second))
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote([world.offer(first), world.offer(second)])
        edit(tmp_path, "UPDATE events SET name = x'ff' WHERE cid = ?", first.cid)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:  # which remembers neither
        verdicts = await store.admit_remote([world.offer(above), world.offer(beside)])
        assert [verdict.status for verdict in verdicts] == ["refused", "new"]
        assert "damaged" in (verdicts[0].reason or "")
        assert not store.is_ruled_out(world.event_id(above))


@pytest.mark.parametrize(
    "sql",
    vectors.load("feed_damages"),
)
async def test_no_position_is_passed_over(tmp_path: Path, sql: str) -> None:
    world = World(1, streams=1, events=8)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([event.car for event in world.events.values()])
        assert edit(tmp_path, sql) == 1
        rows = await store.reader.feed(0, 1000)
        assert [row.position for row in rows] == [1, 2, 3, 4, 5]
        assert store.damage.count == 1, "noted although nobody asks for what comes after"
        with pytest.raises(DamagedEventError, match="feed position 6 is damaged"):
            await store.reader.feed(5, 1000)
        with pytest.raises(DamagedEventError, match="feed position 6 is damaged"):
            await store.reader.feed_columns(0, 1000, 1000, 1 << 30)
        assert store.damage.count >= 1


async def test_an_export_of_a_damaged_log_is_refused(tmp_path: Path) -> None:
    world = World(1)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([event.car for event in world.events.values()])
        check_feed(await feed_of(store), world.events)
    flip(tmp_path, next(iter(world.events.values())))
    with pytest.raises(DamagedEventError, match="store check --repair"):
        export_events(tmp_path, io.BytesIO())


async def test_each_damaged_event_is_logged_once(tmp_path: Path) -> None:
    world = World(1)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([event.car for event in world.events.values()])
        [row, *_] = await feed_of(store)
        flip(tmp_path, world.events[row.event_cid])
        with capture_logs() as logs:
            for _ in range(3):
                assert await store.reader.cars_for_peers([row.event_id]) == [None]
                with pytest.raises(DamagedEventError):
                    await store.reader.feed(0, 1)
    assert [entry["event"] for entry in logs] == ["An event in the log is damaged"]
