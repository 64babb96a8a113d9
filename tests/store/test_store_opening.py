"""Opening a data directory: what is refused, in plain English, and never silently replaced."""

import os
import re
import sqlite3
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
import trio
from store_helpers import NETWORK, World, contents, edit, feed_of, pages_of
from support import forking

from recon_node.ceramic import Network
from recon_node.store import Interest, StoreError, open_store
from recon_node.store.db import log_schema, proofs
from recon_node.store.directory_lock import directory_lock, is_in_use


async def make_log(directory: Path) -> Path:
    """A log with some events in it."""
    async with open_store(directory, NETWORK) as store:
        await store.admit_remote(World(1).offers())
    return directory / "events.sqlite3"


async def refused(directory: Path, message: str, network: Network = NETWORK) -> None:
    """Opening is refused with that message, and changes nothing in the directory."""
    before = contents(directory)
    with pytest.raises(StoreError, match=message) as caught:
        async with open_store(directory, network):
            pass
    assert str(directory) in str(caught.value)
    assert contents(directory) == before


async def test_a_new_log_has_an_epoch_that_it_keeps(tmp_path: Path) -> None:
    directory = tmp_path / "not" / "there" / "yet"
    async with open_store(directory, NETWORK) as store:
        epoch = store.epoch
        assert str(uuid.UUID(epoch)) == epoch
        assert (store.head, store.waiting, len(store.keys)) == (0, 0, 0)
    async with open_store(directory, NETWORK) as store:
        assert store.epoch == epoch
    async with open_store(tmp_path / "other", NETWORK) as store:
        assert store.epoch != epoch


async def test_a_log_that_lost_shown_positions_begins_a_new_epoch(tmp_path: Path) -> None:
    """An older copy put back, or a write-ahead log cut short: positions would be given twice."""
    events = World(1).offers()
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(events[:5])
        epoch, early = store.epoch, store.head
    older = (tmp_path / "events.sqlite3").read_bytes()
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(events)
        assert (store.epoch, store.head > early) == (epoch, True)
    async with open_store(tmp_path, NETWORK) as store:  # nothing is lost: nothing changes
        assert store.epoch == epoch
    (tmp_path / "events.sqlite3").write_bytes(older)
    async with open_store(tmp_path, NETWORK) as store:
        assert store.head == early
        new_epoch = store.epoch
        assert new_epoch != epoch
    async with open_store(tmp_path, NETWORK) as store:
        assert store.epoch == new_epoch


@pytest.mark.parametrize("content", [b"", b"\xff" * 60, b"another 17\n", b"a b c"])
async def test_an_unreadable_note_of_the_head_changes_nothing(tmp_path, content):
    await make_log(tmp_path)
    async with open_store(tmp_path, NETWORK) as store:
        epoch = store.epoch
    (tmp_path / "feed.head").write_bytes(content)
    async with open_store(tmp_path, NETWORK) as store:
        assert store.epoch == epoch


def lock_in_a_process(directory: Path) -> subprocess.Popen[bytes]:
    """A process that holds the directory's lock."""
    program = (
        "import sys; from pathlib import Path\n"
        "from recon_node.store.directory_lock import directory_lock, is_in_use\n"
        "with directory_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = forking.Popen(
        [sys.executable, "-c", program, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    return holder


async def test_another_process_is_refused_and_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    with lock_in_a_process(tmp_path) as holder:
        await refused(tmp_path, f"in use by process {holder.pid}")
        holder.kill()
    async with open_store(tmp_path, NETWORK):
        pass


def test_the_lock_names_the_present_holder(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4194304999\n")
    with directory_lock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()} {os.uname().nodename}\n"


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("1 0f3e5d", "by process 1 on host 0f3e5d, another container or machine: stop that node"),
        (f"1 {os.uname().nodename}", "by process 1, the node of a container: stop that container"),
        ("1", "by process 1, the node of a container: stop that container first"),
        ("4194304", "by process 4194304: stop that daemon first"),  # a version without host names
    ],
)
def test_the_holder_may_be_in_another_container(tmp_path: Path, mark: str, words: str) -> None:
    with directory_lock(tmp_path):
        (tmp_path / "lock").write_text(f"{mark}\n")
        with pytest.raises(StoreError, match=re.escape(words)), directory_lock(tmp_path):
            pass


async def test_another_network_is_refused(tmp_path: Path) -> None:
    await make_log(tmp_path)
    await refused(tmp_path, f"{NETWORK}.*local-8", Network.local(8))
    async with open_store(tmp_path, NETWORK) as store:
        assert store.head > 0


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def overwrite_pages(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


def drop_position(path: Path) -> None:
    edit(path.parent, "UPDATE events SET position = NULL WHERE position = 2")


def unknown_kind(path: Path) -> None:
    edit(path.parent, "UPDATE events SET kind = 'tine', position = NULL WHERE id = 1")
    edit(path.parent, "UPDATE events SET position = position - 1")


def newer_schema(path: Path) -> None:
    edit(path.parent, f"PRAGMA user_version = {len(log_schema.MIGRATIONS) + 1}")
    edit(path.parent, "UPDATE meta SET value = '9.8.7' WHERE name = 'written_by'")


def foreign(path: Path) -> None:
    path.unlink()
    edit(path.parent, "CREATE TABLE cookies (name TEXT)")


def only_wal(path: Path) -> None:
    path.rename(path.with_name("events.sqlite3-wal"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"garbage" * 1000), "not an SQLite database"),
        (truncate, "damaged"),
        (overwrite_pages, "damaged"),
        (drop_position, "damaged .* feed positions from 1.*recon-node store check --repair"),
        (unknown_kind, "damaged .*'tine'.*recon-node store check --repair"),
        (newer_schema, "by a later version of recon-node, 9.8.7 "),
        (foreign, "another program"),
        (only_wal, "is missing, but its write-ahead log"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_a_log_that_is_not_right_is_refused(tmp_path, damage, message):
    damage(await make_log(tmp_path))
    await refused(tmp_path, message)


async def test_a_link_to_a_disk_that_is_not_mounted_is_not_replaced_by_a_new_log(tmp_path):
    link = tmp_path / "events.sqlite3"
    link.symlink_to(tmp_path / "mnt" / "log")
    with pytest.raises(StoreError, match="where nothing is: mount its disk"):
        async with open_store(tmp_path, NETWORK):
            pass
    assert link.is_symlink()


async def test_a_migration_that_fails_leaves_the_log_as_it_was(tmp_path, monkeypatch):
    await make_log(tmp_path)
    broken = (*log_schema.MIGRATIONS, "CREATE TABLE more (x); SELECT * FROM nowhere;")
    with monkeypatch.context() as patch:
        patch.setattr(log_schema, "MIGRATIONS", broken)
        await refused(tmp_path, "no such table: nowhere")
    async with open_store(tmp_path, NETWORK) as store:
        assert store.head > 0


async def test_a_start_can_be_stopped_while_the_log_is_migrated(tmp_path, monkeypatch):
    """At once; the lock is held as long as the thread goes on."""
    await make_log(tmp_path)
    begun, may_go_on = threading.Event(), threading.Event()

    def migrate(connection: sqlite3.Connection) -> None:
        begun.set()
        may_go_on.wait(120)

    with monkeypatch.context() as patch:
        patch.setattr(log_schema, "MIGRATIONS", (*log_schema.MIGRATIONS, migrate))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(opened_for_good, tmp_path)
            await trio.to_thread.run_sync(begun.wait, 60)
            nursery.cancel_scope.cancel()
        assert not may_go_on.is_set()
        with pytest.raises(StoreError, match="in use by process"):
            async with open_store(tmp_path, NETWORK):
                pass
        may_go_on.set()
        with trio.fail_after(60):
            while is_in_use(tmp_path):  # noqa: ASYNC110 - of a thread that nobody waits for
                await trio.sleep(0.01)
        async with open_store(tmp_path, NETWORK) as store:
            assert store.head > 0


async def opened_for_good(directory: Path) -> None:
    async with open_store(directory, NETWORK):
        await trio.sleep_forever()


async def test_a_log_that_cannot_be_read_leaves_no_file_open(tmp_path, monkeypatch):
    def fail(connection: sqlite3.Connection) -> int:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(proofs, "count_pending", fail)
    with pytest.raises(StoreError, match="disk I/O error"):
        async with open_store(tmp_path, NETWORK):
            pass
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]  # noqa: ASYNC240
    assert not any(link.readlink().is_relative_to(tmp_path) for link in links)


async def test_an_old_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 31, 1))
    with pytest.raises(StoreError, match=r"too old: 3\.37\.0 or later"):
        async with open_store(tmp_path, NETWORK):
            pass


async def test_an_unfinished_new_log_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "events.sqlite3.new").write_bytes(b"half a file")
    async with open_store(tmp_path, NETWORK) as store:
        assert store.head == 0
    assert list(contents(tmp_path)) == ["events.sqlite3"]


async def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created"):
        async with open_store(tmp_path / "file" / "data", NETWORK):
            pass
    with pytest.raises(StoreError, match="file is not a directory, but a file"):
        async with open_store(tmp_path / "file", NETWORK):
            pass


async def test_damage_that_is_met_later_is_reported_and_reads_of_the_rest_go_on(
    tmp_path: Path,
) -> None:
    world = World(1, streams=20, events=200)
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(world.offers())
        rows = await feed_of(store)
    path = tmp_path / "events.sqlite3"
    page = pages_of(path, "cars", "leaf")[-1]
    with path.open("r+b") as file:
        file.seek((page - 1) * log_schema.PAGE_SIZE)
        file.write(b"\xa5" * log_schema.PAGE_SIZE)
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(StoreError, match="damaged"):
            await feed_of(store)
        assert await store.reader.feed(0, 1) == rows[:1]


async def test_what_is_raised_inside_comes_out_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with open_store(tmp_path, NETWORK):
            raise KeyError("mine")
    async with open_store(tmp_path, NETWORK) as store:
        await store.wanted.add(Interest("model", "value"))
