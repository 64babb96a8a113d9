"""The values that come in a session of `/ceramic/recon/0.1.0`, until they are admitted.

Both roles have one. It refuses what nobody asked for, gathers batches, and stops a peer that sends
what we hold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.ring.ring import Ring
from recon_node.recon.session import Admit, Value
from recon_node.recon.side import RemoteProtocolError

BATCH_VALUES: Final = 100
"""Values after which a batch is admitted; ceramic-one's."""
BATCH_BYTES: Final = 4 << 20
"""Bytes of values after which a batch is admitted."""
MAX_USELESS_VALUES: Final = 1000
"""Values of keys that we hold, beyond as many as were new, before the peer is stopped.

Some are usual: another peer may have sent the same ones meanwhile.
"""


class Inbox:
    """The values that came in and are not admitted yet, and whether they were any use."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._values: list[Value] = []
        self._size = 0
        self._useless = 0
        self.new_keys = 0
        """Values of keys that we did not hold when they came."""

    @property
    def held(self) -> int:
        """Bytes of the values that are not admitted yet."""
        return self._size

    def take(self, value: Value, interests: list[KeyRange]) -> Iterator[Admit]:
        """Take a value; yield what is to be admitted now.

        Raises:
            RemoteProtocolError: nobody asked for it, or there are too many of no use.
        """
        if not is_covered(interests, value.key):
            raise RemoteProtocolError(f"the value of {value.key.hex()} is outside our interests")
        if value.key in self._ring:
            self._useless += 1
            if self._useless > MAX_USELESS_VALUES + self.new_keys:
                raise RemoteProtocolError(
                    f"{self._useless} values of keys that we hold, and {self.new_keys} of others"
                )
            return
        self.new_keys += 1
        self._values.append(value)
        self._size += len(value.value)
        if len(self._values) >= BATCH_VALUES or self._size >= BATCH_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[Admit]:
        """Yield what is not admitted yet."""
        if self._values:
            values, self._values, self._size = tuple(self._values), [], 0
            yield Admit(values)


def is_covered(ranges: list[KeyRange], key: bytes) -> bool:
    """Tell whether a key is in one of some merged ranges; a peer may have made them many."""
    at = bisect_left(ranges, (key, b"")) - 1
    return at >= 0 and ranges[at].covers(key)
