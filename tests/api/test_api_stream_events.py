"""The events of a stream over HTTP: the delivered, the pending and the waiting ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from support.forging import forged
from support.wallets import EthereumWallet

from recon_node.api import Limits, Services, create_app
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import (
    controller_of,
    data_event,
    init_event,
    signed_event,
    time_event,
)
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.store import Store

KEY = SigningKey(bytes(32))
MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"elsewhere"))
INIT = init_event(KEY, MODEL, {"n": 0}, unique=b"u")


def change(*prevs: Event, n: int = 1) -> Event:
    patch = [{"op": "replace", "path": "/n", "value": n}]
    return data_event(KEY, INIT, [prev.cid for prev in prevs], patch)


async def admit(store: Store, *events: Event) -> None:
    verdicts = await store.admit_local([event.car for event in events])
    assert [verdict.status for verdict in verdicts] == ["new"] * len(events)


async def hand_over(store: Store, event: Event, height: int) -> None:
    """As a peer does."""
    assert INIT.header is not None
    event_id = event.event_id(store.network, INIT.header, height)
    [verdict] = await store.admit_remote([(event_id, event.car)])
    assert verdict.status == "new"


async def read(api: httpx.AsyncClient, stream: object = None) -> dict[str, Any]:
    answer = await api.get(f"/ceramic/streams/{stream or INIT.stream_id()}/events")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_how_far_each_event_has_come(api: httpx.AsyncClient, store: Store) -> None:
    anchored, first = time_event(INIT, INIT.cid), change(INIT)
    looked_for = time_event(INIT, first.cid, tx_hash=bytes([1]) * 32)
    behind = change(looked_for, n=2)
    missing = change(behind, n=3)
    waiting = change(missing, n=4)
    later = change(waiting, n=5)
    await admit(store, INIT, anchored, first)
    [pending] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(pending.cid, 1_700_000_000)])
    await admit(store, looked_for, behind)
    await hand_over(store, waiting, 5)
    await hand_over(store, later, 6)
    answer = await read(api)
    assert (answer["id"], answer["init"]) == (str(INIT.stream_id()), str(INIT.cid))
    told = {event["cid"]: event for event in answer["events"]}
    states = {cid: event["state"] for cid, event in told.items()}
    assert states == {
        str(INIT.cid): "delivered",
        str(anchored.cid): "delivered",
        str(first.cid): "delivered",
        str(looked_for.cid): "pending",
        str(behind.cid): "pending",
        str(waiting.cid): "waiting",
        str(later.cid): "waiting",
    }
    assert [event["position"] for event in answer["events"]][:3] == [1, 2, 3]
    assert told[str(anchored.cid)] == {
        "cid": str(anchored.cid),
        "kind": "time",
        "prev": [str(INIT.cid)],
        "height": 1,
        "state": "delivered",
        "position": told[str(anchored.cid)]["position"],
        "time": 1_700_000_000,
        "chain_id": "eip155:11155111",
        "expires": None,
        "fault": None,
        "copy_of": None,
        "rank": told[str(anchored.cid)]["rank"],
    }
    assert told[str(looked_for.cid)]["time"] is None
    assert (told[str(later.cid)]["height"], told[str(later.cid)]["position"]) == (6, None)


async def test_a_badly_signed_event_waits_until_it_is_covered(
    api: httpx.AsyncClient, store: Store
) -> None:
    first = change(INIT)
    bad = forged(change(first, n=2))
    anchored = time_event(INIT, bad.cid)
    await admit(store, INIT, first)
    await hand_over(store, bad, 2)
    await hand_over(store, anchored, 3)
    told = {event["cid"]: event for event in (await read(api))["events"]}
    assert [told[str(each.cid)]["state"] for each in (bad, anchored)] == ["waiting"] * 2
    assert "is wrong" in told[str(bad.cid)]["fault"]
    assert told[str(anchored.cid)]["fault"] is None
    waiting = (await api.get("/ceramic/undelivered/waiting")).json()["events"]
    assert [(each["cid"], each["fault"] is None) for each in waiting] == [
        (str(anchored.cid), True),
        (str(bad.cid), False),
    ]
    known = await api.post("/ceramic/events", json={"data": multibase.encode(bad.car)})
    assert known.status_code == 204, "it is here, from a peer"
    assert (await state(api))["event_cid"] == str(first.cid)
    merge = change(first, anchored, n=3)
    await admit(store, merge)
    told = {event["cid"]: event["state"] for event in (await read(api))["events"]}
    assert told == {
        str(INIT.cid): "delivered",
        str(first.cid): "delivered",
        str(bad.cid): "delivered",
        str(anchored.cid): "pending",
        str(merge.cid): "pending",
    }
    [proof] = await store.reader.pending_proofs(10)
    await store.settle_proofs([(proof.cid, 1_700_000_000)])
    at_tip = await state(api)
    assert at_tip["event_cid"] == str(merge.cid)
    rejected = {each["event_cid"]: each["errors"] for each in at_tip["validation_errors"]}
    assert rejected.keys() == {str(bad.cid), str(anchored.cid)}
    assert "is wrong" in rejected[str(bad.cid)][0]
    after = (await api.get(f"/ceramic/streams/{INIT.stream_id()}/events/{bad.cid}")).json()
    assert after["content"] == {"n": 1}
    details = (await api.get("/ceramic/feed/events?details=true")).json()["events"]
    assert [each["id"] for each in details if each["fault"]] == [str(bad.cid)]


async def state(api: httpx.AsyncClient) -> dict[str, Any]:
    answer = await api.get(f"/ceramic/streams/{INIT.stream_id()}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_by_any_of_its_names(api: httpx.AsyncClient, store: Store) -> None:
    other = init_event(KEY, MODEL, {"n": 0}, unique=b"v")
    await admit(store, INIT, other)
    answers = [await read(api, name) for name in (INIT.stream_id(), INIT.cid)]
    assert answers[0] == answers[1]
    assert [event["cid"] for event in answers[0]["events"]] == [str(INIT.cid)]


@pytest.mark.parametrize(
    ("stream", "status", "words"),
    [
        ("nonsense", 400, "Invalid stream ID"),
        (str(StreamId(3, CID.of(DAG_CBOR, b"x"))), 404, "Stream not found"),
        (str(CID.of(DAG_CBOR, b"x")), 404, "Stream not found"),
        (str(StreamId(2, INIT.cid)), 404, f"the stream that starts so is {INIT.stream_id()}"),
    ],
)
async def test_no_such_stream(
    api: httpx.AsyncClient, store: Store, stream: str, status: int, words: str
) -> None:
    await admit(store, INIT)
    answer = await api.get(f"/ceramic/streams/{stream}/events")
    assert answer.status_code == status
    assert words in answer.json()["message"]


async def test_a_stream_that_is_too_long(services: Services) -> None:
    first = change(INIT)
    await admit(services.store, INIT, first)
    await hand_over(services.store, change(change(first, n=2), n=3), 3)
    for limits, status in (
        (Limits(stream_listed=1), 400),
        (Limits(stream_listed=2), 200),
        (Limits(stream_bytes=100), 400),
    ):
        app = create_app(dataclasses.replace(services, limits=limits))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            answer = await client.get(f"/ceramic/streams/{INIT.stream_id()}/events")
        assert answer.status_code == status
        if status == 200:
            assert len(answer.json()["events"]) == 2  # those on the way count, too
        else:
            assert "read its events from the feed" in answer.json()["message"]


async def test_what_waits_is_bounded_by_its_size(services: Services) -> None:
    await admit(services.store, INIT)
    for n in range(70):
        await hand_over(services.store, forged(change(INIT, n=n)), 1)
    limits = Limits(stream_bytes=len(INIT.car) + 1)
    app = create_app(dataclasses.replace(services, limits=limits))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        assert 1 < len((await read(client))["events"]) < 71


async def test_until_when_a_capability_holds(api: httpx.AsyncClient, store: Store) -> None:
    """An account lets a session's key act for it, until a time far from now."""
    wallet = EthereumWallet()
    header = {"controllers": [wallet.issuer], "model": MODEL.to_bytes(), "sep": "model"}
    capability = wallet.issue(aud=controller_of(KEY))
    event = signed_event(KEY, {"header": header, "data": {}}, capability=capability)
    await admit(store, event)
    [told] = (await read(api, event.cid))["events"]
    assert told["expires"] == 4_102_444_800
