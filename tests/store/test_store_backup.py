"""A backup is the log as it was at one moment, while its node goes on writing."""

import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio
from store_helpers import NETWORK, QUICK, World
from support.waiting import wait_until

from recon_node.base.files import open_locked
from recon_node.store import Store, StoreError, open_store
from recon_node.store.db import log_schema
from recon_node.store.maintenance import backup_log, compact_log


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


def test_a_backup_of_a_log_that_is_replaced_meanwhile_is_of_the_new_one(tmp_path, monkeypatch):
    """Also if a journal of the new one lies beside it, which is not the old one's."""
    cars = [event.car for event in World(1, streams=2, events=20).events.values()]

    async def make() -> None:
        async with open_store(tmp_path / "node", NETWORK, settings=QUICK) as store:
            await store.admit_local(cars)

    trio.run(make)
    compact_log(tmp_path / "node")
    log, new = tmp_path / "node" / "events.sqlite3", tmp_path / "node" / "new"
    shutil.copy(log, new)
    open_reader = log_schema.open_reader
    writers: list[sqlite3.Connection] = []

    def open_meanwhile(data_dir: Path) -> sqlite3.Connection:
        connection = open_reader(data_dir)
        if writers:
            writers[0].close()
        else:
            connection.execute("SELECT count(*) FROM events").fetchone()
            log_schema.replace_log(log, new)
            writers.append(sqlite3.connect(log))
            writers[0].execute("PRAGMA cache_size = 1")  # so that the journal is on the disk
            writers[0].execute("UPDATE cars SET car = zeroblob(9999)")
        return connection

    monkeypatch.setattr(log_schema, "open_reader", open_meanwhile)
    copied = backup_log(tmp_path / "node", tmp_path / "copy")
    assert copied.head == len(cars)


def test_a_replacement_that_another_process_finishes_is_left_to_it(tmp_path: Path) -> None:
    """What lies beside the log from then on is the new one's."""
    log, new = tmp_path / "events.sqlite3", tmp_path / "events.sqlite3.replacement"
    new.write_bytes(b"new")
    with ThreadPoolExecutor() as threads:
        with open_locked(new):
            late = threads.submit(log_schema.finish_replacement, log)
            wait_until(lambda: late.done() or times_opened(new) == 2)
            new.rename(log)
            log.with_name("events.sqlite3-wal").write_bytes(b"acknowledged")
        late.result()
    assert log.with_name("events.sqlite3-wal").read_bytes() == b"acknowledged"
    assert log.read_bytes() == b"new"


def times_opened(path: Path) -> int:
    """By this process."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(os.path.realpath(link) == str(path.resolve()) for link in links)


@pytest.mark.parametrize("is_pipe", [False, True])
def test_without_a_log_there_is_no_backup(tmp_path: Path, is_pipe: bool) -> None:
    if is_pipe:
        os.mkfifo(tmp_path / "events.sqlite3")
    with pytest.raises(StoreError, match="no event log"):
        backup_log(tmp_path, tmp_path / "copy")
