"""Multibase: what is done by hand agrees with the `multiformats` package, and is as strict."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multiformats import multibase as oracle
from support import vectors

from recon_node.ipld import MultibaseError, multibase

OWN_BASES = ["base64", "base64url", "base32", "base16", "base36", "base58btc"]
OTHER_BASES = [
    *("base2", "base8", "base10", "base16upper", "base36upper", "base58flickr"),
    *("base32upper", "base32pad", "base32padupper", "base32hex", "base32hexupper"),
    *("base32hexpad", "base32hexpadupper", "base32z", "base64pad", "base64urlpad", "proquint"),
]


@settings(max_examples=300)
@given(st.sampled_from(OWN_BASES + OTHER_BASES), st.binary(max_size=80))
def test_written_as_the_oracle_writes_and_read_back(base: str, data: bytes) -> None:
    text = multibase.encode(data, base)
    assert text == oracle.encode(data, base)
    assert multibase.decode(unpadded(data, base)) == data


def unpadded(data: bytes, base: str) -> str:
    """The oracle pads base8, which the table of bases does not."""
    text = oracle.encode(data, base)
    return text.rstrip("=") if base == "base8" else text


@settings(max_examples=300)
@given(
    st.sampled_from(OWN_BASES + OTHER_BASES[:-1]),
    st.text("01", max_size=12) | st.text("0123456789abcdefghzABXYZ+/-_=. \n", max_size=12),
)
def test_any_text_means_what_the_oracle_says_or_is_refused(base: str, body: str) -> None:
    """The oracle also takes needless padding, and letters of any case in more bases."""
    text = multibase.encode(b"", base) + body
    has_case = not base.startswith(("base16", "base36", "base32")) or base == "base32z"
    try:
        expected = oracle.decode(text)
    except ValueError:
        expected = None
    canonical = None if expected is None else unpadded(expected, base)
    if canonical == text or (canonical and not has_case and canonical.lower() == text.lower()):
        assert multibase.decode(text) == expected
    else:
        with pytest.raises(MultibaseError):
            multibase.decode(text)


VECTORS = vectors.load("ipld/multibase")


@pytest.mark.parametrize(
    "text",
    # https://github.com/multiformats/multibase/blob/master/tests/case_insensitivity.csv
    VECTORS["case"],
)
def test_letters_of_either_case_mean_the_same_in_bases_without_case(text: str) -> None:
    assert multibase.decode(text) == b"hello world"


def test_texts_that_would_take_quadratic_time_are_refused_at_once() -> None:
    for code in "kz9":
        with pytest.raises(MultibaseError, match="too many"):
            multibase.decode(code + "1" * 1_000_000)
        with pytest.raises(MultibaseError, match="too many"):
            multibase.decode(code + "1" * 3_000_000, multibase.MAX_NUMBER)
    with pytest.raises(MultibaseError, match="too many"):
        multibase.encode(bytes(1_000_000), "base36")
    with pytest.raises(MultibaseError, match="base99"):
        multibase.encode(b"", "base99")


@pytest.mark.parametrize("base", ["base64", "base32z", "base2", "base8"])
def test_a_car_of_a_megabyte(base: str) -> None:
    """Digits repeat, so the oracle, which takes quadratic time, writes few."""
    data = bytes(range(240)) * 4096
    text = oracle.encode(data[:960], base)
    assert multibase.decode(text[0] + text[1:] * 1024) == data


@pytest.mark.parametrize("base", ["base36", "base58btc"])
@pytest.mark.parametrize("size", [255, 256, 257, 600, 2048])
def test_long_numbers(base: str, size: int) -> None:
    data = b"\0\0" + bytes(range(1, 256)) * 9
    text = oracle.encode(data[:size], base)
    assert multibase.decode(text, multibase.MAX_NUMBER) == data[:size]


@given(st.integers(0, 2**200), st.integers(0, 2**200))
def test_products(one: int, other: int) -> None:
    short, multibase._SHORT_PRODUCT = multibase._SHORT_PRODUCT, 10
    try:
        assert multibase._product(one, other) == one * other
    finally:
        multibase._SHORT_PRODUCT = short


def test_an_error_shows_only_the_start_of_a_long_text() -> None:
    with pytest.raises(MultibaseError) as caught:
        multibase.decode("m" + "!" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("text", "reason"),
    VECTORS["errors"],
)
def test_an_error_says_what_is_wrong_in_words(text: str, reason: str) -> None:
    """The library's own messages show its objects: "for alphabet StringAlphabet('0123..."."""
    with pytest.raises(MultibaseError) as caught:
        multibase.decode(text)
    assert str(caught.value) == f"{text!r} is not valid multibase: {reason}"


@pytest.mark.parametrize(
    "text", ["", "mYWJ", "mYWJj\n", "mYW Jj", "mYWI=", "mé", "uab+/", "bMFRG=="]
)
def test_other_texts_for_the_same_bytes_are_refused(text: str) -> None:
    with pytest.raises(MultibaseError):
        multibase.decode(text)
