"""Lists of streams and models over HTTP: complete, in order, and cut into pages."""

import itertools
import json
from collections import Counter
from random import Random
from typing import Any

from api_samples import INIT, Api, admit, change, hand_over, read
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

from recon_node.ceramic import METAMODEL, Event, StreamId, StreamType
from recon_node.ceramic.auth.did import controller_of
from recon_node.ceramic.builder import (
    data_event,
    deterministic_init_event,
    init_event,
    model_event,
    signed_event,
)
from recon_node.ipld import CID, DAG_CBOR, DAG_JOSE, multibase
from recon_node.ipld.multibase import BASE32
from recon_node.store import Store
from recon_node.store.reading import stream_lists
from recon_node.store.reading.name_prefixes import cid_ranges, init_ranges

KEYS = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3)]


def definition(name: str) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "schema": {"type": "object"}, "accountRelation": {}}


MODELS = [model_event(KEYS[0], definition(name)) for name in ("Note", "Photo")]
ABSENT = StreamId(StreamType.MODEL, CID.of(DAG_CBOR, b"elsewhere"))


def tile(key: SigningKey, unique: str) -> Event:
    header = {"controllers": [controller_of(key)], "sep": "family", "family": "blog"}
    return signed_event(key, {"header": {**header, "unique": unique}, "data": {"n": 1}})


def streams() -> list[Event]:
    """Init events of all kinds, in a random order that is always the same."""
    models = [*(model.stream_id() for model in MODELS), ABSENT]
    listed = [*MODELS]
    for n in range(12):
        for key in KEYS[: 1 + n % 3]:
            model = models[n % len(models)]
            listed.append(init_event(key, model, {"n": n}, unique=b"%d" % n))
    listed += [deterministic_init_event(controller_of(key), models[0]) for key in KEYS]
    listed += [tile(key, f"{n}") for key in KEYS for n in range(2)]
    Random(1).shuffle(listed)
    return listed


STREAMS = streams()


async def pages(api: Api, path: str, name: str, **params: str | int) -> list[dict[str, Any]]:
    """The whole list, read page by page."""
    listed: list[dict[str, Any]] = []
    while True:
        page = await read(api, path, **params)
        listed += page[name]
        if page["next"] is None:
            assert page.get("total", len(listed)) == len(listed)
            return listed
        params["after"] = page["next"]


def ids(events: list[Event]) -> list[str]:
    return [str(event.stream_id()) for event in reversed(events)]


async def test_texts_of_strangers_are_cut(api: Api, store: Store) -> None:
    """40 names of 0.9 MB once made answers of 72 MB."""
    models = [model_event(KEYS[0], definition(f"{n}" + "n" * 900_000)) for n in range(3)]
    family = {"controllers": [controller_of(KEYS[0])], "sep": "family", "family": "f" * 2000}
    events = [
        *models,
        *(init_event(KEYS[0], model.stream_id(), {"a": 1}, unique=b"u") for model in models),
        signed_event(KEYS[0], {"header": family, "data": {}}),
    ]
    await admit(store, *events)
    for path, params in (("streams", {}), ("models", {}), ("search", {"q": "nnnnnnnnnnnn"})):
        assert len(json.dumps(await read(api, path, **params))) < 20_000


async def test_all_streams_the_latest_first(api: Api, store: Store) -> None:
    await admit(store, *STREAMS)
    names = {model.stream_id(): model.data["name"] for model in MODELS}
    for limit in (1, 5, 1000):
        streams = await pages(api, "streams", "streams", limit=limit)
        assert [stream["id"] for stream in streams] == ids(STREAMS)
    for stream, event in zip(streams, reversed(STREAMS), strict=True):
        header = event.header
        assert (stream["init"], stream["controller"]) == (str(event.cid), header.controller)
        assert (stream["sort_key"], stream["sort_value"]) == (header.sort_key, header.sort_value)
        assert stream["name"] == (event.data["name"] if event in MODELS else None)
        assert stream["model_name"] == names.get(header.model)  # type: ignore[arg-type]
        assert stream["events"] == 1


async def test_by_model_controller_and_sort_value(api: Api, store: Store) -> None:
    await admit(store, *STREAMS)
    dids = [controller_of(key) for key in KEYS]
    models = [*(model.stream_id() for model in MODELS), ABSENT, METAMODEL]
    for model, did in itertools.product([None, *models], [None, *dids]):
        right = [
            event
            for event in STREAMS
            if (header := event.header) is not None
            and model in (None, header.model)
            and did in (None, header.controller)
        ]
        params = {"model": str(model)} if model else {}
        params |= {"controller": did} if did else {}
        streams = await pages(api, "streams", "streams", limit=3, **params)
        assert [stream["id"] for stream in streams] == ids(right)
    blogs = [e for e in STREAMS if e.header is not None and e.header.sort_key == "family"]
    streams = await pages(api, "streams", "streams", sortKey="family", sortValue="blog", limit=4)
    assert [stream["id"] for stream in streams] == ids(blogs)


async def test_how_many_events_a_stream_has(api: Api, store: Store) -> None:
    init, other = STREAMS[0], STREAMS[1]
    key = next(k for k in KEYS if init.header and controller_of(k) == init.header.controller)
    change = data_event(key, init, [init.cid], [{"op": "replace", "path": "/n", "value": 2}])
    await admit(store, init, other, change)
    by_id = {stream["id"]: stream for stream in await pages(api, "streams", "streams")}
    first, second = (by_id[str(event.stream_id())] for event in (init, other))
    assert (first["events"], first["position"]) == (2, 3)
    assert (second["events"], second["position"]) == (1, 2)


async def test_models_and_what_there_is_of_each(api: Api, store: Store) -> None:
    assert await pages(api, "models", "models") == []
    await admit(store, *STREAMS)
    models = [event for event in STREAMS if event in MODELS]
    pages_of_models = await pages(api, "models", "models", limit=1)
    documents = Counter(e.header.model for e in STREAMS if e.header is not None)
    assert [
        (model["id"], model["name"], model["streams"], model["events"]) for model in pages_of_models
    ] == [
        (str(e.stream_id()), e.data["name"], documents[e.stream_id()], documents[e.stream_id()])
        for e in reversed(models)
    ]


@given(digest=st.binary(max_size=8), jose=st.booleans(), data=st.data())
def test_a_prefix_of_a_name_leads_to_it(digest: bytes, jose: bool, data: st.DataObject) -> None:
    cid = CID.of(DAG_JOSE if jose else DAG_CBOR, digest)
    stream = str(StreamId(data.draw(st.sampled_from(StreamType)), cid))
    other = CID.of(DAG_JOSE if data.draw(st.booleans()) else DAG_CBOR, data.draw(st.binary()))
    for name, ranges in ((str(cid), cid_ranges), (stream, init_ranges)):
        prefix = name[: data.draw(st.integers(1, len(name)))]
        assert any(first <= cid <= last for first, last in ranges(prefix))
        assert list(ranges(name)) == [(cid, cid)]
        names = [str(other)] if name == str(cid) else [str(StreamId(t, other)) for t in StreamType]
        is_there = any(first <= other <= last for first, last in ranges(prefix))
        assert is_there is any(name.startswith(prefix) for name in names)
    for digit in BASE32:  # of most digits, bits are set that no CID has
        text = str(cid)[:-1] + digit
        assert [str(CID(first)) for first, _ in cid_ranges(text)] in ([], [text])


async def test_a_large_init_event_is_decoded_once(api, store, monkeypatch):
    """To decode it takes long, and holds the interpreter; lists are asked for again and again."""
    decoded: list[bytes] = []
    parse = stream_lists.parse_event

    def counted(car: bytes) -> Event:
        decoded.append(car)
        return parse(car)

    model = model_event(KEYS[0], {"name": "Large", "more": [[]] * 1000})
    await admit(store, model)
    monkeypatch.setattr(stream_lists, "parse_event", counted)
    for _ in range(3):
        for path, params in (("streams", {}), ("models", {}), ("search", {"q": "large"})):
            answer = await read(api, path, **params)
            [row] = answer.get("models") or answer["streams"]
            assert row["name"] == "Large"
        assert (await read(api, f"anchors/events/{model.cid}"))["state"] == "none"
    assert decoded == [model.car]


async def test_a_model_too_large_to_be_used_is_listed_without_its_name(api, store):
    model = model_event(KEYS[0], {"name": "Large", "more": "x" * 300_000})
    await admit(store, model)
    [stream] = (await read(api, "streams"))["streams"]
    assert (stream["id"], stream["name"]) == (str(model.stream_id()), None)


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
