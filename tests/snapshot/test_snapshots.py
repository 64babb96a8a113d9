"""Snapshots of real logs in real object stores: created, grown, synced, verified, collected."""

import io
import random
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from snapshot_support import KEY, NETWORK, PACK, QUICK, create, events, make_log

from recon_node.ceramic.auth.did import controller_of
from recon_node.ipld import CID
from recon_node.ipld.cid import RAW
from recon_node.snapshot import root as root_module
from recon_node.snapshot.creating import DamagedBaseError, create_snapshot
from recon_node.snapshot.event_source import StoreSource
from recon_node.snapshot.objects import Objects, SnapshotError
from recon_node.snapshot.packs import pack_name
from recon_node.snapshot.root import PageError, SnapshotPage, page_name, read_page
from recon_node.snapshot.snapshot_reader import SnapshotReader, read_root
from recon_node.snapshot.syncing import Synced, sync_snapshot
from recon_node.snapshot.upkeep import collect, list_roots, verify_snapshot
from recon_node.store import Store, open_store


def memory() -> Objects:
    return Objects.open("memory://")


def no_progress(step: str, done: int, total: int | None) -> None:
    pass


@asynccontextmanager
async def opened(data_dir: Path) -> AsyncIterator[Store]:
    async with open_store(data_dir, NETWORK, settings=QUICK) as store:
        yield store


async def sync(objects: Objects, store: Store) -> Synced:
    result = Synced()
    root = read_root(objects)
    reader = SnapshotReader(objects, root, result.note)
    await sync_snapshot(reader, store, result, store.wanted.ranges)
    return result


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a node with 400 events."""
    data_dir = tmp_path_factory.mktemp("log")
    make_log(data_dir, events(400, seed=1))
    return data_dir


def test_an_empty_node_gets_all_events(log: Path, tmp_path: Path) -> None:
    objects = memory()
    created = create(log, objects)
    assert created.is_new
    assert created.events == created.root.manifest.count > 300
    assert len(objects.list("packs")) > 5

    async def main() -> None:
        async with opened(tmp_path) as store, opened(log) as original:
            result = await sync(objects, store)
            assert result.counts == {"new": created.events}
            assert not result.faults
            assert list(store.keys) == list(original.keys)
            for key in list(store.keys)[::50]:
                assert await store.reader.cars([key]) == await original.reader.cars([key])
            assert (await sync(objects, store)).counts == {}

    trio.run(main)


def test_a_snapshot_grows_by_what_is_new(tmp_path: Path) -> None:
    objects = memory()
    all_events = events(400, seed=2)
    make_log(tmp_path, all_events[:-4])
    first = create(tmp_path, objects)
    packs = len(objects.list("packs"))
    make_log(tmp_path, all_events[-4:])
    sent = objects.traffic.sent
    second = create(tmp_path, objects)
    assert second.base.cid == first.root.cid
    assert second.events == 4
    assert len(objects.list("packs")) == packs + 2
    assert objects.traffic.sent - sent < 40_000
    assert second.root.manifest.count == first.root.manifest.count + 4
    again = create(tmp_path, objects)
    assert not again.is_new
    assert again.root.cid == second.root.cid
    # Whoever makes it at once makes the same tree, and the grown one has every event.
    elsewhere = memory()
    assert create(tmp_path, elsewhere).root.manifest.tree == second.root.manifest.tree
    report = verify_snapshot(objects, second.root, lambda done, total: None)
    assert report.events == second.root.manifest.count
    assert not report.faults
    assert second.root.manifest.count - first.root.manifest.count == 4


def test_an_interrupted_snapshot_is_not_there_and_is_continued(log: Path) -> None:
    whole = memory()
    create(log, whole)
    objects = memory()
    put, count = objects.put, 0

    def fail(name: str, data: bytes | Path) -> None:
        nonlocal count
        count += 1
        if count > 5:
            raise KeyboardInterrupt
        put(name, data)

    objects.put = fail  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        create(log, objects)
    with pytest.raises(SnapshotError, match="no snapshot exists there"):
        read_root(objects)
    objects.put = put  # type: ignore[method-assign]
    sent = objects.traffic.sent
    create(log, objects)
    assert {object_.name for object_ in objects.list("packs")} == {
        object_.name for object_ in whole.list("packs")
    }
    assert objects.traffic.sent - sent < whole.traffic.sent - 4 * PACK


def test_old_snapshots_are_collected(tmp_path: Path) -> None:
    objects = memory()
    all_events = events(200, seed=3)
    for count in (100, 150, 200):
        make_log(tmp_path, all_events[:count])
        created = create(tmp_path, objects)
    orphan, of_others = "packs/orphan.car", "roots/.DS_Store"
    for name in (orphan, of_others):
        objects.put(name, b"?")
    day = timedelta(days=1)
    now = datetime.now(UTC)
    assert collect(objects, 2, day, now).packs == 0
    assert len(list_roots(objects)[0]) == 2
    done = collect(objects, 1, day, now + 2 * day)
    assert (done.roots, done.packs >= 1) == (1, True)
    assert orphan not in {listed.name for listed in objects.list("packs")}
    assert of_others in {listed.name for listed in objects.list("roots")}
    assert not verify_snapshot(objects, created.root, lambda done, total: None).faults


def test_nothing_is_deleted_through_a_link(tmp_path: Path) -> None:
    """Whoever may write to the directory could have had any file of the node deleted."""
    make_log(tmp_path / "log", events(5, seed=7))
    objects = Objects.open(str(tmp_path / "store"), make=True)
    create(tmp_path / "log", objects)
    (tmp_path / "store/packs/link").symlink_to(tmp_path / "log")
    before = sorted((tmp_path / "log").iterdir())
    assert collect(objects, 1, timedelta(0), datetime.now(UTC)).packs == 0
    assert sorted((tmp_path / "log").iterdir()) == before


def test_only_trusted_snapshots_are_read(log: Path) -> None:
    objects = memory()
    create(log, objects)
    assert read_root(objects, trusted=[controller_of(KEY)]).signer == controller_of(KEY)
    with pytest.raises(SnapshotError, match="not trusted"):
        read_root(objects, trusted=[])
    data = bytearray(objects.get("latest.car"))
    data[-1000] ^= 1
    objects.put("latest.car", bytes(data))
    with pytest.raises(SnapshotError, match="not usable"):
        read_root(objects)


@pytest.mark.parametrize("harm", ["lost", "swapped", "falsified"])
def test_a_harmful_store_costs_only_what_it_harms(log: Path, tmp_path: Path, harm: str) -> None:
    objects = memory()
    root = create(log, objects).root
    names = [pack_name(cid) for cid, _ in root.manifest.packs]
    one, other = names[1], names[2]
    data = objects.get(one)
    if harm == "lost":
        objects.delete([one])
    elif harm == "swapped":
        objects.put(one, objects.get(other))
    else:
        rng = random.Random(9)
        damaged = bytearray(data)
        for _ in range(8):
            damaged[rng.randrange(200, len(data))] ^= 0x55
        objects.put(one, bytes(damaged))

    async def main() -> None:
        async with opened(tmp_path) as store, opened(log) as original:
            result = await sync(objects, store)
            assert result.faults
            assert any(one in str(fault) for fault in result.faults)
            assert 0 < len(store.keys) < len(original.keys)
            assert len(store.keys) > root.manifest.count // 2
            assert set(store.keys) <= set(original.keys)
            objects.put(one, data)  # repaired: the rest is fetched
            received = objects.traffic.received
            assert not (await sync(objects, store)).faults
            assert list(store.keys) == list(original.keys)
            assert objects.traffic.received - received < sum(n for _, n in root.manifest.packs)

    trio.run(main)


def test_a_damaged_snapshot_is_not_built_on(tmp_path: Path) -> None:
    objects = memory()
    made = events(200, seed=8)
    make_log(tmp_path, made[:-1])
    first = create(tmp_path, objects)
    for cid, _ in first.root.manifest.packs:
        objects.delete([pack_name(cid)])
    make_log(tmp_path, made[-1:])
    with pytest.raises(DamagedBaseError, match="is missing"):
        create(tmp_path, objects)
    second = create(tmp_path, objects, afresh=True)
    assert second.root.manifest.created > first.root.manifest.created
    assert not verify_snapshot(objects, second.root, lambda done, total: None).faults


@pytest.mark.parametrize("damaged", [lambda data: data[:9], lambda data: bytes(len(data))])
def test_a_snapshot_made_afresh_takes_nothing_damaged(log: Path, damaged) -> None:
    """Though its packs have the names that they had before."""
    objects = memory()
    first = create(log, objects)
    for listed in (*objects.list("packs"), *objects.list("feeds")):
        objects.put(listed.name, damaged(objects.get_range(listed.name, 0, listed.size)))
    second = create(log, objects, afresh=True)
    assert second.root.manifest.packs == first.root.manifest.packs
    assert not verify_snapshot(objects, second.root, lambda done, total: None).faults


def test_damaged_feed_positions_are_found(log: Path) -> None:
    objects = memory()
    root = create(log, objects).root
    [page] = root.manifest.feed.pages
    assert not verify_snapshot(objects, root, lambda done, total: None).faults
    objects.put(page_name(page.cid), bytes(page.size))
    [fault] = verify_snapshot(objects, root, lambda done, total: None).faults
    assert "does not match its CID" in fault.reason


def test_pages_have_the_positions_that_the_snapshot_names(log: Path) -> None:
    """The reader of a feed goes on behind the last one, and would miss what is left out."""
    objects = memory()
    root = create(log, objects).root
    [page] = root.manifest.feed.pages
    for other in (page._replace(upto=page.upto + 1), page._replace(upto=page.upto - 1)):
        with pytest.raises(PageError, match="does not have the positions 1 to"):
            read_page(objects, other)
    with pytest.raises(PageError, match="does not have the positions 2 to"):
        read_page(objects, page._replace(after=1, upto=page.upto + 1))


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("fault", pa.DictionaryArray.from_arrays([0] * 400, ["x" * 500_000]), "alloc of size"),
        ("position", pa.nulls(400, pa.int64()), "does not have the positions 1 to 400"),
        ("time", pa.nulls(400, pa.list_(pa.int64())), "Unsupported cast"),
    ],
)
def test_a_page_is_what_a_node_writes(column, values, reason, monkeypatch) -> None:
    """The first is 5 kB, and 200 MB in memory: one of 64 MB could be terabytes."""
    monkeypatch.setattr(root_module, "_MAX_UNFOLDED", 100_000_000)
    names = {"position": pa.array(range(1, 401)), "event_id": pa.array([b"id"] * 400)}
    out = io.BytesIO()
    pq.write_table(pa.table({**names, column: values}), out, compression="zstd", store_schema=False)
    page = SnapshotPage(CID.of(RAW, out.getvalue()), len(out.getvalue()), 0, 400)
    objects = memory()
    objects.put(page_name(page.cid), out.getvalue())
    before, pool = resource.getrlimit(resource.RLIMIT_DATA), pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())  # another one may have a gigabyte in store
    try:
        with pytest.raises(PageError, match=reason):
            read_page(objects, page)
    finally:
        pa.set_memory_pool(pool)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_pages_of_earlier_versions_lack_columns(log: Path) -> None:
    lacking = ["delivered_at", "fault"]
    objects = memory()
    root = create(log, objects).root
    [page] = root.manifest.feed.pages
    rows = read_page(objects, page)
    assert rows["delivered_at"].null_count == 0
    out = io.BytesIO()
    pq.write_table(rows.drop_columns(lacking), out)
    cid = CID.of(RAW, out.getvalue())
    objects.put(page_name(cid), out.getvalue())
    old = read_page(objects, page._replace(cid=cid, size=len(out.getvalue())))
    assert all(old[name].null_count == rows.num_rows for name in lacking)
    assert old.drop_columns(lacking) == rows.drop_columns(lacking)


def test_a_running_node_makes_the_same_snapshot(log: Path) -> None:
    objects = memory()

    async def main() -> None:
        async with opened(log) as store:
            make = partial(create_snapshot, StoreSource(store), objects, KEY, no_progress)
            first = await trio.to_thread.run_sync(make)
            assert first.root.manifest.tree == create(log, memory()).root.manifest.tree
            assert not (await trio.to_thread.run_sync(make)).is_new

    trio.run(main)
