"""Proposals of merges over HTTP: signed by whoever has the key, they make a stream converge."""

from __future__ import annotations

from typing import Any

import httpx
from test_api_streams import DEFINITION, KEY, admit, change, id_of

from recon_node.api import Limits, Services, create_app
from recon_node.ceramic import Event
from recon_node.ceramic.builder import init_event, model_event, signed_event
from recon_node.ipld import dag_cbor, multibase
from recon_node.store import Store


async def forked(store: Store, *changes: tuple[str, str]) -> tuple[Event, list[Event]]:
    """A document, and the tips of its branches."""
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, id_of(model), {"text": "a", "author": "me"}, unique=b"u")
    tips = [change(init, init, path, value) for path, value in changes]
    await admit(store, model, init, *tips)
    return init, tips


async def propose(api: httpx.AsyncClient, init: Event) -> Any:
    answer = await api.get(f"/ceramic/streams/{id_of(init)}/merge")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_proposal_is_signed_and_merges(api: httpx.AsyncClient, store: Store) -> None:
    init, tips = await forked(store, ("/text", "b"))
    assert (await propose(api, init))["diverged"] is False
    other = change(init, init, "", {"text": "a", "author": "me"})
    await admit(store, other)
    proposal = await propose(api, init)
    assert proposal["diverged"] is True
    assert sorted(proposal["prev"]) == sorted([str(tips[0].cid), str(other.cid)])
    assert (proposal["content"], proposal["conflicts"]) == ({"text": "b", "author": "me"}, [])
    payload = dag_cbor.decode(multibase.decode(proposal["payload"]))
    assert payload["data"] == proposal["patch"]
    event = signed_event(KEY, payload)
    assert [str(prev) for prev in event.prevs] == proposal["prev"]
    body = {"data": multibase.encode(event.car)}
    assert (await api.post("/ceramic/events", json=body)).status_code == 204
    assert await propose(api, init) == {
        "id": str(id_of(init)),
        "diverged": False,
        "prev": [],
        "payload": "",
        "content": None,
        "patch": [],
        "conflicts": [],
        "left": 0,
        "expired": [],
    }


async def test_conflicts_come_with_the_value_on_each_branch(
    api: httpx.AsyncClient, store: Store
) -> None:
    init, _ = await forked(store, ("/text", "b"), ("/text", "c"))
    gone = change(init, init, "", {"author": "me"})
    await admit(store, gone)
    proposal = await propose(api, init)
    [conflict] = proposal["conflicts"]
    assert conflict["path"] == "/content/text"
    assert [each["prev"] for each in conflict["values"]] == proposal["prev"]
    assert sorted(each.get("value", "") for each in conflict["values"]) == ["", "b", "c"]
    assert {"prev": str(gone.cid)} in conflict["values"]
    tip = next(each for each in conflict["values"] if each["prev"] == proposal["prev"][0])
    assert proposal["content"].get("text") == tip.get("value")


async def test_what_cannot_be_merged(api: httpx.AsyncClient, store: Store) -> None:
    assert (await api.get("/ceramic/streams/x/merge")).status_code == 400
    init, _ = await forked(store, ("/text", "b"), ("/text", "c"))
    missing = await api.get(f"/ceramic/streams/{id_of(change(init, init, '', {}), init)}x/merge")
    assert missing.status_code in (400, 404)
    assert init.header is not None
    assert init.header.model is not None
    unknown = await api.get("/ceramic/streams/kh4q0ozorrgaq2mezktnrmdwleo1d/merge")
    assert unknown.status_code == 404
    rejected = init_event(KEY, init.header.model, {"text": 1}, unique=b"v")
    await admit(store, rejected)
    answer = await api.get(f"/ceramic/streams/{id_of(rejected)}/merge")
    assert answer.status_code == 404
    small = Services(store=store, limits=Limits(stream_events=2))
    transport = httpx.ASGITransport(create_app(small))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as limited:
        answer = await limited.get(f"/ceramic/streams/{id_of(init)}/merge")
    assert answer.status_code == 400
    assert "too many" in answer.json()["message"]
