"""The normal form of a model's schema: what checks a document, and nothing else.

Theory of operation. The verdict about a document is that of ajv for draft 2020-12 with formats off,
as for ceramic-one. So `format`, `contentEncoding` and `contentMediaType` are annotations, whatever
draft `$schema` names, and are left out, as are `default` and `examples`. A `$ref` may name an
`$anchor` or an `$id`; in the normal form each is a JSON Pointer into the schema. `const` and `enum`
are data: what looks like a keyword there is none.

Patterns with look-around or backreferences are matched by backtracking; in the normal form they
apply to short texts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin

from recon_node.streams.json_patch import parse_pointer
from recon_node.streams.json_values import JsonPatchError
from recon_node.streams.pattern_price import needs_backtracking

# Keywords with schemas; True: in an object by name. These check the content itself ...
HERE: Final = {
    **dict.fromkeys(("not", "if", "then", "else", "allOf", "anyOf", "oneOf"), False),
    **dict.fromkeys(("dependentSchemas", "dependencies"), True),
}
# ... these check a part of it, at most one of them the same part ...
EITHER: Final = {
    **dict.fromkeys(("items", "prefixItems", "additionalItems", "additionalProperties"), False),
    "properties": True,
}
# ... each of these may check that part, too ...
EACH: Final = {
    **dict.fromkeys(("contains", "propertyNames"), False),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), False),
    "patternProperties": True,
}
# ... and these check nothing unless something refers to them.
ASIDE: Final = {"$defs": True, "definitions": True}

_ALL: Final = {**HERE, **EITHER, **EACH, **ASIDE}
_ANNOTATIONS: Final = (
    *("format", "contentEncoding", "contentMediaType", "contentSchema"),
    *("default", "examples", "title", "description", "$comment", "deprecated"),
    *("readOnly", "writeOnly", "$schema"),
)
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")
ADDRESSES: Final = {
    **{
        name: f"http://json-schema.org/{name}/schema"
        for name in ("draft-04", "draft-06", "draft-07")
    },
    **{name: f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")},
}
"""The addresses of the drafts' own schemas."""
_DRAFTS: Final = {address: name for name, address in ADDRESSES.items()}
_OLDEST: Final = ("draft-04", "draft-06")
"""Drafts without `if`."""
_REF_IS_ALONE: Final = (*_OLDEST, "draft-07")
"""Drafts in which nothing else counts beside `$ref`."""
MAX_BACKTRACKED: Final = 1_000
"""Characters of a text that is matched with look-around; a longer one does not match."""
MAX_ADDRESSES: Final = 4_000_000
"""Characters of all addresses and JSON Pointers that references are looked up by: parts of a schema
share what leads to them, and a text of it for each would take a thousand times the schema."""
_CLASSES: Final = {
    r"\d": "0-9",
    r"\D": r"\u0000-/:-\u{10ffff}",
    r"\w": "0-9A-Z_a-z",
    r"\W": r"\u0000-/:-@\[-\^`{-\u{10ffff}",
    r"\s": r"\u0009-\u000d \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    r"\ufeff",
    r"\S": r"\u0000-\u0008\u000e-\u001f!-\u009f\u00a1-\u167f\u1681-\u1fff\u200b-\u2027"
    r"\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\ufefe\uff00-\u{10ffff}",
}
"""The characters that JavaScript's escapes stand for."""
_DYNAMIC: Final = {"2019-09": "$recursiveRef", "2020-12": "$dynamicRef"}
"""Keywords that mean the same as `$ref` where a schema has no part with an `$id`."""


class SchemaError(ValueError):
    """A schema that cannot be used to check documents; the message says why."""


def draft_of(schema: dict[str, Any]) -> str:
    """Return the name of the draft that a schema is written in, such as `draft-07` or `2020-12`.

    Raises:
        SchemaError: `$schema` is not the address of a draft.
    """
    if "$schema" not in schema:
        return "2020-12"
    address = schema["$schema"]
    if isinstance(address, str) and (draft := _DRAFTS.get(address.removesuffix("#"))):
        return draft
    raise SchemaError(f"its '$schema' is {address!r}, which is not a draft of JSON Schema")


def normal_form(schema: dict[str, Any], draft: str) -> dict[str, Any]:
    """Bring a schema of that draft into its normal form, in place; it names no draft any more.

    Raises:
        SchemaError: it refers to something that is not in it, or has a keyword that is not
            supported; the message names it.
    """
    own, other = ("id", "$id") if draft == "draft-04" else ("$id", "id")
    places = _Places(schema, own, draft in _REF_IS_ALONE)
    dynamic = _DYNAMIC.get(draft) if places.are_of_one_resource else None
    todo: list[Any] = [schema]
    seen: set[int] = set()
    guarded: list[dict[str, Any]] = []
    while todo:
        part = todo.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        if dynamic in part and "$ref" not in part:
            part["$ref"] = part.pop(dynamic)
        for keyword in (other, *_DYNAMIC.values()):
            if keyword in part:
                raise SchemaError(f"{keyword!r} in it is not supported")
        for keyword in (*_ANNOTATIONS, *_ANCHORS, own):
            part.pop(keyword, None)
        if isinstance(reference := part.get("$ref"), str):
            part["$ref"] = places.pointer_of(reference, part)
            todo.append(target_of(schema, part["$ref"]))
        if _has_to_be_guarded(part):
            guarded.append(part)
        todo.extend(parts_of(part, _ALL))
    if guarded and draft in _OLDEST:
        raise SchemaError("look-around in a 'pattern' is not supported before draft-07")
    for part in guarded:
        _guard(part)
    return schema


def _has_to_be_guarded(part: dict[str, Any]) -> bool:
    by_pattern = part.get("patternProperties")
    if isinstance(by_pattern, dict) and any(map(needs_backtracking, by_pattern)):
        raise SchemaError("look-around in its 'patternProperties' is not supported")
    pattern = part.get("pattern")
    return isinstance(pattern, str) and needs_backtracking(pattern)


def _guard(part: dict[str, Any]) -> None:
    """Keep long texts from a pattern that needs backtracking."""
    is_long = {"type": "string", "minLength": MAX_BACKTRACKED + 1}
    checked = {
        "if": is_long,
        "then": {"maxLength": MAX_BACKTRACKED},
        "else": {"pattern": _as_in_javascript(part.pop("pattern"))},
    }
    others = part.get("allOf")
    part["allOf"] = [*(others if isinstance(others, list) else ()), checked]


def _as_in_javascript(pattern: str) -> str:
    """Write out the escapes that the engine takes for Unicode's classes where it backtracks."""
    in_class = False

    def written_out(found: re.Match[str]) -> str:
        nonlocal in_class
        token = found[0]
        if token in ("[", "]"):
            in_class = token == "["
        characters = _CLASSES.get(token)
        if characters is None:
            return token
        return characters if in_class else f"[{characters}]"

    return re.sub(r"\\.|[\[\]]", written_out, pattern, flags=re.DOTALL)


class _Path(NamedTuple):
    """Leads from a schema to a part of it: to the one above it, and the last step."""

    above: _Path | None
    step: str

    def __str__(self) -> str:
        steps = []
        path: _Path | None = self
        while path is not None:
            steps.append(path.step)
            path = path.above
        return "".join(reversed(steps))


class _Places:
    """What the references in a schema may mean: places in it, by address.

    `$id` gives a part an address, against which the references in it are read; a nested one, too.
    """

    def __init__(self, schema: dict[str, Any], own: str, ref_is_alone: bool) -> None:
        self._own = own
        self._ref_is_alone = ref_is_alone
        self._pointers = {"": "#"}  # by address, with a fragment for an anchor
        self._bases: dict[int, str] = {}  # by the id of a part
        self._left = MAX_ADDRESSES
        todo: list[tuple[str, _Path, Any]] = [("", _Path(None, "#"), schema)]
        while todo:
            base, path, part = todo.pop()
            if isinstance(part, dict):
                base = self._bases[id(part)] = self._add(base, path, part)
                todo += [(base, _Path(path, step), below) for step, below in steps_below(part)]

    def _add(self, base: str, path: _Path, part: dict[str, Any]) -> str:
        """Note the names of a part, and return the address against which it is read."""
        address = part.get(self._own)
        if isinstance(address, str) and not (self._ref_is_alone and "$ref" in part):
            resource, _, name = _joined(base, address).partition("#")
            base = resource
            self._note(f"{base}#{name}" if name else base, path)
        for keyword in _ANCHORS:
            if isinstance(anchor := part.get(keyword), str):
                self._note(f"{base}#{anchor}", path)
        return base

    def _note(self, address: str, path: _Path) -> None:
        self._pointers[address] = pointer = str(path)
        self._count(address, pointer)

    def _count(self, *texts: str) -> None:
        self._left -= sum(map(len, texts))
        if self._left < 0:
            raise SchemaError(f"its references take more than {MAX_ADDRESSES:,} characters")

    @property
    def are_of_one_resource(self) -> bool:
        """Whether no part but the whole schema has an address."""
        return len(set(self._bases.values())) == 1

    def pointer_of(self, reference: str, part: dict[str, Any]) -> str:
        """Return a reference in that part as `#` and a JSON Pointer into the whole schema."""
        address = _joined(self._bases.get(id(part), ""), reference)
        resource, _, fragment = address.partition("#")
        is_pointer = not fragment or fragment.startswith("/")
        pointer = self._pointers.get(resource if is_pointer else address)
        if pointer is None:
            raise elsewhere(reference)
        pointer += fragment if is_pointer else ""
        self._count(address, pointer)
        return pointer


def target_of(schema: Any, reference: str) -> Any:
    """Return the target of a `$ref` in normal form.

    Raises:
        SchemaError: it is not in the schema.
    """
    try:
        target = schema
        for token in parse_pointer(unquote(reference[1:])):
            target = target[int(token) if isinstance(target, list) else token]
    except (JsonPatchError, LookupError, TypeError, ValueError):
        raise elsewhere(reference) from None
    return target


def parts_of(schema: Any, keywords: Mapping[str, bool]) -> Iterator[Any]:
    """Yield the schemas under these keywords."""
    if not isinstance(schema, dict):
        return
    for keyword, is_by_name in keywords.items():
        value = schema.get(keyword)
        if isinstance(value, list) and not is_by_name:
            yield from value
        elif isinstance(value, dict) and is_by_name:
            yield from value.values()
        elif isinstance(value, dict):
            yield value


def steps_below(part: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the schemas in a part, each with the step to it: the end of its JSON Pointer."""
    for keyword, is_by_name in _ALL.items():
        value = part.get(keyword)
        if isinstance(value, list) and not is_by_name:
            yield from ((f"/{keyword}/{number}", item) for number, item in enumerate(value))
        elif isinstance(value, dict) and is_by_name:
            yield from ((f"/{keyword}/{_token(name)}", item) for name, item in value.items())
        elif value is not None:
            yield f"/{keyword}", value


def _token(name: str) -> str:
    """A name in a JSON Pointer within a URI."""
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


def elsewhere(reference: str) -> SchemaError:
    """Return the error of a reference to something that is not in the schema."""
    return SchemaError(f"it refers to {reference!r}, which is not in it")


def _joined(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        raise elsewhere(reference) from None
