"""The schedule of discovery: what is new soon, everything in turn, and never too much at once."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from p2p_support import NETWORK

from recon_node.ceramic import METAMODEL
from recon_node.fairness.pacing import SPREAD
from recon_node.p2p.peers.schedule import (
    FIRST_ROUNDS,
    MAX_IN_INTERVAL,
    MAX_QUICK,
    RESTART_PAUSE,
    ROUNDS,
    Schedule,
    all_rendezvous,
)
from recon_node.store import Interest

INTERVAL = 600.0


def keys_of(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def turns(schedule: Schedule, seconds: float, start: float = 0.0) -> list[tuple[float, bytes]]:
    """Take everything when it is due; return when that was."""
    taken = []
    while (now := max(start, schedule.next_at)) <= start + seconds:
        due = schedule.take(now, MAX_QUICK)
        assert due
        taken += [(now, key) for key in due]
    return taken


def middle() -> float:
    """Draws no jitter."""
    return 0.5


def test_a_new_key_is_due_at_once_then_after_longer_waits_then_in_each_interval():
    schedule = Schedule(INTERVAL, middle)
    schedule.change([b"key"], 10.0)
    times = [at for at, _ in turns(schedule, 5 * INTERVAL, 10.0)]
    waits = [after - before for before, after in pairwise(times)]
    first = [ROUNDS.wait(number) for number in range(1, FIRST_ROUNDS + 1)]
    assert times[0] == 10.0
    assert waits[:FIRST_ROUNDS] == first == [1, 2, 4, 8, 16, 32, 60]
    assert set(waits[FIRST_ROUNDS:]) == {INTERVAL}


@given(st.integers(0, 2**32))
def test_waits_are_jittered(seed):
    schedule = Schedule(INTERVAL, random.Random(seed).random)
    schedule.change(keys_of(5), 0.0)
    taken = turns(schedule, 20 * INTERVAL)
    settled = {
        key: [at for at, taken_key in taken if taken_key == key][FIRST_ROUNDS:]
        for key in keys_of(5)
    }
    for times in settled.values():
        waits = {after - before for before, after in pairwise(times)}
        assert len(waits) > 1
        assert all(abs(wait - INTERVAL) <= SPREAD * INTERVAL + 1e-6 for wait in waits)


@pytest.mark.parametrize("count", [1, MAX_QUICK, MAX_IN_INTERVAL, 1000])
def test_every_key_takes_its_turn_and_the_work_is_bounded(count):
    schedule = Schedule(INTERVAL, random.Random(1).random)
    schedule.change(keys_of(count), 0.0)
    period = INTERVAL * max(1.0, count / MAX_IN_INTERVAL)
    taken = turns(schedule, 3 * period)
    assert set(keys_of(count)) == {key for at, key in taken if at <= period * (1 + SPREAD)}
    times_taken = Counter(key for _, key in taken)
    assert min(times_taken.values()) >= 2
    at_start = min(count, MAX_QUICK) * FIRST_ROUNDS
    assert len(taken) <= at_start + 3 * period / INTERVAL * MAX_IN_INTERVAL / (1 - SPREAD)
    quick = {key for at, key in taken if at < 10 and times_taken[key] > FIRST_ROUNDS}
    assert len(quick) == min(count, MAX_QUICK)


def test_a_change_keeps_the_turns_of_what_stays():
    schedule = Schedule(INTERVAL, middle)
    schedule.change([b"network", b"one"], 0.0)
    turns(schedule, INTERVAL)
    schedule.change([b"network", b"two"], INTERVAL + 1)
    assert schedule.take(INTERVAL + 1, MAX_QUICK) == [b"two"]
    assert {key for _, key in turns(schedule, INTERVAL, INTERVAL + 1)} == {b"network", b"two"}


def test_a_peer_that_joins_starts_the_first_rounds_again():
    schedule = Schedule(INTERVAL, middle)
    schedule.change([b"network", b"one"], 0.0)
    turns(schedule, INTERVAL)
    schedule.restart(INTERVAL + 1)
    assert schedule.is_first_round(b"one")
    taken = turns(schedule, 10, INTERVAL + 1)
    assert not schedule.is_first_round(b"one")
    assert [at - INTERVAL - 1 for at, key in taken if key == b"one"] == [0, 1, 3, 7]


def test_peers_that_join_all_the_time_cause_no_more_than_a_round_each_second():
    schedule = Schedule(INTERVAL, middle)
    schedule.change([b"network"], 0.0)
    taken = []
    for step in range(1000):
        now = step / 100
        schedule.restart(now)
        taken += schedule.take(now, MAX_QUICK)
    assert 10 <= len(taken) <= 10 / RESTART_PAUSE + 1


@given(st.lists(st.tuples(st.sampled_from(["change", "restart", "take"]), st.integers(0, 99))))
def test_whatever_happens_every_key_stays_planned(steps):
    schedule = Schedule(INTERVAL, random.Random(0).random)
    now, keys = 0.0, set()
    for step, number in steps:
        now += number / 10
        if step == "change":
            keys = set(keys_of(number))
            schedule.change(keys_of(number), now)
        elif step == "restart":
            schedule.restart(now)
        else:
            assert set(schedule.take(now, 1 + number)) <= keys
    limit = now + 2 * INTERVAL * (1 + SPREAD) * max(1, len(keys) / MAX_IN_INTERVAL)
    assert {key for _, key in turns(schedule, limit - now, now)} == keys


def test_one_rendezvous_for_each_sort_value_after_that_of_the_network():
    model = str(METAMODEL)
    interests = [
        Interest("model", model, "did:key:one"),
        Interest("family", "blog"),
        Interest("model", model, "did:key:two"),
    ]
    rendezvous = all_rendezvous(NETWORK, interests)
    assert [place.sort_value for place in rendezvous] == [None, model, "blog"]
    assert len({place.key for place in rendezvous}) == 3
    assert all_rendezvous(NETWORK, []) == rendezvous[:1]


def test_what_has_enough_waits_for_its_turn_in_the_interval():
    schedule = Schedule(INTERVAL, middle)
    schedule.change([b"enough", b"few"], 0.0)
    schedule.settle(0.0, {b"enough"}.__contains__)
    assert schedule.take(0.0, MAX_QUICK) == [b"enough", b"few"]  # both begin with one look
    schedule.settle(1.0, {b"enough"}.__contains__)
    assert schedule.take(1.0, MAX_QUICK) == [b"few"]
    assert schedule.take(INTERVAL, MAX_QUICK) == [b"few"]
    assert schedule.take(INTERVAL + 1, MAX_QUICK) == [b"enough"]
    schedule.restart(INTERVAL + 2)
    schedule.settle(INTERVAL + 2, lambda key: True)
    assert schedule.take(INTERVAL + 2, MAX_QUICK) == [b"enough", b"few"]
