"""Replicas: the protocol's CIDs, and the one form that a replica has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors

from recon_node.dag.protocol.dag_operations import Append, Publish, ReplicaError
from recon_node.dag.protocol.replica import Replica, decode_replica
from recon_node.ipld import CID, DAG_CBOR, RAW, dag_cbor

# Facts about the DAG Replication & Publishing Protocol.
FACTS = vectors.load("replica")


def _cid(number: int) -> CID:
    return CID.of(RAW, number.to_bytes(4, "big"))


def test_the_cids_of_the_protocol() -> None:
    empty = Replica(None, Append(()))
    assert str(empty.cid) == FACTS["empty_append"]["cid"]
    basic = FACTS["append_with_basic_shard"]
    shards = map(CID.parse, basic["shards"])
    assert str(Replica(None, Append.of(shards)).cid) == basic["cid"]


CIDS = st.integers(0, 50).map(_cid)
APPENDS = st.lists(CIDS).map(Append.of)
PUBLISHES = st.builds(
    Publish, st.binary(min_size=32, max_size=32), CIDS, CIDS, st.text(), st.none() | CIDS
)


@given(st.none() | CIDS, APPENDS | PUBLISHES)
def test_what_is_written_is_read(prior: CID | None, change: Append | Publish) -> None:
    replica = Replica(prior, change)
    assert decode_replica(replica.block) == replica
    assert replica.cid.matches(replica.block)


LOW, HIGH = sorted((_cid(1), _cid(2)), key=str)
PUBLISH: dict[str, Any] = {
    "type": "publish",
    "id": bytes(32),
    "link": LOW,
    "origin": HIGH,
    "proof": "",
}
BAD: list[tuple[Any, str]] = [
    ({}, "missing required field `change`"),
    ([], "Expected `object`, got `array`"),
    ({"change": {"type": "append", "shards": []}, "more": 1}, "canonical form"),
    ({"prior": None, "change": {"type": "append", "shards": []}}, "canonical form"),
    ({"prior": 1, "change": {"type": "append", "shards": []}}, r"got `int` - at `\$.prior`"),
    ({"change": {"type": "append"}}, "missing required field `shards`"),
    ({"change": {"type": "append", "shards": [1]}}, r"got `int` - at `\$.change.shards\[0\]`"),
    ({"change": {"type": "append", "shards": [HIGH, LOW]}}, "unique and in the order"),
    ({"change": {"type": "append", "shards": [LOW, LOW]}}, "unique and in the order"),
    ({"change": {"type": "remove"}}, "Invalid value 'remove'"),
    ({"change": []}, r"got `array` - at `\$.change`"),
    ({"prior": LOW, "change": {"type": "join", "forks": []}}, "at least one fork"),
    ({"change": {"type": "join", "forks": [HIGH]}}, "prior of a join must be the first"),
    ({"prior": HIGH, "change": {"type": "join", "forks": [LOW]}}, "must be the first"),
    ({"prior": LOW, "change": {"type": "join", "forks": [LOW]}}, "must be the first"),
    ({"change": {**PUBLISH, "id": b"short"}}, "32 bytes, not 5"),
    ({"change": {**PUBLISH, "id": "text"}}, r"`\$.change.id`"),
    ({"change": {**PUBLISH, "link": "text"}}, r"`\$.change.link`"),
    ({"change": {**PUBLISH, "shard": None}}, "canonical form"),
]


@pytest.mark.parametrize(("value", "complaint"), BAD, ids=lambda _: "")
def test_other_forms_are_refused(value: Any, complaint: str) -> None:
    with pytest.raises(ReplicaError, match=complaint):
        decode_replica(dag_cbor.encode(value))


@given(st.binary(max_size=60))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        replica = decode_replica(data)
    except ReplicaError:
        return
    assert replica.block == data
    assert replica.cid == CID.of(DAG_CBOR, data)
