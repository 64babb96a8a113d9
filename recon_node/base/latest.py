"""Maps of bounded size that keep their latest entries."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


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


class Remembered(Generic[K, V]):
    """A map of the latest entries, bounded in number or weight and in time.

    Args:
        limit: entries at most, or the sum of their weights. The latest entry always stays.
        lifetime: seconds after which an entry is gone.
        clock: returns the time in seconds; needed if there is a lifetime.
        weigh: returns the weight of a value.
    """

    def __init__(
        self,
        limit: float,
        *,
        lifetime: float = inf,
        clock: Callable[[], float] = lambda: 0.0,
        weigh: Callable[[V], int] = lambda value: 1,
    ) -> None:
        self._limit = limit
        self._lifetime = lifetime
        self._clock = clock
        self._weigh = weigh
        self._weight = 0
        self._entries: OrderedDict[K, tuple[float, int, V]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return self._live(key) is not None

    def get(self, key: K, default: D) -> V | D:
        """Return what was put in under a key."""
        entry = self._live(key)
        return default if entry is None else entry[2]

    def put(self, key: K, value: V, *, renew: bool = True) -> None:
        """Put in a value as the latest one; the oldest ones make room.

        Its lifetime starts again unless the key is known and `renew` is False.
        """
        known = self._live(key)
        since = known[0] if known is not None and not renew else self._clock()
        self.pop(key)
        weight = self._weigh(value)
        self._entries[key] = since, weight, value
        self._weight += weight
        while self._weight > self._limit and len(self._entries) > 1:
            _, (_, freed, _) = self._entries.popitem(last=False)
            self._weight -= freed

    def pop(self, key: K) -> V | None:
        """Remove a key; return its value, or None if it is not there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._weight -= entry[1]
        return entry[2]

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over what has not expired, the oldest first."""
        horizon = self._clock() - self._lifetime
        return ((key, value) for key, (since, _, value) in self._entries.items() if since > horizon)

    def _live(self, key: K) -> tuple[float, int, V] | None:
        entry = self._entries.get(key)
        if entry is None or self._lifetime == inf or entry[0] > self._clock() - self._lifetime:
            return entry
        self.pop(key)
        return None
