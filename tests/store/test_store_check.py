"""A damaged log: told in words by whoever meets it, found by the check, and repaired."""

import os
import shutil
import signal
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import NETWORK, SETTINGS, World, check_feed, contents, feed_of, pages_of
from support import vectors

from recon_node.store import DamagedLogError, Interest, StoreError, open_store
from recon_node.store.db import log_schema
from recon_node.store.db.blocks import unpack
from recon_node.store.maintenance import check_log, compact_log, read_info, repair_log
from recon_node.store.maintenance.closed_log import opened_log

WORLD = World(11, streams=10, events=130, time_events=True)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of many pages, with delivered, pending and waiting events, and an interest."""
    import trio

    directory = tmp_path_factory.mktemp("original")

    async def fill() -> None:
        async with open_store(directory, NETWORK, settings=SETTINGS) as store:
            offers = WORLD.offers()
            await store.admit_remote(offers[:40] + offers[60:])
            proofs = await store.reader.pending_proofs(1000)
            await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in proofs[::2]])
            await store.wanted.add(Interest("model", "value"))

    trio.run(fill)
    return directory


@pytest.fixture
def log(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "log")
    return tmp_path / "log"


def change(directory: Path, *statements: str) -> None:
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount, statement
        connection.commit()


def test_a_sound_log_is_sound(log: Path) -> None:
    report = check_log(log)
    assert report.faults == []
    info = read_info(log)
    assert (report.events, report.delivered) == (info.events, info.head)
    assert info.waiting > 0
    assert info.pending > 0
    assert info.schema == len(log_schema.MIGRATIONS)


FAULTS = vectors.load("log_faults")


@pytest.mark.parametrize("statement", FAULTS)
def test_a_row_that_is_not_right_is_found(log: Path, statement: str) -> None:
    change(log, statement)
    assert any(FAULTS[statement] in fault.message for fault in check_log(log).faults)


@pytest.mark.parametrize("statements", [[*FAULTS][:7], [*FAULTS][7:]], ids=["indexes", "events"])
async def test_rows_that_are_not_right_are_repaired(log: Path, statements: list[str]) -> None:
    change(log, *statements)
    await check_repair(log)


@pytest.mark.parametrize(
    ("where", "statement"),
    [
        ("refused", "INSERT INTO refused VALUES (1, x'01', x'01', 0, '')"),
        ("interests", "UPDATE interests SET sort_key = ''"),
        ("file", "UPDATE interests SET sort_key = cast(x'ff' AS TEXT)"),
        ("proofs", "UPDATE proofs SET root = x'01' WHERE due NOTNULL"),
        ("forgotten", "INSERT INTO forgotten VALUES (x'01')"),
        ("own_streams", "INSERT INTO own_streams VALUES (x'01')"),
    ],
)
async def test_a_row_over_which_a_node_fails_is_found_and_left_out(log, where, statement):
    change(log, statement)
    assert where in {fault.where for fault in check_log(log).faults}
    await repair_log(log, SETTINGS)
    assert check_log(log).faults == []
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        assert await store.reader.pending_proofs(1000)


async def test_a_text_that_cannot_be_read_is_said(log: Path) -> None:
    change(log, "UPDATE interests SET sort_key = cast(x'ff' AS TEXT)")
    with pytest.raises(StoreError, match=r"damaged .*decode"):
        async with open_store(log, NETWORK, settings=SETTINGS):
            pass


async def test_a_repair_keeps_the_interests_of_an_earlier_version(log: Path) -> None:
    change(log, "ALTER TABLE interests DROP COLUMN controllers", "PRAGMA user_version = 13")
    await repair_log(log, SETTINGS)
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        assert store.wanted.all == (Interest("model", "value"),)


async def test_a_repair_keeps_which_streams_are_the_nodes_own(log: Path) -> None:
    """These are anchored, and nobody else's."""
    world = World(12, streams=1, events=0)
    [init] = world.events.values()
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([init.car])
    change(log, next(iter(FAULTS)))
    await repair_log(log, SETTINGS)
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        inits = [event.cid for event in (*WORLD.events.values(), init)]
        assert await store.reader.own_streams(inits) == {init.cid}


def swap_positions(directory: Path) -> None:
    change(
        directory,
        "UPDATE events SET position = 1000000 WHERE position = 1",
        "UPDATE events SET position = 1 WHERE position = (SELECT max(position) FROM events "
        "WHERE position < 1000000)",
        "UPDATE events SET position = (SELECT count(*) FROM events WHERE position NOTNULL) "
        "WHERE position = 1000000",
    )


async def test_a_feed_that_is_not_in_causal_order_is_found(log: Path) -> None:
    swap_positions(log)
    assert any("its position is" in fault.message for fault in check_log(log).faults)


async def feed_and_epoch(directory: Path) -> tuple[str, list[tuple[int, bytes]]]:
    with closing(sqlite3.connect(directory / log_schema.FILE_NAME)) as connection:
        epoch = log_schema.read_meta(connection, "epoch") or ""
        sql = "SELECT position, event_id FROM events WHERE position NOTNULL ORDER BY position"
        return epoch, connection.execute(sql).fetchall()


async def check_repair(log: Path, before: Path | None = None) -> None:
    """Repair gives a sound log, and a position of an epoch never means another event."""
    epoch, feed = await feed_and_epoch(before or log)
    damaged = contents(log)[log_schema.FILE_NAME]
    repaired = await repair_log(log, SETTINGS)
    assert repaired.damaged_file.read_bytes() == damaged
    assert check_log(log).faults == []
    new_epoch, new_feed = await feed_and_epoch(log)
    assert repaired.epoch == new_epoch
    assert repaired.epoch_kept is (new_epoch == epoch)
    if repaired.epoch_kept:
        assert new_feed[: len(feed)] == feed
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        check_feed(await feed_of(store), WORLD.events)
        assert store.wanted.all == (Interest("model", "value"),)
        assert not set(repaired.lost) & set(store.keys)
    # What was lost comes again from a peer, and then all is there that there was.
    change(log, "DELETE FROM interests")
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote([WORLD.offer(WORLD.events[e.event_cid]) for e in repaired.lost])
        assert store.totals["refused"] == 0
    assert check_log(log).faults == []


def flip(path: Path, at: int, length: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(length)
        file.seek(at)
        file.write(bytes(byte ^ 0xFF for byte in old))


def page(name: str, kind: str = "leaf") -> Callable[[Path], None]:
    """Damage to one page of a table or an index."""

    def damage(path: Path) -> None:
        pages = pages_of(path, name, kind)
        flip(path, (pages[len(pages) // 2] - 1) * 4096, 4096)

    damage.__name__ = f"{kind} of {name}"
    return damage


def header(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        flip(path, at)

    damage.__name__ = f"header {at}"
    return damage


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size * 7 // 8 + 100)


DAMAGES = [
    *(header(at) for at in (0, 16, 18, 20, 47, 59, 60, 68)),
    page("cars"),
    page("cars", "internal"),
    page("events"),
    page("blocks"),
    page("waits"),
    page("meta"),
    page("by_position"),
    page("by_cid"),
    truncate,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_a_damaged_file_is_reported_never_replaced_and_can_be_repaired(log, original, damage):
    path = log / log_schema.FILE_NAME
    damage(path)
    before = path.read_bytes()
    message = ""
    try:
        async with open_store(log, NETWORK, settings=SETTINGS) as store:
            feed = await feed_of(store)
            await store.reader.cars([row.event_id for row in feed])
    except StoreError as error:
        message = str(error)
    assert not message or "recon-node store check --repair" in message, message
    assert path.read_bytes() == before or not message
    if check_log(log).clean:  # SQLite itself has put the header right
        assert await feed_and_epoch(log) == await feed_and_epoch(original)
        assert damage.__name__ == "header 18"
    else:
        await check_repair(log, original)


async def test_nothing_is_lost_where_two_copies_are(log: Path, original: Path) -> None:
    page("events")(log / log_schema.FILE_NAME)
    epoch, feed = await feed_and_epoch(original)
    repaired = await repair_log(log, SETTINGS)
    assert (repaired.lost, repaired.nameless) == ([], 0)
    assert all("prev" in reason for _, reason in repaired.refused), "their history is not here"
    assert repaired.epoch_kept
    assert await feed_and_epoch(log) == (epoch, feed)


async def test_a_lost_car_of_the_feed_costs_its_epoch(log: Path) -> None:
    epoch, feed = await feed_and_epoch(log)
    change(log, "DELETE FROM cars WHERE id = (SELECT id FROM events WHERE position = 5)")
    repaired = await repair_log(log, SETTINGS)
    assert [bytes(event_id) for event_id in repaired.lost] == [feed[4][1]]
    assert not repaired.epoch_kept
    assert repaired.epoch != epoch


async def test_a_car_whose_type_is_damaged_is_lost_alone(log: Path) -> None:
    """A flipped bit can turn its bytes into nothing, which the table does not allow."""
    schema_of = "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = replace(sql, {}, {})"
    strict, loose = "'car BLOB NOT NULL'", "'car BLOB'"
    change(log, *f"{schema_of.format(strict, loose)} WHERE name = 'cars'".split("; "))
    change(log, "UPDATE cars SET car = NULL WHERE id = (SELECT max(id) FROM cars)")
    change(log, *f"{schema_of.format(loose, strict)} WHERE name = 'cars'".split("; "))
    events = read_info(log).events
    repaired = await repair_log(log, SETTINGS)
    assert repaired.events == events - 1
    assert check_log(log).faults == []


async def test_damage_that_leaves_nothing_changes_nothing(log: Path) -> None:
    path = log / log_schema.FILE_NAME
    path.write_bytes(b"\xa5" * path.stat().st_size)
    before = contents(log)
    with pytest.raises(StoreError, match="nothing can be saved"):
        await repair_log(log, SETTINGS)
    assert contents(log)[log_schema.FILE_NAME] == before[log_schema.FILE_NAME]


async def test_compacting_takes_out_what_nothing_refers_to(log: Path) -> None:
    change(log, "INSERT INTO blocks (cid, block) VALUES (x'01', zeroblob(1000000))")
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        keys, feed, epoch = store.keys.summarize(), await feed_of(store), store.epoch
    done = compact_log(log)
    assert done.blocks_removed == 1
    assert done.after < done.before - 900_000
    assert done.after == (log / log_schema.FILE_NAME).stat().st_size
    assert check_log(log).faults == []
    async with open_store(log, NETWORK, settings=SETTINGS) as store:
        assert (store.keys.summarize(), await feed_of(store), store.epoch) == (keys, feed, epoch)


async def test_a_link_to_the_log_is_not_replaced(log: Path, tmp_path: Path) -> None:
    """Another disk may have the log because this one has no room."""
    path = log / log_schema.FILE_NAME
    path.symlink_to(path.rename(tmp_path / "elsewhere"))
    before = contents(log)
    with pytest.raises(StoreError, match="only a log in its own place"):
        compact_log(log)
    with pytest.raises(StoreError, match="only a log in its own place"):
        await repair_log(log, SETTINGS)
    assert check_log(log).clean
    assert path.is_symlink()
    assert contents(log) == before


async def test_a_log_is_for_its_owner_alone_whoever_writes_it(log: Path) -> None:
    path, new = log / log_schema.FILE_NAME, log / "new"
    before = os.umask(0o022)
    try:
        compact_log(log)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        page("cars")(path)
        await repair_log(log, SETTINGS)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with open_store(new, NETWORK, settings=SETTINGS):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((new / log_schema.FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
async def test_a_log_that_root_replaces_stays_its_owner_s(log: Path) -> None:
    path = log / log_schema.FILE_NAME
    os.chown(path, 12345, 12345)
    compact_log(log)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)
    page("cars")(path)
    await repair_log(log, SETTINGS)
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12345)


def test_compacting_shortens_what_earlier_versions_wrote(log: Path) -> None:
    path = log / log_schema.FILE_NAME
    shortened = "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'02'"
    with closing(sqlite3.connect(path)) as connection, connection:
        (number,) = connection.execute(shortened).fetchone()
        rows = connection.execute("SELECT id, car FROM cars WHERE substr(car, 1, 1) = x'02'")
        plain = [(unpack(car, {}), row) for row, car in rows]
        connection.executemany("UPDATE cars SET car = ? WHERE id = ?", plain)
        assert connection.execute(shortened).fetchone() == (0,)
    assert check_log(log).clean
    compact_log(log)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute(shortened).fetchone() == (number,)
    assert number > 10
    assert check_log(log).clean


def test_a_damaged_log_is_not_compacted(log: Path) -> None:
    page("cars")(log / log_schema.FILE_NAME)
    before = contents(log)[log_schema.FILE_NAME]
    with pytest.raises(DamagedLogError, match="recon-node store check --repair"):
        compact_log(log)
    assert contents(log)[log_schema.FILE_NAME][100:] == before[100:]


def test_an_interrupt_ends_a_long_statement(log: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT count(*) FROM c"
    timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), opened_log(log) as opened:  # noqa: PT012 - not before
        timer.start()
        opened.connection.execute(endless)
