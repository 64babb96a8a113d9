"""The random order of peers is that of the formula, and what is held against a peer fades."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.p2p.peers.book import Fading
from recon_node.p2p.peers.draw import (
    FLOOR,
    MIN_LATENCY,
    UNKNOWN_LATENCY,
    PeerCandidate,
    draw,
    draw_by_block,
    weights,
)

DRAWS = 6_000
SMALL = st.floats(0, 1e6)
CANDIDATES = st.lists(
    st.builds(
        PeerCandidate, SMALL, st.none() | st.floats(0, 60), st.floats(0, 1), st.floats(0, 100)
    ),
    min_size=1,
    max_size=20,
)

CASES = {
    "overlap": [PeerCandidate(keys, 0.05) for keys in (1000, 400, 200, 100)],
    "latency": [PeerCandidate(500, seconds) for seconds in (0.02, 0.05, 0.1, 0.3)],
    "both": [
        PeerCandidate(900, 0.03),
        PeerCandidate(90, 0.003),
        PeerCandidate(450, 0.06),
        PeerCandidate(30, 0.01),
    ],
    "little and far": [
        PeerCandidate(10**6, 0.01),
        PeerCandidate(1, 0.01),
        PeerCandidate(10**6, 60.0),
    ],
    "conduct": [
        PeerCandidate(100, 0.05),
        PeerCandidate(100, 0.05, behind=1.0),
        PeerCandidate(100, 0.05, failures=3.0),
        PeerCandidate(100, 0.05, behind=0.5, failures=1.0),
    ],
    "nothing known": [PeerCandidate(1.0, None), PeerCandidate(1.0, 0.2), PeerCandidate(0.0, None)],
}


def expected_shares(candidates: list[PeerCandidate]) -> list[float]:
    """The formula of the documentation, written down a second time."""
    attractions = []
    for candidate in candidates:
        latency = (
            UNKNOWN_LATENCY if candidate.latency is None else max(candidate.latency, MIN_LATENCY)
        )
        attractions.append(candidate.overlap / latency)
    least = FLOOR * max(attractions)
    weights_of_all = [
        (least if attraction < least else attraction)
        * (1 + candidate.behind)
        / (1 + candidate.failures)
        for attraction, candidate in zip(attractions, candidates, strict=True)
    ]
    return [weight / sum(weights_of_all) for weight in weights_of_all]


@pytest.mark.parametrize("case", CASES)
def test_the_frequencies_are_those_of_the_formula(case):
    candidates, rng = CASES[case], Random(case)
    weights_found, shares = weights(candidates), expected_shares(candidates)
    assert [weight / sum(weights_found) for weight in weights_found] == pytest.approx(shares)
    drawn = Counter(draw(weights_found, 1, rng)[0] for _ in range(DRAWS))
    assert [drawn[index] / DRAWS for index in range(len(shares))] == pytest.approx(
        shares, abs=0.026
    )


def test_several_are_drawn_one_after_the_other_without_repetition():
    """The second place, too, goes by weight among those that are left."""
    attractions, rng = [6.0, 3.0, 1.0], Random(5)
    drawn = Counter(tuple(draw(attractions, 2, rng)) for _ in range(DRAWS))
    for first, second in drawn:
        share = attractions[first] / 10 * attractions[second] / (10 - attractions[first])
        assert drawn[first, second] / DRAWS == pytest.approx(share, abs=0.026)
    assert len(drawn) == 6
    assert sorted(draw(attractions, 9, rng)) == [0, 1, 2]


@given(CANDIDATES)
def test_nobody_is_left_out_however_far_and_small(candidates):
    weights_found = weights(candidates)
    conduct = [(1 + candidate.behind) / (1 + candidate.failures) for candidate in candidates]
    fair = [weight / factor for weight, factor in zip(weights_found, conduct, strict=True)]
    assert min(fair) >= FLOOR * max(fair) * 0.999 > 0


@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e300])
def test_very_large_and_very_small_weights_are_distinguished(scale):
    rng = Random(3)
    drawn = Counter(draw([3.0 * scale, 1.0 * scale], 1, rng)[0] for _ in range(4000))
    assert 2850 < drawn[0] < 3150


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e5))
def test_what_fades_halves_with_every_half_life(value, more, later):
    fading = Fading(100.0).set(value, 50.0)
    assert fading.now(50.0) == value
    assert fading.now(150.0) == pytest.approx(value / 2)
    assert fading.now(50.0 + later) <= value
    increased = fading.plus(more, 150.0)
    assert increased.now(150.0) == pytest.approx(value / 2 + more)
    assert increased.now(250.0) == pytest.approx(value / 4 + more / 2)


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.sampled_from("abcd")), max_size=20),
    st.integers(0, 25),
    st.randoms(use_true_random=False),
)
def test_each_network_has_a_peer_before_one_has_two(peers, count, rng):
    blocks = [block for _, block in peers]
    drawn = draw_by_block([weight for weight, _ in peers], blocks, count, rng)
    assert len(drawn) == len(set(drawn)) == min(count, len(peers))
    times = Counter(blocks[index] for index in drawn)
    left = Counter(blocks) - times
    for block, number in times.items():
        assert all(times[other] >= number - 1 for other in left if other != block)


def test_many_peers_of_one_network_weigh_as_one() -> None:
    """Forty of them beside one that is as near: it is drawn as often as they are together."""
    rng = Random(36)
    weights, blocks = [1.0] * 41, ["crowd"] * 40 + ["alone"]
    first = Counter(blocks[draw_by_block(weights, blocks, 1, rng)[0]] for _ in range(1000))
    assert 430 < first["alone"] < 570
    for _ in range(20):
        assert 40 in draw_by_block(weights, blocks, 2, rng)
