"""Time events whose transaction the chain does not have are left out of the model ring."""

from pathlib import Path

from store_helpers import NETWORK, QUICK, World
from support.time_events import time_event

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.store import Store, open_store
from recon_node.store.db.doubts import DOUBTED

TIME = 1_725_913_338
WRONG = "the transaction says something else"


def with_the_same_proof(event: Event) -> Event:
    """Another time event: it anchors the same event, which is the right leaf of the tree, too."""
    others = {cid: raw for cid, raw in car.decode(event.car).blocks.items() if cid != event.cid}
    block = dag_cbor.encode({**event.payload, "path": "1"})
    cid = CID.of(DAG_CBOR, block)
    return parse_event(car.encode([cid], {cid: block, **others}))


async def test_what_comes_later_and_depends_on_a_doubted_proof_is_left_out(tmp_path: Path) -> None:
    world = World(1, streams=1, events=0)
    [init] = world.events.values()
    first = world.add(time_event(init, init.cid, siblings=[init.cid]))
    proof: CID = first.payload["proof"]
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_local([init.car, first.car])
        for _ in range(DOUBTED):
            assert len(await store.load_ring_keys()) == 2
            await store.postpone_proofs([(proof, TIME)], [proof])
        assert len(await store.load_ring_keys()) == 1
        second = with_the_same_proof(first)
        assert second.payload["proof"] == proof
        after = world.extend(init.cid, [first.cid], {})
        beside = world.extend(init.cid, [init.cid], {})
        verdicts = await store.admit_local([second.car, after.car, beside.car])
        assert {verdict.status for verdict in verdicts} == {"new"}
        assert await held(store) == {init.cid, beside.cid}
        assert len(store.keys) == 5, "all are kept, and nodes of our own kind get them"
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        assert await held(store) == {init.cid, beside.cid}
        await store.settle_proofs([(proof, TIME)])
        assert await held(store) == {init.cid, beside.cid, first.cid, second.cid, after.cid}
        assert store.head == 5


async def test_a_doubted_proof_that_turns_out_wrong(tmp_path: Path) -> None:
    world = World(1, streams=1, events=0)
    [init] = world.events.values()
    anchor = world.add(time_event(init, init.cid))
    proof: CID = anchor.payload["proof"]
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        await store.admit_local([init.car, anchor.car])
        for _ in range(DOUBTED):
            await store.postpone_proofs([(proof, TIME)], [proof])
        await store.settle_proofs([(proof, WRONG)])
        assert await held(store) == {init.cid}
        assert len(store.keys) == 1
        rows = store._writer.log.connection.execute("SELECT * FROM not_found").fetchall()
        assert rows == []


async def held(store: Store) -> set[CID]:
    """The events in the ring."""
    return {HeightlessEventId(key).event_cid for key in await store.load_ring_keys()}
