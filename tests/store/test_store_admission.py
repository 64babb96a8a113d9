"""Admission: what is held against an event when, and that what has to wait is never lost."""

import tempfile
from pathlib import Path

import pytest
from capabilities import ACCOUNT, change, init_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refused_events import Case
from store_helpers import (
    KEYS,
    MODEL,
    NETWORK,
    OTHER_MODEL,
    World,
    check_feed,
    check_tables,
    feed_of,
    offer,
)

from recon_node.ceramic import Event, EventId
from recon_node.ceramic.builder import data_event, init_event
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, car, dag_cbor
from recon_node.store import Store, StoreSettings, open_store
from recon_node.store.values import Cause


async def test_a_capability_is_held_against_an_init_event_that_comes_later(tmp_path: Path) -> None:
    """Signed under a capability for another model, it waits for an event that covers it."""
    init = init_of(ACCOUNT)
    event = change(init, OTHER_MODEL)
    async with open_store(tmp_path, NETWORK) as store:
        [verdict] = await store.admit_remote([offer(event, init, 1)])
        assert (verdict.status, store.waiting) == ("new", 1)
    async with open_store(tmp_path, NETWORK) as store:  # from the log, not from memory
        await store.admit_remote([offer(init)])
        assert (store.head, store.waiting) == (1, 1)


async def test_a_refusal_says_what_it_is_about(store: Store) -> None:
    case = Case()
    key = case.key(case.next)
    lonely = data_event(case.world.keys[case.init.cid], case.init, [case.next.cid], "lonely")
    offers: list[tuple[tuple[EventId, bytes], Cause]] = [
        ((key, b"garbage"), "car"),
        ((key, case.first.car), "car"),
        ((case.key(case.next, 9), case.next.car), "event"),
        ((case.key(case.next, 9), b"garbage"), "event"),
    ]
    await store.admit_local([case.init.car, case.first.car])
    for offered, cause in offers:
        [verdict] = await store.admit_remote([offered])
        assert (verdict.status, verdict.cause) == ("refused", cause)
    [verdict] = await store.admit_local([lonely.car])
    assert (verdict.status, verdict.cause) == ("refused", "history")
    [verdict] = await store.admit_remote([(key, case.next.car)])
    assert (verdict.status, verdict.cause) == ("new", None)


@settings(max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), by_bytes=st.booleans())
async def test_what_finds_no_room_to_wait_comes_in_when_it_is_offered_again(seed, by_bytes):
    """A peer offers all it has, in any order, until all is taken; with a restart in between."""
    world = World(seed, streams=3, events=25)
    offers = world.offers()
    room = StoreSettings(max_waiting_bytes=2000) if by_bytes else StoreSettings(max_waiting=3)
    rounds = 0
    with tempfile.TemporaryDirectory() as directory:
        while offers:
            rounds += 1
            async with open_store(Path(directory), NETWORK, settings=room) as store:
                offers = await offer_all(store, world, offers)
                log = store._writer.log
                assert all(taken.fits(log.limits[s]) for s, taken in log.marks.shares.items())
                check_tables(store)
            assert rounds <= max(world.heights.values()) + 1
        async with open_store(Path(directory), NETWORK) as store:
            rows = await feed_of(store)
            check_feed(rows, world.events)
            assert len(rows) == len(world.events)
            marks = store._writer.log.marks
            assert marks.waiting == sum(share.events for share in marks.shares.values()) == 0


async def offer_all(
    store: Store, world: World, offers: list[tuple[EventId, bytes]]
) -> list[tuple[EventId, bytes]]:
    """Offer events in random batches; return those that must be offered again."""
    world.random.shuffle(offers)
    again: list[tuple[EventId, bytes]] = []
    while offers:
        size = world.random.choice([1, 3, 10])
        batch, offers = offers[:size], offers[size:]
        for offered, verdict in zip(batch, await store.admit_remote(batch), strict=True):
            if verdict.status == "refused":
                assert verdict.cause == "waiting"
                again.append(offered)
    return again


async def test_a_batch_that_brings_its_own_history_needs_no_room(tmp_path: Path) -> None:
    world = World(0, streams=1, events=0)
    [init] = world.events
    tip: CID = init
    for n in range(20):
        tip = world.extend(init, [tip], n).cid
    async with open_store(tmp_path, NETWORK, settings=StoreSettings(max_waiting=0)) as store:
        verdicts = await store.admit_remote(world.offers()[::-1])
        assert {verdict.status for verdict in verdicts} == {"new"}
        assert (store.head, store.waiting) == (21, 0)


def with_null_link(event: Event, codec: int) -> bytes:
    """The event as kubo's `ipfs dag get --output-codec dag-jose` hands it out."""
    blocks = dict(car.decode(event.car).blocks)
    envelope = blocks.pop(event.cid)
    cid = CID.of(codec, envelope)
    blocks[cid] = dag_cbor.encode(dag_cbor.decode(envelope) | {"link": None})
    return car.encode([cid], blocks)


@pytest.mark.parametrize(("codec", "verifiers"), [(DAG_JOSE, 0), (DAG_CBOR, 1)])
async def test_what_is_kept_matches_its_cids(tmp_path: Path, codec: int, verifiers: int) -> None:
    """Whoever brings it, and wherever it is checked."""
    events = [init_event(KEYS[0], MODEL, {}, unique=bytes([n])) for n in range(20)]
    offers = []
    for event in events:
        offers.append((event.event_id(NETWORK, event.header, 0), with_null_link(event, codec)))
    settings = StoreSettings(verifiers=verifiers)
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        verdicts = await store.admit_remote(offers[:19])
        verdicts += await store.admit_local([offers[19][1]])
        assert {verdict.status for verdict in verdicts} == {"new"}
        kept = await store.reader.cars([event_id for event_id, _ in offers])
        for event, data in zip(events, kept, strict=True):
            assert data is not None
            assert car.decode(data).roots == (event.cid,)
            assert car.decode(data).blocks == car.decode(event.car).blocks
