"""The rules and the ladder alone: what they decide depends on the events, not on their order."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from bad_worlds import BadWorld, Offer, shuffled
from hypothesis import given
from hypothesis import strategies as st
from memory_log import MemoryLog
from store_helpers import World

from recon_node.ipld import CID
from recon_node.store import StoreSettings
from recon_node.store.admission.ladder import Ladder
from recon_node.store.admission.records import Amount, Share, State, share_of_record
from recon_node.store.values import Submission
from recon_node.verification import Refusal, check_event

SEEDS = st.integers(0, 2**32)


def submissions(batch: list[Offer]) -> list[Submission]:
    return [Submission(car, event_id, finding=check_event(car)) for event_id, car in batch]


def settle_some(log: MemoryLog, random: Random, share: float) -> None:
    """Look up a share of the pending proofs; half of the transactions say something else."""
    right, wrong = 1_700_000_000, Refusal("wrong", inherent=True)
    for proof in log.pending_proofs:
        if random.random() < share:
            log.settle(proof, right if log.guarded or proof[-1] % 2 else wrong)


def check_marks(log: MemoryLog) -> None:
    """What the ladder counted as it moved records is what a recount finds."""
    shares: dict[Share, Amount] = {}
    for record in log.records.values():
        share = share_of_record(record)
        if share is not None:
            size = len(log.cars[record.cid])
            shares[share] = shares.get(share, Amount()) + Amount(1, size)
    assert {share: each for share, each in log.marks.shares.items() if each.events} == shares
    waiting = [record for record in log.records.values() if record.state < State.PENDING]
    assert log.marks.waiting == len(waiting)


@given(seed=SEEDS, guarded=st.booleans())
def test_keys_do_not_depend_on_the_order_of_arrival(seed: int, guarded: bool) -> None:
    world = BadWorld(seed)
    claims = [claim for event in world.events.values() for claim in world.claims(event)]
    offers = world.random.sample(claims, int(len(claims) * world.random.choice([0.3, 0.6, 1])))
    found = []
    for _ in range(2):
        log = MemoryLog(guarded=guarded)
        for batch in shuffled(offers, world.random):
            log.admit(submissions(batch))
            settle_some(log, world.random, 0.3)
            check_marks(log)
        while log.pending_proofs:
            settle_some(log, world.random, 1)
        feed = log.feed
        assert log.marks.head == len(feed) == len(set(feed))
        found.append((log.keys, set(feed)))
    assert found[0][0] == found[1][0]
    if guarded:  # else the one exception of docs/admission.md, "Badly signed events"
        assert found[0][1] == found[1][1]


@given(seed=SEEDS, share=st.sampled_from([0.5, 0.8, 1.0]))
def test_events_are_delivered_once_their_history_is_here(seed: int, share: float) -> None:
    world = World(seed, events=20, time_events=True)
    offers = world.offers()
    here = world.random.sample(offers, int(len(offers) * share))
    log = MemoryLog()
    for batch in shuffled(here, world.random):
        assert {verdict.status for verdict in log.admit(submissions(batch))} == {"new"}
        cids = {event_id.event_cid for event_id, _ in here} & {r.cid for r in log.records.values()}
        assert set(log.feed) == world.deliverable(cids)
        assert log.marks.waiting == len(world.waiting(cids))
    seen: set[CID] = set()
    for cid in log.feed:
        assert seen.issuperset(world.events[cid].prevs)
        seen.add(cid)


@given(seed=SEEDS, most=st.integers(0, 5))
def test_what_finds_no_room_leaves_no_trace(seed: int, most: int) -> None:
    world = World(seed, streams=2, events=20)
    log = MemoryLog(settings=StoreSettings(max_waiting=most))
    offers = world.offers()
    for batch in shuffled(offers, world.random):
        log.admit(submissions(batch))
        assert all(each.events <= most for each in log.marks.shares.values())
        check_marks(log)
    assert not log.refused
    for offer in offers:  # history first
        log.admit(submissions([offer]))
    assert len(log.feed) == len(world.events)


@given(seed=SEEDS)
def test_a_batch_in_order_asks_for_a_fixed_number_of_things(seed: int) -> None:
    """Whatever its size: the log is asked for all of it at once."""
    world = World(seed, events=20)
    log = MemoryLog()
    log.admit(submissions(world.offers()))
    assert len(log.wants) <= 3
    assert len(log.feed) == len(world.events)


@given(seed=SEEDS, guarded=st.booleans())
def test_the_short_way_leads_where_the_long_one_does(seed: int, guarded: bool) -> None:
    world = BadWorld(seed)
    claims = [claim for event in world.events.values() for claim in world.claims(event)]
    batches = shuffled(claims, world.random)
    ends = []
    for is_next_in_feed in (Ladder._is_next_in_feed, lambda ladder, record: False):
        log, random = MemoryLog(guarded=guarded), Random(seed)
        with patch.object(Ladder, "_is_next_in_feed", is_next_in_feed):
            verdicts = []
            for batch in batches:
                verdicts += log.admit(submissions(batch))
                settle_some(log, random, 0.3)
        ends.append((verdicts, log.keys, log.feed, log.marks, log.refused))
    assert ends[0] == ends[1]
