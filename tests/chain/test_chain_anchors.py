"""What becomes of time events: from a real chain server, through the service, to the feed."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import pairwise

import chain_server
import pytest
import structlog.testing
import trio
from chain_server import GNOSIS, Chain, Fault, now, rpc_error, serving
from nacl.signing import SigningKey
from support.time_events import time_event

from recon_node.anchoring.tree import MerkleTree
from recon_node.ceramic import Event, Network, StreamId, StreamType, expected_input, parse_event
from recon_node.ceramic.builder import data_event, init_event, proof_block, time_event_car
from recon_node.chain import ChainReport, ChainSettings, open_anchors
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor
from recon_node.store import FeedRow, Store, open_store

NETWORK = Network.local(7)
KEY = SigningKey(bytes(range(32)))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
TIME = 1_725_913_338
RATE = 10
"""Requests a second."""


class Document:
    """A document with a change, its anchor, and a change after that."""

    def __init__(self, name: str = "doc", chain_id: str = GNOSIS) -> None:
        self.init = init_event(KEY, MODEL, {}, unique=name.encode())
        self.change = data_event(KEY, self.init, [self.init.cid], {"n": 1})
        tx_hash = sha256(name.encode()).digest()
        self.anchor = time_event(self.init, self.change.cid, chain_id=chain_id, tx_hash=tx_hash)
        self.after = data_event(KEY, self.init, [self.anchor.cid], {"n": 2})
        assert self.anchor.proof is not None
        self.proof = self.anchor.proof

    @property
    def events(self) -> list[Event]:
        return [self.init, self.change, self.anchor, self.after]


def made_up(init: Event, name: str, count: int) -> list[Event]:
    """Time events whose transactions do not exist."""
    hashes = [sha256(f"{name} {number}".encode()).digest() for number in range(count)]
    return [time_event(init, init.cid, chain_id=GNOSIS, tx_hash=tx_hash) for tx_hash in hashes]


async def add(store: Store, *documents: Document) -> None:
    await admit(store, [event for document in documents for event in document.events])


async def admit(store: Store, events: list[Event]) -> None:
    verdicts = await store.admit_local([event.car for event in events])
    assert {verdict.status for verdict in verdicts} == {"new"}


async def feed_of(store: Store) -> list[FeedRow]:
    return await store.reader.feed(0, 1_000)


async def cids_of(store: Store) -> list[CID]:
    return [row.event_cid for row in await feed_of(store)]


@asynccontextmanager
async def following(
    store: Store, *urls: str, chain_id: str = GNOSIS
) -> AsyncIterator[Sequence[ChainReport]]:
    settings = ChainSettings({chain_id: urls} if urls else {}, requests_per_second=RATE)
    async with open_anchors(settings, store, now=now, jitter=lambda: 0.5) as anchors:
        yield anchors


async def until(condition: Callable[[], bool], limit: float = 100_000) -> float:
    """Wait, in virtual time, until the condition holds; returns about the time that it took."""
    started = trio.current_time()
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (it is the virtual clock that must go on)
            await trio.sleep(max(0.25, 0.2 * (trio.current_time() - started)))
    return trio.current_time() - started


async def test_an_anchored_event_is_delivered_and_never_looked_up_again(
    clock, chain, url, tmp_path
):
    document, other = Document(), Document("other")
    chain.mine(document.proof, TIME)
    async with open_store(tmp_path, NETWORK) as store:
        await add(store, document)
        assert (store.head, store.pending, store.proofs_pending) == (2, 2, 1)
        async with following(store, url) as anchors:
            await until(lambda: anchors[0].lookups["anchored"] == 1)
        assert (store.head, store.pending, store.proofs_pending) == (4, 0, 0)
        rows = await feed_of(store)
        assert [row.event_cid for row in rows] == [event.cid for event in document.events]
        assert [row.block_time for row in rows] == [None, None, TIME, None]
        assert [row.chain_id for row in rows] == [None, None, GNOSIS, None]
        assert anchors[0].answers.count == len(chain.asked) == 4
    async with open_store(tmp_path, NETWORK) as store, following(store, url):
        assert await feed_of(store) == rows
        chain.mine(other.proof, TIME + 5)
        await add(store, other)  # comes while the service runs
        await store.wait_for_feed(7)
        assert [row.block_time for row in await feed_of(store)][6] == TIME + 5
    assert chain.count("eth_getTransactionByHash") == 2


async def test_lookups_go_on_when_the_clock_is_set_back(clock, chain, url, store, monkeypatch):
    document, years = Document(), 3e8
    monkeypatch.setattr(chain_server, "epoch", chain_server.epoch + years)
    await add(store, document)
    async with following(store, url) as anchors:
        await until(lambda: anchors[0].lookups["unknown"] == 1)
        chain.mine(document.proof, TIME)
        monkeypatch.setattr(chain_server, "epoch", chain_server.epoch - years)
        await until(lambda: anchors[0].lookups["anchored"] == 1)


async def test_one_lookup_serves_every_event_of_a_proof(clock, chain, url, store):
    """An anchor service's tree: its root is on the chain, each leaf has a time event."""
    inits = [init_event(KEY, MODEL, {}, unique=bytes([n])) for n in range(2)]
    tree = MerkleTree(init.cid for init in inits)
    proof = proof_block(GNOSIS, tree.root, bytes(32))
    left, right = (
        parse_event(time_event_car(leaf, leaf, proof, *tree.proof(index)))
        for index, leaf in enumerate(tree.leaves)
    )
    [init] = [init for init in inits if init.cid == left.init]
    alone = time_event(init, init.cid, chain_id=GNOSIS, tx_hash=bytes(31) + b"\1")
    again = data_event(KEY, init, [left.cid], {})
    chain.mine(left.proof, TIME)
    await admit(store, [*inits, left, again, alone])
    async with following(store, url) as anchors:
        await until(lambda: sum(anchors[0].lookups.values()) == 2)
        assert store.head == 4
        await admit(store, [right])  # comes later: nobody is asked
        assert store.head == 5
    assert chain.count("eth_getTransactionByHash") == 2


async def test_a_transaction_of_something_else_refuses_what_builds_on_it(clock, chain, url, store):
    bad, good = Document("bad"), Document("good")
    chain.mine(bad.proof, TIME, data=expected_input(good.proof))
    chain.mine(good.proof, TIME)
    cars = [event.car for event in [*bad.events, *good.events]]
    event_ids = [verdict.event_id for verdict in await store.admit_local(cars)]
    async with following(store, url) as anchors:
        await until(lambda: sum(anchors[0].lookups.values()) == 2)
    assert anchors[0].lookups["invalid"] == 1
    assert set(await cids_of(store)) == {
        event.cid for event in [bad.init, bad.change, *good.events]
    }
    assert (len(store.keys), store.pending, store.waiting) == (6, 0, 0)
    assert store.totals["late refused"] == 2
    assert await store.reader.car(bad.anchor.cid) is None
    verdicts = await store.admit_local([bad.anchor.car, bad.after.car])
    assert [verdict.status for verdict in verdicts] == ["refused", "refused"]
    assert "does not anchor the proof's root" in str(verdicts[0].reason)
    refused = [event_id for event_id in event_ids if event_id not in store.keys]
    assert refused == event_ids[2:4]
    assert all(store.is_ruled_out(event_id) for event_id in refused)


async def test_an_anchor_of_before_2023_is_delivered_if_the_chain_confirms_it(
    clock, chain, url, store
):
    """Its proof does not say how the root is on the chain: as a transaction's whole input. What the
    earliest ones say of the block is not what counts."""
    documents = [Document(name, "eip155:1") for name in ("right", "wrong", "late")]
    earliest = {"txType": ..., "blockNumber": 1, "blockTimestamp": 1}
    anchors = [with_proof(document.anchor, **earliest) for document in documents]
    right, wrong, late = (anchor.proof for anchor in anchors)
    chain.chain_id = "eip155:1"
    chain.latest = chain.finalized = 20_000_000
    root = b"\x0f" + right.root  # "f01711220...", with a digit before it to make bytes of it
    chain.mine(right, TIME, number=9_000_000, data=root)
    chain.mine(wrong, TIME, number=9_000_001, data=root)
    chain.mine(late, TIME, number=16_688_196)  # by then, a contract had to be called
    for document, anchor in zip(documents, anchors, strict=True):
        await admit(store, [document.init, document.change, anchor])
    async with following(store, url, chain_id="eip155:1") as service:
        await until(lambda: service[0].lookups["invalid"] == 2)
        await store.wait_for_feed(6)
    times = {row.event_cid: row.block_time for row in await feed_of(store)}
    assert [times.get(anchor.cid) for anchor in anchors] == [TIME, None, None]
    await admit(store, [data_event(KEY, documents[0].init, [anchors[0].cid], {"n": 2})])
    assert store.head == len(store.keys) == 8


def with_proof(anchor: Event, **fields: object) -> Event:
    """The time event with other fields in its proof; without those that are `...`."""
    proof = dag_cbor.decode(car.decode(anchor.car).blocks[anchor.payload["proof"]]) | fields
    block = dag_cbor.encode({name: value for name, value in proof.items() if value is not ...})
    cid = CID.of(DAG_CBOR, block)
    root = dag_cbor.encode(anchor.payload | {"proof": cid})
    root_cid = CID.of(DAG_CBOR, root)
    return parse_event(car.encode([root_cid], {root_cid: root, cid: block}))


async def test_a_proof_that_no_transaction_could_bear_out_is_not_looked_up(
    clock, chain, url, store
):
    document = Document()
    await admit(store, [document.init, document.change])
    await admit(store, [with_proof(document.anchor, txType="f(bytes64)")])
    async with following(store, url) as anchors:
        await until(lambda: anchors[0].lookups["invalid"] == 1)
    assert (store.head, len(store.keys)) == (2, 2)
    assert chain.count("eth_getTransactionByHash") == 0


async def test_what_the_chain_does_not_know_is_looked_up_ever_more_rarely(
    clock, chain, url, tmp_path
):
    """And no sooner after a restart."""
    document = Document()
    async with open_store(tmp_path, NETWORK) as store:
        await add(store, document)
        async with following(store, url) as anchors:
            await until(lambda: anchors[0].lookups["unknown"] == 4)
    async with open_store(tmp_path, NETWORK) as store, following(store, url) as anchors:
        await until(lambda: anchors[0].lookups["unknown"] == 9, limit=1_000_000)
        assert (store.head, store.pending, store.proofs_pending) == (2, 2, 1)
        chain.mine(document.proof, TIME)
        await store.wait_for_feed(3)
        assert await cids_of(store) == [event.cid for event in document.events]
    asked = zip(chain.times, chain.asked, strict=True)
    tries = [at for at, (method, _) in asked if method == "eth_getTransactionByHash"]
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == pytest.approx([min(60 * 2.0**n, 86_400) for n in range(13)], rel=0.01)


async def test_a_block_that_could_be_replaced_does_not_count_yet(clock, chain, url, store):
    document = Document()
    chain.mine(document.proof, 1, number=1_001)
    mined = chain.transactions[document.proof.transaction_hash]
    where = {"blockHash": mined["blockHash"], "blockNumber": mined["blockNumber"]}
    mined |= {"blockHash": None, "blockNumber": None}
    await add(store, document)
    async with following(store, url) as anchors:
        lookups = anchors[0].lookups
        await until(lambda: lookups["unconfirmed"] == 1)  # in no block
        mined |= where
        await until(lambda: lookups["unconfirmed"] == 2)  # in one that is not final
        chain.mine(document.proof, TIME, number=1_002)  # the chain was reorganised
        chain.finalized = 1_002
        await store.wait_for_feed(3)
    assert (await feed_of(store))[2].block_time == TIME


@pytest.mark.parametrize("dies", [True, False])
async def test_an_endpoint_that_stands_still_holds_nothing_up(clock, chain, url, store, dies):
    """It still answers, and is the first: the block is final by the other one."""
    document, late, other = Document(), Document("late"), Chain()
    other.mine(document.proof, TIME, number=1_500)
    other.mine(late.proof, TIME, number=9_000)
    other.finalized = 2_000
    await add(store, document, late)
    async with serving(other) as second, following(store, url, second) as anchors:
        await until(lambda: anchors[0].lookups["anchored"] == 1)
        await until(lambda: anchors[0].lookups["unconfirmed"] >= 2)
        if dies:
            other.fault_for = lambda method, _: (
                rpc_error(1, "gone") if method == "eth_getBlockByNumber" else None
            )
            before = anchors[0].lookups["unconfirmed"]
            await until(lambda: anchors[0].lookups["unconfirmed"] > before)
        assert anchors[0].lookups["failed"] == 0


async def test_a_block_that_never_becomes_final_is_worth_a_warning(clock, chain, url, store):
    """One of the endpoints has it, but its final block does not move."""
    document, other = Document(), Chain()
    for each in chain, other:
        each.mine(document.proof, TIME, number=1_500)
    other.finalized = 2_000
    await add(store, document)
    async with serving(other) as second, following(store, url, second) as anchors:
        with structlog.testing.capture_logs() as logs:
            await until(lambda: anchors[0].lookups["unconfirmed"] >= 12)
            assert all(line["log_level"] == "debug" for line in logs)
            await until(lambda: anchors[0].lookups["unconfirmed"] >= 14)
        warning, *_ = [line for line in logs if line["log_level"] == "warning"]
        assert "the block 1500, which has an anchor, is still not final" in warning["reason"]
        chain.finalized = 2_000
        await store.wait_for_feed(3)


async def test_what_two_endpoints_differ_about_is_not_kept_for_good(clock, chain, url, store):
    document, liar = Document(), Chain()
    chain.mine(document.proof, TIME)
    liar.mine(document.proof, 1)
    await add(store, document)
    async with serving(liar) as first, following(store, first, url) as anchors:
        with structlog.testing.capture_logs() as logs:
            await until(lambda: anchors[0].lookups["failed"] >= 8)
        assert (store.head, store.proofs_pending) == (2, 1)
        warning, *_ = [line for line in logs if line["log_level"] == "warning"]
        assert "differ about the block 900, which one says has" in warning["reason"]
        liar.mine(document.proof, TIME)
        await store.wait_for_feed(3)
    assert (await feed_of(store))[2].block_time == TIME


async def test_what_an_endpoint_may_know_that_is_left_alone_is_not_unknown(
    clock, chain, url, store
):
    """The first one answers 429, and may be asked again before the second, which is pruned, has
    answered."""
    documents, archive = [Document(str(number)) for number in range(20)], Chain()
    for document in documents:
        archive.mine(document.proof, TIME)
    archive.fault_for = lambda method, _: None if method == "eth_chainId" else Fault(429)
    await add(store, *documents)
    async with serving(archive) as first, following(store, first, url) as anchors:
        await until(lambda: anchors[0].lookups["failed"] >= 100)
        archive.fault_for = lambda *_: None
        await store.wait_for_feed(60)
    assert anchors[0].lookups["unknown"] == 0
    assert chain.times[-1] - chain.times[0] < 600


async def test_a_transaction_that_no_block_takes_counts_as_unknown_in_the_end(
    clock, chain, url, store
):
    document = Document()
    chain.mine(document.proof, TIME)
    chain.transactions[document.proof.transaction_hash] |= {"blockHash": None, "blockNumber": None}
    await add(store, document)

    async def not_found() -> int:
        *_, anchor = await store.reader.pending(None, 9)
        return anchor.lookup.not_found

    async with following(store, url) as anchors:
        await until(lambda: anchors[0].lookups["unconfirmed"] >= 20)
        assert await not_found() == 0
        await until(lambda: anchors[0].lookups["unconfirmed"] >= 102)
        assert await not_found() > 0
        chain.mine(document.proof, TIME)
        await store.wait_for_feed(3)


async def test_a_provider_that_comes_back_is_noticed(clock, chain, url, store):
    documents = [Document(str(n)) for n in range(5)]
    for document in documents:
        chain.mine(document.proof, TIME)
    chain.fault_for = lambda method, param: Fault(500)
    await add(store, *documents)
    async with following(store, url):
        await trio.sleep(600)
        assert len(chain.asked) < 100
        assert (store.head, store.proofs_pending) == (10, 5)
        chain.fault_for = lambda method, param: None
        assert await until(lambda: store.head == 20) < 500


async def test_one_question_that_gets_errors_does_not_hold_up_the_others(clock, chain, url, store):
    documents = [Document(str(n)) for n in range(8)]
    for document in documents:
        chain.mine(document.proof, TIME)
    poisoned = documents[0].proof.transaction_hash
    chain.fault_for = lambda method, param: Fault(500) if param == poisoned else None
    await add(store, *documents)
    async with following(store, url):
        await until(lambda: store.head == 30, 120)
        assert store.proofs_pending == 1
        chain.fault_for = lambda method, param: None
        await until(lambda: store.head == 32, 1_000)


async def test_what_an_endpoint_has_no_answer_to_is_asked_ever_more_rarely(
    clock, chain, url, store
):
    """Every five minutes, 1,500 anchors in blocks that it has pruned took all that the rate allows,
    for good."""
    chain.fault_for = lambda method, _: (
        rpc_error(4444, "pruned") if method == "eth_getTransactionByHash" else None
    )
    await add(store, Document())
    async with following(store, url) as anchors:
        await until(lambda: anchors[0].lookups["failed"] == 13)
    asked = zip(chain.times, chain.asked, strict=True)
    tries = [at for at, (method, _) in asked if method == "eth_getTransactionByHash"]
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == pytest.approx([min(2.0 * 2**n, 3600) for n in range(12)], rel=0.01, abs=1)


async def test_errors_that_repeat_their_questions_do_not_fill_the_log(clock, chain, url, store):
    await add(store, *(Document(str(n)) for n in range(8)))
    chain.fault_for = lambda method, param: (
        rpc_error(-32000, f"no {param}") if method == "eth_getTransactionByHash" else None
    )
    with structlog.testing.capture_logs() as logs:
        async with following(store, url) as anchors:
            await until(lambda: anchors[0].lookups["failed"] >= 32)
    shown = [line["event"] for line in logs if line["log_level"] != "debug"]
    assert shown == ["A lookup failed"]


async def test_without_a_provider_time_events_stay_pending(clock, chain, url, store):
    known, other, odd = Document("a"), Document("b", "eip155:1"), Document("c", "solana:mainnet")
    for document in (known, other, odd):
        chain.mine(document.proof, TIME)
    await add(store, known, other, odd)
    async with following(store):
        await trio.sleep(10_000)
        assert (store.head, store.proofs_pending) == (6, 3)
    async with following(store, url):
        await until(lambda: store.head == 8)
        await trio.sleep(10_000)
        assert (store.head, store.proofs_pending) == (8, 2)
    assert chain.count("eth_getTransactionByHash") == 1


async def test_the_start_does_not_wait_for_a_provider_and_a_wrong_one_is_never_believed(
    clock, chain, url, store
):
    document = Document()
    chain.chain_id = "eip155:1"
    chain.mine(document.proof, TIME)
    await add(store, document)
    chain.fault_for = lambda method, param: Fault(hang=True)
    started = trio.current_time()
    async with following(store, url):
        assert trio.current_time() - started <= 6
        chain.fault_for = lambda method, param: None
        await trio.sleep(3_600)
        assert store.head == 2
        assert {method for method, _ in chain.asked} == {"eth_chainId"}
        chain.chain_id = GNOSIS
        await until(lambda: store.head == 4, 3_600)  # without a restart


@pytest.mark.parametrize("is_built_on", [True, False])
async def test_a_real_anchor_is_looked_up_before_a_flood(clock, chain, url, store, is_built_on):
    """It came last; or neither first nor last, but its controller signed an event on it."""
    init, real = init_event(KEY, MODEL, {}), Document("real")
    chain.mine(real.proof, TIME)
    events = real.events if is_built_on else real.events[:-1]
    await admit(store, [init, *made_up(init, "flood", 200)])
    await admit(store, events)
    if is_built_on:
        await admit(store, made_up(init, "late", 50))
    async with following(store, url):
        await until(lambda: store.head == 1 + len(events))
        assert len(chain.asked) < 100


async def test_an_author_holds_up_only_the_anchors_of_their_own_streams(clock, chain, url, store):
    """Signed events on made-up anchors come first, but among those of their controller."""
    author = SigningKey(bytes(32))
    init, real = init_event(author, MODEL, {}), Document("real")
    chain.mine(real.proof, TIME)
    pairs = [
        (anchor, data_event(author, init, [anchor.cid], []))
        for anchor in made_up(init, "built on", 100)
    ]
    await admit(store, [init, *(event for pair in pairs for event in pair)])
    await admit(store, [*real.events[:-1], *made_up(init, "later", 100)])
    async with following(store, url):
        await until(lambda: store.head == len(real.events))
        assert len(chain.asked) < 50


async def test_a_flood_of_made_up_proofs_costs_what_the_rate_allows(clock, chain, url, store):
    init, real = init_event(KEY, MODEL, {}), Document("real")
    chain.mine(real.proof, TIME)
    await admit(store, [init, *made_up(init, "flood", 60)])
    await add(store, real)
    async with following(store, url) as anchors:
        lookups = anchors[0].lookups
        assert await until(lambda: store.head == 5) < 20
        assert lookups["unknown"] <= 60 + 32
        assert len(chain.asked) <= RATE * (chain.times[-1] - chain.times[0]) + 2
        await trio.sleep(3_600)
    assert store.proofs_pending == 60
    assert lookups["unknown"] <= 60 * 6
