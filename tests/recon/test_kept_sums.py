"""The sketches and LtHashes that a store keeps of its ranges: right after any changes, and few."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.key_stores import small_store

from recon_node.base.steps import run_steps
from recon_node.recon import KeyRange, KeyStore, id_of
from recon_node.recon.keys import kept_sums
from recon_node.recon.keys.kept_sums import MAX_SKETCHES, KeptSums
from recon_node.recon.keys.key_hashes import LtHash
from recon_node.recon.keys.ordered_keys import OrderedKeys
from recon_node.recon.keys.sketch import Sketch

WHOLE = KeyRange(b"", b"\xff" * 9)
RANGES = [WHOLE, *(KeyRange(bytes([n]), bytes([n + 60])) for n in range(0, 180, 30))]
KEY = st.binary(min_size=1, max_size=2)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "discard"]), KEY)
    | st.tuples(st.just("load"), st.lists(KEY, max_size=20))
    | st.tuples(st.sampled_from(["make", "step", "give up"]), st.integers(0, 6)),
    max_size=60,
)
Make = Callable[[KeyStore, KeyRange], Any]
every_kind = pytest.mark.parametrize("make", [KeptSums.sketch, KeptSums.lthash])


def assert_right(kept: Sketch | LtHash, store: Iterable[bytes], key_range: KeyRange) -> None:
    """Check that a sum is that of the keys of a range, added up at once."""
    keys = [key for key in store if key_range.covers(key)]
    if isinstance(kept, LtHash):
        assert kept.digest() == LtHash.of(*keys).digest()
        return
    sketch = Sketch()
    sketch.add(np.frombuffer(b"".join(map(id_of, keys)), "<u8").astype(np.uint64))
    assert (kept.symbols - sketch.symbols).are_empty
    assert kept.table == sketch.table


def assert_counted(store: KeyStore) -> None:
    """Check that it is known of how many keys the sums are that were used since a change."""
    for kept in store.sums.kept.values():
        assert not kept.done or kept.size == store.count(kept.key_range)


@every_kind
@given(st.sets(KEY, max_size=60), CHANGES)
def test_a_kept_sum_is_that_of_the_keys_after_any_changes(make, keys, changes):
    """Whether it is being made meanwhile, kept, or made again because others took its place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_sums, "_QUICKLY_HASHED", 2)
        patch.setattr(kept_sums, "MAX_HASHES", 3)
        patch.setattr(kept_sums, "_BATCH", 5)
        store = small_store(keys, leaf_size=2, fan_out=2)
        making = [(WHOLE, make(store.sums, WHOLE))]
        for what, operand in changes:
            if what in ("add", "discard", "load"):
                getattr(store, what)(operand)
            elif what == "make":
                making.append((RANGES[operand], make(store.sums, RANGES[operand])))
            elif making:
                key_range, steps = making.pop()
                try:
                    next(steps)
                except StopIteration as end:
                    if end.value is not None:
                        assert_right(end.value, store, key_range)
                else:
                    if what == "step":
                        making.insert(0, (key_range, steps))
        for key_range, steps in [
            *making,
            *((key_range, make(store.sums, key_range)) for key_range in RANGES),
        ]:
            kept = run_steps(steps)
            if kept is not None:  # there is no slot for another sketch
                assert_right(kept, store, key_range)
        assert_counted(store)


@every_kind
def test_to_use_a_kept_sum_no_keys_are_counted(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """That is a walk down the tree: four in a session took a tenth of its time."""
    store = KeyStore(b"%04d" % number for number in range(300))
    made = run_steps(make(store.sums, WHOLE))
    monkeypatch.delattr(OrderedKeys, "count")
    assert run_steps(make(store.sums, WHOLE)) is made


@every_kind
@pytest.mark.parametrize("done", [1, 2, 3])
def test_all_keys_go_while_a_sum_is_being_made(monkeypatch, make, done):
    """Those that were added are taken out, the last of them included, and the others not."""
    monkeypatch.setattr(kept_sums, "_QUICKLY_HASHED", 2)
    keys = [b"%05d" % number for number in range(20_000)]
    store = KeyStore(keys)
    making = make(store.sums, WHOLE)
    for _ in range(done):
        next(making)
    for key in keys:
        store.discard(key)
    assert_right(run_steps(making), [], WHOLE)


@pytest.mark.parametrize(
    ("make", "most"),
    [(KeptSums.sketch, kept_sums.MAX_SKETCHES), (KeptSums.lthash, kept_sums.MAX_HASHES)],
)
def test_a_store_keeps_a_bounded_number_of_sums(make: Make, most: int) -> None:
    store = KeyStore(b"%04d" % n for n in range(600))
    for n in range(most + 10):
        assert run_steps(make(store.sums, KeyRange(b"%04d" % n, b"%04d" % (n + 300)))) is not None
    assert len(store.sums.kept) == most


def in_the_making(sums: KeptSums, ranges: Iterable[KeyRange]) -> list[Iterator[Any]]:
    """Begin sketches of ranges."""
    making: list[Iterator[Any]] = [sums.sketch(key_range) for key_range in ranges]
    for steps in making:
        next(steps)
    return making


def test_no_slot_is_left_while_all_sketches_are_in_the_making() -> None:
    """But for a longer range than those."""
    store = KeyStore(b"%04d" % n for n in range(500))
    making = in_the_making(store.sums, [KeyRange(bytes([n]), b"0400") for n in range(MAX_SKETCHES)])
    assert run_steps(store.sums.sketch(KeyRange(b"", b"0300"))) is None
    assert run_steps(store.sums.sketch(KeyRange(b"", b"0499"))) is not None
    for steps in making[1:]:
        assert run_steps(steps) is not None


def test_sketches_that_nobody_makes_any_more_leave_their_slots() -> None:
    """Whoever had some begun, and left, kept all others from having any, for good."""
    store = KeyStore(b"%04d" % n for n in range(500))
    making = in_the_making(store.sums, [KeyRange(bytes([n]), b"0400") for n in range(MAX_SKETCHES)])
    del making
    assert run_steps(store.sums.sketch(KeyRange(b"", b"0300"))) is not None


FEW_CHANGES = st.lists(st.tuples(st.sampled_from([KeyStore.add, KeyStore.discard]), KEY))


@given(st.sets(KEY, min_size=1), st.sets(st.integers(0, 6)), FEW_CHANGES, FEW_CHANGES)
def test_loaded_sums_are_those_of_the_keys_after_any_changes(keys, made, before, after):
    """Those that were complete are; the others are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_sums, "_QUICKLY_HASHED", 0)
        patch.setattr(kept_sums, "_BATCH", 5)
        first = small_store(keys, leaf_size=2, fan_out=2)
        for number in made:
            run_steps(first.sums.lthash(RANGES[number]))
            run_steps(first.sums.sketch(RANGES[number]))
        next(first.sums.lthash(KeyRange(b"a", b"b")), None)
        for change, key in before:
            change(first, key)
        second = small_store(leaf_size=3, fan_out=3)
        second.load_packed(b"".join(first.packed()), 0, len(first))
        second.sums.load(first.sums.packed())
        assert second.sums.packed() == first.sums.packed()
        for change, key in after:
            change(second, key)
        for key_range in RANGES:
            assert_right(run_steps(second.sums.lthash(key_range)), second, key_range)
            sketch = run_steps(second.sums.sketch(key_range))
            if sketch is not None:
                assert_right(sketch, second, key_range)
        assert_counted(second)


def test_sums_of_other_keys_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_sums, "_QUICKLY_HASHED", 0)
    keys = [b"%04d" % number for number in range(300)]
    for make in (KeptSums.sketch, KeptSums.lthash):
        store = KeyStore(keys)
        run_steps(make(store.sums, WHOLE))
        packed = store.sums.packed()
        others = [KeyStore(keys[1:]), KeyStore()]
        if make is KeptSums.sketch:
            others.append(KeyStore([*keys[1:], b"x"]))
        for other in others:
            with pytest.raises(ValueError, match="not the sums of these keys"):
                other.sums.load(packed)
            assert not other.sums.packed()
        for cut in (packed[:-1], packed[:5], packed + b"\x02", b"\xff" + packed[1:]):
            with pytest.raises(ValueError, match="packed"):
                KeyStore(keys).sums.load(cut)
