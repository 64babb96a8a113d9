"""The state of streams over HTTP: as the SDK reads it, and what is not answered."""

import json
from typing import Any

import pytest
import trio
from api_samples import INIT, KEY, Api, Events, admit, api_of, change, read

from recon_node.api.settings import Limits
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import data_event, init_event, model_event, signed_event
from recon_node.client import ModelDefinition
from recon_node.ipld import CID, DAG_CBOR, dag_cbor, multibase
from recon_node.store import Store

PROPERTIES = {"author": {"type": "string"}, "text": {"type": "string", "maxLength": 10}}
DEFINITION = ModelDefinition(
    name="Post", schema={"properties": PROPERTIES}, immutable_fields=["author"]
).to_json()


def put(init: Event, prev: Event, path: str, value: Any) -> Event:
    """A data event that sets one place of the content."""
    patch = [{"op": "replace", "path": path, "value": value}]
    return data_event(KEY, init, [prev.cid], patch)


def stream_of(event: Event) -> str:
    return f"streams/{event.stream_id()}"


def said(state: dict[str, Any]) -> Any:
    """What a state has in `data`: the content and the metadata."""
    return json.loads(multibase.decode(state["data"]))


async def test_a_document_at_its_tip(api: Api, store: Store) -> None:
    """Rejected events move neither content nor tip, and are not built on."""
    model = model_event(KEY, DEFINITION)
    content = {"text": "a", "author": "me"}
    init = init_event(KEY, model.stream_id(), content, unique=b"u", should_index=True)
    event = put(init, init, "/text", "b")
    forbidden, long = put(init, event, "/author", "you"), put(init, event, "/text", "x" * 50)
    await admit(store, model, init, event, forbidden)
    await admit(store, long)
    state = await read(api, stream_of(init))
    content = {"author": "me", "text": "b"}
    assert said(state) == {"metadata": {"shouldIndex": True}, "content": content}
    assert state["data"].startswith("u")
    assert (state["id"], state["controller"]) == (str(init.stream_id()), controller_of(KEY))
    assert state["event_cid"] == str(event.cid)
    assert {name: multibase.decode(value) for name, value in state["dimensions"].items()} == {
        "model": model.stream_id().to_bytes(),
        "controller": controller_of(KEY).encode(),
        "context": b"",
        "unique": b"u",
    }
    errors = {error["event_cid"]: error["errors"] for error in state["validation_errors"]}
    assert errors.keys() == {str(forbidden.cid), str(long.cid)}
    assert errors[str(forbidden.cid)] == ["the field 'author' is immutable"]
    assert "longer than 10 characters at /text" in errors[str(long.cid)][0]
    assert said(await read(api, stream_of(model)))["content"] == DEFINITION
    fine = put(init, event, "/text", "c")  # as a client builds on what it was answered
    await admit(store, fine)
    state = await read(api, stream_of(init))
    assert (state["event_cid"], said(state)["content"]["text"]) == (str(fine.cid), "c")


@pytest.mark.parametrize("kind", ["document", "model"])
async def test_a_stream_that_starts_with_a_rejected_event(api, store, kind):
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, model.stream_id(), {"text": "x" * 50}, unique=b"u")
    if kind == "model":
        init = model_event(KEY, {**DEFINITION, "schema": None})
    await admit(store, model, init)
    message = (await read(api, stream_of(init), 404))["message"]
    assert f"not found : {init.stream_id()} (its init event was rejected: " in message
    assert ("the model has no schema" if kind == "model" else "at /text") in message


async def test_a_document_of_a_version_of_its_model(api: Api, store: Store) -> None:
    model = model_event(KEY, DEFINITION)
    longer = put(model, model, "/schema/properties/text/maxLength", 100)
    header = {"modelVersion": longer.cid, "unique": b"u", "controllers": [controller_of(KEY)]}
    header["model"] = model.stream_id().to_bytes()
    init = signed_event(KEY, {"header": header, "data": {"text": "x" * 50}})
    await admit(store, model, init)
    assert f"no version {longer.cid} here" in (await read(api, stream_of(init), 404))["message"]
    await admit(store, longer)
    state = await read(api, stream_of(init))
    assert said(state)["metadata"] == {"shouldIndex": True, "modelVersion": str(longer.cid)}


async def test_a_model_that_is_a_document_is_not_a_model(api: Api, store: Store) -> None:
    other = init_event(KEY, StreamId(2, CID.of(DAG_CBOR, b"m")), DEFINITION, unique=b"u")
    init = init_event(KEY, StreamId(StreamType.MODEL, other.cid), {"text": 1}, unique=b"u")
    await admit(store, other, init)
    assert said(await read(api, stream_of(init)))["content"] == {"text": 1}


async def test_a_document_whose_model_is_not_here(api: Api, store: Store) -> None:
    """Its StreamID may come in any multibase."""
    await admit(store, INIT)
    state = await read(api, stream_of(INIT))
    assert said(state)["content"] == {"n": 0}
    for base in ("base36", "base64url"):
        name = multibase.encode(INIT.stream_id().to_bytes(), base)
        assert await read(api, f"streams/{name}") == state


@pytest.mark.parametrize(
    "limits",
    [Limits(stream_events=2), Limits(stream_bytes=2000), Limits(stream_seconds=-1)],
    ids=["events", "bytes", "time"],
)
async def test_a_stream_that_takes_too_much_is_refused(store: Store, limits: Limits) -> None:
    events = [INIT]
    for n in range(3):
        events.append(change(events[-1], n=n))
    await admit(store, *events)
    async with api_of(store, limits=limits) as api:
        assert "from the feed" in (await read(api, stream_of(INIT), 400))["message"]


async def test_only_so_many_streams_are_in_memory_at_once(services, api, store):
    await admit(store, INIT)
    paths = ["", "/events", "/picture", "/merge", f"/events/{INIT.cid}"]
    answered: list[Any] = []

    async def ask(path: str) -> None:
        answered.append(await read(api, stream_of(INIT) + path))

    for _ in range(2):
        assert services.evaluation.slots.take_at_once()
    async with trio.open_nursery() as nursery:
        for path in paths:
            nursery.start_soon(ask, path)
        while services.evaluation.slots.waiting < len(paths):
            await trio.lowlevel.checkpoint()
        assert answered == []
        for _ in range(2):
            services.evaluation.slots.leave()
    assert len(answered) == len(paths)


async def test_every_stream_of_the_sdk_s_sample(api: Api, store: Store, sample: Events) -> None:
    await store.admit_local([multibase.decode(event["car"]) for event in sample[:100]])
    streams = {row.stream_cid for row in await store.reader.feed(0, 100)}
    assert len(streams) > 20
    for init in streams:
        for kind in (StreamType.MODEL, StreamType.MODEL_INSTANCE):
            answer = await api.get(f"/ceramic/streams/{StreamId(kind, init)}")
            if answer.status_code == 200:
                assert answer.json()["validation_errors"] == []
                break
        else:
            raise AssertionError(f"no state of the stream {init}")


async def test_a_preview_says_what_it_is_and_whether_it_has_diverged(api, store):
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, model.stream_id(), {"text": "a"}, unique=b"u")
    bad = init_event(KEY, model.stream_id(), {"text": 7}, unique=b"v")
    await admit(store, model, init, bad)

    async def preview(event: Event) -> Any:
        return await read(api, f"{stream_of(event)}/preview")

    assert await preview(init) == {"content": '{"text": "a"}', "diverged": False}
    assert await preview(bad) == {"content": None, "diverged": False}
    assert len((await preview(model))["content"]) == 100
    left, right = put(init, init, "/text", "b"), put(init, init, "/text", "c")
    await admit(store, left, right)
    assert (await preview(init))["diverged"]
    merged = data_event(KEY, init, [left.cid, right.cid], [])
    await admit(store, merged)
    assert not (await preview(init))["diverged"]


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
    rejected = init_event(KEY, init.header.model, {"text": 1}, unique=b"v")
    await admit(store, rejected)
    await read(api, f"{stream_of(rejected)}/merge", 404)
    async with api_of(store, limits=Limits(stream_events=2)) as limited:
        assert "too many" in (await read(limited, f"{stream_of(init)}/merge", 400))["message"]
