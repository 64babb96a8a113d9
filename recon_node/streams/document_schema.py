"""Whether a document conforms to the JSON Schema of its model.

Theory of operation. The work is done by jsonschema-rs, the Rust crate that ceramic-one validates
with. The draft is that of `$schema` (default 2020-12); it fetches nothing, and matches patterns in
time linear in the text. Schemas come from strangers, and all nodes must reach the same verdict. So
the work is not bounded by a clock but by a price that depends on schema and content alone, is known
before the work starts, and is paid from the event's budget:

- A schema is brought into a *normal form* (`recon_node.streams.schema_normal_form`), which has what
  checks a document, and nothing else.
- The price of a schema (`recon_node.streams.schema_price`) follows from the numbers of its parts
  and of the content's parts, and if the schema refers to itself, from the content's depth.
- Numbers are priced by their digits, since the engine compares exact decimals. It divides them,
  too, so that 4.35 is a multiple of 0.01; for ajv and ceramic-one, which divide doubles, it is not.
  So `multipleOf` is a keyword of our own.
- So is `uniqueItems`: the engine compares all items with each other whose hashes it takes for
  equal, and anybody can write many of those.
- The price of a pattern grows with the bytes of the content, and with counted repetitions, which
  the engine expands. What all patterns of a schema hold in memory has a limit, too. Patterns with
  look-around or backreferences, such as ComposeDB's `Duration`, are matched by backtracking, with a
  limit of steps and of the text's length.
- An event pays for the members of the document that it may have changed, if the schema has only
  keywords that check each member by itself (none of `_ABOUT_ALL`), as those of generated models do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import jsonschema_rs
import orjson

from recon_node.ipld import dag_json
from recon_node.ipld.dag_json import number_text
from recon_node.streams.json_values import Budget, BudgetError, JsonPatchError, measure
from recon_node.streams.schema_normal_form import (
    ADDRESSES,
    EACH,
    EITHER,
    HERE,
    SchemaError,
    draft_of,
    normal_form,
)
from recon_node.streams.schema_price import MAX_MEMORY, OWN_KEYWORDS, SchemaPrice, dearness

MAX_SCHEMA: Final = 100_000
"""Approximate bytes of a schema's JSON."""
MAX_REASON: Final = 10_000_000
"""Bytes copied to explain why a document does not conform: what each alternative rejects."""
MAX_STACK: Final = 10_000
"""Nested levels of schema and content, each of which takes some hundred bytes of the stack."""

_CACHED_SCHEMAS: Final = 64
"""Compiled schemas in the cache."""
_SMALL: Final = 100_000
"""The price up to which a document is checked whole, at every event."""
_ABOUT_NAMES: Final = ("required", "minProperties", "maxProperties", "dependentRequired")
"""Keywords about the names of a document's members."""
_ABOUT_ALL: Final = {"$ref", "const", "enum", *HERE, *EITHER, *EACH} - {
    "properties",
    "additionalProperties",
}
"""Keywords for which a member cannot be checked by itself."""
_TWICE: Final = 1024
"""KiB of patterns that are compiled twice, for whole documents and for some members."""
_CACHED_MEMORY: Final = 2 * MAX_MEMORY
"""KiB that the patterns of all schemas in the cache hold, at most."""
_ALL_PATTERNS: Final = 16 * 1024 * 1024
_PATTERN: Final = 1024 * 1024
_LEAST: Final = 64 * 1024
"""Bytes of a compiled pattern, and of the engine's memory while it matches: an equal part for each
of a schema's patterns, at most, and at least."""
_STEPS: Final = 1_000
"""Steps back of a pattern with look-around for one text, which then does not match."""

_BEYOND_INTEGERS: Final = 2.0**64
"""No integer of a document is as large."""
_MASK: Final = "the value"
"""What errors have in place of strangers' content."""
_NOT_A_REGEX: Final = f'{_MASK} is not a "regex"'
_NOT_A_PATTERN: Final = "its pattern is not a regular expression, or takes too much memory,"
_VALIDATORS: Final = {
    "draft-04": jsonschema_rs.Draft4Validator,
    "draft-06": jsonschema_rs.Draft6Validator,
    "draft-07": jsonschema_rs.Draft7Validator,
    "2019-09": jsonschema_rs.Draft201909Validator,
    "2020-12": jsonschema_rs.Draft202012Validator,
}


class DocumentSchema:
    """A compiled schema. It is as a model's definition has it, and is changed.

    Raises:
        SchemaError: not a JSON Schema, or too expensive to check documents by.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._draft = draft_of(schema)
        with _schema_errors():
            _schema_of(self._draft).validate(schema)  # while it has its annotations
        schema = normal_form(schema, self._draft)
        self._price = SchemaPrice.of(schema)
        is_by_member = schema.get("type") == "object" and _ABOUT_ALL.isdisjoint(schema)
        self._schema = schema if is_by_member else None
        # Large patterns are compiled once only.
        is_large = is_by_member and self.memory > _TWICE
        self._validator = None if is_large and self._by_member else self._compile(schema)

    @property
    def memory(self) -> int:
        """What its compiled patterns hold, in KiB."""
        return self._price.whole.memory

    @cached_property
    def _by_member(self) -> tuple[jsonschema_rs.Validator, jsonschema_rs.Validator] | None:
        """What checks the names of a document's members, and what checks some of the members."""
        if self._schema is None:
            return None
        any_value: dict[str, Any] = {name: {} for name in self._schema.get("properties", ())}
        members = {k: v for k, v in self._schema.items() if k not in _ABOUT_NAMES}
        return self._compile({**self._schema, "properties": any_value}), self._compile(members)

    @property
    def _whole(self) -> jsonschema_rs.Validator:
        """What checks content that may not be an object."""
        if self._validator is not None:
            return self._validator
        assert self._by_member is not None, "only its parts are compiled"
        return self._by_member[1]

    def _compile(self, schema: dict[str, Any]) -> jsonschema_rs.Validator:
        with _schema_errors():
            # By name: the engine and the price must never differ about the draft.
            return _VALIDATORS[self._draft](
                schema,
                mask=_MASK,
                offline=True,
                validate_formats=False,
                pattern_options=_options(self._price),
                keywords=dict(zip(OWN_KEYWORDS, (_UniqueItems, _MultipleOf), strict=True)),
            )

    def error(
        self, content: Any, weight: int, budget: Budget, touched: Set[str] | None = None
    ) -> str | None:
        """Return the first violation of the schema, in plain English; None if the content conforms.

        Args:
            content: of a document; bytes and links are checked as DAG-JSON has them.
            weight: approximate bytes of its JSON; see `recon_node.streams.json_values`.
            budget: for the work.
            touched: the only members that may differ from those of content that conforms; None:
                all of them.

        Raises:
            BudgetError: it takes too much work.
        """
        if self._validator and (price := self._price_if_small(content, weight)) is not None:
            budget.spend(price)
            return self._error_as_json(self._validator, content, _Paid(budget, price, weight, 0))
        if self._by_member is None or not isinstance(content, dict):
            price, depth = self._pay(content, budget)
            return self._error_as_json(self._whole, content, _Paid(budget, price, weight, depth))
        of_names, of_members = self._by_member
        names = dict.fromkeys(content)
        price = self._price.of_check(len(names), sum(map(len, names)), 1, 0)
        budget.spend(price)
        if (error := self._error(of_names, names, _Paid(budget, price, weight, 1))) is not None:
            return error
        changed = {
            name: content[name]
            for name in (content if touched is None else touched)
            if name in content
        }
        paid = [self._pay(member, budget, name) for name, member in changed.items()]
        depth = 1 + max((depth for _, depth in paid), default=0)
        price = sum(price for price, _ in paid)
        return self._error_as_json(of_members, changed, _Paid(budget, price, weight, depth))

    def price_if_conforming(self, content: Any, weight: int, most_steps: int) -> int | None:
        """Return the price of checking content that conforms, as nearly all does.

        None if it does not, or is not small or plain JSON, or the price exceeds `most_steps`.
        """
        price = self._price_if_small(content, weight) if self._validator else None
        if self._validator is None or price is None or price > most_steps:
            return None
        try:
            return price if self._validator.is_valid(content) else None
        except ValueError:  # bytes, or nested too deep
            return None

    def _price_if_small(self, content: Any, weight: int) -> int | None:
        """Return the price of checking small content at once; None if the content is large."""
        if self._price.is_recursive:
            return None
        # A value weighs at least 2, so most content need not be measured.
        price = self._price.of_check(weight // 2, weight, 0, 0)
        if price > _SMALL:
            return None
        dear = dearness(content)
        return price + self._price.of_dear(dear) if dear else price

    def _pay(self, part: Any, budget: Budget, member: str | None = None) -> tuple[int, int]:
        """Pay for checking a part of a document; return the price, and the part's depth."""
        size = measure(part, budget.left)
        budget.spend(size.steps)
        dear = dearness(part)
        price = self._price.of_check(size.steps, size.weight, size.depth, dear, member)
        budget.spend(price)
        return price, size.depth

    def _error_as_json(
        self, validator: jsonschema_rs.Validator, content: Any, paid: _Paid
    ) -> str | None:
        if self._price.stack(paid.depth) > MAX_STACK:
            return "the document is nested too deep to be checked by its model's schema"
        try:
            return self._error(validator, content, paid)
        except ValueError:  # bytes, or nested too deep
            pass
        try:
            return self._error(validator, dag_json.as_json(content), paid)
        except ValueError as error:
            return f"the document cannot be checked by its model's schema: {error}"

    def _error(self, validator: jsonschema_rs.Validator, content: Any, paid: _Paid) -> str | None:
        if validator.is_valid(content):
            return None
        if self._price.of_reason(paid.weight, paid.depth) > MAX_REASON:
            return "the document does not conform to its model's schema"
        paid.budget.spend(paid.price)  # it is checked again
        try:
            validator.validate(content)
        except jsonschema_rs.ValidationError as error:
            path = "".join(f"/{part}" for part in error.instance_path)
            return f"the model's schema: {error.message}{path and f' at {path}'}"
        raise RuntimeError("content is invalid by a schema, but there is no error")


@cache
def _schema_of(draft: str) -> jsonschema_rs.Validator:
    """Return what checks schemas by the draft's own schema."""
    return _VALIDATORS[draft]({"$ref": ADDRESSES[draft]}, mask=_MASK, offline=True)


@contextmanager
def _schema_errors() -> Iterator[None]:
    try:
        yield
    except jsonschema_rs.ValidationError as error:
        path = "".join(f"/{part}" for part in error.instance_path)
        message = _NOT_A_PATTERN if error.message == _NOT_A_REGEX else error.message
        raise SchemaError(f"{message}{path and f' at {path}'}") from None
    except ValueError as error:
        raise SchemaError(str(error)) from None


class _Paid(NamedTuple):
    """What was paid for a check of content."""

    budget: Budget
    price: int
    weight: int
    """Of the whole content."""
    depth: int
    """Of what is checked."""


class _UniqueItems:
    """The keyword `uniqueItems`, in time linear in the text of the items."""

    def __init__(self, _parent: Any, value: Any, _path: Any) -> None:
        self._is_on = value is True

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` if two items of an array are equal as JSON."""
        if not self._is_on or not isinstance(instance, list):
            return
        if len(set(map(_canonical, instance))) < len(instance):
            raise ValueError("the value has non-unique elements")


class _MultipleOf:
    """The keyword `multipleOf`, for doubles: the remainder is 0, or for a fraction, which has no
    exact multiples, the quotient is a whole number."""

    def __init__(self, _parent: Any, value: float, _path: Any) -> None:
        self._divisor = float(value)

    def validate(self, instance: Any) -> None:
        """Raise `ValueError` if a number is not a multiple."""
        if type(instance) not in (int, float):
            return
        is_whole = self._divisor.is_integer()
        rest = math.fmod(instance, self._divisor) if is_whole else instance / self._divisor % 1
        if rest != 0:  # or not a number: the quotient is infinite
            raise ValueError(f"the value is not a multiple of {number_text(self._divisor)}")


def _canonical(value: Any) -> bytes:
    """The same bytes for all values that are equal as JSON."""
    if isinstance(value, float | list | dict):
        value = _with_integers(value)
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # nested too deep for it, or half of a surrogate pair
        return json.dumps(value, sort_keys=True).encode()


def _with_integers(value: Any) -> Any:
    """The value with integers in place of floats that equal one."""
    if isinstance(value, dict):
        return {name: _with_integers(member) for name, member in value.items()}
    if isinstance(value, list):
        return list(map(_with_integers, value))
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _BEYOND_INTEGERS
    return int(value) if is_whole else value


def _options(price: SchemaPrice) -> jsonschema_rs.RegexOptions | jsonschema_rs.FancyRegexOptions:
    limit = max(_LEAST, min(_PATTERN, _ALL_PATTERNS // max(price.whole.regexes, 1)))
    if price.whole.backtracking:
        return jsonschema_rs.FancyRegexOptions(
            backtrack_limit=_STEPS, size_limit=limit, dfa_size_limit=limit
        )
    return jsonschema_rs.RegexOptions(size_limit=limit, dfa_size_limit=limit)


def is_satisfiable(schema: dict[str, Any]) -> bool:
    """Whether an object can conform to a schema that compiles; true if that is not known."""
    address = schema.get("$schema", "https://json-schema.org/draft/2020-12/schema")
    objects = {"$schema": address, "type": "object"}
    try:
        conforming = jsonschema_rs.canonicalize(schema).intersect(
            jsonschema_rs.canonicalize(objects)
        )
    except ValueError:
        return True
    return conforming.satisfiability() is not jsonschema_rs.canonical.Satisfiability.NO


def compiled(schema: Any) -> DocumentSchema:
    """Compile a schema, once for all documents. It must not change afterwards.

    Raises:
        SchemaError: not an object, or as `DocumentSchema`.
    """
    if not isinstance(schema, dict):
        raise SchemaError("it is not a JSON object")
    recent = _recent.get(id(schema))
    if recent is not None:
        return recent[1]
    text = _text_of(schema)
    known = _remembered.pop(text, None)
    if known is None:
        try:
            known = DocumentSchema(json.loads(text))
        except SchemaError as error:
            known = str(error)
    _remembered[text] = known
    while len(_remembered) > _CACHED_SCHEMAS or _memory() > _CACHED_MEMORY:
        _recent.clear()
        del _remembered[next(iter(_remembered))]
    if isinstance(known, str):
        raise SchemaError(known)
    if len(_recent) >= _CACHED_SCHEMAS:
        _recent.clear()
    _recent[id(schema)] = schema, known
    return known


# Documents of a model share its definition: finding its schema again by its text takes far longer.
# By id; holding the object keeps its id from being used again.
_recent: Final[dict[int, tuple[dict[str, Any], DocumentSchema]]] = {}
# By its text, the longest unused first: the compiled schema, or what is wrong with it.
_remembered: Final[dict[str, DocumentSchema | str]] = {}


def _text_of(schema: dict[str, Any]) -> str:
    try:
        is_too_long = measure(schema, MAX_SCHEMA).weight > MAX_SCHEMA
    except (JsonPatchError, BudgetError):
        is_too_long = True
    if is_too_long:
        raise SchemaError(f"it is longer than {MAX_SCHEMA} bytes")
    return json.dumps(schema, default=dag_json.default, separators=(",", ":"))


def _memory() -> int:
    return sum(
        schema.memory for schema in _remembered.values() if isinstance(schema, DocumentSchema)
    )
