"""One flipped byte anywhere in the file: check says what is wrong, repair makes a sound log."""

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio
from store_helpers import NETWORK, SETTINGS, World

from recon_node.store import StoreError, open_store
from recon_node.store.db import log_schema
from recon_node.store.maintenance import check_log, read_info, repair_log

MOST_LOST = 30
"""Events on one page: as many can be lost with a page that cannot be read."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data and time events, delivered, pending and waiting; a capability's blocks are shared."""
    directory = tmp_path_factory.mktemp("log")

    async def fill() -> None:
        world = World(3, streams=3, events=25, time_events=True)
        async with open_store(directory, NETWORK, settings=SETTINGS) as store:
            await store.admit_remote(world.offers()[4:])
            await store.admit_remote(world.offers()[:3])
            proofs = await store.reader.pending_proofs(100)
            await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in proofs[1:]])

    trio.run(fill)
    assert check_log(directory).clean
    return directory


def flip(log: Path, directory: Path, at: int, value: int) -> Path:
    shutil.copytree(log, directory, dirs_exist_ok=True)
    file = directory / log_schema.FILE_NAME
    content = bytearray(file.read_bytes())
    content[at] ^= value
    file.write_bytes(content)
    return directory


@pytest.mark.parametrize("flips", [10, pytest.param(300, marks=pytest.mark.long)])
def test_a_flipped_byte_is_reported_and_repaired(log, tmp_path, rng, flips):
    content = (log / log_schema.FILE_NAME).read_bytes()
    used = [at for at, byte in enumerate(content) if byte]
    events = read_info(log).events
    noticed = 0
    for number in range(flips):
        at, value = rng.choice(used), rng.choice([1 << rng.randrange(8), rng.randrange(1, 256)])
        directory = flip(log, tmp_path / str(number), at, value)
        if not check_log(directory).clean:
            noticed += 1
            repaired = trio.run(partial(repair_log, directory, SETTINGS))
            assert check_log(directory).clean, (at, value)
            # The EventIds of a lost page are computed again from history, which what waits lacks:
            # that is refused, and comes again from peers.
            assert len(repaired.refused) <= MOST_LOST, (at, value)
            assert repaired.events >= events - MOST_LOST, (at, value)
        shutil.rmtree(directory)
    assert noticed


@pytest.mark.parametrize("flips", [5, pytest.param(100, marks=pytest.mark.long)])
def test_a_flipped_byte_in_the_list_of_tables(log, tmp_path, rng, flips):
    """Without the list nothing can be read, but a fresh log has the same."""
    content = (log / log_schema.FILE_NAME).read_bytes()
    assert content[100] == 5, "the list fits on the first page again"
    below = int.from_bytes(content[108:112], "big")
    events = read_info(log).events
    for number in range(flips):
        page, value = rng.choice([1, below, below, below]), 1 << rng.randrange(8)
        at = (page - 1) * log_schema.PAGE_SIZE + rng.randrange(log_schema.PAGE_SIZE)
        if 60 <= at < 64:  # the version: another one is another program's file
            continue
        directory = flip(log, tmp_path / str(number), at, value)
        if not check_log(directory).clean:
            repaired = trio.run(partial(repair_log, directory, SETTINGS))
            assert check_log(directory).clean, (at, value)
            assert repaired.events == events, (at, value)
        shutil.rmtree(directory)


@pytest.mark.parametrize("flips", [6, pytest.param(300, marks=pytest.mark.long)])
def test_a_node_starts_or_says_why_not(log: Path, tmp_path: Path, rng: Random, flips: int) -> None:
    """And gives no wrong byte away: what it serves is what was written."""
    size = (log / log_schema.FILE_NAME).stat().st_size
    whole = trio.run(partial(read_all, log))
    with closing(sqlite3.connect(log / log_schema.FILE_NAME)) as connection:
        roots = connection.execute("SELECT rootpage FROM sqlite_schema").fetchall()
    damages = [((page - 1) * log_schema.PAGE_SIZE, 255) for (page,) in roots]
    damages += [(rng.randrange(size), rng.randrange(1, 256)) for _ in range(flips)]
    for number, (at, value) in enumerate(damages):
        directory = flip(log, tmp_path / str(number), at, value)
        try:
            served = trio.run(partial(read_all, directory))
        except StoreError:
            served = {}
        assert served.items() <= whole.items(), (at, value)
        shutil.rmtree(directory)


async def read_all(directory: Path) -> dict[tuple[int, bytes], bytes]:
    """What can be read of the feed, up to the first damage."""
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        rows = await store.reader.feed(0, 1000)
        return {(row.position, bytes(row.event_cid)): row.car for row in rows}
