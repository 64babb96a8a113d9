"""Time events whose transaction the chain does not have are left out of the model ring."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_helpers import NETWORK, World

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import time_event
from recon_node.ceramic.heightless_event_id import HeightlessEventId
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.store import Store, StoreSettings, open_store
from recon_node.store.db import saved_keys
from recon_node.store.db.proofs import DOUBTED

SLOW = settings(
    max_examples=settings().max_examples // 8, suppress_health_check=[HealthCheck.too_slow]
)
QUICK = StoreSettings(synchronous="normal", verifiers=0)
TIME = 1_725_913_338
WRONG = "the transaction says something else"


class Ring:
    """An oracle of the ring: by the DAG, what has come, and what was said of each time event."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[CID] = set()
        self.said: dict[CID, int | str] = {}
        self.not_found: dict[CID, int] = {}

    def cids(self) -> set[CID]:
        wrong: set[CID] = set()
        left_out: set[CID] = set()
        whole: set[CID] = set()
        for cid, event in self.world.events.items():  # made in causal order
            if isinstance(self.said.get(cid), str) or not wrong.isdisjoint(event.prevs):
                wrong |= {cid} & self.seen
            if cid in self.seen - wrong and whole.issuperset(event.prevs):
                whole.add(cid)
                is_doubted = cid not in self.said and self.not_found.get(cid, 0) >= DOUBTED
                if is_doubted or not left_out.isdisjoint(event.prevs):
                    left_out.add(cid)
        return whole - left_out

    async def check(self, store: Store) -> None:
        assert await held(store) == self.cids()


@SLOW
@given(seed=st.integers(0, 2**32), saved=st.booleans())
async def test_any_order_of_arrivals_and_lookups_leaves_out_what_is_doubted(
    seed: int, saved: bool
) -> None:
    world = World(seed, time_events=True)
    random, ring = world.random, Ring(world)
    by_proof = {event.payload["proof"]: event.cid for event in world.events.values() if event.proof}
    arrivals = world.offers()
    random.shuffle(arrivals)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_keys, "FEWEST", 0 if saved else 1_000)
        for life in range(3):
            async with open_store(Path(directory), NETWORK, settings=QUICK) as store:
                if (loads := random.choice(["first", "beside", "last"])) == "first":
                    await ring.check(store)
                while arrivals and len(arrivals) > 20 - 10 * life:
                    batch, arrivals = arrivals[:4], arrivals[4:]
                    async with trio.open_nursery() as nursery:
                        if loads == "beside":
                            nursery.start_soon(store.load_ring_keys)
                        await store.admit_remote(batch)
                        ring.seen |= {event_id.event_cid for event_id, _ in batch}
                        await _look_up(store, ring, by_proof)
                    if loads != "last":
                        await ring.check(store)
                await ring.check(store)


async def _look_up(store: Store, ring: Ring, by_proof: dict[CID, CID]) -> None:
    random = ring.world.random
    proofs = [proof.cid for proof in await store.reader.pending_proofs(1_000)]
    random.shuffle(proofs)
    settled, missed = proofs[: len(proofs) // 4], proofs[len(proofs) // 4 :]
    verdicts = [(cid, random.choice([TIME, TIME, WRONG])) for cid in settled]
    not_found = [cid for cid in missed if random.random() < 0.7]
    await store.settle_proofs(verdicts)
    # What is said of a settled proof changes nothing.
    await store.postpone_proofs([(cid, TIME) for cid in proofs], [*not_found, *settled])
    ring.said |= {by_proof[cid]: said for cid, said in verdicts}
    for cid in not_found:
        ring.not_found[by_proof[cid]] = ring.not_found.get(by_proof[cid], 0) + 1


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
