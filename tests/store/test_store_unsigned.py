"""A write policy that decides in whose name streams are: what nobody signed has to wait."""

from contextlib import closing
from pathlib import Path

import pytest
from bare_log import BareLog
from nacl.signing import SigningKey
from store_helpers import (
    KEYS,
    MODEL,
    NETWORK,
    QUICK,
    check_feed,
    check_tables,
    controller,
    feed_of,
    offer,
)
from support.forging import forged
from support.time_events import time_event

from recon_node.ceramic import Event, EventId
from recon_node.ceramic.builder import data_event, deterministic_init_event, init_event
from recon_node.store import Policy, PolicySettings, Store, StoreSettings, StreamFilter, open_store
from recon_node.store.admission import shares
from recon_node.store.db.settling import lift_guard
from recon_node.store.maintenance import check_log, import_history, repair_log

MEMBER, STRANGER, *_ = KEYS
BY_NAME = Policy.of(PolicySettings(allow_controllers=(controller(0),)))


def unsigned(n: int = 0) -> Event:
    """An init event in the member's name, which anybody can make."""
    return deterministic_init_event(controller(0), MODEL, unique=n.to_bytes(8))


async def admit(store: Store, *offers: tuple[EventId, bytes]) -> list[str]:
    return [verdict.status for verdict in await store.admit_remote(offers)]


@pytest.mark.parametrize("policy", [BY_NAME, Policy.of(PolicySettings(allow_models=(str(MODEL),)))])
async def test_a_name_alone_is_not_the_members(tmp_path: Path, policy: Policy) -> None:
    init = unsigned()
    anchor = time_event(init, init.cid)
    signed = data_event(MEMBER, init, [init.cid], [])
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=policy) as store:
        statuses = await admit(store, offer(init, init, 0), offer(anchor, init, 1))
        assert statuses == ["new", "new"]
        assert (len(store.keys), store.head, store.withheld) == (0, 0, 2)
        by_stranger = data_event(STRANGER, init, [init.cid], [])
        assert await admit(store, offer(by_stranger, init, 1)) == ["new"]
        assert (len(store.keys), store.head, store.withheld) == (0, 0, 3)
        key, _ = offer(init, init, 0)
        assert store.is_ruled_out(key), "it is not fetched again"
        assert store.is_declined(key, for_good=True), "whoever has it is not to blame"
        page = await store.reader.streams(StreamFilter(controller=controller(0)), None, 10)
        assert (page.total, page.streams) == (0, [])
        assert await store.reader.sort_values() == set()
        assert await store.reader.count_streams([str(MODEL)]) == {str(MODEL): 0}
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=policy) as store:
        assert (len(store.keys), store.withheld) == (0, 3)
        assert await admit(store, offer(signed, init, 1)) == ["new"]
        feed = await feed_of(store)
        assert [row.event_cid for row in feed] == [init.cid, signed.cid]
        check_feed(feed, {init.cid: init, signed.cid: signed})
        assert (len(store.keys), store.withheld) == (2, 2)
        assert await store.reader.count_streams([str(MODEL)]) == {str(MODEL): 1}
        check_tables(store)
    assert check_log(tmp_path).clean


async def test_made_up_times_of_a_member_wait_until_they_are_proven(tmp_path: Path) -> None:
    init = init_event(MEMBER, MODEL, {"n": 0}, unique=b"u")
    times = [time_event(init, init.cid, tx_hash=bytes([n]) * 32) for n in range(4)]
    covered, proven, *_ = times
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        await admit(store, offer(init, init, 0), *(offer(time, init, 1) for time in times))
        assert (len(store.keys), store.head, store.withheld) == (1, 1, 4)
        assert len(await store.reader.pending_proofs(10)) == 4
        await store.settle_proofs([(proven.payload["proof"], 7)])
        assert (len(store.keys), store.head, store.withheld) == (2, 2, 3)
        above = data_event(MEMBER, init, [covered.cid], [])
        await admit(store, offer(above, init, 2))  # the member stands for it
        assert (len(store.keys), store.head, store.withheld) == (4, 2, 2)
        await store.settle_proofs([(covered.payload["proof"], 8)])
        assert (len(store.keys), store.head, store.withheld) == (4, 4, 2)
        check_tables(store)


async def test_a_crowd_of_unsigned_events_leaves_room_for_others(tmp_path, monkeypatch):
    """Its share is full; signed events, and what signed events build on, come in all the same."""
    monkeypatch.setattr(shares, "_MOST_UNCOVERED", shares.Amount(10, 1 << 20))
    monkeypatch.setattr(shares, "_WITHHELD", 10)
    crowd = [unsigned(n) for n in range(30)]
    made_up = [time_event(crowd[0], crowd[0].cid, tx_hash=bytes([n]) * 32) for n in range(30)]
    mine = unsigned(1000)
    signed = data_event(MEMBER, mine, [mine.cid], [])
    mended = forged(data_event(MEMBER, mine, [signed.cid], []))
    above = data_event(MEMBER, mine, [mended.cid], [])
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        await admit(store, *(offer(event, event, 0) for event in crowd))
        statuses = await admit(store, *(offer(event, crowd[0], 1) for event in made_up))
        assert (statuses.count("new"), store.withheld, len(store.keys)) == (10, 20, 0)
        offers = [offer(mine, mine, 0), offer(signed, mine, 1)]
        offers += [offer(mended, mine, 2), offer(above, mine, 3)]
        assert await admit(store, *offers) == ["new"] * 4
        assert (store.head, store.withheld, len(store.keys)) == (4, 20, 4)
        check_tables(store)


async def test_times_that_the_chain_does_not_have_make_room(tmp_path: Path) -> None:
    init = init_event(MEMBER, MODEL, {"n": 0}, unique=b"u")
    times = [time_event(init, init.cid, tx_hash=bytes([n]) * 32) for n in range(13)]
    *made_up, honest, last = times
    settings = StoreSettings(synchronous="normal", verifiers=0, max_waiting=11)
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        await admit(store, offer(init, init, 0), *(offer(event, init, 1) for event in made_up))
        assert await admit(store, offer(honest, init, 1)) == ["refused"]
        assert store.is_declined(offer(honest, init, 1)[0])
        looked_up = [(event.payload["proof"], 100.0) for event in made_up]
        await store.postpone_proofs(looked_up, [proof for proof, _ in looked_up])
        assert await admit(store, offer(honest, init, 1), offer(last, init, 1)) == ["new"] * 2
        await store.settle_proofs([(honest.payload["proof"], 7)])
        assert (store.head, len(store.keys), store.pending) == (2, 12, 10)
        check_tables(store)
    assert check_log(tmp_path).clean


async def test_without_the_policy_what_waited_for_it_moves_on(tmp_path: Path) -> None:
    inits = [unsigned(n) for n in range(600)]
    wrong = forged(data_event(MEMBER, inits[0], [inits[0].cid], []))
    time = time_event(inits[0], inits[0].cid)
    later, above = time_event(inits[0], time.cid), time_event(inits[0], wrong.cid)
    others = [offer(wrong, inits[0], 1), offer(time, inits[0], 1)]
    others += [offer(later, inits[0], 2), offer(above, inits[0], 2)]
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        await admit(store, *(offer(init, init, 0) for init in inits), *others)
        assert (store.head, store.withheld) == (0, 604)
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        assert (store.head, store.pending, len(store.keys), store.withheld) == (600, 2, 602, 2)
        check_tables(store)
    with closing(BareLog(tmp_path)) as log:
        asked: list[str] = []
        log.connection.set_trace_callback(asked.append)
        lift_guard(log)
        assert len(asked) == 1, "any number may be above badly signed events, at each start"


def test_a_policy_that_only_denies_trusts_names() -> None:
    assert not Policy.of(PolicySettings(deny_controllers=(controller(1),))).decides_by_name
    assert not Policy().decides_by_name


async def test_orphans_are_not_relayed_by_name(tmp_path: Path) -> None:
    init = init_event(MEMBER, MODEL, {"n": 0}, unique=b"u")
    change = data_event(SigningKey.generate(), init, [init.cid], [])
    mine = data_event(MEMBER, init, [init.cid], [])
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        await admit(store, offer(change, init, 1), offer(mine, init, 1))
        assert (len(store.keys), store.withheld, store.waiting) == (0, 2, 2)
        await admit(store, offer(init, init, 0))
        assert (len(store.keys), store.withheld, store.head) == (2, 1, 2)
        check_tables(store)


async def test_maintenance_does_not_release_what_the_policy_withholds(tmp_path: Path) -> None:
    """It has no say in whose name streams are; what the node's own clients sent stays delivered."""
    own, strangers = unsigned(1), unsigned(2)
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        await store.admit_local([own.car])
        assert await admit(store, offer(strangers, strangers, 0)) == ["new"]
        epoch = store.epoch
        assert (store.head, store.waiting) == (1, 1)
    repaired = await repair_log(tmp_path, QUICK, guarded=True)
    assert (repaired.head, repaired.epoch, repaired.epoch_kept) == (1, epoch, True)
    await import_history(tmp_path, NETWORK, [], guarded=True)
    async with open_store(tmp_path, NETWORK, settings=QUICK, policy=BY_NAME) as store:
        assert (store.head, store.waiting) == (1, 1)
        assert [row.event_cid for row in await feed_of(store)] == [own.cid]
        assert len(store.keys) == 1
    assert check_log(tmp_path).clean
    await repair_log(tmp_path, QUICK)  # as the log of a node without such a policy
    async with open_store(tmp_path, NETWORK, settings=QUICK) as store:
        assert (store.head, store.waiting) == (2, 0)
