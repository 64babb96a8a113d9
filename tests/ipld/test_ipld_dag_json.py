"""DAG-JSON as others write it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ipld import CID, RAW, dag_cbor, dag_json

A = CID.of(RAW, b"a")


# The texts of https://github.com/ipld/codec-fixtures (float-*), and of @ipld/dag-json 10 and kubo
# 0.43.1 for those with an exponent; whole floats keep ".0", as ceramic-one writes them.
@pytest.mark.parametrize(
    ("number", "text"),
    vectors.load("ipld/dag_json_floats"),
)
def test_floats(number: float, text: str) -> None:
    assert dag_json.encode([number]).decode() == f"[{text}]"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES)
def test_json_reads_what_is_written_and_types_are_kept(value: Any) -> None:
    text = dag_json.encode(value).decode()
    assert repr(_sorted(json.loads(text))) == repr(_sorted(value))


@given(st.recursive(VALUES | st.binary() | st.just(A), st.lists))
def test_plain_json_is_what_the_text_reads_as(value: Any) -> None:
    assert dag_json.as_json(value) == json.loads(dag_json.encode(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return list(map(_sorted, value)) if isinstance(value, list) else value


def test_links_and_bytes_and_sorted_keys() -> None:
    value = {"é": A, "b": b"\xff\xfe", "a": {"z": [], "y": {}}, "aa": '"\n'}
    assert dag_json.encode(value).decode() == (
        f'{{"a":{{"y":{{}},"z":[]}},"aa":"\\"\\n","b":{{"/":{{"bytes":"//4"}}}},"é":{{"/":"{A}"}}}}'
    )


def test_the_deepest_block_is_written() -> None:
    value: Any = 1
    for _ in range(dag_cbor.MAX_DEPTH):
        value = [value]
    assert dag_json.encode(value) == b"[" * dag_cbor.MAX_DEPTH + b"1" + b"]" * dag_cbor.MAX_DEPTH
