"""The maximum cost of checking documents by a JSON Schema, known before the work starts.

A schema, in its normal form (`recon_node.streams.schema_normal_form`), is *unfolded*: each `$ref`
is replaced with its target. Each part of the unfolded schema checks a part of the content at most
once, so the product of their numbers bounds the work.

If a schema refers to itself, unfolding stops at the `$ref` that closes the loop: to something that
is being checked, the loop's *head*. Each path around a loop must descend into a part of the content
(through `properties` or `items`, for example), or it would never end. A head is checked again at
each level of the content, at most `branching` times as often as at the level above. So the work
grows with the content's depth, and exponentially if alternatives lead to the same place.

The engine computes with exact decimals: to compare a fraction takes ten times as long as a small
integer, and one with 300 digits a thousand times. So numbers are priced by their digits, those of
the schema (`_Price.slow`) and those of the content (`dearness`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import add
from typing import Any, Final, NamedTuple

from recon_node.ipld import CID
from recon_node.streams.json_values import weigh_text
from recon_node.streams.pattern_price import price_of_pattern
from recon_node.streams.schema_normal_form import (
    EACH,
    EITHER,
    HERE,
    SchemaError,
    parts_of,
    steps_below,
    target_of,
)

MAX_NESTING: Final = 100
"""Levels of an unfolded schema."""
MAX_SCHEMA_PARTS: Final = 100_000
"""Parts of an unfolded schema."""
MAX_PATTERNS: Final = 30_000
"""Cost of a schema's patterns for each byte of content. A unit takes up to 150 bytes of memory."""

MAX_MEMORY: Final = 64 * 1024
"""KiB that the compiled patterns of a schema hold, and the paths to its parts, each at most."""

_CALL: Final = 1_000
"""Cost of any check."""
_CONVERSION: Final = 100
"""Additional cost of each value in the content."""
OWN_KEYWORDS: Final = ("uniqueItems", "multipleOf")
"""Keywords that are checked in Python."""
_COMPARISONS: Final = 1_500
"""Cost of comparing one item with the others, to find equal ones."""
_NUMBER: Final = 120
"""Cost of comparing two small integers."""
_EXACT: Final = 250
_DIGIT: Final = 48
"""Additional cost of any other number that is compared, and for each of its digits."""
_SMALL_INTEGER: Final = 2**53
_FLOAT_DIGITS: Final = 17
"""Digits of a float, at most, without the zeros before or after them."""
_LOG10_OF_2: Final = (77, 256)
_NOT_JSON: Final = 1_500
"""Cost of bytes, or of a link, which are converted to JSON first."""
_AGAIN: Final = 4
"""How often `unevaluated...` makes the parts next to it check the same again."""
_MAX_DIGITS: Final = 15
"""Decimal digits of the largest number that is computed; beyond it is `_BEYOND`."""
_BEYOND: Final = 10**30
"""More than any limit."""
_BYTES: Final = 16
"""Bytes of text that are counted, or compared, in one step."""
_TEXT_PER_PART: Final = 64
"""Characters of a text in a schema that count as one part of it."""
_PATHS_PER_KIB: Final = 512
"""Bytes of paths for which the engine holds a KiB."""
_UNEVALUATED: Final = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SCHEMAS: Final = {**HERE, **EITHER, **EACH}
_DATA: Final = ("const", "enum", "required", "dependentRequired", "type")


class _Price(NamedTuple):
    """Of an unfolded schema.

    Attributes:
        parts: that check each value of the content, at most.
        slow: the additional cost of slow parts, for each value.
        numbers: how many numbers each value is compared with.
        alternatives: how many of them are in alternatives.
        has_unevaluated: whether a keyword checks the parts next to it again; 0 or more.
        patterns: the cost of its patterns for each byte of content.
        texts: the cost of what else reads texts, for each `_BYTES` bytes.
        backtracking: patterns with look-around.
        regexes: its patterns.
        memory: that its compiled patterns hold, in KiB; of the whole schema, with the paths.
        levels: of nesting.
    """

    parts: int = 1
    slow: int = 0
    numbers: int = 0
    alternatives: int = 0
    has_unevaluated: int = 0
    patterns: int = 0
    texts: int = 0
    backtracking: int = 0
    regexes: int = 0
    memory: int = 0
    levels: int = 1

    def plus(self, part: _Price) -> _Price:
        sums = _Price._make(map(add, self, part))
        return sums._replace(levels=max(self.levels, part.levels + 1))

    def again(self) -> _Price:
        """The price if `unevaluated...` has everything checked again."""
        more = _Price._make(_AGAIN * number for number in self)
        return more._replace(levels=self.levels, has_unevaluated=1)


@dataclass(frozen=True, slots=True)
class SchemaPrice:
    """The price of a schema.

    Attributes:
        is_recursive: whether it refers to itself.
        whole: what any content costs.
    """

    is_recursive: bool
    whole: _Price
    _members: Mapping[str, _Price]
    _loops: _Loops

    @classmethod
    def of(cls, schema: dict[str, Any]) -> SchemaPrice:
        """Compute the price of a schema.

        Raises:
            SchemaError: it refers to something outside, or to itself without end, or is too large.
        """
        loops = _Walk(schema).loops()
        unfolding = _Unfolding(schema, loops.heads)
        members = {} if loops.heads else unfolding.members()
        return cls(bool(loops.heads), unfolding.whole(), members, loops)

    def of_check(
        self, values: int, weight: int, depth: int, dear: int, member: str | None = None
    ) -> int:
        """The cost of checking content, in units of about 4 ns.

        Args:
            values: in the content.
            weight: approximate bytes of its JSON.
            depth: levels of its nesting.
            dear: its `dearness`.
            member: if it is only checked by what `properties` has for this name.
        """
        whole = self.whole if member is None else self._members.get(member, self.whole)
        once = (whole.parts + whole.slow) * (values + 1) + whole.numbers * dear
        once += whole.patterns * weight + whole.texts * weight // _BYTES
        conversion = _CALL + _CONVERSION * (values + 1) + weight + dear
        if not self.is_recursive:
            return conversion + once
        return conversion + self._times(self._loops.branching, depth) * once

    def of_dear(self, dear: int) -> int:
        """What content costs in addition for its `dearness`, unless the schema is recursive."""
        return dear * (1 + self.whole.numbers)

    def of_reason(self, weight: int, depth: int) -> int:
        """The bytes copied to say why content does not conform: what fails in each alternative."""
        return self._times(2 * self._loops.branching, depth) * self.whole.alternatives * weight

    def stack(self, depth: int) -> int:
        """The maximum of nested levels of schema."""
        return self.whole.levels * (depth + 1 if self.is_recursive else 1)

    def _times(self, branching: int, depth: int) -> int:
        """How often a part may check the same part of the content."""
        if not self.is_recursive:
            return 1
        if depth * math.log10(branching) > _MAX_DIGITS:
            return _BEYOND
        return int(self._loops.starts * (depth + 1) * branching**depth)


class _Unfolding:
    """Computes the price of a schema without unfolding it: each target of a reference once."""

    def __init__(self, schema: dict[str, Any], heads: Collection[str]) -> None:
        self._schema = schema
        self._heads = heads
        self._targets: dict[str, _Price | None] = {}

    def whole(self) -> _Price:
        """The price of the schema, and of each head once."""
        price = self._of(self._schema, 0)
        for head in self._heads:
            part = self._of(target_of(self._schema, head), 0)
            # Heads can refer to each other at the same place in the content.
            levels = price.levels + part.levels
            price = _checked(price.plus(part)._replace(levels=levels))
        if price.has_unevaluated and self._heads:
            raise SchemaError("it refers to itself and has 'unevaluated...': not supported")
        if price.patterns > MAX_PATTERNS or price.memory > MAX_MEMORY:
            raise SchemaError("its patterns take too much memory")
        paths = _of_paths(self._schema)
        if paths > MAX_MEMORY:
            raise SchemaError("too many of its parts are below long names")
        return price._replace(memory=price.memory + paths)

    def members(self) -> dict[str, _Price]:
        """The price of what `properties` has for each name."""
        properties = self._schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        return {name: self._of(part, 1) for name, part in properties.items()}

    def _of(self, schema: Any, depth: int) -> _Price:
        price = _Price()
        if isinstance(schema, dict) and depth < MAX_NESTING:
            for keyword, value in schema.items():
                price = price.plus(self._of_keyword(keyword, value, depth))
            if not _UNEVALUATED.isdisjoint(schema):
                price = price.again()
        if depth + price.levels > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
        return _checked(price)

    def _of_keyword(self, keyword: str, value: Any, depth: int) -> _Price:
        if keyword == "$ref" and isinstance(value, str):
            return self._of_reference(value, depth)
        if keyword in _SCHEMAS:
            return self._of_schemas(keyword, value, depth + 1)
        if keyword in _DATA:
            return _price_of_data(value)
        if keyword in ("minLength", "maxLength"):
            return _Price(texts=1)
        if keyword in _NUMBERS:
            return _price_of_number(value)
        if keyword == "pattern" and isinstance(value, str):
            return _price_of_pattern(value)
        if keyword in OWN_KEYWORDS:
            return _Price(slow=_COMPARISONS, numbers=1, texts=_COMPARISONS)
        return _Price()

    def _of_schemas(self, keyword: str, value: Any, depth: int) -> _Price:
        price = _Price()
        if isinstance(value, dict) and _SCHEMAS[keyword]:
            for name, member in value.items():
                price = price.plus(_Price(1 + len(name) // _TEXT_PER_PART))
                if keyword == "patternProperties":
                    price = price.plus(_price_of_pattern(name))
                price = price.plus(self._of(member, depth))
        else:
            for member in value if isinstance(value, list) else (value,):
                price = price.plus(self._of(member, depth))
        if keyword in ("anyOf", "oneOf"):
            return price._replace(alternatives=price.parts)
        return price

    def _of_reference(self, reference: str, depth: int) -> _Price:
        if reference in self._heads:
            return _Price()
        if reference not in self._targets:
            self._targets[reference] = None  # under way
            self._targets[reference] = self._of(target_of(self._schema, reference), depth + 1)
        # A target that is being priced and is not a head is only next to it, as in $defs.
        return self._targets[reference] or _Price()


def _checked(price: _Price) -> _Price:
    if price.parts > MAX_SCHEMA_PARTS:
        raise SchemaError(f"with its references, it has more than {MAX_SCHEMA_PARTS} parts")
    return price


def _price_of_pattern(pattern: str) -> _Price:
    price = price_of_pattern(pattern)
    return _Price(
        slow=price.for_text,
        patterns=price.states,
        texts=_BYTES * price.for_byte,
        backtracking=price.for_text > 0,
        regexes=1,
        memory=price.memory,
    )


def _price_of_data(value: Any) -> _Price:
    """Of what content is compared with."""
    price = _Price(0, levels=0)
    parts = levels = 0
    level = [value]
    while level:
        levels += 1
        for part in level:
            parts += 1 + (len(part) // _TEXT_PER_PART if isinstance(part, str) else 0)
            if isinstance(part, int | float):
                price = price.plus(_price_of_number(part))
        level = [member for part in level for member in _members(part)]
    return price._replace(parts=parts, levels=levels)


def _price_of_number(value: Any) -> _Price:
    """Of one number that content is compared with."""
    return _Price(slow=_NUMBER + _dearness_of(value), numbers=1)


def dearness(value: Any) -> int:
    """Return by how much the values in a document are dearer than small integers and text, each
    time that one of them is compared. Values that share parts count for each place."""
    dear = 0
    level: Collection[Any] = value.values() if type(value) is dict else (value,)
    while not _NOT_CHEAP.isdisjoint(kinds := set(map(type, level))):
        if not kinds.isdisjoint(_DEAR):
            dear += sum(map(_dearness_of, level))
        below: list[Any] = []
        if dict in kinds:
            below += chain.from_iterable(part.values() for part in level if type(part) is dict)
        if list in kinds:
            below += chain.from_iterable(part for part in level if type(part) is list)
        level = below
    return dear


_DEAR: Final = frozenset({float, int, bytes, CID})
_NOT_CHEAP: Final = _DEAR | {dict, list}


def _dearness_of(value: Any) -> int:
    if isinstance(value, float):
        digits = abs(math.frexp(value)[1]) * _LOG10_OF_2[0] // _LOG10_OF_2[1] + _FLOAT_DIGITS
        return _EXACT + _DIGIT * digits
    if isinstance(value, int) and abs(value) > _SMALL_INTEGER:
        return _EXACT + _DIGIT * len(str(value))
    return _NOT_JSON if isinstance(value, bytes) else 0


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return chain(value, value.values())
    return value if isinstance(value, list) else ()


def _of_paths(schema: dict[str, Any]) -> int:
    """KiB of the paths to all keywords of a schema: the engine keeps a text of each."""
    size = 0
    todo: list[tuple[int, Any]] = [(0, schema)]
    while todo:
        above, part = todo.pop()
        size += above
        if isinstance(part, dict):
            size += sum(above + len(keyword) for keyword in part)
            if isinstance(names := part.get("dependentRequired"), dict):
                size += above * len(names)
            todo += [(above + weigh_text(step), below) for step, below in steps_below(part)]
    return size // _PATHS_PER_KIB


@dataclass(frozen=True, slots=True)
class _Loops:
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


class _Walk:
    """Finds where a schema in normal form refers to itself, in `MAX_SCHEMA_PARTS` steps."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._steps = MAX_SCHEMA_PARTS
        self._looks: dict[str, _Looks] = {}
        self._here: dict[str, int | None] = {}
        self._heads: set[str] = set()

    def loops(self) -> _Loops:
        self._find_heads()
        if not self._heads:
            return _Loops()
        whole = self._look(self._schema)
        below = [self._look(self._target(head)).below for head in sorted(self._heads)]
        return _Loops(frozenset(self._heads), 1 + whole.here, max(1, whole.below, *below))

    def _find_heads(self) -> None:
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
                self._heads.add(reference)
            elif reference not in under_way:
                under_way[reference] = True
                todo.append((reference, self._references(self._target(reference))))

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

    def _look(self, schema: Any, depth: int = 0) -> _Looks:
        """Count how often a schema makes heads check the content."""
        self._step(depth)
        here = below = either = 0
        for part in parts_of(schema, HERE):
            looks = self._look(part, depth + 1)
            here, below = here + looks.here, below + looks.below
        for part in parts_of(schema, EITHER):
            either = max(either, sum(self._look(part, depth + 1)))
        for part in parts_of(schema, EACH):
            below += sum(self._look(part, depth + 1))
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            looks = self._of_reference(reference, depth + 1)
            here, below = here + looks.here, below + looks.below
        return _Looks(here, below + either)

    def _of_reference(self, reference: str, depth: int) -> _Looks:
        if reference in self._heads:  # what it checks below counts as its own
            return _Looks(1 + self._here_of(reference, depth), 0)
        if reference not in self._looks:
            self._here_of(reference, depth)
            self._looks[reference] = self._look(self._target(reference), depth)
        return self._looks[reference]

    def _here_of(self, reference: str, depth: int) -> int:
        if reference not in self._here:
            self._here[reference] = None  # under way
            self._here[reference] = self._look_here(self._target(reference), depth)
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
            total += (reference in self._heads) + self._here_of(reference, depth + 1)
        return total

    def _target(self, reference: str) -> Any:
        return target_of(self._schema, reference)

    def _step(self, depth: int) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise SchemaError("it refers to itself and has too many parts")
        if depth > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
