"""Find where a tree differs from a set of keys, and make the tree of that set: few nodes are read.

Theory of operation
-------------------
The old tree is a list with one item, its root. Items are opened (replaced by their children) until
every changed leaf is in the list; untouched parts of the set stay closed. Then the levels are made
anew from the bottom up. At each level, a *run* is a stretch of open items, all of the level below.
The node on either side of a run is opened as well: being unchanged, it has more items than the rule
for boundaries looks at, so both ends of the run remain boundaries, and the nodes between them are
made as `build` would make them. They take the place of the run, as items of the next level.

So an update reads and writes a few nodes on the way from each changed leaf to the root.

Neither `differing_leaves` nor `update` does I/O: they are generators that yield the CIDs of the
nodes that they need next, all at once, and go on when the blocks are there. So finding the leaves
takes as many round trips as there are levels.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from recon_node.base.steps import run_steps
from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyView, Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.snapshot.tree.build import NewNode, build, leaves_of, nodes_above
from recon_node.snapshot.tree.nodes import (
    HIGHEST,
    InnerNode,
    LeafNode,
    Link,
    Node,
    NodeFormatError,
    Root,
    decode,
)


@dataclass(frozen=True, slots=True)
class TreeChange:
    """What is now between the bounds of a leaf."""

    lower: bytes
    """The bound below the old leaf."""
    before: int
    """Keys that it had."""
    keys: Sequence[bytes]
    """The keys now, ascending; perhaps none."""


Wants = Generator[Sequence[CID], None, tuple[Root | None, list[NewNode]]]
"""Yields the CIDs of nodes whose blocks are needed next; they must be there when it goes on."""


def update(root: Root | None, changes: Sequence[TreeChange], blocks: Mapping[CID, bytes]) -> Wants:
    """Make the tree of a set that has changed.

    `changes` are ascending. `blocks` has the blocks that were yielded by the time the generator
    goes on.

    Yields:
        The CIDs of old nodes that are needed.

    Returns:
        The new root, and the nodes that the old tree did not have, children before parents.

    Raises:
        NodeFormatError: a block is not the node that its parent describes.
    """
    if root is None:
        new: list[NewNode] = []
        return run_steps(build(key for change in changes for key in change.keys), new.append), new
    if not changes:
        return root, []
    work = _Update(root, changes, blocks)
    link = yield from work.run()
    if link is None:
        return None, []
    count = root.count + sum(len(change.keys) - change.before for change in changes)
    return Root(link, count), work.made


@dataclass(slots=True)
class _Run:
    """Open items, and whether a neighbour on either side is among them."""

    lower: bytes
    items: list[Link] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    """In place of items, where the level below are keys."""
    left: bool = False
    right: bool = False

    @classmethod
    def of(cls, lower: bytes, node: Node) -> _Run:
        """Make a run of what is in a node."""
        if isinstance(node, LeafNode):
            return cls(lower, keys=list(node.keys))
        return cls(lower, list(node.children))

    def append(self, other: _Run) -> None:
        """Take over the items of the run behind this one."""
        self.keys += other.keys
        self.items += other.items


_Item = Link | _Run


class _Update:
    def __init__(
        self, root: Root, changes: Sequence[TreeChange], blocks: Mapping[CID, bytes]
    ) -> None:
        self.made: list[NewNode] = []
        self._changes = {change.lower: change for change in changes}
        self._lowers = sorted(self._changes)
        self._blocks = blocks
        self._items: list[_Item] = [root.link]
        self._opened: set[CID] = set()

    def run(self) -> Generator[Sequence[CID], None, Link | None]:
        """Do it; returns the link to the new root, None for an empty set."""
        yield from self._open_changed()
        level = 0
        while len(self._items) > 1 or isinstance(self._items[0], _Run):
            yield from self._widen(level)
            self._remake(level)
            if not self._items:
                return None
            if len(self._items) == 1:
                break
            self._gather(level)
            level += 1
        [only] = self._items
        assert isinstance(only, Link)
        return only

    def _open_changed(self) -> Generator[Sequence[CID], None, None]:
        """Open nodes until the changed leaves are there, and put their new keys in their place."""
        while True:
            wanted = [
                item for item, upper in self._links() if item.level and self._has(item, upper)
            ]
            if not wanted:
                break
            yield from _need(wanted, self._blocks)
            opened: list[_Item] = []
            for item, upper in self._links():
                if item.level and self._has(item, upper):
                    node = self._open(item, upper)
                    assert isinstance(node, InnerNode)
                    opened += node.children
                else:
                    opened.append(item)
            self._items = opened
        items: list[_Item] = []
        for item, _ in self._links():
            change = self._changes.get(item.lower) if item.level == 0 else None
            if change is None:
                items.append(item)
            elif items and isinstance(items[-1], _Run):
                items[-1].keys += change.keys
            else:
                items.append(_Run(item.lower, keys=list(change.keys)))
            if change is not None:
                self._opened.add(item.cid)
        self._items = items

    def _widen(self, level: int) -> Generator[Sequence[CID], None, None]:
        """Add the node of `level` on either side of each run to it."""
        while True:
            wanted: list[Link] = []
            for left, right in pairwise(self._items):
                if isinstance(left, _Run) and not left.right and isinstance(right, Link):
                    wanted.append(right)
                if isinstance(right, _Run) and not right.left and isinstance(left, Link):
                    wanted.append(left)
            if not wanted:
                return
            yield from _need(wanted, self._blocks)
            items: list[_Item] = []
            for at, item in enumerate(self._items):
                after = self._items[at + 1] if at + 1 < len(self._items) else None
                self._widen_by(items, item, after, level)
            self._items = items

    def _widen_by(self, items: list[_Item], item: _Item, after: _Item | None, level: int) -> None:
        """Append an item to `items`; or what it becomes, where a run beside it needs it."""
        left = items[-1] if items else None
        if isinstance(item, _Run):
            if isinstance(left, _Run):  # what was between them is now in one of them
                left.append(item)
                left.right = item.right
            else:
                items.append(item)
            return
        wanted_left = isinstance(left, _Run) and not left.right
        wanted_right = isinstance(after, _Run) and not after.left
        if not (wanted_left or wanted_right):
            items.append(item)
            return
        node = self._open(item, HIGHEST if after is None else after.lower)
        if item.level > level:
            assert isinstance(node, InnerNode)
            items += node.children
            return
        context = _Run.of(item.lower, node)
        if isinstance(left, _Run):
            left.append(context)
            left.right = True
        else:
            items.append(context)
            context.left = True
        if isinstance(after, _Run):
            after.left = True

    def _remake(self, level: int) -> None:
        """Put the nodes of `level` in the place of each run."""
        items: list[_Item] = []
        last = len(self._items) - 1
        for at, run in enumerate(self._items):
            if isinstance(run, Link):
                items.append(run)
                continue
            if level == 0:
                nodes = leaves_of(run.keys, run.lower, at_end=at == last)
            else:
                nodes = nodes_above(run.items, at_end=at == last)
            self.made += [new for new in nodes if new.link.cid not in self._opened]
            items += [new.link for new in nodes]
        self._items = items

    def _gather(self, level: int) -> None:
        """Make runs of neighbouring nodes of a level."""
        items: list[_Item] = []
        for item in self._items:
            assert isinstance(item, Link)
            if item.level > level:
                items.append(item)
            elif items and isinstance(items[-1], _Run):
                items[-1].items.append(item)
            else:
                items.append(_Run(item.lower, [item]))
        self._items = items

    def _open(self, link: Link, upper: bytes) -> Node:
        self._opened.add(link.cid)
        return decode(self._blocks[link.cid], link.level, KeyRange(link.lower, upper))

    def _links(self) -> Iterator[tuple[Link, bytes]]:
        """Yield the items, all of them links, with the bounds above them."""
        for at, item in enumerate(self._items):
            assert isinstance(item, Link)
            yield item, self._upper(at)

    def _upper(self, at: int) -> bytes:
        return self._items[at + 1].lower if at + 1 < len(self._items) else HIGHEST

    def _has(self, item: Link, upper: bytes) -> bool:
        """Return whether a leaf below an item changed."""
        at = bisect_left(self._lowers, item.lower)
        return at < len(self._lowers) and self._lowers[at] < upper


Blocks = Mapping[CID, bytes]


class Branch(NamedTuple):
    """A node and the bounds of its keys."""

    link: Link
    bounds: KeyRange


Matches = Callable[[KeyRange, Sha256a], bool]
"""Whether the keys that we have between two bounds have that hash."""


def whole(link: Link) -> Branch:
    """Return a root as a branch."""
    return Branch(link, KeyRange(link.lower, HIGHEST))


def open_node(branch: Branch, block: bytes) -> Node:
    """Parse the block of a branch, and check that its keys or children have the branch's hash.

    Raises:
        NodeFormatError: it is not that node.
    """
    node = decode(block, branch.link.level, branch.bounds)
    if isinstance(node, LeafNode):
        total = node.hash
    else:
        total = Sha256a.from_lanes(sum(spread(child.hash) for child in node.children))
    if total != branch.link.hash:
        raise NodeFormatError("its keys are not those that its parent names")
    return node


def branches(node: InnerNode, bounds: KeyRange) -> list[Branch]:
    """Return the children of a node."""
    uppers = [*(child.lower for child in node.children[1:]), bounds.upper]
    return [
        Branch(child, KeyRange(child.lower, upper))
        for child, upper in zip(node.children, uppers, strict=True)
    ]


def matcher(keys: KeyView, ranges: Sequence[KeyRange]) -> Matches:
    """Return a comparison with the keys of a store in some ranges (ascending and apart)."""
    lowers = [range_.lower for range_ in ranges]

    def matches(bounds: KeyRange, expected: Sha256a) -> bool:
        lanes = 0
        at = max(0, bisect_right(lowers, bounds.lower) - 1)
        while at < len(ranges) and ranges[at].lower < bounds.upper:
            common = ranges[at].intersect(bounds)
            if common is not None:
                lanes += keys.lanes(common)
            at += 1
        return Sha256a.from_lanes(lanes) == expected

    return matches


def differing_leaves(
    root: Link, matches: Matches, blocks: Blocks
) -> Generator[Sequence[CID], None, list[tuple[Branch, LeafNode]]]:
    """Find the leaves that do not have the same keys as a set.

    `blocks` has the blocks that were yielded by the time the generator goes on.

    Yields:
        The CIDs of the nodes needed next.

    Returns:
        The leaves, in key order.

    Raises:
        NodeFormatError: a block is not the node that its parent describes.
    """
    leaves: list[tuple[Branch, LeafNode]] = []
    level = [whole(root)]
    while level := [branch for branch in level if not matches(branch.bounds, branch.link.hash)]:
        yield from _need([branch.link for branch in level], blocks)
        below: list[Branch] = []
        for branch in level:
            node = open_node(branch, blocks[branch.link.cid])
            if isinstance(node, LeafNode):
                leaves.append((branch, node))
            else:
                below += branches(node, branch.bounds)
        level = below
    return leaves


def _need(links: Sequence[Link], blocks: Blocks) -> Generator[Sequence[CID], None, None]:
    missing = [link.cid for link in links if link.cid not in blocks]
    if missing:
        yield list(dict.fromkeys(missing))
