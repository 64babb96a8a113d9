"""JSON Patch against the package jsonpatch as oracle, what neither may do to a node, and the
differences of JSON values."""

import contextlib
import copy
import json
import sys
from types import FrameType
from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.ipld import CID
from recon_node.streams import json_diff, json_equal, json_patch
from recon_node.streams.json_patch import apply_patch, parse_pointer
from recon_node.streams.json_values import (
    MAX_DEPTH,
    MAX_WEIGHT,
    Budget,
    BudgetError,
    JsonPatchError,
    weigh_json,
)

KEYS = st.sampled_from(["a", "b", "0", "1", "-", "~", "a/b", ""])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.text("ab", max_size=2))
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
POINTERS = st.lists(st.one_of(KEYS, st.sampled_from(["2", "01"])), max_size=3).map(
    lambda tokens: "".join("/" + t.replace("~", "~0").replace("/", "~1") for t in tokens)
)
OPERATIONS = st.one_of(
    st.fixed_dictionaries(
        {"op": st.sampled_from(["add", "replace", "test"]), "path": POINTERS, "value": DOCUMENTS}
    ),
    st.fixed_dictionaries({"op": st.just("remove"), "path": POINTERS}),
    st.fixed_dictionaries(
        {"op": st.sampled_from(["move", "copy"]), "path": POINTERS, "from": POINTERS}
    ),
)


def patched(document: Any, patch: Any) -> Any:
    result, weight, touched = apply_patch(document, patch, weigh_json(document), budget())
    assert weigh_json(result) == weight
    if touched is not None and isinstance(document, dict):
        untouched = (document.keys() | result.keys()) - touched
        assert all(document[name] is result[name] for name in untouched)
    return result


def budget() -> Budget:
    return Budget("the patch", 50_000_000)


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def oracle(document: Any, operation: dict[str, Any]) -> Any:
    """What jsonpatch makes of it; `JsonPatchError` where it refuses, in whichever way it does."""
    try:
        return jsonpatch.apply_patch(document, [operation])
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError) as error:
        raise JsonPatchError(str(error)) from None


def is_odd(document: Any, operation: dict[str, Any]) -> bool:
    """Where jsonpatch is known to differ from RFC 6902: strings count as arrays for it, `true` as
    1, `-` as an index that exists, and the root can be neither removed nor moved."""
    paths = [operation["path"], operation.get("from", "/")]
    return operation["op"] == "test" or "" in paths or any("-" in path for path in paths)


@given(DOCUMENTS, OPERATIONS)
def test_an_operation_does_what_it_does_for_jsonpatch(document, operation):
    if is_odd(document, operation):
        return
    before = copy.deepcopy(document)
    try:
        expected = oracle(document, operation)
    except JsonPatchError:
        with pytest.raises(JsonPatchError):
            patched(document, [operation])
    else:
        if not touches_text(document, operation):
            assert same(patched(document, [operation]), expected)
    assert same(document, before)


def touches_text(document: Any, operation: dict[str, Any]) -> bool:
    """Whether a pointer goes into a string, whose characters jsonpatch takes for members."""
    for path in (operation["path"], operation.get("from", "")):
        value = document
        for token in parse_pointer(path):
            if isinstance(value, str):
                return True
            try:
                value = value[int(token) if isinstance(value, list) else token]
            except (LookupError, ValueError, TypeError):
                break
    return False


@given(DOCUMENTS, st.lists(OPERATIONS, max_size=8))
def test_whatever_a_patch_does_the_document_before_stays(document: Any, patch: list[Any]) -> None:
    """Run twice from the same shared document, with a copy of all of it between: no aliasing."""
    before = copy.deepcopy(document)
    steps = document
    for operation in patch:
        try:
            steps = patched(copy.deepcopy(steps), [operation])
        except JsonPatchError:
            with pytest.raises(JsonPatchError):
                patched(document, patch)
            break
    else:
        assert same(patched(document, patch), steps)
    assert same(document, before)


PATCHES = vectors.load("json_patches")
VALUES = LEAVES | DOCUMENTS | st.sampled_from([0.5, 2**64, -(2**64), b"a", "x" * 100])
SIMPLE = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "replace"]), "path": KEYS.map("/{}".format), "value": VALUES}
)


@given(
    document=st.dictionaries(KEYS, VALUES, max_size=10),
    patch=st.lists(SIMPLE, max_size=3) | st.lists(SIMPLE | OPERATIONS, max_size=3),
    weight=st.sampled_from([1_000, MAX_WEIGHT - 20]),
    steps=st.sampled_from([10**6]) | st.integers(0, 4_000),
)
def test_simple_patches_are_applied_and_paid_for_as_all_others(document, patch, weight, steps):
    def outcome() -> tuple[Any, ...]:
        work = Budget("the patch", steps)
        try:
            after = apply_patch(document, patch, weight, work)
        except (JsonPatchError, BudgetError) as error:
            return str(error), work.left
        order = list(after.document) if isinstance(after.document, dict) else None
        return repr(after.document), order, after.weight, after.touched, work.left

    quickly = outcome()
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(json_patch, "set_leaves", lambda *_: None)
        assert quickly == outcome()


@pytest.mark.parametrize(("document", "patch", "expected"), PATCHES["standards"])
def test_examples_of_the_standards(document: Any, patch: Any, expected: Any) -> None:
    """RFC 6902, Appendix A, and RFC 6901, section 5."""
    assert patched(document, patch) == expected


@pytest.mark.parametrize(("patch", "words"), PATCHES["invalid"])
def test_invalid_patches_are_refused(patch: Any, words: str) -> None:
    document = {"l": [1, 2], "s": "text", "o": {}, "t": True}
    with pytest.raises(JsonPatchError, match=words):
        patched(document, patch)


BOMBS: dict[str, list[dict[str, Any]]] = {
    "doubling": [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(10_000)],
    "deepening": [{"op": "copy", "from": "/a", "path": "/a" * n} for n in range(2, 200)],
    "one level an operation": [
        {"op": "add", "path": "/a" * n, "value": {}} for n in range(2, MAX_DEPTH + 2)
    ],
    "copying a large value": [
        {"op": "add", "path": "/x", "value": "x" * 900_000},
        *({"op": "copy", "from": "/x", "path": f"/{n}"} for n in range(10_000)),
    ],
    "copying arrays again and again": [
        {"op": "add", "path": "/l", "value": [0] * 100_000},
        *(
            operation
            for n in range(10_000)
            for operation in (
                {"op": "copy", "from": "/l", "path": "/b"},
                {"op": "replace", "path": f"/l/{n}", "value": 1},
            )
        ),
    ],
    "comparing again and again": [
        {"op": "add", "path": "/l", "value": [0] * 100_000},
        *({"op": "test", "path": "/l", "value": [0] * 100_000} for _ in range(100)),
    ],
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(name: str) -> None:
    with pytest.raises((JsonPatchError, BudgetError), match=r"work|deeper|larger"):
        patched({"a": {"a": 1}}, BOMBS[name])


@pytest.mark.parametrize("operation", ["add", "remove"])
def test_members_that_an_operation_shifts_count(operation: str) -> None:
    """An event has room for 40,000 operations, and an array for a million members: seven seconds
    of shifting, in which no line of Python runs."""
    at_the_front = {"op": operation, "path": "/l/0", "value": 0}
    patched({"l": [0] * 900}, [at_the_front] * 800)
    with pytest.raises(BudgetError, match="the patch takes more than 50,000,000 steps of work"):
        patched({"l": [0] * 900_000}, [at_the_front] * 1000)


NESTED: Any = 0
for _ in range(60):
    NESTED = {"a": [NESTED]}

WIDE = {str(n): n for n in range(9999)}


def moving(start: str, end: str) -> dict[str, Any]:
    return {"op": "move", "from": start, "path": end}


COSTLY: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "small operations": ({}, [{"op": "add", "path": "/a", "value": 0}] * 500),
    "refused at the end": ({}, [{"op": "add", "path": "/a", "value": 0}] * 500 + [{}]),
    "long paths": (NESTED, [{"op": "replace", "path": "/a/0" * 59, "value": 0}] * 3),
    "long paths looked up": (NESTED, [{"op": "test", "path": "/a/0" * 60, "value": 0}] * 50),
    "moves": ({"b": {"c": 1}}, [moving("/b", "/a"), moving("/a", "/b")] * 200),
    "a large value": ({"a": 0}, [{"op": "replace", "path": "/a", "value": [["", 0]] * 2000}]),
    "a deep value": ({"a": 0}, [{"op": "replace", "path": "/a", "value": [NESTED] * 50}]),
    "large values compared": (
        {"a": [0, ""] * 999},
        [{"op": "test", "path": "/a", "value": [0, ""] * 999}],
    ),
    "deep values compared": (
        {"a": [NESTED] * 9},
        [{"op": "test", "path": "/a", "value": [NESTED] * 9}],
    ),
    "objects compared": (
        {"a": WIDE},
        [{"op": "test", "path": "/a", "value": dict(reversed(WIDE.items()))}],
    ),
    "copies": ({"a": [0] * 99}, [{"op": "copy", "path": "/b", "from": "/a"}] * 300),
    "copies that are changed": (
        {"a": {"b": [[0] * 9] * 99}},
        [
            {"op": "copy", "path": "/c", "from": "/a"},
            {"op": "replace", "path": "/a/b/0/0", "value": 1},
        ]
        * 30,
    ),
    "a wide object": (WIDE, [{"op": "replace", "path": "/7", "value": 0}]),
}


LINES_PER_STEP = 4
"""A line takes about 30 ns, a step of a patch 25 steps of its budget."""


@pytest.mark.parametrize("name", COSTLY)
def test_all_work_is_counted(name: str) -> None:
    """The bound is one of time, and the steps must follow it: no more lines of Python run."""
    document, patch = COSTLY[name]
    work = Budget("the patch", 10**10)
    run = json_patch._Run(document, weigh_json(document), work)
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.endswith(("json_patch.py", "json_values.py")):
            return None
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        for operation in patch:
            run.apply(operation)
    except JsonPatchError:
        assert name == "refused at the end"
    finally:
        sys.settrace(before)
    assert lines > 10
    assert lines <= LINES_PER_STEP * work.spent / 25 + 100


def test_many_copies_of_a_template_are_allowed() -> None:
    """Each is as cheap as a link: the object that they go into is not made anew for each."""
    document = {"template": {"a": [0] * 50}}
    patch = [{"op": "copy", "from": "/template", "path": f"/{n}"} for n in range(5000)]
    assert len(patched(document, patch)) == 5001


@given(DOCUMENTS, st.lists(OPERATIONS, max_size=8))
def test_the_weight_is_exact_whatever_is_shared(document: Any, patch: list[Any]) -> None:
    copies = [{"op": "copy", "from": "", "path": "/x"}, {"op": "copy", "from": "/x", "path": "/y"}]
    steps: Any = {"x": document}
    for operation in [*copies, *patch, *copies]:
        with contextlib.suppress(JsonPatchError):
            steps = patched(steps, [operation])
    with contextlib.suppress(JsonPatchError):
        patched({"x": document}, [*copies, *patch, *copies])


def test_a_document_grows_up_to_its_bound_and_no_further() -> None:
    document: Any = {}
    weight = weigh_json(document)
    refused = False
    for number in range(30):
        patch = [{"op": "add", "path": f"/{number}", "value": "x" * 900_000}]
        try:
            document, weight, _ = apply_patch(document, patch, weight, budget())
        except JsonPatchError:
            refused = True
    assert refused
    assert 15_000_000 < weigh_json(document) <= MAX_WEIGHT
    document, weight, _ = apply_patch(document, [{"op": "remove", "path": "/0"}], weight, budget())
    apply_patch(document, [{"op": "add", "path": "/n", "value": "x" * 900_000}], weight, budget())


ARRAYS = st.lists(st.integers(0, 3), max_size=8)


@given(DOCUMENTS, DOCUMENTS)
def test_the_patch_leads_from_one_to_the_other(before: Any, after: Any) -> None:
    patch = json_diff(before, after, Budget.of_merge())
    assert same(patched(before, patch), after)
    assert same(jsonpatch.apply_patch(json.loads(json.dumps(before)), patch), after)
    assert (patch == []) is same(before, after)


@given(ARRAYS, st.integers(0, 8), st.integers(4, 6))
def test_an_item_that_comes_or_goes_is_one_operation(items, index, item):
    more = [*items[:index], item, *items[index:]]
    assert [operation["op"] for operation in json_diff(items, more, Budget.of_merge())] == ["add"]
    assert [operation["op"] for operation in json_diff(more, items, Budget.of_merge())] == [
        "remove"
    ]


@pytest.mark.parametrize("item", [1, 1.0, "1", None])
def test_items_that_are_compared_are_paid_for(item: Any) -> None:
    before, after = [1] * 10_000, [item] * 10_000 + [0]
    with pytest.raises(BudgetError):
        json_diff(before, after, Budget("a test", 500_000))


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
