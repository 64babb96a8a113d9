"""Waits after failures in a row."""

from hypothesis import given
from hypothesis import strategies as st

from recon_node.fairness.pacing import SPREAD, Backoff, jittered


def test_waits_double_up_to_the_longest():
    backoff = Backoff(first=0.5, longest=6.0)
    assert [backoff.wait(failures) for failures in range(1, 7)] == [0.5, 1, 2, 4, 6, 6]


@given(st.integers(1, 10**9), st.floats(0, 1))
def test_a_wait_is_jittered_about_its_mean_however_many_failures(failures, draw):
    backoff = Backoff(first=2.0, longest=1e6)
    mean = backoff.wait(failures)
    wait = backoff.wait(failures, draw)
    assert mean <= 1e6
    assert mean * (1 - SPREAD) <= wait <= mean * (1 + SPREAD)


def test_jitter_takes_the_whole_spread():
    assert [jittered(8.0, draw) for draw in (0.0, 0.5, 1.0)] == [6.0, 8.0, 10.0]
