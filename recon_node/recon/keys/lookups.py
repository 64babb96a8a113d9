"""Lookups of many keys at once: by a cursor along the store, and by ids.

A cursor makes the next lookup cheap when it is close by
--------------------------------------------------------
The gaps of a message ascend, and most are shorter than a leaf of the tree. A cursor remembers its
current leaf and a position in it. While the next position is in the same leaf, it only adds up the
digests between the two; otherwise it tries the previous leaf, then the subtree of the same inner
node, and only then starts from the root. It notices when the store has changed, so a cursor is
never wrong, only slow.

A *position* is between two neighbouring keys, before the first or after the last. It is given as
the lanes (sha256a.py) of all keys left of it. So the difference of two positions is the hash and
the number of the keys between them, and the count in a position is its rank. A position becomes
invalid when the store changes.

Ids: what a sketch is made of, and which key an id of it stands for
-------------------------------------------------------------------
The tree has no index of ids. To find keys by their ids we go through the ids of a whole range, a
few thousand at a time: those of all leaves below one inner node. If all of them are asked for, the
node keeps them until it changes. numpy compares them in some 5 ms for a million keys, however many
are sought.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from typing import Final, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from recon_node.base.steps import Steps
from recon_node.recon.keys.key_hashes import NO_IDS, Ids, among_ordered, distinct, ids_of
from recon_node.recon.keys.ordered_keys import (
    Bisect,
    Inner,
    KeyRange,
    Leaf,
    OrderedKeys,
    TreeNode,
    common_prefix,
    separator,
)
from recon_node.recon.keys.sha256a import COUNT_SHIFT, DIGEST_SIZE, LANES_MASK, spread, spread_run

_CUT_REACH: Final = 6
"""Maximum keys between a cut and the rank that would make its parts equal. Most streams are shorter
than that, so that cuts tend to fall between streams."""
_CUT_SHARE: Final = 4
"""A cut moves by at most a part's size divided by this, so that neighbouring cuts cannot meet."""
_LONG_PART: Final = 1024
"""Keys from which on a part is cut between two leaves, without a look at any leaf."""
_LONG_CUT_SHARE: Final = 16
"""A cut of a long part moves by at most its size divided by this, if there are bounds so close."""
_CHOICE: Final = 4
"""Maximum bounds of which the shortest is chosen."""
_QUICK_PART: Final = 192
"""Keys from which on a quick cut is between two leaves: it takes any bound near the rank."""
_LEAF_REACH: Final = 32
"""Keys by which a cut between two leaves may always move: half of a full leaf, so there is one."""

_Subtree = tuple[TreeNode, int, int, bytes, bytes | None]
"""A node, the positions at its two ends, and its bounds: None for the end of the store."""


class KeyCursor:
    """A cursor in a key store, which may change meanwhile."""

    __slots__ = (
        "_above",
        "_at",
        "_below",
        "_end",
        "_first",
        "_here",
        "_lanes",
        "_leaf",
        "_left",
        "_parent",
        "_seen",
        "_start",
        "_store",
        "_whole",
    )

    def __init__(self, store: OrderedKeys) -> None:
        self._store = store
        self._seen: int | None = None
        """The store's `lanes_of_all` when the leaf was found: another object if it has changed."""
        self._leaf = Leaf([], b"")
        self._start = b""
        self._end: bytes | None = None
        """The bounds of the leaf; None for the end of the store."""
        self._below = self._above = 0
        """The positions at the two ends of the leaf."""
        self._first = 0
        """The rank of the leaf's first key."""
        self._at = self._lanes = 0
        """The cursor's index in the leaf, and the position there."""
        self._whole: _Subtree = (self._leaf, 0, 0, b"", None)
        self._here: _Subtree = self._whole
        self._left: _Subtree = self._whole
        self._parent: _Subtree = self._whole
        """The whole tree; the current leaf; the previous leaf; the node above the current leaf."""

    def left_of(self, bound: bytes) -> int:
        """Return the position left of a bound: the lanes of all keys below it."""
        index = self._seek(bound)
        return self._lanes if index == self._at else self._move(index)

    def up_to(self, bound: bytes) -> int:
        """Return the position right of a bound: the lanes of all keys up to and including it."""
        return self.around(bound)[1]

    def around(self, bound: bytes) -> tuple[int, int]:
        """Return the positions left and right of a bound; they differ only if it is a key here."""
        index = self._seek(bound)
        left = self._move(index)
        if index < len(self._leaf) and self._leaf[index] == bound:
            return left, left + self._lanes_at(index)
        return left, left

    def not_held(self, keys: Iterable[bytes]) -> list[bytes]:
        """Return those of some keys that the store does not hold. Cheap if they ascend."""
        not_held: list[bytes] = []
        seen, start, end, leaf = self._seen, self._start, self._end, self._leaf
        for key in keys:
            if (
                seen is not self._store.lanes_of_all
                or key < start
                or (end is not None and key >= end)
            ):
                self._enter(key)
                seen, start, end, leaf = self._seen, self._start, self._end, self._leaf
            index = bisect_left(leaf, key)
            if index == len(leaf) or leaf[index] != key:
                not_held.append(key)
        return not_held

    def keys_at(self, start: int, end: int) -> list[bytes]:
        """Return the keys of the ranks from `start` to before `end`, in order."""
        index = start - self._first
        # The usual case, without a generator.
        if index >= 0 and self._seen is self._store.lanes_of_all:
            keys = self._leaf[index : index + end - start]
            if len(keys) == end - start:
                return keys
        return [key for run in self.runs(start, end) for key in run]

    def runs(self, start: int, end: int) -> Iterator[list[bytes]]:
        """Yield the keys of the ranks from `start` to before `end`, leaf by leaf."""
        while start < end:
            index = self._seek_rank(start)
            run = self._leaf[index : index + end - start]
            yield run
            start += len(run)

    def pivots(self, start: int, end: int, parts: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
        """Yield the keys that divide what lies between two positions into equal parts.

        The positions left and right of each come with it. The store must not change meanwhile.
        """
        for rank in _even_ranks(start >> COUNT_SHIFT, end >> COUNT_SHIFT, parts):
            index = self._seek_rank(rank)
            left = self._move(index)
            yield self._leaf[index], (left, left + self._lanes_at(index))

    def cuts(
        self, start: int, end: int, parts: int, *, quick: bool = False
    ) -> Iterator[tuple[bytes, int]]:
        """Yield short strings that divide what lies between two positions into about equal parts.

        The position of each comes with it. They are not keys, so that every key is in one of the
        parts. Near each rank that would make the parts equal, the shortest separator wins, as in a
        prefix B-tree (Bayer and Unterauer, 1977): it falls between two streams rather than into
        one. Long parts are cut at bounds that the tree has. The store must not change meanwhile.
        There are at least 2 parts unless there are too few keys. `quick` prefers speed to bounds
        that are a few bytes shorter.
        """
        first, last = start >> COUNT_SHIFT, end >> COUNT_SHIFT
        ranks = [rank for rank in _even_ranks(first, last, parts) if rank > first]
        size = (last - first) // parts
        root = self._store.root
        if size >= (_QUICK_PART if quick else _LONG_PART) and isinstance(root, Inner):
            reach = max(_LEAF_REACH, size // _LONG_CUT_SHARE)
            yield from self._long_cuts(root, ranks, reach, 1 if quick else _CHOICE)
        elif ranks:
            self._at, self._lanes = self._seek_rank(first), start
            yield from self._short_cuts(ranks, first, min(_CUT_REACH, size // _CUT_SHARE))

    def _long_cuts(
        self, root: Inner, ranks: Iterable[int], reach: int, choice: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the shortest bound near each rank, and its position.

        The bound comes from the highest node whose children are small enough to leave a choice, so
        that few nodes are read.
        """
        node: TreeNode = root
        below = stop = 0  # the position where the node starts, and the rank after its last key
        for rank in ranks:
            if rank + reach >= stop:  # not far inside the node of the last cut
                node, below, stop = root, 0, len(self._store)
            while isinstance(node, Inner):
                sums, sought = node.sums or node.sum_up(), rank - (below >> COUNT_SHIFT)
                has_choice = (sums[-1] >> COUNT_SHIFT) * choice <= 2 * reach * len(node)
                if has_choice or isinstance(node[0], Leaf):
                    first = bisect_left(sums, sought - reach << COUNT_SHIFT, 1, len(node))
                    last = bisect_left(sums, sought + reach + 1 << COUNT_SHIFT, first, len(node))
                    near = node.bounds[first:last]
                    if near:
                        sizes = [*map(len, near)]
                        shortest = sizes.index(min(sizes))
                        yield near[shortest], below + sums[first + shortest]
                        break
                index = bisect_left(sums, sought + 1 << COUNT_SHIFT, 1, len(node)) - 1
                stop = below + sums[index + 1] >> COUNT_SHIFT
                below, node = below + sums[index], node[index]
            else:
                yield from self._short_cuts([rank], 0, 0)
                stop = 0

    def _short_cuts(
        self, ranks: Iterable[int], first: int, reach: int
    ) -> Iterator[tuple[bytes, int]]:
        """Yield the shortest separator near each rank, and its position."""
        for rank in ranks:
            index = self._seek_rank(rank - 1) + 1
            leaf = self._leaf
            if not reach and index < len(leaf):  # the usual case
                yield separator(leaf[index - 1], leaf[index]), self._move(index)
            else:
                lowest = max(first, rank - 1 - reach)
                bound, right = _shortest_separator(self.keys_at(lowest, rank + 1 + reach))
                yield bound, self.position_of(lowest + right)

    def position_of(self, rank: int) -> int:
        """Return the position left of the key of a rank, or after the last key."""
        index = rank - self._first
        if not (0 <= index <= len(self._leaf) and self._seen is self._store.lanes_of_all):
            index = self._seek_rank(rank)
        return self._move(index)

    def _move(self, index: int) -> int:
        """Move within the leaf; return the position there."""
        at, size, digests = self._at, len(self._leaf), self._leaf.digests
        if index > at:
            if size - index < index - at:
                self._lanes = self._above - spread_run(digests[index * DIGEST_SIZE :])
            else:
                self._lanes += spread_run(digests[at * DIGEST_SIZE : index * DIGEST_SIZE])
        elif index < at:
            if index < at - index:
                self._lanes = self._below + spread_run(digests[: index * DIGEST_SIZE])
            else:
                self._lanes -= spread_run(digests[index * DIGEST_SIZE : at * DIGEST_SIZE])
        self._at = index
        return self._lanes

    def _lanes_at(self, index: int) -> int:
        """Return the lanes of one key of the leaf."""
        return spread(self._leaf.digests[index * DIGEST_SIZE : (index + 1) * DIGEST_SIZE])

    def _seek(self, bound: bytes) -> int:
        """Move to the leaf of a bound; return the bound's index there."""
        if (
            self._seen is not self._store.lanes_of_all
            or bound < self._start
            or (self._end is not None and bound >= self._end)
        ):
            self._enter(bound)
        return bisect_left(self._leaf, bound)

    def _enter(self, bound: bytes) -> None:
        """Move to the start of a bound's leaf."""
        if self._seen is not self._store.lanes_of_all:
            self._restart()
        _, _, _, start, end = subtree = self._parent
        if bound < start or (end is not None and bound >= end):
            subtree = self._whole
        self._descend(subtree, bound, 0)

    def _seek_rank(self, rank: int) -> int:
        """Move to the start of the leaf of the key of a rank; return its index there."""
        if self._seen is not self._store.lanes_of_all:
            self._restart()
        elif 0 <= (index := rank - self._first) < len(self._leaf):
            return index
        right = rank << COUNT_SHIFT | LANES_MASK  # lies between the positions left and right of it
        subtree = self._left
        if not subtree[1] <= right < subtree[2]:
            subtree = self._parent
            if not subtree[1] <= right < subtree[2]:
                subtree = self._whole
        self._descend(subtree, None, right)
        return rank - self._first

    def _restart(self) -> None:
        """Forget everything about the store, which has changed."""
        self._seen = self._store.lanes_of_all
        self._whole = self._store.root, 0, self._seen, b"", None
        self._here = self._left = self._parent = self._whole

    def _descend(self, subtree: _Subtree, bound: bytes | None, position: int) -> None:
        """Move to the start of the leaf below a subtree that has a bound; None: a position."""
        node, below, above, start, end = subtree
        while isinstance(node, Inner):
            self._parent = node, below, above, start, end
            bounds, sums = node.bounds, node.sums or node.sum_up()
            if bound is not None:
                index = bisect_right(bounds, bound, 1) - 1
            else:  # the last child has the ranks from the number of all keys on
                index = bisect_right(sums, position - below, 1, len(bounds)) - 1
            below, above = below + sums[index], below + sums[index + 1]
            if index:
                start = bounds[index]
            if index + 1 < len(bounds):
                end = bounds[index + 1]
            node = node[index]
        self._left, self._here = self._here, (node, below, above, start, end)
        self._leaf, self._start, self._end = node, start, end
        self._below, self._above, self._first = below, above, below >> COUNT_SHIFT
        self._at, self._lanes = 0, below


def _even_ranks(start: int, end: int, parts: int) -> list[int]:
    """Return the ranks that divide those from `start` to before `end` evenly, or all if few."""
    size = end - start
    if size < parts:
        return list(range(start, end))
    return [start + part * size // parts for part in range(1, parts)]


def _shortest_separator(keys: list[bytes]) -> tuple[bytes, int]:
    """Return the first of the shortest separators between neighbours of some ascending keys, and
    the index of the key right of it."""
    first = keys[0]
    shared = common_prefix(first, keys[-1])  # as much as the two neighbours share
    right = 1
    if len(keys) > 2 and len(first) > shared:  # else the first key is a prefix of all others
        right = bisect_left(keys, first[:shared] + bytes((first[shared] + 1,)), 1)
    left, above = keys[right - 1], keys[right]
    bound = above[: shared + 1]
    return (left + b"\x00" if bound == above else bound), right


_GROUPS_PER_STEP: Final = 64
"""Groups that are compared between two yields: about a millisecond. At least 2."""
_UNFILTERED_KEYS: Final = 2048
"""Keys up to which all are compared, without a filter."""
_FALSE_HITS: Final = 256
"""About how many keys that are not sought pass the filter."""
_FILTER_BITS: Final = 20
"""Maximum bits of an id that the filter looks at."""


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
        seen, entered = keys.lanes_of_all, False
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
            if keys.lanes_of_all is not seen:  # then the way leads from the root again
                break


def find_by_id(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Steps[list[tuple[int, bytes]]]:
    """Return those of some ids that keys of a range have, each with its key, in the keys' order.

    In steps; a key that comes or goes meanwhile may be found or not. Two keys may share an id.
    """
    pairs: list[tuple[int, bytes]] = []
    if not len(ids):
        return pairs
    later = groups(keys, key_range, with_lower=with_lower)
    first = list(islice(later, 2))
    indices_of = _searcher(np.sort(ids), keys.count(key_range) if len(first) > 1 else 0)
    for number, group in enumerate(chain(first, later)):
        right = indices_of(group.ids)
        if len(right):
            pairs += zip(group.ids[right].tolist(), group.keys(right), strict=True)
        if number % _GROUPS_PER_STEP == _GROUPS_PER_STEP - 1:
            yield
    return pairs


def _searcher(wanted: Ids, searched: int) -> Callable[[Ids], NDArray[np.intp]]:
    """Return a function that finds the indices of wanted ids, which ascend, in arrays of ids.

    `searched` is the number of ids in all these arrays; it may be 0 if there is only one.
    """
    if len(wanted) == 1:
        (only,) = wanted
        return lambda ids: _indices(np.equal(ids, only))
    if searched <= _UNFILTERED_KEYS:
        return lambda ids: _indices(among_ordered(ids, wanted))
    pairs = searched * len(wanted)
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


def ids_not_held(
    keys: OrderedKeys, key_range: KeyRange, ids: Ids, *, with_lower: bool = False
) -> Steps[Ids]:
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
            if number % _GROUPS_PER_STEP == _GROUPS_PER_STEP - 1:
                yield
    return wanted[~held]


def in_key_order(keys: OrderedKeys, key_range: KeyRange, ids: Ids) -> Steps[Ids]:
    """Return those of some ids that keys of a range have, in the order of the keys, in steps."""
    indices_of = _searcher(np.sort(ids), keys.count(key_range))
    ordered = [NO_IDS]
    for number, group in enumerate(groups(keys, key_range)):
        ordered.append(group.ids[indices_of(group.ids)])
        if number % _GROUPS_PER_STEP == _GROUPS_PER_STEP - 1:
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
