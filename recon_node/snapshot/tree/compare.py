"""Compare a tree with a set of keys: only nodes that differ are opened.

`differing_leaves` is a generator that does no I/O: it yields the CIDs of the nodes that it needs
next, all at once, and goes on when the blocks are there. So it takes as many round trips as there
are levels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from recon_node.ipld import CID
from recon_node.recon import KeyRange, KeyView, Sha256a
from recon_node.recon.keys.sha256a import spread
from recon_node.snapshot.tree.nodes import HIGHEST, Inner, Leaf, Link, Node, NodeFormatError, decode

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
    if isinstance(node, Leaf):
        found = node.hash
    else:
        found = Sha256a.from_lanes(sum(spread(child.hash) for child in node.children))
    if found != branch.link.hash:
        raise NodeFormatError("its keys are not those that its parent names")
    return node


def branches(node: Inner, bounds: KeyRange) -> list[Branch]:
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
) -> Generator[Sequence[CID], None, list[tuple[Branch, Leaf]]]:
    """Find the leaves that do not have the same keys as a set.

    Args:
        root: of the tree.
        matches: compares with the set.
        blocks: has the blocks that were yielded by the time the generator goes on.

    Yields:
        The CIDs of the nodes needed next.

    Returns:
        The leaves, in key order.

    Raises:
        NodeFormatError: a block is not the node that its parent describes.
    """
    found: list[tuple[Branch, Leaf]] = []
    level = [whole(root)]
    while level := [each for each in level if not matches(each.bounds, each.link.hash)]:
        yield from _need(level, blocks)
        below: list[Branch] = []
        for each in level:
            node = open_node(each, blocks[each.link.cid])
            if isinstance(node, Leaf):
                found.append((each, node))
            else:
                below += branches(node, each.bounds)
        level = below
    return found


def _need(wanted: Sequence[Branch], blocks: Blocks) -> Generator[Sequence[CID], None, None]:
    missing = [each.link.cid for each in wanted if each.link.cid not in blocks]
    if missing:
        yield list(dict.fromkeys(missing))
