"""Nodes that speak `/ceramic/recon/0.1.0` alone, as ceramic-one nodes do, and mixed networks."""

import tracemalloc
from contextlib import aclosing

import pytest
from nacl.signing import SigningKey
from p2p_support import NETWORK, Node, eventually, node, sessions, two_nodes
from support import sdk_sample
from support.time_events import time_event
from support.wallets import SESSION, EthereumWallet

from recon_node.ceramic import METAMODEL, parse_event
from recon_node.ceramic.builder import data_event, init_event, signed_event, time_event_car
from recon_node.ceramic.heightless_event_id import HeightlessEventId, is_fencepost
from recon_node.fairness.pacing import Backoff
from recon_node.ipld import CID, DAG_CBOR, dag_cbor
from recon_node.p2p import AGREED
from recon_node.p2p.errors import PeerError, PeerProtocolError
from recon_node.p2p.sync import ring_events, rings, sync_scheduler
from recon_node.p2p.sync.ring_events import MAX_TRIES, RingEvents
from recon_node.p2p.sync.rings import MODEL_RING, RingPeers
from recon_node.p2p.transport.guarded_connection import unlimited
from recon_node.recon import KeyRange, KeyStore
from recon_node.recon.actions import Admit, Value
from recon_node.recon.ring import differences
from recon_node.recon.ring.differences import Ending
from recon_node.recon.ring.ring import Ring
from recon_node.store import Interest, StoreSettings, open_store

ONLY_RINGS = {"versions": ()}
MIXED = {"sync_interval": 0.2}
MODELS = sdk_sample.cars()[:3]


def streams(start: int, stop: int) -> list[bytes]:
    """The events of some of the streams that are not models, in causal order."""
    streams: dict[bytes, list[bytes]] = {}
    for car in sdk_sample.cars()[3:400]:
        streams.setdefault(parse_event(car).init, []).append(car)
    return [car for stream in list(streams.values())[start:stop] for car in stream]


def holds(one: Node, count: int):
    return lambda: len(one.store.ring_keys or ()) == count == one.store.head


def protocols(one: Node) -> set[str]:
    return {report.protocol for report in one.p2p.transfers}


async def test_two_nodes_exchange_events_on_the_model_ring(tmp_path):
    of_a, of_b = [*MODELS, *streams(0, 10)], [*MODELS, *streams(10, 20)]
    async with two_nodes(tmp_path, of_a, of_b, **ONLY_RINGS) as (a, b):
        count = len([*MODELS, *streams(0, 20)])
        await eventually(holds(a, count))
        await eventually(holds(b, count))
        assert a.store.ring_keys.summarize() == b.store.ring_keys.summarize()
        assert a.ahash() == b.ahash(), "under our own EventIds, too"
        await eventually(lambda: protocols(a) == protocols(b) == {MODEL_RING})
        # What either side gets later, the other one has soon, whoever dialled.
        await a.store.admit_local(streams(20, 22))
        await b.store.admit_local(streams(22, 24))
        count = len([*MODELS, *streams(0, 24)])
        await eventually(lambda: a.store.head == b.store.head == count)


async def test_nodes_find_each_other_through_the_peer_ring(tmp_path):
    async with (
        node(tmp_path / "a", sdk_sample.cars()[:30], **ONLY_RINGS) as a,
        node(tmp_path / "b", **ONLY_RINGS) as b,
        node(tmp_path / "c", **ONLY_RINGS) as c,
    ):
        await b.p2p.connect(a.address)
        await c.p2p.connect(b.address)
        await eventually(
            lambda: any(peer.id == a.p2p.peer_id and peer.connected for peer in c.p2p.peers())
        )
        for side in (b, c):
            await eventually(holds(side, 30))


async def test_only_what_interests_both_is_exchanged_and_a_new_interest_at_once(
    tmp_path, monkeypatch
):
    """Although syncs with this peer pause for minutes."""
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=300.0, longest=600.0))
    cars = sdk_sample.cars()[:60]
    model = parse_event(cars[3]).header.model
    async with (
        node(tmp_path / "a", cars, **ONLY_RINGS) as a,
        node(tmp_path / "b", **ONLY_RINGS) as b,
    ):
        keys = await a.store.load_ring_keys()
        await b.store.wanted.add(Interest("model", str(METAMODEL)))
        await b.p2p.connect(a.address)
        await eventually(lambda: b.outcomes() == [AGREED])
        for add in (None, Interest("model", str(model))):
            if add is not None:
                await b.store.wanted.add(add)
            ranges = b.store.wanted.ring_ranges
            expected = {key for key in keys if any(key_range.covers(key) for key_range in ranges)}
            assert 0 < len(expected) < 60
            await eventually(lambda it=expected: set(b.store.ring_keys or ()) == it)


async def test_a_mixed_network_converges_and_nothing_comes_twice(tmp_path):
    """Ours and ours speak better versions; the third one speaks only the rings."""
    async with (
        node(tmp_path / "a", [*MODELS, *streams(0, 8)], **MIXED) as a,
        node(tmp_path / "b", [*MODELS, *streams(8, 12)], **MIXED) as b,
        node(tmp_path / "c", [*MODELS, *streams(12, 16)], **ONLY_RINGS) as c,
    ):
        count = len([*MODELS, *streams(0, 16)])
        await a.p2p.connect(b.address)
        await c.p2p.connect(b.address)
        for side in (a, b, c):
            await eventually(holds(side, count))
        assert MODEL_RING not in {
            report.protocol for report in a.p2p.sync_reports if report.peer == b.p2p.peer_id
        }
        # The last session's report comes after its events.
        received = len(streams(8, 16))
        await eventually(
            lambda: sum(report.events_received for report in a.p2p.transfers) >= received
        )
        assert sum(report.events_received for report in a.p2p.transfers) == received


async def test_a_node_that_has_the_rings_switched_off_does_not_speak_them(tmp_path):
    """And one of the rings alone starts no other session, even before it knows the peer."""
    async with (
        node(tmp_path / "a", ceramic_one=False) as a,
        node(tmp_path / "b", **ONLY_RINGS) as b,
    ):
        with pytest.raises(PeerError, match="does not speak Recon"):
            await a.p2p.connect(b.address)
        assert a.p2p._reconciler.can_sync_with("unknown")
        assert not b.p2p._reconciler.can_sync_with("unknown")


async def test_what_cannot_be_taken_comes_once(tmp_path, monkeypatch):
    """A ceramic-one node may hold an event without its history. It is tried again after a pause."""
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=0.01, longest=60.0))
    monkeypatch.setattr(differences, "BEFORE_TRYING_AGAIN", Backoff(3.0, 60.0))
    key = SigningKey(bytes(32))
    init = init_event(key, METAMODEL, {})
    lost = data_event(key, init, [init.cid], [])
    orphan = data_event(key, init, [lost.cid], [])
    async with (
        node(tmp_path / "a", [init.car], **ONLY_RINGS) as a,
        node(tmp_path / "b", [init.car, lost.car, orphan.car], **ONLY_RINGS) as b,
    ):
        keys = list(await b.store.load_ring_keys())
        [of_lost] = [key for key in keys if HeightlessEventId(key).event_cid == lost.cid]
        b.store.ring_keys.discard(of_lost)
        await a.p2p.connect(b.address)
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 2 * 6)  # on two rings
        assert sum(report.event_bytes_received for report in a.p2p.sync_reports) == len(orphan.car)
        assert a.p2p.sync_reports[0].keys_left_out == 1
        b.store.ring_keys.add(of_lost)
        await eventually(lambda: a.store.head == 3)


async def test_a_peer_that_refuses_an_event_gets_the_others(tmp_path, monkeypatch):
    """A ceramic-one node takes the others of a batch, and ends the session: at a merge, or a time
    event of a chain of which it has no endpoint."""
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=0.05, longest=0.2))
    monkeypatch.setattr(differences, "BEFORE_TRYING_AGAIN", Backoff(1.0, 60.0))
    key = SigningKey(bytes(32))
    first, *others = [init_event(key, METAMODEL, {"number": number}) for number in range(20)]
    forks = [data_event(key, first, [first.cid], [], should_index=flag) for flag in (True, False)]
    refused = data_event(key, first, [fork.cid for fork in forks], [])
    held = [first, *forks, refused]
    sent = 0
    perform = RingEvents.perform

    async def hang_up(self, action):
        nonlocal sent
        valid = tuple(
            value for value in action.values if parse_event(value.value).cid != refused.cid
        )
        await perform(self, Admit(valid))
        if len(valid) < len(action.values):
            sent += 1
            raise PeerProtocolError("no endpoint of this chain, or no knowledge of CIP-145")

    monkeypatch.setattr(RingEvents, "perform", hang_up)
    async with (
        node(tmp_path / "a", [event.car for event in held], **ONLY_RINGS) as a,
        node(tmp_path / "b", **ONLY_RINGS) as b,
    ):
        await a.p2p.connect(b.address)
        await eventually(lambda: sent == 1)
        await a.store.admit_local([event.car for event in others])
        await eventually(lambda: len(b.store.ring_keys or ()) == 22)
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 30)
        assert sent < 10  # in 15 or more sessions of that ring
        await eventually(lambda: sent >= 2)  # by then it may be able to


async def test_a_time_event_that_the_chain_does_not_know_is_not_offered_until_it_does(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=0.05, longest=0.2))
    key = SigningKey(bytes(32))
    first, other, last = [init_event(key, METAMODEL, {"number": number}) for number in range(3)]
    anchor = time_event(first, first.cid)
    after = data_event(key, first, [anchor.cid], [])
    async with (
        node(tmp_path / "a", [first.car, anchor.car, after.car], **ONLY_RINGS) as a,
        node(tmp_path / "b", **ONLY_RINGS) as b,
    ):
        proof = anchor.payload["proof"]
        for _ in range(2):
            await a.store.postpone_proofs([(proof, 0.0)], [proof])
        await a.p2p.connect(b.address)
        for number, event in enumerate((other, last), 2):
            await a.store.admit_local([event.car])
            await eventually(lambda number=number: len(b.store.keys) == number)
        assert a.store.ring_keys.summarize() == b.store.ring_keys.summarize()
        assert await b.store.reader.car(anchor.cid) is None
        await a.store.settle_proofs([(proof, 1_725_913_338)])
        await eventually(lambda: len(b.store.keys) == 5)


async def test_what_the_chain_does_not_know_is_not_taken_from_a_peer_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sync_scheduler, "BETWEEN_RING_SYNCS", Backoff(first=0.05, longest=60.0))
    first = init_event(SigningKey(bytes(32)), METAMODEL, {})
    anchor = time_event(first, first.cid)
    async with (
        node(tmp_path / "a", [first.car, anchor.car], **ONLY_RINGS) as a,
        node(tmp_path / "b", [first.car, anchor.car], **ONLY_RINGS) as b,
    ):
        proof = anchor.payload["proof"]
        for _ in range(2):
            await a.store.postpone_proofs([(proof, 0.0)], [proof])
        await a.p2p.connect(b.address)
        await eventually(lambda: sessions(a.p2p.counters, "initiator") >= 2 * 6)  # on two rings
        assert sum(report.event_bytes_received for report in a.p2p.sync_reports) == len(anchor.car)


async def test_what_is_remembered_of_peers_is_bounded(monkeypatch):
    monkeypatch.setattr(rings, "MAX_DIFFERENCES", 200)  # three peers, and some events
    memory = RingPeers(max_peers=4)
    agent, keys = ("recon-node", ""), KeyStore()

    def session(peer, *refused):
        exchange = memory.differences_with(peer, agent, []).begin(keys)
        for key in refused:
            exchange.note_received(key)
        exchange.end(Ending.WELL)
        memory.weigh_differences(peer)
        return exchange.left_out

    for peer in "abcd":
        session(peer, b"one", b"two")
    assert session("d") == 2
    assert session("a") == 0, "three others came after it"
    session("d", *(b"%d" % number for number in range(160)))
    session("a")
    assert session("d") == 0, "too many"


async def test_another_version_of_a_peer_and_other_interests_get_another_chance():
    memory, keys = RingPeers(), KeyStore([b"mine"])
    first = memory.differences_with("peer", ("one", ""), []).begin(keys)
    first.note_received(b"theirs")
    first.note_sent(b"mine")
    first.end(Ending.WELL)
    second = memory.differences_with("peer", ("one", ""), []).begin(keys)
    assert second.to_send([b"mine"]) == []
    second.end(Ending.WELL)
    assert (second.left_out, second.left_out_by_peer) == (1, 1)
    other = [KeyRange(b"", b"x")]
    third = memory.differences_with("peer", ("one", ""), other).begin(keys)
    assert (third.left_out, third.left_out_by_peer) == (0, 1)
    fourth = memory.differences_with("peer", ("two", ""), other).begin(keys)
    assert (fourth.left_out, fourth.left_out_by_peer) == (0, 0)


async def events_with(store, account) -> RingEvents:
    """What a session with a ceramic-one node needs of a store."""
    keys = await store.load_ring_keys()
    exchange = RingPeers().differences_with("peer", ("ceramic-one", ""), []).begin(keys)
    return RingEvents("peer", store, account, exchange, Ring(keys, is_fencepost))


async def test_events_go_out_after_those_that_they_build_on(tmp_path):
    cars = streams(0, 40)
    async with open_store(tmp_path, NETWORK) as store:
        await store.admit_local(cars)
        events = await events_with(store, unlimited().account("peer"))
        async with aclosing(events.values(b"", b"\xff")) as values:
            sent = [parse_event(value.value) async for value in values]
    assert len(sent) == len(cars) == events.tally.events_sent
    assert [event.cid for event in sent] != [parse_event(car).cid for car in cars]
    known = set()
    for event in sent:
        assert {*event.prevs, event.init} - {event.cid} <= known
        known.add(event.cid)


def anchor_with(init, **fields) -> bytes:
    """A time event whose proof has more fields, or others."""
    proof = {"chainId": "eip155:1", "root": init.cid, "txHash": init.cid, **fields}
    block = dag_cbor.encode(proof)
    return time_event_car(init.cid, init.cid, (CID.of(DAG_CBOR, block), block), "", {})


def session_event(**changes) -> bytes:
    """An init event under a capability; the changes are made after a wallet has signed it."""
    wallet = EthereumWallet()
    capability = dag_cbor.decode(wallet.issue())
    capability["p"] |= changes
    header = {"controllers": [wallet.issuer], "model": METAMODEL.to_bytes(), "sep": "model"}
    payload = {"header": header, "data": {"n": 1}}
    return signed_event(SESSION, payload, capability=dag_cbor.encode(capability)).car


async def test_what_ceramic_one_reads_but_cannot_store_is_not_sent(tmp_path):
    """All values of the batch would be lost with it, in every session."""
    init = init_event(SigningKey(bytes(32)), METAMODEL, {"n": 0})
    old = {"blockNumber": 1, "blockTimestamp": 2}
    kept = [
        init.car,
        time_event(init, init.cid).car,
        anchor_with(init, **old),  # it refuses this one alone, for want of a `txType`
        session_event(),
        init_event(SigningKey(bytes(32)), METAMODEL, {"blockNumber": {"exp": None}}).car,
    ]
    lost = [anchor_with(init, txType="raw", **old), session_event(nbf=None)]
    async with open_store(tmp_path, NETWORK) as store:
        verdicts = await store.admit_local(kept + lost)
        assert [verdict.status for verdict in verdicts] == ["new"] * len(kept + lost)
        events = await events_with(store, unlimited().account("peer"))
        async with aclosing(events.values(b"", b"\xff")) as values:
            sent = {value.value async for value in values}
        assert sent == set(kept)
        assert events._exchange.left_out_by_peer == len(lost)


def ring_value(init, event) -> Value:
    did = init.header.controller
    key = HeightlessEventId.build(NETWORK, METAMODEL, did, init.cid, event.cid)
    return Value(bytes(key), event.car)


async def test_large_events_are_not_parsed_in_the_event_loop(tmp_path, monkeypatch):
    """A map of a megabyte of empty lists took half a second of it."""
    key = SigningKey(bytes(32))
    small, large = (
        init_event(key, METAMODEL, {"lists": [[]] * count}, unique=b"u") for count in (10, 200_000)
    )
    broken = Value(ring_value(large, large).key, bytes(len(large.car)))
    parsed = []

    def parse(data):
        parsed.append(len(data))
        return parse_event(data)

    monkeypatch.setattr(ring_events, "parse_event", parse)
    settings = StoreSettings(verifiers=1, native="off")
    async with open_store(tmp_path, NETWORK, settings=settings) as store:
        events = await events_with(store, unlimited().account("peer"))
        await events.perform(Admit((broken,)))
        assert events.tally.events_received == 0
        await events.perform(Admit((ring_value(small, small), ring_value(large, large))))
        assert events.tally.events_received == 2
        verified = store._intake.verifiers.verified_total
    assert parsed == [len(small.car)]
    assert verified == 3  # the large one once; the native core is faster than its memory


async def test_what_waits_for_many_events_is_charged_for_them(tmp_path):
    """256 prevs of an event that never come took 13 times the bytes that were counted."""
    key, init = SigningKey(bytes(32)), init_event(SigningKey(bytes(32)), METAMODEL, {}, unique=b"u")
    async with open_store(tmp_path, NETWORK) as store:
        events = await events_with(store, unlimited().account("peer"))
        tracemalloc.start()
        try:
            for number in range(20):
                prevs = [CID.of(DAG_CBOR, bytes([number, at])) for at in range(256)]
                event = data_event(key, init, prevs, [])
                await events.perform(Admit((ring_value(init, event),)))
                del prevs, event
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert taken / 2 < events._size < 3 * taken


async def test_an_event_with_many_missing_prevs_is_not_checked_again_for_each(tmp_path):
    """Each prev that came had it checked, with all that builds on it: seconds for each message."""
    key, init = SigningKey(bytes(32)), init_event(SigningKey(bytes(32)), METAMODEL, {}, unique=b"u")
    prevs = [data_event(key, init, [init.cid], [{"n": number}]) for number in range(60)]
    chain = [data_event(key, init, [prev.cid for prev in prevs], [])]
    for _ in range(60):
        chain.append(data_event(key, init, [chain[-1].cid], []))
    offered = 0
    async with open_store(tmp_path, NETWORK) as store:
        events = await events_with(store, unlimited().account("peer"))
        admit = store.admit_from_ring

        async def counted(batch):
            nonlocal offered
            offered += len(batch)
            return await admit(batch)

        store.admit_from_ring = counted
        await events.perform(Admit(tuple(ring_value(init, event) for event in (init, *chain))))
        for prev in prevs:
            await events.perform(Admit((ring_value(init, prev),)))
    assert offered <= (MAX_TRIES + 2) * events.tally.keys_received
    assert events.tally.events_received >= 1 + len(prevs)
