"""The events of an interest, page by page, and the interests as ceramic-one writes them."""

import hashlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from api_samples import (
    ABSENT,
    INIT,
    KEY,
    MODEL,
    Api,
    Events,
    admit,
    api_of,
    change,
    hand_over,
    read,
)
from support.forging import forged

from recon_node.api.endpoint import Services
from recon_node.api.routes.interests import encode_interest, encode_range
from recon_node.api.settings import Limits
from recon_node.ceramic import EventId, Network, parse_event
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, signed_event
from recon_node.ipld import multibase
from recon_node.recon import KeyRange
from recon_node.store import Interest, Store
from recon_node.store.kept_interests import key_ranges

PATH = "experimental/events"
METAMODEL = "kh4q0ozorrgaq2mezktnrmdwleo1d"
PEER = "12D3KooWGC6TvWhfapngX6wvJHMYvKpDMXPb3ZnCZ6dMoaMtimQ5"


async def pages(api: Api, path: str, **query: Any) -> list[dict[str, str]]:
    events: list[dict[str, str]] = []
    offset, complete = 0, False
    while not complete:
        page = await read(api, f"{PATH}/{path}", **query, offset=offset)
        assert page["resumeOffset"] == offset + len(page["events"])
        events += page["events"]
        offset, complete = page["resumeOffset"], page["isComplete"]
    return events


def model_of(events: Events) -> tuple[str, str]:
    """The sort value and the controller of a document among the events."""
    for event in events:
        header = parse_event(multibase.decode(event["car"])).header
        if header is not None and header.sort_value != METAMODEL:
            return header.sort_value, header.controller
    raise AssertionError("no document")


async def test_all_events_of_a_model_in_the_order_of_their_keys(api, filled, store):
    model, controller = model_of(filled)
    [key_range] = key_ranges(store.network, [Interest("model", model)])
    keys = [EventId(key) for key in store.keys if key_range.covers(key)]
    cars = {event["cid"]: event["car"] for event in filled}
    for limit in (1, 7, 1000):
        events = await pages(api, f"model/{model}", limit=limit)
        assert [event["id"] for event in events] == [str(key.event_cid) for key in keys]
        assert [event["data"] for event in events] == [cars[event["id"]] for event in events]
    [part] = key_ranges(store.network, [Interest("model", model, controller)])
    theirs = [str(key.event_cid) for key in keys if part.covers(key)]
    narrowed = await pages(api, f"model/{model}", controller=controller)
    assert [event["id"] for event in narrowed] == theirs
    assert 0 < len(theirs) < len(keys)
    assert await pages(api, f"model/{model}", controller="did:key:zNobody") == []


async def test_badly_signed_events_are_listed_once_a_valid_one_covers_them(api, store):
    bad = forged(change(INIT))
    lost = forged(data_event(KEY, INIT, [ABSENT], "waits for another, too"))
    cover = change(bad)
    for height, event in enumerate((INIT, bad, lost)):
        await hand_over(store, event, height)
    path = f"{PATH}/model/{MODEL}"
    for limit in (1, 1000):
        listed = (await read(api, path, limit=limit))["events"]
        assert [event["id"] for event in listed] == [str(INIT.cid)]
        rest = await read(api, path, offset=1, limit=limit)
        assert rest == {"events": [], "resumeOffset": 1, "isComplete": True}
    await admit(store, cover)
    listed = (await read(api, path))["events"]
    assert [event["id"] for event in listed] == [str(event.cid) for event in (INIT, bad, cover)]


@pytest.mark.parametrize("model", [{}, {"model": MODEL.to_bytes()}])
async def test_the_events_of_another_sort_key(api, store, model):
    """By the field's value as it is, if that is text. Its streams have a state like any other."""
    header: dict[str, Any] = {"controllers": [controller_of(KEY)], "sep": "family", **model}
    init = signed_event(KEY, {"header": {**header, "family": "my blog"}, "data": {"n": 1}})
    later = change(init, init=init, n=2)
    await admit(store, init, later)
    events = await pages(api, "family/my%20blog")
    assert [event["id"] for event in events] == [str(init.cid), str(later.cid)]
    assert await pages(api, "family/blog") == []
    state = await read(api, f"streams/{init.stream_id()}")
    assert multibase.decode(state["dimensions"]["model"]) == model.get("model", b"")
    assert json.loads(multibase.decode(state["data"]))["content"] == {"n": 2}


async def test_a_page_ends_by_its_bytes_and_says_where_to_go_on(services, filled, store):
    model, _ = model_of(filled)
    async with api_of(services, limits=Limits(feed_bytes=1)) as api:
        page = await read(api, f"{PATH}/model/{model}")
        assert (len(page["events"]), page["resumeOffset"], page["isComplete"]) == (1, 1, False)
        every = await pages(api, f"model/{model}")
    assert len({event["id"] for event in every}) == len(every) > 10


def test_an_interest_s_bytes_are_ceramic_one_s() -> None:
    """rust-ceramic, core/src/interest.rs, the test `roundtrip`."""
    peer = multibase.decode("z1AZtAkWrrQrsXMQuBEcBget2vGAPbdQ2Wn4bESe9QEVypJ")
    sort_key = bytes.fromhex("0f70d652b6b825e4")
    key_range = KeyRange(bytes([0, 1, 2]), bytes([0, 1, 9]))
    interest = multibase.encode(encode_range(sort_key, peer, key_range), "base58btc")
    assert (
        interest == "zSeLpVyYXXyR6aowRRqCo76S7kDJkqeid8Mcg8v8DdHjBrNdCpB1kSMVvikk6AcgWg7rTgQ7ocLP"
    )
    whole = encode_interest(Network.local(7), peer, Interest("family", "blog"))
    assert whole.startswith(b"\x48" + hashlib.sha256(b"family").digest()[-8:])


def test_an_interest_in_a_model_is_the_same_as_ceramic_one_s() -> None:
    """As a ceramic-one node (0.58) on the network local-7 listed it."""
    peer = multibase.decode("z12D3KooWG8KxhYuy15rmtTVVzkrxV6wXP8ucCiXVbDwxKkmwZf5M")
    metamodel = Interest("model", METAMODEL)
    interest = multibase.encode(encode_interest(Network.local(7), peer, metamodel), "base58btc")
    assert interest == (
        "zEXhmhSRvVCfmgFppAomnFjg7GE6vA9PkVftpUqEgDTaQepBz7o9dXLj84omBGraNqjub9eZseedXLCz4ndzT5YCfD"
        "qyZbbixtMSStqp2qd8Re8AoWRCCXFvPttqxM1JekRLwEz2xUxQsvX3GbdJDwJWvb"
    )


async def test_interests_are_listed(services: Services, store: Store) -> None:
    peer, key_range = "1AZtAkWrrQrsXMQuBEcBget2vGAPbdQ2Wn4bESe9QEVypJ", KeyRange(b"\1", b"\2")
    ranges = {peer: [key_range]}
    peers = SimpleNamespace(peer_id=PEER, interests_of=lambda peer_id: ranges.get(peer_id, ()))
    async with api_of(services, peers=peers) as api:

        async def listed(**query: str) -> list[dict[str, Any]]:
            return list((await read(api, "experimental/interests", **query))["interests"])

        assert await listed() == []
        body = {"sep": "model", "sepValue": METAMODEL, "controller": "did:x:y"}
        await api.post("/ceramic/interests", json=body)
        [own] = await listed(peerId=PEER)
        data = encode_interest(store.network, multibase.decode("z" + PEER), store.wanted.all[0])
        assert multibase.decode(own.pop("data")) == data
        assert own == body | {"configured": False}
        [theirs] = await listed(peerId=peer)
        sort_key = bytes.fromhex("0f70d652b6b825e4")
        data = encode_range(sort_key, multibase.decode(f"z{peer}"), key_range)
        assert theirs == {"data": multibase.encode(data, "base58btc")}
        stranger = "12D3KooWG8KxhYuy15rmtTVVzkrxV6wXP8ucCiXVbDwxKkmwZf5M"
        assert await listed(peerId=stranger) == []
