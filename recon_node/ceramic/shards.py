"""Shards: a sort value's keys cut by controller (CIP-124, "sharding a stream set across nodes").

The controller's hash follows the sort value's in a key, so that controllers whose hashes begin with
neighbouring bytes are one range of keys. A shard says from which beginning to which: `00..3f`, as
bytes in hexadecimal, both included. `1/4` is the first of four of equal size; the streams of a
controller are in one shard. Hashes are uniform, so shards are of about equal size if no controller
has much more than the others.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from recon_node.ceramic.errors import EventIdError
from recon_node.ceramic.event_id import EventId, prefix_range, short_hash
from recon_node.ceramic.network import Network

MAX_SHARDS: Final = 4096
"""Into how many shards a sort value can be cut."""
_ONE_BYTE: Final = 16
"""Up to so many shards are cut at one byte of the hash, which takes fewer prefixes to tell peers;
with more, they would differ too much in size."""

_PART: Final = re.compile(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", re.ASCII)
_BOUNDS: Final = re.compile(r"([0-9a-fA-F]{2,16})\.\.([0-9a-fA-F]{2,16})", re.ASCII)


class Shard(NamedTuple):
    """The controllers whose hashes begin with these bytes, or with any between."""

    first: bytes
    last: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `00..3f`, or `1/4` for the first of four.

        Raises:
            EventIdError: it is neither.
        """
        if part := _PART.fullmatch(text):
            return cls.of(int(part[1]), int(part[2]))
        bounds = _BOUNDS.fullmatch(text)
        if bounds is None or len(bounds[1]) != len(bounds[2]) or len(bounds[1]) % 2:
            raise EventIdError(
                f"{text[:100]!r} is not a shard: `1/4`, or `00..3f`, from one beginning of the "
                "controllers' hashes to another, each of 1 to 8 bytes in hexadecimal"
            )
        first, last = map(bytes.fromhex, bounds.groups())
        if first > last:
            raise EventIdError(f"the shard {text} ends before it begins")
        return cls(first, last)

    @classmethod
    def of(cls, number: int, count: int) -> Self:
        """Return one of a number of shards of equal size, counted from 1.

        Raises:
            EventIdError: there is no such shard, or there are too many.
        """
        if not 1 <= number <= count <= MAX_SHARDS:
            raise EventIdError(
                f"there is no shard {number}/{count}: they are 1/{count} to {count}/{count}, and "
                f"at most {MAX_SHARDS}"
            )
        size = 1 if count <= _ONE_BYTE else 2
        whole = 1 << (8 * size)
        first, end = (whole * n // count for n in (number - 1, number))
        return cls(first.to_bytes(size), (end - 1).to_bytes(size))

    def covers(self, controller: str) -> bool:
        """Whether a controller's streams are in it."""
        return self.first <= short_hash(controller)[: len(self.first)] <= self.last

    def range(self, network: Network, sort_value: str) -> tuple[EventId, EventId]:
        """Return the fenceposts around its keys of a sort value."""
        lower, upper = (prefix_range(network, short_hash(sort_value) + bound) for bound in self)
        return lower[0], upper[1]

    def __str__(self) -> str:
        return f"{self.first.hex()}..{self.last.hex()}"
