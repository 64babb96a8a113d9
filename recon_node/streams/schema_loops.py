"""Where a JSON Schema refers to itself, and how often it therefore checks the same content.

A loop is closed by a `$ref` to something that is being checked: its *head*. Each path around a loop
must descend into a part of the content (through `properties` or `items`, for example), or it would
never end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from recon_node.streams.schema_form import EACH, EITHER, HERE, SchemaError, parts_of, target_of

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
            found = self.looks(part, depth + 1)
            here, below = here + found.here, below + found.below
        for part in parts_of(schema, EITHER):
            either = max(either, sum(self.looks(part, depth + 1)))
        for part in parts_of(schema, EACH):
            below += sum(self.looks(part, depth + 1))
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            found = self._of_reference(reference, depth + 1)
            here, below = here + found.here, below + found.below
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
        found = self._here[reference]
        if found is None:
            raise SchemaError(f"{reference!r} in it refers to itself without end")
        return found

    def _look_here(self, schema: Any, depth: int) -> int:
        self._step(depth)
        found = 0
        for part in parts_of(schema, HERE):
            found += self._look_here(part, depth + 1)
        if isinstance(schema, dict) and isinstance(reference := schema.get("$ref"), str):
            found += (reference in self.heads) + self._here_of(reference, depth + 1)
        return found

    def target(self, reference: str) -> Any:
        return target_of(self._schema, reference)

    def _step(self, depth: int) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise SchemaError("it refers to itself and has too many parts")
        if depth > MAX_NESTING:
            raise SchemaError(f"it is nested deeper than {MAX_NESTING} levels")
