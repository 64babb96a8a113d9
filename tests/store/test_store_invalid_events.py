"""Badly signed data events: CIP-145's invalid ones, which are delivered once a valid one covers
them."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from bad_worlds import shuffled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey
from store_helpers import (
    KEYS,
    NETWORK,
    QUICK,
    World,
    check_feed,
    check_tables,
    edit,
    feed_of,
    in_ring,
)
from support.forging import forged
from support.time_events import time_event

from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import data_event
from recon_node.ipld import CID
from recon_node.store import FeedRow, Store, open_store
from recon_node.store.db.doubts import DOUBTED
from recon_node.store.maintenance import check_log, repair_log
from recon_node.streams import select_tip, shape_of

STRANGER = SigningKey(b"\x63" * 32)


class Figure6(World):
    """CIP-145, figure 6, with `A` badly signed: `C` is on top of `B` and of a time event on `A`."""

    def __init__(self, *, by_stranger: bool = False) -> None:
        super().__init__(0, streams=0, events=0)
        self.init = self.start(KEYS[0], b"figure 6")
        self.time_1 = self.anchor(self.init)
        signer = KEYS[1 if by_stranger else 0]
        bad = data_event(signer, self.init, [self.init.cid], "A")
        self.a = self.add(bad if by_stranger else forged(bad))
        self.time_2 = self.anchor(self.a)
        self.b = self.extend(self.init.cid, [self.time_1.cid], "B")
        self.c = self.extend(self.init.cid, [self.b.cid, self.time_2.cid], "C")

    def anchor(self, event: Event) -> Event:
        hash_ = self.random.randbytes(32)
        return self.add(time_event(self.init.cid, event.cid, tx_hash=hash_))


async def settle_all(store: Store) -> None:
    while pending := await store.reader.pending_proofs(1_000):
        await store.settle_proofs([(proof.cid, 1_700_000_000) for proof in pending])


def tip_of(rows: Sequence[FeedRow]) -> CID:
    shapes = [
        shape_of(parse_event(row.car), time=row.block_time)._replace(valid=row.fault is None)
        for row in rows
    ]
    return select_tip(shapes).event


@pytest.mark.parametrize("by_stranger", [False, True])
async def test_nothing_is_delivered_on_top_of_it_until_it_is_covered(tmp_path, by_stranger):
    world = Figure6(by_stranger=by_stranger)
    async with open_store(tmp_path, NETWORK) as store:
        *before, last = world.offers()
        await store.admit_remote(before)
        await settle_all(store)
        rows = await feed_of(store)
        assert {row.event_cid for row in rows} == {
            event.cid for event in (world.init, world.time_1, world.b)
        }
        assert (tip_of(rows), store.waiting) == (world.b.cid, 2)
        waiting = await store.reader.waiting(None, 10)
        assert {event.cid: bool(event.fault) for event in waiting} == {
            world.a.cid: True,
            world.time_2.cid: False,
        }
    async with open_store(tmp_path, NETWORK) as store:  # from the log, not from memory
        assert store.waiting == 2
        await store.admit_remote([last])
        await settle_all(store)
        rows = await feed_of(store)
        check_feed(rows, world.events)
        assert (len(rows), store.waiting, tip_of(rows)) == (6, 0, world.c.cid)
        faults = {row.event_cid: row.fault for row in rows}
        assert [cid for cid, fault in faults.items() if fault is not None] == [world.a.cid]
        assert ("controller" if by_stranger else "signature") in str(faults[world.a.cid])
        check_tables(store)
    assert check_log(tmp_path).clean
    await repair_log(tmp_path)
    async with open_store(tmp_path, NETWORK) as store:
        assert {row.event_cid: row.fault for row in await feed_of(store)} == faults
    assert check_log(tmp_path).clean


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("INSERT INTO faults VALUES (9999, 'x')", "which is missing"),
        ("INSERT INTO faults VALUES (1, 'x')", "it is not a data event"),
        ("DELETE FROM faults", "nothing in `faults`"),
        ("UPDATE events SET state = 2 WHERE state = 1 AND kind = 'time'", "missing or unchecked"),
        ("UPDATE events SET state = 1 WHERE state = 0", "missing or unchecked"),
    ],
)
async def test_the_check_of_a_log_looks_at_faults(tmp_path: Path, change: str, words: str) -> None:
    world = Figure6()
    world.extend(world.init.cid, [world.c.cid], "waits for C")
    async with open_store(tmp_path, NETWORK) as store:
        *before, _, last = world.offers()
        await store.admit_remote([*before, last])
    assert check_log(tmp_path).clean
    assert edit(tmp_path, change) == 1
    faults = check_log(tmp_path).faults
    assert faults
    assert words in faults[0].message


async def test_local_events_must_be_valid_but_may_cover(store: Store) -> None:
    world = Figure6()
    await store.admit_local([world.init.car, world.time_1.car, world.b.car])
    [verdict] = await store.admit_local([world.a.car])
    assert (verdict.status, verdict.cause) == ("refused", "event")
    assert not store.is_ruled_out(world.event_id(world.a)), "peers may still send it"
    [verdict] = await store.admit_remote([world.offer(world.a)])
    assert (verdict.status, verdict.position) == ("new", None)
    [verdict] = await store.admit_local([world.time_2.car])
    assert (verdict.status, verdict.cause) == ("refused", "history")
    assert "no valid data event covers" in str(verdict.reason)
    cover = data_event(KEYS[0], world.init, [world.b.cid, world.a.cid], "merged")
    await settle_all(store)
    [verdict] = await store.admit_local([cover.car])
    assert (verdict.status, verdict.position) == ("new", store.head)
    assert [row.event_cid for row in await feed_of(store) if row.fault] == [world.a.cid]


class InvalidWorld(World):
    """Streams with time events, some of whose data events are badly signed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, streams=2, events=0)
        self.invalid: set[CID] = set()
        for n in range(24):
            init = self.random.choice(list(self.headers))
            mine = [cid for cid, event in self.events.items() if event.init == init][-5:]
            prevs = self.random.sample(mine, min(len(mine), self.random.choice([1, 1, 2])))
            kind = self.random.choice(["valid", "forged", "by a stranger", "time"])
            if kind == "time":
                self.add(time_event(init, prevs[0], tx_hash=self.random.randbytes(32)))
            elif kind == "valid":
                self.extend(init, prevs, {"n": n})
            else:
                key = STRANGER if kind == "by a stranger" else self.keys[init]
                event = data_event(key, init, prevs, {"n": n})
                self.add(forged(event) if kind == "forged" else event)
                self.invalid.add(list(self.events)[-1])

    def closure(self, cid: CID) -> set[CID]:
        """An event and all that it builds on."""
        delivered: set[CID] = set()
        rest = [cid]
        while rest:
            event = rest.pop()
            if event not in delivered:
                delivered.add(event)
                rest += self.events[event].prevs
        return delivered

    def to_deliver(self, here: set[CID]) -> set[CID]:
        """Which of the events that are here are delivered once all anchors are looked up."""
        whole = {cid: below for cid in here if (below := self.closure(cid)) <= here}
        covered: set[CID] = set()
        for cid, below in whole.items():
            event = self.events[cid]
            is_data = event.proof is None and event.header is None
            if is_data and cid not in self.invalid:
                covered |= below
        return {cid for cid, below in whole.items() if not (below & self.invalid) - covered}


@settings(max_examples=settings().max_examples // 4, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
async def test_what_is_delivered_is_what_an_oracle_says(seed: int) -> None:
    world = InvalidWorld(seed)
    random = world.random
    offers = random.sample(world.offers(), int(len(world.events) * random.choice([0.5, 0.8, 1])))
    expected = world.to_deliver({event_id.event_cid for event_id, _ in offers})
    with tempfile.TemporaryDirectory() as directory:
        async with open_store(Path(directory), NETWORK, settings=QUICK) as store:
            batches = shuffled(offers, random)
            for batch in batches[: len(batches) // 2]:
                await store.admit_remote(batch)
                await settle_all(store)
        async with open_store(Path(directory), NETWORK, settings=QUICK) as store:
            for batch in batches[len(batches) // 2 :]:
                await store.admit_remote(batch)
            await settle_all(store)
            rows = await feed_of(store)
            check_feed(rows, world.events)
            check_tables(store)
            assert {row.event_cid for row in rows} == expected
            assert {row.event_cid for row in rows if row.fault} == expected & world.invalid
            assert store.waiting == len(offers) - len(rows)
        assert check_log(Path(directory)).clean


async def test_it_stays_out_of_the_ring_when_an_anchor_below_it_is_found(tmp_path: Path) -> None:
    world = World(0, streams=0, events=0)
    init = world.start(KEYS[0], b"u")
    anchor = world.add(time_event(init.cid, init.cid, tx_hash=bytes(32)))
    bad = world.add(forged(data_event(KEYS[0], init, [anchor.cid], "bad")))
    cover = world.extend(init.cid, [bad.cid], "cover")
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_remote(world.offers())
        [proof] = await store.reader.pending_proofs(10)
        for _ in range(DOUBTED):
            await store.postpone_proofs([(proof.cid, 0.0)], not_found=[proof.cid])
        later = world.extend(init.cid, [bad.cid], "later")
        await store.admit_remote([world.offer(later)])
        doubted = await in_ring(store)
    async with open_store(tmp_path, NETWORK) as store:
        assert await in_ring(store) == doubted
        await store.settle_proofs([(proof.cid, 1_700_000_000)])
        assert await in_ring(store) == {event.cid for event in (init, anchor, cover, later)}
