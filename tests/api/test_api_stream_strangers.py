"""What strangers add to a stream without any key: it stays readable, and reading it stays cheap."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from api_samples import INIT, KEY, admit, api_of, change, read
from support.forging import forged

from recon_node.api.endpoint import Services
from recon_node.api.routes.streams import read_delivered
from recon_node.api.settings import Limits
from recon_node.ceramic import Event, parse_event
from recon_node.ceramic.builder import data_event
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor, encode_varint
from recon_node.store import Store
from recon_node.streams import statements_of

STREAM = f"streams/{INIT.stream_id()}"
VIEWS = ("", "/events", "/picture", "/merge")


def anchors(
    leaves: Sequence[Event], transaction: int, *, filler: int = 0, codec: int = 0x93
) -> tuple[CID, list[Event]]:
    """A proof, and a time event for each leaf of its tree: copies where leaves are the same."""
    links = [leaf.cid for leaf in leaves]
    links += [CID.of(DAG_CBOR, n.to_bytes(4)) for n in range(filler)]
    node = dag_cbor.encode(links)
    root = CID.of(DAG_CBOR, node)
    digest = b"\x1b\x20" + transaction.to_bytes(32)
    tx_hash = CID(encode_varint(1) + encode_varint(codec) + digest)
    proof = dag_cbor.encode(
        {"chainId": "eip155:1", "root": root, "txHash": tx_hash, "txType": "f(bytes32)"}
    )
    proof_cid = CID.of(DAG_CBOR, proof)
    events = []
    for path, leaf in enumerate(leaves):
        fields = {"id": INIT.cid, "prev": leaf.cid, "proof": proof_cid, "path": str(path)}
        block = dag_cbor.encode(fields)
        cid = CID.of(DAG_CBOR, block)
        blocks = {cid: block, proof_cid: proof, root: node}
        events.append(parse_event(car.encode([cid], blocks)))
    return proof_cid, events


async def view_of(store: Store, view: str, **limits: Any) -> dict[str, Any]:
    async with api_of(store, limits=Limits(**limits)) as api:
        return dict(await read(api, STREAM + view))


async def test_copies_of_a_time_take_one_place(store: Store) -> None:
    """One transaction, and a tree that has the tip twenty times."""
    first = change(INIT)
    await admit(store, INIT, first)
    proof, copies = anchors([first] * 20, 1, filler=1000)
    await admit(store, *copies)
    await store.settle_proofs([(proof, 1_700_000_000)])
    # Another transaction's tree has each of these copies.
    proof, above = anchors(copies, 2)
    await admit(store, *above)
    await store.settle_proofs([(proof, 1_700_000_100)])
    assert store.head == 42
    size = len(INIT.car) + len(first.car) + 1
    for view in VIEWS:
        await view_of(store, view, stream_events=4, stream_listed=4, stream_bytes=size)
    listed = (await view_of(store, "/events"))["events"]
    assert len(listed) == 42
    assert sum(event["copy_of"] is None for event in listed) == 4
    assert all(event["position"] == n for n, event in enumerate(listed, 1))


async def test_a_transaction_is_one_however_its_cid_is_spelled(store: Store) -> None:
    """Any codec: more spellings than a stream may have events do not hide what else there is."""
    first = change(INIT)
    await admit(store, INIT, first)
    for codec in range(0x90, 0xA0):
        proof, [copy] = anchors([first], 1, codec=codec)
        await admit(store, copy)
        await store.settle_proofs([(proof, 1_700_000_000)])
    assert store.head == 18
    for view in VIEWS:
        await view_of(store, view, stream_events=3, stream_listed=3)


async def test_an_owner_may_build_on_a_copy_that_is_not_shown(store: Store) -> None:
    first = change(INIT)
    await admit(store, INIT, first)
    proof, copies = anchors([first] * 6, 1)
    await admit(store, *copies)
    await store.settle_proofs([(proof, 1_700_000_000)])
    last = change(max(copies, key=lambda copy: copy.cid), n=2)
    await admit(store, last)
    state = await view_of(store, "", stream_events=4)
    assert state["event_cid"] == str(last.cid)
    picture = await view_of(store, "/picture")
    assert (picture["tip"], picture["diverged"]) == (str(last.cid), False)


@pytest.mark.parametrize("settled", [True, False])
async def test_time_events_are_read_without_their_cars(store: Store, settled: bool) -> None:
    first = change(INIT)
    await admit(store, INIT, first)
    proof, copies = anchors([first] * 8, 1)
    await admit(store, *copies)
    if settled:
        await store.settle_proofs([(proof, 1_700_000_000)])
    connection = store._writer.log.connection
    connection.execute(
        "UPDATE cars SET car = x'00' WHERE id IN (SELECT id FROM events WHERE kind = 'time')"
    )
    for view in VIEWS:
        await view_of(store, view)
    states = {event["state"] for event in (await view_of(store, "/events"))["events"][2:]}
    assert states == ({"delivered"} if settled else {"pending"})
    assert store.damage.count == 0


async def test_made_up_times_and_forged_events_are_cut_off(store: Store) -> None:
    first = change(INIT)
    await admit(store, INIT, first)
    for transaction in range(40):
        _, [made_up] = anchors([first], transaction)
        await admit(store, made_up)
    junk = [
        forged(data_event(KEY, INIT, [first.cid], [{"op": "test", "path": f"{n}" * 2000}]))
        for n in range(40)
    ]
    offers = [(event.event_id(store.network, INIT.header, 2), event.car) for event in junk]
    assert {verdict.status for verdict in await store.admit_remote(offers)} == {"new"}
    most = 16 * 3 * len(junk[0].car)
    listed = (await view_of(store, "/events", stream_bytes=most))["events"]
    assert sum(event["kind"] == "time" for event in listed) == 40
    assert 0 < sum(event["fault"] is not None for event in listed) <= 4
    for view in VIEWS:
        await view_of(store, view, stream_listed=20, stream_bytes=most)
    listed = (await view_of(store, "/events", stream_listed=20))["events"]
    assert (len(listed), listed[0]["state"], listed[1]["state"]) == (20, "delivered", "delivered")


@pytest.mark.parametrize("seed", range(8))
async def test_a_stream_states_the_same_without_its_copies(store: Store, seed: int) -> None:
    """Random events on random copies: by the feed, with all CARs, or as the API reads them."""
    rng = Random(seed)
    events: list[Event] = [INIT]
    await admit(store, INIT)
    for n in range(14):
        recent = events[-5:]
        if rng.random() < 0.4:
            prevs = rng.sample(recent, min(len(recent), rng.choice([1, 1, 2])))
            new = [change(*prevs, n=n)]
            await admit(store, *new)
        else:
            leaves = [rng.choice(recent) for _ in range(rng.choice([1, 3, 6]))]
            proof, new = anchors(leaves, n)
            await admit(store, *new)
            await store.settle_proofs([(proof, 1_700_000_000 + n)])
        events += new
    feed = await store.reader.feed(0, 1000)
    assert len(feed) == len(events)
    expected = statements_of(parse_event(row.car) for row in feed)
    delivered = await read_delivered(Services(store=store), INIT.cid, 1000)
    statements = delivered.statements
    described = [
        [(event.cid, event.kind, event.prevs, states.ranks[event.cid]) for event in states.events]
        for states in (statements, expected)
    ]
    assert described[0] == described[1]
    assert statements.copies.items() <= expected.copies.items()
