"""From two JSON values to the JSON Patch (RFC 6902) that makes one of the other.

Objects are compared member by member. Of two arrays, the items at both ends that are equal stay as
they are; what lies between is compared item by item, and the rest is added or removed. The patch
has the operations `add`, `remove` and `replace` only. It need not be the shortest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from recon_node.streams.json_values import is_equal


def json_diff(before: Any, after: Any) -> list[dict[str, Any]]:
    """Return the operations that turn `before` into `after`; none if they are equal as JSON.

    `apply_patch` with them gives `after`. Values are those of DAG-CBOR; neither is changed, and the
    operations share parts of `after`.
    """
    return list(_changes("", before, after))


def json_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 and 1.0 are, 1 and true are not."""
    return is_equal(one, other, lambda _: None)


def pointer(path: str, token: str) -> str:
    """Return the JSON Pointer (RFC 6901) of a member of what `path` points to."""
    return f"{path}/{token.replace('~', '~0').replace('/', '~1')}"


def _changes(path: str, before: Any, after: Any) -> Iterator[dict[str, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _changes_of_object(path, before, after)
    elif isinstance(before, list) and isinstance(after, list):
        yield from _changes_of_array(path, before, after)
    elif not json_equal(before, after):
        yield {"op": "replace", "path": path, "value": after}


def _changes_of_object(
    path: str, before: dict[str, Any], after: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    for name in before:
        if name not in after:
            yield {"op": "remove", "path": pointer(path, name)}
    for name, value in after.items():
        if name in before:
            yield from _changes(pointer(path, name), before[name], value)
        else:
            yield {"op": "add", "path": pointer(path, name), "value": value}


def _changes_of_array(path: str, before: list[Any], after: list[Any]) -> Iterator[dict[str, Any]]:
    start, shorter = 0, min(len(before), len(after))
    while start < shorter and json_equal(before[start], after[start]):
        start += 1
    end = 0  # items that are equal, counted from the end
    while end < shorter - start and json_equal(before[-1 - end], after[-1 - end]):
        end += 1
    both = shorter - end
    for index in range(start, both):
        yield from _changes(f"{path}/{index}", before[index], after[index])
    for index in reversed(range(both, len(before) - end)):
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index in range(both, len(after) - end):
        yield {"op": "add", "path": f"{path}/{index}", "value": after[index]}
