"""Replicas: the protocol's CIDs, and joins that are the same in every order and grouping."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import vectors
from support.dag_logs import history, join

from recon_node.dag.protocol.dag_operations import Append, Join, Publish, ReplicaError
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


Log = dict[CID, Replica]


def _shards_of(head: CID, replicas: Log) -> set[CID]:
    """The state of a replica: the shards that its history appends."""
    changes = [replicas[cid].change for cid in history([head], replicas)]
    return {shard for change in changes if isinstance(change, Append) for shard in change.shards}


@st.composite
def _log(draw: st.DrawFn) -> Log:
    """Replicas that append to any of those before them, and join some of those."""
    replicas: Log = {}
    for number in range(draw(st.integers(1, 10))):
        known = sorted(replicas)
        if known and draw(st.booleans()):
            replica = join(draw(st.sets(st.sampled_from(known), min_size=1)), replicas)
        else:
            prior = draw(st.none() | st.sampled_from(known)) if known else None
            replica = Replica(prior, Append.of([_cid(number)]))
        replicas[replica.cid] = replica
    return replicas


@given(_log(), st.data())
def test_a_join_is_the_same_in_every_order_and_grouping(log: Log, data: st.DataObject) -> None:
    heads = data.draw(st.lists(st.sampled_from(sorted(log)), min_size=1, max_size=5))
    once = join(heads, log)
    groups = [join([head], log) for head in data.draw(st.permutations(heads))]
    while len(groups) > 1:
        rng = random.Random(len(groups))
        a, b = (groups.pop(rng.randrange(len(groups))) for _ in "ab")
        joined = join([a.cid, b.cid], {**log, a.cid: a, b.cid: b})
        log = {**log, joined.cid: joined}
        groups.append(joined)
    assert groups == [once]


@given(_log(), st.data())
def test_a_join_holds_the_shards_of_all_and_nothing_it_need_not_name(log, data):
    heads = data.draw(st.lists(st.sampled_from(sorted(log)), min_size=1, max_size=5))
    joined = join(heads, log)
    log = {**log, joined.cid: joined}
    assert _shards_of(joined.cid, log) == set().union(*(_shards_of(h, log) for h in heads))
    assert join([joined.cid], log) == joined
    if isinstance(joined.change, Join):
        for base in joined.bases:
            others = [cid for cid in joined.bases if cid != base]
            assert base not in history(others, log)
            assert not isinstance(log[base].change, Join)


def test_the_join_of_the_protocols_picture() -> None:
    """Three divergent replicas: the first in base32 becomes the prior, the others are forks."""
    log: Log = {}

    def append(prior: Replica | None, number: int) -> Replica:
        replica = Replica(prior.cid if prior else None, Append.of([_cid(number)]))
        log[replica.cid] = replica
        return replica

    a2 = append(append(None, 1), 2)
    a4, b3 = append(append(a2, 3), 4), append(a2, 13)
    b4, c4 = append(b3, 14), append(b3, 24)
    joined = join([b4.cid, c4.cid, a4.cid], log)
    first, *forks = sorted((a4.cid, b4.cid, c4.cid), key=str)
    assert joined == Replica(first, Join(tuple(forks)))
    assert _shards_of(joined.cid, {**log, joined.cid: joined}) == {
        _cid(number) for number in (1, 2, 3, 4, 13, 14, 24)
    }


def test_a_history_with_a_hole_says_where_it_is() -> None:
    gone = Replica(None, Append(()))
    last = Replica(gone.cid, Append.of([_cid(1)]))
    log = {last.cid: last}
    with pytest.raises(ReplicaError, match=f"{gone.cid} is missing"):
        history([last.cid], log)
    with pytest.raises(ReplicaError, match="nothing to join"):
        join([], log)


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
