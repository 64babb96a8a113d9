"""Trees of three levels: the design that the project's key store comes from, in its two forms.

Every node keeps, for each entry, one large integer with its lanes and its count (sha256a.py), and
adds up what lies left of a bound. In the first form a leaf does so too, with an integer for each
key; in the second it keeps the digests in a bytearray.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from hashlib import sha256
from itertools import accumulate
from typing import Any

from benchmarks.key_store_designs import RankedDesign
from recon_node.recon import KeyRange, Sha256a
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, spread, spread_run

SIZE = 128
"""Entries of a leaf and of a middle node at most; the root takes what comes."""


class IntegersLeaf:
    """Keys in order, and the lanes of each."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.lanes_of = [spread(sha256(key).digest()) for key in keys]

    def insert(self, at: int, key: bytes, digest: bytes) -> None:
        self.keys.insert(at, key)
        self.lanes_of.insert(at, spread(digest))

    def before(self, at: int, total: int) -> int:
        return _sum_before(self.lanes_of, at, total)


class BytesLeaf:
    """Keys in order, and their digests in one bytearray."""

    def __init__(self, keys: list[bytes]) -> None:
        self.keys = keys
        self.digests = bytearray().join([sha256(key).digest() for key in keys])

    def insert(self, at: int, key: bytes, digest: bytes) -> None:
        self.keys.insert(at, key)
        self.digests[at * DIGEST_SIZE : at * DIGEST_SIZE] = digest

    def before(self, at: int, total: int) -> int:
        if at * 2 <= len(self.keys):
            return spread_run(bytes(self.digests[: at * DIGEST_SIZE]))
        return total - spread_run(bytes(self.digests[at * DIGEST_SIZE :]))


class Level:
    """The root or a middle node: of each child its first key and its lanes."""

    def __init__(self, children: list[Any], firsts: list[bytes], lanes_of: list[int]) -> None:
        self.children, self.firsts, self.lanes_of = children, firsts, lanes_of

    def child_of(self, key: bytes) -> int:
        return bisect_right(self.firsts, key, 1) - 1

    def replace(self, at: int, halves: list[Any], firsts: list[bytes], lanes: list[int]) -> None:
        self.children[at : at + 1] = halves
        self.firsts[at : at + 1] = firsts
        self.lanes_of[at : at + 1] = lanes


class IntegersTree(RankedDesign):
    """The 3-level tree with one large integer for each key."""

    leaf: type[IntegersLeaf] | type[BytesLeaf] = IntegersLeaf

    def load(self, keys: Iterable[bytes]) -> None:
        ordered = sorted(keys)
        runs = [ordered[at : at + SIZE // 2] for at in range(0, len(ordered), SIZE // 2)] or [[]]
        leaves = [self.leaf(run) for run in runs]
        mids = [self._level(leaves[at : at + SIZE // 2]) for at in range(0, len(leaves), SIZE // 2)]
        self._total = sum(sum(mid.lanes_of) for mid in mids)
        self._root = Level(mids, [mid.firsts[0] for mid in mids], [sum(m.lanes_of) for m in mids])

    @staticmethod
    def _level(leaves: list[Any]) -> Level:
        firsts = [leaf.keys[0] if leaf.keys else b"" for leaf in leaves]
        return Level(leaves, firsts, [_whole(leaf) for leaf in leaves])

    def add(self, key: bytes) -> None:
        digest = sha256(key).digest()
        lanes = spread(digest)
        root = self._root
        i = root.child_of(key)
        mid = root.children[i]
        j = mid.child_of(key)
        leaf = mid.children[j]
        leaf.insert(bisect_left(leaf.keys, key), key, digest)
        root.lanes_of[i] += lanes
        mid.lanes_of[j] += lanes
        self._total += lanes
        if len(leaf.keys) > SIZE:
            half = len(leaf.keys) // 2
            halves = self._level([self.leaf(leaf.keys[:half]), self.leaf(leaf.keys[half:])])
            mid.replace(j, halves.children, halves.firsts, halves.lanes_of)
        if len(mid.children) > SIZE:
            half = len(mid.children) // 2
            mids = [self._level(mid.children[:half]), self._level(mid.children[half:])]
            firsts = [each.firsts[0] for each in mids]
            root.replace(i, mids, firsts, [sum(each.lanes_of) for each in mids])

    def _before(self, bound: bytes, *, after: bool) -> int:
        root = self._root
        i = root.child_of(bound)
        mid = root.children[i]
        j = mid.child_of(bound)
        leaf = mid.children[j]
        at = (bisect_right if after else bisect_left)(leaf.keys, bound)
        above = _sum_before(root.lanes_of, i, self._total)
        above += _sum_before(mid.lanes_of, j, root.lanes_of[i])
        lanes: int = above + leaf.before(at, mid.lanes_of[j])
        return lanes

    def hash(self, key_range: KeyRange) -> Sha256a:
        upper = self._before(key_range.upper, after=False)
        return Sha256a.from_lanes(upper - self._before(key_range.lower, after=True))

    def rank(self, bound: bytes, *, after: bool) -> int:
        root = self._root
        i = root.child_of(bound)
        mid = root.children[i]
        j = mid.child_of(bound)
        keys = mid.children[j].keys
        lanes: int = sum(root.lanes_of[:i]) + sum(mid.lanes_of[:j])
        return (lanes >> COUNT_SHIFT) + (bisect_right if after else bisect_left)(keys, bound)

    def select(self, rank: int) -> bytes:
        node: Any = self._root
        while isinstance(node, Level):
            ends = list(accumulate(lanes >> COUNT_SHIFT for lanes in node.lanes_of))
            at = bisect_right(ends, rank)
            rank -= ends[at - 1] if at else 0
            node = node.children[at]
        key: bytes = node.keys[rank]
        return key


class BytesTree(IntegersTree):
    """The same, with the digests of a leaf in a bytearray."""

    leaf = BytesLeaf


def _sum_before(values: list[int], at: int, total: int) -> int:
    """Return the sum of the first values, by way of the shorter side of ``total``."""
    return sum(values[:at]) if at * 2 <= len(values) else total - sum(values[at:])


def _whole(leaf: IntegersLeaf | BytesLeaf) -> int:
    if isinstance(leaf, IntegersLeaf):
        return sum(leaf.lanes_of)
    return spread_run(bytes(leaf.digests))
