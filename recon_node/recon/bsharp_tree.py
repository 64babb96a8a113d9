"""The B#tree: a deterministic tree of blocks over a set of keys (CIP-124, appendices B and C).

A B-tree whose links are CIDs. The level of a key follows from its hash alone, as in a Merkle
search tree (Auvolat and Taiani, 2019): with fan-out f, one key in f is on level 1 or higher, one
in f^2 on level 2 or higher, and so on. Hence the tree depends only on the set of keys and the
fan-out: everyone with the same keys makes the same blocks, in whatever order the keys arrived.

A node is a DAG-CBOR list that alternates subtrees and keys, both in key order,

    [tree, key, tree, key, ..., tree]       tree = null | [Sha256a, number of keys, CID]

with the keys of the highest level that occurs in the node's part of the set. A link has the hash of
the subtree's keys, so that a reader fetches only the subtrees that differ from its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from recon_node.ipld import CID, DAG_CBOR, dag_cbor
from recon_node.recon.keys.sha256a import COUNT_SHIFT, Sha256a, spread

DEFAULT_FAN_OUT = 32


@dataclass(frozen=True, slots=True)
class Tree:
    """A link to a subtree: the hash and the number of its keys, and its root block."""

    hash: Sha256a
    count: int
    cid: CID


@dataclass(slots=True)
class _Node:
    """A node being filled from left to right; ``lanes`` is the sum of its subtrees and keys."""

    level: int
    items: list[Any] = field(default_factory=list)
    lanes: int = 0


def build_tree(
    keys: Iterable[bytes],
    put: Callable[[CID, bytes], None],
    fan_out: int = DEFAULT_FAN_OUT,
) -> Tree | None:
    """Build the tree of some keys in one pass, with memory for one path only.

    Args:
        keys: distinct keys in ascending order; of a range: ``store.keys(key_range)``.
        put: called with each block, subtrees before the nodes that link to them.
        fan_out: keys a node on average; at least 2.

    Returns:
        The link to the root, or None if there are no keys.

    Raises:
        ValueError: the fan-out is less than 2.
    """
    if fan_out < 2:
        raise ValueError(f"the fan-out must be at least 2, not {fan_out}")
    path: list[_Node] = []  # from the root down: levels descend
    left: Tree | None = None  # the finished subtree to the left of the next key

    def close_below(level: int) -> None:
        nonlocal left
        while path and path[-1].level < level:
            left = _finish(path.pop(), left, put)

    for key in keys:
        digest = sha256(key).digest()
        level = _level(digest, fan_out)
        close_below(level)
        if not path or path[-1].level > level:
            path.append(_Node(level))
        node = path[-1]
        node.items += [_link(left), key]
        node.lanes += spread(digest) + _lanes(left)
        left = None
    while path:
        left = _finish(path.pop(), left, put)
    return left


def level_of(key: bytes, fan_out: int = DEFAULT_FAN_OUT) -> int:
    """Return the level of a key: how often the fan-out divides its sha256, a big-endian number."""
    return _level(sha256(key).digest(), fan_out)


def _level(digest: bytes, fan_out: int) -> int:
    number, level = int.from_bytes(digest, "big"), 0
    while number and number % fan_out == 0:
        number //= fan_out
        level += 1
    return level


def _finish(node: _Node, rightmost: Tree | None, put: Callable[[CID, bytes], None]) -> Tree:
    node.items.append(_link(rightmost))
    lanes = node.lanes + _lanes(rightmost)
    block = dag_cbor.encode(node.items)
    cid = CID.of(DAG_CBOR, block)
    put(cid, block)
    return Tree(Sha256a.from_lanes(lanes), lanes >> COUNT_SHIFT, cid)


def _link(tree: Tree | None) -> list[Any] | None:
    return None if tree is None else [tree.hash.digest, tree.count, tree.cid]


def _lanes(tree: Tree | None) -> int:
    if tree is None:
        return 0
    one_key = spread(tree.hash.digest)
    return one_key + ((tree.count - 1) << COUNT_SHIFT)
