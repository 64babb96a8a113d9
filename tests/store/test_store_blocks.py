"""Finding single blocks of events: each of those that are here, and no others."""

import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from store_helpers import MODEL, NETWORK, World
from support import sdk_sample
from support.time_events import time_event

from recon_node.ceramic import EventId, parse_event
from recon_node.ceramic.builder import init_event
from recon_node.ipld import CID, DAG_CBOR, CarError, car
from recon_node.store import Store, StoreError, open_store
from recon_node.store.damage import car_fault
from recon_node.store.db.blocks import (
    BlockReader,
    full_size,
    is_packed,
    pack,
    references,
    section,
    trim,
    unpack,
)
from recon_node.store.reading import Reader, block_index

UNKNOWN = CID.of(DAG_CBOR, b"unknown")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_index, "PAGE_EVENTS", 7)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The feed positions after which the index was continued."""
    positions: list[int] = []
    original = block_index.read_feed

    def spy(reader: Reader, after: int, limit: int, **rest: int | None) -> object:
        if limit > 1:
            positions.append(after)
        return original(reader, after, limit, **rest)

    monkeypatch.setattr(block_index, "read_feed", spy)
    return positions


async def check(store: Store, cars: list[bytes]) -> None:
    for data in cars:
        for cid, block in car.decode(data).blocks.items():
            assert await store.reader.block(cid) == block
    assert await store.reader.block(UNKNOWN) is None


async def test_time_events_shared_blocks_and_events_that_wait(store: Store) -> None:
    """Time events are pending here, and what builds on them: none of it has a feed position."""
    world = World(5, events=60, time_events=True)
    await store.admit_remote(world.offers())
    assert 0 < store.head < len(store.keys)
    await check(store, [event.car for event in world.events.values()])


async def test_the_index_is_continued(tmp_path: Path, pages: list[int]) -> None:
    cars = sdk_sample.cars()[:60]
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
async def test_an_unusable_index_is_rebuilt(tmp_path, spoil, pages):
    cars = sdk_sample.cars()[:20]
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local(cars)
        await check(store, cars)
    spoil(tmp_path / block_index.FILE_NAME)
    async with open_store(tmp_path, NETWORK) as store:
        if spoil is _overwrite:
            with pytest.raises(StoreError, match="is rebuilt"):
                await store.reader.block(UNKNOWN)
        await check(store, cars)
    assert pages == [0, 7, 14] * 2


BLOCKS = st.dictionaries(
    st.binary(min_size=0, max_size=200).map(lambda block: (CID.of(DAG_CBOR, block), block)),
    st.booleans(),
    min_size=1,
    max_size=12,
)


SIGNED = [event.car for event in World(7, events=40).events.values()]


@given(st.sampled_from(SIGNED), st.integers(), st.binary(max_size=40), st.integers(0, 40))
def test_what_is_trimmed_comes_out_as_it_was(whole, place, put, taken):
    at = place % len(whole)
    for any_car in (whole, whole[:at] + put + whole[at + taken :]):
        stored = trim(any_car)
        assert stored is any_car or len(stored) == len(any_car) - 95
        assert any_car[:1] <= b"\2" or unpack(stored, {}) == any_car
        assert any_car[:1] <= b"\2" or full_size(stored) == len(any_car)


def test_all_signed_events_of_the_network_are_trimmed() -> None:
    """Of the real ones, those that carry a capability are packed instead."""
    signed = [car for car in sdk_sample.cars() if parse_event(car).envelope is not None]
    assert len(signed) > 50
    assert all(trim(data)[:1] == b"\2" for data in signed)


@given(st.sampled_from(SIGNED), st.data())
def test_a_damaged_trimmed_car_is_not_taken_for_sound(whole: bytes, data: st.DataObject) -> None:
    cid = parse_event(whole).cid
    stored = bytearray(trim(whole))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    [restored] = BlockReader(sqlite3.connect(":memory:")).restore_each([bytes(stored)])
    assert isinstance(restored, CarError) or car_fault(restored, cid) is not None


@given(BLOCKS, st.integers(1, 2**40 - 1))
def test_what_was_cut_out_goes_back_to_its_place(chosen, first):
    blocks = dict(chosen)
    cut = [block for block, taken in blocks.items() if taken]
    rows = {cid: max(1, first - n) for n, (cid, _) in enumerate(cut)}
    whole = car.encode([next(iter(blocks))[0]], dict(blocks.keys()))
    stored = pack(whole, rows)
    sections = {rows[cid]: section(cid, block) for cid, block in cut}
    assert is_packed(stored) is bool(cut)
    assert full_size(stored) == len(whole)
    assert references(stored) == [rows[cid] for cid, _ in cut]
    if len(sections) == len(cut):  # rows near 1 may coincide
        assert unpack(stored, sections) == whole


@given(st.data())
def test_a_damaged_packed_car_is_refused_or_has_its_size(data: st.DataObject) -> None:
    block = b"a block that several events share, of a hundred bytes or so" * 2
    cid = CID.of(DAG_CBOR, block)
    whole = car.encode([cid], {CID.of(DAG_CBOR, b"own"): b"own", cid: block})
    stored = bytearray(pack(whole, {cid: 7}))
    stored[data.draw(st.integers(1, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    del stored[data.draw(st.integers(1, len(stored))) :]
    try:
        unpacked = unpack(bytes(stored), {7: section(cid, block)})
    except CarError:
        return
    assert len(unpacked) == full_size(bytes(stored))


async def test_shared_blocks_are_kept_once_and_cars_come_out_as_they_came(store: Store) -> None:
    init = init_event(SigningKey(b"k" * 32), MODEL, {})
    siblings = [CID.of(DAG_CBOR, b"sibling")] * 3
    anchors = [
        time_event(init, init.cid, siblings=siblings, tx_hash=bytes([n]) * 32) for n in range(20)
    ]
    await store.admit_local([event.car for event in (init, *anchors)])
    for event in (init, *anchors):
        assert await store.reader.car(event.cid) == event.car
    assert set(await store.reader.cars([EventId(key) for key in store.keys])) == {
        event.car for event in (init, *anchors)
    }
    connection = store._writer.log.connection
    sql = "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'00'"
    assert connection.execute(sql).fetchone() == (len(anchors),)
    (blocks,) = connection.execute("SELECT count(*) FROM blocks").fetchone()
    assert blocks == 3 + len(anchors)  # the Merkle nodes of all, and the proof of each
