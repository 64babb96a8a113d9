"""The events of an interest, page by page, and the interests as ceramic-one writes them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from nacl.signing import SigningKey
from support.forging import forged

from recon_node.api import Limits, Services, create_app
from recon_node.api.routes.experimental import encode_interest, encode_range
from recon_node.ceramic import EventId, Network, StreamId, StreamType, parse_event
from recon_node.ceramic.builder import controller_of, data_event, init_event, signed_event
from recon_node.ipld import CID, DAG_CBOR, car, dag_cbor, multibase
from recon_node.recon import KeyRange
from recon_node.store import Interest, Store
from recon_node.store.kept_interests import key_ranges

Events = list[dict[str, str]]
PATH = "/ceramic/experimental/events"
UNKNOWN_MODEL = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"model"))
PEER = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"


async def pages(api: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, str]]:
    events: list[dict[str, str]] = []
    offset, complete = 0, False
    while not complete:
        page = (await api.get(path, params={**query, "offset": offset})).json()
        assert page["resumeOffset"] == offset + len(page["events"])
        events += page["events"]
        offset, complete = page["resumeOffset"], page["isComplete"]
    return events


def model_of(store: Store, events: Events) -> tuple[str, str]:
    """The sort value and the controller of a document among the events."""
    for each in events:
        header = parse_event(multibase.decode(each["car"])).header
        if header is not None and header.sep_value != "kh4q0ozorrgaq2mezktnrmdwleo1d":
            return header.sep_value, header.controller
    raise AssertionError("no document")


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_all_events_of_a_model_in_the_order_of_their_keys(
    api: httpx.AsyncClient, filled: Events, store: Store, limit: int
) -> None:
    model, controller = model_of(store, filled)
    found = await pages(api, f"{PATH}/model/{model}", limit=limit)
    [key_range] = key_ranges(store.network, [Interest("model", model)])
    keys = [key for key in store.keys if key_range.covers(key)]
    cars = {event["cid"]: event["car"] for event in filled}
    assert len(found) == len(keys) > 10
    assert [event["data"] for event in found] == [cars[event["id"]] for event in found]
    [part] = key_ranges(store.network, [Interest("model", model, controller)])
    theirs = {str(key.event_cid) for key in map(EventId, keys) if part.covers(key)}
    narrowed = await pages(api, f"{PATH}/model/{model}", controller=controller)
    assert {event["id"] for event in narrowed} == theirs
    assert 0 < len(theirs) < len(keys)
    assert await pages(api, f"{PATH}/model/{model}", controller="did:key:zNobody") == []


@pytest.mark.parametrize("limit", [1, 1000])
async def test_badly_signed_events_are_listed_once_a_valid_one_covers_them(
    api: httpx.AsyncClient, store: Store, limit: int
) -> None:
    key = SigningKey(bytes(32))
    init = init_event(key, UNKNOWN_MODEL, None)
    bad = forged(data_event(key, init, [init.cid], "bad"))
    lost = forged(data_event(key, init, [UNKNOWN_MODEL.cid], "waits for another, too"))
    cover = data_event(key, init, [bad.cid], "cover")
    path = f"{PATH}/model/{UNKNOWN_MODEL}"
    assert init.header is not None
    await store.admit_remote(
        [
            (event.event_id(store.network, init.header, height), event.car)
            for height, event in enumerate((init, bad, lost))
        ]
    )
    answer = await api.get(path, params={"limit": limit})
    assert [each["id"] for each in answer.json()["events"]] == [str(init.cid)]
    answer = await api.get(path, params={"offset": 1, "limit": limit})
    assert answer.json() == {"events": [], "resumeOffset": 1, "isComplete": True}
    await store.admit_local([cover.car])
    answer = await api.get(path)
    assert [each["id"] for each in answer.json()["events"]] == [
        str(each.cid) for each in (init, bad, cover)
    ]


@pytest.mark.parametrize("model", [{}, {"model": UNKNOWN_MODEL.to_bytes()}])
async def test_the_events_of_another_sort_key(
    api: httpx.AsyncClient, filled: Events, model: dict[str, bytes]
) -> None:
    """By the field's value as it is, if that is text. Its streams have a state like any other."""
    key = SigningKey(b"k" * 32)
    header: dict[str, Any] = {
        "controllers": [controller_of(key)],
        "sep": "family",
        "family": "my blog",
        **model,
    }
    init = signed_event(key, {"header": header, "data": {"a": 1}})
    change = data_event(key, init, [init.cid], [{"op": "add", "path": "/b", "value": 2}])
    for event in init, change:
        answer = await api.post("/ceramic/events", json={"data": multibase.encode(event.car)})
        assert answer.status_code == 204, answer.text
    found = await pages(api, f"{PATH}/family/my%20blog")
    assert [each["id"] for each in found] == [str(init.cid), str(change.cid)]
    assert await pages(api, f"{PATH}/family/blog") == []
    state = (await api.get(f"/ceramic/streams/{init.stream_id()}")).json()
    assert multibase.decode(state["dimensions"]["model"]) == model.get("model", b"")
    content = json.loads(multibase.decode(state["data"]))["content"]
    assert content == {"a": 1, "b": 2}
    block = dag_cbor.encode({"header": header | {"surprise": 1}, "data": None})
    cid = CID.of(DAG_CBOR, block)
    data = multibase.encode(car.encode([cid], {cid: block}))
    answer = await api.post("/ceramic/events", json={"data": data})
    assert (answer.status_code, "unknown fields" in answer.text) == (400, True)


async def test_a_page_ends_by_its_bytes_and_says_where_to_go_on(
    services: Services, filled: Events, store: Store
) -> None:
    model, _ = model_of(store, filled)
    app = create_app(dataclasses.replace(services, limits=Limits(feed_bytes=1)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as api:
        page = (await api.get(f"{PATH}/model/{model}")).json()
        assert (len(page["events"]), page["resumeOffset"], page["isComplete"]) == (1, 1, False)
        every = await pages(api, f"{PATH}/model/{model}")
    assert len({event["id"] for event in every}) == len(every) > 10


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?offset=-1", "offset should be 0 or more"),
        ("?limit=many", "limit should be an integer"),
        ("?streamId=k2", "controller is required"),
    ],
)
async def test_what_is_refused(api: httpx.AsyncClient, query: str, words: str) -> None:
    answer = await api.get(f"{PATH}/model/kh4q0ozorrgaq2mezktnrmdwleo1d{query}")
    assert answer.status_code == 400
    assert words in answer.json()["message"]


def test_an_interest_s_bytes_are_ceramic_one_s() -> None:
    """rust-ceramic, core/src/interest.rs, the test `roundtrip`."""
    peer = multibase.decode("z1AZtAkWrrQrsXMQuBEcBget2vGAPbdQ2Wn4bESe9QEVypJ")
    sort_key = bytes.fromhex("0f70d652b6b825e4")
    key_range = KeyRange(bytes([0, 1, 2]), bytes([0, 1, 9]))
    found = multibase.encode(encode_range(sort_key, peer, key_range), "base58btc")
    assert found == "zSeLpVyYXXyR6aowRRqCo76S7kDJkqeid8Mcg8v8DdHjBrNdCpB1kSMVvikk6AcgWg7rTgQ7ocLP"
    whole = encode_interest(Network.local(7), peer, Interest("family", "blog"))
    assert whole.startswith(b"\x48" + hashlib.sha256(b"family").digest()[-8:])


def test_an_interest_in_a_model_is_the_same_as_ceramic_one_s() -> None:
    """As a ceramic-one node (0.58) on the network local-7 listed it."""
    peer = multibase.decode("z12D3KooWG8KxhYuy15rmtTVVzkrxV6wXP8ucCiXVbDwxKkmwZf5M")
    metamodel = Interest("model", "kh4q0ozorrgaq2mezktnrmdwleo1d")
    found = multibase.encode(encode_interest(Network.local(7), peer, metamodel), "base58btc")
    assert found == (
        "zEXhmhSRvVCfmgFppAomnFjg7GE6vA9PkVftpUqEgDTaQepBz7o9dXLj84omBGraNqjub9eZseedXLCz4ndzT5YCfD"
        "qyZbbixtMSStqp2qd8Re8AoWRCCXFvPttqxM1JekRLwEz2xUxQsvX3GbdJDwJWvb"
    )


async def test_interests_are_listed(services: Services, store: Store) -> None:
    peer, key_range = "1AZtAkWrrQrsXMQuBEcBget2vGAPbdQ2Wn4bESe9QEVypJ", KeyRange(b"\1", b"\2")
    told = {peer: [key_range]}
    peers = SimpleNamespace(peer_id=PEER, interests_of=lambda peer_id: told.get(peer_id, ()))
    app = create_app(dataclasses.replace(services, peers=peers))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as api:
        path = "/ceramic/experimental/interests"
        assert (await api.get(path)).json() == {"interests": []}
        body = {
            "sep": "model",
            "sepValue": "kh4q0ozorrgaq2mezktnrmdwleo1d",
            "controller": "did:x:y",
        }
        await api.post("/ceramic/interests", json=body)
        [listed] = (await api.get(path, params={"peerId": PEER})).json()["interests"]
        data = encode_interest(store.network, multibase.decode("z" + PEER), store.wanted.all[0])
        assert multibase.decode(listed.pop("data")) == data
        assert listed == body | {"configured": False}
        [theirs] = (await api.get(path, params={"peerId": peer})).json()["interests"]
        sort_key = bytes.fromhex("0f70d652b6b825e4")
        data = encode_range(sort_key, multibase.decode(f"z{peer}"), key_range)
        assert theirs == {"data": multibase.encode(data, "base58btc")}
        stranger = "12D3KooWG8KxhYuy15rmtTVVzkrxV6wXP8ucCiXVbDwxKkmwZf5M"
        assert (await api.get(path, params={"peerId": stranger})).json() == {"interests": []}
        assert (await api.get(path, params={"peerId": "0"})).status_code == 400
