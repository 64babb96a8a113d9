"""Key ranges: all keys strictly between two bounds.

A bound may be a key or a *fencepost*, a bound that is not a key. Because both ends are open, the
ranges left and right of a key never contain the key itself, and a list of ranges that share their
bounds partitions the keys between the first and the last bound, except the bounds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple


class KeyRange(NamedTuple):
    """The keys strictly between `lower` and `upper`; empty when the bounds do not ascend."""

    lower: bytes
    upper: bytes

    @property
    def is_empty(self) -> bool:
        """Whether no key can lie in the range."""
        return self.lower >= self.upper

    def covers(self, key: bytes) -> bool:
        """Return whether the key lies strictly between the bounds."""
        return self.lower < key < self.upper

    def intersect(self, other: KeyRange) -> KeyRange | None:
        """Return the part common to both ranges, or None if they do not overlap."""
        common = KeyRange(max(self.lower, other.lower), min(self.upper, other.upper))
        return None if common.is_empty else common


def merge_ranges(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the fewest ranges with the same keys, in ascending order.

    Ranges that only touch stay separate: the bound that they share is in neither.
    """
    merged: list[KeyRange] = []
    for key_range in sorted(key_range for key_range in ranges if not key_range.is_empty):
        if merged and key_range.lower < merged[-1].upper:
            last = merged[-1]
            merged[-1] = KeyRange(last.lower, max(last.upper, key_range.upper))
        else:
            merged.append(key_range)
    return merged


def intersect_ranges(ours: Iterable[KeyRange], theirs: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the ranges common to two sets of ranges, ascending, in O((a + b) log (a + b))."""
    a, b = merge_ranges(ours), merge_ranges(theirs)
    common: list[KeyRange] = []
    i = j = 0
    while i < len(a) and j < len(b):
        overlap = a[i].intersect(b[j])
        if overlap is not None:
            common.append(overlap)
        if a[i].upper < b[j].upper:
            i += 1
        else:
            j += 1
    return common


def subtract_ranges(ours: Iterable[KeyRange], theirs: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the parts of some ranges, ascending, that lie in none of the others."""
    taken = merge_ranges(theirs)
    left: list[KeyRange] = []
    at = 0
    for key_range in merge_ranges(ours):
        while at < len(taken) and taken[at].upper <= key_range.lower:
            at += 1
        start = key_range.lower
        for other in islice(taken, at, None):
            if other.lower >= key_range.upper:
                break
            if start < other.lower:
                left.append(KeyRange(start, other.lower))
            start = other.upper
        if start < key_range.upper:
            left.append(KeyRange(start, key_range.upper))
    return left


def separator(left: bytes, right: bytes) -> bytes:
    """Return a shortest string that lies strictly between two keys.

    EventIds are self-delimiting, so that none is a prefix of another and there always is one.
    """
    shortest = right[: common_prefix(left, right) + 1]
    return left + b"\x00" if shortest == right else shortest


def common_prefix(a: bytes, b: bytes) -> int:
    """Return the length of the longest common prefix."""
    size = len(a) if len(a) < len(b) else len(b)
    differing = _from_bytes(a[:size]) ^ _from_bytes(b[:size])  # the first byte is the highest
    return size - (differing.bit_length() + 7) // 8  # as many bytes as the difference takes


_from_bytes = int.from_bytes


def covers(ranges: Sequence[KeyRange], key: bytes) -> bool:
    """Return whether a key lies in one of the ranges, which are ascending and apart."""
    at = bisect_left(ranges, (key,)) - 1
    return at >= 0 and ranges[at].covers(key)
