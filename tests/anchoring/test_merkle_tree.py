"""The trees are the anchor service's, and every leaf's time event passes this node's own checks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.anchoring.tree import MerkleTree
from recon_node.ceramic import InvalidEventError, parse_event
from recon_node.ceramic.builder import proof_block, time_event_car
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, dag_cbor

VECTORS = vectors.load("anchor_trees")
TX = bytes(range(32))


def leaf(number: int) -> CID:
    return CID.of(DAG_JOSE if number % 3 else DAG_CBOR, f"leaf {number}".encode())


@pytest.mark.parametrize("vector", VECTORS["trees"], ids=lambda vector: str(vector["leaves"]))
def test_trees_are_those_of_the_anchor_service(vector: dict) -> None:
    tree = MerkleTree(leaf(number) for number in range(vector["leaves"]))
    assert str(tree.root) == vector["root"]
    assert list(tree.leaves) == [leaf(number) for number in vector["order"]]
    assert [tree.proof(index)[0] for index in range(len(tree.leaves))] == vector["paths"]


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=80), st.data())
def test_every_leaf_has_a_valid_time_event(numbers: set[int], data: st.DataObject) -> None:
    tree = MerkleTree([leaf(number) for number in numbers] * 2)
    assert len(tree.leaves) == len(numbers)
    proof = proof_block("eip155:100", tree.root, TX)
    index = data.draw(st.integers(0, len(tree.leaves) - 1))
    path, nodes = tree.proof(index)
    init = leaf(0)
    event = parse_event(time_event_car(init, tree.leaves[index], proof, path, nodes))
    assert event.prevs == (tree.leaves[index],)
    assert (event.proof.root, event.proof.transaction_hash) == (tree.root, "0x" + TX.hex())
    assert len(nodes) <= max(1, (len(tree.leaves) - 1).bit_length())
    if len(tree.leaves) > 1:
        other = tree.leaves[index - 1]
        with pytest.raises(InvalidEventError):
            parse_event(time_event_car(init, other, proof, path, nodes))


def test_a_tree_needs_a_leaf() -> None:
    with pytest.raises(ValueError, match="needs a leaf"):
        MerkleTree([])


def test_trees_of_ceramic_one_are_accepted() -> None:
    """A mountain range of ten leaves; source: rust-ceramic, test_anchor_batch_with_10_requests."""
    leaves = [leaf(number) for number in range(10)]
    blocks: dict[CID, bytes] = {}

    def merge(left: CID, right: CID) -> CID:
        block = dag_cbor.encode([left, right])
        cid = CID.of(DAG_CBOR, block)
        blocks[cid] = block
        return cid

    eight = leaves[:8]
    while len(eight) > 1:
        eight = [merge(*eight[at : at + 2]) for at in range(0, len(eight), 2)]
    root = merge(eight[0], merge(*leaves[8:]))
    on_the_path = {cid: block for cid, block in blocks.items() if cid == root or leaves[9] in block}
    proof = proof_block("eip155:100", root, TX)
    event = parse_event(time_event_car(leaf(0), leaves[9], proof, "1/1", on_the_path))
    assert event.prevs == (leaves[9],)
