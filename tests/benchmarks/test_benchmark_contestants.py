"""The benchmarks' contestants: each finds every difference, and costs what it should."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.contestants import CONTESTANTS, WrongResultError, check_difference
from benchmarks.negentropy import Items, Negentropy
from benchmarks.pairs import Population, pairs

POPULATION = Population(400)


@given(differences=st.integers(0, 400), placement=st.sampled_from(["scattered", "recent"]))
@settings(deadline=None)
def test_a_pair_differs_by_as_much_as_asked(differences, placement):
    pair = POPULATION.pair(differences, placement)
    ours, theirs = pair.keys()
    assert ours == sorted(ours)
    assert set(ours) | set(theirs) == set(POPULATION.keys)
    differing = sorted(set(ours) ^ set(theirs))
    assert len(differing) == differences
    assert abs(len(ours) - len(theirs)) == differences % 2
    if placement == "recent" and differences:
        first = POPULATION.keys.index(differing[0])
        assert differing == POPULATION.keys[first : first + differences]


@pytest.mark.parametrize("name", CONTESTANTS)
@given(differences=st.integers(0, 400), placement=st.sampled_from(["scattered", "recent"]))
@settings(max_examples=3, deadline=None)
def test_every_contestant_finds_every_difference(name, differences, placement):
    cost = CONTESTANTS[name](POPULATION.pair(differences, placement))
    assert cost.rounds >= 1
    assert cost.bytes_sent > 0
    assert cost.bytes_received > 0


def test_sides_in_sync_part_after_one_round_trip():
    (pair,) = pairs(POPULATION, [0])
    costs = {name: contestant(pair) for name, contestant in CONTESTANTS.items()}
    assert {name: cost.rounds for name, cost in costs.items()} == {
        "recon/1.2.0": 1,
        "recon/1.0.0": 1,
        "recon/1.0.0, 8 MiB": 1,
        "negentropy": 1,
        "recon/0.1.0": 2,  # interests come first there
    }
    assert costs["recon/1.2.0"].bytes_sent + costs["recon/1.2.0"].bytes_received <= 120
    assert costs["recon/1.0.0"].bytes_sent + costs["recon/1.0.0"].bytes_received <= 350


def test_a_wrong_result_is_not_a_result():
    with pytest.raises(WrongResultError, match="4 differences were found, not 5"):
        check_difference(POPULATION.pair(5, "scattered"), 4)


def test_negentropy_finds_what_either_side_lacks():
    pair = POPULATION.pair(77, "scattered")
    ours, theirs = pair.items()
    asking, answering = Negentropy(Items(ours)), Negentropy(Items(theirs))
    message = asking.initiate()
    while message is not None:
        message = asking.reconcile(answering.reconcile(message))
    assert asking.have == {item[8:] for item in set(ours) - set(theirs)}
    assert asking.need == {item[8:] for item in set(theirs) - set(ours)}
