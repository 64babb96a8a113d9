"""The tree inside the key store: a B+ tree whose nodes know what is below them.

A leaf is a list of keys in order, with their sha2-256 digests beside it in one byte string. That
takes 32 bytes a key instead of the 60 of an object, and any run of neighbours is a slice away,
ready to be added up at once (``spread_run``).

An inner node is a list of children. Between two children stands a *bound*: a string above all keys
of the left one and at most the first key of the right one, cut as short as it can be, as in a
prefix B-tree (Bayer and Unterauer, 1977). What costs time in a tree of this size are the cache
lines touched, and short bounds share a few where whole keys lie all over the memory. For the same
reason nodes *are* lists rather than having them.

Of each child an inner node keeps the *lanes*: the sum of all digests below it with their number on
top, in one integer (see sha256a.py). Readers want sums of the first n children. These are made when
they are first asked for, and forgotten when the node changes: a burst of range hashes pays for each
sum once, and an insert pays nothing but the forgetting.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import accumulate, islice
from operator import eq

from recon_node.recon.keys.ranges import separator
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, LANES_MASK, spread_run

Bisect = Callable[[list[bytes], bytes], int]
"""``bisect_left`` to leave a key that equals the bound out, ``bisect_right`` to take it in."""


class Leaf(list[bytes]):
    """Keys in order; ``digests`` are theirs in the same order, end to end."""

    __slots__ = ("digests",)

    def __init__(self, keys: list[bytes], digests: bytes) -> None:
        super().__init__(keys)
        self.digests = digests

    def insert_key(self, index: int, key: bytes, digest: bytes) -> None:
        """Put a key in before ``index``."""
        self.insert(index, key)
        start, digests = index * DIGEST_SIZE, self.digests
        self.digests = digests[:start] + digest + digests[start:]

    def delete_key(self, index: int) -> bytes:
        """Take the key at ``index`` out and return its digest."""
        del self[index]
        start, digests = index * DIGEST_SIZE, self.digests
        end = start + DIGEST_SIZE
        self.digests = digests[:start] + digests[end:]
        return digests[start:end]

    def lanes(self) -> int:
        """Return the lanes of all keys."""
        return spread_run(self.digests)

    def lanes_before(self, index: int, total: int) -> int:
        """Return the lanes of the first ``index`` keys; ``total`` are those of the whole leaf."""
        start = index * DIGEST_SIZE
        if start * 2 <= len(self.digests):
            return spread_run(self.digests[:start])
        return total - spread_run(self.digests[start:])

    def lanes_between(self, start: int, end: int) -> int:
        """Return the lanes of the keys from index ``start`` to before ``end``."""
        return spread_run(self.digests[start * DIGEST_SIZE : end * DIGEST_SIZE])

    def split(self) -> tuple[bytes, Leaf]:
        """Move the upper half into a new leaf; return that, and the bound between the two."""
        half = len(self) // 2
        right = Leaf(self[half:], self.digests[half * DIGEST_SIZE :])
        del self[half:]
        self.digests = self.digests[: half * DIGEST_SIZE]
        return separator(self[-1], right[0]), right


class Inner(list["Node"]):
    """Children in order, the bounds between them, and of each child its lanes.

    ``bounds[i]`` stands left of child i; the first of them is never looked at.
    """

    __slots__ = ("bounds", "lanes_of", "sums")

    def __init__(self, children: list[Node], bounds: list[bytes], lanes_of: list[int]) -> None:
        super().__init__(children)
        self.bounds = bounds
        self.lanes_of = lanes_of
        self.sums: list[int] | None = None

    def child_of(self, key: bytes) -> int:
        """Return the index of the child that a key belongs to."""
        return bisect_right(self.bounds, key, 1) - 1

    def sum_up(self) -> list[int]:
        """Return the lanes of the first n children, by n, and keep them as ``sums``."""
        self.sums = list(accumulate(self.lanes_of, initial=0))
        return self.sums

    def adjust(self, index: int, lanes: int) -> None:
        """Add lanes to those of one child."""
        self.lanes_of[index] += lanes
        self.sums = None

    def adopt(self, index: int, bound: bytes, child: Node) -> None:
        """Take the right half of the child at ``index``, which has just split, in beside it."""
        lanes = child.lanes()
        self.adjust(index, -lanes)
        self.insert(index + 1, child)
        self.bounds.insert(index + 1, bound)
        self.lanes_of.insert(index + 1, lanes)

    def drop(self, index: int) -> None:
        """Forget a child that has become empty."""
        del self[index], self.bounds[index], self.lanes_of[index]
        self.sums = None

    def split(self) -> tuple[bytes, Inner]:
        """Move the upper half into a new node; return that, and the bound between the two."""
        half = len(self) // 2
        right = Inner(self[half:], self.bounds[half:], self.lanes_of[half:])
        del self[half:], self.bounds[half:], self.lanes_of[half:]
        self.sums = None
        return right.bounds[0], right

    def lanes(self) -> int:
        """Return the lanes of all keys below."""
        return sum(self.lanes_of)


Node = Leaf | Inner


def build(
    ordered: list[bytes], leaf_fill: int, inner_fill: int, digests: bytes | None = None
) -> Node:
    """Build a tree bottom-up from keys in order, at least one.

    With ``digests`` (of the keys, end to end) the keys must be distinct; without, they are hashed.
    """
    nodes: list[Node] = []
    bounds: list[bytes] = []
    lanes_of: list[int] = []
    before: bytes | None = None
    for start in range(0, len(ordered), leaf_fill):
        keys = ordered[start : start + leaf_fill]
        if digests is None:
            # The first repetition starts it all over. To look for one here, while the keys are in
            # the processor's cache, costs a tenth of what a pass over all keys would.
            if keys[0] == before or any(map(eq, keys, islice(keys, 1, None))):
                return build(sorted(set(ordered)), leaf_fill, inner_fill)
            leaf = Leaf(keys, b"".join([sha256(key).digest() for key in keys]))
        else:
            end = (start + len(keys)) * DIGEST_SIZE
            leaf = Leaf(keys, digests[start * DIGEST_SIZE : end])
        nodes.append(leaf)
        bounds.append(b"" if before is None else separator(before, keys[0]))
        lanes_of.append(leaf.lanes())
        before = keys[-1]
    while len(nodes) > 1:
        starts = range(0, len(nodes), inner_fill)
        parts = [slice(start, start + inner_fill) for start in starts]
        nodes = [Inner(nodes[part], bounds[part], lanes_of[part]) for part in parts]
        bounds = [bounds[start] for start in starts]
        lanes_of = [node.lanes() for node in nodes]
    return nodes[0]


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the leaves in order; the tree must not change meanwhile."""
    if isinstance(node, Leaf):
        yield node
        return
    for child in node:
        yield from leaves(child)


def leaf_of(node: Node, key: bytes) -> Leaf:
    """Return the leaf that a key belongs to."""
    while isinstance(node, Inner):
        node = node[node.child_of(key)]
    return node


def leaf_to_grow(node: Node, key: bytes, lanes: int) -> Leaf:
    """Return the leaf that a key belongs to, after adding its lanes to every node on the way.

    The hot path of inserts: ``child_of`` and ``adjust`` are written out.
    """
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, key, 1) - 1
        node.lanes_of[index] += lanes
        node.sums = None
        node = node[index]
    return node


def lanes_left_of(node: Node, bound: bytes, bisect: Bisect, total: int) -> int:
    """Return the lanes of all keys below a node and left of a bound; ``total`` are the node's.

    The hot path of a sync: ``child_of`` is written out.
    """
    below = 0
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, bound, 1) - 1
        sums = node.sums or node.sum_up()
        below += sums[index]
        total = sums[index + 1] - sums[index]
        node = node[index]
    return below + node.lanes_before(bisect(node, bound), total)


def lanes_between(node: Node, lower: bytes, upper: bytes) -> int:
    """Return the lanes of the keys strictly between two bounds, which must ascend.

    What the ways to the two bounds have in common need not be added up.
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


def count_left_of(node: Node, bound: bytes, bisect: Bisect) -> int:
    """Return the number of all keys below a node and left of a bound."""
    below = 0
    while isinstance(node, Inner):
        index = bisect_right(node.bounds, bound, 1) - 1
        below += (node.sums or node.sum_up())[index]
        node = node[index]
    return (below >> COUNT_SHIFT) + bisect(node, bound)


def select(node: Node, ranks: list[int], chosen: list[bytes]) -> None:
    """Append the keys at the given ascending ranks (within this node) to ``chosen``."""
    if isinstance(node, Leaf):
        chosen.extend([node[rank] for rank in ranks])
        return
    sums = node.sums or node.sum_up()
    at = 0
    while at < len(ranks):
        child = bisect_right(sums, ranks[at] << COUNT_SHIFT | LANES_MASK) - 1
        start, end = sums[child] >> COUNT_SHIFT, sums[child + 1] >> COUNT_SHIFT
        until = bisect_left(ranks, end, at)
        select(node[child], [rank - start for rank in ranks[at:until]], chosen)
        at = until
