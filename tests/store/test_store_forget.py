"""Forgotten streams: their bytes are gone from the data directory, and their keys are not."""

import shutil
from collections.abc import Collection
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from store_helpers import NETWORK, SETTINGS, World, check_tables, controller, feed_of

from recon_node.ceramic import Event
from recon_node.store import DamagedEventError, FeedRow, open_store
from recon_node.store.db.blocks import sections
from recon_node.store.errors import StoreError
from recon_node.store.maintenance import (
    check_log,
    export_events,
    forget_streams,
    import_events,
    repair_log,
    streams_in,
)

LEFTOVER = ".recon-node.part/new.sqlite3"  # of a command that was killed
# Files that a node may have made of events, and the bytes of one in each.
COPIES = ("dags.sqlite3", "tangles.sqlite3", "snapshot-sync.sqlite3-wal", "blocks.sqlite3")


def own_blocks(events: Collection[Event], others: Collection[Event]) -> list[bytes]:
    """The blocks of some events that others do not have."""
    shared = {cid for event in others for cid, *_ in sections(event.car)}
    return [
        event.car[start:end]
        for event in events
        for cid, _, start, end in sections(event.car)
        if cid not in shared
    ]


def files_with(directory: Path, blocks: Collection[bytes]) -> set[str]:
    files = {file.name: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    return {name for name, whole in files.items() if any(block in whole for block in blocks)}


async def filled(directory: Path, world: World) -> list[FeedRow]:
    """A log with all events, and the anchors of half of the time events."""
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers())
        proofs = await store.reader.pending_proofs(1000)
        await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in proofs[::2]])
        return await feed_of(store)


async def test_the_bytes_go_and_the_keys_stay(tmp_path: Path) -> None:
    world = World(7, streams=4, events=60, time_events=True)
    before = await filled(tmp_path, world)
    init = max({row.stream_cid for row in before}, key=[r.stream_cid for r in before].count)
    theirs = [event for event in world.events.values() if event.init == init]
    others = [event for event in world.events.values() if event.init != init]
    gone = own_blocks(theirs, others)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        keys = store.keys.summarize()
    (tmp_path / ".recon-node.part").mkdir()
    for name in (*COPIES, LEFTOVER):
        (tmp_path / name).write_bytes(gone[0])
    assert files_with(tmp_path, gone) == {"events.sqlite3", *COPIES, "new.sqlite3"}

    names = [str(world.events[init].stream_id())]
    done = forget_streams(tmp_path, streams_in(tmp_path, names))
    assert (done.streams, done.events, done.still_there) == (1, len(theirs), [])
    assert files_with(tmp_path, gone) == set()
    assert files_with(tmp_path, own_blocks(others, theirs)) == {"events.sqlite3"}
    assert forget_streams(tmp_path, [init]).events == 0
    assert check_log(tmp_path).faults == []

    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert store.keys.summarize() == keys
        assert await feed_of(store) == [
            replace(row, car=b"", block_time=None, chain_id=None, fault=None)
            if row.stream_cid == init
            else row
            for row in before
        ]
        columns = await store.reader.feed_columns(0, 1000, 1000, 1 << 30)
        assert [bool(car) for car in columns.cars] == [cid != init for cid in columns.stream_cids]
        for row in (row for row in before if row.stream_cid == init):
            with pytest.raises(DamagedEventError, match="has forgotten") as caught:
                await store.reader.car(row.event_cid)
            assert caught.value.is_forgotten
            assert await store.reader.cars_for_peers([row.event_id]) == [None]
        with pytest.raises(DamagedEventError, match="has forgotten"):
            await store.reader.signed_events(init)
        blocks = (cid for event in theirs for cid, *_ in sections(event.car))
        payloads = [cid for cid in blocks if cid not in world.events]
        assert [await store.reader.block(cid) for cid in payloads[:3]] == [None] * 3
        assert store.damage.count == 0
        check_tables(store)


async def test_what_comes_again_or_later_is_forgotten_at_once(tmp_path: Path) -> None:
    world = World(8, streams=3, events=40, time_events=True)
    before = await filled(tmp_path, world)
    init = before[0].stream_cid
    theirs = [event for event in world.events.values() if event.init == init]
    forget_streams(tmp_path, [init])
    tip = world.extend(init, [theirs[-1].cid], [{"op": "add", "path": "/later", "value": "x" * 99}])
    lost = world.extend(init, [tip.cid], [{"op": "add", "path": "/lost", "value": "y" * 99}])
    waits = world.extend(init, [lost.cid], [{"op": "add", "path": "/waits", "value": "z" * 99}])
    others = [event for event in world.events.values() if event.init != init]
    gone = own_blocks([*theirs, tip, waits, lost], others)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        verdicts = await store.admit_remote(
            [*map(world.offer, theirs), world.offer(tip), world.offer(waits)]
        )
        assert [verdict.status for verdict in verdicts[:-2]] == ["known"] * len(theirs)
        assert [verdict.status for verdict in verdicts[-2:]] == ["new", "new"]
        assert world.event_id(waits) in store.keys
        check_tables(store)
        await store.admit_remote([world.offer(lost)])
        rows = {row.event_cid: row.car for row in await feed_of(store)}
        check_tables(store)
        assert all(not rows.get(cid) for cid in world.events if world.events[cid].init == init)
        proofs = await store.reader.pending_proofs(1000)
        await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in proofs])
        assert {row.event_cid for row in await feed_of(store)} == world.events.keys()
        check_tables(store)
    assert files_with(tmp_path, gone) == set()
    assert check_log(tmp_path).faults == []


async def test_exports_leave_them_out_and_repairs_remember_them(tmp_path: Path) -> None:
    world = World(9, streams=3, events=30)
    before = await filled(tmp_path / "log", world)
    init = before[0].stream_cid
    forget_streams(tmp_path / "log", [init])
    theirs = {cid for cid, event in world.events.items() if event.init == init}
    file = BytesIO()
    assert export_events(tmp_path / "log", file) == len(before) - len(theirs)
    file.seek(0)
    await import_events(tmp_path / "new", file)
    async with open_store(tmp_path / "new", NETWORK) as store:
        assert {row.event_cid for row in await feed_of(store)} == world.events.keys() - theirs

    shutil.copytree(tmp_path / "log", tmp_path / "repaired")
    repaired = await repair_log(tmp_path / "repaired", settings=SETTINGS)
    assert {event_id.event_cid for event_id in repaired.lost} == theirs
    async with open_store(tmp_path / "repaired", NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers())
        rows = await feed_of(store)
        assert {row.event_cid for row in rows if not row.car} == theirs
        assert len(rows) == len(before)
    assert forget_streams(tmp_path / "repaired", [init]).still_there == ["events.sqlite3.damaged-1"]


async def test_all_streams_of_a_controller(tmp_path: Path) -> None:
    world = World(10, streams=6, events=40)
    before = await filled(tmp_path, world)
    mine = {cid for cid, header in world.headers.items() if header.controller == controller(0)}
    assert mine
    assert streams_in(tmp_path, [controller(0)]) == mine & {row.stream_cid for row in before}
    stranger = next(iter(World(11, streams=1, events=1).events.values()))
    with pytest.raises(StoreError, match="there is no stream"):
        streams_in(tmp_path, [str(stranger.stream_id())])
    forget_streams(tmp_path, mine)
    async with open_store(tmp_path, NETWORK) as store:
        assert {row.stream_cid for row in await feed_of(store) if not row.car} == mine
