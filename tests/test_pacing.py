"""Waits after failures in a row, and token buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.fairness.pacing import SPREAD, Backoff, TokenBucket, TokenBuckets, jittered


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


@given(
    burst=st.floats(1, 1000),
    rate=st.floats(0.5, 100),
    uses=st.lists(st.tuples(st.floats(0, 3), st.floats(0, 200)), max_size=60),
)
def test_no_more_passes_than_one_burst_and_the_rate(burst, rate, uses):
    bucket = TokenBucket(burst, rate, 0.0)
    now = passed = 0.0
    for gap, tokens in uses:
        now += gap
        if not bucket.seconds_until(tokens, now):
            bucket.spend(tokens, now)
            passed += tokens
    assert passed <= burst + rate * now + 1e-6


def test_waits_as_long_as_computed_give_the_whole_rate() -> None:
    bucket, now = TokenBucket(6, 3, 0.0), 0.0
    for _ in range(60):
        now += bucket.seconds_until(1, now)
        bucket.spend(1, now)
    assert now == pytest.approx((60 - 6) / 3)


def test_a_bucket_can_be_overdrawn_and_given_back() -> None:
    bucket = TokenBucket(10, 2, 0.0)
    bucket.spend(16, 0.0)
    assert (bucket.left(0.0), bucket.seconds_until(0, 0.0)) == (-6, 3)
    bucket.spend(-100, 1.0)
    assert bucket.left(1.0) == 10  # no more than fits


def test_the_latest_keys_have_buckets() -> None:
    buckets = TokenBuckets[str](1, 0.001, limit=3)
    buckets.of("first", 0.0).spend(1, 0.0)
    assert buckets.of("first", 0.0).left(0.0) == 0
    for key in "abc":
        buckets.of(key, 0.0).spend(1, 0.0)
    assert buckets.of("c", 0.0).left(0.0) == 0
    assert buckets.of("first", 0.0).left(0.0) == 1  # forgotten
