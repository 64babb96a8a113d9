"""Documents are held to the JSON Schema of their model, at a price that is known beforehand."""

import subprocess
import sys
import tracemalloc
from contextlib import suppress
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_samples import PUBLIC_MODELS, documents
from support import vectors

from recon_node.ipld import CID, DAG_CBOR
from recon_node.streams import document_schema, why_unusable
from recon_node.streams.document_schema import DocumentSchema, compiled
from recon_node.streams.json_values import (
    MAX_DEPTH,
    Budget,
    BudgetError,
    json_equal,
    weigh_json,
)
from recon_node.streams.schema_normal_form import SchemaError

CODE = CID.of(DAG_CBOR, b"code")


def error(schema: Any, content: Any) -> str | None:
    return compiled(schema).error(content, weigh_json(content), Budget("the event", 10**8))


def properties(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "additionalProperties": False}


VECTORS = vectors.load("document_schemas")
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"


def _chain(length: int, times: int) -> dict[str, Any]:
    parts = {f"p{n}": {"allOf": [{"$ref": f"#/$defs/p{n + 1}"}] * times} for n in range(length)}
    defs = {f"p{length}": {"type": "string"}, **dict(reversed(parts.items()))}
    return {"$defs": defs, "$ref": "#/$defs/p0"}


def _moved(keyword: str) -> dict[str, Any]:
    """If the keyword is the identifier of a part, its `$ref` means the long chain within it."""
    parts = {f"p{n}": {} for n in range(61)}
    part = {keyword: "http://example.com/", **_chain(60, 2)}
    return {"properties": {"a": part}, "$defs": parts}


@pytest.mark.parametrize(
    ("schema", "content", "expected"),
    [
        *VECTORS["documents"],
        ({"$schema": DRAFT_7, **_moved("$id")}, {"a": 1}, None),
        ({"$schema": DRAFT_4, **_moved("id")}, {"a": 1}, None),
        ({"pattern": "^a(?!b)"}, "a" * 1000, None),
        ({"pattern": "^a(?!b)"}, "a" * 1001, "longer than 1000"),
        ({"pattern": "(?=(a+)+$)(a+)+b"}, "a" * 1000, "Max limit for backtracking"),
        (properties(b={"type": "object"}), {"b": b"bytes"}, None),
        (properties(b={"type": "string"}), {"b": b"bytes"}, "not of type"),
        (properties(l={"required": ["/"]}), {"l": CODE}, None),
    ],
)
def test_what_conforms_and_what_does_not(schema: Any, content: Any, expected: str | None) -> None:
    reason = error(schema, content)
    assert reason is None if expected is None else expected in str(reason)


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        *VECTORS["unusable"],
        (
            {"items": {"$ref": "#"}, "patternProperties": {f"a{{9000}}{n}": {} for n in range(20)}},
            "its patterns take too much memory",
        ),
        (_moved("$id"), "deeper than 100 levels"),
        (_moved("id"), "'id' in it is not supported"),
        ({"$schema": DRAFT_4, **_moved("$id")}, "'$id' in it is not supported"),
        ({"$schema": DRAFT_7, **_moved("id")}, "'id' in it is not supported"),
        ({"$schema": f"{DRAFT_2020}#draft-04", **_moved("$id")}, "is not a draft of JSON Schema"),
        ({"$schema": f"{DRAFT_4}?2020-12", **_moved("$id")}, "is not a draft of JSON Schema"),
        (_chain(30, 2), "100000 parts"),
        (_chain(200, 1), "deeper than 100 levels"),
        (_nested(110), "deeper than 100 levels"),
        ({"title": "x" * 100_000}, "longer than 100000 bytes"),
    ],
)
def test_schemas_that_no_document_can_be_checked_by(schema: Any, expected: str) -> None:
    for _ in range(2):  # the second time it is remembered
        with pytest.raises(SchemaError, match=expected.replace("$", r"\$")):
            compiled(schema)


@pytest.mark.parametrize(
    ("schema", "content"),
    [
        (_chain(12, 2), ["x"] * 20_000),
        ({"items": {"anyOf": [{"type": "number"}] * 1000}}, ["x"] * 100_000),
        ({"pattern": "^(.?){400}a{400}$"}, "a" * 100_000),
        ({"patternProperties": {"a{1000}": {}}}, {"a" * 100_000: 1}),
        ({"uniqueItems": True}, [[n] for n in range(200_000)]),
        ({"items": {"unevaluatedProperties": False, "allOf": [{}] * 1000}}, [{}] * 50_000),
    ],
)
def test_what_would_take_long_is_not_begun(schema, content, monkeypatch):
    schema = compiled(schema)
    monkeypatch.setattr(type(schema), "_error", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(BudgetError, match="the event takes more than 100,000,000 steps"):
        schema.error(content, weigh_json(content), Budget("the event", 10**8))


SCALARS = st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, -0.0, 2**53, 2.0**53, 2**63, 1.5])
ITEMS = st.recursive(
    SCALARS | st.sampled_from(["", "1", "1.0", "true"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)


@given(st.lists(ITEMS, max_size=6))
def test_unique_items_are_those_that_differ_as_json(items: list[Any]) -> None:
    pairs = combinations(items, 2)
    reason = error({"uniqueItems": True}, items)
    assert (reason is None) == (not any(json_equal(one, other) for one, other in pairs))
    assert reason is None or "the value has non-unique elements" in reason


@pytest.mark.parametrize(
    ("divisor", "number", "is_multiple"),
    # By ajv 8.17; by jsonschema 0.28.3, ceramic-one's, too, but for those that have a note.
    [row[:3] for row in VECTORS["multiples"]],
)
def test_multiples_are_those_of_doubles(divisor: float, number: float, is_multiple: bool) -> None:
    reason = error({"items": {"multipleOf": divisor}}, [number])
    assert (reason is None) == is_multiple
    assert is_multiple or "is not a multiple of" in str(reason)
    assert error({"multipleOf": divisor}, ["text", True, None, {}]) is None


@pytest.mark.parametrize("draft", [DRAFT_4, DRAFT_7, DRAFT_2019, DRAFT_2020])
def test_large_documents_are_checked_by_every_draft(draft: str) -> None:
    """In draft-04, `true` is not a schema: this raised an error in the node."""
    schema = {"$schema": draft, **properties(a={"type": "string"}, b={"type": "null"})}
    assert error(schema, {"a": "x" * 500_000}) is None
    assert "at /b" in str(error(schema, {"a": "x" * 500_000, "b": 1}))


def test_long_text_and_long_lists_are_checked() -> None:
    fields = {f"f{n}": {"type": "string", "pattern": "^[a-z]*$"} for n in range(20)}
    assert error(properties(**fields), {"f0": "x" * 500_000}) is None
    assert error({"items": properties(n={"type": "integer"})}, [{"n": 1}] * 50_000) is None
    assert "at /49999" in str(error({"items": {"type": "integer"}}, [1] * 49_999 + ["x"]))


def test_content_as_deep_as_documents_can_be() -> None:
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert error({"items": {"type": "array"}}, deep) is None
    assert "at /0" in str(error({"items": {"type": "string"}}, deep))


def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiled({"title": "once", "type": "string"})
    assert compiled({"title": "once", "type": "string"}) is first


def test_the_schemas_in_memory_are_few_and_small_together(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered: dict[str, Any] = {}
    monkeypatch.setattr(document_schema, "_remembered", remembered)
    for n in range(70):
        compiled({"title": f"small {n}"})
    assert len(remembered) == 64
    large = [{"title": f"{n}", **_patterns(r"\pL", 300)} for n in range(6)]
    for schema in large:
        latest = compiled(schema)
    assert len(document_schema._recent) <= len(remembered) < len(large)
    assert list(remembered.values())[-1] is latest
    assert sum(entry.memory for entry in remembered.values()) <= 128 * 1024


HOLDING = r"""
import sys
from pathlib import Path
from recon_node.streams.json_values import Budget
from recon_node.streams.document_schema import DocumentSchema

def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def schema(*patterns: str) -> DocumentSchema:
    texts = {f"p{n}": {"type": "string", "pattern": pattern} for n, pattern in enumerate(patterns)}
    return DocumentSchema({"type": "object", "properties": texts})

schema("^x$")
before = resident()
held = schema(*(r"\p{XID_Continue}%d" % n for n in range(360)))
assert held.memory <= 64 * 1024
for n in range(360):
    for text in "ab\u00e4\u4e00" * 5, "ab" * 300_000:
        held.error({f"p{n}": text}, len(text), Budget("the event", 10**12))
print(resident() - before)
"""


def test_nothing_that_an_escape_is_written_out_to_is_priced_as_a_repetition() -> None:
    assert DocumentSchema({"pattern": r"(?!a)\s"}).memory < 1024


def test_the_patterns_of_a_schema_hold_what_they_may() -> None:
    """They were compiled twice, for whole documents and for single members: 60 MiB here."""
    held = int(
        subprocess.run([sys.executable, "-c", HOLDING], capture_output=True, check=True).stdout
    )
    assert 10 * 2**20 < held < 64 * 2**20


def test_large_patterns_are_compiled_once_for_the_same_verdict(monkeypatch):
    schema = {
        "type": "object",
        "properties": {"a": {"pattern": "^x[0-9]$"}, "b": {"maximum": 3}},
        "additionalProperties": False,
        "required": ["a"],
    }
    both = DocumentSchema(dict(schema))
    monkeypatch.setattr(document_schema, "_TWICE", 0)
    once = DocumentSchema(dict(schema))
    assert once._validator is None
    for content in (
        {"a": "x1"},
        {"a": "y1"},
        {"a": "x1", "b": 1},
        {"b": 5},
        [],
        {"a": "x1", "c": 1},
    ):
        weight = weigh_json(content)
        reasons = [
            schema.error(content, weight, Budget("the event", 10**8)) for schema in (both, once)
        ]
        assert (reasons[0] is None) == (reasons[1] is None)


def _patterns(pattern: str, times: int) -> dict[str, Any]:
    return {"anyOf": [{"pattern": f"{pattern}x{n}"} for n in range(times)]}


@pytest.mark.parametrize(
    ("pattern", "few", "too_many"),
    [
        (r"(?i)" + r"\pL" * 16, 2, 430),
        (r"[\PL]", 300, 500),
        (r"(\pL){10}", 10, 60),
        (r"(?i)[^a]", 50, 100),
        (r"(?i)[!-\x{ffff}]", 50, 100),
        (r"[\W\D\S].", 200, 1_000),
        ("[a-z]", 1_000, 1_500),
    ],
)
def test_patterns_of_many_characters_take_memory(pattern: str, few: int, too_many: int) -> None:
    assert DocumentSchema(_patterns(pattern, few)).memory <= 64 * 1024
    with pytest.raises(SchemaError, match="its patterns take too much memory"):
        DocumentSchema(_patterns(pattern, too_many))


def _each(keyword: str, value: str) -> list[dict[str, str]]:
    return [{keyword: value} for _ in range(4_000)]


LONG = "%" * 30_000 + "😀"
"""In a JSON Pointer it takes twelve times the memory, as `%25` and in a wider encoding."""


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({LONG: {"anyOf": [True] * 10_000}}, "below long names"),
        ({LONG: {"dependentRequired": {f"{n}": [] for n in range(3_000)}}}, "below long names"),
        ({LONG: {"allOf": [{"$anchor": f"a{n}"} for n in range(3_000)]}}, "its references take"),
        ({LONG: {"$anchor": "a"}, "b": {"allOf": _each("$ref", "#a")}}, "its references take"),
        ({"a": {"$id": LONG, "allOf": _each("$id", "#")}}, "its references take"),
    ],
)
def test_what_leads_to_parts_is_not_written_for_each(schema: Any, reason: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SchemaError, match=reason):
            DocumentSchema(properties(**schema))
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()


def test_the_engine_keeps_the_path_to_each_part() -> None:
    of_short, of_long = (
        DocumentSchema(properties(**{name: {"anyOf": [True] * 500}})).memory
        for name in ("a", "a" * 10_000)
    )
    assert of_short < 50
    assert of_long > 5_000  # which counts for how many schemas are kept


NODE = properties(name={"type": "string"}, nodes={"items": {"$ref": "#/$defs/node"}})
TREE = {"$defs": {"node": NODE}, **properties(root={"$ref": "#/$defs/node"})}


def _deep(levels: int, end: Any, name: str) -> Any:
    for _ in range(levels):
        end = {name: [end]}
    return end


@pytest.mark.parametrize(
    ("schema", "content", "expected"),
    [
        *VECTORS["self_referring"],
        (TREE, {"root": _deep(62, {"name": "x"}, "nodes")}, None),
        (TREE, {"root": {"nodes": [{"name": str(n)} for n in range(5_000)]}}, None),
    ],
)
def test_schemas_that_refer_to_themselves(schema: Any, content: Any, expected: str | None) -> None:
    reason = error(schema, content)
    assert reason is None if expected is None else expected in str(reason)


def test_content_that_is_looked_at_ever_more_often_is_rejected(monkeypatch):
    """Each level of the content is looked at twice as often as the one above it."""
    schema = {"type": "object", "allOf": [{"properties": {"n": {"$ref": "#"}}}] * 2}
    deep: Any = 1
    for _ in range(8):
        deep = {"n": deep}
    assert "not of type" in str(error(schema, deep))  # the schema is valid
    for _ in range(8):
        deep = {"n": deep}
    monkeypatch.setattr(DocumentSchema, "_error", lambda *_: pytest.fail("it was begun"))
    with pytest.raises(BudgetError, match="steps"):
        error(schema, deep)


def test_the_stack_is_bounded() -> None:
    """Heads that follow each other without going down, and deep content: this crashes the engine
    from 100,000 levels on."""
    defs: dict[str, Any] = {}
    for n in range(10):
        step: Any = {"$ref": f"#/$defs/d{n + 1}"} if n < 9 else {"items": {"$ref": "#/$defs/d0"}}
        for _ in range(8):
            step = {"allOf": [step]}
        defs[f"d{n}"] = {"allOf": [step, {"contains": {"$ref": f"#/$defs/d{n}"}}][: 1 + n % 2]}
    schema = {"$defs": defs, "$ref": "#/$defs/d0"}
    deep: Any = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    reason = compiled(schema).error(deep, weigh_json(deep), Budget("the event", 10**40))
    assert "nested too deep" in str(reason)


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_no_reason_is_given_that_would_take_much_memory(keyword: str) -> None:
    """The engine copies what fails, for each alternative: it took 27 s and 4 GB to name these."""
    schema = {"items": {keyword: [{"type": "string", "maxLength": n} for n in range(1000)]}}
    few = [{"x": "y" * 400}]
    assert "not valid under any" in str(error(schema, few))
    assert error(schema, few * 2500) == "the document does not conform to its model's schema"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
KEYWORDS = st.one_of(
    st.sampled_from(["$ref", "$id", "$defs", "$schema", "allOf", "items"]),
    st.sampled_from(["type", "pattern", "enum", "if", "required"]),
)
SCHEMAS = st.recursive(
    st.booleans() | st.integers() | st.sampled_from(["#", "#/$defs", "string", "[a-z]*", "("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=4),
    max_leaves=12,
)


@given(schema=SCHEMAS, content=VALUES)
def test_nothing_but_schema_errors_is_raised(schema: Any, content: Any) -> None:
    try:
        usable = compiled(schema)
    except SchemaError:
        return
    with suppress(BudgetError):
        reason = usable.error(content, weigh_json(content), Budget("the event", 10**8))
        assert reason is None or isinstance(reason, str)


def test_the_verdict_is_that_of_ajv() -> None:
    """Documents of the public models of the network."""
    wrong = []
    for model in PUBLIC_MODELS:
        schema = compiled(model["schema"])
        assert why_unusable({"schema": model["schema"]}) is None, model["model"]
        for document, verdict in documents(model):
            weight = weigh_json(document)
            budget = Budget.of_event(weight)
            error = schema.error(document, weight, budget)
            by_member = schema.error(document, 10**7, Budget.of_event(10**6), frozenset(document))
            if not (error is None) == (by_member is None) == verdict:
                wrong.append((model["model"], document, error, by_member, verdict))
    assert not wrong
