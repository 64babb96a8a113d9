"""A day's worth of churn in ten minutes: peers come and go, entries expire, and two nodes stay.

A peer entry lives for a minute instead of a day, and some hundred peers take part for seconds
instead of hours. The nodes that stay must not be left with more tasks, open files, objects, memory
or work than before. RECON_TEST_CHURN_SECONDS makes it shorter.

Resident memory rises all the same, by 60 to 90 KB a guest: a third of it are SQLite's page caches,
which grow with the logs up to 64 MiB each, and most of the rest is the allocator's, which keeps
what the guests of this process have freed. So a leak shows in the number of objects: what a node
remembers of its peers is bounded, and here so tightly that the first guests fill it.
"""

import gc
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from nacl.signing import SigningKey
from p2p_support import Node, eventually, node

from recon_node.ceramic import METAMODEL
from recon_node.ceramic.builder import data_event, init_event
from recon_node.p2p.transport import hardening
from recon_node.recon.ring import peer_ring

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is from /proc"),
]

SECONDS = float(os.environ.get("RECON_TEST_CHURN_SECONDS", "600"))
LIFETIME = min(60, int(SECONDS / 4))
"""Seconds for which a peer entry is valid."""
KNOWN = 20
"""Peers that a node remembers at most."""
OBJECTS = 15
"""Objects that a guest may leave behind: its events' keys, reports of its syncs, SQL statements. A
connection, a stream or a task has hundreds."""
RESIDENT = 90_000
"""Bytes of memory that a guest may leave behind."""
FILES = 16
"""Files that may be opened later than in the first tenth: four readers of each log, of two files
each, are opened when several are needed at once."""
AT_ONCE = 3
"""Peers that come and go at the same time."""
QUIET = 10.0
"""Seconds in which the work of nodes in sync is measured."""
LIMIT = 60.0


@dataclass(frozen=True)
class Use:
    """What this process uses while nothing happens but syncs of equal nodes."""

    tasks: int
    files: int
    objects: int
    resident: int
    cpu: float


async def measure() -> Use:
    """Let the nodes be for a while, and see what that takes."""
    gc.collect()
    before = time.process_time()
    await trio.sleep(QUIET)
    cpu = time.process_time() - before
    tasks = trio.lowlevel.current_statistics().tasks_living
    files = len(list(Path("/proc/self/fd").iterdir()))  # noqa: ASYNC240
    gc.collect()
    return Use(tasks, files, len(gc.get_objects()), resident(), cpu)


def resident() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def stream(rng: random.Random) -> list[bytes]:
    key = SigningKey(rng.randbytes(32))
    init = init_event(key, METAMODEL, {}, unique=rng.randbytes(12))
    return [init.car, data_event(key, init, [init.cid], []).car]


async def come_and_go(directory: Path, rng: random.Random, staying: list[Node]) -> None:
    """Bring a stream to the nodes that stay, get theirs, and leave; one in three just vanishes."""
    async with node(directory, stream(rng), versions=()) as guest:
        await guest.p2p.connect(rng.choice(staying).address)
        if rng.random() < 1 / 3:
            return
        brought = list(await guest.store.load_ring_keys())
        for peer in staying:
            await eventually(
                lambda peer=peer: set(brought).issubset(peer.store.ring_keys or ()), LIMIT
            )
        await eventually(lambda: len(guest.store.ring_keys or ()) > len(brought), LIMIT)


async def test_nodes_that_stay_are_left_with_nothing(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(peer_ring, "LIFETIME", LIFETIME)
    monkeypatch.setattr(hardening, "MAX_PEERS", KNOWN)
    # A node freezes what it has loaded, twice in its life. Hundreds of them in one process would
    # keep what all the others had in use at these moments.
    monkeypatch.setattr(gc, "freeze", lambda: None)
    guests = 0
    async with (
        node(tmp_path / "one", stream(rng), versions=(), max_known_peers=KNOWN) as one,
        node(tmp_path / "two", stream(rng), versions=(), max_known_peers=KNOWN) as two,
    ):
        staying = [one, two]
        await one.p2p.connect(two.address)
        await eventually(
            lambda: all(len(peer.store.ring_keys or ()) == 4 for peer in staying), LIMIT
        )

        async def guests_in_turn(until: float) -> None:
            nonlocal guests
            while trio.current_time() < until:
                guests += 1
                await come_and_go(tmp_path / f"guest-{guests}", rng, staying)

        async def churn(seconds: float) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(AT_ONCE):
                    nursery.start_soon(guests_in_turn, trio.current_time() + seconds)

        await churn(SECONDS / 10)  # what is imported and cached by the first guests stays
        await trio.sleep(LIFETIME)
        before = await measure()
        await churn(SECONDS * 9 / 10)
        # Entries expire, and are dropped at the next refresh; connections to those that left are
        # given up.
        remaining = {one.p2p.peer_id, two.p2p.peer_id}
        await eventually(lambda: remembered(one) | remembered(two) <= remaining, LIFETIME + LIMIT)
        await eventually(lambda: connected(one) == {two.p2p.peer_id}, LIMIT)
        await eventually(lambda: connected(two) == {one.p2p.peer_id}, LIMIT)
        after = await measure()
        print(f"{guests} guests; before: {before}; after: {after}")
        assert guests > SECONDS / 10
        assert one.store.ring_keys.summarize() == two.store.ring_keys.summarize()
        assert all(len(peer.p2p._rings._peer_ring) <= 6 for peer in staying)
        assert after.tasks <= before.tasks + 4
        assert after.files <= before.files + FILES
        assert after.objects < before.objects + 2_000 + OBJECTS * guests
        assert after.resident < before.resident + RESIDENT * guests
        assert after.cpu < 2 * before.cpu + 0.5


def connected(one: Node) -> set[str]:
    return {peer.id for peer in one.p2p.peers() if peer.connected}


def remembered(one: Node) -> set[str]:
    return {entry.peer_id for entry in one.p2p._rings._peer_ring.others()}
