"""Whether a document conforms to the JSON Schema of its model.

Theory of operation. The work is done by jsonschema-rs, the Rust crate that ceramic-one validates
with. It reads `$schema` for the draft, 2020-12 where there is none, fetches nothing, and matches
patterns with an engine that is linear in the text. All nodes have to reach the same verdict, and a
schema comes from the network like everything else; so no clock bounds the work, but a price that
depends on the schema and the content alone, and is known before the work starts:

- A schema is *unfolded*: each `$ref` is replaced with what it refers to. Each part of the unfolded
  schema looks at a part of the content at most once, so their numbers multiplied bound the work.
  A schema that refers to itself cannot be unfolded, and is not supported.
- A pattern costs something for each byte of the content: more with counted repetitions, which the
  engine writes out.

Content that is more expensive than `MAX_COST` is rejected unseen. That is far beyond what people
write: 100 kB of text with a schema of 200 fields comes to a fiftieth of it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import jsonschema_rs

from recon_node.ipld import CID
from recon_node.lattice.json_patch import parse_pointer
from recon_node.lattice.json_values import MAX_WEIGHT, JsonPatchError, measure

MAX_SCHEMA: Final = 100_000
"""Bytes of a schema's JSON, about."""
MAX_PARTS: Final = 100_000
"""Parts of an unfolded schema."""
MAX_NESTING: Final = 100
"""Levels of an unfolded schema."""
MAX_COST: Final = 100_000_000
"""Of checking a document, in units of about 4 ns. The interpreter can do nothing else meanwhile."""

_REMEMBERED: Final = 128
"""Compiled schemas, the latest used."""
_PATTERN_BYTES: Final = 1024 * 1024
"""Of a compiled pattern, and of what the engine remembers while it matches."""
_MAX_PATTERN: Final = 3_000
"""What a pattern of that size costs for each byte."""
_CONVERSION: Final = 50
"""What each value in the content costs beside."""
_COMPARISONS: Final = 300
"""What it costs to find equal items among others, for each."""

_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_UNSUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class SchemaError(ValueError):
    """A schema that documents cannot be checked by; the message says why."""


class _Price(NamedTuple):
    """Of an unfolded schema: its parts, the keywords that look at the parts beside them once more,
    what its patterns cost for each byte of the content, and its levels."""

    parts: int = 1
    unevaluated: int = 0
    patterns: int = 0
    levels: int = 1

    def plus(self, part: _Price) -> _Price:
        """With a part of it."""
        return _Price(
            self.parts + part.parts,
            self.unevaluated + part.unevaluated,
            self.patterns + part.patterns,
            max(self.levels, part.levels + 1),
        )


class DocumentSchema:
    """A schema, compiled. Nothing in it depends on what was checked before.

    Args:
        schema: as a model's definition has it.

    Raises:
        SchemaError: it is not a JSON Schema, or not one that can be checked by within bounds.
    """

    __slots__ = ("_per_byte", "_per_value", "_validator")

    def __init__(self, schema: dict[str, Any]) -> None:
        price = _Unfolding(schema).price
        self._per_value = _CONVERSION + price.parts * (1 + price.unevaluated)
        self._per_byte = price.patterns
        try:
            self._validator = jsonschema_rs.validator_for(
                schema,
                mask="the value",
                offline=True,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES
                ),
            )
        except jsonschema_rs.ValidationError as error:
            path = "".join(f"/{part}" for part in error.instance_path)
            raise SchemaError(f"{error.message}{path and f' at {path}'}") from None
        except ValueError as error:
            raise SchemaError(str(error)) from None

    def error(self, content: Any, weight: int) -> str | None:
        """The first thing in the content that breaks the schema, for people; None when it conforms.

        Args:
            content: of a document; bytes and links count as what they are in DAG-JSON.
            weight: the bytes of its JSON, about; see `recon_node.lattice.json_values`.
        """
        if (
            self._cost(weight // 2, weight) > MAX_COST  # a value weighs 2 at least
            and self._cost(measure(content, 2 * MAX_WEIGHT).steps, weight) > MAX_COST
        ):
            return "the document is too large to be checked by its model's schema"
        try:
            return self._error(content)
        except ValueError:  # bytes, or nested too deep
            pass
        try:
            return self._error(json.loads(json.dumps(content, default=dag_json)))
        except ValueError as error:
            return f"the document cannot be checked by its model's schema: {error}"

    def _cost(self, values: int, weight: int) -> int:
        return self._per_value * (values + 1) + self._per_byte * weight

    def _error(self, content: Any) -> str | None:
        if self._validator.is_valid(content):
            return None
        try:
            self._validator.validate(content)
        except jsonschema_rs.ValidationError as error:
            path = "".join(f"/{part}" for part in error.instance_path)
            return f"the model's schema: {error.message}{path and f' at {path}'}"
        raise RuntimeError("content is invalid by a schema, but there is no error")


def compiled(schema: Any) -> DocumentSchema:
    """A schema, compiled once for all documents.

    Raises:
        SchemaError: as `DocumentSchema`; it is not an object.
    """
    if not isinstance(schema, dict):
        raise SchemaError("it is not a JSON object")
    try:
        is_too_long = measure(schema, MAX_SCHEMA).weight > MAX_SCHEMA
    except JsonPatchError:
        is_too_long = True
    if is_too_long:
        raise SchemaError(f"it is longer than {MAX_SCHEMA} bytes")
    text = json.dumps(schema, default=dag_json, separators=(",", ":"))
    found = _compiled(text)
    if isinstance(found, str):
        raise SchemaError(found)
    return found


@lru_cache(maxsize=_REMEMBERED)
def _compiled(text: str) -> DocumentSchema | str:
    """A schema, or why there is none: that is remembered as well."""
    try:
        return DocumentSchema(json.loads(text))
    except SchemaError as error:
        return str(error)


def dag_json(value: Any) -> Any:
    """What a link or bytes are in DAG-JSON; for `json.dumps(default=...)`.

    Raises:
        TypeError: it is neither.
    """
    if isinstance(value, CID):
        return {"/": str(value)}
    if isinstance(value, bytes):
        return {"/": {"bytes": base64.b64encode(value).decode().rstrip("=")}}
    raise TypeError(f"{type(value).__name__} is not a DAG-CBOR value")


class _Unfolding:
    """Finds out what a schema costs, without unfolding it: what is referred to is priced once."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        # Before draft 6, `id` is what `$id` is since: what refers to something else below it.
        self._id = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        self._targets: dict[str, _Price | None] = {"#": None}
        self.price = self._of(schema, 0)

    def _of(self, value: Any, depth: int) -> _Price:
        price = _Price()
        if depth < MAX_NESTING:
            if isinstance(value, dict):
                for keyword, each in value.items():
                    price = price.plus(self._of_keyword(keyword, each, depth))
            elif isinstance(value, list):
                for each in value:
                    price = price.plus(self._of(each, depth + 1))
            elif isinstance(value, str):
                price = _Price(1 + len(value) // 64)
        if depth + price.levels > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
        if price.parts > MAX_PARTS:
            raise SchemaError(f"with its references, it has more than {MAX_PARTS} parts")
        return price

    def _of_keyword(self, keyword: str, value: Any, depth: int) -> _Price:
        if isinstance(value, str):
            if keyword == "$ref":
                return self._of_reference(value, depth)
            if keyword in _UNSUPPORTED or (keyword == self._id and depth):
                raise SchemaError(f"{keyword!r} in it is not supported")
        price = self._of(value, depth + 1)
        if keyword == "pattern" and isinstance(value, str):
            return price._replace(patterns=_price_of_pattern(value))
        if keyword == "patternProperties" and isinstance(value, dict):
            return price._replace(patterns=price.patterns + sum(map(_price_of_pattern, value)))
        if keyword == "uniqueItems":
            return price._replace(parts=_COMPARISONS)
        if keyword in ("unevaluatedProperties", "unevaluatedItems"):
            return price._replace(unevaluated=price.unevaluated + 1)
        return price

    def _of_reference(self, reference: str, depth: int) -> _Price:
        if reference not in self._targets:
            self._targets[reference] = None  # under way
            self._targets[reference] = self._of(self._target(reference), depth + 1)
        price = self._targets[reference]
        if price is None:
            raise SchemaError(f"{reference!r} in it refers to itself, which is not supported")
        return price

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            raise SchemaError(f"it refers to {reference!r}, which is not in it")
        try:
            target: Any = self._schema
            for token in parse_pointer(unquote(reference[1:])):
                target = target[int(token) if isinstance(target, list) else token]
        except (JsonPatchError, LookupError, TypeError, ValueError):
            raise SchemaError(f"it refers to {reference!r}, which is not in it") from None
        return target


def _price_of_pattern(pattern: str) -> int:
    """Of each byte of the content: the states of the automaton, at most."""
    counts = (int((most or least)[:6]) for least, most in _REPETITION.findall(pattern))
    return min(len(pattern) * math.prod(max(count, 1) for count in counts), _MAX_PATTERN)
