"""New keys are told of, whatever their state, and a reader that lags behind learns that it does."""

import trio
from store_helpers import NETWORK, World

from recon_node.store import open_store
from recon_node.store.contents import Arrivals


async def test_every_new_key_arrives_delivered_or_not(tmp_path):
    world = World(1)
    init = next(iter(world.events.values()))
    [data] = [world.extend(init.cid, [init.cid], {"n": 1})]
    later = world.extend(init.cid, [data.cid], {"n": 2})
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local([init.car])
        await store.admit_remote([world.offer(later)])  # waits for its prev
        assert store.waiting == 1
        await store.admit_remote([world.offer(data), world.offer(init)])
        expected = [world.event_id(event) for event in (init, later, data)]
        assert store.arrivals.total == 3
        assert store.arrivals.since(0) == expected
        assert store.arrivals.since(2) == expected[2:]
        assert store.arrivals.since(3) == []


async def test_a_reader_that_lags_too_far_behind_is_told_so(nursery):
    arrivals = Arrivals(remembered=3)
    woken = []

    async def wait() -> None:
        await arrivals.wait(0)
        woken.append(arrivals.total)

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    arrivals.add([])
    await trio.testing.wait_all_tasks_blocked()
    assert woken == []
    arrivals.add([b"a", b"b"])
    await trio.testing.wait_all_tasks_blocked()
    assert woken == [2]
    arrivals.add([b"c", b"d"])
    assert arrivals.since(0) is None
    assert arrivals.since(1) == [b"b", b"c", b"d"]
