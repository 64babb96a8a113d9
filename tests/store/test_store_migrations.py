"""Logs of earlier versions become logs of this one, and say what they said."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import NETWORK, World, feed_of, make_version_1, timeless

from recon_node.store import open_store
from recon_node.store.db import log_schema
from recon_node.store.maintenance import check_log


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
            assert await store.reader.car(event.cid) == event.car
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
    with closing(sqlite3.connect(tmp_path / "old" / log_schema.FILE_NAME)) as connection:
        connection.execute("UPDATE cars SET car = x'0102' WHERE id = 3")
        connection.commit()
    async with open_store(tmp_path / "old", NETWORK) as store:
        assert len(store.keys) == len(world.events)
    [fault] = check_log(tmp_path / "old").faults
    assert fault.message.startswith("row 3, ")
