"""Build the tree of a set of keys: the blocks depend on the set alone.

`build` reads the keys once, in order, and holds the nodes of the upper levels only. `update`, in a
module of its own, makes the parts of a tree that change by the same functions.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import NamedTuple

from recon_node.recon import Sha256a
from recon_node.recon.keys.ordered_keys import separator
from recon_node.recon.keys.sha256a import DIGEST_SIZE, spread
from recon_node.snapshot.tree.nodes import (
    ALWAYS_SMALLER,
    LOWEST,
    NEIGHBOURS,
    InnerNode,
    LeafNode,
    Link,
    Node,
    Root,
    node_cid,
    rank,
    starts,
)

_KEYS_AT_ONCE = 4096
"""Keys that are looked at together."""


class NewNode(NamedTuple):
    """A node that was made."""

    link: Link
    node: Node
    block: bytes


def build(keys: Iterable[bytes]) -> Generator[NewNode, None, Root | None]:
    """Make the tree of some keys: distinct, ascending, and none of them a prefix of the next.

    Yields:
        Every node, children before parents and leaves in key order.

    Returns:
        The root, or None if there are no keys.
    """
    links: list[Link] = []
    count = 0
    for group, ranks, lower in _leaves(keys):
        count += len(group)
        new = _leaf(group, ranks, lower)
        links.append(new.link)
        yield new
    while len(links) > 1:
        upper = nodes_above(links, at_end=True)
        yield from upper
        links = [new.link for new in upper]
    return Root(links[0], count) if links else None


def _leaves(keys: Iterable[bytes]) -> Iterator[tuple[list[bytes], list[bytes], bytes]]:
    """Yield the keys of each leaf, their hashes, and the bound below them."""
    source = iter(keys)
    held: list[bytes] = []
    ranks: list[bytes] = []
    lower, checked, more = LOWEST, 0, True
    while more:
        fresh = list(islice(source, _KEYS_AT_ONCE))
        more = len(fresh) == _KEYS_AT_ONCE
        held += fresh
        ranks += _ranks(held, len(ranks), lower)
        end = len(held) - NEIGHBOURS if more else len(held)
        begin = 0
        for at in starts(ranks, checked, end):
            yield held[begin:at], ranks[begin:at], lower
            lower, begin = separator(held[at - 1], held[at]), at
        checked = max(checked, end)
        # Windows need not reach back beyond the first key of a leaf: it is the smallest near it.
        held, ranks, checked = held[begin:], ranks[begin:], checked - begin
    if held:
        yield held, ranks, lower


def _ranks(keys: Sequence[bytes], start: int, lower: bytes) -> list[bytes]:
    """Return the ranks of the keys from an index on; `lower` is the bound below all of them."""
    bounds = [separator(keys[at - 1], keys[at]) if at else lower for at in range(start, len(keys))]
    return list(map(rank, keys[start:], bounds))


def leaves_of(keys: list[bytes], lower: bytes, *, at_end: bool) -> list[NewNode]:
    """Make the leaves of a run of keys; beyond it, unless `at_end`, another leaf starts."""
    ranks = _ranks(keys, 0, lower)
    cuts = _cuts(ranks, at_end=at_end) if keys else []
    made = []
    for start, end in pairwise(cuts):
        bound = separator(keys[start - 1], keys[start]) if start else lower
        made.append(_leaf(keys[start:end], ranks[start:end], bound))
    return made


def nodes_above(children: Sequence[Link], *, at_end: bool) -> list[NewNode]:
    """Make the nodes one level above a run of nodes."""
    made = []
    cuts = _cuts([rank(link.lower, link.lower) for link in children], at_end=at_end)
    for start, end in pairwise(cuts):
        group = children[start:end]
        lanes = sum(spread(link.hash) for link in group)
        made.append(
            _new(group[0].level + 1, group[0].lower, Sha256a.from_lanes(lanes), InnerNode(group))
        )
    return made


def _cuts(ranks: list[bytes], *, at_end: bool) -> list[int]:
    """Return the indices at which nodes start, and the end of the last one."""
    size = len(ranks)
    if not at_end:
        ranks = [*ranks, ALWAYS_SMALLER]
    return [0, *starts(ranks, 1, size), size]


def _leaf(keys: list[bytes], ranks: Sequence[bytes], lower: bytes) -> NewNode:
    """Make a leaf; the rank of a key ends with its sha2-256 digest, which the Ahash adds up."""
    total = sum(spread(key[-DIGEST_SIZE:]) for key in ranks)
    return _new(0, lower, Sha256a.from_lanes(total), LeafNode(keys))


def _new(level: int, lower: bytes, total: Sha256a, node: Node) -> NewNode:
    block = node.encode()
    return NewNode(Link(level, lower, total, node_cid(block)), node, block)
