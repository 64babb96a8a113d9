"""The key store: a sorted set of keys that knows the hash and the size of every range.

Theory of operation
-------------------
A B+ tree. A leaf holds up to 96 keys in order and their sha2-256 digests, packed into one
bytearray (32 bytes a key instead of the 60 that an object would cost). An inner node holds, for
each child, the child's first key, its number of keys, and its *lanes*: the sum of all digests below
it with their count on top, in one integer (see sha256a.py). So

- an insert adds one integer to each node on the path from the root, and
- the lanes of all keys below a bound are, on each level, the sum over the children left of the
  path. Where more than half of a node lies left, we subtract the rest from its total instead.

The lanes of a range are the difference of those of its two bounds; hash and count come out
together. All operations but iteration cost O(log n) node visits, each with a bounded amount of
work.

Pages and snapshots: iterating yields the keys of a range page by page, each page taken at once. A
key that is there when the walk starts and is not discarded is yielded exactly once; a key that is
added while the walk goes on is yielded if and only if it lies beyond the last page taken.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, pairwise

from recon_node.recon.key_range import KeyRange, separator
from recon_node.recon.sha256a import COUNT_SHIFT, DIGEST_SIZE, Sha256a, spread, spread_run

LEAF_SIZE = 96
"""Keys in a leaf at most."""

FAN_OUT = 48
"""Children of an inner node at most."""

# A bulk load leaves room, so that the inserts that follow do not split every leaf at once.
_LEAF_FILL = 64
_INNER_FILL = 32

# How far from its place a cut may fall. Most streams have fewer events.
_CUT_REACH = 6


@dataclass(frozen=True, slots=True)
class Summary:
    """What a range holds: the hash of its keys, and how many they are."""

    hash: Sha256a
    count: int


class _Leaf:
    """Keys in order, and their digests in the same order."""

    __slots__ = ("digests", "keys")

    def __init__(self, keys: list[bytes], digests: bytearray) -> None:
        self.keys = keys
        self.digests = digests

    def lanes(self) -> int:
        return spread_run(self.digests)

    def lanes_before(self, index: int, total: int) -> int:
        """Return the lanes of the first ``index`` keys; ``total`` are those of the whole leaf."""
        if index * 2 <= len(self.keys):
            return spread_run(self.digests[: index * DIGEST_SIZE])
        return total - spread_run(self.digests[index * DIGEST_SIZE :])

    def split(self) -> _Leaf:
        """Move the upper half into a new leaf and return that."""
        half = len(self.keys) // 2
        right = _Leaf(self.keys[half:], self.digests[half * DIGEST_SIZE :])
        del self.keys[half:]
        del self.digests[half * DIGEST_SIZE :]
        return right


class _Inner:
    """Children in order; of each its first key, its number of keys, and its lanes."""

    __slots__ = ("children", "counts", "firsts", "lanes_of")

    def __init__(self, children: list[_Node], firsts: list[bytes], lanes_of: list[int]) -> None:
        self.children = children
        self.firsts = firsts
        self.lanes_of = lanes_of
        self.counts = [lanes >> COUNT_SHIFT for lanes in lanes_of]

    def lanes(self) -> int:
        return sum(self.lanes_of)

    def split(self) -> _Inner:
        """Move the upper half into a new node and return that."""
        half = len(self.children) // 2
        right = _Inner(self.children[half:], self.firsts[half:], self.lanes_of[half:])
        del self.children[half:], self.firsts[half:], self.lanes_of[half:], self.counts[half:]
        return right

    def adjust(self, index: int, lanes: int, keys: int) -> None:
        """Add lanes and a number of keys to those of one child."""
        self.lanes_of[index] += lanes
        self.counts[index] += keys

    def adopt(self, index: int, first: bytes, child: _Node) -> None:
        """Take the right half of the child at ``index``, which has just split, in beside it."""
        lanes = child.lanes()
        self.adjust(index, -lanes, -(lanes >> COUNT_SHIFT))
        self.children.insert(index + 1, child)
        self.firsts.insert(index + 1, first)
        self.lanes_of.insert(index + 1, lanes)
        self.counts.insert(index + 1, lanes >> COUNT_SHIFT)

    def drop(self, index: int) -> None:
        """Forget a child that has become empty."""
        del self.children[index], self.firsts[index], self.lanes_of[index], self.counts[index]


_Node = _Leaf | _Inner
_Bisect = Callable[[list[bytes], bytes], int]


class KeyStore:
    """A sorted set of byte-string keys with the Sha256a and the size of any range in O(log n).

    Not thread-safe: one thread (the event loop's) owns it. About 145 bytes a key, the key (62 bytes
    of an EventId) included.
    """

    __slots__ = ("_root", "_total")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        self._root: _Node = _Leaf([], bytearray())
        self._total = 0
        self.load(keys)

    def __len__(self) -> int:
        return self._total >> COUNT_SHIFT

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes):
            return False
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[_child_of(node, key)]
        index = bisect_left(node.keys, key)
        return index < len(node.keys) and node.keys[index] == key

    def __iter__(self) -> Iterator[bytes]:
        return _walk(self._root)

    def load(self, keys: Iterable[bytes]) -> None:
        """Add many keys, in any order, repeated or not. Fast when the store is empty."""
        ordered = sorted(keys)
        if self._total:
            for key in ordered:
                self.add(key)
            return
        if any(a == b for a, b in pairwise(ordered)):
            ordered = sorted(set(ordered))
        if ordered:
            self._root = _build(ordered)
            self._total = self._root.lanes()

    def add(self, key: bytes) -> bool:
        """Add a key; return False when it was there."""
        node, path = self._root, []
        while isinstance(node, _Inner):
            index = _child_of(node, key)
            path.append((node, index))
            node = node.children[index]
        at = bisect_left(node.keys, key)
        if at < len(node.keys) and node.keys[at] == key:
            return False
        key = bytes(key)
        digest = sha256(key).digest()
        node.keys.insert(at, key)
        node.digests[at * DIGEST_SIZE : at * DIGEST_SIZE] = digest
        lanes = spread(digest)
        self._total += lanes
        for inner, index in path:
            inner.lanes_of[index] += lanes
            inner.counts[index] += 1
        if len(node.keys) > LEAF_SIZE:
            self._split(node, path)
        return True

    def discard(self, key: bytes) -> bool:
        """Take a key out; return False when it was not there. Rare, so leaves are not merged."""
        node, path = self._root, []
        while isinstance(node, _Inner):
            index = _child_of(node, key)
            path.append((node, index))
            node = node.children[index]
        at = bisect_left(node.keys, key)
        if at == len(node.keys) or node.keys[at] != key:
            return False
        lanes = spread(bytes(node.digests[at * DIGEST_SIZE : (at + 1) * DIGEST_SIZE]))
        del node.keys[at]
        del node.digests[at * DIGEST_SIZE : (at + 1) * DIGEST_SIZE]
        self._total -= lanes
        for inner, index in path:
            inner.adjust(index, -lanes, -1)
        empty = not node.keys
        while empty and path:
            inner, index = path.pop()
            inner.drop(index)
            empty = not inner.children
        if empty:
            self._root = _Leaf([], bytearray())
        return True

    def summarize(self, key_range: KeyRange | None = None) -> Summary:
        """Return the Sha256a and the number of the keys in a range, or of all keys."""
        lanes = self._total if key_range is None else self._lanes_between(key_range)
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def count(self, key_range: KeyRange) -> int:
        """Return the number of keys in a range."""
        return max(0, self._rank(key_range.upper) - self._rank_after(key_range.lower))

    def middle(self, key_range: KeyRange) -> bytes | None:
        """Return the key that halves a range (the upper one of two), or None where it is empty."""
        pivots = self.split(key_range, 2)
        return pivots[0] if pivots else None

    def split(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return the ascending pivots, ``parts - 1`` of them, that cut a range into equal parts.

        A part lies between two pivots, which are in no part. A range of fewer keys gives all of
        them.
        """
        first = self._rank_after(key_range.lower)
        size = self._rank(key_range.upper) - first
        ranks = sorted({first + i * size // parts for i in range(1, parts)}) if size > 0 else []
        return self._select(ranks)

    def cut(self, key_range: KeyRange, parts: int) -> list[bytes]:
        """Return ascending short strings that cut a range into ``parts`` parts of about equal size.

        They are no keys, so every key of the range is in one of the parts. Near each place that
        would make the parts equal, the shortest separator wins, as in a prefix B-tree (Bayer and
        Unterauer, 1977): it falls between two streams rather than into one.
        """
        first = self._rank_after(key_range.lower)
        size = self._rank(key_range.upper) - first
        reach = min(_CUT_REACH, size // (4 * parts))  # the places' surroundings do not meet
        cuts: list[bytes] = []
        for rank in sorted({first + i * size // parts for i in range(1, parts)} - {first}):
            near = self._select(list(range(max(first, rank - 1 - reach), rank + 1 + reach)))
            cuts.append(min((separator(a, b) for a, b in pairwise(near)), key=len))
        return cuts

    def first(self, key_range: KeyRange) -> bytes | None:
        """Return the first key of a range, or None where it is empty."""
        return next(self.keys(key_range, 1), None)

    def last(self, key_range: KeyRange) -> bytes | None:
        """Return the last key of a range, or None where it is empty."""
        end = self._rank(key_range.upper)
        if end <= self._rank_after(key_range.lower):
            return None
        return self._select([end - 1])[0]

    def keys(self, key_range: KeyRange, limit: int | None = None) -> Iterator[bytes]:
        """Iterate over the keys of a range in order, at most ``limit`` of them, lazily.

        The store may change meanwhile; what the walk then yields is said in the module's text.
        """
        after, left = key_range.lower, limit
        while left is None or left > 0:
            page = self._page(after, key_range.upper)
            if left is not None:
                del page[left:]
                left -= len(page)
            if not page:
                return
            yield from page
            after = page[-1]

    def _page(self, after: bytes, upper: bytes) -> list[bytes]:
        """Return the keys strictly between the bounds that stand in the first leaf that has any."""
        node, leaf_end = self._root, None
        while isinstance(node, _Inner):
            index = _child_of(node, after)
            if index + 1 < len(node.firsts):
                leaf_end = node.firsts[index + 1]
            node = node.children[index]
        start = bisect_right(node.keys, after)
        if start == len(node.keys) and leaf_end is not None:
            return self._page_from(leaf_end, upper)
        return node.keys[start : bisect_left(node.keys, upper, start)]

    def _page_from(self, first: bytes, upper: bytes) -> list[bytes]:
        """Return the keys from ``first`` on, up to the end of its leaf."""
        node = self._root
        while isinstance(node, _Inner):
            node = node.children[_child_of(node, first)]
        start = bisect_left(node.keys, first)
        return node.keys[start : bisect_left(node.keys, upper, start)]

    def _lanes_between(self, key_range: KeyRange) -> int:
        if key_range.is_empty:
            return 0
        before = self._lanes_left_of(key_range.upper, bisect_left)
        return before - self._lanes_left_of(key_range.lower, bisect_right)

    def _lanes_left_of(self, bound: bytes, bisect: _Bisect) -> int:
        """Return the lanes of all keys left of a bound; ``bisect`` says where the bound is itself.

        The hot path of a sync: ``_child_of`` and ``_sum_before`` are written out.
        """
        node, total, below = self._root, self._total, 0
        while isinstance(node, _Inner):
            firsts, lanes_of = node.firsts, node.lanes_of
            index = bisect_right(firsts, bound, 1) - 1
            if index * 2 <= len(firsts):
                below += sum(lanes_of[:index])
            else:
                below += total - sum(lanes_of[index:])
            total = lanes_of[index]
            node = node.children[index]
        return below + node.lanes_before(bisect(node.keys, bound), total)

    def _rank(self, bound: bytes) -> int:
        """Return the number of keys below a bound."""
        return self._count_left_of(bound, bisect_left)

    def _rank_after(self, bound: bytes) -> int:
        """Return the number of keys up to a bound, the bound itself included."""
        return self._count_left_of(bound, bisect_right)

    def _count_left_of(self, bound: bytes, bisect: _Bisect) -> int:
        node, total, below = self._root, len(self), 0
        while isinstance(node, _Inner):
            index = _child_of(node, bound)
            below += _sum_before(node.counts, index, total)
            total = node.counts[index]
            node = node.children[index]
        return below + bisect(node.keys, bound)

    def _select(self, ranks: list[int]) -> list[bytes]:
        """Return the keys at the given ascending ranks."""
        chosen: list[bytes] = []
        _select(self._root, ranks, chosen)
        return chosen

    def _split(self, node: _Node, path: list[tuple[_Inner, int]]) -> None:
        """Split an overfull leaf, and every ancestor that becomes overfull by it."""
        while True:
            right = node.split()
            first = right.keys[0] if isinstance(right, _Leaf) else right.firsts[0]
            if not path:
                break
            parent, index = path.pop()
            parent.adopt(index, first, right)
            if len(parent.children) <= FAN_OUT:
                return
            node = parent
        left_first = node.keys[0] if isinstance(node, _Leaf) else node.firsts[0]
        self._root = _Inner([node, right], [left_first, first], [node.lanes(), right.lanes()])


def _child_of(node: _Inner, key: bytes) -> int:
    """Return the index of the child that a key belongs to. Keys below all belong to the first."""
    return bisect_right(node.firsts, key, 1) - 1


def _sum_before(values: list[int], index: int, total: int) -> int:
    """Return the sum of the first ``index`` values, by way of the shorter side of ``total``."""
    if index * 2 <= len(values):
        return sum(values[:index])
    return total - sum(values[index:])


def _build(ordered: list[bytes]) -> _Node:
    """Build a tree bottom-up from distinct keys in order."""
    nodes: list[_Node] = []
    firsts: list[bytes] = []
    for start in range(0, len(ordered), _LEAF_FILL):
        keys = ordered[start : start + _LEAF_FILL]
        nodes.append(_Leaf(keys, bytearray().join([sha256(key).digest() for key in keys])))
        firsts.append(keys[0])
    while len(nodes) > 1:
        starts = range(0, len(nodes), _INNER_FILL)
        parents: list[_Node] = []
        for start in starts:
            children = nodes[start : start + _INNER_FILL]
            lanes_of = [child.lanes() for child in children]
            parents.append(_Inner(children, firsts[start : start + _INNER_FILL], lanes_of))
        firsts = [firsts[start] for start in starts]
        nodes = parents
    return nodes[0]


def _walk(node: _Node) -> Iterator[bytes]:
    if isinstance(node, _Leaf):
        yield from node.keys
    else:
        for child in node.children:
            yield from _walk(child)


def _select(node: _Node, ranks: list[int], chosen: list[bytes]) -> None:
    """Append the keys at the given ascending ranks (within this node) to ``chosen``."""
    if isinstance(node, _Leaf):
        chosen.extend(node.keys[rank] for rank in ranks)
        return
    ends = list(accumulate(node.counts))
    at = 0
    while at < len(ranks):
        child = bisect_right(ends, ranks[at])
        start = ends[child - 1] if child else 0
        until = bisect_left(ranks, ends[child], at)
        _select(node.children[child], [rank - start for rank in ranks[at:until]], chosen)
        at = until
