"""Keys in order: ranges of them, and the tree of a key store, which has the hash and size of any.

A range has all keys strictly between two bounds. A bound may be a key or a *fencepost*, a bound
that is not a key. Because both ends are open, the ranges left and right of a key never contain the
key itself, and a list of ranges that share their bounds partitions the keys between the first and
the last bound, except the bounds.

The tree is a B+ tree whose nodes know the hash and number of the keys below. A leaf is a sorted
list of keys, with their sha2-256 digests beside it in one byte string. That takes 32 bytes a key
instead of 60 as an object, and the digests of neighbours are a slice that can be added up at once
(`spread_run`).

An inner node is a list of children. Between two children stands a *bound*: a string above all keys
of the left one and at most the first key of the right one, as short as possible, as in a prefix
B-tree (Bayer and Unterauer, 1977). What costs time in a tree of this size is the number of cache
lines touched. Short bounds share a few, while whole keys are scattered over the memory. For the
same reason nodes *are* lists rather than having them.

For each child, an inner node keeps the *lanes*: the sum of all digests below it with their number
on top, in one integer (see sha256a.py). Readers want sums of the first n children. They are
computed when first needed, and dropped when the node changes. So a burst of range hashes pays for
each sum once, and an insert pays for nothing but the dropping. The same goes for the ids of all
keys below a node whose children are leaves (key_hashes.py).

Iterating while the store changes: a walk (`keys`, or iterating over the store) goes page by page.
A page is copied when its first key is asked for: the keys of one leaf that lie beyond the last key
of the page before. The store may change between any two keys. Of the keys in the walk's range,

- one that stays in the store during the whole walk is yielded exactly once,
- one that is added is yielded if and only if it lies beyond the last key of the current page (and
  is still in the store when its own page is copied),
- one that is discarded is yielded if and only if it lies in the current page or an earlier one,

and the keys always come in strictly ascending order. A walk holds no lock and copies nothing but
its page; abandoning one costs nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, islice, pairwise
from operator import eq, itemgetter
from typing import Final, NamedTuple

from recon_node.recon.keys.key_hashes import Ids
from recon_node.recon.keys.sha256a import (
    COUNT_SHIFT,
    DIGEST_SIZE,
    LANES_MASK,
    Sha256a,
    spread_run,
    spread_runs,
)


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


_UPPER: Final = itemgetter(1)


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
    """Return the ranges common to two sets of ranges, ascending. It takes little time if one of the
    sets has few."""
    few, many = sorted((merge_ranges(ours), merge_ranges(theirs)), key=len)
    common: list[KeyRange] = []
    at = 0
    for key_range in few:
        at = bisect_right(many, key_range.lower, at, key=_UPPER)
        for index in range(at, len(many)):
            overlap = many[index].intersect(key_range)
            if overlap is None:
                break
            common.append(overlap)
    return common


def subtract_ranges(ours: Iterable[KeyRange], theirs: Iterable[KeyRange]) -> list[KeyRange]:
    """Return the parts of some ranges, ascending, that lie in none of the others."""
    taken = merge_ranges(theirs)
    left: list[KeyRange] = []
    at = 0
    for key_range in merge_ranges(ours):
        at = bisect_right(taken, key_range.lower, at, key=_UPPER)
        start = key_range.lower
        for index in range(at, len(taken)):
            other = taken[index]
            if other.lower >= key_range.upper:
                break
            if start < other.lower:
                left.append(KeyRange(start, other.lower))
            start = other.upper
        if start < key_range.upper:
            left.append(KeyRange(start, key_range.upper))
    return left


def covers(ranges: Sequence[KeyRange], key: bytes) -> bool:
    """Return whether a key lies in one of the ranges, which are ascending and apart."""
    at = bisect_left(ranges, (key,)) - 1
    return at >= 0 and ranges[at].covers(key)


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


Bisect = Callable[[list[bytes], bytes], int]
"""`bisect_left` to exclude a key that equals the bound, `bisect_right` to include it."""


class Leaf(list[bytes]):
    """Keys in order; `digests` has theirs in the same order, end to end."""

    __slots__ = ("digests", "number", "pages")  # the last two are those of a packed leaf

    def __init__(self, keys: list[bytes], digests: bytes) -> None:
        super().__init__(keys)
        self.digests = digests

    def insert_key(self, index: int, key: bytes, digest: bytes) -> None:
        """Insert a key before `index`."""
        self.insert(index, key)
        start, digests = index * DIGEST_SIZE, self.digests
        self.digests = digests[:start] + digest + digests[start:]

    def insert_keys(self, keys: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Insert those of some ascending keys that the leaf does not hold.

        Returns:
            These keys, and their digests.
        """
        old, at, size = self.digests, 0, len(self)
        new: list[bytes] = []
        hashed: list[bytes] = []
        digests: list[bytes] = []
        last = None
        for key in keys:
            index = bisect_left(self, key, at)
            if key == last or (index < size and self[index] == key):
                continue
            digest = sha256(key).digest()
            if index > at:
                digests += (old[at * DIGEST_SIZE : index * DIGEST_SIZE], digest)
                at = index
            else:
                digests.append(digest)
            hashed.append(digest)
            new.append(bytes(key))
            last = key
        if len(new) == 1:
            self.insert(at, new[0])
        else:
            self += new
            self.sort()  # two ascending runs: it merges them
        digests.append(old[at * DIGEST_SIZE :])
        self.digests = b"".join(digests)
        return new, hashed

    def delete_key(self, index: int) -> bytes:
        """Remove the key at `index` and return its digest."""
        del self[index]
        start, digests = index * DIGEST_SIZE, self.digests
        end = start + DIGEST_SIZE
        self.digests = digests[:start] + digests[end:]
        return digests[start:end]

    def lanes(self) -> int:
        """Return the lanes of all keys."""
        return spread_run(self.digests)

    def lanes_before(self, index: int, total: int) -> int:
        """Return the lanes of the first `index` keys, given those of the whole leaf."""
        start = index * DIGEST_SIZE
        if start * 2 <= len(self.digests):
            return spread_run(self.digests[:start])
        return total - spread_run(self.digests[start:])

    def lanes_between(self, start: int, end: int) -> int:
        """Return the lanes of the keys from index `start` to before `end`."""
        return spread_run(self.digests[start * DIGEST_SIZE : end * DIGEST_SIZE])

    def split(self) -> tuple[bytes, Leaf]:
        """Move the upper half into a new leaf; return the bound between the two, and that leaf."""
        half = len(self) // 2
        right = Leaf(self[half:], self.digests[half * DIGEST_SIZE :])
        del self[half:]
        self.digests = self.digests[: half * DIGEST_SIZE]
        return separator(self[-1], right[0]), right


class Inner(list["TreeNode"]):
    """Children in order, the bounds between them, and the lanes of each child.

    `bounds[i]` stands left of child i; the first one is never used.
    """

    __slots__ = ("bounds", "ids", "lanes_of", "sums")

    def __init__(self, children: list[TreeNode], bounds: list[bytes], lanes_of: list[int]) -> None:
        super().__init__(children)
        self.bounds = bounds
        self.lanes_of = lanes_of
        self.sums: list[int] | None = None
        self.ids: Ids | None = None

    def child_of(self, key: bytes) -> int:
        """Return the index of the child that a key belongs to."""
        return bisect_right(self.bounds, key, 1) - 1

    def sum_up(self) -> list[int]:
        """Store the lanes of the first n children, by n, as `sums`, and return them."""
        self.sums = list(accumulate(self.lanes_of, initial=0))
        return self.sums

    def adjust(self, index: int, lanes: int) -> None:
        """Add lanes to those of one child."""
        self.lanes_of[index] += lanes
        self.sums = self.ids = None

    def adopt(self, index: int, bound: bytes, child: TreeNode) -> None:
        """Insert the right half of the child at `index`, which has just been split."""
        lanes = child.lanes()
        self.adjust(index, -lanes)
        self.insert(index + 1, child)
        self.bounds.insert(index + 1, bound)
        self.lanes_of.insert(index + 1, lanes)

    def drop(self, index: int) -> None:
        """Remove a child that has become empty."""
        del self[index], self.bounds[index], self.lanes_of[index]
        self.sums = self.ids = None

    def split(self) -> tuple[bytes, Inner]:
        """Move the upper half into a new node; return the bound between the two, and that node."""
        half = len(self) // 2
        right = Inner(self[half:], self.bounds[half:], self.lanes_of[half:])
        del self[half:], self.bounds[half:], self.lanes_of[half:]
        self.sums = self.ids = None
        return right.bounds[0], right

    def lanes(self) -> int:
        """Return the lanes of all keys below."""
        return sum(self.lanes_of)


TreeNode = Leaf | Inner

_LEAVES_AT_ONCE = 2_000
"""Leaves whose digests are added up at once."""


def hashed_leaves(ordered: list[bytes], size: int) -> list[Leaf]:
    """Put keys in order, which may repeat, into leaves of `size` keys."""
    leaves: list[Leaf] = []
    before: bytes | None = None
    for start in range(0, len(ordered), size):
        keys = ordered[start : start + size]
        # The first duplicate starts it all over. Looking for it here, while the keys are in the
        # processor's cache, costs a tenth of a pass over all keys.
        if keys[0] == before or any(map(eq, keys, islice(keys, 1, None))):
            return hashed_leaves(sorted(set(ordered)), size)
        leaves.append(Leaf(keys, b"".join([sha256(key).digest() for key in keys])))
        before = keys[-1]
    return leaves


def build(leaves: list[Leaf], inner_fill: int) -> TreeNode:
    """Build a tree bottom-up on at least one leaf; all but the last one have as many keys."""
    bounds = [b"", *(separator(left[-1], right[0]) for left, right in pairwise(leaves))]
    lanes_of: list[int] = []
    for start in range(0, len(leaves), _LEAVES_AT_ONCE):
        digests = [leaf.digests for leaf in leaves[start : start + _LEAVES_AT_ONCE]]
        lanes_of += spread_runs(b"".join(digests), len(leaves[0]))
    return stack([*leaves], bounds, lanes_of, inner_fill)


def stack(
    nodes: list[TreeNode], bounds: list[bytes], lanes_of: list[int], inner_fill: int
) -> TreeNode:
    """Build a tree on nodes of one level, given the bound left of each, and its lanes."""
    while len(nodes) > 1:
        starts = range(0, len(nodes), inner_fill)
        parts = [slice(start, start + inner_fill) for start in starts]
        level = [Inner(nodes[part], bounds[part], lanes_of[part]) for part in parts]
        bounds = [bounds[start] for start in starts]
        lanes_of = [node.sum_up()[-1] for node in level]  # so that the first session need not
        nodes = [*level]
    return nodes[0]


def leaves_below(node: TreeNode) -> Iterator[Leaf]:
    """Yield the leaves in order; the tree must not change meanwhile."""
    if isinstance(node, Leaf):
        yield node
        return
    for child in node:
        yield from leaves_below(child)


def leaf_of(node: TreeNode, key: bytes) -> Leaf:
    """Return the leaf that a key belongs to. As hot as inserts, so `child_of` is inlined."""
    while isinstance(node, Inner):
        node = node[bisect_right(node.bounds, key, 1) - 1]
    return node


def leaf_to_grow(node: TreeNode, key: bytes, lanes: int) -> Leaf:
    """Return the leaf that a key belongs to, after adding its lanes to every node on the path.

    The hot path of inserts: `child_of` and `adjust` are inlined.
    """
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, key, 1) - 1
        node.lanes_of[index] += lanes
        node.sums = node.ids = None
        node = node[index]
    return node


def lanes_left_of(node: TreeNode, bound: bytes, bisect: Bisect, total: int) -> int:
    """Return the lanes of all keys below a node and left of a bound, given all lanes of the node.

    The hot path of a sync: `child_of` is inlined.
    """
    below = 0
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, bound, 1) - 1
        sums = node.sums or node.sum_up()
        below += sums[index]
        total = sums[index + 1] - sums[index]
        node = node[index]
    return below + node.lanes_before(bisect(node, bound), total)


def lanes_between(node: TreeNode, lower: bytes, upper: bytes) -> int:
    """Return the lanes of the keys strictly between two bounds, which must ascend.

    What the paths to the two bounds share is not added up.
    """
    while isinstance(node, Inner):
        left = bisect_right(node.bounds, lower, 1) - 1
        right = bisect_right(node.bounds, upper, left + 1) - 1
        if left != right:
            sums = node.sums or node.sum_up()
            lanes_of = node.lanes_of
            return (
                sums[right]
                - sums[left]
                + lanes_left_of(node[right], upper, bisect_left, lanes_of[right])
                - lanes_left_of(node[left], lower, bisect_right, lanes_of[left])
            )
        node = node[left]
    start = bisect_right(node, lower)
    return node.lanes_between(start, bisect_left(node, upper, start))


def count_left_of(node: TreeNode, bound: bytes, bisect: Bisect) -> int:
    """Return the number of all keys below a node and left of a bound."""
    below = 0
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, bound, 1) - 1
        below += (node.sums or node.sum_up())[index]
        node = node[index]
    return (below >> COUNT_SHIFT) + bisect(node, bound)


def key_at(node: TreeNode, rank: int) -> bytes:
    """Return the key of a rank below a node."""
    while isinstance(node, Inner):
        sums = node.sums or node.sum_up()
        index = bisect_right(sums, rank << COUNT_SHIFT | LANES_MASK) - 1
        rank -= sums[index] >> COUNT_SHIFT
        node = node[index]
    return node[rank]


@dataclass(frozen=True, slots=True)
class Summary:
    """The hash and the number of the keys in a range."""

    hash: Sha256a
    count: int


class OrderedKeys:
    """A sorted set of keys to read from.

    Not thread-safe: one thread (the event loop's) owns it.
    """

    __slots__ = ("lanes_of_all", "root")

    def __init__(self) -> None:
        self.root: TreeNode = Leaf([], b"")
        """The tree, for this package only."""
        self.lanes_of_all = 0
        """The lanes of all keys. Every change of the store makes a new integer object, so that `is`
        shows whether the store has changed since."""

    @property
    def version(self) -> int:
        """Equal to what it was at another time if the store holds the same keys as then."""
        return self.lanes_of_all

    def __len__(self) -> int:
        return self.lanes_of_all >> COUNT_SHIFT

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes):
            return False
        leaf = leaf_of(self.root, key)
        index = bisect_left(leaf, key)
        return index < len(leaf) and leaf[index] == key

    def __iter__(self) -> Iterator[bytes]:
        page = list(leaf_of(self.root, b""))
        while page:
            yield from page
            page = self._page(page[-1])

    def summarize(self, key_range: KeyRange | None = None) -> Summary:
        """Return the Sha256a and the number of the keys in a range, or of all keys."""
        lanes = self.lanes_of_all if key_range is None else self.lanes(key_range)
        return Summary(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT)

    def lanes(self, key_range: KeyRange) -> int:
        """Return the lanes of the keys in a range: their hash, unfolded, and their number."""
        if key_range.is_empty:
            return 0
        if self._all_in(key_range):
            return self.lanes_of_all
        return lanes_between(self.root, *key_range)

    def count(self, key_range: KeyRange) -> int:
        """Return the number of keys in a range."""
        start, end = self._ranks(key_range)
        return end - start

    def first(self, key_range: KeyRange) -> bytes | None:
        """Return the first key of a range, or None if it is empty."""
        return next(self.keys(key_range, 1), None)

    def last(self, key_range: KeyRange) -> bytes | None:
        """Return the last key of a range, or None if it is empty."""
        start, end = self._ranks(key_range)
        return key_at(self.root, end - 1) if start < end else None

    def nth(self, key_range: KeyRange, index: int) -> bytes:
        """Return the key of a range that has `index` keys of the range before it.

        Raises:
            IndexError: the range has no such key.
        """
        start, end = self._ranks(key_range)
        if not 0 <= index < end - start:
            raise IndexError(f"no key {index} among the {max(0, end - start)} of the range")
        return key_at(self.root, start + index)

    def keys(self, key_range: KeyRange, limit: int | None = None) -> Iterator[bytes]:
        """Iterate over the keys of a range in order, at most `limit` of them, lazily.

        The store may change meanwhile; the module docstring says what the walk then yields.
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

    def _all_in(self, key_range: KeyRange) -> bool:
        """Return whether a range has all keys, as that of a node without interests has."""
        lower, upper = key_range
        first = last = self.root
        while isinstance(first, Inner):
            first = first[0]
        if not first or first[0] <= lower:
            return False
        while isinstance(last, Inner):
            last = last[-1]
        return last[-1] < upper

    def _page(self, after: bytes, upper: bytes | None = None) -> list[bytes]:
        """Return the keys strictly between two bounds from the first leaf that has any."""
        node, leaf_end = self.root, None
        while isinstance(node, Inner):
            index = node.child_of(after)
            if index + 1 < len(node):
                leaf_end = node.bounds[index + 1]
            node = node[index]
        start = bisect_right(node, after)
        if start == len(node) and leaf_end is not None:
            node, start = leaf_of(self.root, leaf_end), 0
        return node[start:] if upper is None else node[start : bisect_left(node, upper, start)]

    def _ranks(self, key_range: KeyRange) -> tuple[int, int]:
        """Return the rank of the first key of a range, and that behind its last key."""
        start = count_left_of(self.root, key_range.lower, bisect_right)
        return start, max(start, count_left_of(self.root, key_range.upper, bisect_left))
