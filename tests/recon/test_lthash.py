"""LtHash: its vectors, and that a store keeps those of its ranges right while it changes."""

from hashlib import sha256

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.recon.keys.key_hashes import LtHash

VECTORS = vectors.load("lthash")
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
