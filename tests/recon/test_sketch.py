"""Sketches: exact whatever happened to the set, decoded rightly or not at all, and bounded."""

import random
from collections.abc import Callable, Generator, Iterable
from hashlib import sha256
from itertools import islice
from math import ceil, sqrt
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.key_stores import small_store

from recon_node.base.steps import run_steps
from recon_node.recon import KeyRange, find_by_id, id_of
from recon_node.recon.keys import lookups
from recon_node.recon.keys import sketch as sketch_module
from recon_node.recon.keys.key_hashes import Ids, ids_of
from recon_node.recon.keys.lookups import ids_not_held
from recon_node.recon.keys.sketch import (
    COLUMNS,
    MAX_SYMBOLS,
    ROWS,
    Difference,
    Sketch,
    Symbols,
    decode,
    estimate_differences,
    least_differences,
    symbols_for,
)

T = TypeVar("T")

WHOLE = KeyRange(b"", b"\xff" * 9)
KEY = st.binary(min_size=1, max_size=2)
KEYS = st.sets(KEY, max_size=40)
U64 = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1


def ids(numbers: Iterable[int]) -> Ids:
    return np.array([*numbers], np.uint64)


def sized(size: int) -> Sketch:
    """An empty sketch of fewer symbols than those of sessions."""
    sketch = Sketch()
    sketch.symbols = Symbols.none(size)
    return sketch


def sketch_of(numbers: Iterable[int], size: int = MAX_SYMBOLS) -> Sketch:
    sketch = sized(size)
    sketch.add(ids(numbers))
    return sketch


def decoded(symbols: Symbols) -> Difference | None:
    *_, last = [None, *decode(symbols)]
    return last


# --- against plain Python, as docs/wire.md has it ---------------------------------------------


def mix(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def indices(x: int, limit: int) -> list[int]:
    coded, index, state = [], 0.0, x
    while index < limit:
        coded.append(int(index))
        state = state * 0xDA942042E4DD58B5 & MASK
        index += max(1, ceil((index + 1.5) * (2.0**32 / sqrt(float(state) + 1) - 1)))
    return coded


@given(st.lists(U64 | st.sampled_from([0, 1, 2**63, 2**64 - 1]), max_size=12, unique=True))
def test_symbols_are_those_of_the_document(numbers: list[int]) -> None:
    sums, checks, counts = [0] * 64, [0] * 64, [0] * 64
    bits = [0] * (ROWS * COLUMNS)
    for x in numbers:
        for index in indices(x, 64):
            sums[index] = sums[index] + x & MASK
            checks[index] = checks[index] + mix(x) & 0xFFFFFFFF
            counts[index] = counts[index] + 1 & 0xFF
        upper = mix(x) >> 32
        low = upper >> 6 & 2047
        row = (low & -low).bit_length() - 1 if low else 11
        bits[row * COLUMNS + upper % 64] ^= 1
    sketch = sketch_of(numbers, 64)
    assert [column.tolist() for column in sketch.symbols] == [sums, checks, counts]
    assert sketch.table == np.packbits(np.array(bits, np.uint8)).tobytes()


# --- differences --------------------------------------------------------------------------------


@given(st.sets(U64, max_size=300), st.sets(U64, max_size=30), st.sets(U64, max_size=30))
def test_enough_symbols_decode_to_the_difference(common, ours, theirs):
    ours, theirs = ours - common - theirs, theirs - common
    size = symbols_for(len(ours | theirs)) + 40
    difference = decoded(
        sketch_of(common | ours, size).symbols - sketch_of(common | theirs, size).symbols
    )
    if difference is not None:  # with fewer than ten there may be bad luck
        assert set(difference.ours.tolist()) == ours
        assert set(difference.theirs.tolist()) == theirs
    else:
        assert len(ours | theirs) > 1


@pytest.mark.parametrize("differences", [1, 10, 100, 1_000, 10_000])
def test_the_estimate_leads_to_enough_symbols(differences: int) -> None:
    rng, failures = np.random.default_rng(differences), 0
    attempts = 16 if differences < 1_000 else 4
    for _ in range(attempts):
        numbers = rng.integers(0, 2**64, differences, np.uint64)
        ours, theirs = Sketch(), Sketch()
        ours.add(numbers[::2])
        theirs.add(numbers[1::2])
        number = symbols_for(estimate_differences(ours.table, theirs.table))
        assert number < 4 * differences + 20
        difference = decoded(ours.symbols.first(number) - theirs.symbols.first(number))
        failures += difference is None
        if difference is not None:
            assert sorted(difference.ours.tolist()) == sorted(numbers[::2].tolist())
    assert failures <= attempts // 8


@given(st.sets(U64, max_size=30), st.sets(U64, max_size=30), st.integers(1, 12))
def test_tables_never_show_more_differences_than_there_are(ours, theirs, size):
    here, there = sketch_of(ours, size), sketch_of(theirs, size)
    least, differing = least_differences(here.table, there.table), len(ours ^ theirs)
    assert least <= differing
    assert least % 2 == differing % 2
    if least > size:
        assert decoded(here.symbols - there.symbols) is None


@given(st.data())
def test_whatever_symbols_a_peer_makes_up_decoding_ends(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 50))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    real = sketch_of(rng.integers(0, 2**64, data.draw(st.integers(0, 60)), np.uint64), size)
    symbols = real.symbols.copy()
    for column in symbols:  # some of them are overwritten
        at = rng.integers(0, size, data.draw(st.integers(0, 5)))
        column[at] = rng.integers(0, 2**8, len(at))
    steps = list(decode(symbols))
    assert len(steps) <= min(size, 256) + 2
    if steps and steps[-1] is not None:
        again = sized(size)
        again.add(steps[-1].ours)
        again.add(steps[-1].theirs, -np.ones(len(steps[-1].theirs), np.int64))
        assert (again.symbols - symbols).are_empty


def test_an_id_at_an_index_that_is_not_its_own_ends_the_attempt() -> None:
    """Taking it out would leave it where it was found, for ever."""
    x = 12345
    wrong = next(index for index in range(1, 200) if index not in indices(x, 200))
    symbols = Symbols.none(200)
    symbols.sums[wrong], symbols.checks[wrong], symbols.counts[wrong] = x, mix(x) & 0xFFFFFFFF, 1
    assert decoded(symbols) is None


def test_two_keys_with_one_id_do_not_decode() -> None:
    sketch = sized(200)
    for _ in range(2):
        sketch.add(ids([7]))
    assert decoded(sketch.symbols) is None


@pytest.mark.parametrize("number", [8, 9, 1024, 1025, 8500])
def test_ids_are_added_in_portions(number: int) -> None:
    numbers = ids(np.random.default_rng(1).integers(0, 1 << 63, number).tolist())
    signs = np.where(np.arange(len(numbers)) % 3, 1, -1)
    at_once, one_by_one = Symbols.none(300), Symbols.none(300)
    at_once.add(numbers, signs)
    for n in range(len(numbers)):
        one_by_one.add(numbers[n : n + 1], signs[n : n + 1])
    assert (at_once - one_by_one).are_empty


# --- keys by their ids --------------------------------------------------------------------------


@given(KEYS, st.sets(KEY, max_size=10), KEY, KEY, st.booleans())
def test_keys_are_found_by_their_ids(keys, sought, one, other, with_lower):
    store = small_store(keys, leaf_size=2, fan_out=3)
    key_range = KeyRange(min(one, other), max(one, other))
    wanted = ids_of(b"".join(sha256(key).digest() for key in sought))
    result = run_steps(find_by_id(store, key_range, wanted, with_lower=with_lower))
    assert [key for _, key in result] == sorted(
        key
        for key in keys & sought
        if key_range.covers(key) or (with_lower and key == key_range.lower < key_range.upper)
    )


def drain(steps: Generator[None, None, T], pause: Callable[[], object]) -> tuple[T, int]:
    """The result of work in steps, and how often it has paused, calling `pause` each time."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1
        pause()


@pytest.mark.parametrize("few", [0, 2048])
def test_many_keys_are_found_while_the_store_changes(monkeypatch, few):
    monkeypatch.setattr(lookups, "_GROUPS_PER_STEP", 2)
    monkeypatch.setattr(lookups, "_UNFILTERED_KEYS", few)
    rng = random.Random(3)
    keys = [rng.randbytes(8) for _ in range(20_000)]
    wanted, leaving, staying = keys[:5_000], keys[5_000:8_000], keys[8_000:10_000]
    store = small_store(wanted + leaving + staying, leaf_size=16, fan_out=8)
    steps = find_by_id(store, WHOLE, ids_of(b"".join(sha256(key).digest() for key in wanted)))
    late, gone = iter(keys[10_000:]), iter(leaving)

    def change() -> None:
        store.load(islice(late, 100))
        for key in islice(gone, 30):
            store.discard(key)

    result, pauses = drain(steps, change)
    assert pauses > 20
    assert sorted(key for _, key in result) == sorted(wanted)
    assert all(id_of(key) == id_.to_bytes(8, "little") for id_, key in result)


def test_ids_are_compared_while_the_store_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "_GROUPS_PER_STEP", 2)
    rng = random.Random(4)
    keys = [rng.randbytes(8) for _ in range(6_000)]
    store = small_store(keys[:2_000], leaf_size=16, fan_out=8)
    lacking, late = keys[5_000:], iter(keys[2_000:5_000])
    sought = ids_of(b"".join(sha256(key).digest() for key in keys[:2_000] + lacking))
    result, _ = drain(ids_not_held(store, WHOLE, sought), lambda: store.load(islice(late, 50)))
    assert result.tolist() == ids_of(b"".join(sha256(k).digest() for k in lacking)).tolist()


@given(st.data())
def test_few_symbols_decode_as_many_do(data: st.DataObject) -> None:
    """Whether they are those of a set or made up, with numpy or without."""
    number = data.draw(st.integers(0, 16))
    symbols = Symbols.none(number)
    drawn = data.draw(st.lists(st.tuples(U64, st.sampled_from([1, -1])), max_size=12))
    if number:
        symbols.add(ids(id_ for id_, _ in drawn), np.array([sign for _, sign in drawn], np.int64))
        for index, column, value in data.draw(
            st.lists(st.tuples(st.integers(0, number - 1), st.integers(0, 2), U64), max_size=2)
        ):
            changed = (symbols.sums, symbols.checks, symbols.counts)[column]
            changed[index] = value % 2 ** (8 * changed.itemsize)
    few = decoded(symbols)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch_module, "_FEW_SYMBOLS", -1)
        many = decoded(symbols)
    if few is None or many is None:
        assert few is many
    else:
        assert few.ours.tolist() == many.ours.tolist()
        assert few.theirs.tolist() == many.theirs.tolist()
