"""From keys to ids and back: what a sketch is made of, and which key an id of it stands for.

The tree has no index of ids. To find keys by their ids we go through the ids of a whole range, a
few thousand at a time: those of all leaves below one inner node, which that node keeps until it
changes. numpy compares them in some 5 ms for a million keys, however many are sought.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from recon_node.recon.keys.ordered_keys import OrderedKeys
from recon_node.recon.keys.ranges import KeyRange
from recon_node.recon.keys.sketch import Ids, distinct, ids_of
from recon_node.recon.keys.tree import Bisect, Inner, Leaf, TreeNode

_GROUPS_A_STEP: Final = 64
"""Groups that are compared between two yields: about a millisecond."""
_FALSE_HITS: Final = 256
"""About how many keys in all are compared although they only look like one that is sought."""
_FILTER_BITS: Final = 20
"""Most bits of an id that tell which keys look like one that is sought."""


class Group(NamedTuple):
    """Neighbouring keys of the store, at most a few thousand, and their ids."""

    leaves: Sequence[Leaf]
    start: int
    """Keys of the leaves that lie below the group."""
    ids: Ids

    def keys(self, indices: NDArray[np.intp]) -> list[bytes]:
        """Return the keys of some ids, by the ids' indices in the group."""
        ends = np.cumsum([len(leaf) for leaf in self.leaves])
        ranks = indices + self.start
        of_leaves = np.searchsorted(ends, ranks, "right")
        places = zip(of_leaves.tolist(), (ranks - ends[of_leaves]).tolist(), strict=True)
        return [self.leaves[leaf][at] for leaf, at in places]

    def last_key(self) -> bytes:
        """Return the key of the last id."""
        (key,) = self.keys(np.array([len(self.ids) - 1]))
        return key


def groups(keys: OrderedKeys, key_range: KeyRange, *, with_lower: bool = False) -> Iterator[Group]:
    """Yield the keys of a range in groups that are not empty, in order.

    The lower bound is in it only if asked for.

    The store may change meanwhile. Of the keys in the range, those that stay are in exactly one
    group; one that is added or discarded is in a group if it lies above those yielded by then.
    """
    lower, upper = key_range
    bisect: Bisect = bisect_left if with_lower else bisect_right
    while True:
        total = keys.total
        for leaves, node, end in _leaves_from(keys.root, lower):
            start = _rank(leaves, node, lower, bisect)
            stop = None if end is not None and end <= upper else _rank(leaves, node, upper)
            ids = _ids_below(leaves, node)[start:stop]
            if len(ids):
                yield Group(leaves, start, ids)
            if end is None or end >= upper:
                return
            lower, bisect = end, bisect_left
            if keys.total is not total:  # then the way leads from the root again
                break


def find(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Generator[None, None, list[tuple[int, bytes]]]:
    """Return the ids that belong to keys of a range, each with its key, in the keys' order.

    In steps; a key that comes or goes meanwhile may be found or not. Two keys may share an id.
    """
    found: list[tuple[int, bytes]] = []
    if not len(ids):
        return found
    indices_of = _searcher(np.sort(ids), keys.count(key_range))
    for number, group in enumerate(groups(keys, key_range, with_lower=with_lower)):
        if number % _GROUPS_A_STEP == _GROUPS_A_STEP - 1:
            yield
        right = indices_of(group.ids)
        if len(right):
            found += zip(group.ids[right].tolist(), group.keys(right), strict=True)
    return found


def _searcher(wanted: Ids, among: int) -> Callable[[Ids], NDArray[np.intp]]:
    """Return what finds the indices of wanted ids in an array, of so many ids in all arrays."""
    if len(wanted) == 1:
        (only,) = wanted
        return lambda ids: np.flatnonzero(np.equal(ids, only))
    pairs = among * len(wanted)
    size = 1 << min(_FILTER_BITS, (pairs // _FALSE_HITS).bit_length() + 1)
    likely, mask = np.zeros(size, np.bool_), np.uint64(size - 1)
    likely[wanted & mask] = True

    def indices_of(ids: Ids) -> NDArray[np.intp]:
        candidates = np.flatnonzero(likely[ids & mask])
        if not len(candidates):
            return candidates
        of_candidates = ids[candidates]
        nearest = np.minimum(np.searchsorted(wanted, of_candidates), len(wanted) - 1)
        return candidates[np.equal(wanted[nearest], of_candidates)]

    return indices_of


def not_held(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Generator[None, None, Ids]:
    """Return those of some ids that no key of a range has, in steps."""
    sought = distinct(ids)
    held = np.zeros(len(sought), np.bool_)
    if len(sought):
        for number, group in enumerate(groups(keys, key_range, with_lower=with_lower)):
            if number % _GROUPS_A_STEP == _GROUPS_A_STEP - 1:
                yield
            nearest = np.minimum(np.searchsorted(sought, group.ids), len(sought) - 1)
            held[nearest[sought[nearest] == group.ids]] = True
    return sought[~held]


def _leaves_from(
    node: TreeNode, bound: bytes, end: bytes | None = None
) -> Iterator[tuple[Sequence[Leaf], Inner | None, bytes | None]]:
    """Yield the leaves beside each other, from those around a bound on.

    Their parent comes with them, and where they end. The tree must not change meanwhile.
    """
    if isinstance(node, Leaf):
        yield [node], None, end
    elif isinstance(node[0], Leaf):
        yield cast("Sequence[Leaf]", node), node, end
    else:
        for index in range(node.child_of(bound), len(node)):
            last = index + 1 == len(node)
            yield from _leaves_from(node[index], bound, end if last else node.bounds[index + 1])


def _rank(
    leaves: Sequence[Leaf], node: Inner | None, bound: bytes, bisect: Bisect = bisect_left
) -> int:
    """Return how many keys of some leaves lie left of a bound."""
    index = 0 if node is None else node.child_of(bound)
    return sum(map(len, leaves[:index])) + bisect(leaves[index], bound)


def _ids_below(leaves: Sequence[Leaf], node: Inner | None) -> Ids:
    if node is not None and node.ids is not None:
        return node.ids
    ids = np.ascontiguousarray(ids_of(b"".join([leaf.digests for leaf in leaves])))
    if node is not None:
        node.ids = ids
    return ids
