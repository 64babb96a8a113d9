"""Export and import: one CAR that holds everything, and out of which everything comes again."""

import errno
import io
from collections.abc import Sequence
from contextlib import closing, nullcontext
from itertools import repeat
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey
from store_helpers import MODEL, NETWORK, OTHER_MODEL, World, check_feed, feed_of, timeless
from support import sdk_sample

from recon_node.ceramic import EventId, Network
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, RAW, car, dag_cbor
from recon_node.store import Interest, Store, StoreError, StoreSettings, Verdict, open_store
from recon_node.store.db.blocks import section
from recon_node.store.maintenance import ArchiveError, check_log, export_events, import_events
from recon_node.store.maintenance.archive import ArchivePage, Manifest, cid_of
from recon_node.store.maintenance.archive_import import _ArchiveReader
from recon_node.store.maintenance.history_import import import_history

SETTINGS = StoreSettings(verifiers=0)
KEY = SigningKey(bytes(32))
INIT = init_event(KEY, MODEL, {"a": "x"}, unique=b"u")


def exported(directory: Path, *interests: Interest) -> bytes:
    file = io.BytesIO()
    export_events(directory, file, interests)
    return file.getvalue()


async def test_an_export_that_cannot_be_written_does_not_blame_the_log(tmp_path: Path) -> None:
    """It said that events.sqlite3 cannot be used, or that its disk is full."""

    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([INIT.car])
    with pytest.raises(OSError, match="No space left on device"):
        export_events(tmp_path, Full())


@settings(
    max_examples=settings().max_examples // 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(0, 2**32), st.booleans(), st.floats(0.5, 1))
async def test_an_export_comes_in_as_the_same_set_and_the_same_feed(
    tmp_path_factory, seed, time_events, share
):
    tmp_path = tmp_path_factory.mktemp("archive")
    world = World(seed, events=60, time_events=time_events)
    offers = world.offers()
    world.random.shuffle(offers)
    async with open_store(tmp_path / "a", NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(offers[: int(len(offers) * share)])
        summary, feed = store.keys.summarize(), timeless(await feed_of(store))
        counts = store.waiting, store.pending
    intake = await import_events(tmp_path / "b", io.BytesIO(exported(tmp_path / "a")), SETTINGS)
    assert intake.counts == {"new": summary.count}
    async with open_store(tmp_path / "b", NETWORK, settings=SETTINGS) as store:
        assert store.keys.summarize() == summary
        assert timeless(await feed_of(store)) == feed
        assert (store.waiting, store.pending) == counts
    assert check_log(tmp_path / "b").faults == []
    again = await import_events(tmp_path / "b", io.BytesIO(exported(tmp_path / "a")), SETTINGS)
    assert again.counts == {"known": summary.count}


async def make_log(directory: Path, world: World) -> None:
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers())


async def test_any_car_reader_reads_it_and_everything_hangs_on_its_root(tmp_path: Path) -> None:
    world = World(4, streams=5, events=100, time_events=True)
    await make_log(tmp_path, world)
    archive = car.decode(exported(tmp_path))  # checks every hash
    [root] = archive.roots
    manifest = Manifest.decode(archive.blocks[root])
    assert (manifest.network, manifest.events) == (NETWORK, len(world.events))
    reached = {root, *manifest.pages}
    events = {}
    for page in (ArchivePage.decode(archive.blocks[cid]) for cid in manifest.pages):
        for event_id, cids in page.events:
            reached.update(cids)
            blocks = {cid: archive.blocks[cid] for cid in cids}
            events[event_id] = car.encode([event_id.event_cid], blocks)
    assert events == dict(world.offers())
    assert reached == archive.blocks.keys()
    assert exported(tmp_path) == exported(tmp_path)


async def test_pages_share_blocks_and_are_read_one_by_one(tmp_path, monkeypatch):
    world = World(4, streams=5, events=100, time_events=True)
    await make_log(tmp_path / "a", world)
    whole = exported(tmp_path / "a")
    monkeypatch.setattr("recon_node.store.maintenance.archive.PAGE_EVENTS", 7)
    paged = exported(tmp_path / "a")
    archive = car.decode(paged)
    pages = Manifest.decode(archive.blocks[archive.roots[0]]).pages
    assert len(pages) == -(-len(world.events) // 7)
    assert len(archive.blocks) == len(car.decode(whole).blocks) + len(pages) - 1
    intake = await import_events(tmp_path / "b", io.BytesIO(paged), SETTINGS)
    assert intake.counts == {"new": len(world.events)}


@pytest.mark.parametrize(("times", "read"), [(1, [17, 17, 6]), (2, [0])])
def test_events_that_share_a_block_are_made_a_few_at_once(times: int, read: list[int]) -> None:
    """A page of 110 bytes an event may name one block of a megabyte, and more than once."""
    block = bytes(999_000)
    cid = CID.of(RAW, block)
    names = [CID.of(RAW, number.to_bytes(2)) for number in range(40)]
    ids = [EventId.build(NETWORK, "k", "did:key:z6Mk", name, 0, name) for name in names]
    page = ArchivePage([(event_id, [cid] * times) for event_id in ids], []).encode()
    manifest = Manifest(NETWORK, len(ids), (cid_of(page),))
    reader = _ArchiveReader(io.BytesIO(section(cid_of(page), page) + section(cid, block)))
    sizes: list[int] = []
    with closing(reader), pytest.raises(ArchiveError) if times > 1 else nullcontext():
        for events in reader.pages(manifest):
            sizes.append(len(events))
    assert sizes == read


async def test_only_an_interest_is_exported(tmp_path: Path) -> None:
    world = World(4, events=20)
    other = World(5, streams=0, events=0)
    event = other.start(next(iter(world.keys.values())), b"other", model=OTHER_MODEL)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_remote(world.offers() + other.offers())
    archive = car.decode(exported(tmp_path, Interest("model", str(OTHER_MODEL))))
    assert Manifest.decode(archive.blocks[archive.roots[0]]).events == 1
    assert event.cid in archive.blocks
    rest = car.decode(exported(tmp_path, Interest("model", str(MODEL))))
    assert Manifest.decode(rest.blocks[rest.roots[0]]).events == len(world.events)
    assert event.cid not in rest.blocks


async def test_events_of_the_sdk_keep_their_bytes(tmp_path: Path) -> None:
    cars = sdk_sample.cars()[:60]
    async with open_store(tmp_path / "a", NETWORK, settings=SETTINGS) as store:
        await store.admit_local(cars)
    await import_events(tmp_path / "b", io.BytesIO(exported(tmp_path / "a")), SETTINGS)
    async with open_store(tmp_path / "b", NETWORK, settings=SETTINGS) as store:
        assert [row.car for row in await feed_of(store)] == cars


@pytest.mark.parametrize("page_events", [10, 1_000])
async def test_a_file_that_was_cut_off_comes_in_up_to_there(tmp_path, monkeypatch, page_events):
    """Between pages, or in a page up to its last whole event."""
    monkeypatch.setattr("recon_node.store.maintenance.archive.PAGE_EVENTS", page_events)
    world = World(4, events=60)
    await make_log(tmp_path / "a", world)
    whole = exported(tmp_path / "a")
    message = (
        r"beyond byte \d+: it ends in the middle of a block.* events before that are in the log"
    )
    with pytest.raises(ArchiveError, match=message):
        await import_events(tmp_path / "b", io.BytesIO(whole[: len(whole) // 2]), SETTINGS)
    async with open_store(tmp_path / "b", NETWORK, settings=SETTINGS) as store:
        check_feed(await feed_of(store), world.events)
        known = len(store.keys)
        assert 10 <= known < len(world.events)
    intake = await import_events(tmp_path / "b", io.BytesIO(whole), SETTINGS)
    assert intake.counts == {"known": known, "new": len(world.events) - known}


async def test_a_block_that_was_tampered_with_is_refused_and_the_rest_comes_in(tmp_path):
    world = World(4, streams=2, events=0)
    await make_log(tmp_path / "a", world)
    whole = bytearray(exported(tmp_path / "a"))
    whole[-1] ^= 1
    intake = await import_events(tmp_path / "b", io.BytesIO(bytes(whole)), SETTINGS)
    assert intake.counts == {"new": 1, "refused": 1}
    [(event_id, reason)] = intake.refused
    assert isinstance(event_id, EventId)
    assert "does not match its CID" in reason


async def test_other_files_are_refused_and_change_nothing(tmp_path: Path) -> None:
    [one, *_] = World(4).events.values()
    for data, message in [
        (b"", "is not a CAR, .*; nothing was imported"),
        (b"# A text\n" * 100, "is not a CAR"),
        (b"\xff" * 100, "is not a CAR"),
        (one.car[: len(one.car) // 2], "cannot be imported: it does not start with a manifest"),
        (one.car, "cannot be imported: .* not written by `recon-node store export`"),
    ]:
        with pytest.raises(ArchiveError, match=message):
            await import_events(tmp_path / "b", io.BytesIO(data), SETTINGS)
        assert not (tmp_path / "b").exists()


async def test_another_network_is_refused(tmp_path: Path) -> None:
    world = World(4)
    await make_log(tmp_path / "a", world)
    async with open_store(tmp_path / "b", Network.local(8), settings=SETTINGS):
        pass
    with pytest.raises(StoreError, match="local-7"):
        await import_events(tmp_path / "b", io.BytesIO(exported(tmp_path / "a")), SETTINGS)


def size_below(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(pattern))


async def test_blocks_that_many_events_share_are_put_together_a_few_at_once(tmp_path, monkeypatch):
    """40 envelopes of 230 bytes, all with one payload of 900 kB, are 36 MB of CARs."""
    patch = {"op": "add", "path": "/a", "value": "y" * 900_000}
    event = data_event(KEY, INIT.cid, [INIT.cid], [patch])
    parts = car.decode(event.car)
    envelope = dag_cbor.decode(parts.blocks[event.cid])
    blocks = [*car.decode(INIT.car).blocks.values(), *parts.blocks.values()]
    for number in range(40):
        envelope["signatures"][0]["signature"] = number.to_bytes(64, "big")
        blocks.append(dag_cbor.encode(envelope))
    admitted: list[int] = []
    admit = Store.admit_history

    async def spy(self: Store, cars: Sequence[bytes]) -> list[Verdict]:
        admitted.append(sum(map(len, cars)))
        assert size_below(tmp_path, ".recon-node.part/*") < 2_000_000
        return await admit(self, cars)

    monkeypatch.setattr(Store, "admit_history", spy)
    result = await import_history(tmp_path, NETWORK, blocks)
    assert result.counts == {"new": 2, "refused": 40}
    assert sum(admitted) > 36_000_000
    assert max(admitted) < 18_000_000


async def test_reading_blocks_can_be_stopped(tmp_path: Path) -> None:
    with trio.move_on_after(0.1) as scope:
        await import_history(tmp_path, NETWORK, repeat(b"\xa0"))
    assert scope.cancelled_caught
