"""LtHash: its vectors, and that a store keeps those of its ranges right while it changes."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from recon_node.recon import KeyRange, KeyStore
from recon_node.recon.keys import key_store
from recon_node.recon.keys.sketch import LtHash
from recon_node.steps import run_steps

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "lthash.json").read_text())
WHOLE = KeyRange(b"", b"\xff" * 9)
KEY = st.binary(min_size=1, max_size=4)


def slow(keys: set[bytes]) -> bytes:
    """The digest of a set, a lane at a time."""
    lanes = [0] * 1024
    for key in keys:
        expanded = blake3(sha256(key).digest()).digest(length=2048)
        for lane in range(1024):
            lanes[lane] += int.from_bytes(expanded[2 * lane : 2 * lane + 2], "little")
    written = b"".join((lane % 65536).to_bytes(2, "little") for lane in lanes)
    assert len(keys) < 128
    return sha256(written + bytes([len(keys)])).digest()


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: str(len(case["keys"])))
def test_the_vectors(case: dict[str, object]) -> None:
    keys = {key.encode() for key in case["keys"]}  # type: ignore[attr-defined]
    assert LtHash.of(*keys).digest().hex() == slow(keys).hex() == case["digest"]


@given(st.sets(KEY, max_size=100), st.sets(KEY, max_size=100))
def test_the_hash_of_a_set_is_the_sum_of_those_of_its_parts(a: set[bytes], b: set[bytes]) -> None:
    union = LtHash.of(*a)
    union.merge(LtHash.of(*(b - a)))
    assert union.digest() == LtHash.of(*(a | b)).digest()
    union.add(b"".join(sha256(key).digest() for key in b), -np.ones(len(b), np.int64))
    assert union.digest() == LtHash.of(*(a - b)).digest()


CHANGES = st.lists(
    st.tuples(st.sampled_from(["add", "discard"]), KEY)
    | st.tuples(st.just("load"), st.sets(KEY, max_size=8))
    | st.tuples(st.just("hash"), st.integers(0, 6))
    | st.tuples(st.just("step"), st.none()),
    max_size=60,
)
RANGES = [WHOLE, *(KeyRange(bytes([n]), bytes([n + 60])) for n in range(0, 180, 30))]


@given(st.sets(KEY, max_size=80), CHANGES)
def test_a_kept_hash_is_that_of_a_new_store_after_any_changes(
    keys: set[bytes], changes: list[tuple[str, object]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_store, "_QUICKLY_HASHED", 2)
        patch.setattr(key_store, "MAX_HASHES", 3)
        patch.setattr(key_store, "_BATCH", 5)
        store = KeyStore(keys, leaf_size=2, fan_out=2)
        making = [(WHOLE, store.lthash(WHOLE))]
        for what, operand in changes:
            if what == "add":
                store.add(operand)  # type: ignore[arg-type]
            elif what == "discard":
                store.discard(operand)  # type: ignore[arg-type]
            elif what == "load":
                store.load(operand)  # type: ignore[arg-type]
            elif what == "hash":
                making.append((RANGES[operand], store.lthash(RANGES[operand])))  # type: ignore[index]
            elif making:
                next(making.pop()[1], None)
        for key_range in RANGES:
            held = [key for key in store if key_range.covers(key)]
            assert run_steps(store.lthash(key_range)).digest() == LtHash.of(*held).digest()


def test_a_store_keeps_a_bounded_number_of_hashes() -> None:
    store = KeyStore(b"%04d" % n for n in range(600))
    for n in range(key_store.MAX_HASHES + 10):
        run_steps(store.lthash(KeyRange(b"%04d" % n, b"%04d" % (n + 300))))
    assert len(store._sketches._kept) == key_store.MAX_HASHES
