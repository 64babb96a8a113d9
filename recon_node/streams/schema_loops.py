"""The normal form of a JSON Schema, and where it refers to itself.

The normal form has what checks a document, and nothing else. The verdict on a document is that of
ajv for draft 2020-12 with formats off, by which js-ceramic checks documents. So `format`,
`contentEncoding` and `contentMediaType` are annotations, whatever draft `$schema` names, and are
left out, as are `default` and `examples`. A `$ref` may name an `$anchor` or the schema's own `$id`;
in the normal form each is a JSON Pointer into the schema. `const` and `enum` are data: what looks
like a keyword there is none.

Patterns are matched in time linear in the text, but for those with look-around or backreferences,
such as ComposeDB's `Duration`. These are matched by backtracking, with a limit of steps and of the
text's length.

A loop is closed by a `$ref` to something that is being checked: its *head*. Each path around a loop
must descend into a part of the content (through `properties` or `items`, for example), or it would
never end. The loops say how often a schema checks the same content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urljoin

from recon_node.streams.json_patch import parse_pointer
from recon_node.streams.json_values import JsonPatchError

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
_DRAFTS: Final = {
    **{f"json-schema.org/{name}/schema": name for name in ("draft-04", "draft-06", "draft-07")},
    **{f"json-schema.org/draft/{name}/schema": name for name in ("2019-09", "2020-12")},
}
_DEFAULT_DRAFT: Final = "2020-12"
_OLDEST: Final = ("draft-04", "draft-06")
"""Drafts without `if`."""
_IDS: Final = ("id", "$id")
"""The names of one keyword, before draft 6 and since: it changes what references below it mean."""
_NEEDS_BACKTRACKING: Final = re.compile(r"\(\?<?[=!]|\\[1-9k]")

MAX_BACKTRACKED: Final = 1_000
"""Characters of a text that is matched with look-around; a longer one does not match."""
_UNSUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class SchemaError(ValueError):
    """A schema that cannot be used to check documents; the message says why."""


def draft_of(schema: dict[str, Any]) -> str:
    """Return the name of the draft that a schema is written in, such as `draft-07` or `2020-12`.

    Raises:
        SchemaError: `$schema` is not the address of a draft.
    """
    if "$schema" not in schema:
        return _DEFAULT_DRAFT
    address = schema["$schema"]
    if isinstance(address, str):
        name = re.sub("^https?://", "", address).removesuffix("#")
        if name != address and name in _DRAFTS:
            return _DRAFTS[name]
    raise SchemaError(f"its '$schema' is {address!r}, which is not a draft of JSON Schema")


def normal_form(schema: dict[str, Any]) -> dict[str, Any]:
    """Bring a schema into its normal form, in place; it does not name its draft any more.

    Raises:
        SchemaError: it refers to something that is not in it, or has a keyword or a draft that is
            not supported; the message names it.
    """
    draft = draft_of(schema)
    own = "id" if draft == "draft-04" else "$id"
    base = schema.pop(own) if isinstance(schema.get(own), str) else ""
    anchors = dict(_anchors(schema))
    todo: list[Any] = [schema]
    seen: set[int] = set()
    guarded: list[dict[str, Any]] = []
    while todo:
        part = todo.pop()
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        for keyword in (*_IDS, *_UNSUPPORTED):
            if keyword in part:
                raise SchemaError(f"{keyword!r} in it is not supported")
        for keyword in (*_ANNOTATIONS, *_ANCHORS):
            part.pop(keyword, None)
        if isinstance(reference := part.get("$ref"), str):
            part["$ref"] = _as_pointer(reference, base, anchors)
            todo.append(target_of(schema, part["$ref"]))
        if _has_to_be_guarded(part):
            guarded.append(part)
        todo.extend(parts_of(part, _ALL))
    if guarded and draft in _OLDEST:
        raise SchemaError("look-around in a 'pattern' is not supported before draft-07")
    for part in guarded:
        _guard(part)
    return schema


def needs_backtracking(pattern: str) -> bool:
    """Whether a pattern has look-around or backreferences."""
    return _NEEDS_BACKTRACKING.search(pattern.replace("\\\\", "")) is not None


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
        raise _elsewhere(reference) from None
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
        "else": {"pattern": part.pop("pattern")},
    }
    others = part.get("allOf")
    part["allOf"] = [*(others if isinstance(others, list) else ()), checked]


def _as_pointer(reference: str, base: str, anchors: Mapping[str, str]) -> str:
    """A reference as `#` and a JSON Pointer."""
    resource, _, fragment = reference.partition("#")
    if resource:
        try:
            is_own = base != "" and urljoin(base, resource) == base.removesuffix("#")
        except ValueError:
            is_own = False
        if not is_own:
            raise _elsewhere(reference)
    if not fragment or fragment.startswith("/"):
        return f"#{fragment}"
    if fragment not in anchors:
        raise _elsewhere(reference)
    return anchors[fragment]


def _elsewhere(reference: str) -> SchemaError:
    return SchemaError(f"it refers to {reference!r}, which is not in it")


def _anchors(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The anchors of a schema, each with the reference that means the same place."""
    todo: list[tuple[str, Any]] = [("#", schema)]
    while todo:
        path, part = todo.pop()
        if not isinstance(part, dict):
            continue
        for keyword in _ANCHORS:
            if isinstance(name := part.get(keyword), str):
                yield name, path
        for keyword, is_by_name in _ALL.items():
            value = part.get(keyword)
            below = f"{path}/{keyword}"
            if isinstance(value, list) and not is_by_name:
                todo += [(f"{below}/{number}", item) for number, item in enumerate(value)]
            elif isinstance(value, dict) and is_by_name:
                todo += [(f"{below}/{_token(name)}", member) for name, member in value.items()]
            else:
                todo.append((below, value))


def _token(name: str) -> str:
    """A name in a JSON Pointer within a URI."""
    return name.replace("~", "~0").replace("/", "~1").replace("%", "%25")


MAX_NESTING: Final = 100
"""Levels of an unfolded schema."""


@dataclass(frozen=True, slots=True)
class Loops:
    """The loops of a schema.

    Attributes:
        heads: the references that close them.
        starts: how often heads check the whole content, at most, plus 1.
        branching: how often heads check a part of the content, at most, for each time that a head
            checks the containing part; at least 1.
    """

    heads: frozenset[str] = frozenset()
    starts: int = 1
    branching: int = 1


class _Looks(NamedTuple):
    """How often a schema makes heads check the content itself, and one part of it."""

    here: int
    below: int


def find_loops(schema: dict[str, Any], max_steps: int) -> Loops:
    """Find where a schema in normal form refers to itself.

    Raises:
        SchemaError: it refers to itself without end, or the search takes
            more than `max_steps`.
    """
    walk = _Walk(schema, max_steps)
    walk.find_heads()
    if not walk.heads:
        return Loops()
    whole = walk.looks(schema)
    below = [walk.looks(walk.target(head)).below for head in sorted(walk.heads)]
    return Loops(frozenset(walk.heads), 1 + whole.here, max(1, whole.below, *below))


class _Walk:
    def __init__(self, schema: dict[str, Any], max_steps: int) -> None:
        self._schema = schema
        self._steps = max_steps
        self._looks: dict[str, _Looks] = {}
        self._here: dict[str, int | None] = {}
        self.heads: set[str] = set()

    def find_heads(self) -> None:
        """Follow all references; note those to something that is being followed."""
        under_way = {"#": True}
        todo = [("#", self._references(self._schema))]
        while todo:
            name, references = todo[-1]
            reference = next(references, None)
            if reference is None:
                under_way[name] = False
                todo.pop()
            elif under_way.get(reference):
                self.heads.add(reference)
            elif reference not in under_way:
                under_way[reference] = True
                todo.append((reference, self._references(self.target(reference))))

    def _references(self, schema: Any) -> Iterator[str]:
        todo = [schema]
        while todo:
            value = todo.pop()
            self._step(0)
            if isinstance(value, list):
                todo.extend(value)
            elif isinstance(value, dict):
                if isinstance(reference := value.get("$ref"), str):
                    yield reference
                todo.extend(parts_of(value, HERE))
                todo.extend(parts_of(value, EITHER))
                todo.extend(parts_of(value, EACH))

    def looks(self, schema: Any, depth: int = 0) -> _Looks:
        """Count how often a schema makes heads check the content."""
        self._step(depth)
        here = below = either = 0
        for part in parts_of(schema, HERE):
            looks = self.looks(part, depth + 1)
            here, below = here + looks.here, below + looks.below
        for part in parts_of(schema, EITHER):
            either = max(either, sum(self.looks(part, depth + 1)))
        for part in parts_of(schema, EACH):
            below += sum(self.looks(part, depth + 1))
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            looks = self._of_reference(reference, depth + 1)
            here, below = here + looks.here, below + looks.below
        return _Looks(here, below + either)

    def _of_reference(self, reference: str, depth: int) -> _Looks:
        if reference in self.heads:  # what it checks below counts as its own
            return _Looks(1 + self._here_of(reference, depth), 0)
        if reference not in self._looks:
            self._here_of(reference, depth)
            self._looks[reference] = self.looks(self.target(reference), depth)
        return self._looks[reference]

    def _here_of(self, reference: str, depth: int) -> int:
        if reference not in self._here:
            self._here[reference] = None  # under way
            self._here[reference] = self._look_here(self.target(reference), depth)
        known = self._here[reference]
        if known is None:
            raise SchemaError(f"{reference!r} in it refers to itself without end")
        return known

    def _look_here(self, schema: Any, depth: int) -> int:
        self._step(depth)
        total = 0
        for part in parts_of(schema, HERE):
            total += self._look_here(part, depth + 1)
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            total += (reference in self.heads) + self._here_of(reference, depth + 1)
        return total

    def target(self, reference: str) -> Any:
        return target_of(self._schema, reference)

    def _step(self, depth: int) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise SchemaError("it refers to itself and has too many parts")
        if depth > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
