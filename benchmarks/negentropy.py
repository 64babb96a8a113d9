"""Negentropy V1 (NIP-77), the reconciliation protocol that Nostr relays run: the peer to beat.

A port written from its specification, for benchmarks only. Items are 8 bytes of big-endian
timestamp and a 32-byte id. A range that differs is split into 16, or listed where it holds fewer
than 32 items; only the initiator learns the difference.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from hashlib import sha256
from itertools import accumulate

ID_SIZE = 32
TIMESTAMP_SIZE = 8
_VERSION = b"\x61"
_SKIP, _FINGERPRINT, _ID_LIST = range(3)
_FINGERPRINT_SIZE = 16
_BUCKETS = 16
_INFINITY = (1 << 64) - 1
_SUM_MASK = (1 << 256) - 1


class Items:
    """A sorted set of items with prefix sums, so that any fingerprint is one subtraction."""

    def __init__(self, items: Iterable[bytes]) -> None:
        self.sorted = sorted(items)
        ids = (int.from_bytes(item[TIMESTAMP_SIZE:], "little") for item in self.sorted)
        self._sums = list(accumulate(ids, lambda a, b: a + b & _SUM_MASK, initial=0))

    def fingerprint(self, start: int, end: int) -> bytes:
        """Return the fingerprint of the items at positions start to end."""
        total = (self._sums[end] - self._sums[start]) & _SUM_MASK
        hashed = sha256(total.to_bytes(ID_SIZE, "little") + _varint(end - start))
        return hashed.digest()[:_FINGERPRINT_SIZE]

    def ids(self, start: int, end: int) -> list[bytes]:
        """Return the ids at positions start to end."""
        return [item[TIMESTAMP_SIZE:] for item in self.sorted[start:end]]


class Negentropy:
    """One side of a reconciliation."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._initiates = False
        self.have: set[bytes] = set()
        """Initiator: ids that only this side has."""
        self.need: set[bytes] = set()
        """Initiator: ids that only the other side has."""

    def initiate(self) -> bytes:
        """Return the first message."""
        self._initiates = True
        output = _Output()
        self._split(output, 0, len(self._items.sorted), None)
        return bytes(output.data)

    def reconcile(self, message: bytes) -> bytes | None:
        """Answer a message; the initiator's None means that it knows all differences."""
        reader, output = _Reader(message), _Output()
        start, lower, skipped = 0, b"", False
        while not reader.at_end:
            upper = reader.bound()
            end = (
                len(self._items.sorted)
                if upper is None
                else bisect_left(self._items.sorted, upper, start)
            )
            mode = reader.varint()
            if mode == _FINGERPRINT:
                differs = reader.take(_FINGERPRINT_SIZE) != self._items.fingerprint(start, end)
            elif mode == _ID_LIST:
                theirs = {reader.take(ID_SIZE) for _ in range(reader.varint())}
                differs = not self._initiates
            else:
                differs = False
            if differs and skipped:
                output.range(lower, _SKIP)
            skipped = not differs
            if mode == _ID_LIST and self._initiates:
                self._compare(theirs, start, end)
            elif mode == _ID_LIST:
                output.ids(upper, self._items.ids(start, end))
            elif differs:
                self._split(output, start, end, upper)
            start, lower = end, upper if upper is not None else b""
        return None if self._initiates and output.is_empty else bytes(output.data)

    def _compare(self, theirs: set[bytes], start: int, end: int) -> None:
        ours = set(self._items.ids(start, end))
        self.have |= ours - theirs
        self.need |= theirs - ours

    def _split(self, output: _Output, start: int, end: int, upper: bytes | None) -> None:
        if end - start < 2 * _BUCKETS:
            output.ids(upper, self._items.ids(start, end))
            return
        size, larger = divmod(end - start, _BUCKETS)
        for bucket in range(_BUCKETS):
            until = start + size + (bucket < larger)
            bound = upper if until == end else self._bound_before(until)
            output.range(bound, _FINGERPRINT)
            output.data += self._items.fingerprint(start, until)
            start = until

    def _bound_before(self, index: int) -> bytes:
        """Return the shortest bound between an item and the one before it."""
        before, item = self._items.sorted[index - 1], self._items.sorted[index]
        size = TIMESTAMP_SIZE
        while before[:size] == item[:size]:
            size += 1
        return item[:size]


class _Output:
    def __init__(self) -> None:
        self.data = bytearray(_VERSION)
        self._timestamp = 0

    @property
    def is_empty(self) -> bool:
        return len(self.data) == len(_VERSION)

    def range(self, upper: bytes | None, mode: int) -> None:
        """Write a bound, its timestamp as the difference to the one before, and a mode."""
        if upper is None:
            self.data += b"\x00\x00"
        else:
            timestamp = int.from_bytes(upper[:TIMESTAMP_SIZE], "big")
            prefix = upper[TIMESTAMP_SIZE:]
            self.data += _varint(timestamp - self._timestamp + 1) + _varint(len(prefix)) + prefix
            self._timestamp = timestamp
        self.data.append(mode)

    def ids(self, upper: bytes | None, ids: list[bytes]) -> None:
        """Write a range with the list of its ids."""
        self.range(upper, _ID_LIST)
        self.data += _varint(len(ids)) + b"".join(ids)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(_VERSION)
        self._timestamp = 0

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def varint(self) -> int:
        value = 0
        while True:
            byte = self.take(1)[0]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value

    def bound(self) -> bytes | None:
        """Read a bound; None is infinity."""
        difference = self.varint()
        prefix = self.take(self.varint())
        if difference == 0:
            self._timestamp = _INFINITY
            return None
        self._timestamp = min(self._timestamp + difference - 1, _INFINITY)
        return self._timestamp.to_bytes(TIMESTAMP_SIZE, "big") + prefix


def _varint(value: int) -> bytes:
    """Encode most significant digit first, as negentropy does."""
    digits = [value & 0x7F]
    while value := value >> 7:
        digits.append(value & 0x7F | 0x80)
    return bytes(reversed(digits))
