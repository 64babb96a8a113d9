"""Shards: any DAG comes back from its shards, and every block follows one that links to it."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recon_node.dag.protocol.dag_operations import Append
from recon_node.dag.protocol.shards import (
    CAR,
    NO_ROOT,
    ShardError,
    appends,
    split,
    walk,
)
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_JOSE,
    DAG_PB,
    IDENTITY,
    RAW,
    car,
    dag_cbor,
    dag_pb,
    links,
)
from recon_node.ipld.dag_pb import PbLink, PbNode

DATA = Path(__file__).parent.parent / "data"
FACTS = json.loads((DATA / "replica.json").read_text())


@pytest.mark.parametrize("name", ["empty_shard", "basic_shard"])
def test_the_shards_of_the_protocol(name: str) -> None:
    facts = FACTS[name]
    blocks = {CID.of(DAG_CBOR, block): block for block in map(dag_cbor.encode, facts["blocks"])}
    file = car.encode([NO_ROOT], blocks)
    assert (file.hex(), str(CID.of(CAR, file))) == (facts["car_hex"], facts["cid"])
    assert [str(NO_ROOT)] == facts["roots"]


Blocks = dict[CID, bytes]


@st.composite
def _dag(draw: st.DrawFn) -> tuple[CID, Blocks]:
    """A DAG of blocks of several codecs; the last block is its root."""
    blocks: Blocks = {}
    made: list[CID] = []
    for number in range(draw(st.integers(1, 15))):
        targets = draw(st.lists(st.sampled_from(made), max_size=4)) if made else []
        padding = draw(st.binary(max_size=200))
        value: Any = {"n": number, "links": [*targets, {"deep": [NO_ROOT]}], "padding": padding}
        codec = draw(st.sampled_from([DAG_CBOR, DAG_JOSE, DAG_PB, RAW]))
        if codec == DAG_PB:
            block = dag_pb.encode(PbNode(tuple(PbLink(each) for each in targets), padding))
        else:
            block = padding if codec == RAW else dag_cbor.encode(value)
        cid = CID.of(codec, block)
        blocks[cid] = block
        made.append(cid)
    root = dag_cbor.encode(made)
    blocks[CID.of(DAG_CBOR, root)] = root
    return CID.of(DAG_CBOR, root), blocks


def _largest_section(blocks: Blocks) -> int:
    """Bytes of a shard that every block fits into."""
    return max(len(car.encode([cid], {cid: block})) for cid, block in blocks.items())


@given(_dag(), st.integers(0, 2000))
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
    assert [replica.prior for replica in replicas] == [
        None,
        replicas[0].cid,
        replicas[1].cid,
    ]
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


def test_the_payload_of_a_signed_envelope_is_a_link() -> None:
    event = car.decode((DATA / "ipld" / "jose_event.car").read_bytes())
    [envelope] = event.roots
    [payload] = event.blocks.keys() - {envelope}
    assert links(envelope, event.blocks[envelope]) == [payload]
    [shard] = split(envelope, walk(envelope, event.blocks.__getitem__), 10_000)
    assert set(shard.blocks) == {envelope, payload}


def test_identity_cids_carry_their_blocks() -> None:
    inner = CID(b"\x01\x55" + bytes([IDENTITY]) + b"\x02hi")
    block = dag_cbor.encode([inner])
    root = CID.of(DAG_CBOR, block)
    [shard] = split(root, [(root, block)], 1000)
    assert shard.blocks == (root,)
