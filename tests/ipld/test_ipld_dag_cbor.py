"""DAG-CBOR: the fast codec agrees with the `dag-cbor` package, and is as strict as the spec."""

from typing import Any

import dag_cbor as oracle
import multiformats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ipld import CID, DAG_CBOR, RAW, DagCborError, dag_cbor

LINK = CID.of(DAG_CBOR, b"a block")
VERDICTS = vectors.load("ipld/dag_cbor_verdicts")

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=30)
    | st.binary(max_size=30)
    | st.builds(CID.of, st.sampled_from([DAG_CBOR, RAW, 0x85]), st.binary(max_size=5))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=30), inner),
    max_leaves=20,
)


def for_oracle(value: Any) -> Any:
    if isinstance(value, CID):
        return multiformats.CID.decode(bytes(value))
    if isinstance(value, list):
        return [for_oracle(item) for item in value]
    if isinstance(value, dict):
        return {key: for_oracle(item) for key, item in value.items()}
    return value


def typed(value: Any) -> Any:
    """`value` with its types, for 1 == 1.0 == True, and bytes == CID."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    if isinstance(value, dict):
        return [(key, typed(item)) for key, item in value.items()]
    return (type(value), repr(value))


@given(values)
def test_written_as_the_oracle_writes_and_read_back(value: Any) -> None:
    data = dag_cbor.encode(value)
    assert data == oracle.encode(for_oracle(value))
    again = dag_cbor.decode(data)
    assert again == value
    assert dag_cbor.encode(again) == data


@given(st.binary(max_size=40))
def test_random_bytes_are_read_as_the_oracle_reads_them_or_refused(data: bytes) -> None:
    check_against_oracle(data)


@given(st.data())
def test_damaged_blocks_are_read_as_the_oracle_reads_them_or_refused(draw: st.DataObject) -> None:
    data = bytearray(dag_cbor.encode(draw.draw(values)))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    check_against_oracle(bytes(data))


def check_against_oracle(data: bytes) -> None:
    """Whatever is read writes back to the same bytes, and the oracle reads the same.

    Damaged links are another test's: the oracle refuses codecs and hashes that it has no name
    for. Undamaged ones are compared in `test_written_as_the_oracle_writes_and_read_back`.
    """
    try:
        value = dag_cbor.decode(data)
    except DagCborError:
        with pytest.raises(Exception):  # noqa: B017, PT011 - its errors have no common base
            oracle.decode(data)
        return
    assert dag_cbor.encode(value) == data
    if has_link(value):
        return
    assert typed(value) == typed(oracle.decode(data))


def has_link(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, CID) or (isinstance(value, list) and any(map(has_link, value)))


def test_the_verdict_is_that_of_ceramic_ones_crates() -> None:
    """Blocks of the public suites, and generated ones; the file says where they come from."""
    for name, block, accepted in VERDICTS["blocks"]:
        data = bytes.fromhex(block)
        try:
            value = dag_cbor.decode(data)
        except DagCborError:
            assert not accepted, name
        else:
            assert accepted, name
            assert dag_cbor.encode(value) == data, name


# What the suites and the generated blocks do not have.
@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("nothing", ""),
        ("keys out of order by length", "a262616101616201"),
        ("a key that is bytes", "a1416101"),
        ("a boolean in two bytes", "f815"),
        ("tag 42 on a string", "d82a6161"),
        ("tag 42 with junk after the CID", "d82a46000155000000"),
        ("tag 42 with a digest cut short", "d82a58240001711220" + "00" * 31),
        ("a break", "ff"),
        ("a string with a surrogate", "63eda080"),
        ("bytes cut short", "4401"),
        ("a list cut short", "8201"),
        ("a list of 2^64 - 1", "9bffffffffffffffff"),
        ("a map of 2^64 - 1", "bbffffffffffffffff"),
        ("a string of 2^64 - 1", "7bffffffffffffffff"),
        ("reserved length", "1c"),
    ],
)
def test_refusals(what: str, data: str) -> None:
    with pytest.raises(DagCborError, match="not strict DAG-CBOR"):
        dag_cbor.decode(bytes.fromhex(data))


def test_a_refusal_says_what_and_where() -> None:
    with pytest.raises(DagCborError, match=r"Integer 1 was encoded using 1 bytes.*at byte 2\)"):
        dag_cbor.decode(bytes.fromhex("82001801"))
    with pytest.raises(DagCborError, match=r"a link in it is broken: .*version is 2"):
        dag_cbor.decode(bytes.fromhex("81d82a450002550000"))
    big = b"\x82" + dag_cbor.encode(bytes(100_000)) + b"\x18\x01"
    with pytest.raises(DagCborError, match="minimally"):
        dag_cbor.decode(big)


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x61a"])
def test_deep_nesting_is_refused_and_kills_nothing(opening: bytes) -> None:
    limit = dag_cbor.MAX_DEPTH
    deepest = dag_cbor.decode(opening * limit + b"\x00")
    assert dag_cbor.encode(deepest) == opening * limit + b"\x00"
    for depth in (limit + 1, 100_000):
        with pytest.raises(DagCborError, match="nested deeper"):
            dag_cbor.decode(opening * depth + b"\x00")


def test_wide_is_not_deep() -> None:
    value = [[index] for index in range(5_000)]
    assert dag_cbor.decode(dag_cbor.encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        *(float("nan"), float("inf"), 2**64, -(2**64) - 1, "\ud800", (1, 2), {1, 2}),
        *({1: "x"}, {b"k": "x"}, {"a": object()}, bytearray(b"x")),
    ],
)
def test_values_that_have_no_place_in_it(value: Any) -> None:
    with pytest.raises(DagCborError, match="cannot be written"):
        dag_cbor.encode(value)


def test_a_link_is_a_cid_and_bytes_that_look_like_one_are_bytes() -> None:
    link, raw = dag_cbor.decode(dag_cbor.encode([LINK, bytes(LINK)]))
    assert (type(link), link) == (CID, LINK)
    assert (type(raw), raw) == (bytes, bytes(LINK))
