"""Sha256a against its vectors and its laws (CIP-124, appendix A)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers import added_up
from support import vectors

from recon_node.recon import ZERO, Sha256a
from recon_node.recon.keys import sha256a
from recon_node.recon.keys.sha256a import COUNT_SHIFT, spread, spread_run, spread_runs

VECTORS = vectors.load("sha256a")
SETS = st.sets(st.binary(max_size=40), max_size=30)
EXTREME = st.sampled_from([bytes(32), b"\xff" * 32, (b"\xff" * 4 + bytes(4)) * 4])
DIGESTS = st.lists(st.binary(min_size=32, max_size=32) | EXTREME, max_size=300)


def test_vectors_of_the_specification() -> None:
    hello, other = Sha256a.of(b"hello"), Sha256a.of(b"other")
    assert hello.hex() == VECTORS["hello"]
    assert other.hex() == VECTORS["other"]
    assert (hello + other).hex() == VECTORS["hello_plus_other"]


@given(SETS, SETS)
def test_the_hash_of_a_set_is_the_sum_of_its_parts(a: set[bytes], b: set[bytes]) -> None:
    b -= a
    assert Sha256a.of(*a) + Sha256a.of(*b) == Sha256a.of(*(a | b))
    assert Sha256a.of(*a) + ZERO == Sha256a.of(*a)


@given(DIGESTS)
def test_a_run_adds_up_like_its_digests(digests: list[bytes]) -> None:
    run = spread_run(b"".join(digests))
    assert run == sum(spread(digest) for digest in digests)
    assert run >> COUNT_SHIFT == len(digests)


@given(DIGESTS)
def test_lanes_wrap_at_32_bits_each(digests: list[bytes]) -> None:
    assert Sha256a.from_lanes(spread_run(b"".join(digests))).digest == added_up(digests)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_subtraction_undoes_addition_of_any_lanes(a: bytes, b: bytes) -> None:
    assert Sha256a.from_lanes(spread(a) + spread(b) - spread(b)) == a


def test_a_digest_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        Sha256a(bytes(31))


@given(DIGESTS, st.integers(1, 12))
def test_runs_are_added_up_as_each_alone(digests: list[bytes], size: int) -> None:
    runs = [b"".join(digests[at : at + size]) for at in range(0, len(digests), size)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sha256a, "_DIGESTS_PER_STEP", 20)
        assert spread_runs(b"".join(digests), size) == [spread_run(run) for run in runs]
