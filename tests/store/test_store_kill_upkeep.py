"""kill -9 at any SQL statement of a migration, compaction, import or repair: nothing is lost."""

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from store_helpers import NETWORK, World, feed_of, make_version_1
from support import forking
from upkeep_child import act

from recon_node.ceramic import EventId, EventKind
from recon_node.store import FeedRow, open_store
from recon_node.store.db import log_schema
from recon_node.store.maintenance import check_log, export_events

CHILD = Path(__file__).with_name("upkeep_child.py")
KILLS = [1, pytest.param(25, marks=pytest.mark.long)]


def run_child(action: str, directory: Path, *files: Path, statements: int | None = None) -> int:
    """Run the child, up to so many statements or its end; return how many it made."""
    with forking.Popen(
        [sys.executable, str(CHILD), action, str(directory), *map(str, files)],
        stdout=subprocess.PIPE,
    ) as child:
        read = len(child.stdout.read(-1 if statements is None else statements))
        if statements is not None:
            child.kill()
    assert child.returncode in ((0,) if statements is None else (0, -9))
    return read


async def contents_of(directory: Path) -> tuple[str, list[FeedRow], list[EventId]]:
    async with open_store(directory, NETWORK) as store:
        feed = [replace(row, delivered_at=None) for row in await feed_of(store)]  # each log its own
        return store.epoch, feed, [EventId(key) for key in store.keys]


async def make_log(directory: Path, seed: int, *, settled: bool = True) -> Path:
    world = World(seed, streams=4, events=60, time_events=True)
    async with open_store(directory, NETWORK) as store:
        await store.admit_remote(world.offers())
        proofs = await store.reader.pending_proofs(1000)
        if settled:
            await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in proofs[::2]])
    return directory


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("action", ["open", "compact", "repair"])
async def test_killed_at_any_statement_the_log_is_the_same(tmp_path, rng, action, kills):
    settled = action != "open"  # version 1 looked no proof up
    original = await make_log(tmp_path / "original", rng.randrange(2**32), settled=settled)
    expected = await contents_of(original)
    if action == "open":  # which migrates
        make_version_1(original, tmp_path / "old")
        original = tmp_path / "old"
    shutil.copytree(original, tmp_path / "whole")
    statements = run_child(action, tmp_path / "whole")
    assert statements > 20
    for kill in range(kills):
        directory = tmp_path / str(kill)
        shutil.copytree(original, directory)
        for _ in range(2):  # the second one meets what the first one left
            run_child(action, directory, statements=rng.randrange(1, statements))
        assert await contents_of(directory) == expected
        assert check_log(directory).faults == []
        assert not [path for path in directory.iterdir() if path.is_dir()]
        await act(action, directory)
        assert await contents_of(directory) == expected
        assert check_log(directory).faults == []


@pytest.mark.parametrize("kills", KILLS)
async def test_a_stream_is_forgotten_whole_or_not_at_all(tmp_path, rng, kills):
    original = await make_log(tmp_path / "original", rng.randrange(2**32))
    epoch, feed, keys = await contents_of(original)
    init = feed[0].stream_cid
    after = [
        replace(row, car=b"", block_time=None, chain_id=None) if row.stream_cid == init else row
        for row in feed
    ]
    statements = run_child("forget", copy_of(original, tmp_path / "whole"), Path(str(init)))
    for kill in range(kills):
        directory = copy_of(original, tmp_path / str(kill))
        for _ in range(2):
            statement = rng.randrange(1, statements)
            run_child("forget", directory, Path(str(init)), statements=statement)
        assert await contents_of(directory) in ((epoch, feed, keys), (epoch, after, keys))
        assert check_log(directory).faults == []
        await act("forget", directory, Path(str(init)))
        assert await contents_of(directory) == (epoch, after, keys)
        assert check_log(directory).faults == []
        own = [
            row.car[-60:]
            for row in feed
            if row.stream_cid == init and row.kind is not EventKind.TIME
        ]
        files = [file.read_bytes() for file in directory.iterdir()]
        assert not any(car in file for file in files for car in own)


def copy_of(original: Path, directory: Path) -> Path:
    shutil.copytree(original, directory)
    return directory


@pytest.mark.parametrize("kills", KILLS)
async def test_an_import_that_is_killed_goes_on_when_started_again(tmp_path, rng, kills):
    seed = rng.randrange(2**32)
    original = await make_log(tmp_path / "original", seed)
    _, _, keys = await contents_of(original)
    file = tmp_path / "events.car"
    with file.open("wb") as out:
        assert export_events(original, out) == len(keys)
    statements = run_child("import", tmp_path / "whole", file)
    directory = tmp_path / "killed"
    directory.mkdir()
    before: list[FeedRow] = []
    for _ in range(kills):
        run_child("import", directory, file, statements=rng.randrange(1, statements))
        if (directory / log_schema.FILE_NAME).exists():
            assert check_log(directory).faults == []
            _, feed, _ = await contents_of(directory)
            assert feed[: len(before)] == before
            before = feed
    await act("import", directory, file)
    assert (await contents_of(directory))[2] == keys
    assert check_log(directory).faults == []


async def test_a_replacement_that_was_broken_off_is_finished_by_whoever_comes_next(tmp_path):
    old = await make_log(tmp_path / "old", 1)
    new = await make_log(tmp_path / "new", 2)
    expected = await contents_of(new)
    with closing(sqlite3.connect(old / log_schema.FILE_NAME)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE meta SET value = 'another' WHERE name = 'epoch'")
        connection.commit()
        wal = (old / "events.sqlite3-wal").read_bytes()
    (old / "events.sqlite3-wal").write_bytes(wal)  # as if the process had been killed
    (new / log_schema.FILE_NAME).rename(old / "events.sqlite3.replacement")
    assert await contents_of(old) == expected
    assert not (old / "events.sqlite3-wal").exists()
