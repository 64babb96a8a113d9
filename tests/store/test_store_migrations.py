"""Logs of earlier versions become logs of this one, and say what they said."""

from pathlib import Path

import pytest
from store_helpers import NETWORK, World, check_feed, edit, feed_of, make_version_1, timeless

from recon_node.store import open_store
from recon_node.store.maintenance import check_log


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_log_of_version_1_is_brought_up_to_date(tmp_path: Path, damaged: bool) -> None:
    """Also one in which a CAR is damaged: that of a time event, whose proof is not known then."""
    world = World(3, streams=6, events=100, time_events=True)
    anchors = [event for event in world.events.values() if event.proof is not None]
    missing = next(iter(anchors[0].prevs))  # one of them waits for its history
    offers = [offer for offer in world.offers() if offer[0].event_cid != missing]
    async with open_store(tmp_path / "new", NETWORK) as store:
        await store.admit_remote(offers)
        proofs = {proof.cid for proof in await store.reader.pending_proofs(1_000)}
        before = (timeless(await feed_of(store)), [*store.keys], store.epoch, store.waiting)
        pending = store.pending
    assert 0 < len(proofs) < len(anchors)
    make_version_1(tmp_path / "new", tmp_path / "old")
    spoilt = anchors[-1]
    if damaged:
        sql = "UPDATE cars SET car = x'0102' WHERE id = (SELECT id FROM events WHERE cid = ?)"
        assert edit(tmp_path / "old", sql, spoilt.cid) == 1
        proofs.discard(spoilt.payload["proof"])
    async with open_store(tmp_path / "old", NETWORK) as store:
        assert before == (await feed_of(store), [*store.keys], store.epoch, store.waiting)
        assert store.pending == pending
        assert {proof.cid for proof in await store.reader.pending_proofs(1_000)} == proofs
        connection = store._writer.log.connection
        sql = "SELECT count(*) FROM cars WHERE substr(car, 1, 1) = x'00'"
        assert connection.execute(sql).fetchone() == (len(anchors) - damaged,), "they are packed"
        await store.admit_remote([world.offer(world.events[missing])])
        while left := await store.reader.pending_proofs(1_000):
            await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in left])
        rows = await feed_of(store)
        check_feed(rows, world.events)
        assert damaged or len(rows) == len(world.events)
        assert (spoilt.cid in {row.event_cid for row in rows}) is not damaged
    faults = [fault.message for fault in check_log(tmp_path / "old").faults]
    assert len(faults) == 2 * damaged
    assert all(map(str.startswith, faults, ("row ", "the proof "))), "and that of its proof"
