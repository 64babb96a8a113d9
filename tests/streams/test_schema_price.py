"""No document takes longer than its price says: schemas keyword by keyword, many times each."""

import json
import time
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from recon_node.ipld import CID, DAG_CBOR
from recon_node.streams.document_schema import DocumentSchema
from recon_node.streams.json_values import Budget, measure

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TEXTS = ["y" * 90_000, "1." * 45_000, "\u0130" * 45_000, "AAAA" * 22_500, "[" * 90_000]


ROOT = CID.of(DAG_CBOR, b"root")


def all_of(*parts: Any, times: int = 200) -> dict[str, Any]:
    return {"allOf": [*parts] * times}


def nested(levels: int, around: Callable[[Any], Any]) -> Any:
    return reduce(lambda inner, _: around(inner), range(levels), {"properties": {"a": {}}})


NUMBERS: list[Any] = [1, 1.1e300, 1e-300, 2**64 - 1, -(2**63), 5e-324, 0.3] * 30
DEAR = [5e-324, 1.7976931348623157e308, 1.2345678901234567e-300, 0.3, 2**64 - 1, 2**53 + 2.0, 7]
"""Numbers that it takes long to compare exactly, and one of the common kind."""
OBJECTS = [{f"k{n}": n for n in range(100)}] * 20
ONE = [{f"k{n}": 1 for n in range(300)}, {"a": 1, **{f"k{n}": n for n in range(100)}}]
CHECKS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "format": (all_of({"format": "idn-email"}), TEXTS),
    "contentEncoding": (all_of({"contentEncoding": "base64"}), TEXTS),
    "contentMediaType": (all_of({"contentMediaType": "application/json"}), TEXTS),
    "maxLength": (all_of({"maxLength": 10**9}), TEXTS),
    "minLength": (all_of({"minLength": 1}), TEXTS),
    "const": (all_of({"not": {"const": "y" * 80_000 + "z"}}, times=1), TEXTS),
    "const numbers": ({"items": {"not": all_of({"const": 0.3})}}, [NUMBERS]),
    "enum": ({"items": {"not": {"enum": [f"v{n}" for n in range(500)]}}}, [["z"] * 500]),
    "enum objects": (
        {"items": {"not": {"enum": [{"k": n} for n in range(300)]}}},
        [[{"k": -1}] * 300],
    ),
    "multipleOf": (
        {"items": all_of(*({"not": {"multipleOf": n}} for n in (3e-300, 7, 0.1)), times=3)},
        [NUMBERS],
    ),
    **{
        f"{keyword} {number}": (
            {"items": all_of({"not": {keyword: number}}, times=5)},
            [[number] * 20 for number in DEAR],
        )
        for keyword in ("const", "maximum", "multipleOf")
        for number in DEAR
    },
    "numbers": ({"items": {"type": "number"}}, [[number] * 3000 for number in DEAR]),
    "an error": ({"type": "string"}, [[number] * 3000 for number in DEAR]),
    "bytes and links": ({"items": {"type": "object"}}, [[b"abc"] * 3000, [ROOT] * 3000]),
    "limits": ({"items": all_of({"maximum": 1.7e308}, {"exclusiveMinimum": -1e308})}, [NUMBERS]),
    "type": ({"items": all_of({"type": ["string", "null", "integer", "number"]})}, [NUMBERS * 5]),
    "oneOf": ({"items": {"oneOf": [{"const": n} for n in range(500)]}}, [[5] * 200]),
    "anyOf": ({"items": {"anyOf": [*[{"type": "string"}] * 500, {}]}}, [[5] * 500]),
    "not": ({"items": nested(30, lambda s: {"not": s})}, [[1] * 3000]),
    "if": ({"items": nested(12, lambda s: {"if": s, "then": s, "else": False})}, [[1] * 20]),
    "required": ({"items": {"required": [f"k{n}" for n in range(100)]}}, [OBJECTS]),
    "dependentRequired": (
        {"items": {"dependentRequired": {"k0": [f"k{n}" for n in range(100)]}}},
        [OBJECTS],
    ),
    "dependentSchemas": (
        {"items": {"dependentSchemas": {f"k{n}": {"required": ["k1"]} for n in range(100)}}},
        [OBJECTS],
    ),
    "propertyNames": ({"items": {"propertyNames": all_of({"not": {"const": "z"}})}}, [OBJECTS]),
    "patternProperties": ({"patternProperties": {f"^k{n}.*$": {} for n in range(200)}}, ONE),
    "properties": (all_of({"properties": {f"k{n}": {"type": "integer"} for n in range(30)}}), ONE),
    "additionalProperties": (all_of({"additionalProperties": {"type": "integer"}}), ONE),
    "maxProperties": (
        {"items": all_of({"maxProperties": 9**9}, {"maxItems": 9**9})},
        [OBJECTS * 20],
    ),
    "items": ({"items": {"items": {"items": {"type": "integer"}}}}, [[[[1] * 10] * 30] * 30]),
    "prefixItems": ({"items": {"prefixItems": [{"type": "integer"}] * 200}}, [[[1] * 200] * 20]),
    "contains": (all_of({"contains": {"const": 299}}), [list(range(300))]),
    "unevaluatedItems": (
        {"contains": {"minimum": 9}, "minContains": 0, "unevaluatedItems": {}},
        [[1] * 3000],
    ),
    "unevaluatedProperties": (
        {**all_of({"properties": {"a": {}}}), "unevaluatedProperties": {}},
        ONE,
    ),
    "unevaluated by allOf": (nested(6, lambda s: {"allOf": [s], "unevaluatedProperties": {}}), ONE),
    "unevaluated by anyOf": (
        nested(6, lambda s: {"anyOf": [s, {"properties": {"z": {}}}], "unevaluatedProperties": {}}),
        ONE,
    ),
    "unevaluated by oneOf": (
        nested(6, lambda s: {"oneOf": [s, False], "unevaluatedProperties": {}}),
        ONE,
    ),
    "unevaluated by if": (
        nested(6, lambda s: {"if": s, "then": {}, "unevaluatedProperties": {}}),
        ONE,
    ),
    "uniqueItems": (
        all_of({"uniqueItems": True}, times=10),
        [
            [*range(3000)],
            [n + 0.5 for n in range(3000)],
            ["p" * 300 + str(n) for n in range(300)],
            [[n] for n in range(3000)],
            [{"x": [0] * 50, "n": n} for n in range(200)],
            [n if n % 2 else str(n) for n in range(3000)],
            [[["x" * 3000] * 3, n] for n in range(15)],
            [2**64 - 1 - n for n in range(3000)],
            [[[]] * n for n in range(100)],
            [{f"{bit}": n >> bit & 1 for bit in range(9)} for n in range(512)],
        ],
    ),
    "$ref": (
        {"$defs": {"a": {"type": "integer"}}, "items": all_of({"$ref": "#/$defs/a"})},
        [[1] * 2000],
    ),
    "a tree": (
        {"properties": {"n": {"$ref": "#"}}, "additionalProperties": {"type": "integer"}},
        [reduce(lambda inner, _: {"n": inner, "k": 1, "l": 2}, range(90), {})],
    ),
    **{
        f"pattern {pattern[:30]}": ({"items": {"pattern": pattern}}, [TEXTS, ["y" * 30] * 2000])
        for pattern in (
            "(.*y)*x$",
            "(y+)+z",
            r"^[\w-]{1,60}z",
            r"\b(\w+\W?){1,20}\d$",
            "(.?){300}z",
            "|".join("y" * n + "z" for n in range(1, 60)),
        )
    },
    **{
        f"backtracking {pattern[:30]}": (
            {"items": {"pattern": pattern}},
            [[*TEXTS, *["a" * size] * (4000 // size)] for size in (10, 100, 999)],
        )
        for pattern in (
            r"(?=.*z)q",
            r"(?:(?=.*z)|(?=.*y)|(?=.*w))q",
            r"(a*)*(?=b)c",
            r"(?=[\s\S]{1,300}z)(?:a|b)q",
            r"(.*)(.*)(.*)\1\2\3z",
            "|".join(f"(?=.*z{n})q" for n in range(60)),
        )
    },
}
UNIT = 4e-9
FACTOR = 4
"""How much slower than where the unit was measured this machine may be at any moment."""


@pytest.fixture(scope="module")
def slowness() -> float:
    """How much slower this machine is, by a check whose price is known to be its cost."""
    return max(1.0, _ratio({"items": {"allOf": [{"minimum": 0}] * 1000}}, [1] * 1000) * 30)


CASES = [(name, DRAFT_2020) for name in CHECKS]
CASES += [(name, DRAFT_7) for name in ("format", "contentEncoding", "contentMediaType")]
"""What later drafts do not assert."""


@pytest.mark.parametrize(("keyword", "draft"), CASES)
def test_the_price_is_above_the_cost(keyword: str, draft: str, slowness: float) -> None:
    schema, contents = CHECKS[keyword]
    for content in contents:
        ratios = (_ratio({"$schema": draft, **schema}, content) for _ in range(3))
        assert any(ratio < FACTOR * slowness for ratio in ratios)  # other processes run, too


def _ratio(schema: dict[str, Any], content: Any) -> float:
    """The cost of a check per its price."""
    compiled = DocumentSchema(json.loads(json.dumps(schema)))
    budget = Budget("a test", 10**15)
    weight = measure(content, 10**7).weight
    start = time.process_time()
    compiled.error(content, weight, budget)
    return (time.process_time() - start) / (budget.spent * UNIT)
