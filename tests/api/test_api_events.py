"""POST /ceramic/events and GET /ceramic/events/{cid}, over a real store."""

from __future__ import annotations

import httpx
import pytest

from recon_node.ipld import CID, multibase
from recon_node.store import Store

Events = list[dict[str, str]]


async def test_an_event_comes_back_as_it_was_sent(
    api: httpx.AsyncClient, sample: Events, store: Store
) -> None:
    event = sample[0]
    answer = await api.post("/ceramic/events", json={"data": event["car"]})
    assert (answer.status_code, answer.content) == (204, b"")
    assert store.head == 1
    got = await api.get(f"/ceramic/events/{event['cid']}")
    assert (got.status_code, got.json()) == (200, {"id": event["cid"], "data": event["car"]})


async def test_sending_it_twice_changes_nothing(
    api: httpx.AsyncClient, sample: Events, store: Store
) -> None:
    for _ in range(2):
        answer = await api.post("/ceramic/events", json={"data": sample[0]["car"]})
        assert answer.status_code == 204
    assert store.head == len(store.keys) == 1


@pytest.mark.parametrize("base", ["base64", "base64url", "base64pad", "base32", "base16"])
async def test_the_car_may_be_in_any_multibase(
    api: httpx.AsyncClient, sample: Events, store: Store, base: str
) -> None:
    data = multibase.encode(multibase.decode(sample[0]["car"]), base)
    answer = await api.post("/ceramic/events", json={"data": data, "id": "is not looked at"})
    assert answer.status_code == 204
    assert store.head == 1


async def test_an_event_is_found_by_its_event_id_too(
    api: httpx.AsyncClient, filled: Events, store: Store
) -> None:
    [row] = await store.read_feed(0, 1)
    text = multibase.encode(row.event_id, "base16")
    answer = await api.get(f"/ceramic/events/{text}")
    assert answer.json() == {"id": filled[0]["cid"], "data": filled[0]["car"]}


async def test_a_cid_is_found_in_any_multibase(api: httpx.AsyncClient, filled: Events) -> None:
    text = multibase.encode(CID.parse(filled[0]["cid"]), "base58btc")
    answer = await api.get(f"/ceramic/events/{text}")
    assert answer.json()["id"] == filled[0]["cid"]


async def test_an_event_that_is_not_here_is_404(api: httpx.AsyncClient, sample: Events) -> None:
    cid = sample[5]["cid"]
    answer = await api.get(f"/ceramic/events/{cid}")
    assert (answer.status_code, answer.json()) == (404, {"message": f"Event not found : {cid}"})


async def test_an_event_before_its_prev_is_refused(
    api: httpx.AsyncClient, sample: Events, store: Store
) -> None:
    orphan = next(event for event in sample if "prev" in event)
    answer = await api.post("/ceramic/events", json={"data": orphan["car"]})
    assert answer.status_code == 400
    assert answer.json()["message"]
    assert store.head == len(store.keys) == 0
