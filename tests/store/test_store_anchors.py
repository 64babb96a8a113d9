"""Time events in the store: pending until their proof is settled, whatever comes in which order."""

import tempfile
import time
from collections.abc import Collection
from dataclasses import astuple
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from store_helpers import NETWORK, QUICK, SLOW, World, check_feed, check_tables, feed_of, in_ring
from support.time_events import time_event

from recon_node.ceramic import Event, EventId, EventKind, parse_event
from recon_node.ceramic.builder import data_event
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.store import Store, open_store
from recon_node.store.db import saved_keys
from recon_node.store.db.doubts import DOUBTED

TIME = 1_725_913_338
WRONG = "the transaction says something else"


class Oracle:
    """What should be delivered and in the ring, by the DAG, what has come, and what was said of the
    proofs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[CID] = set()
        self.said: dict[CID, int | str] = {}
        """By time event."""
        self.not_found: dict[CID, int] = {}
        """How often the chain did not have the transaction of a time event."""

    def wrong(self) -> set[CID]:
        wrong: set[CID] = set()
        for cid, event in self.world.events.items():  # made in causal order
            if cid in self.seen and (
                isinstance(self.said.get(cid), str) or not wrong.isdisjoint(event.prevs)
            ):
                wrong.add(cid)
        return wrong

    def whole(self, left_out: Collection[CID]) -> set[CID]:
        """What is here with its whole history, but for some events and what builds on them."""
        wrong, whole = self.wrong(), set[CID]()
        for cid, event in self.world.events.items():
            if cid in self.seen - wrong and cid not in left_out and whole.issuperset(event.prevs):
                whole.add(cid)
        return whole

    def anchors(self) -> set[CID]:
        """The time events of which nothing was said yet, or something wrong."""
        events = self.world.events.items()
        return {cid for cid, event in events if event.proof and type(self.said.get(cid)) is not int}

    def delivered(self) -> set[CID]:
        return self.whole(self.anchors())

    def ring(self) -> set[CID]:
        unsaid = self.not_found.keys() - self.said.keys()
        return self.whole({cid for cid in unsaid if self.not_found[cid] >= DOUBTED})

    async def check(self, store: Store) -> None:
        rows = await feed_of(store)
        check_feed(rows, self.world.events)
        assert {row.event_cid for row in rows} == self.delivered()
        for row in rows:
            event = self.world.events[row.event_cid]
            if event.proof is None:
                assert (row.block_time, row.chain_id) == (None, None)
            else:
                assert row.block_time == self.said[row.event_cid]
                assert row.chain_id == event.proof.chain_id
        held, checked = self.seen - self.wrong(), self.whole(())
        assert {EventId(key).event_cid for key in store.keys} == held
        assert store.waiting == len(held - checked)
        assert store.pending == len(checked) - len(rows)
        unsaid = {self.world.events[cid].payload["proof"] for cid in checked & self.anchors()}
        pending = await store.reader.pending_proofs(1_000)
        assert {proof.cid for proof in pending} == unsaid
        assert store.proofs_pending == len(unsaid)
        assert [proof.due for proof in pending] == sorted(proof.due for proof in pending)

    async def check_ring(self, store: Store) -> None:
        assert await in_ring(store) == self.ring()

    async def look_up(self, store: Store) -> None:
        """Settle some of the proofs that wait, and do not find others."""
        random, events = self.world.random, self.world.events.values()
        by_proof = {event.payload["proof"]: event.cid for event in events if event.proof}
        proofs = [proof.cid for proof in await store.reader.pending_proofs(1_000)]
        random.shuffle(proofs)
        settled, missed = proofs[: len(proofs) // 3], proofs[len(proofs) // 3 :]
        said = [TIME, TIME + 1, TIME + 2, WRONG]
        verdicts: list[tuple[CID, int | str]] = [(cid, random.choice(said)) for cid in settled]
        not_found = [cid for cid in missed if random.random() < 0.7]
        await store.settle_proofs(verdicts)
        # What is said of a settled proof changes nothing.
        later = time.time() + 60
        await store.postpone_proofs([(cid, later) for cid in proofs], [*not_found, *settled])
        self.said |= {by_proof[cid]: said for cid, said in verdicts}
        for cid in not_found:
            self.not_found[by_proof[cid]] = self.not_found.get(by_proof[cid], 0) + 1


@SLOW
@given(seed=st.integers(0, 2**32), saved=st.booleans())
async def test_any_order_of_arrivals_and_lookups_delivers_what_is_whole_and_timely(seed, saved):
    """And the ring leaves out what is doubted, whenever its keys are loaded, or from a file."""
    world = World(seed, time_events=True)
    random, oracle = world.random, Oracle(world)
    arrivals = world.offers()
    random.shuffle(arrivals)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_keys, "FEWEST", 0 if saved else 1_000)
        for life in range(3):
            async with open_store(Path(directory), NETWORK, settings=QUICK) as store:
                await oracle.check(store)
                if (loads := random.choice(["first", "beside", "last"])) == "first":
                    await oracle.check_ring(store)
                while arrivals and len(arrivals) > 20 - 10 * life:
                    batch, arrivals = arrivals[:4], arrivals[4:]
                    wrong = oracle.wrong()
                    async with trio.open_nursery() as nursery:
                        if loads == "beside":
                            nursery.start_soon(store.load_ring_keys)
                        await store.admit_remote(batch)
                        oracle.seen |= {event_id.event_cid for event_id, _ in batch}
                        await oracle.check(store)
                        await oracle.look_up(store)
                    await oracle.check(store)
                    if loads != "last":
                        await oracle.check_ring(store)
                    late = oracle.wrong() - wrong
                    ids = [event_id for event_id, _ in batch if event_id.event_cid in late]
                    assert all(map(store.is_ruled_out, ids))
                await oracle.check_ring(store)
                check_tables(store)


async def test_the_feed_by_columns_is_the_feed_by_rows(store: Store) -> None:
    world = World(5, events=120, time_events=True)
    await store.admit_remote(world.offers())
    pending = await store.reader.pending_proofs(1_000)
    await store.settle_proofs([(proof.cid, TIME + n) for n, proof in enumerate(pending)])
    rows = await feed_of(store)
    assert {EventKind.INIT, EventKind.DATA, EventKind.TIME} == {row.kind for row in rows}
    for _ in range(50):
        after, upto = sorted(world.random.choices(range(len(rows) + 1), k=2))
        limit, size = world.random.randint(1, 60), world.random.randint(1, 40_000)
        columns = await store.reader.feed_columns(after, limit, upto, size)
        expected = await store.reader.feed(after, limit, upto, size)
        assert [*zip(*map(list, astuple(columns)), strict=True)] == [
            (
                row.position,
                bytes(row.event_id),
                bytes(row.event_cid),
                bytes(row.stream_cid),
                row.kind.value,
                row.car,
                row.block_time,
                row.chain_id,
                row.delivered_at,
                row.fault,
            )
            for row in expected
        ]


async def test_a_verdict_stands_whatever_is_said_later(tmp_path: Path) -> None:
    world = World(1, streams=1, events=0)
    [init] = world.events.values()
    first, second = (world.add(time_event(init, init.cid, tx_hash=bytes([n]) * 32)) for n in (1, 2))
    after = data_event(world.keys[init.cid], init, [second.cid], {})
    proofs = [first.payload["proof"], second.payload["proof"]]
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local([init.car, first.car, second.car])
        await store.settle_proofs([(init.cid, TIME)])  # no proof of ours
        assert (store.head, store.proofs_pending) == (1, 2)
        await store.settle_proofs([(proofs[0], TIME), (proofs[1], WRONG)])
        await store.settle_proofs([(proofs[0], WRONG), (proofs[1], TIME)])
        await store.postpone_proofs([(proofs[0], 5.0), (proofs[1], 5.0)])
        assert [row.block_time for row in await feed_of(store)] == [None, TIME]
        assert await store.reader.pending_proofs(10) == []
    async with open_store(tmp_path, NETWORK) as store:
        verdicts = await store.admit_local([first.car, second.car, after.car])
        assert [verdict.status for verdict in verdicts] == ["known", "refused", "refused"]
        assert (verdicts[0].position, verdicts[1].reason) == (2, WRONG)
        # Other time events by proofs that were settled: nobody needs to be asked.
        same = world.add(time_event(init, init.cid, siblings=[init.cid], tx_hash=bytes(32)))
        await store.admit_local([same.car])
        await store.settle_proofs([(same.payload["proof"], TIME + 7)])
        assert [row.block_time for row in await feed_of(store)] == [None, TIME, TIME + 7]
        assert store.proofs_pending == 0


async def test_proofs_stand_in_line_by_the_time_at_which_they_are_due(tmp_path: Path) -> None:
    world = World(1, streams=1, events=0)
    [init] = world.events.values()
    chains = ["eip155:1", "eip155:100", "eip155:1"]
    anchors = [
        time_event(init, init.cid, tx_hash=bytes([n]) * 32, chain_id=chain)
        for n, chain in enumerate(chains)
    ]
    proofs = [anchor.payload["proof"] for anchor in anchors]
    started = time.time()
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local([init.car])
        for anchor in anchors:
            seen = store.proof_arrivals
            await store.admit_local([anchor.car])
            await store.wait_for_proofs(seen)
        pending = await store.reader.pending_proofs(10)
        assert [proof.cid for proof in pending] == proofs
        assert [proof.proof for proof in pending] == [anchor.proof for anchor in anchors]
        assert all(started <= proof.due <= time.time() for proof in pending)
        assert [proof.cid for proof in await store.reader.pending_proofs(2)] == proofs[:2]
        await store.postpone_proofs([(proofs[0], started + 900)])
    async with open_store(tmp_path, NETWORK) as store:
        assert (store.proof_arrivals, store.proofs_pending) == (0, 3)
        of_one = await store.reader.pending_proofs(10, "eip155:1")
        assert [(proof.cid, proof.tries) for proof in of_one] == [(proofs[2], 0), (proofs[0], 1)]
        assert of_one[1].due == started + 900


async def test_a_clock_that_was_wrong_delays_no_lookup_for_ever(tmp_path, monkeypatch):
    """Proofs that fell due while the clock was a year ahead are due at the next start."""
    world = World(0, streams=1, events=0)
    [init] = world.events.values()
    anchor = world.add(time_event(init, init.cid))
    other = world.add(time_event(init, init.cid, tx_hash=b"o" * 32))
    now = time.time()
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        with monkeypatch.context() as patch:
            patch.setattr(store._writer.log, "now", lambda: now + 365 * 86_400)
            await store.admit_remote([world.offer(init), world.offer(anchor)])
        await store.admit_remote([world.offer(other)])
        await store.postpone_proofs([(other.payload["proof"], now + 86_400)])
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        due = {proof.cid: proof.due for proof in await store.reader.pending_proofs(10)}
        assert now <= due[anchor.payload["proof"]] <= time.time()
        assert due[other.payload["proof"]] == now + 86_400


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
        assert await in_ring(store) == {init.cid, beside.cid}
        assert len(store.keys) == 5, "all are kept, and nodes of our own kind get them"
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        assert await in_ring(store) == {init.cid, beside.cid}
        await store.settle_proofs([(proof, TIME)])
        assert await in_ring(store) == {init.cid, beside.cid, first.cid, second.cid, after.cid}
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
        assert await in_ring(store) == {init.cid}
        assert len(store.keys) == 1
        rows = store._writer.log.connection.execute("SELECT * FROM not_found").fetchall()
        assert rows == []
