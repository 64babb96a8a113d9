"""The saved keys: used when they are the log's own, and never otherwise."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import closing
from io import FileIO
from pathlib import Path

import pytest
from store_helpers import NETWORK, World
from structlog.testing import capture_logs

from recon_node.recon import KeyStore
from recon_node.store import Interest, StoreSettings, open_store
from recon_node.store.db import saved_keys
from recon_node.store.db.log import EventLog

FILE = saved_keys.FILE_NAMES[saved_keys.KEYS]
WITHOUT_RING = StoreSettings(ceramic_one=False)


@pytest.fixture(autouse=True)
def _save_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_keys, "FEWEST", 1)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys were loaded from a file, each time that they were."""
    counts: list[int] = []
    original = saved_keys._read

    def spy(path: Path, token: bytes) -> saved_keys._SavedFile:
        saved = original(path, token)
        counts.append(len(saved.keys))
        return saved

    monkeypatch.setattr(saved_keys, "_read", spy)
    return counts


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys were read from the log, each time that all were."""
    counts: list[int] = []

    def spy(keys: Iterable[bytes] | None = None) -> KeyStore:
        store = KeyStore(keys or ())
        if keys is not None:  # else they come from a file
            counts.append(len(store))
        return store

    monkeypatch.setattr(saved_keys, "KeyStore", spy)
    return counts


async def fill(directory: Path, seed: int) -> KeyStore:
    async with open_store(directory, NETWORK, settings=WITHOUT_RING) as store:
        await store.admit_remote(World(seed).offers())
        return store.keys


async def reopened(directory: Path) -> list[bytes]:
    async with open_store(directory, NETWORK, settings=WITHOUT_RING) as store:
        assert store.keys.summarize() == KeyStore(store.keys).summarize()
        return list(store.keys)


async def test_the_next_start_takes_the_saved_keys(tmp_path: Path, loads: list[int]) -> None:
    keys = await fill(tmp_path, 1)
    written = (tmp_path / FILE).stat().st_mtime_ns
    for starts in (1, 2):
        assert await reopened(tmp_path) == list(keys)
        assert loads == [len(keys)] * starts
    assert (tmp_path / FILE).stat().st_mtime_ns == written  # nothing changed: nothing to save
    more = await fill(tmp_path, 2)
    assert len(more) > len(keys)
    assert await reopened(tmp_path) == list(more)
    assert loads == [len(keys)] * 3 + [len(more)]


async def test_a_shutdown_knows_that_they_are_being_saved(tmp_path, monkeypatch):
    seen: list[bool] = []
    write = saved_keys._write

    def spy(path: Path, parts: Iterable[bytes]) -> None:
        seen.append(saved_keys.SAVING.is_set())
        write(path, parts)

    monkeypatch.setattr(saved_keys, "_write", spy)
    await fill(tmp_path, 1)
    assert seen == [True]
    assert not saved_keys.SAVING.is_set()


async def test_a_log_that_changed_much_without_a_clean_end_does_not_use_them(tmp_path, built):
    """In test_store_killed_keys.py, it has changed less."""
    await fill(tmp_path / "log", 1)
    async with open_store(tmp_path / "log", NETWORK, settings=WITHOUT_RING) as store:
        await store.admit_remote(World(2).offers())
        keys = list(store.keys)
        shutil.copytree(tmp_path / "log", tmp_path / "killed")  # as kill -9 leaves it
    with capture_logs() as logs:
        async with open_store(tmp_path / "killed", NETWORK, settings=WITHOUT_RING) as store:
            assert list(store.keys) == keys
            shutil.copytree(tmp_path / "killed", tmp_path / "again")
    assert logs == []
    assert built == [0, len(keys)]
    assert await reopened(tmp_path / "again") == keys
    assert built == [0, len(keys)]  # that start has saved them


async def test_a_log_that_was_put_back_does_not_trust_those_of_a_later_one(tmp_path, built):
    keys = await fill(tmp_path / "log", 1)
    shutil.copytree(tmp_path / "log", tmp_path / "backup")
    await fill(tmp_path / "log", 2)
    shutil.copy(tmp_path / "log" / FILE, tmp_path / "backup" / FILE)
    assert await reopened(tmp_path / "backup") == list(keys)
    assert built == [0, len(keys)]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(at: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return damage


async def test_damaged_or_missing_ones_are_made_again(tmp_path: Path, built: list[int]) -> None:
    keys = await fill(tmp_path / "log", 1)
    for n, damage in enumerate((Path.unlink, cut, *map(flip, (0, 20, 35, 60, -40, -1)))):
        shutil.copytree(tmp_path / "log", tmp_path / str(n))
        damage(tmp_path / str(n) / FILE)
        for _ in range(2):
            assert await reopened(tmp_path / str(n)) == list(keys)
            assert built == [0, *[len(keys)] * (n + 1)]  # then they are saved again


async def test_a_start_needs_no_room_on_the_disk(tmp_path: Path, loads: list[int]) -> None:
    """Neither if the file is damaged, nor if other keys are withheld now."""
    keys = await fill(tmp_path / "damaged", 1)
    cut(tmp_path / "damaged" / FILE)
    async with open_store(tmp_path / "orphans", NETWORK, settings=WITHOUT_RING) as store:
        await store.admit_remote([offer for offer in World(1).offers() if offer[0].height])
        assert store.keys
    for name, guarded, expected in (("damaged", False, list(keys)), ("orphans", True, [])):
        log = EventLog(tmp_path / name, NETWORK, WITHOUT_RING, guarded=guarded)
        with closing(log):
            log.connection.execute("PRAGMA query_only = ON")
            assert list(log.load_keys()) == expected
            log.connection.execute("PRAGMA query_only = OFF")


async def test_a_disk_that_fails_is_as_a_damaged_file(tmp_path, loads, monkeypatch):
    keys = await fill(tmp_path, 1)

    def fail(file: FileIO, size: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(saved_keys, "_checksum", fail)
    assert await reopened(tmp_path) == list(keys)
    assert loads == []


async def test_a_file_in_use_is_replaced_not_changed(tmp_path: Path) -> None:
    """By the keys that are in it, and others: those of the old one stay readable."""
    keys = list(await fill(tmp_path, 1))
    async with open_store(tmp_path, NETWORK, settings=WITHOUT_RING) as before:
        await before.admit_remote(World(2).offers())
    assert len(before.keys) > len(keys)
    async with open_store(tmp_path, NETWORK, settings=WITHOUT_RING) as after:
        assert list(after.keys) == list(before.keys)


async def test_what_changes_no_key_changes_nothing_for_the_next_start(tmp_path, loads):
    keys = await fill(tmp_path, 1)
    async with open_store(tmp_path, NETWORK, settings=WITHOUT_RING) as store:
        await store.wanted.add(Interest("model", "value"))
    loads.clear()
    assert await reopened(tmp_path) == list(keys)
    assert loads == [len(keys)]


async def test_few_keys_are_not_worth_a_file(tmp_path, monkeypatch):
    await fill(tmp_path, 1)
    monkeypatch.setattr(saved_keys, "FEWEST", 10_000)
    await fill(tmp_path, 2)
    assert not (tmp_path / FILE).exists()
