"""Group commit: many callers share a transaction, and none suffers from another."""

import _thread
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest
import trio
import trio.testing
from store_helpers import NETWORK, World, check_feed, feed_of

from recon_node.fairness.slots import working_for
from recon_node.store import Interest, Store, StoreError, StoreSettings, Verdict, open_store
from recon_node.store.admission.shares import Marks
from recon_node.store.db import log_schema
from recon_node.store.db.log import EventLog
from recon_node.store.db.sql import insert_rows
from recon_node.store.intake import Writer
from recon_node.store.reading import Reader
from recon_node.verification import Facts, Unreadable, check_event, verifiers


async def test_callers_share_batches(store: Store) -> None:
    world = World(1, streams=60, events=0)
    verdicts: list[Verdict] = []

    async def submit(store: Store, car: bytes) -> None:
        verdicts.extend(await store.admit_local([car]))

    async with trio.open_nursery() as nursery:
        for event in world.events.values():
            nursery.start_soon(submit, store, event.car)
    assert sorted(v.position or 0 for v in verdicts) == list(range(1, 61))
    assert store.batch_durations["ok"].count <= 3


def test_rows_of_any_number_are_inserted() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE numbers (number, text)")
    for count in (0, 1, 50, 51, 249, 250, 251, 549, 1_000):
        rows = [(number, f"{number}") for number in range(count)]
        insert_rows(connection, "INSERT INTO numbers (number, text) VALUES", iter(rows))
        assert connection.execute("SELECT * FROM numbers").fetchall() == rows
        connection.execute("DELETE FROM numbers")


class Steps(trio.abc.Instrument):
    """Counts the steps of tasks."""

    def __init__(self) -> None:
        self.of_tasks = Counter[str]()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.of_tasks[task.name] += 1


async def test_a_single_event_takes_few_steps(store: Store) -> None:
    """Its caller's task goes on with its verdict as soon as the writer's thread has it."""
    world = World(1, streams=3, events=0)
    for event in world.events.values():
        await trio.testing.wait_all_tasks_blocked()
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await store.admit_local([event.car])
        trio.lowlevel.remove_instrument(steps)
        assert steps.of_tasks == {trio.lowlevel.current_task().name: 1}


@pytest.mark.parametrize(
    "settings",
    [
        StoreSettings(max_batch_events=7),
        StoreSettings(max_batch_bytes=2000),
        StoreSettings(max_batch_bytes=1),
        StoreSettings(queue_size=0, max_batch_events=1),
    ],
    ids=["by count", "by bytes", "each alone", "no queue"],
)
async def test_many_events_are_cut_into_batches(tmp_path: Path, settings: StoreSettings) -> None:
    world = World(1)
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        verdicts = await store.admit_local([event.car for event in world.events.values()])
        assert [v.event_id for v in verdicts] == [key for key, _ in world.offers()]
        check_feed(await feed_of(store), world.events)
        assert store.batch_durations["ok"].count > 3


async def test_a_flood_of_one_network_delays_another_by_a_batch(tmp_path: Path) -> None:
    world = World(1, streams=90, events=0)
    *flood, honest = [event.car for event in world.events.values()]
    settings = StoreSettings(max_batch_events=8, queue_size=20)
    places: dict[str, list[int]] = {"192.0.2.1": [], "192.0.2.2": []}

    async def submit(store: Store, asker: str, car: bytes) -> None:
        with working_for(asker):
            [verdict] = await store.admit_local([car])
        places[asker].append(verdict.position or 0)

    async with (
        open_store(tmp_path, NETWORK, settings=settings) as store,
        trio.open_nursery() as nursery,
    ):
        for car in flood:
            nursery.start_soon(submit, store, "192.0.2.1", car)
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        nursery.start_soon(submit, store, "192.0.2.2", honest)
    assert len(places["192.0.2.1"]) == len(flood)
    # One batch is written, the next one is verified, a third one is full, and then comes this one.
    assert places["192.0.2.2"][0] <= 4 * 8


async def test_a_cancelled_caller_does_not_take_its_events_back(store: Store) -> None:
    world = World(1)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.admit_remote, world.offers())
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    await store.wait_for_feed(len(world.events) - 1)
    check_feed(await feed_of(store), world.events)
    assert {v.status for v in await store.admit_remote(world.offers())} == {"known"}


async def test_what_comes_while_the_log_is_closed_finds_it_closed(store, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    log = EventLog(other, NETWORK, StoreSettings())
    writer = Writer(log, store.publish, log.close)
    changed: list[int] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run, lambda: changed.append(1))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(writer.close)
        for _ in range(2):  # tasks that are due at once run in any order
            await trio.lowlevel.checkpoint()
        with pytest.raises(StoreError, match="the store is closed"):
            await writer.run(lambda: changed.append(2))
    assert changed == [1]


def test_ctrl_c_while_the_log_is_changed_leaves_it_to_be_closed(tmp_path: Path) -> None:
    """As in a command whose main task changes the log, which closes it after that."""
    closed: list[bool] = []
    interrupted = Event()

    def change() -> None:
        _thread.interrupt_main()
        assert interrupted.wait(60)

    async def command() -> None:
        log = EventLog(tmp_path, NETWORK, StoreSettings())
        writer = Writer(log, lambda committed: None, lambda: closed.append(True))
        with pytest.raises(KeyboardInterrupt):
            await writer.run(change)
        interrupted.set()
        with trio.fail_after(60):
            await writer.ask(lambda: None)
        await writer.close()
        log.close()

    trio.run(command)
    assert closed == [True]


async def test_no_thread_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an error, and the next one a thread."""

    def start(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    event = next(iter(World(1).events.values()))
    async with open_store(tmp_path, NETWORK) as store:
        with monkeypatch.context() as patch:
            patch.setattr(Thread, "start", start)
            for _ in range(2):
                with pytest.raises(StoreError, match="can't start new thread"):
                    await store.admit_local([event.car])
        with trio.fail_after(60):
            assert [v.status for v in await store.admit_local([event.car])] == ["new"]


async def test_a_change_is_made_without_its_caller(store, tmp_path, monkeypatch):
    """Of two single events whose callers leave while the disk stands still, both are published."""
    first, second = [event.car for event in World(1, streams=2, events=0).events.values()]
    goes_on, transaction = Event(), EventLog.transaction

    @contextmanager
    def stand_still(log: EventLog) -> Iterator[Marks]:
        with transaction(log) as marks:
            yield marks
            assert goes_on.wait(60)

    monkeypatch.setattr(EventLog, "transaction", stand_still)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.admit_local, [first])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(store.admit_local, [second])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert store.head == 0
    goes_on.set()
    with trio.fail_after(60):
        await store.wait_for_feed(1)
    assert [row.car for row in await feed_of(store)] == [first, second]


async def test_an_event_that_breaks_the_node_is_refused_alone(tmp_path, monkeypatch):
    world = World(1, streams=5, events=0)
    *good, poison = [event.car for event in world.events.values()]

    def failing_check(car: bytes) -> Facts | Unreadable:
        if car == poison:
            raise RuntimeError("a bug")
        return check_event(car)

    monkeypatch.setattr(verifiers, "check_event", failing_check)
    settings = StoreSettings(native="off")  # which would not ask
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        verdicts = await store.admit_local([*good[:2], poison, *good[2:]])
        assert [v.status for v in verdicts] == ["new", "new", "refused", "new", "new"]
        assert "a bug" in (verdicts[2].reason or "")
        assert [row.car for row in await feed_of(store)] == good


async def test_wait_for_feed_wakes_every_waiter_at_its_position(tmp_path: Path) -> None:
    world = World(1, streams=3, events=0)
    cars = [event.car for event in world.events.values()]
    woken: list[int] = []

    async def wait(store: Store, after: int) -> None:
        await store.wait_for_feed(after)
        assert store.head > after
        woken.append(after)

    async with open_store(tmp_path, NETWORK) as store, trio.open_nursery() as nursery:
        for after in (2, 1, 0, 0):
            nursery.start_soon(wait, store, after)
        await trio.testing.wait_all_tasks_blocked()
        for n, car in enumerate(cars):
            await store.admit_local([car])
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(woken) == sorted([0, 0, 1, 2][: n + 2])


async def test_the_feed_is_read_in_pages(store: Store) -> None:
    world = World(1)
    await store.admit_remote(world.offers())
    rows = await feed_of(store)
    pages = [await store.reader.feed(after, 7) for after in range(0, len(rows), 7)]
    assert [row for page in pages for row in page] == rows
    assert await store.reader.feed(3, 100, 5) == rows[3:5]
    assert await store.reader.feed(3, 1, 5) == rows[3:4]
    assert await store.reader.feed(5, 100, 5) == []
    assert await store.reader.feed(len(rows), 100) == []
    assert await store.reader.feed(0, 2**70, 2**70) == rows
    assert await store.reader.feed(2**70, 1) == []


async def test_reads_beside_writes_see_whole_batches(tmp_path: Path) -> None:
    """Readers run all the time; what they see is always a dense prefix that ends at a commit."""
    world = World(2, streams=20, events=100)
    cars = [event.car for event in world.events.values()]
    settings = StoreSettings(max_batch_events=10, readers=3)
    done = trio.Event()
    lengths: set[int] = set()

    async def read(store: Store) -> None:
        while not done.is_set():
            rows = await feed_of(store)
            check_feed(rows, world.events)
            lengths.add(len(rows))

    async with (
        open_store(tmp_path, NETWORK, settings=settings) as store,
        trio.open_nursery() as nursery,
    ):
        for _ in range(5):
            nursery.start_soon(read, store)
        await store.admit_local(cars)
        done.set()
    assert lengths <= set(range(0, len(cars) + 1, 10))


async def test_interests_can_be_added_while_events_are_written(store: Store) -> None:
    world = World(2, streams=20, events=50)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.admit_remote, world.offers())
        for n in range(10):
            nursery.start_soon(store.wanted.add, Interest("model", f"value {n % 5}"))
    assert len(store.wanted.all) == 5
    assert len(set(store.wanted.all)) == 5


async def test_cars_are_found_by_event_id_and_by_cid(store: Store) -> None:
    world = World(3)
    events = list(world.events.values())
    await store.admit_remote([world.offer(event) for event in events[:-1]])
    wanted = [world.event_id(event) for event in reversed(events)]
    cars = [event.car for event in reversed(events)]
    assert await store.reader.cars([*wanted, wanted[1]]) == [None, *cars[1:], cars[1]]
    assert await store.reader.cars([]) == []
    assert await store.reader.car(events[0].cid) == events[0].car
    assert await store.reader.car(events[-1].cid) is None


async def test_readers_share_a_few_connections(tmp_path, monkeypatch):
    opened: list[Path] = []
    open_reader = log_schema.open_reader

    def counting_open_reader(data_dir: Path) -> sqlite3.Connection:
        opened.append(data_dir)
        return open_reader(data_dir)

    monkeypatch.setattr(log_schema, "open_reader", counting_open_reader)
    settings = StoreSettings(readers=2)
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(store.reader.feed, 0, 10)
        await store.reader.feed(0, 10)
    assert 1 <= len(opened) <= 2


async def test_nobody_waits_for_a_read_that_was_given_up(tmp_path: Path) -> None:
    begun = trio.Event()

    def read_on_and_on(reader: Reader) -> None:
        trio.from_thread.run_sync(begun.set)
        reader.connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) "
            "SELECT count(*) FROM n"
        ).fetchall()
        raise AssertionError("it came to its end")

    async with open_store(tmp_path, NETWORK, settings=StoreSettings(readers=1)) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.reader.ask, read_on_and_on)
            await begun.wait()
            nursery.cancel_scope.cancel()
        assert await store.reader.feed(0, 10) == []


async def test_events_that_cannot_be_checked_ahead_are_admitted_all_the_same(store, monkeypatch):
    """The node continues, for example when the system briefly has no thread left."""
    world = World(1)

    def no_thread(findings: object, cars: object) -> list[Facts | Unreadable]:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(verifiers, "_unpack", no_thread)
        offers = world.offers()
        verdicts = await store.admit_remote([*offers[:20], (offers[20][0], b"garbage")])
    assert [v.status for v in verdicts] == ["new"] * 20 + ["refused"]
    verdicts = await store.admit_remote(world.offers())
    assert {v.status for v in verdicts} == {"new", "known"}
    check_feed(await feed_of(store), world.events)
