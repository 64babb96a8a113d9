"""The search: by whole names, by their beginnings, by DIDs and by the names of models."""

from typing import Any

from api_samples import INIT, Api, admit, change, hand_over, read
from test_api_listings import KEYS, MODELS, STREAMS

from recon_node.ceramic.builder import controller_of, data_event
from recon_node.ipld import multibase
from recon_node.store import Store


async def search(api: Api, query: object, **params: int) -> dict[str, Any]:
    return dict(await read(api, "search", q=str(query), **params))


NOTHING: dict[str, Any] = {"events": [], "streams": [], "models": [], "controllers": []}


async def test_by_a_stream_id_or_its_beginning(api: Api, store: Store) -> None:
    await admit(store, *STREAMS)
    for event in STREAMS[:10]:
        name = str(event.stream_id())
        other = multibase.encode(event.stream_id().to_bytes(), "base58btc")
        for query in (name, name[:-20], f"  {name}\n", other):
            answer = await search(api, query)
            assert [stream["id"] for stream in answer["streams"]] == [name]
            assert answer["events"] == []
    answer = await search(api, "kjzl6kcym7w8y", limit=3)  # what documents' StreamIDs begin with
    assert len(answer["streams"]) == 3
    assert await search(api, str(STREAMS[0].stream_id())[:9]) == NOTHING


async def test_by_a_cid_or_its_beginning(api: Api, store: Store) -> None:
    init = next(e for e in STREAMS if e.header and e.header.controller == controller_of(KEYS[0]))
    event = data_event(KEYS[0], init, [init.cid], [])
    await admit(store, *STREAMS, event)
    for query in (event.cid, str(event.cid)[:-30], multibase.encode(event.cid, "base58btc")):
        answer = await search(api, query)
        stream = str(init.stream_id())
        assert answer["events"] == [
            {"cid": str(event.cid), "kind": "data", "state": "delivered", "stream": stream}
        ]
        assert answer["streams"] == []
    answer = await search(api, init.cid)
    assert [event["cid"] for event in answer["events"]] == [str(init.cid)]
    assert [stream["id"] for stream in answer["streams"]] == [str(init.stream_id())]


async def test_an_event_that_waits(api: Api, store: Store) -> None:
    waiting = change(change(INIT), n=2)
    await hand_over(store, waiting, 2)
    [event] = (await search(api, waiting.cid))["events"]
    cid = str(waiting.cid)
    assert event == {"cid": cid, "kind": "data", "state": "waiting", "stream": None}


async def test_by_a_did_and_by_the_name_of_a_model(api: Api, store: Store) -> None:
    await admit(store, *STREAMS)
    for key in KEYS:
        did = controller_of(key)
        count = sum(e.header is not None and e.header.controller == did for e in STREAMS)
        assert (await search(api, did))["controllers"] == [{"id": did, "streams": count}]
    answer = await search(api, "NOTE")
    assert [model["name"] for model in answer["models"]] == ["Note"]
    assert {model["name"] for model in (await search(api, "o"))["models"]} == {"Note", "Photo"}
    assert len(MODELS) == 2


async def test_nothing_is_found(api: Api, store: Store) -> None:
    await admit(store, *STREAMS)
    for query in ("did:key:nobody", "nothing", "%_", "b" * 70, "k" * 70):
        assert await search(api, query) == NOTHING
