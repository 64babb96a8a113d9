"""Key ranges: a brute force over all small keys decides."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from recon_node.recon import KeyRange, intersect_ranges, merge_ranges, subtract_ranges

BOUND = st.integers(0, 40).map(lambda n: bytes((n,)))
RANGES = st.lists(st.builds(KeyRange, BOUND, BOUND), max_size=8)
UNIVERSE = [bytes((n, m)) for n in range(42) for m in (0, 1)] + [bytes((n,)) for n in range(42)]


def members(ranges: list[KeyRange]) -> set[bytes]:
    return {key for key in UNIVERSE if any(key_range.covers(key) for key_range in ranges)}


@given(RANGES)
def test_merging_keeps_the_keys(ranges: list[KeyRange]) -> None:
    merged = merge_ranges(ranges)
    assert members(merged) == members(ranges)
    assert merged == sorted(merged)
    assert all(a.upper <= b.lower for a, b in pairwise(merged))


@given(RANGES, RANGES)
def test_intersecting_keeps_the_common_keys(ours: list[KeyRange], theirs: list[KeyRange]) -> None:
    common = intersect_ranges(ours, theirs)
    assert members(common) == members(ours) & members(theirs)
    assert common == merge_ranges(common)


@given(RANGES, RANGES)
def test_subtracting_keeps_all_but_their_keys(ours: list[KeyRange], theirs: list[KeyRange]) -> None:
    left = subtract_ranges(ours, theirs)
    bounds = {
        bound for key_range in theirs for bound in key_range
    }  # the bounds of a range are in neither
    assert members(left) - bounds == members(ours) - members(theirs) - bounds
    assert left == merge_ranges(left)
