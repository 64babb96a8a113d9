"""Proposals of merges over HTTP: signed by whoever has the key, they make a stream converge."""

from typing import Any

from api_samples import KEY, Api, admit, api_of, read
from test_api_streams import DEFINITION, put, stream_of

from recon_node.api import Limits
from recon_node.ceramic import Event
from recon_node.ceramic.builder import init_event, model_event, signed_event
from recon_node.ipld import dag_cbor, multibase
from recon_node.store import Store


async def forked(store: Store, *changes: tuple[str, str]) -> tuple[Event, list[Event]]:
    """A document, and the tips of its branches."""
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, model.stream_id(), {"text": "a", "author": "me"}, unique=b"u")
    tips = [put(init, init, path, value) for path, value in changes]
    await admit(store, model, init, *tips)
    return init, tips


async def propose(api: Api, init: Event) -> Any:
    return await read(api, f"{stream_of(init)}/merge")


async def test_a_proposal_is_signed_and_merges(api: Api, store: Store) -> None:
    init, tips = await forked(store, ("/text", "b"))
    assert (await propose(api, init))["diverged"] is False
    other = put(init, init, "", {"text": "a", "author": "me"})
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
        "id": str(init.stream_id()),
        "diverged": False,
        "prev": [],
        "payload": "",
        "content": None,
        "patch": [],
        "conflicts": [],
        "left": 0,
        "expired": [],
    }


async def test_conflicts_come_with_the_value_on_each_branch(api: Api, store: Store) -> None:
    init, _ = await forked(store, ("/text", "b"), ("/text", "c"))
    gone = put(init, init, "", {"author": "me"})
    await admit(store, gone)
    proposal = await propose(api, init)
    [conflict] = proposal["conflicts"]
    assert conflict["path"] == "/content/text"
    assert [value["prev"] for value in conflict["values"]] == proposal["prev"]
    assert sorted(value.get("value", "") for value in conflict["values"]) == ["", "b", "c"]
    assert {"prev": str(gone.cid)} in conflict["values"]
    tip = next(value for value in conflict["values"] if value["prev"] == proposal["prev"][0])
    assert proposal["content"].get("text") == tip.get("value")


async def test_what_cannot_be_merged(api: Api, store: Store) -> None:
    init, _ = await forked(store, ("/text", "b"), ("/text", "c"))
    assert init.header is not None
    assert init.header.model is not None
    rejected = init_event(KEY, init.header.model, {"text": 1}, unique=b"v")
    await admit(store, rejected)
    await read(api, f"{stream_of(rejected)}/merge", 404)
    async with api_of(store, limits=Limits(stream_events=2)) as limited:
        assert "too many" in (await read(limited, f"{stream_of(init)}/merge", 400))["message"]
