"""JSON Patch against the package jsonpatch as oracle, and what neither may do to a node."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import jsonpatch
import jsonpointer
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import CID
from recon_node.streams import json_patch
from recon_node.streams.budget import Budget, BudgetError
from recon_node.streams.json_patch import (
    MAX_DEPTH,
    MAX_WEIGHT,
    JsonPatchError,
    apply_patch,
    parse_pointer,
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
    result, weight, touched = apply_patch(document, patch, weigh_json(document)[0], budget())
    assert weigh_json(result)[0] == weight
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
def test_an_operation_does_what_it_does_for_jsonpatch(
    document: Any, operation: dict[str, Any]
) -> None:
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


@given(DOCUMENTS, DOCUMENTS)
def test_the_difference_of_two_documents_leads_from_one_to_the_other(one: Any, other: Any) -> None:
    one, other = {"x": one}, {"x": other}
    patch = jsonpatch.make_patch(one, other).patch
    assert patched(one, patch) == other


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


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [  # RFC 6902, Appendix A, and RFC 6901, section 5
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": 1}], {"baz": 1, "foo": "bar"}),
        ({"foo": [1, 3]}, [{"op": "add", "path": "/foo/1", "value": 2}], {"foo": [1, 2, 3]}),
        ({"foo": [1]}, [{"op": "add", "path": "/foo/-", "value": [2]}], {"foo": [1, [2]]}),
        ({"a": [1, 2]}, [{"op": "move", "from": "/a/0", "path": "/a/1"}], {"a": [2, 1]}),
        ({"a": 1}, [{"op": "add", "path": "", "value": [1]}], [1]),
        ({"a": 1}, [{"op": "copy", "from": "", "path": "/b"}], {"a": 1, "b": {"a": 1}}),
        ({"/": 9, "~1": 1}, [{"op": "test", "path": "/~01", "value": 1}], {"/": 9, "~1": 1}),
        ({"": 1}, [{"op": "remove", "path": "/"}], {}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}], {"a": 1}),
        ({"a": 1}, [{"op": "add", "path": "/b", "value": 1, "xyz": 0}], {"a": 1, "b": 1}),
    ],
)
def test_examples_of_the_standards(document: Any, patch: Any, expected: Any) -> None:
    assert patched(document, patch) == expected


def test_what_is_copied_and_then_changed_changes_in_one_place() -> None:
    patch = [
        {"op": "add", "path": "/b", "value": {"c": []}},
        {"op": "add", "path": "/b/c/-", "value": 1},
        {"op": "copy", "from": "/b", "path": "/d"},
        {"op": "add", "path": "/b/c/-", "value": 2},
    ]
    assert patched({}, patch) == {"b": {"c": [1, 2]}, "d": {"c": [1]}}


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"op": "add"}, "not an array of operations"),
        (None, "not an array"),
        (["add"], "operation 0 of the patch: an object was expected"),
        ([{}], "not an operation of JSON Patch"),
        ([{"op": ["add"], "path": "/x"}], "not an operation"),
        ([{"op": "add", "path": "/x"}], "'add' needs 'value'"),
        ([{"op": "add", "path": 3, "value": 0}], "not a JSON Pointer"),
        ([{"op": "add", "path": "x", "value": 0}], "not a JSON Pointer"),
        ([{"op": "add", "path": "/~2", "value": 0}], "'~0' or '~1'"),
        ([{"op": "add", "path": "/l/3", "value": 0}], "not an index"),
        ([{"op": "add", "path": "/l/+1", "value": 0}], "not an index"),
        ([{"op": "add", "path": "/l/٣", "value": 0}], "not an index"),
        ([{"op": "add", "path": "/l/00", "value": 0}], "not an index"),
        ([{"op": "remove", "path": "/l/-"}], "not an index"),
        ([{"op": "remove", "path": "/none"}], "there is no member 'none'"),
        ([{"op": "replace", "path": "/s/0", "value": 0}], "has no members"),
        ([{"op": "add", "path": "/s/0/1", "value": 0}], "has no member"),
        ([{"op": "move", "from": "/o", "path": "/o/p"}], "into itself"),
        ([{"op": "test", "path": "/t", "value": 1}], "failed"),
        ([{"op": "test", "path": "/l", "value": [1]}], "failed"),
    ],
)
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


def at_the_front(count: int) -> list[dict[str, Any]]:
    return [{"op": "add", "path": "/l/0", "value": 0} for _ in range(count)]


def taken_from_the_front(count: int) -> list[dict[str, Any]]:
    return [{"op": "remove", "path": "/l/0"} for _ in range(count)]


@pytest.mark.parametrize("make", [at_the_front, taken_from_the_front])
def test_members_that_an_operation_shifts_count(make: Callable[[int], Any]) -> None:
    """An event has room for 40,000 operations, and an array for a million members: seven seconds
    of shifting, in which no line of Python runs."""
    long, short = {"l": [0] * 900_000}, {"l": [0] * 900}
    patched(short, make(800))
    with pytest.raises(BudgetError, match="the patch takes more than 50,000,000 steps of work"):
        patched(long, make(1000))


NESTED: Any = 0
for _ in range(60):
    NESTED = {"a": [NESTED]}

COSTLY: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "small operations": ({}, [{"op": "add", "path": "/a", "value": 0}] * 500),
    "refused at the end": ({}, [{"op": "add", "path": "/a", "value": 0}] * 500 + [{}]),
    "long paths": (NESTED, [{"op": "replace", "path": "/a/0" * 59, "value": 0}] * 3),
    "long paths looked up": (NESTED, [{"op": "test", "path": "/a/0" * 60, "value": 0}] * 50),
    "moves": (
        {"b": {"c": 1}},
        [
            {"op": "move", "path": "/a", "from": "/b"},
            {"op": "move", "path": "/b", "from": "/a"},
        ]
        * 200,
    ),
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
        {"a": {str(n): n for n in range(999)}},
        [{"op": "test", "path": "/a", "value": {str(n): n for n in reversed(range(999))}}],
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
    "a wide object": (
        {str(n): n for n in range(9999)},
        [{"op": "replace", "path": "/7", "value": 0}],
    ),
}


LINES_A_STEP = 4
"""A line takes about 30 ns, a step of a patch 25 steps of its budget."""


@pytest.mark.parametrize("name", COSTLY)
def test_all_work_is_counted(name: str) -> None:
    """The bound is one of time, and the steps must follow it: no more lines of Python run."""
    document, patch = COSTLY[name]
    work = Budget("the patch", 10**10)
    run = json_patch._Run(document, weigh_json(document)[0], work)
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
    assert lines <= LINES_A_STEP * work.spent / 25 + 100


@pytest.mark.parametrize("name", COSTLY)
def test_work_is_linear_in_the_patch(name: str) -> None:
    document, patch = COSTLY[name]

    def work(operations: list[dict[str, Any]]) -> int:
        spent = Budget("the patch", 10**10)
        run = json_patch._Run(document, weigh_json(document)[0], spent)
        for operation in operations:
            run.apply(operation)
        return spent.spent

    once = [operation for operation in patch if operation]
    assert work(once * 4) <= 2.5 * work(once * 2)


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


@pytest.mark.parametrize(
    ("one", "other"), [(True, 1), (0, False), (b"\x01\x55\x00\x00", CID(b"\x01\x55\x00\x00"))]
)
def test_values_of_two_kinds_are_not_equal(one: Any, other: Any) -> None:
    for document, value in ([one], [other]), ([{"a": other}], [{"a": one}]):
        with pytest.raises(JsonPatchError, match="test of '' failed"):
            patched(document, [{"op": "test", "path": "", "value": value}])
    patched([{"a": 1, "b": [2.0]}], [{"op": "test", "path": "", "value": [{"b": [2], "a": 1.0}]}])


def test_a_document_grows_up_to_its_bound_and_no_further() -> None:
    document: Any = {}
    weight, _ = weigh_json(document)
    refused = False
    for number in range(30):
        patch = [{"op": "add", "path": f"/{number}", "value": "x" * 900_000}]
        try:
            document, weight, _ = apply_patch(document, patch, weight, budget())
        except JsonPatchError:
            refused = True
    assert refused
    assert 15_000_000 < weigh_json(document)[0] <= MAX_WEIGHT
    document, weight, _ = apply_patch(document, [{"op": "remove", "path": "/0"}], weight, budget())
    apply_patch(document, [{"op": "add", "path": "/n", "value": "x" * 900_000}], weight, budget())
