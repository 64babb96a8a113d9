"""A dictionary of bounded size that keeps its latest entries."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(OrderedDict[K, V]):
    """A dictionary whose oldest entries go when there are too many.

    Setting a key makes it the latest one, and so does `use`. An `OrderedDict`, because finding the
    first key of a `dict` takes a walk over all that were deleted before it.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        if key in self:
            self.move_to_end(key)
        super().__setitem__(key, value)
        while len(self) > self.limit:
            self.popitem(last=False)

    def use(self, key: K) -> V | None:
        """Return the value of a key, and make the key the latest; None if there is none."""
        if key not in self:
            return None
        self.move_to_end(key)
        return self[key]
