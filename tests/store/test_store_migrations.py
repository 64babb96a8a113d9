"""Logs of earlier versions become logs of this one, and say what they said."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import NETWORK, OLD_STATE, World, feed_of, timeless

from recon_node.store import open_store
from recon_node.store.db import migrations, schema
from recon_node.store.db.blocks import BlockReader
from recon_node.store.maintenance import check_log

TABLES = {
    "meta": "name, value",
    "events": "id, event_id, cid, init_cid, kind, signer, position, state",
    "waits": "event, cid",
    "streams": "init_cid, controller, sep_key, sep_value",
    "refused": "id, event_id, cid, inherent, reason",
    "interests": "id, sort_key, sort_value, controller, stream_id",
}


def make_version_1(source: Path, directory: Path) -> None:
    """A log as the first version wrote it, with the rows of another log."""
    directory.mkdir()
    with (
        closing(sqlite3.connect(source / schema.FILE_NAME)) as old,
        closing(sqlite3.connect(directory / schema.FILE_NAME)) as new,
    ):
        first = migrations.MIGRATIONS[0]
        assert isinstance(first, str)
        new.executescript(first)
        new.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        new.execute("PRAGMA user_version = 1")
        for table, columns in TABLES.items():
            found = columns.replace("state", OLD_STATE)
            rows = old.execute(f"SELECT {found} FROM {table}").fetchall()
            marks = ", ".join("?" * (columns.count(",") + 1))
            new.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
        cars = old.execute("SELECT id, car FROM cars").fetchall()
        whole = BlockReader(old).restore([car for _, car in cars])
        rows = [(row, car) for (row, _), car in zip(cars, whole, strict=True)]
        new.executemany("INSERT INTO cars (id, car) VALUES (?, ?)", rows)
        new.commit()
        new.execute("PRAGMA journal_mode = WAL")


@pytest.mark.parametrize("seed", range(3))
async def test_a_log_of_version_1_is_brought_up_to_date(tmp_path: Path, seed: int) -> None:
    world = World(seed, streams=6, events=100, time_events=True)
    async with open_store(tmp_path / "new", NETWORK) as store:
        await store.admit_remote(world.offers())
        feed, keys, epoch = timeless(await feed_of(store)), list(store.keys), store.epoch
        stats = store.stats
    make_version_1(tmp_path / "new", tmp_path / "old")
    async with open_store(tmp_path / "old", NETWORK) as store:
        assert (await feed_of(store), list(store.keys), store.epoch) == (feed, keys, epoch)
        assert (store.stats.waiting, store.stats.pending) == (stats.waiting, stats.pending)
        for event in world.events.values():
            assert await store.log.car(event.cid) == event.car
        connection = store._writer.log.connection
        (packed,) = connection.execute(
            "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'00'"
        ).fetchone()
        assert packed == sum(event.proof is not None for event in world.events.values())
    assert check_log(tmp_path / "old").faults == []


async def test_a_car_that_is_damaged_does_not_stop_the_migration(tmp_path: Path) -> None:
    world = World(1, events=20)
    async with open_store(tmp_path / "new", NETWORK) as store:
        await store.admit_remote(world.offers())
    make_version_1(tmp_path / "new", tmp_path / "old")
    with closing(sqlite3.connect(tmp_path / "old" / schema.FILE_NAME)) as connection:
        connection.execute("UPDATE cars SET car = x'0102' WHERE id = 3")
        connection.commit()
    async with open_store(tmp_path / "old", NETWORK) as store:
        assert len(store.keys) == len(world.events)
    [fault] = check_log(tmp_path / "old").faults
    assert fault.message.startswith("row 3, ")
