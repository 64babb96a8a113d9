"""The state of streams over HTTP: as the SDK reads it, and what is not answered."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import httpx
import pytest
import trio
from nacl.signing import SigningKey

from recon_node.api import Limits, Services, create_app
from recon_node.ceramic import Event, StreamId, StreamType
from recon_node.ceramic.builder import (
    controller_of,
    data_event,
    init_event,
    model_event,
    signed_event,
)
from recon_node.ipld import CID, DAG_CBOR, multibase
from recon_node.store import Store

KEY = SigningKey(bytes(32))
DEFINITION = {
    "version": "2.0",
    "name": "Post",
    "interface": False,
    "implements": [],
    "schema": {
        "type": "object",
        "properties": {"author": {"type": "string"}, "text": {"type": "string", "maxLength": 10}},
        "additionalProperties": False,
    },
    "accountRelation": {"type": "list"},
    "immutableFields": ["author"],
}


async def admit(store: Store, *events: Event) -> None:
    verdicts = await store.admit_local([event.car for event in events])
    assert [verdict.status for verdict in verdicts] == ["new"] * len(events)


def id_of(event: Event, header: Event | None = None) -> StreamId:
    init = header or event
    assert init.header is not None
    return init.stream_id()


def change(init: Event, prev: Event, path: str, value: Any) -> Event:
    patch = [{"op": "replace", "path": path, "value": value}]
    return data_event(KEY, init, [prev.cid], patch)


def read(answer: httpx.Response) -> Any:
    return json.loads(multibase.decode(answer.json()["data"]))


async def test_a_document_at_its_tip(api: httpx.AsyncClient, store: Store) -> None:
    model = model_event(KEY, DEFINITION)
    init = init_event(
        KEY, id_of(model), {"text": "a", "author": "me"}, unique=b"u", should_index=True
    )
    event = change(init, init, "/text", "b")
    forbidden = change(init, event, "/author", "you")
    await admit(store, model, init, event, forbidden)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert answer.status_code == 200
    state = answer.json()
    assert read(answer) == {
        "metadata": {"shouldIndex": True},
        "content": {"author": "me", "text": "b"},
    }
    assert state["data"].startswith("u")
    assert (state["id"], state["controller"]) == (str(id_of(init)), controller_of(KEY))
    assert state["event_cid"] == str(event.cid)
    assert {name: multibase.decode(value) for name, value in state["dimensions"].items()} == {
        "model": id_of(model).to_bytes(),
        "controller": controller_of(KEY).encode(),
        "context": b"",
        "unique": b"u",
    }
    assert state["validation_errors"] == [
        {"event_cid": str(forbidden.cid), "errors": ["the field 'author' is immutable"]}
    ]
    assert read(await api.get(f"/ceramic/streams/{id_of(model)}"))["content"] == DEFINITION


async def test_a_rejected_event_moves_neither_content_nor_tip(
    api: httpx.AsyncClient, store: Store
) -> None:
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, id_of(model), {"text": "a"}, unique=b"u")
    long = change(init, init, "/text", "x" * 50)
    await admit(store, model, init, long)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert read(answer) == {"metadata": {"shouldIndex": True}, "content": {"text": "a"}}
    assert answer.json()["event_cid"] == str(init.cid)
    [error] = answer.json()["validation_errors"]
    assert error["event_cid"] == str(long.cid)
    assert "longer than 10 characters at /text" in error["errors"][0]
    fine = change(init, init, "/text", "b")  # as a client builds on what it was answered
    await admit(store, fine)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert (answer.json()["event_cid"], read(answer)["content"]) == (str(fine.cid), {"text": "b"})


@pytest.mark.parametrize("kind", ["document", "model"])
async def test_a_stream_that_starts_with_a_rejected_event(
    api: httpx.AsyncClient, store: Store, kind: str
) -> None:
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, id_of(model), {"text": "x" * 50}, unique=b"u")
    if kind == "model":
        init = model_event(KEY, {**DEFINITION, "schema": None})
    await admit(store, model, init)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert answer.status_code == 404
    message = answer.json()["message"]
    assert message.startswith(f"Stream not found : {id_of(init)} (its init event was rejected: ")
    assert ("the model has no schema" if kind == "model" else "at /text") in message


async def test_a_document_of_a_version_of_its_model(api: httpx.AsyncClient, store: Store) -> None:
    model = model_event(KEY, DEFINITION)
    longer = change(model, model, "/schema/properties/text/maxLength", 100)
    header = {"modelVersion": longer.cid, "unique": b"u", "controllers": [controller_of(KEY)]}
    header["model"] = id_of(model).to_bytes()
    init = signed_event(KEY, {"header": header, "data": {"text": "x" * 50}})
    await admit(store, model, init)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert answer.status_code == 404
    assert f"no version {longer.cid} here" in answer.json()["message"]
    await admit(store, longer)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert read(answer)["metadata"] == {"shouldIndex": True, "modelVersion": str(longer.cid)}


async def test_a_model_that_is_a_document_is_no_model(api: httpx.AsyncClient, store: Store) -> None:
    other = init_event(KEY, StreamId(2, CID.of(DAG_CBOR, b"m")), DEFINITION, unique=b"u")
    init = init_event(KEY, StreamId(StreamType.MODEL, other.cid), {"text": 1}, unique=b"u")
    await admit(store, other, init)
    assert read(await api.get(f"/ceramic/streams/{id_of(init)}"))["content"] == {"text": 1}


async def test_a_document_whose_model_is_not_here(api: httpx.AsyncClient, store: Store) -> None:
    model = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"elsewhere"))
    init = init_event(KEY, model, {"text": "a"}, unique=b"u")
    await admit(store, init)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert read(answer)["content"] == {"text": "a"}


async def test_a_stream_in_any_multibase(
    api: httpx.AsyncClient, filled: list[dict[str, str]]
) -> None:
    cid = CID.parse(filled[0]["cid"])
    stream = StreamId(StreamType.MODEL, cid)
    texts = [multibase.encode(stream.to_bytes(), base) for base in ("base36", "base64url")]
    first, second = [(await api.get(f"/ceramic/streams/{text}")).json() for text in texts]
    assert first == second
    assert first["id"] == str(stream)


@pytest.mark.parametrize(
    ("stream", "status", "words"),
    [
        ("nonsense", 400, "Invalid stream ID"),
        (str(CID.of(DAG_CBOR, b"x")), 400, "Invalid stream ID"),
        (str(StreamId(3, CID.of(DAG_CBOR, b"x"))), 404, "Stream not found"),
    ],
)
async def test_no_stream(api: httpx.AsyncClient, stream: str, status: int, words: str) -> None:
    answer = await api.get(f"/ceramic/streams/{stream}")
    assert answer.status_code == status
    assert words in answer.json()["message"]


async def test_a_stream_of_another_type(
    api: httpx.AsyncClient, filled: list[dict[str, str]]
) -> None:
    """A StreamID is the init event's CID and the type: with another type it names no stream."""
    model = StreamId(StreamType.MODEL, CID.parse(filled[0]["cid"]))
    answer = await api.get(f"/ceramic/streams/{StreamId(StreamType.TILE, model.cid)}")
    assert answer.status_code == 404
    assert str(model) in answer.json()["message"]


@pytest.mark.parametrize(
    "limits",
    [Limits(stream_events=2), Limits(stream_bytes=2000), Limits(stream_seconds=-1)],
    ids=["events", "bytes", "time"],
)
async def test_a_stream_that_takes_too_much_is_refused(
    services: Services, store: Store, limits: Limits
) -> None:
    init = init_event(KEY, StreamId(2, CID.of(DAG_CBOR, b"m")), {"n": 0}, unique=b"u")
    events = [init]
    for n in range(3):
        events.append(change(init, events[-1], "/n", n))
    await admit(store, *events)
    transport = httpx.ASGITransport(create_app(dataclasses.replace(services, limits=limits)))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as api:
        answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert answer.status_code == 400
    assert "from the feed" in answer.json()["message"]


async def test_only_so_many_streams_are_in_memory_at_once(
    services: Services, api: httpx.AsyncClient, store: Store
) -> None:
    init = init_event(KEY, StreamId(2, CID.of(DAG_CBOR, b"m")), {"n": 0}, unique=b"u")
    await admit(store, init)
    stream, cid = id_of(init), init.cid
    paths = ["", "/events", "/picture", "/merge", f"/events/{cid}"]
    answered: list[int] = []

    async def ask(path: str) -> None:
        answered.append((await api.get(f"/ceramic/streams/{stream}{path}")).status_code)

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
    assert answered == [200] * len(paths)


async def test_poison_is_told_and_the_stream_goes_on(api: httpx.AsyncClient, store: Store) -> None:
    init = init_event(KEY, StreamId(2, CID.of(DAG_CBOR, b"m")), {"n": 0}, unique=b"u")
    bomb = [{"op": "copy", "from": "", "path": f"/{n}"} for n in range(5000)]
    poison = signed_event(KEY, {"id": init.cid, "prev": init.cid, "data": bomb})
    nonsense = signed_event(KEY, {"id": init.cid, "prev": poison.cid, "data": "nonsense"})
    last = change(init, nonsense, "/n", 1)
    await admit(store, init, poison, nonsense, last)
    answer = await api.get(f"/ceramic/streams/{id_of(init)}")
    assert read(answer)["content"] == {"n": 1}
    assert [error["event_cid"] for error in answer.json()["validation_errors"]] == [
        str(poison.cid),
        str(nonsense.cid),
    ]


async def test_every_stream_of_the_sdk_s_sample(
    api: httpx.AsyncClient, store: Store, sample: list[dict[str, str]]
) -> None:
    cars = [multibase.decode(event["car"]) for event in sample]
    await store.admit_local(cars)
    streams = {row.stream_cid: row for row in await store.reader.feed(0, len(cars))}
    for init in list(streams)[:30]:
        for kind in (StreamType.MODEL, StreamType.MODEL_INSTANCE):
            answer = await api.get(f"/ceramic/streams/{StreamId(kind, init)}")
            if answer.status_code == 200:
                assert answer.json()["validation_errors"] == []
                break
        else:
            raise AssertionError(f"no state of the stream {init}")


async def test_a_preview_says_what_it_is_and_whether_it_has_diverged(
    api: httpx.AsyncClient, store: Store
) -> None:
    model = model_event(KEY, DEFINITION)
    init = init_event(KEY, id_of(model), {"text": "a"}, unique=b"u")
    bad = init_event(KEY, id_of(model), {"text": 7}, unique=b"v")
    await admit(store, model, init, bad)

    async def preview(event: Event) -> Any:
        answer = await api.get(f"/ceramic/streams/{id_of(event)}/preview")
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert await preview(init) == {"content": '{"text": "a"}', "diverged": False}
    assert await preview(bad) == {"content": None, "diverged": False}
    assert len((await preview(model))["content"]) == 100
    left, right = change(init, init, "/text", "b"), change(init, init, "/text", "c")
    await admit(store, left, right)
    assert (await preview(init))["diverged"]
    merged = data_event(KEY, init, [left.cid, right.cid], [])
    await admit(store, merged)
    assert not (await preview(init))["diverged"]
    answer = await api.get(f"/ceramic/streams/{id_of(change(init, init, '/x', 1), init)}x/preview")
    assert answer.status_code == 400
