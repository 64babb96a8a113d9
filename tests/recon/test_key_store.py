"""The key store against a plain sorted list, which is slow and obviously right."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from recon_node.recon import ZERO, KeyRange, KeyStore, Sha256a, Summary
from recon_node.recon.key_store import LEAF_SIZE

KEYS = st.binary(min_size=1, max_size=3)
"""Short keys: they collide, neighbour and prefix each other all the time."""


def oracle_hash(keys: list[bytes]) -> Sha256a:
    """Sha256a lane by lane, as CIP-124 writes it."""
    lanes = [0] * 8
    for key in keys:
        digest = hashlib.sha256(key).digest()
        for lane in range(8):
            lanes[lane] += int.from_bytes(digest[4 * lane : 4 * lane + 4], "little")
    return Sha256a(b"".join((lane % 2**32).to_bytes(4, "little") for lane in lanes))


def numbered(count: int, seed: int = 0) -> list[bytes]:
    return [hashlib.sha256(b"%d/%d" % (seed, n)).digest()[:12] for n in range(count)]


def check_range(store: KeyStore, model: list[bytes], key_range: KeyRange, parts: int) -> None:
    inside = [key for key in model if key_range.lower < key < key_range.upper]
    summary = store.summarize(key_range)
    assert summary.count == len(inside) == store.count(key_range)
    assert summary.hash == oracle_hash(inside)
    assert list(store.keys(key_range)) == inside
    assert list(store.keys(key_range, 3)) == inside[:3]
    assert store.first(key_range) == (inside[0] if inside else None)
    assert store.last(key_range) == (inside[-1] if inside else None)
    assert store.middle(key_range) == (inside[len(inside) // 2] if inside else None)
    pivots = store.split(key_range, parts)
    expected = sorted({i * len(inside) // parts for i in range(1, parts)}) if inside else []
    assert pivots == [inside[rank] for rank in expected]


@given(st.lists(KEYS, max_size=60), KEYS, KEYS, st.integers(2, 20))
def test_any_range_of_any_set(keys: list[bytes], lower: bytes, upper: bytes, parts: int) -> None:
    store = KeyStore(keys)
    assert list(store) == sorted(set(keys))
    assert len(store) == len(set(keys))
    check_range(store, sorted(set(keys)), KeyRange(lower, upper), parts)


@pytest.mark.parametrize("count", [0, 1, 2, 95, 96, 97, LEAF_SIZE, 2_000, 30_000])
def test_loading_and_adding_give_the_same_store(count: int) -> None:
    keys = numbered(count)
    loaded, grown = KeyStore(keys), KeyStore()
    for key in keys:
        assert grown.add(key)
        assert not grown.add(key)
    model = sorted(keys)
    assert list(loaded) == list(grown) == model
    assert loaded.summarize() == grown.summarize()
    assert loaded.summarize().hash == oracle_hash(model)
    rng = random.Random(count)
    for _ in range(20):
        bounds = sorted(rng.choices([*model, b"", b"\xff" * 13, *numbered(5, seed=1)], k=2))
        for store in (loaded, grown):
            check_range(store, model, KeyRange(*bounds), rng.randint(2, 20))


class StoreMachine(RuleBasedStateMachine):
    """Adds and discards in any order, over enough keys for a tree of three levels."""

    @initialize(count=st.sampled_from([0, 5, 200, 20_000]), bulk=st.booleans())
    def fill(self, count: int, bulk: bool) -> None:
        keys = numbered(count)
        self.model = set(keys)
        self.store = KeyStore(keys if bulk else ())
        if not bulk:
            self.store.load(keys[: count // 2])
            self.store.load(keys[count // 4 :])

    @rule(key=KEYS)
    def add(self, key: bytes) -> None:
        assert self.store.add(key) == (key not in self.model)
        self.model.add(key)

    @rule(key=KEYS)
    def discard(self, key: bytes) -> None:
        assert self.store.discard(key) == (key in self.model)
        self.model.discard(key)

    @rule(position=st.floats(0, 1, exclude_max=True), count=st.integers(1, 400))
    def discard_run(self, position: float, count: int) -> None:
        ordered = sorted(self.model)
        start = int(position * len(ordered))
        for key in ordered[start : start + count]:
            assert key in self.store
            assert self.store.discard(key)
            assert key not in self.store
            self.model.discard(key)

    @rule(lower=KEYS, upper=KEYS, parts=st.integers(2, 20))
    def compare(self, lower: bytes, upper: bytes, parts: int) -> None:
        check_range(self.store, sorted(self.model), KeyRange(lower, upper), parts)

    @invariant()
    def whole(self) -> None:
        if hasattr(self, "model"):
            assert len(self.store) == len(self.model)


TestStoreMachine = StoreMachine.TestCase


@given(st.lists(st.tuples(KEYS, st.integers(0, 400)), max_size=40))
def test_a_walk_yields_what_stays_once_and_additions_only_ahead(
    additions: list[tuple[bytes, int]],
) -> None:
    keys = sorted(numbered(400))
    store = KeyStore(keys)
    pending = sorted(additions, key=lambda addition: addition[1])
    seen: list[bytes] = []
    added: dict[bytes, bytes] = {}
    for step, key in enumerate(store.keys(KeyRange(b"", b"\xff" * 13))):
        seen.append(key)
        while pending and pending[0][1] <= step:
            new = pending.pop(0)[0]
            if store.add(new):
                added[new] = key
    assert seen == sorted(set(seen))
    assert set(keys) <= set(seen)
    for new in set(seen) - set(keys):
        assert added[new] < new, "only keys ahead of the walk can join it"


def test_an_empty_store() -> None:
    store = KeyStore()
    everything = KeyRange(b"", b"\xff")
    check_range(store, [], everything, 4)
    assert store.summarize() == Summary(ZERO, 0)
    assert b"key" not in store
    assert "key" not in store
    assert not store.discard(b"key")


def test_discarding_everything_leaves_a_store_that_works() -> None:
    keys = numbered(5_000)
    store = KeyStore(keys)
    for key in keys:
        assert store.discard(key)
    assert list(store) == []
    assert store.summarize() == Summary(ZERO, 0)
    for key in keys:
        assert store.add(key)
    assert list(store) == sorted(keys)


@given(st.sets(KEYS, max_size=300))
def test_leaves_and_load_digested_are_each_others_inverse(keys: set[bytes]) -> None:
    store = KeyStore(keys, leaf_size=5, fan_out=3)
    pages = list(store.leaves())
    loaded = KeyStore(leaf_size=4, fan_out=4)
    ordered = [key for page, _ in pages for key in page]
    loaded.load_digested(ordered, b"".join(digests for _, digests in pages))
    assert ordered == sorted(keys)
    assert loaded.summarize() == store.summarize()
    check_range(loaded, ordered, KeyRange(b"", b"\xff" * 4), 3)


@pytest.mark.parametrize(
    ("keys", "digests", "message"),
    [
        ([b"b", b"a"], 64, "do not ascend"),
        ([b"a", b"a"], 64, "do not ascend"),
        ([b"a", b"b"], 63, "63 bytes of digests"),
    ],
)
def test_digested_keys_that_cannot_be_right_are_refused(
    keys: list[bytes], digests: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KeyStore().load_digested(keys, bytes(digests))
    with pytest.raises(ValueError, match="empty store only"):
        KeyStore([b"x"]).load_digested([b"a"], bytes(32))
