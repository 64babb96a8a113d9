"""A backup is the log as it was at one moment, while its node goes on writing."""

import os
from pathlib import Path

import pytest
import trio
from store_helpers import NETWORK, World

from recon_node.store import Store, StoreError, StoreSettings, open_store
from recon_node.store.maintenance import backup_log

QUICK = StoreSettings(synchronous="normal", verifiers=0)


async def opened_head(data_dir: Path) -> tuple[str, list[bytes]]:
    async with open_store(data_dir, NETWORK, settings=QUICK) as store:
        rows = await store.reader.feed(0, 10_000)
        return store.epoch, [row.car for row in rows]


def restore(backup: Path, data_dir: Path) -> tuple[str, list[bytes]]:
    data_dir.mkdir()
    os.link(backup, data_dir / "events.sqlite3")
    return trio.run(opened_head, data_dir)


def test_a_running_nodes_backup_keeps_epoch_and_positions(tmp_path: Path) -> None:
    cars = [event.car for event in World(1, streams=20, events=300).events.values()]

    async def write(store: Store) -> None:
        for at in range(150, len(cars), 5):
            await store.admit_local(cars[at : at + 5])

    async def run() -> tuple[str, int]:
        async with open_store(tmp_path / "node", NETWORK, settings=QUICK) as store:
            await store.admit_local(cars[:150])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, store)
                done = await trio.to_thread.run_sync(
                    backup_log, tmp_path / "node", tmp_path / "copy"
                )
            assert 150 <= done.head <= store.head == len(cars)
            assert done.epoch == store.epoch
            return done.epoch, done.head

    epoch, head = trio.run(run)
    assert restore(tmp_path / "copy", tmp_path / "other") == (epoch, cars[:head])


def test_without_a_log_there_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no event log"):
        backup_log(tmp_path, tmp_path / "copy")
