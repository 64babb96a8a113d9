"""Durations in buckets, against prometheus_client's histogram."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from recon_node.durations import BOUNDS, Durations


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 100))))
def test_the_buckets_are_those_of_prometheus(seconds: list[float]) -> None:
    oracle = Histogram("h", "h", buckets=BOUNDS, registry=CollectorRegistry())
    durations = Durations()
    for each in seconds:
        oracle.observe(each)
        durations.observe(each)
    [family] = oracle.collect()
    expected = [
        (sample.labels["le"], sample.value) for sample in family.samples if "le" in sample.labels
    ]
    assert durations.cumulative() == expected
    assert durations.count == len(seconds)
    assert durations.sum == pytest.approx(sum(seconds))
