"""What it costs to check documents by a JSON Schema, at most: known before the work starts.

A schema is *unfolded*: each `$ref` is replaced with what it refers to. Each part of the unfolded
schema looks at a part of the content at most once, so their numbers multiplied bound the work.

Where a schema refers to itself, unfolding stops at what closes the loop (a *head*; see
`recon_node.streams.schema_loops`). A head is checked anew at each level of the content, at most
`branching` times as often as at the level above. So the work grows with the content's depth, and
exponentially where alternatives lead to the same place.
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
"""What the patterns of a schema cost for each byte. A compiled pattern takes up to 150 bytes of
memory for each unit."""

_CONVERSION: Final = 50
"""What each value in the content costs beside."""
_COMPARISONS: Final = 300
"""What it costs to find equal items among others, for each."""
_MAX_PATTERN: Final = 3_000
"""What the largest pattern that the engine takes costs for each byte."""
_BEYOND: Final = 10**30
"""More than any bound."""

_REPETITION: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_UNSUPPORTED: Final = ("$dynamicRef", "$recursiveRef")


class _Price(NamedTuple):
    """Of an unfolded schema: its parts, those of them that are in alternatives, the keywords that
    look at the parts beside them once more, what its patterns cost for each byte of the content,
    and its levels."""

    parts: int = 1
    alternatives: int = 0
    unevaluated: int = 0
    patterns: int = 0
    levels: int = 1

    def plus(self, part: _Price) -> _Price:
        """With a part of it."""
        return _Price(
            self.parts + part.parts,
            self.alternatives + part.alternatives,
            self.unevaluated + part.unevaluated,
            self.patterns + part.patterns,
            max(self.levels, part.levels + 1),
        )


@dataclass(frozen=True, slots=True)
class SchemaPrice:
    """What a schema costs.

    Raises:
        SchemaError: it refers to what is not in it, refers to itself without end, or is too large.
    """

    _whole: _Price
    _loops: Loops

    @classmethod
    def of(cls, schema: dict[str, Any]) -> SchemaPrice:
        """The price of a schema."""
        loops = find_loops(schema, MAX_PARTS)
        return cls(_Unfolding(schema, loops.heads).whole(), loops)

    @property
    def is_recursive(self) -> bool:
        """Whether the schema refers to itself."""
        return bool(self._loops.heads)

    def of_check(self, values: int, weight: int, depth: int) -> int:
        """What it costs to find out whether content conforms, in units of about 4 ns."""
        once = self._whole.parts * (1 + self._whole.unevaluated) * (values + 1)
        once += self._whole.patterns * weight
        return _CONVERSION * (values + 1) + self._times(self._loops.branching, depth) * once

    def of_reason(self, weight: int, depth: int) -> int:
        """The bytes that are copied to say why content does not conform: for each alternative that
        fails, what fails there."""
        return self._times(2 * self._loops.branching, depth) * self._whole.alternatives * weight

    def stack(self, depth: int) -> int:
        """The levels of schema that are under way at once, at most."""
        return self._whole.levels * (depth + 1 if self.is_recursive else 1)

    def _times(self, branching: int, depth: int) -> int:
        """How often a part may look at the same part of the content."""
        if not self.is_recursive:
            return 1
        if depth * math.log10(branching) > 15:
            return _BEYOND
        return int(self._loops.starts * (depth + 1) * branching**depth)


class _Unfolding:
    """Finds out what a schema costs, without unfolding it: what is referred to is priced once."""

    def __init__(self, schema: dict[str, Any], heads: Collection[str]) -> None:
        self._schema = schema
        self._heads = heads
        # Before draft 6, `id` is what `$id` is since: what refers to something else below it.
        self._id = "id" if "draft-04" in str(schema.get("$schema")) else "$id"
        self._targets: dict[str, _Price | None] = {}

    def whole(self) -> _Price:
        """The price of the schema, and of each head once."""
        price = self._of(self._schema, 0)
        for head in self._heads:
            part = self._of(target_of(self._schema, head), 0)
            # Heads can follow each other at one place in the content.
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
                price = _Price(1 + len(value) // 64)
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
        # What is under way and not a head is only beside it, as in $defs.
        return self._targets[reference] or _Price()


def _price_of_pattern(pattern: str) -> int:
    """Of each byte of the content: the states of the automaton, at most."""
    counts = (int((most or least)[:6]) for least, most in _REPETITION.findall(pattern))
    return min(len(pattern) * math.prod(max(count, 1) for count in counts), _MAX_PATTERN)
