"""Whether a document conforms to the JSON Schema of its model.

Theory of operation. The work is done by jsonschema-rs, the Rust crate that ceramic-one validates
with. It reads `$schema` for the draft, 2020-12 where there is none, fetches nothing, and matches
patterns with an engine that is linear in the text. All nodes have to reach the same verdict, and a
schema comes from the network like everything else; so no clock bounds the work, but a price that
depends on the schema and the content alone, and is known before the work starts:

- What a schema costs is known from itself (`recon_node.streams.schema_price`): from the number of
  its parts, and of those of the content; where it refers to itself, from the content's depth, too.
- A pattern costs something for each byte of the content: more with counted repetitions, which the
  engine writes out.

Content that is more expensive than `MAX_COST` is rejected unseen. That is far beyond what people
write: 100 kB of text with a schema of 200 fields comes to a fiftieth of it.
"""

from __future__ import annotations

import base64
import json
from functools import lru_cache
from typing import Any, Final

import jsonschema_rs

from recon_node.ipld import CID
from recon_node.streams.json_values import MAX_WEIGHT, JsonPatchError, measure
from recon_node.streams.schema_loops import SchemaError
from recon_node.streams.schema_price import SchemaPrice

MAX_SCHEMA: Final = 100_000
"""Bytes of a schema's JSON, about."""
MAX_COST: Final = 100_000_000
"""Of checking a document, in units of about 4 ns. The interpreter can do nothing else meanwhile."""

MAX_REASON: Final = 10_000_000
"""Bytes copied to say why a document does not conform. The engine copies what each of the
alternatives of an `anyOf` rejects."""
MAX_STACK: Final = 10_000
"""Levels of schema and content that are under way at once, each some hundred bytes of the stack."""

_REMEMBERED: Final = 64
"""Compiled schemas, the latest used."""
_PATTERN_BYTES: Final = 1024 * 1024
"""Of a compiled pattern, and of what the engine remembers while it matches."""


class DocumentSchema:
    """A schema, compiled. Nothing in it depends on what was checked before.

    Args:
        schema: as a model's definition has it.

    Raises:
        SchemaError: it is not a JSON Schema, or not one that can be checked by within bounds.
    """

    __slots__ = ("_price", "_validator")

    def __init__(self, schema: dict[str, Any]) -> None:
        self._price = SchemaPrice.of(schema)
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
            weight: the bytes of its JSON, about; see `recon_node.streams.json_values`.
        """
        depth = 0
        # A value weighs 2 at least, so that most content need not be measured.
        if self._price.is_recursive or self._price.of_check(weight // 2, weight, 0) > MAX_COST:
            size = measure(content, 2 * MAX_WEIGHT)
            depth = size.depth
            if self._price.of_check(size.steps, weight, depth) > MAX_COST:
                return "the document is too large to be checked by its model's schema"
            if self._price.stack(depth) > MAX_STACK:
                return "the document is nested too deep to be checked by its model's schema"
        with_reason = self._price.of_reason(weight, depth) <= MAX_REASON
        try:
            return self._error(content, with_reason)
        except ValueError:  # bytes, or nested too deep
            pass
        try:
            return self._error(json.loads(json.dumps(content, default=dag_json)), with_reason)
        except ValueError as error:
            return f"the document cannot be checked by its model's schema: {error}"

    def _error(self, content: Any, with_reason: bool) -> str | None:
        if self._validator.is_valid(content):
            return None
        if not with_reason:
            return "the document does not conform to its model's schema"
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
