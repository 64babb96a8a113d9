"""A cursor gives what the store gives, wherever it was before and whatever has changed."""

from bisect import bisect_left
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from support.key_stores import small_store

from recon_node.recon import KeyRange, Sha256a
from recon_node.recon.keys.lookups import KeyCursor
from recon_node.recon.keys.sha256a import COUNT_SHIFT

KEY = st.binary(max_size=2)
BOUNDS = st.lists(KEY, max_size=20).map(sorted) | st.lists(KEY, max_size=20)


@given(st.sets(KEY, max_size=150), BOUNDS, st.lists(st.tuples(st.booleans(), KEY), max_size=20))
def test_cursors_see_what_the_store_holds(keys, bounds, changes):
    store = small_store(keys, leaf_size=4, fan_out=3)
    cursor = KeyCursor(store)
    for index, bound in enumerate(bounds):
        if index < len(changes):
            added, key = changes[index]
            (store.add if added else store.discard)(key)
            (keys.add if added else keys.discard)(key)
        cursor.left_of(bounds[(index + 1) % len(bounds)])
        below = [key for key in keys if key < bound]
        lanes = cursor.left_of(bound)
        assert lanes >> COUNT_SHIFT == len(below)
        assert Sha256a.from_lanes(lanes) == Sha256a.of(*below)
        assert cursor.up_to(bound) >> COUNT_SHIFT == len(below) + (bound in keys)
        assert cursor.position_of(len(below)) == lanes
        assert cursor.not_held(bounds) == [bound for bound in bounds if bound not in keys]
        ordered = sorted(keys)
        assert cursor.keys_at(index, index + 9 if index + 9 < len(keys) else index) == (
            ordered[index : index + 9] if index + 9 < len(keys) else []
        )


@given(st.sets(st.binary(min_size=2, max_size=2), max_size=150), KEY, KEY, st.integers(2, 9))
def test_parts_are_those_of_the_store(keys, lower, upper, parts):
    """No key is a prefix of another one, which cuts rely on."""
    assume(lower < upper)
    store = small_store(keys, leaf_size=4, fan_out=3)
    key_range = KeyRange(lower, upper)
    inside = [key for key in sorted(keys) if key_range.covers(key)]
    cursor = KeyCursor(store)
    ranks = sorted({i * len(inside) // parts for i in range(1, parts)}) if inside else []
    ends = cursor.up_to(lower), cursor.left_of(upper)
    pivots = list(cursor.pivots(*ends, parts))
    assert pivots == [(inside[rank], cursor.around(inside[rank])) for rank in ranks]
    result = list(cursor.cuts(*ends, parts))
    assert result == [(cut, cursor.left_of(cut)) for cut, _ in result]
    cuts = [cut for cut, _ in result]
    assert all(lower < cut < upper for cut in cuts)
    assert not any(cut in inside for cut in cuts)
    assert len(cuts) == len(set(ranks) - {0})
    sizes = [bisect_left(inside, cut) for cut in cuts]
    assert sizes == sorted(set(sizes)), "no part is empty"
    reach = len(inside) // (4 * parts)
    assert all(abs(a - b) <= reach for a, b in zip(sizes, sorted(set(ranks) - {0}), strict=True))


@pytest.mark.parametrize(
    ("leaf_size", "fewest", "most"),
    [
        (4, 5_000, 9_000),
        (64, 5_000, 9_000),
        (4096, 2_100, 2_700),  # one leaf; its masks take 16 bytes times the square of its keys
    ],
)
@given(st.integers(0, 1 << 32), st.integers(2, 20), st.booleans())
@example(0, 2, False)  # long parts even of the fewest keys
@example(0, 20, True)
@settings(max_examples=10)
def test_long_parts_are_about_equal(leaf_size, fewest, most, seed, parts, quick):
    random = Random(seed)
    numbers = sorted(random.sample(range(1 << 24), random.randrange(fewest, most)))
    keys = [number.to_bytes(3, "big") for number in numbers]
    store = small_store(keys, leaf_size=leaf_size, fan_out=8)
    for key in (removed := random.sample(keys, 100)):
        store.discard(key)
    inside = sorted({*keys} - {*removed})[1:-1]
    cursor = KeyCursor(store)
    lower, upper = next(iter(store)), [*store][-1]
    cuts = list(cursor.cuts(cursor.up_to(lower), cursor.left_of(upper), parts, quick=quick))
    assert cuts == [(cut, KeyCursor(store).left_of(cut)) for cut, _ in cuts]
    assert cuts == sorted({*cuts})
    sizes = [bisect_left(inside, cut) for cut, _ in cuts]
    wanted = [part * len(inside) // parts for part in range(1, parts)]
    assert len(sizes) == len(wanted)
    reach = max(32, len(inside) // parts // 16)
    assert max(abs(a - b) for a, b in zip(sizes, wanted, strict=True)) <= reach
