"""Unsigned varints against the `multiformats` package."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiformats import varint as oracle

from recon_node.ipld import VarintError, decode_varint, encode_varint
from recon_node.ipld.cid import MAX_VARINT_VALUE

NUMBERS = st.integers(0, MAX_VARINT_VALUE)


@given(NUMBERS, st.binary(max_size=5), st.binary(max_size=5))
def test_read_where_it_stands_and_nothing_more(number: int, before: bytes, after: bytes) -> None:
    encoded = encode_varint(number)
    assert encoded == oracle.encode(number)
    end = len(before) + len(encoded)
    assert decode_varint(before + encoded + after, len(before)) == (number, end)


@given(st.binary(max_size=12))
def test_any_bytes_decode_as_the_oracle_says_or_are_refused(data: bytes) -> None:
    try:
        number, size, _ = oracle.decode_raw(data)
    except ValueError:
        with pytest.raises(VarintError):
            decode_varint(data)
    else:
        assert decode_varint(data) == (number, size)


@pytest.mark.parametrize(
    ("encoded", "complaint"),
    [
        ("", "end within"),
        ("80", "end within"),
        ("8000", "shortest form"),
        ("ff8000", "shortest form"),
        ("ff" * 9 + "01", "longer than 9 bytes"),
        ("80" * 9 + "00", "longer than 9 bytes"),
    ],
)
def test_refusals(encoded: str, complaint: str) -> None:
    with pytest.raises(VarintError, match=complaint):
        decode_varint(bytes.fromhex(encoded))


@pytest.mark.parametrize("number", [-1, 2**63, 2**64])
def test_numbers_that_do_not_fit(number: int) -> None:
    with pytest.raises(VarintError, match="2\\^63"):
        encode_varint(number)


def test_a_negative_offset_does_not_read_from_the_end() -> None:
    with pytest.raises(VarintError, match="negative"):
        decode_varint(b"\x01\x02", -1)
