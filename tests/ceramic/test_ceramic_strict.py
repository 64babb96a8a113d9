"""JSON from strangers: what it says depends on its text alone."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ceramic.auth.envelope import MAX_BRACKETS, json_value

VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text("[{a\\"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(VALUES)
def test_harmless_json_is_read_as_by_everyone(value: Any) -> None:
    text = json.dumps(value).encode()
    if text.count(b"[") + text.count(b"{") <= MAX_BRACKETS:
        assert json_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"NaN",
        b"-Infinity",
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b"[1]x",
        b"[" * (MAX_BRACKETS + 1) + b"]" * (MAX_BRACKETS + 1),
    ],
)
def test_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_value(text)


def test_the_call_stack_does_not_matter() -> None:
    deepest = b"[" * MAX_BRACKETS + b"]" * MAX_BRACKETS
    for frames in (0, 400, 800):
        assert deeper(frames, lambda: json_value(deepest)) is not None


def test_numbers_of_any_length_are_read() -> None:
    assert json_value(b"9" * 10_000) == float("inf")
    assert json_value(b"[12]") == [12.0]


def deeper(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else deeper(frames - 1, call)
