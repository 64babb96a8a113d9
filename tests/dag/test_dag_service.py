"""The index of DAGs over a real store: what holds is known, whatever else anyone writes."""

import itertools
import random
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from dag_samples import KEYS, NETWORK, NOW, Blocks, dags, event_with, make_dag
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey
from support.dag_logs import join
from support.waiting import eventually
from trio.testing import wait_all_tasks_blocked

from recon_node import feed_index
from recon_node.ceramic import METAMODEL, Event, InvalidEventError
from recon_node.ceramic.builder import init_event
from recon_node.dag import dag_index, dag_state
from recon_node.dag.containment import MAX_LISTED, find
from recon_node.dag.dag_events import (
    MAX_SHARD_SIZE,
    Identifier,
    Subject,
    replica_event,
    shard_event,
    sort_bytes,
)
from recon_node.dag.dag_index import FILE, take
from recon_node.dag.dag_service import Dags, open_dags
from recon_node.dag.dag_state import MAX_HEADS, read_state
from recon_node.dag.errors import IncompleteDagError
from recon_node.dag.protocol.dag_operations import Append, Join, Publish
from recon_node.dag.protocol.publishing import make_publish, statement_of
from recon_node.dag.protocol.replica import Replica
from recon_node.dag.protocol.shards import CAR, CarShard, appends, split, walk
from recon_node.fairness.slots import ASKER
from recon_node.feed_index import FeedIndex, FeedIndexError
from recon_node.ipld import (
    CID,
    DAG_CBOR,
    DAG_PB,
    IDENTITY,
    RAW,
    car,
    dag_cbor,
    dag_pb,
    encode_varint,
)
from recon_node.ipld.dag_pb import PbNode
from recon_node.store import FeedRow, Store, StoreSettings, open_store

KEY, OTHER, THIRD = KEYS
ALONE = StoreSettings(verifiers=0)  # processes take longer to start than these tests


@asynccontextmanager
async def opened(
    directory: Path, clock: Callable[[], float] = lambda: NOW
) -> AsyncIterator[tuple[Store, Dags]]:
    async with (
        open_store(directory, NETWORK, settings=ALONE) as store,
        open_dags(store, directory, clock=clock) as dags,
    ):
        yield store, dags


async def admit(store: Store, *events: Event) -> None:
    verdicts = await store.admit_local([event.car for event in events])
    assert {verdict.status for verdict in verdicts} <= {"new", "known"}, verdicts


def shards_of(root: CID, blocks: Blocks, size: int) -> list[CarShard]:
    return list(split(root, walk(root, blocks.__getitem__), size))


def shard_events(root: CID, shards: Sequence[CarShard]) -> list[Event]:
    return [shard_event(KEY, root, shard.car) for shard in shards]


async def read_car(dags: Dags, root: CID) -> bytes:
    return b"".join([piece async for piece in await dags.car(root)])


@settings(max_examples=10)
@given(dags(), st.randoms(use_true_random=False), st.integers(250, 900), st.data())
def test_a_dag_comes_back_whatever_the_order_of_its_events(dag, rng, size, data):
    root, blocks = dag
    needed = dict(walk(root, blocks.__getitem__))
    shards = shards_of(root, blocks, max(size, 200 + max(map(len, blocks.values()))))
    replicas = appends(shard.cid for shard in shards)
    events = shard_events(root, shards)
    events += [replica_event(KEY, root, replica.block) for replica in replicas]
    rng.shuffle(events)
    cut = data.draw(st.integers(0, len(events)))

    async def check(directory: Path) -> None:
        async with opened(directory) as (store, dags):
            await admit(store, *events[:cut])
            await dags.state(root)
        async with opened(directory) as (store, dags):  # what was read is not read again
            await admit(store, *events[cut:])
            state = await dags.state(root)
            assert state.complete
            assert (state.blocks, state.size) == (len(needed), sum(map(len, needed.values())))
            assert state.shards == tuple(sorted(shard.cid for shard in shards))
            assert (state.unclaimed, state.ignored) == ((), 0)
            assert state.head == replicas[-1]
            assert await read_car(dags, root) == car.encode([root], needed)

    with tempfile.TemporaryDirectory() as name:
        trio.run(check, Path(name))


async def test_what_is_missing_is_said(tmp_path: Path, rng: random.Random) -> None:
    root, blocks = make_dag(6, 100, rng)
    shards = shards_of(root, blocks, 500)
    async with opened(tmp_path) as (store, dags):
        state = await dags.state(root)
        assert (state.complete, state.missing_blocks.first) == (False, (root,))

        [replica] = appends(shard.cid for shard in shards)
        await admit(store, *shard_events(root, shards[1:]))
        await admit(store, replica_event(KEY, root, replica.block))
        state = await dags.state(root)
        assert state.missing_blocks.first == (root,)
        assert state.missing_shards.first == (shards[0].cid,)
        with pytest.raises(
            IncompleteDagError, match=f"{root} is incomplete, with 1 or more missing blocks"
        ):
            await dags.car(root)

        await admit(store, shard_event(OTHER, root, shards[0].car))
        assert (await dags.state(root)).complete


async def test_shards_count_whatever_roots_they_name(tmp_path: Path, rng: random.Random) -> None:
    """As those of other programs: @storacha/upload-client names the root in the last one only."""
    root, blocks = make_dag(6, 100, rng)
    roots = itertools.cycle([[], [root], [CID.of(DAG_CBOR, b"elsewhere"), root]])
    files = [car.encode(next(roots), {cid: block}) for cid, block in blocks.items()]
    async with opened(tmp_path) as (store, dags):
        await admit(store, *(shard_event(KEY, root, file) for file in files))
        state = await dags.state(root)
        assert (state.complete, state.blocks, state.ignored) == (True, 7, 0)
        assert await read_car(dags, root) == car.encode([root], blocks)


async def test_blocks_named_by_cid_v0_are_those_of_the_cid_v1(tmp_path: Path) -> None:
    """What `ipfs dag export` writes of an `ipfs add` with its defaults: section and link are v0."""
    leaf = dag_pb.encode(PbNode((), b"leaf"))
    leaf_cid = CID.of(DAG_PB, leaf)
    body = b"\x0a\x22" + leaf_cid[2:] + b"\x12\x00\x18\x00"
    node = b"\x12" + encode_varint(len(body)) + body
    root = CID.of(DAG_PB, node)
    blocks = {CID(root[2:]): node, CID(leaf_cid[2:]): leaf}
    async with opened(tmp_path) as (store, dags):
        await admit(store, shard_event(KEY, root, car.encode([CID(root[2:])], blocks)))
        assert (await dags.state(root)).complete
        assert await read_car(dags, root) == car.encode([root], {root: node, leaf_cid: leaf})


async def test_shards_in_no_replica_are_distinguished(tmp_path: Path, rng: random.Random) -> None:
    root, blocks = make_dag(3, 100, rng)
    foreign = make_dag(2, 100, rng)
    shards = shards_of(root, blocks, 5000)
    [other] = shards_of(*foreign, 5000)
    async with opened(tmp_path) as (store, dags):
        await admit(store, *shard_events(root, [*shards, other]))
        [replica] = appends(shard.cid for shard in shards)
        await admit(store, replica_event(KEY, root, replica.block))
        state = await dags.state(root)
        assert state.unclaimed == (other.cid,)
        assert state.shards == tuple(shard.cid for shard in shards)
        assert state.blocks == len(blocks)  # and none of those that the root does not lead to


async def test_whatever_else_is_written_is_ignored_and_counted(tmp_path, rng):
    root, blocks = make_dag(2, 100, rng)
    [shard] = shards_of(root, blocks, 5000)
    unreadable = {CID.of(DAG_CBOR, b"\xa0\0"): b"\xa0\0"}
    publish = make_publish(KEY, bytes(KEY.verify_key), root, root, prior=None, expires=None)
    unsorted = dag_cbor.encode({"change": {"type": "append", "shards": [root, root]}})
    wrong = [
        event_with(root, {"shard": b"no CAR"}),
        event_with(root, {"shard": car.encode([root], {root: b"not its block"})}),
        event_with(root, {"shard": car.encode([root], {root: blocks[root], **unreadable})}),
        event_with(root, {"shard": "text"}),
        event_with(root, {"shard": shard.car, "more": 1}),
        event_with(root, {}),
        event_with(root, [1]),
        event_with(root, {"replica": b"\xff"}),
        event_with(root, {"replica": unsorted}),
        event_with(root, {"replica": publish.block}),
    ]
    mine = Identifier(bytes(KEY.verify_key))
    wrong_publishes = [
        event_with(sort_bytes(mine), {"shard": shard.car}),
        event_with(sort_bytes(mine), {"replica": Replica(None, Append(())).block}),
        replica_event(KEY, Identifier(bytes(OTHER.verify_key)), publish.block),
    ]
    async with opened(tmp_path) as (store, dags):
        await admit(store, *wrong, *wrong_publishes, event_with(b"neither", {"shard": b""}))
        state = await dags.state(root)
        assert (state.blocks, state.shards, state.heads) == (0, (), ())
        assert state.ignored == len(wrong)
        await admit(store, *shard_events(root, [shard]))
        assert (await dags.state(root)).complete
        resolved = await dags.resolve(mine)
        assert (resolved.current, resolved.order, resolved.ignored) == (None, (), 2)


async def test_the_log_is_not_searched_for_dags_where_none_has_come(tmp_path, rng, monkeypatch):
    root, blocks = make_dag(2, 100, rng)
    searches = 0

    async with opened(tmp_path) as (store, dags):
        search = store.reader.sort_key

        async def counted(*args: int) -> list[FeedRow]:
            nonlocal searches
            searches += 1
            return await search(*args)

        monkeypatch.setattr(store.reader, "sort_key", counted)
        await admit(store, init_event(KEY, METAMODEL, {"n": 1}))
        assert not (await dags.state(root)).shards  # the index has read the feed
        assert not searches
        await admit(store, *shard_events(root, shards_of(root, blocks, 1000)))
        assert (await dags.state(root)).complete
        assert searches


async def test_replicas_that_diverge_have_one_join(tmp_path: Path, rng: random.Random) -> None:
    root, blocks = make_dag(8, 100, rng)
    shards = shards_of(root, blocks, 500)
    first = Replica(None, Append.of([shards[0].cid]))
    forks = [Replica(first.cid, Append.of([shard.cid])) for shard in shards[1:]]
    known = {replica.cid: replica for replica in [first, *forks]}
    orphan = Replica(CID.of(DAG_CBOR, b"never seen"), Append(()))
    async with opened(tmp_path) as (store, dags):
        for replica in [*reversed(forks), orphan]:
            await admit(store, replica_event(KEY, root, replica.block))
        state = await dags.state(root)
        assert (state.heads, state.head) == ((), None)
        assert set(state.missing_replicas.first) == {first.cid, orphan.prior}

        await admit(store, replica_event(OTHER, root, first.block))
        state = await dags.state(root)
        assert state.heads == tuple(sorted((fork.cid for fork in forks), key=str))
        assert state.head == join(state.heads, known)
        assert state.missing_replicas.first == (orphan.prior,)  # which does not stop the others

        await admit(store, replica_event(OTHER, root, state.head.block))
        assert (await dags.state(root)).heads == (state.head.cid,)


async def test_a_root_inside_its_cid_is_complete(tmp_path: Path) -> None:
    root = CID(b"\x01\x55\x00\x02hi")
    assert root.hash_code == IDENTITY
    async with opened(tmp_path) as (_, dags):
        assert (await dags.state(root)).complete
        assert await read_car(dags, root) == car.encode([root], {})


def publishes(
    key: SigningKey, links: Sequence[CID], prior: CID | None = None, expires: int | None = None
) -> list[Replica]:
    made: list[Replica] = []
    for link in links:
        last = made[-1].cid if made else prior
        identifier = bytes(key.verify_key)
        made.append(make_publish(key, identifier, link, EMPTY.cid, prior=last, expires=expires))
    return made


EMPTY = Replica(None, Append(()))
LINKS = [CID(bytes([1, DAG_CBOR, IDENTITY, 1, n])) for n in range(6)]  # contained anywhere
MINE = Identifier(bytes(KEY.verify_key))


def publish_event(replica: Replica, subject: Subject = MINE, key: SigningKey = OTHER) -> Event:
    return replica_event(key, subject, replica.block)


async def test_publishes_have_one_order(tmp_path: Path) -> None:
    first, second = publishes(KEY, LINKS[:2])
    third = publishes(KEY, LINKS[2:4], prior=first.cid)
    orders = set()
    for number, replicas in enumerate([[first, second, *third], [*reversed(third), second, first]]):
        async with opened(tmp_path / str(number)) as (store, dags):
            await admit(store, publish_event(replicas[0]))
            resolved = await dags.resolve(MINE)
            assert resolved.waiting_for == (() if number == 0 else (third[0].cid,))
            await admit(store, *map(publish_event, replicas[1:]))
            resolved = await dags.resolve(MINE)
            assert len(resolved.order) == 4
            orders.add((resolved.order, resolved.current.link))
    assert len(orders) == 1


async def test_expiry_is_judged_once_when_a_publish_is_first_read(tmp_path: Path) -> None:
    now = NOW

    def clock() -> float:
        return now

    good, late = publishes(KEY, LINKS[:2], expires=NOW + 10)
    async with opened(tmp_path, clock) as (store, dags):
        await admit(store, publish_event(good))
        assert (await dags.resolve(MINE)).order == (good.cid,)
        now = NOW + 10
        await admit(store, publish_event(late))
        resolved = await dags.resolve(MINE)
        assert resolved.order == (good.cid,)
        assert list(resolved.faults) == [late.cid]
        assert "expired at" in resolved.faults[late.cid]
    async with opened(tmp_path, clock) as (store, dags):
        now = NOW  # neither is judged again, also when others bring them
        await admit(store, publish_event(good, key=THIRD), publish_event(late, key=THIRD))
        assert await dags.resolve(MINE) == resolved


async def test_what_continues_a_publish_that_came_too_late_counts(tmp_path: Path) -> None:
    """The owner saw the grantee's publish in time; this node reads it a minute later."""
    [first] = publishes(KEY, LINKS[:1])
    [late] = publishes(KEY, LINKS[1:2], prior=first.cid, expires=NOW)
    [last] = publishes(KEY, LINKS[2:3], prior=late.cid)
    async with opened(tmp_path, lambda: NOW + 60) as (store, dags):
        await admit(store, publish_event(last))
        assert (await dags.resolve(MINE)).waiting_for == (late.cid,)
        await admit(store, publish_event(late))
        assert (await dags.resolve(MINE)).waiting_for == (first.cid,)
        await admit(store, publish_event(first))
        resolved = await dags.resolve(MINE)
        assert (resolved.order, resolved.waiting_for) == ((first.cid, last.cid), ())
        assert resolved.current.link == LINKS[2]
        assert list(resolved.faults) == [late.cid]


async def test_what_was_judged_outlives_the_log_of_which_it_was_read(tmp_path: Path) -> None:
    """A log put back from an archive is another log: all is read anew, but nothing judged anew."""
    [good] = publishes(KEY, LINKS[:1], expires=NOW + 10)
    async with opened(tmp_path) as (store, dags):
        await admit(store, publish_event(good))
        assert (await dags.resolve(MINE)).current is not None
    for name in ("events.sqlite3", "events.sqlite3-wal", "events.sqlite3-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    async with opened(tmp_path, lambda: NOW + 1000) as (store, dags):
        await admit(store, publish_event(good))
        assert (await dags.resolve(MINE)).order == (good.cid,)


async def test_a_publish_needs_a_proof_made_for_it(tmp_path: Path) -> None:
    [good] = publishes(KEY, LINKS[:1])
    stolen = Replica(None, Publish(MINE.key, LINKS[1], LINKS[1], good.change.proof))
    unproven = make_publish(OTHER, MINE.key, LINKS[1], LINKS[1], prior=None, expires=None)
    async with opened(tmp_path) as (store, dags):
        await admit(store, publish_event(stolen), publish_event(unproven))
        resolved = await dags.resolve(MINE)
        assert resolved.current is None
        assert "was not made for this publish" in resolved.faults[stolen.cid]
        assert "shows no proof" in resolved.faults[unproven.cid]


class Pushed:
    """A DAG with its shards, and the replicas that append one each."""

    def __init__(self, rng: random.Random, key: SigningKey = KEY) -> None:
        self.root, self.blocks = make_dag(4, 100, rng)
        shards = shards_of(self.root, self.blocks, 300)
        assert len(shards) > 2
        self.shards = shard_events(self.root, shards)
        self.names = [shard.cid for shard in shards]
        self.replicas: list[Replica] = []
        for shard in shards:
            prior = self.replicas[-1].cid if self.replicas else None
            self.replicas.append(Replica(prior, Append.of([shard.cid])))
        self.appends = [replica_event(key, self.root, replica.block) for replica in self.replicas]

    def publish(
        self, link: CID, origin: CID, prior: CID | None = None, shard: CID | None = None
    ) -> Replica:
        return make_publish(KEY, MINE.key, link, origin, prior=prior, expires=None, shard=shard)


async def test_a_publish_waits_until_its_link_is_known_to_be_in_its_origin(tmp_path, rng):
    """Until then the identifier leads to what was published before."""
    dag = Pushed(rng)
    [before] = publishes(KEY, LINKS[:1])
    publish = dag.publish(dag.root, dag.replicas[-1].cid, before.cid)
    async with opened(tmp_path) as (store, dags):
        await admit(store, publish_event(before), publish_event(publish))
        for events, missing in (
            ([], {dag.replicas[-1].cid}),
            (dag.appends[1:], {dag.replicas[0].cid, *dag.names[1:]}),
            (dag.appends[:1], set(dag.names)),
            (dag.shards[1:], {dag.names[0]}),
        ):
            await admit(store, *events)
            resolved = await dags.resolve(MINE)
            assert (resolved.current, resolved.pending) == (
                statement_of(before),
                statement_of(publish),
            )
            assert set(resolved.waiting_for) == missing
            assert resolved.order == (before.cid, publish.cid)
            assert resolved.faults == {}
        await admit(store, dag.shards[0])
        resolved = await dags.resolve(MINE)
        assert (resolved.current, resolved.pending) == (statement_of(publish), None)
        assert resolved.waiting_for == ()


async def test_the_shard_that_has_the_link_is_enough(tmp_path: Path, rng: random.Random) -> None:
    """And the replica that appends it, with those between it and the origin."""
    dag = Pushed(rng)
    publish = dag.publish(dag.root, dag.replicas[1].cid)
    async with opened(tmp_path) as (store, dags):
        await admit(store, publish_event(publish), *dag.appends[:2], dag.shards[0])
        assert (await dags.resolve(MINE)).current == statement_of(publish)


@pytest.mark.parametrize("order", ["publishes first", "publishes last"])
async def test_a_publish_never_leads_to_what_its_origin_does_not_contain(tmp_path, rng, order):
    dag = Pushed(rng)
    leaf = next(cid for cid in reversed(dag.blocks) if cid != dag.root)
    absent = CID.of(DAG_CBOR, b"not here")
    last, first = dag.replicas[-1].cid, dag.replicas[0].cid
    good = dag.publish(dag.root, last)
    bad = [
        dag.publish(absent, EMPTY.cid, good.cid),
        dag.publish(dag.root, EMPTY.cid, good.cid),
        dag.publish(absent, last, good.cid),
        dag.publish(leaf, first, good.cid),
        dag.publish(dag.root, last, good.cid, shard=dag.names[1]),
        dag.publish(dag.root, last, good.cid, shard=absent),
    ]
    also = dag.publish(leaf, last, bad[0].cid)
    rest = [*dag.appends, *dag.shards, replica_event(KEY, dag.root, EMPTY.block)]
    publishes_of = [publish_event(publish) for publish in (good, *bad)]
    async with opened(tmp_path) as (store, dags):
        events = [*publishes_of, *rest] if order == "publishes first" else [*rest, *publishes_of]
        await admit(store, *events[:7])
        await dags.resolve(MINE)
        await admit(store, *events[7:])
        resolved = await dags.resolve(MINE)
        assert (resolved.current, resolved.pending, resolved.waiting_for) == (
            statement_of(good),
            None,
            (),
        )
        assert resolved.faults.keys() == {publish.cid for publish in bad}
        assert "is not contained by its origin" in resolved.faults[bad[0].cid]
        assert f"in the shard {dag.names[1]}" in resolved.faults[bad[4].cid]
        assert len(resolved.order) == 7  # what continues them keeps its place
        await admit(store, publish_event(also))
        resolved = await dags.resolve(MINE)
        assert also.cid in resolved.order
        assert resolved.current == statement_of(also)
        assert (await dags.contains(last, leaf)).holds
        assert (await dags.contains(first, leaf)).holds is False


async def test_the_join_of_any_log_is_that_of_the_protocol(tmp_path, rng):
    root = CID.of(DAG_CBOR, b"root")
    known: dict[CID, Replica] = {}
    async with opened(tmp_path) as (store, dags):
        for number in range(40):
            if len(known) > 1 and rng.random() < 0.3:
                replica = join(rng.sample(sorted(known), min(len(known), rng.randint(1, 3))), known)
            else:
                prior = rng.choice([None, *sorted(known)])
                replica = Replica(prior, Append.of([CID.of(CAR, bytes([number]))]))
            if replica.cid not in known:
                known[replica.cid] = replica
                await admit(store, replica_event(KEY, root, replica.block))
            if number % 4 == 0:
                state = await dags.state(root)
                assert state.head == join(state.heads, known)


async def test_a_join_contains_what_its_forks_contain(tmp_path: Path, rng: random.Random) -> None:
    dag = Pushed(rng)
    forks = [Replica(None, Append.of([name])) for name in dag.names]
    joined = join([fork.cid for fork in forks], {fork.cid: fork for fork in forks})
    events = [replica_event(KEY, dag.root, fork.block) for fork in (*forks, joined)]
    async with opened(tmp_path) as (store, dags):
        await admit(store, *events, *dag.shards)
        for block in dag.blocks:
            assert (await dags.contains(joined.cid, block)).holds
        assert (await dags.contains(forks[-1].cid, dag.root)).holds is False


async def test_a_block_in_two_shards_is_contained_by_either(tmp_path, rng):
    """Also where the shards and the replica came under another root than the block."""
    dag = Pushed(rng)
    [whole] = shards_of(dag.root, dag.blocks, 10_000)
    alone = Replica(None, Append.of([whole.cid]))
    other = CID.of(DAG_CBOR, b"another root")
    async with opened(tmp_path) as (store, dags):
        await admit(store, *dag.appends, *dag.shards, replica_event(KEY, other, alone.block))
        assert (await dags.contains(alone.cid, dag.root)).waiting_for == (whole.cid,)
        await admit(store, shard_event(KEY, other, whole.car))
        for replica in alone.cid, dag.replicas[-1].cid:
            for block in dag.blocks:
                assert (await dags.contains(replica, block)).holds


async def test_an_index_of_the_first_version_is_rebuilt(tmp_path: Path, rng: random.Random) -> None:
    dag = Pushed(rng)
    publish = dag.publish(dag.root, dag.replicas[-1].cid)
    async with opened(tmp_path) as (store, dags):
        await admit(store, publish_event(publish), *dag.appends, *dag.shards)
        resolved = await dags.resolve(MINE)
    with sqlite3.connect(tmp_path / dag_index.FILE.name) as connection:
        for name in ("contents", "appends"):
            connection.execute(f"DROP TABLE {name}")
        for name in ("shards_by_cid", "replicas_by_cid", "bases_by_replica"):
            connection.execute(f"DROP INDEX {name}")
        connection.execute("UPDATE publishes SET judged = 7")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    async with opened(tmp_path) as (_, dags):
        assert await dags.resolve(MINE) == resolved
        assert resolved.current == statement_of(publish)
    with sqlite3.connect(tmp_path / dag_index.FILE.name) as connection:
        assert connection.execute("SELECT judged FROM publishes").fetchall() == [(7,)]
    connection.close()


async def test_a_rolled_back_step_is_done_again(tmp_path: Path, rng: random.Random) -> None:
    """A kill between the log's commit and the index's: the index goes on from where it was."""
    root, blocks = make_dag(4, 100, rng)
    shards = shards_of(root, blocks, 500)
    async with opened(tmp_path) as (store, dags):
        await admit(store, *shard_events(root, shards[:1]))
        await dags.state(root)
    async with open_store(tmp_path, NETWORK) as store:  # the index is not there to see it
        await admit(store, *shard_events(root, shards[1:]))
    async with opened(tmp_path) as (_, dags):
        assert (await dags.state(root)).complete


async def test_a_deleted_index_is_rebuilt(tmp_path, rng, monkeypatch):
    """In many steps, over a log that has other events between those of DAGs."""
    monkeypatch.setattr(feed_index, "_POSITIONS_PER_STEP", 70)
    root, blocks = make_dag(100, 6400, rng)
    shards = shards_of(root, blocks, 7000)
    assert len(shards) > 100
    async with opened(tmp_path) as (store, dags):
        for number, event in enumerate(shard_events(root, shards)):
            others = [init_event(KEY, METAMODEL, {"n": number}) for _ in range(number % 3)]
            await admit(store, *others, event)
        state = await dags.state(root)
        assert state.complete
        written = await read_car(dags, root)
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"{dag_index.FILE.name}{suffix}").unlink(missing_ok=True)
    async with opened(tmp_path) as (_, dags):
        assert await dags.state(root) == state
        assert await read_car(dags, root) == written


async def test_only_events_for_the_index_wake_it(tmp_path, monkeypatch):
    steps = 0
    step = FeedIndex._step

    async def counted(index: FeedIndex) -> bool:
        nonlocal steps
        steps += 1
        return await step(index)

    monkeypatch.setattr(FeedIndex, "_step", counted)
    async with opened(tmp_path) as (store, dags):
        await admit(store, replica_event(KEY, LINKS[0], Replica(None, Append.of(LINKS)).block))
        assert (await dags.state(LINKS[0])).heads
        before = steps
        for number in range(5):
            await admit(store, init_event(KEY, METAMODEL, {"n": number}))
            await wait_all_tasks_blocked()
            await dags.state(LINKS[0])
        assert steps == before


async def test_an_index_of_a_longer_log_is_rebuilt(tmp_path: Path, rng: random.Random) -> None:
    """The log's file was put back from a copy: it ends before what the index has read."""
    root, blocks = make_dag(4, 100, rng)
    async with opened(tmp_path) as (store, dags):
        await admit(store, *shard_events(root, shards_of(root, blocks, 500)))
        assert (await dags.state(root)).complete
    with sqlite3.connect(tmp_path / dag_index.FILE.name) as connection:
        connection.execute("UPDATE marks SET position = 1000")
        connection.execute("DELETE FROM nodes")
    connection.close()
    async with opened(tmp_path) as (_, dags):
        assert (await dags.state(root)).complete


@pytest.mark.parametrize("content", [b"no database" * 100, "other"])
async def test_a_file_that_is_not_an_index_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / dag_index.FILE.name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE other (x)")
        connection.close()
    async with open_store(tmp_path, NETWORK) as store:
        with pytest.raises(FeedIndexError, match=f"{dag_index.FILE.name} (failed|is not an index)"):
            async with open_dags(store, tmp_path):
                pass


def test_the_largest_shard_fits_into_an_event() -> None:
    root = CID.of(DAG_CBOR, b"root")
    assert len(shard_event(KEY, root, bytes(MAX_SHARD_SIZE)).car) <= 1_000_000
    with pytest.raises(InvalidEventError, match="the limit is 1000000"):
        shard_event(KEY, root, bytes(1_000_000))


async def test_strangers_replicas_do_not_hide_the_owner_s(tmp_path, rng):
    dag = Pushed(rng)
    junk = [
        replica_event(OTHER, dag.root, Replica(None, Append.of([CID.of(RAW, b"%d" % n)])).block)
        for n in range(2 * MAX_HEADS)
    ]
    async with opened(tmp_path) as (store, dags):
        await admit(store, *junk, *dag.shards, *dag.appends)
        state = await dags.state(dag.root)
        assert state.complete
        assert len(state.heads) == MAX_HEADS
        assert dag.replicas[-1].cid in state.heads
        assert state.missing_shards.count == len(junk)
        assert state.head is not None


def row_of(event: Event, position: int) -> FeedRow:
    event_id = event.event_id(NETWORK, event.header, 0)
    return FeedRow(position, event_id, event.cid, event.cid, event.kind, event.car)


ROOT = CID.of(RAW, b"root")


@contextmanager
def indexed(directory: Path, replicas: Sequence[Replica]) -> Iterator[sqlite3.Connection]:
    """An index of some replicas."""
    directory.mkdir()
    rows = [row_of(replica_event(KEY, ROOT, each.block), at) for at, each in enumerate(replicas, 1)]
    with closing(FILE.open(directory, "epoch", 0)) as connection:
        assert take(connection, rows, NOW) == 0
        yield connection


def steps(connection: sqlite3.Connection, ask: Callable[[sqlite3.Connection], object]) -> int:
    """About how many steps SQLite takes to answer a question."""
    counted = itertools.count()
    connection.set_progress_handler(lambda: bool(next(counted) < 0), 100)
    ask(connection)
    return 100 * next(counted)


def chain_of(count: int) -> list[Replica]:
    """Replicas of which every second one continues the one before."""
    made: list[Replica] = []
    for number in range(count):
        prior = made[-1].cid if made and not number % 2 else None
        made.append(Replica(prior, Append.of([CID.of(RAW, b"%d" % number)])))
    return made


def brush_of(count: int) -> list[Replica]:
    """Replicas that all continue one, which appends as many shards."""
    first = Replica(None, Append.of([CID.of(RAW, b"%d" % number) for number in range(count)]))
    heads = [Append.of([CID.of(RAW, b"other %d" % number)]) for number in range(count)]
    return [first, *(Replica(first.cid, head) for head in heads)]


@pytest.mark.parametrize("log", [chain_of, brush_of])
def test_twice_as_many_replicas_take_about_twice_the_steps(tmp_path: Path, log: Any) -> None:
    """Not four times: anybody can add some to any DAG."""

    def steps_of(count: int) -> int:
        with indexed(tmp_path / str(count), log(count)) as connection:
            assert len(read_state(connection, ROOT).heads) == MAX_HEADS
            return steps(connection, partial(read_state, root=ROOT))

    assert steps_of(800) < 3 * steps_of(400)


def test_no_replica_is_looked_up_among_the_blocks_of_all(tmp_path: Path) -> None:
    """To find a key there, SQLite reads blocks that it passes: joins of a hundred kilobytes."""
    parts = [Replica(None, Append.of([CID.of(RAW, b"%d" % number)])) for number in range(6)]
    cids = sorted((part.cid for part in parts), key=str)
    joins = [Replica(first, Join(tuple(cids[at:]))) for at, first in enumerate(cids[:-1], 1)]
    asked: list[str] = []
    with indexed(tmp_path / "log", [*parts, *joins]) as connection:
        connection.set_trace_callback(asked.append)
        assert read_state(connection, ROOT).missing_replicas.count == 0
        connection.set_trace_callback(None)
        plans = [connection.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall() for sql in asked]
    details = [row[3] for plan in plans for row in plan]
    assert [each for each in details if "SEARCH replicas" in each and "cid=?" in each] == [
        each for each in details if "COVERING INDEX replicas_by_cid" in each
    ]


def test_a_replica_is_encoded_a_few_times_however_many_shards_it_appends(tmp_path, monkeypatch):
    """One of a megabyte held the index for minutes: it was encoded anew for each of its shards."""
    encoded: list[object] = []
    replica = Replica(None, Append.of([CID.of(RAW, b"%d" % number) for number in range(500)]))
    encode = dag_cbor.encode
    monkeypatch.setattr(dag_cbor, "encode", lambda value: encoded.append(value) or encode(value))
    with indexed(tmp_path / "log", [replica]):
        assert len(encoded) < 20


def test_shards_that_strangers_append_hardly_hold_up_a_resolver(tmp_path: Path) -> None:
    """They are in the history of whoever joined them, forever."""
    logs = [Append.of([CID.of(RAW, b"%d %d" % (n, at)) for at in range(1000)]) for n in range(10)]
    forks = sorted((Replica(None, log) for log in logs), key=lambda fork: str(fork.cid))
    joined = Replica(forks[0].cid, Join(tuple(fork.cid for fork in forks[1:])))
    with indexed(tmp_path / "log", [*forks, joined]) as connection:
        question = partial(find, link=ROOT, origin=joined.cid)
        assert len(question(connection).waiting_for) == MAX_LISTED
        assert steps(connection, question) < 10 * 1000 * len(forks)


def test_more_replicas_than_a_join_holds_are_joined_by_their_heads(tmp_path, monkeypatch):
    """Strangers' joins that made an event too large kept the owner from pushing."""
    monkeypatch.setattr(dag_state, "_MAX_JOINED", 5)
    forks = sorted((replica.cid for replica in brush_of(8)[1:]), key=str)
    joins = [Replica(part[0], Join(tuple(part[1:]))) for part in (forks[:4], forks[4:])]
    with indexed(tmp_path / "log", [*brush_of(8), *joins]) as connection:
        first, second = sorted((replica.cid for replica in joins), key=str)
        assert read_state(connection, ROOT).head == Replica(first, Join((second,)))


def test_the_join_of_the_protocols_picture(tmp_path: Path, rng: random.Random) -> None:
    """Of three divergent replicas, the first in base32 becomes the prior, the others are forks."""

    def append(prior: Replica | None, number: int) -> Replica:
        log.append(Replica(prior and prior.cid, Append.of([CID.of(RAW, b"%d" % number)])))
        return log[-1]

    log: list[Replica] = []
    a2 = append(append(None, 1), 2)
    b3 = append(a2, 13)
    ends = [append(append(a2, 3), 4), append(b3, 14), append(b3, 24)]
    first, *forks = sorted((end.cid for end in ends), key=str)
    for order in range(3):
        rng.shuffle(log)
        with indexed(tmp_path / str(order), log) as connection:
            assert read_state(connection, ROOT).head == Replica(first, Join(tuple(forks)))


async def test_questions_are_answered_in_turn(tmp_path: Path) -> None:
    """Those of one client keep neither another's waiting, nor the index."""
    begun: list[str] = []
    gate = threading.Semaphore(0)
    wanted = replica_event(KEY, LINKS[0], Replica(None, Append.of(LINKS)).block)

    async def ask(asker: str) -> None:
        def question(_: object) -> None:
            begun.append(asker)
            assert gate.acquire(timeout=60)

        ASKER.set(asker)
        await questions.ask(question)

    async def answer_one() -> None:
        """Let one question be answered, and wait until the next one has begun."""
        count = len(begun)
        gate.release()
        await eventually(lambda: len(begun) > count)

    async with (
        open_store(tmp_path, NETWORK, settings=ALONE) as store,
        feed_index.open_feed_index(FILE, partial(take, now=NOW), store, tmp_path) as questions,
        trio.open_nursery() as nursery,
    ):
        for asker in ["many"] * 20 + ["other"]:
            nursery.start_soon(ask, asker)
            await wait_all_tasks_blocked()
        await admit(store, wanted)
        await eventually(partial(has_replica, tmp_path))
        await eventually(lambda: len(begun) == 2)  # as many as are answered at once
        while "other" not in begun:
            await answer_one()
        gate.release(21)
    assert begun.index("other") < 5  # of 21


def has_replica(directory: Path) -> bool:
    with FILE.reading(directory) as connection:
        return connection.execute("SELECT 1 FROM replicas").fetchone() is not None
