"""CARs without their shared blocks: the same bytes come out, and each block is kept once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from store_helpers import MODEL, NETWORK, World

from recon_node.ceramic import EventId
from recon_node.ceramic.builder import init_event, time_event
from recon_node.ipld import CID, DAG_CBOR, CarError, car
from recon_node.store import DamagedLogError, open_store
from recon_node.store.db import schema
from recon_node.store.db.blocks import full_size, is_packed, pack, references, section, unpack

BLOCKS = st.dictionaries(
    st.binary(min_size=0, max_size=200).map(lambda block: (CID.of(DAG_CBOR, block), block)),
    st.booleans(),
    min_size=1,
    max_size=12,
)


@given(BLOCKS, st.integers(1, 2**40 - 1))
def test_what_was_cut_out_goes_back_to_its_place(
    chosen: dict[tuple[CID, bytes], bool], first: int
) -> None:
    blocks = dict(chosen)
    cut = [each for each, taken in blocks.items() if taken]
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
        found = unpack(bytes(stored), {7: section(cid, block)})
    except CarError:
        return
    assert len(found) == full_size(bytes(stored))


async def test_shared_blocks_are_kept_once_and_cars_come_out_as_they_came(tmp_path: Path) -> None:
    init = init_event(SigningKey(b"k" * 32), MODEL, {})
    siblings = [CID.of(DAG_CBOR, b"sibling")] * 3
    anchors = [
        time_event(init, init.cid, siblings=siblings, tx_hash=bytes([n]) * 32) for n in range(20)
    ]
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local([event.car for event in (init, *anchors)])
        for event in (init, *anchors):
            assert await store.log.car(event.cid) == event.car
        assert set(await store.log.cars([EventId(key) for key in store.keys])) == {
            event.car for event in (init, *anchors)
        }
        connection = store._writer.log.connection
        sql = "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'00'"
        assert connection.execute(sql).fetchone() == (len(anchors),)
        (blocks,) = connection.execute("SELECT count(*) FROM blocks").fetchone()
        assert blocks == 3 + len(anchors)  # the Merkle nodes of all, and the proof of each


async def test_a_shared_block_that_is_gone_is_told_as_damage(tmp_path: Path) -> None:
    world = World(3, time_events=True)
    event = next(each for each in world.events.values() if each.proof is not None)
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(world.offers())
    with closing(sqlite3.connect(tmp_path / schema.FILE_NAME)) as connection:
        connection.execute("DELETE FROM blocks")
        connection.commit()
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(DamagedLogError, match=r"recon-node store check --repair"):
            await store.log.car(event.cid)
