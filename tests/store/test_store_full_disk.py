"""A disk without room: writes are refused, told once, reading goes on, and it recovers."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest
from store_helpers import NETWORK, SETTINGS, World, check_feed, feed_of
from structlog.testing import capture_logs
from support.waiting import finished

from recon_node.base.files import reserve_at
from recon_node.store import DiskFullError, StoreError, open_store
from recon_node.store.db.sql import explain_os
from recon_node.store.store import DISK_CHECK_INTERVAL, DiskReserve

CHILD = Path(__file__).with_name("full_disk_child.py")
NO_MOUNTS = 77


@pytest.mark.skipif(not shutil.which("unshare"), reason="there is no unshare")
def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """On a real full file system, where this user may mount one."""
    command = ["unshare", "-Urm", sys.executable, str(CHILD), str(tmp_path)]
    done = finished(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    if done.returncode == NO_MOUNTS or "unshare failed" in done.stderr:
        pytest.skip("this user may not mount a file system")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("20")]
    assert lines == ["full 3", "sound", "copied 0", "refused"]
    assert done.stdout.count("The event log cannot be written") == 1  # three writes were refused
    assert done.stdout.count("The event log can be written again") == 1


@pytest.mark.parametrize(
    ("fault", "repair", "kind", "advice"),
    [
        ("max_page_count = {}", "max_page_count = 1000000", DiskFullError, "free some space"),
        ("query_only = ON", "query_only = OFF", StoreError, "check its permissions and the mount"),
    ],
    ids=["full", "read-only"],
)
async def test_a_disk_that_takes_nothing_is_an_error_for_every_caller_and_is_logged_once(
    fault, repair, kind, advice, tmp_path
):
    world, more = World(1), World(2, streams=40, events=200)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        await store.admit_local([event.car for event in world.events.values()])
        rows, summary = await feed_of(store), store.keys.summarize()
        connection = store._writer.log.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        with capture_logs() as logs:
            connection.execute(f"PRAGMA {fault.format(pages + 5)}")
            for _ in range(3):
                with pytest.raises(kind, match=advice):
                    await store.admit_remote(more.offers())
                assert advice in store.write_failure
                assert (await feed_of(store), store.keys.summarize()) == (rows, summary)
            assert store.batch_durations["failed"].count == 3
            connection.execute(f"PRAGMA {repair}")
            await store.admit_remote(more.offers())
        assert store.write_failure == ""
        assert [entry["log_level"] for entry in logs] == ["error", "info"]
        after = await feed_of(store)
        assert after[: len(rows)] == rows
        check_feed(after, world.events | more.events)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert await feed_of(store) == after


async def test_to_close_a_log_is_not_to_write_it_again(tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
            store._writer.log.connection.execute("PRAGMA query_only = ON")
            with pytest.raises(StoreError):
                await store.admit_remote(World(1).offers())
    assert [entry["log_level"] for entry in logs] == ["error"]


def test_the_system_s_word_for_a_full_disk_is_understood(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    assert isinstance(explain_os(error, tmp_path), DiskFullError)
    assert not isinstance(explain_os(OSError(errno.EIO, "I/O error"), tmp_path), DiskFullError)


class Disk:
    def __init__(self, keep: int, free: int) -> None:
        self.free = free
        self.now = 0.0
        self.looks = 0
        self.reserve = DiskReserve(keep, self._look, lambda: self.now)

    def _look(self) -> int:
        self.looks += 1
        return self.free

    def is_short(self) -> bool:
        self.now += DISK_CHECK_INTERVAL
        return self.reserve.is_short


def take(disk: Disk, size: int) -> None:
    with disk.reserve.room_for(size):
        pass


def test_the_reserve_is_left_alone_and_said_once() -> None:
    disk = Disk(keep=1000, free=2500)
    with capture_logs() as logs:
        with disk.reserve.room_for(400):  # an event may be there three times over
            assert not disk.is_short()
            with disk.reserve.room_for(100):
                pass
        with disk.reserve.room_for(500):
            pass
        with disk.reserve.room_for(400), pytest.raises(DiskFullError, match="keep_free"):
            take(disk, 101)
        assert disk.reserve.is_short
        disk.free = 2750
        assert disk.is_short(), "what was lacking is not enough: it would flap"
        with pytest.raises(DiskFullError):
            take(disk, 1)
        disk.free = 2754
        assert not disk.is_short()
        take(disk, 33)
    assert [log["log_level"] for log in logs] == ["warning", "info"]
    assert logs[0]["keep_free"] == 1000


def test_the_disk_is_looked_at_once_a_second() -> None:
    disk = Disk(keep=1000, free=999)
    assert all(disk.reserve.is_short for _ in range(1000))
    assert disk.looks == 1
    nothing_kept = Disk(keep=0, free=0)
    assert not nothing_kept.is_short()
    take(nothing_kept, 1 << 40)


async def test_below_the_reserve_the_owner_writes_and_peers_do_not(tmp_path: Path) -> None:
    world, more = World(1, streams=4, events=8), World(2, streams=4, events=8)
    async with open_store(tmp_path, NETWORK, settings=SETTINGS) as store:
        assert store.disk.keep == reserve_at(tmp_path)
        free = 2 * store.disk.keep
        store.disk._free = lambda: free
        assert {verdict.status for verdict in await store.admit_remote(world.offers())} == {"new"}
        assert not store.wants_keys_first
        free = store.disk.keep - 1
        offers = more.offers()
        with pytest.raises(DiskFullError, match="nothing is taken from peers"):
            await store.admit_remote(offers)
        unknown = [event_id for event_id, _ in offers]
        assert store.wants_keys_first
        assert all(map(store.is_unwanted, unknown))
        assert not any(store.is_unwanted(key, for_good=True) for key in unknown)
        assert not any(store.is_unwanted(event_id) for event_id, _ in world.offers())
        own = await store.admit_local([event.car for event in more.events.values()])
        assert {verdict.status for verdict in own} == {"new"}
