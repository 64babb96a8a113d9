"""A store on a small disk of its own: fills it up, reads on, makes room, writes again, and copies
it while the disk is mounted read-only.

    unshare -Urm python full_disk_child.py DIRECTORY

A tmpfs of 3 MiB is the disk, so that the system itself has no room. One line on each step.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import trio
from store_helpers import NETWORK, World, check_feed, feed_of

from recon_node.store import DiskFullError, Store, StoreSettings, open_store
from recon_node.store.maintenance import backup_log, check_log

SETTINGS = StoreSettings(verifiers=0, keep_free=0)  # the disk is to be filled to the end
BALLAST = "ballast"


async def fill(store: Store, events: World) -> int:
    """Admit world after world until the disk is full; return how many were refused."""
    refused = 0
    for seed in range(1000):
        world = World(seed, streams=40, events=40)
        try:
            await store.admit_remote(world.offers())
            events.events |= world.events
        except DiskFullError:
            refused += 1
            if refused == 3:
                return refused
    raise SystemExit("the disk was never full")


def mount(*arguments: str) -> int:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode


async def main(directory: Path) -> None:
    world = World(0, streams=1, events=0)
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        refused = await fill(store, world)
        feed, keys = await feed_of(store), store.keys.summarize()
        check_feed(feed, world.events)
        assert len(feed) > 100
        assert await store.reader.car(feed[0].event_cid) == feed[0].car
        print("full", refused, flush=True)
        (directory / BALLAST).unlink()
        assert store.keys.summarize() == keys
        more = World(2000, streams=2, events=2)
        assert {v.status for v in await store.admit_remote(more.offers())} == {"new"}
        world.events |= more.events
    async with open_store(directory, NETWORK, settings=SETTINGS) as store:
        after = await feed_of(store)
        assert after[: len(feed)] == feed
        check_feed(after, world.events)
    assert check_log(directory).faults == []
    print("sound", flush=True)
    mount("-o", "remount,ro", str(directory))
    copied = backup_log(directory, directory.with_name(f"{directory.name}-copy"))
    mount("-o", "remount,rw", str(directory))
    print("copied", copied.head - len(after), flush=True)
    with suppress(OSError), (directory / BALLAST).open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    try:
        async with open_store(directory, NETWORK, settings=SETTINGS):
            print("opened")
    except DiskFullError:
        print("refused")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if mount("-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)):
        raise SystemExit(77)
    (place / BALLAST).write_bytes(bytes(1024 * 1024))
    trio.run(main, place)
