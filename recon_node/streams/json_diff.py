"""From two JSON values to the JSON Patch (RFC 6902) that makes one of the other.

Objects are compared member by member. Of two arrays, the items at both ends that are equal stay as
they are; what lies between is compared item by item, and the rest is added or removed. The patch
has the operations `add`, `remove` and `replace` only. It need not be the shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from recon_node.streams.budget import Budget
from recon_node.streams.json_values import TEXT_A_STEP, is_equal, measure

WRITTEN: Final = 16
"""Steps of a byte of an answer, which is in memory several times until it is sent."""
_PLACE: Final = 100
"""Steps of a place at which two values are compared."""
_COMPARED: Final = 25
"""Steps of a value that is measured and compared."""


def json_diff(before: Any, after: Any, budget: Budget) -> list[dict[str, Any]]:
    """Return the operations that turn `before` into `after`; none if they are equal as JSON.

    `apply_patch` with them gives `after`. Values are those of DAG-CBOR; neither is changed, and the
    operations share parts of `after`.

    Raises:
        BudgetError: they take too much work, or too many bytes: each repeats the path to its place.
    """
    return list(_Difference(budget).changes("", before, after))


def json_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 and 1.0 are, 1 and true are not."""
    return is_equal(one, other, lambda _: None)


def pointer(path: str, token: str) -> str:
    """Return the JSON Pointer (RFC 6901) of a member of what `path` points to."""
    return f"{path}/{token.replace('~', '~0').replace('/', '~1')}"


class _Difference:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def changes(self, path: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:
        self._budget.spend(_PLACE + len(path))
        if isinstance(before, dict) and isinstance(after, dict):
            yield from self._of_object(path, before, after)
        elif isinstance(before, list) and isinstance(after, list):
            yield from self._of_array(path, before, after)
        elif not self._are_equal(before, after):
            yield self._operation("replace", path, after)

    def _of_object(
        self, path: str, before: dict[str, Any], after: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for name in before:
            if name not in after:
                yield self._operation("remove", pointer(path, name))
        for name, value in after.items():
            if name in before:
                yield from self.changes(pointer(path, name), before[name], value)
            else:
                yield self._operation("add", pointer(path, name), value)

    def _of_array(self, path: str, before: list[Any], after: list[Any]) -> Iterator[dict[str, Any]]:
        start, shorter = 0, min(len(before), len(after))
        while start < shorter and self._are_equal(before[start], after[start]):
            start += 1
        end = 0  # items that are equal, counted from the end
        while end < shorter - start and self._are_equal(before[-1 - end], after[-1 - end]):
            end += 1
        both = shorter - end
        for index in range(start, both):
            yield from self.changes(f"{path}/{index}", before[index], after[index])
        for index in reversed(range(both, len(before) - end)):
            yield self._operation("remove", f"{path}/{index}")
        for index in range(both, len(after) - end):
            yield self._operation("add", f"{path}/{index}", after[index])

    def _operation(self, name: str, path: str, *value: Any) -> dict[str, Any]:
        self._budget.spend(WRITTEN * len(path))
        return {"op": name, "path": path, **dict(zip(("value",), value, strict=False))}

    def _are_equal(self, one: Any, other: Any) -> bool:
        return equal_within(self._budget, one, other)


def equal_within(budget: Budget, one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON.

    Raises:
        BudgetError: to compare them takes too much work.
    """
    if isinstance(one, dict | list) and type(one) is type(other):
        size = measure(one, budget.left // _COMPARED)
        budget.spend(_COMPARED * (size.steps + size.weight // TEXT_A_STEP))
    return json_equal(one, other)
