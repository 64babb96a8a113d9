"""JSON that is nearly what it should be."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

ODD = (None, True, -5, 2**70, 1e300, "odd", [], ["odd"], [None], {}, {"odd": 1})


def variants(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield a JSON value with any one of its parts replaced, and with any member left out, each
    with the path of that part."""
    yield from ((path, odd) for odd in ODD)
    if isinstance(value, dict | list):
        for name, part in value.items() if isinstance(value, dict) else enumerate(value):
            for where, variant in variants(part, (*path, name)):
                copy = deepcopy(value)
                copy[name] = variant
                yield where, copy
    if isinstance(value, dict):
        for name in value:
            yield (*path, name), {key: part for key, part in value.items() if key != name}
