"""The B#tree depends on the set of keys alone, however it was made, and changes little with it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_support import EVERYTHING, Blocks

from recon_node.ipld import dag_cbor
from recon_node.recon import KeyRange, KeyStore, Sha256a
from recon_node.snapshot.tree.nodes import NEIGHBOURS, InnerNode, LeafNode, NodeFormatError, decode
from recon_node.snapshot.tree.update import (
    Branch,
    branches,
    differing_leaves,
    matcher,
    open_node,
    whole,
)

# Of one size, as no EventId is a prefix of another. Small numbers make neighbours.
KEYS = st.sets(st.integers(0, 700).map(lambda n: b"%06d" % n), max_size=300)


def keys_below(branch: Branch, blocks: Blocks) -> list[bytes]:
    """Return the keys of a tree in order; check every node on the way."""
    node = open_node(branch, blocks[branch.link.cid])
    if isinstance(node, LeafNode):
        return list(node.keys)
    return [key for child in branches(node, branch.bounds) for key in keys_below(child, blocks)]


@given(KEYS)
def test_the_tree_has_the_keys_of_the_set(keys: set[bytes]) -> None:
    blocks = Blocks()
    root = blocks.build(keys)
    assert (root is None) == (not keys)
    if root is not None:
        assert keys_below(whole(root.link), blocks) == sorted(keys)
        assert root.count == len(keys)
        assert root.link.hash == Sha256a.of(*keys)


@given(KEYS, KEYS, st.randoms(use_true_random=False))
def test_a_set_has_one_tree_whatever_came_before(keys, other, rng):
    blocks = Blocks()
    root = blocks.build(keys)
    grown, before = None, set[bytes]()
    for part in ({*rng.sample(sorted(keys), len(keys) // 2)}, other, keys | other, keys):
        grown, _ = blocks.update(grown, part)
        before = part
    assert before == keys
    assert grown == root


@pytest.mark.parametrize("size", [0, 1, NEIGHBOURS, 4096, 4097])
def test_trees_of_sizes_around_the_chunk(size: int) -> None:
    blocks = Blocks()
    rng = random.Random(size)
    keys = [b"%05d" % n + rng.randbytes(8) for n in range(size)]
    root = blocks.build(keys)
    assert root is None or keys_below(whole(root.link), blocks) == keys
    assert blocks.update(None, keys)[0] == root
    fewer = sorted(rng.sample(keys, max(0, size - 3)))
    assert blocks.update(root, fewer)[0] == blocks.build(fewer)


def test_a_key_changes_a_few_nodes() -> None:
    rng = random.Random(5)
    keys = {rng.randbytes(12) for _ in range(10_000)}
    blocks = Blocks()
    root = blocks.build(keys)
    assert len(blocks) > 1500
    for _ in range(5):
        keys.add(rng.randbytes(12))
        before = len(blocks)
        root, made = blocks.update(root, keys)
        assert len(blocks) == before + made  # none of them was there already
        assert made <= 2.5 * (root.link.level + 1)
        assert sum(blocks.waves) <= 4 * (root.link.level + 1)
    assert root == Blocks().build(keys)


def test_nodes_have_a_least_size_and_a_depth() -> None:
    rng = random.Random(6)
    blocks = Blocks()
    root = blocks.build({rng.randbytes(12) for _ in range(10_000)})
    sizes = [len(dag_cbor.decode(block)) // 2 for block in blocks.values() if block[1] == 0]
    assert sorted(sizes)[2] > NEIGHBOURS  # all but the first and the last leaf
    assert max(sizes) < 10 * NEIGHBOURS
    assert root.link.level <= 8


@given(KEYS, KEYS)
def test_the_leaves_that_differ_from_a_set(ours: set[bytes], theirs: set[bytes]) -> None:
    blocks = Blocks()
    root = blocks.build(ours)
    if root is not None:
        leaves = blocks.answer(
            differing_leaves(root.link, matcher(KeyStore(theirs), EVERYTHING), blocks.seen)
        )
        assert {key for _, leaf in leaves for key in leaf.keys} >= ours - theirs
        for branch, leaf in leaves:
            assert set(leaf.keys) != {key for key in theirs if branch.bounds.covers(key)}


def test_equal_sets_and_equal_ranges_need_one_comparison() -> None:
    rng = random.Random(7)
    keys = sorted(rng.randbytes(12) for _ in range(3000))
    ranges = [KeyRange(b"\x10", b"\x40"), KeyRange(b"\x80", b"\xa0")]
    inside = [key for key in keys if any(key_range.covers(key) for key_range in ranges)]
    blocks = Blocks()
    root = blocks.build(inside)
    assert (
        blocks.answer(differing_leaves(root.link, matcher(KeyStore(keys), ranges), blocks.seen))
        == []
    )
    assert blocks.waves == []
    less = KeyStore(key for key in keys if key != inside[99])
    [(_, leaf)] = blocks.answer(differing_leaves(root.link, matcher(less, ranges), blocks.seen))
    assert inside[99] in leaf.keys
    assert blocks.waves == [1] * (root.link.level + 1)


BOUNDS = KeyRange(b"a", b"q")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        [1],
        [0],
        [0, 0],
        [0, 0, "text"],
        [0, 1, b"b"],  # shares what is not there
        [0, -1, b"b"],
        [0, 0, b"c", 0, b"b"],  # descends
        [0, 0, b"c", 1, b""],  # twice
        [0, 0, b"a"],  # on the bound
        [0, 0, b"z"],  # beyond it
    ],
)
def test_a_block_that_is_not_the_leaf_is_refused(fields: object) -> None:
    with pytest.raises(NodeFormatError):
        decode(dag_cbor.encode(fields), 0, BOUNDS)


def test_an_inner_node_that_is_wrong_is_refused() -> None:
    blocks = Blocks()
    root = blocks.build(b"%06d" % n for n in range(100))
    fields = dag_cbor.decode(blocks[root.link.cid])
    bounds = whole(root.link).bounds
    assert isinstance(decode(dag_cbor.encode(fields), root.link.level, bounds), InnerNode)
    for wrong in (fields[:-1], [*fields, 0], [root.link.level, b"short", *fields[2:]]):
        with pytest.raises(NodeFormatError):
            decode(dag_cbor.encode(wrong), root.link.level, bounds)
    lying = [*fields[:1], bytes(32), *fields[2:]]
    with pytest.raises(NodeFormatError, match="not those that its parent names"):
        open_node(whole(root.link), dag_cbor.encode(lying))
    with pytest.raises(NodeFormatError, match="DAG-CBOR"):
        decode(b"\xff", 0, bounds)
