"""The maximum cost of checking documents by a JSON Schema, known before the work starts.

A schema is *unfolded*: each `$ref` is replaced with its target. Each part of the unfolded schema
checks a part of the content at most once, so the product of their numbers bounds the work.

If a schema refers to itself, unfolding stops at the target that closes the loop (a *head*; see
`recon_node.streams.schema_loops`). A head is checked again at each level of the content, at most
`branching` times as often as at the level above. So the work grows with the content's depth, and
exponentially if alternatives lead to the same place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from recon_node.streams.schema_loops import (
    MAX_NESTING,
    Loops,
    SchemaError,
    find_loops,
    target_of,
)

MAX_PARTS: Final = 100_000
"""Parts of an unfolded schema."""
MAX_PATTERNS: Final = 30_000
"""Cost of a schema's patterns for each byte of content. A unit takes up to 150 bytes of memory."""

_CONVERSION: Final = 50
"""Additional cost of each value in the content."""
_COMPARISONS: Final = 300
"""Cost of comparing one item with the others, to find equal ones."""
_MAX_PATTERN: Final = 3_000
"""Cost, for each byte of content, of the largest pattern that the engine accepts."""
_MAX_DIGITS: Final = 15
"""Decimal digits of the largest number that is computed; beyond it is `_BEYOND`."""
_BEYOND: Final = 10**30
"""More than any limit."""
_TEXT_OF_A_PART: Final = 64
"""Characters of a text in a schema that count as one part of it."""
_COUNT_DIGITS: Final = 6
"""Digits of a pattern's repetition count that are read."""

_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_UNSUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class _Price(NamedTuple):
    """Of an unfolded schema: its parts, how many are in alternatives, the keywords that check the
    parts next to them again, the cost of its patterns for each byte of content, and its levels."""

    parts: int = 1
    alternatives: int = 0
    unevaluated: int = 0
    patterns: int = 0
    levels: int = 1

    def plus(self, part: _Price) -> _Price:
        """The price with that of a part added."""
        return _Price(
            self.parts + part.parts,
            self.alternatives + part.alternatives,
            self.unevaluated + part.unevaluated,
            self.patterns + part.patterns,
            max(self.levels, part.levels + 1),
        )


@dataclass(frozen=True, slots=True)
class SchemaPrice:
    """The price of a schema."""

    _whole: _Price
    _loops: Loops

    @classmethod
    def of(cls, schema: dict[str, Any]) -> SchemaPrice:
        """Compute the price of a schema.

        Raises:
            SchemaError: it refers to something outside, or to itself without end, or is too large.
        """
        loops = find_loops(schema, MAX_PARTS)
        return cls(_Unfolding(schema, loops.heads).whole(), loops)

    @property
    def is_recursive(self) -> bool:
        """Whether the schema refers to itself."""
        return bool(self._loops.heads)

    def of_check(self, values: int, weight: int, depth: int) -> int:
        """The cost of checking content, in units of about 4 ns.

        Args:
            values: in the content.
            weight: approximate bytes of its JSON.
            depth: levels of its nesting.
        """
        once = self._whole.parts * (1 + self._whole.unevaluated) * (values + 1)
        once += self._whole.patterns * weight
        return _CONVERSION * (values + 1) + self._times(self._loops.branching, depth) * once

    def of_reason(self, weight: int, depth: int) -> int:
        """The bytes copied to say why content does not conform: what fails in each alternative."""
        return self._times(2 * self._loops.branching, depth) * self._whole.alternatives * weight

    def stack(self, depth: int) -> int:
        """The maximum of nested levels of schema."""
        return self._whole.levels * (depth + 1 if self.is_recursive else 1)

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
        # Before draft 6, `$id` was called `id`: it changes what references below it mean.
        self._id = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        self._targets: dict[str, _Price | None] = {}

    def whole(self) -> _Price:
        """The price of the schema, and of each head once."""
        price = self._of(self._schema, 0)
        for head in self._heads:
            part = self._of(target_of(self._schema, head), 0)
            # Heads can refer to each other at the same place in the content.
            levels = price.levels + part.levels
            price = price.plus(part)._replace(levels=levels)
            self._check_size(price)
        if price.unevaluated and self._heads:
            raise SchemaError("it refers to itself and has 'unevaluated...': not supported")
        if price.patterns > MAX_PATTERNS:
            raise SchemaError("its patterns take too much memory")
        return price

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
                price = _Price(1 + len(value) // _TEXT_OF_A_PART)
        if depth + price.levels > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
        self._check_size(price)
        return price

    def _check_size(self, price: _Price) -> None:
        if price.parts > MAX_PARTS:
            raise SchemaError(f"with its references, it has more than {MAX_PARTS} parts")

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
        if keyword in ("anyOf", "oneOf"):
            return price._replace(alternatives=price.parts)
        if keyword in ("unevaluatedProperties", "unevaluatedItems"):
            return price._replace(unevaluated=price.unevaluated + 1)
        return price

    def _of_reference(self, reference: str, depth: int) -> _Price:
        if reference in self._heads:
            return _Price()
        if reference not in self._targets:
            self._targets[reference] = None  # under way
            self._targets[reference] = self._of(target_of(self._schema, reference), depth + 1)
        # A target that is being priced and is not a head is only next to it, as in $defs.
        return self._targets[reference] or _Price()


def _price_of_pattern(pattern: str) -> int:
    """The cost for each byte of content: the maximum number of the automaton's states."""
    counts = (int((most or least)[:_COUNT_DIGITS]) for least, most in _REPETITION.findall(pattern))
    return min(len(pattern) * math.prod(max(count, 1) for count in counts), _MAX_PATTERN)
