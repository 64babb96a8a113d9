"""Shards: any DAG comes back from its shards, and every block follows one that links to it."""

import pytest
from dag_samples import Blocks, dags
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.shards import CAR, NO_ROOT, ShardError, appends, split, walk
from recon_node.ipld import CID, DAG_CBOR, IDENTITY, RAW, car, dag_cbor, links

FACTS = vectors.load("replica")


@pytest.mark.parametrize("name", ["empty_shard", "basic_shard"])
def test_the_shards_of_the_protocol(name: str) -> None:
    facts = FACTS[name]
    blocks = {CID.of(DAG_CBOR, block): block for block in map(dag_cbor.encode, facts["blocks"])}
    file = car.encode([NO_ROOT], blocks)
    assert (file.hex(), str(CID.of(CAR, file))) == (facts["car_hex"], facts["cid"])
    assert [str(NO_ROOT)] == facts["roots"]


def _largest_section(blocks: Blocks) -> int:
    """Bytes of a shard that every block fits into."""
    return max(len(car.encode([cid], {cid: block})) for cid, block in blocks.items())


@given(dags(), st.integers(0, 2000))
def test_a_dag_comes_back_from_its_shards(dag: tuple[CID, Blocks], more: int) -> None:
    root, blocks = dag
    max_bytes = _largest_section(blocks) + more
    shards = list(split(root, walk(root, blocks.__getitem__), max_bytes))
    assert all(len(shard.car) <= max_bytes for shard in shards)
    assert shards[0].blocks[0] == root
    assert sorted(cid for shard in shards for cid in shard.blocks) == sorted(blocks)

    received: Blocks = {}
    for shard in shards:
        decoded = car.decode(shard.car)
        assert decoded.roots == ((root,) if shard is shards[0] else (NO_ROOT,))
        assert set(decoded.blocks) == set(shard.blocks)
        received |= decoded.blocks
    assert received == blocks
    linked = {root}
    for cid in (cid for shard in shards for cid in shard.blocks):
        assert cid in linked
        linked.update(links(cid, blocks[cid]))


def test_many_shards_take_several_appends() -> None:
    cids = [CID.of(CAR, bytes([n >> 8, n & 255])) for n in range(2500)]
    replicas = appends([*cids, *cids])
    assert [replica.prior for replica in replicas] == [None, replicas[0].cid, replicas[1].cid]
    changes = [replica.change for replica in replicas]
    appended = [s for change in changes if isinstance(change, Append) for s in change.shards]
    assert appended == sorted(cids, key=str)


def test_a_block_too_large_for_any_shard_is_named() -> None:
    block = bytes(500)
    root = CID.of(RAW, block)
    with pytest.raises(ShardError, match=rf"{root} does not fit .* 400 bytes: at least (\d+)"):
        list(split(root, [(root, block)], 400))
    needed = _largest_section({root: block})
    [shard] = split(root, [(root, block)], needed)
    assert len(shard.car) == needed


def test_identity_cids_carry_their_blocks() -> None:
    inner = CID(b"\x01\x55" + bytes([IDENTITY]) + b"\x02hi")
    block = dag_cbor.encode([inner])
    root = CID.of(DAG_CBOR, block)
    [shard] = split(root, [(root, block)], 1000)
    assert shard.blocks == (root,)
