"""Find where a tree differs from a set of keys, and make the tree of that set: few nodes are read.

Theory of operation
-------------------
The levels are made anew from the bottom up, where they change. At each level, the nodes above what
changed are *opened* (replaced by what is in them), and the node on either side of them as well:
being unchanged, it has more items than the rule for boundaries looks at, so both ends of a *run* of
opened nodes remain boundaries, and the nodes between them are made as `build` would make them. They
take the place of the run in the level above. Untouched parts of the set stay closed.

So an update reads and writes a few nodes on the way from each changed leaf to the root.

Neither `differing_leaves` nor `update` does I/O: they are generators that yield the CIDs of the
nodes that they need next, all at once, and go on when the blocks are there. So finding the leaves
takes as many round trips as there are levels.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyView, Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.snapshot.tree.build import NewNode, leaves_of, nodes_above
from recon_node.snapshot.tree.nodes import (
    HIGHEST,
    LOWEST,
    InnerNode,
    LeafNode,
    Link,
    Node,
    NodeFormatError,
    Root,
    decode,
)

Blocks = Mapping[CID, bytes]


class Branch(NamedTuple):
    """A node and the bounds of its keys."""

    link: Link
    bounds: KeyRange


@dataclass(frozen=True, slots=True)
class TreeChange:
    """What is now between the bounds of a leaf."""

    lower: bytes
    """The bound below the old leaf."""
    before: int
    """Keys that it had."""
    keys: Sequence[bytes]
    """The keys now, ascending; perhaps none."""


def update(
    root: Root, changes: Sequence[TreeChange], blocks: Blocks
) -> Generator[Sequence[CID], None, tuple[Root | None, list[NewNode]]]:
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
    if not changes:
        return root, []
    update_ = _Update(root.link, {change.lower: change.keys for change in changes}, blocks)
    links = yield from update_.run()
    while len(links) > 1:
        links = update_.make(nodes_above(links, at_end=True))
    if not links:
        return None, []
    count = root.count + sum(len(change.keys) - change.before for change in changes)
    return Root(links[0], count), update_.made


_Point = tuple[bytes, int]
"""A place between keys: below a bound (0), or above it (1)."""


class _Update:
    """Remakes a tree, of which `keys` are what is now in some leaves, by the bounds below them."""

    def __init__(self, root: Link, keys: Mapping[bytes, Sequence[bytes]], blocks: Blocks) -> None:
        self._root = whole(root)
        self._keys = keys
        self._blocks = blocks
        self._opened: dict[CID, list[Branch]] = {}
        self._seen = {root.cid}
        self.made: list[NewNode] = []

    def run(self) -> Generator[Sequence[CID], None, list[Link]]:
        """Remake levels up to the first one of which nothing is left; return its nodes."""
        points = [(lower, 1) for lower in self._keys]
        below: dict[bytes, list[Link]] = {}
        for level in range(self._root.link.level + 1):
            nodes = yield from self._around(level, points)
            points = [(node.bounds.lower, 1) for node in nodes]
            here: dict[bytes, list[Link]] = {}
            for run in _runs(nodes):
                links = self._remake(run, below)
                if run[0].bounds.lower == LOWEST and run[-1].bounds.upper == HIGHEST:
                    return links
                here |= {node.bounds.lower: [] for node in run}
                here[run[0].bounds.lower] = links
            below = here
        raise AssertionError("the root is the whole of its level")

    def make(self, nodes: Sequence[NewNode]) -> list[Link]:
        """Note which nodes are new; return the links to all."""
        self.made += [new for new in nodes if new.link.cid not in self._seen]
        return [new.link for new in nodes]

    def _remake(self, run: Sequence[Branch], below: Mapping[bytes, list[Link]]) -> list[Link]:
        """Make the nodes that take the place of a run.

        `below` has what takes the place of their children, by the bounds below these.
        """
        lower, at_end = run[0].bounds.lower, run[-1].bounds.upper == HIGHEST
        if run[0].link.level == 0:
            keys = [key for leaf in run for key in self._keys_of(leaf)]
            return self.make(leaves_of(keys, lower, at_end=at_end))
        children = [child.link for node in run for child in self._children(node)]
        links = [link for child in children for link in below.get(child.lower, [child])]
        return self.make(nodes_above(links, at_end=at_end))

    def _around(
        self, level: int, points: Iterable[_Point]
    ) -> Generator[Sequence[CID], None, list[Branch]]:
        """Open the nodes of a level that have some points, and those beside them, in key order."""
        nodes = yield from self._find(level, points)
        ends = [(run[0].bounds.lower, run[-1].bounds.upper) for run in _runs(nodes)]
        beside = [point for lower, upper in ends for point in ((lower, 0), (upper, 1))]
        nodes += yield from self._find(level, beside)
        by_lower = {node.bounds.lower: node for node in nodes}
        changed = self._keys if level == 0 else ()
        missing = [node.link for lower, node in by_lower.items() if lower not in changed]
        yield from _need(missing, self._blocks)
        return [by_lower[lower] for lower in sorted(by_lower)]

    def _find(
        self, level: int, points: Iterable[_Point]
    ) -> Generator[Sequence[CID], None, list[Branch]]:
        """Find the nodes of a level that have some points, in key order."""
        ordered = sorted(points)
        nodes = [self._root]
        while nodes and nodes[0].link.level > level:
            yield from _need([node.link for node in nodes], self._blocks)
            children = [child for node in nodes for child in self._children(node)]
            nodes = [child for child in children if _has(child, ordered)]
            self._seen.update(node.link.cid for node in nodes)
        return nodes

    def _children(self, node: Branch) -> list[Branch]:
        cid = node.link.cid
        if cid not in self._opened:
            inner = decode(self._blocks[cid], node.link.level, node.bounds)
            assert isinstance(inner, InnerNode)
            self._opened[cid] = branches(inner, node.bounds)
        return self._opened[cid]

    def _keys_of(self, leaf: Branch) -> Sequence[bytes]:
        """The keys that are now in an old leaf."""
        keys = self._keys.get(leaf.bounds.lower)
        if keys is None:
            node = decode(self._blocks[leaf.link.cid], 0, leaf.bounds)
            assert isinstance(node, LeafNode)
            keys = node.keys
        return keys


def _has(node: Branch, points: Sequence[_Point]) -> bool:
    """Return whether one of some points, ascending, is between the bounds of a node."""
    at = bisect_left(points, (node.bounds.lower, 1))
    return at < len(points) and points[at] <= (node.bounds.upper, 0)


def _runs(nodes: Sequence[Branch]) -> list[list[Branch]]:
    """Divide the nodes of a level, ascending, into those next to each other."""
    runs: list[list[Branch]] = []
    for node in nodes:
        if runs and runs[-1][-1].bounds.upper == node.bounds.lower:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


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
