"""A damaged event is fetched from a peer again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import trio
import trio.testing
from p2p_support import eventually, node

from recon_node.p2p.sync.mending import PAUSE, sync_when_damaged
from recon_node.store import DamagedEventError


async def test_a_damaged_event_comes_again_from_a_peer(
    tmp_path: Path, sdk_cars: list[bytes]
) -> None:
    cars = sdk_cars[:40]
    # No sync comes from time to time: the damage alone is the reason for one.
    async with (
        node(tmp_path / "a", cars, sync_interval=3600) as a,
        node(tmp_path / "b", sync_interval=3600) as b,
    ):
        await b.p2p.connect(a.address)
        await eventually(lambda: b.holds_as_many_as(40), 20)
        agreed = b.ahash()
        [row] = await b.store.read_feed(8, 1)
        with closing(sqlite3.connect(tmp_path / "b" / "events.sqlite3")) as connection:
            of_event = "id = (SELECT id FROM events WHERE position = 9)"
            connection.execute(f"UPDATE cars SET car = zeroblob(length(car)) WHERE {of_event}")
            connection.commit()
        with pytest.raises(DamagedEventError):
            await b.store.get_event(row.event_cid)
        await eventually(lambda: b.store.damage.mended_total == 1, 20)
        assert await b.store.get_event(row.event_cid) == row.car
        assert await b.store.read_feed(8, 1) == [row]
        assert (b.ahash(), b.store.damage.count) == (agreed, 0)
        assert b.failures(a.p2p.peer_id) == 0


class Damage:
    def __init__(self) -> None:
        self.found = 0
        self.moved = trio.Event()

    async def wait(self, after: int) -> int:
        while self.found <= after:
            await self.moved.wait()
        return self.found

    def find(self) -> None:
        self.found += 1
        self.moved.set()
        self.moved = trio.Event()


class Damaged:
    def __init__(self) -> None:
        self.damage = Damage()


async def test_much_damage_makes_few_syncs(autojump_clock: trio.testing.MockClock) -> None:
    store, asked = Damaged(), []
    peers = [f"peer {n}" for n in range(10)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sync_when_damaged, store, lambda: peers, asked.append, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert asked == []
        for _ in range(100):
            store.damage.find()
            await trio.sleep(PAUSE / 100)
        await trio.sleep(2 * PAUSE)
        assert len(asked) == 6, "three peers at once, and for all that came in the pause"
        nursery.cancel_scope.cancel()
