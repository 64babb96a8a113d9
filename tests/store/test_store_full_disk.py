"""A disk without room: writes are refused, told once, reading goes on, and it recovers."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_helpers import NETWORK, World, feed_of
from structlog.testing import capture_logs

from recon_node.store import DiskFullError, StoreSettings, open_store
from recon_node.store.db.sql import explain_os

CHILD = Path(__file__).with_name("full_disk_child.py")
NO_MOUNTS = 77


def run_child(directory: Path, way: str) -> subprocess.CompletedProcess[str]:
    unshare = ["unshare", "-Urm"] if way == "mount" else []
    command = [*unshare, sys.executable, str(CHILD), str(directory), way]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """On a real full file system, where this user may mount one; else on a file that is full."""
    done = None
    if shutil.which("unshare"):
        done = run_child(tmp_path, "mount")
        if done.returncode == NO_MOUNTS or "unshare failed" in done.stderr:
            done = None
    done = done or run_child(tmp_path, "limit")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("20")]
    assert lines == ["full 3", "sound"]
    assert done.stdout.count("The disk is full") == 1  # three writes were refused
    assert done.stdout.count("The disk has room again") == 1


async def test_every_caller_is_told_that_the_disk_is_full_and_the_operator_once(
    tmp_path: Path,
) -> None:
    world, more = World(1), World(2, streams=40, events=200)
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(verifiers=0)) as store:
        await store.admit_local([event.car for event in world.events.values()])
        rows = await feed_of(store)
        connection = store._writer.log.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        with capture_logs() as logs:
            connection.execute(f"PRAGMA max_page_count = {pages + 5}")
            for _ in range(3):
                with pytest.raises(DiskFullError, match="free some space"):
                    await store.admit_remote(more.offers())
                assert await feed_of(store) == rows
            connection.execute("PRAGMA max_page_count = 1000000")
            await store.admit_remote(more.offers())
        assert [entry["log_level"] for entry in logs] == ["error", "info"]
        assert store.head == len(world.events) + len(more.events)


def test_the_system_s_word_for_a_full_disk_is_understood(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device")
    assert isinstance(explain_os(error, tmp_path), DiskFullError)
    assert not isinstance(explain_os(OSError(errno.EIO, "I/O error"), tmp_path), DiskFullError)
