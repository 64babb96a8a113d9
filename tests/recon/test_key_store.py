"""The key store against a plain sorted list, which is slow and obviously right."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from peers import added_up
from support.key_stores import small_store

from recon_node.base.steps import run_steps
from recon_node.recon import ZERO, KeyRange, KeyStore, Sha256a, Summary
from recon_node.recon.keys.key_store import FAN_OUT, LEAF_SIZE
from recon_node.recon.keys.lookups import KeyCursor
from recon_node.recon.keys.ordered_keys import Inner, Leaf, leaves_below
from recon_node.recon.keys.packed import PackedLeaf

KEYS = st.binary(min_size=1, max_size=3)
"""Short keys: they collide, neighbour and prefix each other all the time."""

BOUNDS = KEYS | st.integers(0, 400)
"""A number stands for a key that the store holds."""


def oracle_hash(keys: list[bytes]) -> Sha256a:
    return Sha256a(added_up(hashlib.sha256(key).digest() for key in keys))


def numbered(count: int, seed: int = 0) -> list[bytes]:
    return [hashlib.sha256(b"%d/%d" % (seed, n)).digest()[:12] for n in range(count)]


def check_range(store: KeyStore, model: list[bytes], key_range: KeyRange) -> None:
    """Compare every question that can be asked of a range with a plain sorted list's answer."""
    inside = [key for key in model if key_range.lower < key < key_range.upper]
    summary = store.summarize(key_range)
    assert summary.count == len(inside) == store.count(key_range)
    assert summary.hash == oracle_hash(inside)
    assert list(store.keys(key_range)) == inside
    assert list(store.keys(key_range, 0)) == []
    assert list(store.keys(key_range, 3)) == inside[:3]
    assert store.first(key_range) == (inside[0] if inside else None)
    assert store.last(key_range) == (inside[-1] if inside else None)
    ranks = range(0, len(inside), 1 + len(inside) // 20)
    assert [store.nth(key_range, rank) for rank in ranks] == [inside[rank] for rank in ranks]


def check_tree(store: KeyStore, leaf_size: int, fan_out: int) -> None:
    """Check what a tree promises of itself, node by node."""

    def visit(node: Leaf | Inner, lower: bytes, upper: bytes | None) -> int:
        """Return the height; all keys lie from `lower` to below `upper`."""
        if isinstance(node, Leaf):
            assert len(node) <= leaf_size
            assert node == sorted(set(node))
            assert all(lower <= key and (upper is None or key < upper) for key in node)
            assert node.digests == b"".join(hashlib.sha256(key).digest() for key in node)
            assert node or node is store.root, "no leaf is empty"
            return 0
        assert 1 <= len(node) <= fan_out
        assert node.lanes_of == [child.lanes() for child in node]
        assert node.sums in (None, list(accumulate(node.lanes_of, initial=0)))
        edges = [lower, *node.bounds[1:], upper]
        heights = {visit(child, *edges[at : at + 2]) for at, child in enumerate(node)}
        assert len(heights) == 1, "all leaves are on one level"
        return 1 + heights.pop()

    visit(store.root, b"", None)
    assert store.lanes_of_all == store.root.lanes()


@given(
    st.lists(KEYS, max_size=60),
    KEYS,
    KEYS,
    st.sampled_from([(2, 2), (3, 2), (4, 5), (LEAF_SIZE, FAN_OUT)]),
)
def test_any_range_of_any_set(keys, lower, upper, sizes):
    store = small_store(keys, leaf_size=sizes[0], fan_out=sizes[1])
    assert list(store) == sorted(set(keys))
    assert len(store) == len(set(keys))
    check_tree(store, *sizes)
    check_range(store, sorted(set(keys)), KeyRange(lower, upper))


@pytest.mark.parametrize("every", [1, 9, 200])
@pytest.mark.parametrize("sizes", [(4, 3), (LEAF_SIZE, FAN_OUT)])
def test_loading_into_a_full_store_is_adding_key_by_key(sizes: tuple[int, int], every: int) -> None:
    """Of ever fewer keys among those held, so that many, some and no leaves get several."""
    keys = sorted(numbered(6_000))
    held, new = keys[::3], [key for index, key in enumerate(keys) if index % 3]
    more = [*new[1_000:3_000:every], *held[:500:every], *new[-70:], *new[:70:every]]
    loaded, grown = (small_store(held, leaf_size=sizes[0], fan_out=sizes[1]) for _ in range(2))
    loaded.load(more)
    for key in more:
        grown.add(key)
    check_tree(loaded, *sizes)
    assert list(loaded) == list(grown) == sorted({*held, *more})
    assert loaded.summarize() == grown.summarize()


class Walk:
    """A walk over a range, and what it owes by the definition in the key store's text."""

    def __init__(self, machine: StoreMachine, key_range: KeyRange) -> None:
        self.machine = machine
        self.range = key_range
        self.keys = machine.store.keys(key_range)
        self.owed = {key for key in machine.model if key_range.covers(key)}
        self.possible = set(self.owed)
        self.seen: list[bytes] = []

    def added(self, key: bytes) -> None:
        """Note a key; it is owed where so much lies before it that it is beyond the page."""
        if not self.range.covers(key):
            return
        self.possible.add(key)
        last = self.seen[-1] if self.seen else b""
        between = sum(last < other < key for other in self.owed)
        if not self.seen or between >= self.machine.leaf_size:
            self.owed.add(key)

    def discarded(self, key: bytes) -> None:
        self.owed.discard(key)
        last = self.seen[-1] if self.seen else b""
        if not self.seen or sum(last < other < key for other in self.owed) >= (
            self.machine.leaf_size
        ):
            self.possible.discard(key)

    def step(self) -> bool:
        """Take one key; return False at the end, after checking that nothing is missing."""
        key = next(self.keys, None)
        if key is None:
            assert self.owed <= set(self.seen)
            return False
        assert key in self.possible
        assert not self.seen or self.seen[-1] < key
        self.seen.append(key)
        return True


class StoreMachine(RuleBasedStateMachine):
    """A store with tiny nodes, hence a deep tree, changed and asked in any order."""

    @initialize(
        count=st.sampled_from([0, 5, 40, 150]),
        how=st.sampled_from(["at once", "packed", "in parts"]),
        leaf_size=st.integers(2, 6),
        fan_out=st.integers(2, 5),
    )
    def fill(self, count: int, how: str, leaf_size: int, fan_out: int) -> None:
        self.leaf_size, self.fan_out = leaf_size, fan_out
        keys = numbered(count)
        self.model = set(keys)
        self.walks: list[Walk] = []
        all_at_once = keys if how == "at once" else ()
        self.store = small_store(all_at_once, leaf_size=leaf_size, fan_out=fan_out)
        if how == "packed":
            self.store.load_packed(b"".join(KeyStore(keys).packed()), 0, count)
        elif how == "in parts":
            self.store.load(keys[: count // 2])
            self.store.load(keys[count // 4 :])

    def bound(self, drawn: bytes | int) -> bytes:
        """A number stands for a key of the store, so that bounds often equal keys."""
        if isinstance(drawn, bytes):
            return drawn
        return sorted(self.model)[drawn % len(self.model)] if self.model else b"\x80"

    def add_one(self, key: bytes) -> None:
        new = key not in self.model
        assert self.store.add(key) == new
        self.model.add(key)
        for walk in self.walks if new else ():
            walk.added(key)

    def discard_one(self, key: bytes) -> None:
        held = key in self.model
        assert (key in self.store) == held
        assert self.store.discard(key) == held
        assert key not in self.store
        self.model.discard(key)
        for walk in self.walks if held else ():
            walk.discarded(key)

    @rule(key=BOUNDS)
    def add(self, key: bytes | int) -> None:
        self.add_one(self.bound(key))

    @rule(key=BOUNDS)
    def discard(self, key: bytes | int) -> None:
        self.discard_one(self.bound(key))

    @rule(seed=st.integers(1, 9), count=st.integers(1, 60))
    def load(self, seed: int, count: int) -> None:
        keys = numbered(count, seed)
        fresh = set(keys) - self.model
        self.store.load([*keys, *keys])
        self.model |= fresh
        for walk in self.walks:
            for key in fresh:
                walk.added(key)

    @rule(position=st.floats(0, 1, exclude_max=True), count=st.integers(1, 60))
    def discard_run(self, position: float, count: int) -> None:
        ordered = sorted(self.model)
        start = int(position * len(ordered))
        for key in ordered[start : start + count]:
            self.discard_one(key)

    @rule(lower=BOUNDS, upper=BOUNDS)
    def compare(self, lower: bytes | int, upper: bytes | int) -> None:
        key_range = KeyRange(self.bound(lower), self.bound(upper))
        check_range(self.store, sorted(self.model), key_range)

    @rule(lower=BOUNDS, upper=BOUNDS)
    def start_walk(self, lower: bytes | int, upper: bytes | int) -> None:
        self.walks.append(Walk(self, KeyRange(*sorted([self.bound(lower), self.bound(upper)]))))

    @rule(steps=st.integers(1, 30))
    def go_on(self, steps: int) -> None:
        for walk in list(self.walks):
            if not all(walk.step() for _ in range(steps)):
                self.walks.remove(walk)

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "model"):
            assert len(self.store) == len(self.model)

    @rule()
    def look_inside(self) -> None:
        assert list(self.store) == sorted(self.model)
        check_tree(self.store, self.leaf_size, self.fan_out)

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.look_inside()
        for walk in getattr(self, "walks", []):
            while walk.step():
                pass


TestStoreMachine = StoreMachine.TestCase


def test_what_a_walk_yields_while_the_store_changes() -> None:
    keys = [b"%02d" % n for n in range(0, 60, 10)]
    store = small_store(keys, leaf_size=3, fan_out=2)  # loads two keys a leaf
    walk = store.keys(KeyRange(b"", b"99"))
    assert next(walk) == b"00", "the page at hand is 00, 10"
    store.add(b"05")
    store.add(b"11")
    store.discard(b"10")
    store.discard(b"30")
    store.add(b"31")
    assert list(walk) == [b"10", b"11", b"20", b"31", b"40", b"50"]


def test_discarding_everything_while_iterating_leaves_a_store_that_works() -> None:
    keys = numbered(1_000)
    store = small_store(keys, leaf_size=4, fan_out=3)
    seen = []
    for key in store:
        seen.append(key)
        assert store.discard(key)
    assert seen == sorted(keys)
    check_range(store, [], KeyRange(b"", b"\xff"))
    assert store.summarize() == Summary(ZERO, 0)
    assert "key" not in store
    assert not store.discard(b"key")
    store.load(keys)
    assert list(store) == sorted(keys)


MIXED_KEYS = st.sets(KEYS | st.binary(min_size=3, max_size=3), max_size=300)
"""Most of one length, so that some leaves have keys of one length only, and some have not."""


def packed_leaves(store: KeyStore) -> list[bool]:
    """Whether each leaf is still packed."""
    return [isinstance(leaf, PackedLeaf) for leaf in leaves_below(store.root)]


def packed(store: KeyStore, *, before: bytes = b"", size: int = 4) -> KeyStore:
    """Return a store with the same keys, of which none has been read."""
    loaded = small_store(leaf_size=size, fan_out=size)
    loaded.load_packed(before + b"".join(store.packed()), len(before), len(store))
    return loaded


@given(MIXED_KEYS, st.binary(max_size=3))
def test_packing_and_loading_are_each_others_inverse(keys: set[bytes], before: bytes) -> None:
    store = small_store(keys, leaf_size=5, fan_out=3)
    loaded = packed(store, before=before)
    assert len(loaded) == len(keys)
    assert loaded.summarize() == store.summarize()
    assert b"".join(loaded.packed()) == b"".join(store.packed())
    assert not keys or all(packed_leaves(loaded)), "packing and hashing them all read none"
    check_tree(loaded, 4, 4)
    check_range(loaded, sorted(keys), KeyRange(b"", b"\xff" * 4))
    assert not any(packed_leaves(loaded))
    assert b"".join(loaded.packed()) == b"".join(store.packed())


QUESTIONS: list[Callable[[KeyStore, bytes, int], object]] = [
    lambda store, key, _: key in store,
    lambda store, key, _: store.summarize(KeyRange(b"", key)),
    lambda store, key, _: store.count(KeyRange(b"", key)),
    lambda store, key, _: list(store.keys(KeyRange(b"", key))),
    lambda store, _, rank: store.nth(KeyRange(b"", b"\xff" * 4), rank),
    lambda store, key, _: KeyCursor(store).around(key),
    lambda store, key, _: KeyCursor(store).not_held([key]),
    lambda store, _, rank: KeyCursor(store).keys_at(rank, min(rank + 3, len(store))),
    lambda store, key, _: (store.add(key), list(store)),
    lambda store, key, _: (store.discard(key), list(store)),
    lambda store, key, _: [store.load([key, key + b"x"]), *store],
]


@pytest.mark.parametrize("question", QUESTIONS)
@given(MIXED_KEYS.filter(bool), BOUNDS, st.integers(0, 400))
def test_packed_leaves_answer_as_others_do(question, keys, bound, rank):
    key = sorted(keys)[bound % len(keys)] if isinstance(bound, int) else bound
    store = small_store(keys, leaf_size=4, fan_out=4)
    loaded = packed(store)
    assert question(loaded, key, rank % len(keys)) == question(store, key, rank % len(keys))
    check_tree(loaded, 4, 4)


def test_a_leaf_is_unpacked_alone_and_only_for_its_keys() -> None:
    keys = sorted(numbered(10_000))
    loaded = packed(KeyStore(keys), size=LEAF_SIZE)
    run_steps(loaded.sums.lthash(KeyRange(b"", b"\xff" * 13)))
    assert packed_leaves(loaded).count(False) < 10, "those at the ends of six groups"
    loaded = packed(KeyStore(keys), size=LEAF_SIZE)
    assert keys[500] in loaded
    assert packed_leaves(loaded).count(False) == 1


@pytest.mark.parametrize(
    ("keys", "lost", "message"),
    [
        ([b"a", b"c", b"b", b"d"], 0, "do not ascend"),
        ([b"a", b"b", b"b", b"c"], 0, "do not ascend"),
        ([b"a", b"b"], 1, "no room"),
        ([b"a", b"b"], 67, "smaller than"),
    ],
)
def test_packed_keys_that_cannot_be_right_are_refused(keys, lost, message):
    lengths = b"".join(len(key).to_bytes(2, "little") for key in keys)
    data = lengths + b"".join(keys) + bytes(32 * len(keys))
    with pytest.raises(ValueError, match=message):
        small_store(leaf_size=4).load_packed(data[: len(data) - lost], 0, len(keys))
    with pytest.raises(ValueError, match="only be loaded into an empty store"):
        KeyStore([b"x"]).load_packed(data, 0, len(keys))
