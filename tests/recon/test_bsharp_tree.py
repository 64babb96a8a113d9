"""The B#tree depends on the set of keys alone, and holds each of them where it belongs."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.ipld import CID, dag_cbor
from recon_node.recon import KeyRange, KeyStore, Sha256a
from recon_node.recon.bsharp_tree import Tree, build_tree, level_of

KEYS = st.sets(st.binary(min_size=1, max_size=3), max_size=120)
EVERYTHING = KeyRange(b"", b"\xff" * 9)


def build(store: KeyStore, fan_out: int) -> tuple[Tree | None, dict[CID, bytes]]:
    blocks: dict[CID, bytes] = {}
    root = build_tree(store.keys(EVERYTHING), blocks.__setitem__, fan_out)
    return root, blocks


def walk(tree: Tree, blocks: dict[CID, bytes], fan_out: int) -> Iterator[bytes]:
    """Yield the keys of a tree in order; check each link's hash and count, and each key's level."""
    node = dag_cbor.decode(blocks[tree.cid])
    keys: list[bytes] = []
    levels = {level_of(key, fan_out) for key in node[1::2]}
    assert len(levels) == 1
    for index, item in enumerate(node):
        if index % 2:
            keys.append(item)
        elif item is not None:
            below = list(walk(Tree(Sha256a(item[0]), item[1], CID(item[2])), blocks, fan_out))
            assert all(level_of(key, fan_out) < min(levels) for key in below)
            keys += below
    assert keys == sorted(keys)
    assert tree.hash == Sha256a.of(*keys)
    assert tree.count == len(keys)
    yield from keys


@given(KEYS, st.integers(2, 40), st.randoms(use_true_random=False))
def test_same_set_same_root_whatever_the_order(
    keys: set[bytes], fan_out: int, rng: random.Random
) -> None:
    loaded, grown, shrunk = KeyStore(keys), KeyStore(), KeyStore()
    for key in rng.sample(sorted(keys), len(keys)):
        grown.add(key)
    extra = {b"\x00" * 5, b"zzzz"} - keys
    for key in rng.sample(sorted(keys | extra), len(keys | extra)):
        shrunk.add(key)
    for key in extra:
        shrunk.discard(key)
    assert build(loaded, fan_out) == build(grown, fan_out) == build(shrunk, fan_out)


@given(KEYS, st.integers(2, 40))
def test_the_tree_holds_the_set(keys: set[bytes], fan_out: int) -> None:
    root, blocks = build(KeyStore(keys), fan_out)
    assert (root is None) == (not keys)
    if root is not None:
        assert list(walk(root, blocks, fan_out)) == sorted(keys)
        assert all(cid.matches(block) for cid, block in blocks.items())


def test_a_new_key_changes_one_path() -> None:
    store = KeyStore(b"%06d" % n for n in range(20_000))
    before = build(store, 16)[1]
    store.add(b"010000+")
    after = build(store, 16)[1]
    assert 1 <= len(after.keys() - before.keys()) <= 8
    assert len(before) > 500


def test_a_fan_out_of_one_makes_no_tree() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        build(KeyStore([b"key"]), 1)
