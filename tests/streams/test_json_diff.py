"""Differences of JSON values, against the project's own JSON Patch and the package jsonpatch."""

import json
from typing import Any

import jsonpatch
from hypothesis import given
from hypothesis import strategies as st
from test_json_patch import DOCUMENTS, patched, same

from recon_node.ipld import CID
from recon_node.streams import json_diff, json_equal
from recon_node.streams.json_values import Budget

ARRAYS = st.lists(st.integers(0, 3), max_size=8)


@given(DOCUMENTS, DOCUMENTS)
def test_the_patch_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    patch = json_diff(before, after, Budget.of_merge())
    assert same(patched(before, patch), after)
    assert same(jsonpatch.apply_patch(json.loads(json.dumps(before)), patch), after)
    assert (patch == []) is same(before, after)


@given(ARRAYS, ARRAYS)
def test_arrays(before: list[int], after: list[int]) -> None:
    assert patched(before, json_diff(before, after, Budget.of_merge())) == after


@given(ARRAYS, st.integers(0, 8), st.integers(4, 6))
def test_an_item_that_comes_or_goes_is_one_operation(items, index, item):
    more = [*items[:index], item, *items[index:]]
    assert [operation["op"] for operation in json_diff(items, more, Budget.of_merge())] == ["add"]
    assert [operation["op"] for operation in json_diff(more, items, Budget.of_merge())] == [
        "remove"
    ]


def test_only_what_changed_is_in_the_patch() -> None:
    before = {"a": {"b/c": 1, "d~": [1, {"e": 2}]}, "f": "same", "g": True}
    after = {"a": {"b/c": 1, "d~": [1, {"e": 3}]}, "f": "same", "h": None}
    assert json_diff(before, after, Budget.of_merge()) == [
        {"op": "remove", "path": "/g"},
        {"op": "replace", "path": "/a/d~0/1/e", "value": 3},
        {"op": "add", "path": "/h", "value": None},
    ]


def test_equality_is_that_of_json() -> None:
    link = CID.parse("bafyreihaskmlkagl5wmhocs5lhu2cbbdmym5wknaiwywnvnokkswppcmiy")
    assert json_equal({"a": [1, 2.0]}, {"a": [1.0, 2]})
    for one, other in [(1, True), (0, False), (link, bytes(link)), (None, 0), ([], {}), ("1", 1)]:
        assert not json_equal(one, other)
        assert json_diff({"x": one}, {"x": other}, Budget.of_merge())[0]["op"] == "replace"
