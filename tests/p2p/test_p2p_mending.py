"""A damaged event is fetched from a peer again."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from p2p_support import eventually, node

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
        await eventually(lambda: b.holds_as_many_as(40))
        agreed = b.ahash()
        [row] = await b.store.log.feed(8, 1)
        with closing(sqlite3.connect(tmp_path / "b" / "events.sqlite3")) as connection:
            of_event = "id = (SELECT id FROM events WHERE position = 9)"
            connection.execute(f"UPDATE cars SET car = zeroblob(length(car)) WHERE {of_event}")
            connection.commit()
        with pytest.raises(DamagedEventError):
            await b.store.log.car(row.event_cid)
        await eventually(lambda: b.store.damage.mended_total == 1)
        assert await b.store.log.car(row.event_cid) == row.car
        assert await b.store.log.feed(8, 1) == [row]
        assert (b.ahash(), b.store.damage.count) == (agreed, 0)
        assert b.failures(a.p2p.peer_id) == 0
