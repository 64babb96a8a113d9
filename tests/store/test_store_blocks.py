"""Finding single blocks of events: each of those that are here, and no others."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from store_helpers import NETWORK, World, sdk_cars

from recon_node.ipld import CID, DAG_CBOR, car
from recon_node.store import Store, StoreError, open_store
from recon_node.store.reading import Reader, block_index

UNKNOWN = CID.of(DAG_CBOR, b"unknown")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "PAGE_EVENTS", 7)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The feed positions after which the index was continued."""
    found: list[int] = []
    original = block_index.read_feed

    def spy(reader: Reader, after: int, limit: int, **rest: int | None) -> object:
        if limit > 1:
            found.append(after)
        return original(reader, after, limit, **rest)

    monkeypatch.setattr(block_index, "read_feed", spy)
    return found


async def check(store: Store, cars: list[bytes]) -> None:
    for each in cars:
        for cid, block in car.decode(each).blocks.items():
            assert await store.log.block(cid) == block
    assert await store.log.block(UNKNOWN) is None


async def test_time_events_shared_blocks_and_events_that_wait(tmp_path: Path) -> None:
    """Time events are pending here, and what builds on them: none of it has a feed position."""
    world = World(5, events=60, time_events=True)
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(world.offers())
        assert 0 < store.head < len(store.keys)
        await check(store, [event.car for event in world.events.values()])


async def test_the_index_is_continued(tmp_path: Path, pages: list[int]) -> None:
    cars = sdk_cars()[:60]
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local(cars[:30])
        assert not (tmp_path / block_index.FILE_NAME).exists()  # nobody has asked yet
        await check(store, cars[:30])
        assert pages == [0, 7, 14, 21, 28]
        await store.admit_local(cars[30:])
    async with open_store(tmp_path, NETWORK) as store:
        await check(store, cars)
    assert pages[5:] == [30, 37, 44, 51, 58]


def _overwrite(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def _of_another_log(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE marks SET epoch = 'another', position = 1000")
    connection.close()


def _of_another_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE marks")
        connection.execute("PRAGMA user_version = 7")
    connection.close()


@pytest.mark.parametrize("spoil", [_overwrite, _of_another_log, _of_another_version, Path.unlink])
async def test_an_unusable_index_is_made_anew(
    tmp_path: Path, spoil: Callable[[Path], None], pages: list[int]
) -> None:
    cars = sdk_cars()[:20]
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local(cars)
        await check(store, cars)
    spoil(tmp_path / block_index.FILE_NAME)
    async with open_store(tmp_path, NETWORK) as store:
        if spoil is _overwrite:
            with pytest.raises(StoreError, match="is rebuilt"):
                await store.log.block(UNKNOWN)
        await check(store, cars)
    assert pages == [0, 7, 14] * 2
