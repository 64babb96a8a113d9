"""What becomes of time events: from a real chain server, through the service, to the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from chain_server import ANSWERS, GNOSIS, Chain, Fault, now, refusing, rpc_error, serving
from nacl.signing import SigningKey

from recon_node.ceramic import (
    Event,
    EventId,
    Network,
    StreamId,
    StreamType,
    expected_input,
    parse_event,
)
from recon_node.ceramic.builder import data_event, init_event, time_event
from recon_node.chain import Anchors, ChainError, ChainSettings, open_anchors
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor, multibase
from recon_node.store import FeedRow, Store, open_store

NETWORK = Network.local(7)
KEY = SigningKey(bytes(range(32)))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
TIME = 1_725_913_338


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


async def add(store: Store, *documents: Document) -> list[EventId]:
    cars = [event.car for document in documents for event in document.events]
    verdicts = await store.admit_local(cars)
    assert {verdict.status for verdict in verdicts} == {"new"}
    return [verdict.event_id for verdict in verdicts if verdict.event_id is not None]


async def feed_of(store: Store) -> list[FeedRow]:
    return await store.reader.feed(0, 1_000)


async def cids_of(store: Store) -> list[CID]:
    return [row.event_cid for row in await feed_of(store)]


@asynccontextmanager
async def following(
    store: Store, *urls: str, chain_id: str = GNOSIS, **settings: object
) -> AsyncIterator[Anchors]:
    given = ChainSettings({chain_id: urls} if urls else {}, **settings)  # type: ignore[arg-type]
    async with open_anchors(given, store, now=now, jitter=lambda: 0.5) as anchors:
        yield anchors


async def until(condition: Callable[[], bool], limit: float = 100_000) -> float:
    """Wait, in virtual time, until the condition holds; returns about the time that it took."""
    started = trio.current_time()
    with trio.fail_after(limit):
        while not condition():  # noqa: ASYNC110 (it is the virtual clock that must go on)
            await trio.sleep(max(0.25, 0.2 * (trio.current_time() - started)))
    return trio.current_time() - started


async def test_an_anchored_time_event_is_delivered_and_never_asked_for_again(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, document = Chain(), Document()
    chain.mine(document.proof, TIME)
    async with serving(chain) as url:
        async with open_store(tmp_path, NETWORK) as store:
            await add(store, document)
            assert (store.head, store.stats.pending, store.stats.pending_proofs) == (2, 2, 1)
            async with following(store, url) as anchors:
                await store.wait_for_feed(3)
                await until(lambda: anchors.reports[0].lookups["anchored"] == 1)
            assert (store.head, store.stats.pending, store.stats.pending_proofs) == (4, 0, 0)
            rows = await feed_of(store)
            assert [row.event_cid for row in rows] == [event.cid for event in document.events]
            assert [row.block_time for row in rows] == [None, None, TIME, None]
            assert [row.chain_id for row in rows] == [None, None, GNOSIS, None]
            assert anchors.reports[0].answers.count == len(chain.asked) == 4
        async with open_store(tmp_path, NETWORK) as store, following(store, url):
            assert await feed_of(store) == rows
            again = time_event(
                document.init,
                document.change.cid,
                chain_id=GNOSIS,
                tx_hash=document.proof.tx_hash.digest,
            )
            assert again.cid == document.anchor.cid
            other = Document("other")
            chain.mine(other.proof, TIME + 5)
            await add(store, other)  # comes while the service runs
            await store.wait_for_feed(7)
            assert [row.block_time for row in await feed_of(store)][6] == TIME + 5
    assert chain.count("eth_getTransactionByHash") == 2


async def test_a_stream_of_ceramic_one_is_delivered_with_the_time_of_its_anchor(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    recorded = ANSWERS["sepolia"]
    cars = [multibase.decode(text) for text in recorded["cars"]]
    proof = parse_event(cars[2]).proof
    assert proof is not None
    chain = Chain(proof.chain_id)
    chain.mine(proof, recorded["timestamp"], data=bytes.fromhex(recorded["input"][2:]))
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await store.admit_local(cars)
        async with following(store, url, chain_id="eip155:11155111"):
            await store.wait_for_feed(2)
        assert [row.block_time for row in await feed_of(store)] == [None, None, 1_725_913_338]
    assert ("eth_getTransactionByHash", recorded["hash"]) in chain.asked


async def test_one_lookup_serves_every_event_of_a_proof(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """An anchor service's tree: its root is on the chain, each leaf has a time event."""
    inits = [init_event(KEY, MODEL, {}, unique=bytes([n])) for n in range(2)]
    left = time_event(inits[0], inits[0].cid, siblings=[inits[1].cid], chain_id=GNOSIS)
    alone = time_event(inits[0], inits[0].cid, chain_id=GNOSIS, tx_hash=bytes(31) + b"\1")
    assert left.proof is not None
    assert alone.proof is not None
    again = data_event(KEY, inits[0], [left.cid], {})
    chain = Chain()
    chain.mine(left.proof, TIME)
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await store.admit_local([event.car for event in [*inits, left, again, alone]])
        async with following(store, url) as anchors:
            await until(lambda: sum(anchors.reports[0].lookups.values()) == 2)
        assert store.head == 4
        # The same proof, in an event that comes later: nobody is asked.
        copy = time_event(inits[0], inits[0].cid, siblings=[inits[1].cid], chain_id=GNOSIS)
        [verdict] = await store.admit_local([copy.car])
        assert verdict.position == 3
    assert chain.count("eth_getTransactionByHash") == 2


async def test_a_transaction_that_says_something_else_refuses_what_builds_on_it(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, bad, good = Chain(), Document("bad"), Document("good")
    chain.mine(bad.proof, TIME, data=expected_input(good.proof))
    chain.mine(good.proof, TIME)
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        event_ids = await add(store, bad, good)
        async with following(store, url) as anchors:
            await until(lambda: sum(anchors.reports[0].lookups.values()) == 2)
        assert anchors.reports[0].lookups["invalid"] == 1
        assert set(await cids_of(store)) == {
            event.cid for event in [bad.init, bad.change, *good.events]
        }
        assert (len(store.keys), store.stats.pending, store.waiting) == (6, 0, 0)
        assert store.stats.late_refused_total == 2
        assert await store.reader.car(bad.anchor.cid) is None
        verdicts = await store.admit_local([bad.anchor.car, bad.after.car])
        assert [verdict.status for verdict in verdicts] == ["refused", "refused"]
        assert "does not anchor the proof's root" in str(verdicts[0].reason)
        refused = [event_id for event_id in event_ids if event_id not in store.keys]
        assert refused == event_ids[2:4]
        assert all(store.is_ruled_out(event_id) for event_id in refused)


@pytest.mark.parametrize(
    "repeated", [{}, {"blockNumber": 1, "blockTimestamp": 1}], ids=["2022", "2020"]
)
async def test_an_anchor_of_before_2023_is_delivered_if_the_chain_confirms_it(
    clock: trio.testing.MockClock, tmp_path: Path, repeated: dict[str, int]
) -> None:
    """Its proof does not say how the root is on the chain: as a transaction's whole input. What the
    earliest ones say of the block is not what counts."""
    documents = [Document(name, "eip155:1") for name in ("right", "wrong", "late")]
    anchors = [with_proof(each.anchor, txType=..., **repeated) for each in documents]
    right, wrong, late = (each.proof for each in anchors)
    assert right is not None
    assert wrong is not None
    assert late is not None
    chain = Chain("eip155:1")
    chain.latest = chain.finalized = 20_000_000
    root = b"\x0f" + right.root  # "f01711220...", with a digit before it to make bytes of it
    chain.mine(right, TIME, number=9_000_000, data=root)
    chain.mine(wrong, TIME, number=9_000_001, data=root)
    chain.mine(late, TIME, number=16_688_196)  # by then, a contract had to be called
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        for document, anchor in zip(documents, anchors, strict=True):
            await store.admit_local([document.init.car, document.change.car, anchor.car])
        async with following(store, url, chain_id="eip155:1") as service:
            await until(lambda: service.reports[0].lookups["invalid"] == 2)
            await store.wait_for_feed(6)
        times = {row.event_cid: row.block_time for row in await feed_of(store)}
        assert [times.get(each.cid) for each in anchors] == [TIME, None, None]
        after = data_event(KEY, documents[0].init, [anchors[0].cid], {"n": 2})
        [verdict] = await store.admit_local([after.car])
        assert verdict.position == 8
        assert len(store.keys) == 8


def with_proof(anchor: Event, **fields: object) -> Event:
    """The time event with other fields in its proof; without those that are `...`."""
    assert anchor.proof is not None
    proof = dag_cbor.decode(car.decode(anchor.car).blocks[anchor.payload["proof"]]) | fields
    block = dag_cbor.encode({name: value for name, value in proof.items() if value is not ...})
    cid = CID.of(DAG_CBOR, block)
    root = dag_cbor.encode(anchor.payload | {"proof": cid})
    root_cid = CID.of(DAG_CBOR, root)
    return parse_event(car.encode([root_cid], {root_cid: root, cid: block}))


async def test_a_proof_that_no_transaction_could_bear_out_is_not_asked_for(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    document, chain = Document(), Chain()
    anchor = with_proof(document.anchor, txType="f(bytes64)")
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await store.admit_local([document.init.car, document.change.car, anchor.car])
        async with following(store, url) as anchors:
            await until(lambda: anchors.reports[0].lookups["invalid"] == 1)
        assert (store.head, len(store.keys)) == (2, 2)
    assert chain.count("eth_getTransactionByHash") == 0


async def test_what_the_chain_does_not_know_stays_pending_and_is_asked_for_ever_more_rarely(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, document = Chain(), Document()
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, document)
        async with following(store, url) as anchors:
            await trio.sleep(5 * 86_400)
            assert (store.head, store.stats.pending, store.stats.pending_proofs) == (2, 2, 1)
            tries = [
                at
                for at, (method, _) in zip(chain.times, chain.asked, strict=True)
                if method == "eth_getTransactionByHash"
            ]
            assert anchors.reports[0].lookups["unknown"] == len(tries)
            pauses = [after - before for before, after in pairwise(tries)]
            expected = [min(60 * 2.0**n, 86_400) for n in range(len(pauses))]
            assert len(pauses) == 14
            assert pauses == pytest.approx(expected, rel=0.01)
            chain.mine(document.proof, TIME)
            await store.wait_for_feed(3)
            assert trio.current_time() - tries[-1] == pytest.approx(86_400, rel=0.01)
        assert await cids_of(store) == [event.cid for event in document.events]


async def test_the_pause_before_the_next_try_outlives_the_process(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, document = Chain(), Document()
    async with serving(chain) as url:
        async with open_store(tmp_path, NETWORK) as store:
            await add(store, document)
            async with following(store, url) as anchors:
                await until(lambda: anchors.reports[0].lookups["unknown"] == 3)
        async with open_store(tmp_path, NETWORK) as store, following(store, url) as anchors:
            assert store.stats.pending_proofs == 1
            chain.mine(document.proof, TIME)
            assert await until(lambda: store.head == 4) > 120


async def test_a_block_that_could_be_replaced_does_not_count_yet(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, document = Chain(), Document()
    chain.mine(document.proof, 1, number=1_001)
    mined = chain.transactions[document.proof.transaction_hash]
    where = {"blockHash": mined["blockHash"], "blockNumber": mined["blockNumber"]}
    mined |= {"blockHash": None, "blockNumber": None}
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, document)
        async with following(store, url) as anchors:
            lookups = anchors.reports[0].lookups
            await until(lambda: lookups["unconfirmed"] == 1)  # in no block
            mined |= where
            await until(lambda: lookups["unconfirmed"] == 2)  # in one that is not final
            assert chain.count("eth_getBlockByHash") == 0
            chain.mine(document.proof, TIME, number=1_002)  # the chain was reorganised
            chain.finalized = 1_002
            await store.wait_for_feed(3)
        assert (await feed_of(store))[2].block_time == TIME


@pytest.mark.parametrize(
    "fault",
    [Fault(500), Fault(hang=True), Fault(drop=True), Fault(200, b"no"), rpc_error(-32005, "slow")],
    ids=["500", "hanging", "dropped", "garbage", "limited"],
)
async def test_a_provider_that_comes_back_is_noticed(
    clock: trio.testing.MockClock, tmp_path: Path, fault: Fault
) -> None:
    chain, documents = Chain(), [Document(str(n)) for n in range(10)]
    for document in documents:
        chain.mine(document.proof, TIME)
    chain.fault_for = lambda method, param: fault
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, *documents)
        async with following(store, url):
            await trio.sleep(600)
            assert len(chain.asked) < 100
            assert (store.head, store.stats.pending_proofs) == (20, 10)
            chain.fault_for = lambda method, param: None
            assert await until(lambda: store.head == 40) < 500


async def test_one_question_that_gets_errors_does_not_hold_up_the_others(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, documents = Chain(), [Document(str(n)) for n in range(20)]
    for document in documents:
        chain.mine(document.proof, TIME)
    poisoned = documents[0].proof.transaction_hash
    chain.fault_for = lambda method, param: Fault(500) if param == poisoned else None
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, *documents)
        async with following(store, url):
            await until(lambda: store.head == 78, 120)
            assert store.stats.pending_proofs == 1
            chain.fault_for = lambda method, param: None
            await until(lambda: store.head == 80, 1_000)


async def test_without_a_provider_time_events_stay_pending(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, known, other = Chain(), Document("a"), Document("b", "eip155:1")
    odd = Document("c", "solana:mainnet")
    for document in (known, other, odd):
        chain.mine(document.proof, TIME)
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, known, other, odd)
        async with following(store):
            await trio.sleep(10_000)
            assert (store.head, store.stats.pending_proofs) == (6, 3)
        async with following(store, url):
            await until(lambda: store.head == 8)
            await trio.sleep(10_000)
            assert (store.head, store.stats.pending_proofs) == (8, 2)
    assert chain.count("eth_getTransactionByHash") == 1


async def test_the_start_does_not_wait_for_a_provider_and_tells_a_wrong_one(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, document = Chain("eip155:1"), Document()
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await add(store, document)
        wrong = pytest.raises(ChainError, match=r"set for eip155:100 but serves eip155:1")
        with refusing() as refused_url, wrong:
            async with following(store, refused_url, url):
                pass
        chain.fault_for = lambda method, param: Fault(hang=True)
        started = trio.current_time()
        async with following(store, url):
            assert trio.current_time() - started <= 6
            chain.fault_for = lambda method, param: None
            await trio.sleep(3_600)
        assert store.head == 2
    assert {method for method, _ in chain.asked} == {"eth_chainId"}


@pytest.mark.parametrize("is_built_on", [True, False])
async def test_a_real_anchor_is_looked_up_before_a_flood(
    clock: trio.testing.MockClock, tmp_path: Path, is_built_on: bool
) -> None:
    """It came last; or neither first nor last, but its controller signed an event on it."""
    chain, init, real = Chain(), init_event(KEY, MODEL, {}), Document("real")
    chain.mine(real.proof, TIME)
    flood = [
        time_event(init, init.cid, chain_id=GNOSIS, tx_hash=sha256(b"%d" % n).digest())
        for n in range(400)
    ]
    events = real.events if is_built_on else real.events[:-1]
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        made_up = [init.car, *(event.car for event in flood)]
        await store.admit_local(made_up)
        await store.admit_local([event.car for event in events])
        if is_built_on:  # neither first nor last
            late = [
                time_event(init, init.cid, chain_id=GNOSIS, tx_hash=sha256(b"late %d" % n).digest())
                for n in range(100)
            ]
            await store.admit_local([event.car for event in late])
        async with following(store, url, requests_per_second=10):
            await until(lambda: store.head == 1 + len(events))
            assert len(chain.asked) < 100


async def test_an_author_holds_up_only_the_anchors_of_their_own_streams(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    """Signed events on made-up anchors come first, but among those of their controller."""
    author = SigningKey(bytes(32))
    chain, init, real = Chain(), init_event(author, MODEL, {}), Document("real")
    chain.mine(real.proof, TIME)

    def made_up(name: bytes) -> Event:
        tx_hash = sha256(name).digest()
        return time_event(init, init.cid, chain_id=GNOSIS, tx_hash=tx_hash)

    pairs = []
    for number in range(200):
        anchor = made_up(b"%d" % number)
        pairs += [anchor, data_event(author, init, [anchor.cid], [])]
    later = [made_up(b"later %d" % number) for number in range(200)]
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await store.admit_local([event.car for event in (init, *pairs)])
        await store.admit_local([event.car for event in real.events[:-1]])
        await store.admit_local([event.car for event in later])
        async with following(store, url, requests_per_second=10):
            await until(lambda: store.head == len(real.events))
            assert len(chain.asked) < 50


async def test_a_flood_of_made_up_proofs_costs_what_the_rate_allows(
    clock: trio.testing.MockClock, tmp_path: Path
) -> None:
    chain, init = Chain(), init_event(KEY, MODEL, {})
    flood = [
        time_event(init, init.cid, chain_id=GNOSIS, tx_hash=sha256(bytes([n])).digest())
        for n in range(100)
    ]
    real = Document("real")
    chain.mine(real.proof, TIME)
    async with serving(chain) as url, open_store(tmp_path, NETWORK) as store:
        await store.admit_local([init.car, *(event.car for event in flood)])
        await add(store, real)
        async with following(store, url, requests_per_second=10) as anchors:
            lookups = anchors.reports[0].lookups
            # The real one stands behind 100 others, at ten requests a second.
            assert await until(lambda: store.head == 5) < 30
            assert lookups["unknown"] <= 100 + 32
            assert len(chain.asked) <= 10 * (chain.times[-1] - chain.times[0]) + 2
            await trio.sleep(3_600)
        assert store.stats.pending_proofs == 100
        assert lookups["unknown"] <= 100 * 6
