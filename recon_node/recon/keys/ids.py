"""From keys to ids and back: what a sketch is made of, and which key an id of it stands for.

The tree has no index of ids. To find keys by their ids we go through the ids of a whole range, a
few thousand at a time: those of all leaves below one inner node. If all of them are asked for, the
node keeps them until it changes. numpy compares them in some 5 ms for a million keys, however many
are sought.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from recon_node.recon.keys.ordered_keys import Bisect, Inner, KeyRange, Leaf, OrderedKeys, TreeNode
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE
from recon_node.recon.keys.sums import NO_IDS, Ids, among_ordered, distinct, ids_of

_GROUPS_A_STEP: Final = 64
"""Groups that are compared between two yields: about a millisecond. At least 2."""
_UNFILTERED_KEYS: Final = 2048
"""Keys up to which all are compared, without a filter."""
_FALSE_HITS: Final = 256
"""About how many keys in all are compared although they only look like one that is sought."""
_FILTER_BITS: Final = 20
"""Most bits of an id that tell which keys look like one that is sought."""


class Group(NamedTuple):
    """Neighbouring keys of the store, at most a few thousand, and their ids.

    When the store changes, the ids stay as they are, and the leaves do not.
    """

    leaves: Sequence[Leaf]
    start: int
    """Keys of the leaves that lie below the group."""
    ids: Ids

    def keys(self, indices: NDArray[np.intp]) -> list[bytes]:
        """Return the keys of some ids, by the ids' indices in the group, which ascend.

        Only until the store changes.
        """
        starts = list(accumulate(map(len, self.leaves), initial=0))
        ranks, keys, at = (indices + self.start).tolist(), list[bytes](), 0
        while at < len(ranks):
            of_leaf = bisect_right(starts, ranks[at]) - 1
            leaf, start = self.leaves[of_leaf], starts[of_leaf]
            end = bisect_left(ranks, starts[of_leaf + 1], at)
            keys += [leaf[rank - start] for rank in ranks[at:end]]
            at = end
        return keys

    def digests(self) -> bytes:
        """Return the sha2-256 digests of the keys, end to end. Only until the store changes."""
        joined = b"".join([leaf.digests for leaf in self.leaves])
        start = self.start * DIGEST_SIZE
        return joined[start : start + len(self.ids) * DIGEST_SIZE]

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
    while lower < upper:
        total, entered = keys.total, False
        for node, end in _above_leaves_from(keys.root, lower):
            inside = end is not None and end <= upper
            if entered and inside and isinstance(node, Inner):  # the usual case in long ranges
                group = Group(cast("list[Leaf]", node), 0, _ids_of_all(node))
            else:
                group = _group_in(node, lower, None if inside else upper, bisect)
            if len(group.ids):
                yield group
            if end is None or end >= upper:
                return
            lower, bisect, entered = end, bisect_left, True
            if keys.total is not total:  # then the way leads from the root again
                break


def find(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Generator[None, None, list[tuple[int, bytes]]]:
    """Return the ids that belong to keys of a range, each with its key, in the keys' order.

    In steps; a key that comes or goes meanwhile may be found or not. Two keys may share an id.
    """
    pairs: list[tuple[int, bytes]] = []
    if not len(ids):
        return pairs
    later = groups(keys, key_range, with_lower=with_lower)
    first = list(islice(later, 2))
    among = keys.count(key_range) if len(first) > 1 else 0
    indices_of = _searcher(np.sort(ids), among)
    for number, group in enumerate(chain(first, later)):
        right = indices_of(group.ids)
        if len(right):
            pairs += zip(group.ids[right].tolist(), group.keys(right), strict=True)
        if number % _GROUPS_A_STEP == _GROUPS_A_STEP - 1:
            yield
    return pairs


def _searcher(wanted: Ids, among: int) -> Callable[[Ids], NDArray[np.intp]]:
    """Return what finds the indices of wanted ids in an array, of this many ids in all arrays.

    `among` may be 0 for a single one.
    """
    if len(wanted) == 1:
        (only,) = wanted
        return lambda ids: _indices(np.equal(ids, only))
    if among <= _UNFILTERED_KEYS:
        return lambda ids: _indices(among_ordered(ids, wanted))
    pairs = among * len(wanted)
    size = 1 << min(_FILTER_BITS, (pairs // _FALSE_HITS).bit_length() + 1)
    likely, mask = np.zeros(size, np.bool_), np.uint64(size - 1)
    likely[wanted & mask] = True

    def indices_of(ids: Ids) -> NDArray[np.intp]:
        candidates = _indices(likely[ids & mask])
        if not len(candidates):
            return candidates
        return candidates[among_ordered(ids[candidates], wanted)]

    return indices_of


def _indices(flags: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return where flags are set: `np.flatnonzero` in a third of the time, for a few."""
    return flags.nonzero()[0]


def not_held(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Generator[None, None, Ids]:
    """Return those of some ids that no key of a range has, each once, in steps.

    They keep their order: the peer lists ids in the order of its keys, so that events which are
    fetched in this order come after those that they build on.
    """
    wanted = distinct(ids)
    by_size = wanted.argsort()
    sought, held = wanted[by_size], np.zeros(len(wanted), np.bool_)
    if len(sought):
        for number, group in enumerate(groups(keys, key_range, with_lower=with_lower)):
            ordered = np.sort(group.ids)  # costs less than searching for ids in any order
            nearest = sought.searchsorted(ordered)
            held[by_size[nearest[sought.take(nearest, mode="clip") == ordered]]] = True
            if number % _GROUPS_A_STEP == _GROUPS_A_STEP - 1:
                yield
    return wanted[~held]


def in_key_order(keys: OrderedKeys, key_range: KeyRange, ids: Ids) -> Generator[None, None, Ids]:
    """Return those of some ids that keys of a range have, in the order of the keys, in steps."""
    indices_of = _searcher(np.sort(ids), keys.count(key_range))
    ordered = [NO_IDS]
    for number, group in enumerate(groups(keys, key_range)):
        ordered.append(group.ids[indices_of(group.ids)])
        if number % _GROUPS_A_STEP == _GROUPS_A_STEP - 1:
            yield
    return np.concatenate(ordered)


def _above_leaves_from(
    node: TreeNode, bound: bytes, end: bytes | None = None
) -> Iterator[tuple[TreeNode, bytes | None]]:
    """Yield the nodes whose children are leaves, from the one around a bound on, or the only leaf.

    Where they end comes with them. The tree must not change meanwhile.
    """
    if isinstance(node, Leaf) or isinstance(node[0], Leaf):
        yield node, end
    else:
        for index in range(node.child_of(bound), len(node)):
            last = index + 1 == len(node)
            below = node[index]
            yield from _above_leaves_from(below, bound, end if last else node.bounds[index + 1])


def _group_in(node: TreeNode, lower: bytes, upper: bytes | None, bisect: Bisect) -> Group:
    """Return the keys of a node from a bound on: all of them, or those below another bound."""
    if isinstance(node, Leaf):
        start, stop = bisect(node, lower), None if upper is None else bisect_left(node, upper)
        return Group([node], start, ids_of(node.digests)[start:stop])
    first = node.child_of(lower)
    last = len(node) - 1 if upper is None else node.child_of(upper)
    leaves = cast("list[Leaf]", node[first : last + 1])
    start, stop = bisect(leaves[0], lower), None
    if upper is not None:
        stop = sum(map(len, leaves[:-1])) + bisect_left(leaves[-1], upper)
    return Group(leaves, start, _ids_below(node, first, leaves)[start:stop])


def _ids_below(node: Inner, first: int, leaves: list[Leaf]) -> Ids:
    """Return the ids of some children, from the `first` one on."""
    if node.ids is None and len(leaves) < len(node):
        return ids_of(b"".join([leaf.digests for leaf in leaves]))
    sums = node.sums or node.sum_up()
    return _ids_of_all(node)[sums[first] >> COUNT_SHIFT : sums[first + len(leaves)] >> COUNT_SHIFT]


def _ids_of_all(node: Inner) -> Ids:
    """Return the ids of all children, which the node keeps until it changes."""
    if node.ids is None:
        digests = b"".join([leaf.digests for leaf in cast("list[Leaf]", node)])
        node.ids = np.ascontiguousarray(ids_of(digests))
    return node.ids
